"""Optional libraries: whether they are there and new enough, found out without importing them."""

import importlib.metadata
import importlib.util
import re

OLDEST_TRANSFORMERS = "5.5"
"""As in pyproject.toml: older ones lack what attention is registered with."""


def transformers_trouble(what: str) -> str | None:
    """Why ``what`` (dape.hf, or a command) cannot use the library, and what to do; None if it can."""
    if importlib.util.find_spec("transformers") is None:
        return f"{what} needs the transformers library: pip install 'dape[hf]'"
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


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]
