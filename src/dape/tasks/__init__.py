"""Tasks that models are trained on. The training loop uses only the interface :class:`dape.tasks.base.Task`."""
