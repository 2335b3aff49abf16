"""Every script in examples/ runs as a user would run it and says what it should."""

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
    "04_adapter": "with an adapter of",
}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert SAYS[script.stem] in result.stdout
