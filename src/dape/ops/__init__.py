"""Operators: pure functions over tensors and an encoding."""
