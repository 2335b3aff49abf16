from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[2] / "golden"
with np.load(GOLDEN / "che_tasks.npz") as arrays:
    DEEPMIND = [str(name) for name in arrays["task_names"]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``original``: the tasks of DeepMind's programs. The catalogue may hold more."""
    if "original" in metafunc.fixturenames:
        metafunc.parametrize("original", DEEPMIND)


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """What DeepMind's programs gave, by name."""
    with np.load(GOLDEN / "che_tasks.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def constants() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "che_constants.npz") as arrays:
        return dict(arrays)
