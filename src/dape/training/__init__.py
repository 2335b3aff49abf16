"""Training language models: settings, optimizer, the loop, checkpoints."""
