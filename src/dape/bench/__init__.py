"""Benchmarks behind ``dape bench``."""
