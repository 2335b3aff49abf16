"""What a command has left in its folder, as far as it must be the same however often it was killed."""

import hashlib
import json
from pathlib import Path
from typing import Any

VOLATILE = {"date", "commit", "tokens_per_second", "seconds", "checksum"}
"""When and from which commit, wherever that stands in a JSON file, and the checksum over them."""
LOGS = {"log.txt", ".lock"}


State = dict[str, Any]
"""By path: the values of a JSON file, a digest of any other."""


def state_of(folder: Path) -> State:
    """Without times. Of the checkpoints of a run only the newest counts, as one that was asked to stop has saved at
    another step."""
    files = [path for path in sorted(folder.rglob("*")) if path.name not in LOGS and not path.is_dir()]
    empty = [path for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir())]
    wanted = [path for path in [*files, *empty] if not _outdated(path.relative_to(folder), folder)]
    return {str(path.relative_to(folder)): _content(path) for path in wanted}


def differences(now: State, then: State) -> list[str]:
    """In words; empty if nothing differs."""
    missing = [f"{name} is missing" for name in then if name not in now]
    left = [f"{name} was left" for name in now if name not in then]
    return [
        *missing,
        *left,
        *(words for name in now if name in then for words in _differs(name, now[name], then[name])),
    ]


def _differs(name: str, now: Any, then: Any) -> list[str]:
    if now == then:
        return []
    if isinstance(now, dict) and isinstance(then, dict):
        return [w for key in {**now, **then} for w in _differs(f"{name}.{key}", now.get(key), then.get(key))][:3]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        pairs = enumerate(zip(now, then, strict=True))
        return [w for n, (one, other) in pairs for w in _differs(f"{name}.{n}", one, other)][:3]
    return [f"{name} is {str(now)[:100]}, undisturbed {str(then)[:100]}"]


def _outdated(path: Path, folder: Path) -> bool:
    for parent in path.parents:
        if parent.parent.name == "checkpoints" and parent.name.startswith("step-"):
            return parent.name < max(p.name for p in (folder / parent.parent).glob("step-*"))
    return False


def _content(path: Path) -> Any:
    if path.is_dir():
        return "an empty folder"
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        lines = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        # Runs side by side deliver their rows in the order in which they happen to end.
        return sorted(lines, key=json.dumps) if path.name == "results.jsonl" else lines
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in VOLATILE}
    return [_timeless(item) for item in value] if isinstance(value, list) else value
