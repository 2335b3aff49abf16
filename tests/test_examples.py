"""Every script in examples/ runs as a user would run it and says what it should."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "01_wrap_your_bias": "computed by lag tables",
    "02_drop_in_attention": "cached decoding differs",
    "03_hugging_face": "logits are the same: True",
    "04_adapter": "logits are the same: True",
    "05_harness": "dape-kerple (adapter), 128 tokens: perplexity",
}
NEEDS = {"03_hugging_face": "transformers", "04_adapter": "transformers", "05_harness": "lm_eval"}


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in NEEDS else ()) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_example_runs(script, tmp_path):
    needed = NEEDS.get(script.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert SAYS[script.stem] in result.stdout
