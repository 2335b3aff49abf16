"""``dape bench data``: speed of preparing text, beside the library ``tokenizers`` alone. No torch here."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from dape.bench.options import WithFile, check_common
from dape.bench.records import Column, Record, Results, Spread, make_table, paired, spread, text
from dape.bench.runner import Begins, Part, Plan, Timed, command
from dape.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

BYTES, BPE, LIBRARY = "dape prepare, bytes", "dape prepare, BPE", "tokenizers alone"
ALONE_AT_ONCE = 1 << 19
"""Characters in each call of the library. It is no faster with more."""
LEARNED_FROM = 1 << 20
"""Bytes that the BPE is learned from."""


@dataclass(frozen=True, kw_only=True)
class DataBench(WithFile):
    """Speed of `dape prepare`: as bytes, and as BPE beside the library `tokenizers` alone on the same text.

    The text is made of the sources of Python's standard library. Timed is everything from opening the text to the last
    checksum of the folder. Speeds are per second of processor time, without waiting for the disk or other programs.
    All calls take turns; ratios are taken within a round, and medians count.
    """

    bytes_mb: int = 256
    """Megabytes of text for bytes."""
    bpe_mb: int = 16
    """Megabytes of text for BPE."""
    vocabulary: int = 8192
    """Number of ids of the BPE, which is first learned from 1 MB of the text."""
    repeats: int = 3
    """Timed repetitions of each call."""


def run(config: DataBench) -> int:
    """Returns the exit code: 130 if interrupted."""
    check_common(config, "bytes_mb", "bpe_mb", "repeats")
    if config.vocabulary < 300:
        raise UsageError(f"`vocabulary` must be at least 300, got {config.vocabulary}")
    # The library reads this when it is first used. It then uses one core, like our own code.
    os.environ["RAYON_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="dape-bench-") as folder:
        return command(
            config, lambda threads: Plan(parts=_parts(config, Path(folder)), steps=3 * config.repeats), tables
        )


# The work ------------------------------------------------------------------------------------------------------------


def _parts(config: DataBench, folder: Path) -> Iterator[Part]:
    from dape.data.tokenizer import train_bpe

    yield Begins("making the text")
    source = _sources()
    large, small = folder / "large.txt", folder / "small.txt"
    for path, size in ((large, config.bytes_mb), (small, config.bpe_mb)):
        _write(path, source, size * 10**6)
    yield Begins(BYTES)
    calls = {BYTES: partial(_prepare, large, folder / "bytes", "bytes", count())}
    yield _timed(config, calls, large.stat().st_size)
    yield Begins(f"learning a BPE of {config.vocabulary} ids")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    train_bpe(config.vocabulary, [source[:LEARNED_FROM].decode()]).save(tokenizer)
    yield Begins(BPE)
    ours = partial(_prepare, small, folder / "bpe", str(tokenizer), count())
    yield _timed(config, {LIBRARY: _alone(tokenizer, small), BPE: ours}, small.stat().st_size)


def _sources() -> bytes:
    """The source files of the standard library, reduced to ASCII: some are not UTF-8, and the text is cut anywhere."""
    root = Path(os.__file__).parent
    text = b"".join(path.read_bytes() for path in [*sorted(root.glob("*.py")), *sorted(root.glob("*/*.py"))])
    return text.decode("ascii", "ignore").encode()


def _write(path: Path, source: bytes, size: int) -> None:
    with path.open("wb") as file:
        for first in range(0, size, len(source)):
            file.write(source[: size - first])


def _prepare(path: Path, out: Path, tokenizer: str, number: Iterator[int]) -> None:
    from dape.data.prepare import Options, prepare

    shutil.rmtree(out, ignore_errors=True)
    prepare([str(path)], out, Options(tokenizer=tokenizer, overwrite=next(number) > 0))


def _alone(folder: Path, path: Path) -> Callable[[], object]:
    """A call that encodes the text and drops the ids. The tokenizer is loaded anew each time, as `dape prepare` does,
    because it caches words that it has seen."""
    import tokenizers

    def call() -> None:
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        content = path.read_text(encoding="utf-8")
        for first in range(0, len(content), ALONE_AT_ONCE):
            (found,) = library.encode_batch_fast([content[first : first + ALONE_AT_ONCE]], add_special_tokens=False)
            assert found.ids

    return call


def _timed(config: DataBench, calls: Mapping[str, Callable[[], object]], size: int) -> Timed:
    clock = time.process_time
    return Timed(calls=calls, repeats=config.repeats, clock=clock, records=partial(_records, size))


def _records(size: int, seconds: Mapping[str, Sequence[float]]) -> list[Record]:
    return [
        {
            "what": name,
            "megabytes": size / 1e6,
            **spread("mb_per_second", Spread.of([size / 1e6 / each for each in times])),
            **spread("vs_library", paired(seconds[LIBRARY], times) if LIBRARY in seconds else None),
        }
        for name, times in seconds.items()
        if times
    ]


# The report ----------------------------------------------------------------------------------------------------------


def tables(results: Results) -> "Iterator[Table]":
    def ratio(record: Record) -> str:
        return "-" if record["vs_library"] is None else f"{record['vs_library']:.2f}x"

    columns = [
        text("what"),
        Column("MB", lambda r: f"{r['megabytes']:.0f}"),
        Column("MB/s a core", lambda r: f"{r['mb_per_second']:.2f}"),
        Column("vs library", ratio),
    ]
    if results.records:
        caption = "vs library: speed relative to tokenizers alone on the same text, the median over rounds"
        yield make_table("preparing text", caption, results.records, columns)
