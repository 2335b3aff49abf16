"""A progress bar on standard error; lines of text where that is not a terminal."""


class Progress:
    """Counts announced steps and says what is being done. Used as a context manager."""

    def __init__(self, steps: int) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps)
        self._steps, self._done = steps, 0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        """From now on this is being done."""
        self._bar.update(self._task, description=what)
        if not self._console.is_terminal:
            self._console.print(f"[{self._done}/{self._steps}] {what}", markup=False, highlight=False)

    def step(self) -> None:
        """One of the announced steps is finished."""
        self._done += 1
        self._bar.advance(self._task)
