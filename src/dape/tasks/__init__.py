"""What is learned. The training loop knows a task by :class:`dape.tasks.base.Task` alone."""
