"""A sharded checkpoint, written by all processes while training goes on: the folder appears whole or not at all."""

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
    """Runs in a thread of every process. ``finish(folder, checksums)`` is called in the first one, when all have
    written; ``after()`` when the folder has its name."""

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
        """Until it is there; raises what went wrong."""
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
                self._finish(folder, {name: sha for text in told for name, sha in json.loads(text).items()})
                return ""

            folder = Path(self._all(begin if self._group.speaks else str)[0])
            told = self._all(lambda: json.dumps(self._write(folder)))
            self._all(end if self._group.speaks else str)
        if self._group.speaks:
            self._after()

    def _write(self, folder: Path) -> dict[str, str]:
        group, found = self._group, {}
        for file, snapshot in self._snapshots.items():
            name = shard_name(file, group.rank, group.world)
            snapshot.write(folder / name)
            found[name] = sha256(folder / name)
        return found

    def _all(self, work: Callable[[], str]) -> list[str]:
        """What every process says; what fails in one of them, as a full disk does, fails in all."""
        try:
            own = f"+{work()}"
        except Exception as error:
            own = f"-{error}"
        told = self._group.texts(own, saving=True)
        if failed := [f"process {rank}: {text[1:]}" for rank, text in enumerate(told) if text.startswith("-")]:
            raise OSError(f"the checkpoint {self._target.name} was not written: {failed[0]}")
        return [text[1:] for text in told]
