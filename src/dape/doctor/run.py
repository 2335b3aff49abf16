"""All sections of ``dape doctor``, and the report with them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dape.doctor import choices, comparisons, facts, gpu
from dape.doctor.section import Section, json_file
from dape.files import write_text
from dape.provenance import provenance


def examine() -> Iterator[Section]:
    """Yield the sections one by one: the first can be read while the last is computed."""
    yield facts.versions()
    yield facts.devices()
    yield facts.kernels()
    yield facts.extras()
    yield from choices.choices()
    yield comparisons.self_test()


def examine_gpus(say: Callable[[str], None]) -> Iterator[Section]:
    """Yield facts about the machine, then sections about one GPU of each kind. Without a GPU, yield nothing."""
    kinds = {facts.describe(device): device for device in reversed(facts.gpus())}
    if kinds:
        yield facts.versions()
        yield facts.devices()
        yield facts.kernels()
    for device in kinds.values():
        yield from gpu.examine(device, say)


def write_report(file: Path, sections: Sequence[Section]) -> list[Path]:
    """Write the text into ``file`` and JSON into ``file.json``."""
    content = {"ok": all(each.ok for each in sections), "sections": [each.as_json() for each in sections]}
    beside = json_file(file)
    write_text(file, "\n\n".join(each.as_text() for each in sections) + "\n")
    write_text(beside, json.dumps({**content, "provenance": provenance()}, indent=2) + "\n")
    return [file, beside]
