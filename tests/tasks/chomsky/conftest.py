from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """What DeepMind's programs gave, by name."""
    with np.load(GOLDEN / "che_tasks.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def constants() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "che_constants.npz") as arrays:
        return dict(arrays)
