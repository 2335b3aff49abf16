"""Positional encodings: the interface, the catalogue, and one file per encoding."""
