"""The paper's experiments as data, the grids that repeat them, and verdicts on its claims."""
