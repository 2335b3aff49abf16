"""Examples in docstrings of public names run, and are there."""

import doctest
import importlib

import pytest
import torch

import dape

MODULES = (
    "dape.models.config",
    "dape.models.decoder",
    "dape.models.generate",
    "dape.nn",
    "dape.positional.build",
    "dape.positional.catalogue",
    "dape.positional.positions",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    entries = importlib.import_module("dape.positional.catalogue").ENTRIES
    found = doctest.testmod(module, extraglobs={"torch": torch})
    entries.pop("far", None)  # what the example of register has added
    assert found.failed == 0 and found.attempted > 0


@pytest.mark.parametrize("name", [name for name in dape.__all__ if name not in ("Impl", "__version__")])
def test_public_names_say_what_they_are(name):
    assert (getattr(dape, name).__doc__ or "").strip()
