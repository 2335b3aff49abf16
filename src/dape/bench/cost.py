"""The cost of training, under the name it had first; it lives in :mod:`dape.training.cost`."""

from dape.training.cost import *  # noqa: F403
