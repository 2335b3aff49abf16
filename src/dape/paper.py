"""Moved: use :mod:`dape.results.paper`."""

import warnings

from dape.results.paper import PUBLISHED, STATEMENTS, TITLES, Published, load

__all__ = ["PUBLISHED", "STATEMENTS", "TITLES", "Published", "load"]
warnings.warn("dape.paper has moved to dape.results.paper", DeprecationWarning, stacklevel=2)
