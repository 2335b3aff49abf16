"""The work of each command as a Python function. A command parses flags, calls one function and prints the result."""
