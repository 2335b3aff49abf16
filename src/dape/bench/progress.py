"""A progress bar on standard error; lines of text where that is not a terminal."""

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    def begin(self, what: str) -> None:
        """From now on this is being done."""
        ...

    def step(self) -> None:
        """One of the announced steps is finished."""
        ...


@contextlib.contextmanager
def show_progress(steps: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps)

        class Shown:
            def begin(self, what: str) -> None:
                bar.update(task, description=what)
                if not console.is_terminal:
                    console.print(f"[{bar.tasks[0].completed:.0f}/{steps}] {what}", markup=False, highlight=False)

            def step(self) -> None:
                bar.advance(task)

        yield Shown()
