"""No network, and a folder for a model that is saved."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once


@pytest.fixture
def folder(tmp_path):
    """Where a model was saved."""

    def save(model):
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save
