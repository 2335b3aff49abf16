"""Generated tests that tell encodings apart, each of one ability: a file each, and a line in the catalogue."""
