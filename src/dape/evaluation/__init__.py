"""Measure trained models: perplexity over lengths, recall, Chomsky tasks, bias maps."""
