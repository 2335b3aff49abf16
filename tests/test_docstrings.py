"""Examples in docstrings of public names run, and are there."""

import doctest
import importlib
import inspect
import re

import pytest
import torch

import dape

MODULES = (
    "dape.data.corpora",
    "dape.models.config",
    "dape.models.decoder",
    "dape.models.generate",
    "dape.nn",
    "dape.ops.attention.inspect",
    "dape.ops.attention.operator",
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


PUBLIC = [name for name in dape.__all__ if name not in ("Impl", "__version__")]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_say_what_they_are(name):
    said = getattr(dape, name).__doc__ or ""
    assert said.strip() and not said.startswith(f"{name}(")  # what dataclasses write where nobody did


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(getattr(dape, name))])
def test_public_functions_are_documented_in_full(name):
    function = getattr(dape, name)
    said, signature = inspect.getdoc(function) or "", inspect.signature(function)
    missing = [f"``{a}``" for a in signature.parameters if not re.search(rf"^    \**{a}:", said, re.MULTILINE)]
    assert not missing
    sections = ["Example"] + ["Raises:"] * bool(signature.parameters)
    sections += ["Returns:"] * (signature.return_annotation not in (None, "None", inspect.Signature.empty))
    found = said.replace("Yields:", "Returns:")
    assert [section for section in sections if f"\n{section}" not in found] == []
