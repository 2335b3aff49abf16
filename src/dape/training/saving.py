"""Write a sharded checkpoint from all processes while training goes on: the folder appears whole or not at all."""

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

from dape.files import new_folder, sha256
from dape.training.description import shard_name
from dape.training.parallel import Group
from dape.training.shards import Snapshot


class Saving:
    """A thread in every process that writes its shard. The first process then calls ``finish(folder, checksums)``,
    renames the folder to ``target``, and calls ``after()``."""

    def __init__(
        self,
        target: Path,
        group: Group,
        snapshots: dict[str, Snapshot],
        *,
        finish: Callable[[Path, dict[str, str]], None],
        after: Callable[[], None],
    ) -> None:
        self._target, self._group, self._snapshots = target, group, snapshots
        self._finish, self._after = finish, after
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint is written, or raise the error that prevented it."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._save()
        except BaseException as error:
            self._error = error

    def _save(self) -> None:
        with contextlib.ExitStack() as stack:

            def begin() -> str:
                return str(stack.enter_context(new_folder(self._target)))

            def end() -> str:
                self._finish(folder, {name: sha for text in checksums for name, sha in json.loads(text).items()})
                return ""

            folder = Path(self._on_all(begin if self._group.is_first else str)[0])
            checksums = self._on_all(lambda: json.dumps(self._write(folder)))
            self._on_all(end if self._group.is_first else str)
        if self._group.is_first:
            self._after()

    def _write(self, folder: Path) -> dict[str, str]:
        """Write this process's shards; return their checksums by name."""
        group, checksums = self._group, {}
        for file, snapshot in self._snapshots.items():
            name = shard_name(file, group.rank, group.world)
            snapshot.write(folder / name)
            checksums[name] = sha256(folder / name)
        return checksums

    def _on_all(self, work: Callable[[], str]) -> list[str]:
        """Call ``work`` in every process and return the results of all. An error in one is raised in all."""
        try:
            own = f"+{work()}"
        except Exception as error:
            own = f"-{error}"
        results = self._group.gather(own, saving=True)
        if failed := [f"process {rank}: {text[1:]}" for rank, text in enumerate(results) if text.startswith("-")]:
            raise OSError(f"the checkpoint {self._target.name} was not written: {failed[0]}")
        return [text[1:] for text in results]
