"""The examination: all sections, and the report of them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dape.doctor import choices, comparisons, facts, gpu
from dape.doctor.section import Section, json_file
from dape.files import write_text
from dape.provenance import provenance


def examine() -> Iterator[Section]:
    """One after the other, so that the first can be read while the last is computed."""
    yield facts.versions()
    yield facts.devices()
    yield facts.kernels()
    yield facts.extras()
    yield from choices.choices()
    yield comparisons.self_test()


def examine_gpus(say: Callable[[str], None]) -> Iterator[Section]:
    """What can be told of the machine, then every GPU, one of each kind. Nothing without a GPU."""
    kinds = {facts.describe(device): device for device in reversed(facts.gpus())}
    if kinds:
        yield facts.versions()
        yield facts.devices()
        yield facts.kernels()
    for device in kinds.values():
        yield from gpu.examine(device, say)


def write_report(file: Path, sections: Sequence[Section]) -> list[Path]:
    """The text into ``file``, the same for programs into ``file.json``."""
    content = {"ok": all(each.ok for each in sections), "sections": [each.as_json() for each in sections]}
    beside = json_file(file)
    write_text(file, "\n\n".join(each.as_text() for each in sections) + "\n")
    write_text(beside, json.dumps({**content, "provenance": provenance()}, indent=2) + "\n")
    return [file, beside]
