"""The paper's experiments as data, the grids that repeat them, and what became of its claims."""
