"""Training: settings, optimizer, one loop for every task, checkpoints, several processes."""
