"""A small run of ``dape bench model``, and times made up to be worked out by hand."""

import json
from pathlib import Path

from dape.bench.model import ModelBench, run
from dape.bench.model_records import Group

TINY = {"sizes": ("tiny",), "lengths": (9,), "rounds": 2, "encodings": ("kerple", "dape-kerple")}
GROUP = Group(size="350m", layers=24, length=512, pass_="step", rounds=3, as_published=True)
SAMPLES = {
    ("kerple", 1): [1.0, 10.0, 1.0],
    ("kerple", 2): [2.0, 20.0, 2.0],
    ("dape-kerple", 1): [1.0, 10.0, 1.0],
    ("dape-kerple", 2): [2.5, 25.0, 2.25],
}


def report_of(tmp_path: Path, **options) -> dict:
    path = tmp_path / "model.json"
    assert run(ModelBench(**{**TINY, **options, "json": path})) == 0
    return json.loads(path.read_text())
