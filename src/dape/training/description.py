"""Finding checkpoints, and reading checkpoint.json. No torch here, so that a wrong path is refused at once."""

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.reading import Count, FileName, Sha256, check_files, read_json, read_record
from dape.training.config import TrainConfig

FORMAT = 1
MODEL, OPTIMIZER, DESCRIPTION = "model.safetensors", "optimizer.safetensors", "checkpoint.json"
CHECKPOINTS = "checkpoints"
ADVICE = "Remove this folder to go on from an older checkpoint, or copy it anew."


@dataclass(frozen=True, kw_only=True)
class Description:
    """The content of checkpoint.json."""

    step: int
    """Optimizer steps that were taken."""
    model: Any
    """Configuration of the model: a :class:`DecoderConfig`, another dataclass, or a mapping. The last two are read back
    as a mapping."""
    train: TrainConfig
    data: dict[str, Any]
    """Identity of the task, such as name and hash of the corpus, name and fingerprint of its tokenizer."""
    scaler: dict[str, Any] = dataclasses.field(default_factory=dict)
    """State of the loss scaler, with fp16."""
    threads: int | None = None
    """Threads of torch on the CPU, if known."""


class _File(TypedDict):
    """checkpoint.json, without the checksum of its own content."""

    format: int
    step: Count
    kind: NotRequired[str]
    """Kind of the model. Files of older versions have none: they described decoders only."""
    train: TrainConfig
    data: dict[str, Any]
    scaler: dict[str, Any]
    threads: NotRequired[int | None]
    sha256: dict[FileName, Sha256]


class _DecoderFile(_File):
    model: DecoderConfig


class _OtherFile(_File):
    model: dict[str, Any]


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in ``folder``, oldest first."""
    found = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def find(path: Path) -> Path:
    """The checkpoint at ``path``, or the newest one of the run at ``path``. UsageError if there is none."""
    if (path / DESCRIPTION).is_file():
        return path
    for folder in (path / CHECKPOINTS, path):
        if found := checkpoints(folder):
            return found[-1]
    if not path.exists():
        raise UsageError(f"{path}: there is no such checkpoint or run")
    raise UsageError(
        f"{path}: holds no checkpoint; give the folder of a run of `dape train`, or one of its checkpoints"
    )


class OtherFormatError(ValueError):
    """The checkpoint is not damaged, but of another version."""


def describe(checkpoint: Path, *, verify: bool = True) -> Description:
    """Read checkpoint.json, and ``verify`` the checksums of all files. ValueError if anything is missing or damaged."""
    path = checkpoint / DESCRIPTION
    if not path.is_file():
        raise ValueError(f"{path}: is missing. {ADVICE}")
    plain = read_json(path, ADVICE)
    if plain.get("format") != FORMAT:
        raise OtherFormatError(
            f"{path}: format {plain.get('format')}, while this version of dape reads format {FORMAT}"
        )
    is_decoder = plain.get("kind", "decoder") == "decoder"
    given: Any = read_record(path, _DecoderFile if is_decoder else _OtherFile, ADVICE)
    _check_step(path, given["step"])
    _check_complete(path, given["sha256"])
    if verify:
        check_files(checkpoint, given["sha256"], ADVICE)
    known: dict[str, Any] = {f.name: given[f.name] for f in dataclasses.fields(Description) if f.name in given}
    return Description(**known)


def _check_step(path: Path, step: int) -> None:
    """A folder that has the name it was saved under must be of that step; users may give it any other name."""
    name = path.resolve().parent.name
    if re.fullmatch(r"step-\d{8,}", name) and int(name.removeprefix("step-")) != step:
        raise ValueError(f"{path}: step: found {step}, expected that of its folder {name}. {ADVICE}")


def _check_complete(path: Path, noted: Collection[str]) -> None:
    """Raise ValueError if a file that will be read has no checksum."""
    from dape.data import tokenizer as tokenizers  # imports numpy, which `dape --help` does not need

    needed = {name for file in (MODEL, OPTIMIZER) for name in files_of(file, noted) or [file]}
    needed |= {name for name in (tokenizers.FILE, tokenizers.INFO) if (path.parent / name).exists()}
    if missing := sorted(needed - set(noted)):
        raise ValueError(f"{path}: sha256: has no {', '.join(missing)}, which every checkpoint has. {ADVICE}")


def shard_name(file: str, rank: int, world: int) -> str:
    return f"{Path(file).stem}-{rank + 1:05d}-of-{world:05d}{Path(file).suffix}"


def files_of(file: str, there: Collection[str]) -> list[str]:
    """Which of the names ``there`` make up ``file``: its own name, or those of all its shards. [] if one is missing."""
    if file in there:
        return [file]
    shard = re.compile(rf"{re.escape(Path(file).stem)}-\d{{5}}-of-(\d{{5}}){re.escape(Path(file).suffix)}")
    worlds = {int(found[1]) for name in there if (found := shard.fullmatch(name))}
    for world in worlds:
        names = [shard_name(file, rank, world) for rank in range(world)]
        if all(name in there for name in names):
            return names
    return []
