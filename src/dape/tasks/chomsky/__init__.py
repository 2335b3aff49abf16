"""The tasks, one file each; ``catalogue.py`` lists them without importing numpy."""
