"""Recall of what a model has read, also beyond its training length: in text and in artificial tokens."""
