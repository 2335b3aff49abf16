"""What gives an existing model longer reach: adapters, interpolation of its rotation, fine-tuning, side by side."""
