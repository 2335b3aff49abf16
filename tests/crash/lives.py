"""One command, killed again and again: a round starts it, kills it at a random moment, and starts it again until it
ends."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.commands import argv, is_done, make_inputs
from tests.crash.processes import Process, preload, start
from tests.crash.state import State, differences, state_of

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TARGETS = ("process", "group", "all")
"""The command itself, with what shares its group, or with every worker it has started, as when a machine goes down."""
MOST_KILLS = 3
PATIENCE = 120.0
BUSY = "in use by another"


@dataclass
class Round:
    entry: str
    kills: list[str] = field(default_factory=list)
    lives: int = 0
    waited: int = 0
    """Starts that were refused as a worker of the life before had not ended yet."""
    problems: list[str] = field(default_factory=list)


class Arena:
    """A folder in which every life of every command has the same paths, and what each command leaves undisturbed."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder, self.work, self.temporary, self.real = folder, folder / "work", folder / "tmp", real
        self.log = folder / "log.txt"
        self._whole: dict[str, tuple[float, float, State]] = {}
        os.environ.update(DAPE_CACHE=str(folder / "cache"), TMPDIR=str(self.temporary), OMP_NUM_THREADS="1")
        self._clear()
        if not real:
            preload()
        make_inputs(folder, self._once)

    def _once(self, *words: str) -> None:
        child = start(words, folder=self.folder, log=self.log, real=self.real)
        if child.wait(PATIENCE):
            raise SystemExit(f"dape {' '.join(words)} fails:\n{self.said()}")

    def undisturbed(self, entry: str) -> tuple[float, float, State]:
        """When it first writes something, how long it takes, and what it leaves."""
        if entry not in self._whole:
            self._clear()
            begin = time.monotonic()
            child, first = self._start(entry), 0.0
            while child.poll() is None:
                if not first and any(self.work.iterdir()):
                    first = time.monotonic() - begin
                time.sleep(0.02)
            if child.returncode:
                raise SystemExit(f"{entry} fails undisturbed:\n{self.said()}")
            self._whole[entry] = first, time.monotonic() - begin, state_of(self.work)
        return self._whole[entry]

    def round(self, entry: str, draw: random.Random) -> Round:
        first, duration, whole = self.undisturbed(entry)
        self._clear()
        result = Round(entry)
        wanted = draw.randint(1, MOST_KILLS)
        while len(result.kills) < wanted:
            # Most of the time is the import of torch; four of five kills come after it.
            moment = draw.uniform(0.9 * first if draw.random() < 0.8 else 0, duration)
            ended = self._life(result, moment, draw.choice(SIGNALS), draw.choice(TARGETS), at_once=draw.random() < 0.3)
            if result.problems or (ended and result.kills):
                break
            if ended:  # before its moment: once more, and earlier
                self._clear()
                duration *= 0.9
        else:
            self._last_life(result)
        self._judge(result, whole)
        return result

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    # One life --------------------------------------------------------------------------------------------------------

    def _life(self, result: Round, moment: float, number: int, target: str, *, at_once: bool) -> bool:
        """True if it ended before its moment had come."""
        child = self._start(result.entry)
        result.lives += 1
        try:
            child.wait(moment)
        except subprocess.TimeoutExpired:
            result.kills.append(f"{signal.Signals(number).name} to {target} at {moment:.2f} s")
            self._kill(child, number, target)
        self._check_end(result, child, number)
        if not at_once:
            self._wait_for_the_rest(result)
        return child.returncode == 0 or is_done(result.entry, self.work)

    def _last_life(self, result: Round) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            child = self._start(result.entry)
            result.lives += 1
            try:
                code = child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                result.problems.append(f"does not end within {PATIENCE:.0f} s")
                self._kill(child, signal.SIGKILL, "all")
                return
            if code == 0:
                return
            if BUSY not in self.said() or time.monotonic() > deadline:
                result.problems.append(f"exit code {code}: {self.said()[-1500:]}")
                return
            result.waited += 1

    def _check_end(self, result: Round, child: Process, number: int) -> None:
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            result.problems.append(f"outlives {signal.Signals(number).name} by {PATIENCE:.0f} s")
            self._kill(child, signal.SIGKILL, "all")
            return
        busy = code in (1, 2) and BUSY in self.said()
        result.waited += busy
        if code not in (0, -number, 128 + number, 130) and not busy:
            result.problems.append(f"exit code {code} after {signal.Signals(number).name}: {self.said()[-1500:]}")

    def _wait_for_the_rest(self, result: Round) -> None:
        deadline = time.monotonic() + PATIENCE
        while rest := self._living():
            if time.monotonic() > deadline:
                result.problems.append(f"{len(rest)} processes live on after {PATIENCE:.0f} s")
                for pid in rest:
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    def _judge(self, result: Round, whole: State) -> None:
        self._wait_for_the_rest(result)
        result.problems += differences(state_of(self.work), whole)
        result.problems += [f"{path.name} was left in TMPDIR" for path in self.temporary.iterdir()]

    # Processes -------------------------------------------------------------------------------------------------------

    def _start(self, entry: str) -> Process:
        self.log.unlink(missing_ok=True)
        return start(argv(entry, self.work), folder=self.work, log=self.log, real=self.real)

    def _kill(self, child: Process, number: int, target: str) -> None:
        if target == "group":
            os.killpg(child.pid, number)
        elif target == "process":
            child.send_signal(number)
        else:
            for pid in self._living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _living(self) -> list[int]:
        """All that the command has started: whatever has this working folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink() == self.work and _state(process) != "Z":
                    found.append(int(process.name))
        return found

    def _clear(self) -> None:
        for folder in (self.work, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()


def _state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]
