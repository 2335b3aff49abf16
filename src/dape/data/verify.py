"""Compare files with their checksums: small ones whole, large ones in samples. No torch here."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dape.reading import check_files

BLOCK = 1 << 20
"""Bytes per checksum."""
WHOLE = 32 << 20
"""Folders up to this size, in bytes, are read whole, in about a tenth of a second."""
SAMPLES = 8
"""Blocks that are read of every file of larger folders: the first, the last, and others evenly between."""


class BlockSums:
    """CRC-32 of every block of a file that is written piece by piece."""

    def __init__(self, written: BinaryIO | None = None) -> None:
        """``written``: the beginning of the file, if it exists already."""
        self._sums: list[int] = []
        self._last, self._filled = 0, 0
        while written and (data := written.read(BLOCK)):
            self.update(data)

    def update(self, data: bytes) -> None:
        while data:
            piece, data = data[: BLOCK - self._filled], data[BLOCK - self._filled :]
            self._last, self._filled = zlib.crc32(piece, self._last), self._filled + len(piece)
            if self._filled == BLOCK:
                self._sums.append(self._last)
                self._last, self._filled = 0, 0

    def hex(self) -> str:
        """Eight digits per block."""
        return "".join(f"{crc:08x}" for crc in [*self._sums, *([self._last] if self._filled else [])])


def check_entries(folder: Path, entries: Iterable[Mapping[str, Any]], advice: str) -> None:
    """Check files by their entries in a manifest (file, sha256 and perhaps blocks), whole or in samples."""
    entries = list(entries)
    if sum((folder / entry["file"]).stat().st_size for entry in entries) <= WHOLE:
        check_files(folder, {entry["file"]: entry["sha256"] for entry in entries}, advice)
        return
    for entry in entries:
        _check_samples(folder / entry["file"], entry.get("blocks", ""), advice)


def _check_samples(path: Path, blocks: str, advice: str) -> None:
    """Check some blocks. Folders of older versions have no checksums of blocks, and are not checked."""
    count = len(blocks) // 8
    with path.open("rb") as file:
        for number in sorted({place * (count - 1) // (SAMPLES - 1) for place in range(SAMPLES)} if count else ()):
            file.seek(number * BLOCK)
            if f"{zlib.crc32(file.read(BLOCK)):08x}" != blocks[8 * number : 8 * number + 8]:
                raise ValueError(f"{path}: damaged at byte {number * BLOCK} or soon after. {advice}")
