"""Other builds of the C++ kernel, for tests: with other flags, or with a defect put in."""

from pathlib import Path

import pytest

from dape.ops import native
from dape.ops.attention.fused import library

NAN_SCRATCH = "-DDAPE_NAN_SCRATCH"


def built(*flags: str, source: Path = library.SOURCE) -> Path:
    """The shared library with these flags too, from the cache if it is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLAGS", (*native.FLAGS, *flags))
        return native.build(source)


def with_defect(folder: Path, right: str, wrong: str, source: Path = library.SOURCE) -> Path:
    """The source with one line of it or of its headers replaced."""
    texts = {part.name: part.read_text() for part in native.parts_of(source)}
    found = sum(text.count(right) for text in texts.values())
    assert found == 1, f"{right!r} is not in {source.name} and its headers, or not once: choose another defect"
    for name, text in texts.items():
        (folder / name).write_text(text.replace(right, wrong))
    return folder / source.name
