"""`make crash ROUNDS=100`: kill long commands at random moments and compare what they end with, bit for bit.

A round takes one command, runs it undisturbed (once per command), then again in a fresh folder with one to four kills,
and starts it until it ends. Files, weights, rows (without times) and tokens must be the same, nothing else may be left,
and no process may live on. Exit code 1 if anything differs.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.commands import COMMANDS
from tests.crash.lives import Arena, Round


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=list(COMMANDS), help="this command in every round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--real", action="store_true", help="processes that import everything themselves; much slower")
    given = parser.parse_args()
    print(f"--rounds {given.rounds} --seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dape-crash-") as folder:
        arena = Arena(Path(folder).resolve(), real=given.real)
        names = [given.only] if given.only else list(COMMANDS)
        rounds = [_round(arena, number, names, given.seed) for number in range(given.rounds)]
    print("\n".join(["", *table(rounds)]))
    return 1 if any(each.problems for each in rounds) else 0


def _round(arena: Arena, number: int, names: Sequence[str], seed: int) -> Round:
    """Commands take turns; moments and signals are a function of the seed and the round."""
    begin, result = time.monotonic(), arena.round(names[number % len(names)], random.Random(f"{seed} {number}"))
    verdict = "; ".join(result.problems) or "equal"
    seconds = time.monotonic() - begin
    print(
        f"{number:4} {result.entry:16} {seconds:5.1f} s  {', '.join(result.kills) or 'no kill'}: {verdict}", flush=True
    )
    return result


def table(rounds: Sequence[Round]) -> list[str]:
    lines = [f"{'command':16}   rounds    kills restarts  refused    equal"]
    for name in [*dict.fromkeys(each.entry for each in rounds), "all"]:
        own = [each for each in rounds if name in (each.entry, "all")]
        counts = [
            len(own),
            sum(len(each.kills) for each in own),
            sum(each.lives - 1 for each in own),
            sum(each.waited for each in own),
            sum(not each.problems for each in own),
        ]
        lines.append(f"{name:16} " + " ".join(f"{count:8}" for count in counts))
    return lines


if __name__ == "__main__":
    sys.exit(main())
