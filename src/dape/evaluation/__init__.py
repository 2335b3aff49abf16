"""Measuring trained models: result rows, perplexity over lengths, statistics over seeds, recall probes."""
