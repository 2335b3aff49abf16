"""The Chomsky-hierarchy benchmark: algorithmic tasks, trained on lengths 1 to 40, tested on 41 to 500."""
