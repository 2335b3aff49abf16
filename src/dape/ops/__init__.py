"""Operators: pure functions of tensors and an encoding."""
