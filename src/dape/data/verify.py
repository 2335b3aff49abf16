"""Whether files are those that were written: every byte of small ones, samples of large ones. No torch here."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dape.reading import check_files

BLOCK = 1 << 20
"""Bytes that have a checksum of their own."""
WHOLE = 32 << 20
"""Files that are no larger together are read whole, in about a tenth of a second."""
SAMPLES = 8
"""Blocks that are read of every larger file, spread evenly; the first and the last are among them."""


class BlockSums:
    """CRC-32 of every block of a file that is written piece by piece."""

    def __init__(self, written: BinaryIO | None = None) -> None:
        """``written``: what is in the file already."""
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
    """Files of a manifest (file, sha256 and perhaps blocks), whole or in samples."""
    entries = list(entries)
    if sum((folder / entry["file"]).stat().st_size for entry in entries) <= WHOLE:
        check_files(folder, {entry["file"]: entry["sha256"] for entry in entries}, advice)
        return
    for entry in entries:
        _check_samples(folder / entry["file"], entry.get("blocks", ""), advice)


def _check_samples(path: Path, blocks: str, advice: str) -> None:
    """Nothing is known of single blocks of folders from before there were checksums of blocks."""
    count = len(blocks) // 8
    with path.open("rb") as file:
        for number in sorted({place * (count - 1) // (SAMPLES - 1) for place in range(SAMPLES)} if count else ()):
            file.seek(number * BLOCK)
            if f"{zlib.crc32(file.read(BLOCK)):08x}" != blocks[8 * number : 8 * number + 8]:
                raise ValueError(f"{path}: damaged at byte {number * BLOCK} or soon after. {advice}")
