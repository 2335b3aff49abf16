"""Moved: use :mod:`dape.results`."""

import warnings

from dape.results.records import Row, append_rows, read_rows

__all__ = ["Row", "append_rows", "read_rows"]
warnings.warn("dape.evaluation.records has moved to dape.results", DeprecationWarning, stacklevel=2)
