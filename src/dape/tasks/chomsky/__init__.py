"""The tasks of the Chomsky-hierarchy benchmark, one file each. ``catalogue.py`` lists them without importing numpy."""
