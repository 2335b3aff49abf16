"""Experiments: grids of runs. Each run is a process with its own folder."""
