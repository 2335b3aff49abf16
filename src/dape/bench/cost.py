"""The old name of :mod:`dape.training.cost`."""

from dape.training.cost import *  # noqa: F403
