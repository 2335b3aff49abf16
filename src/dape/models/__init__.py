"""Transformers built on the catalogue of encodings and the attention operator."""
