"""Attention: one operator, one signature, several implementations that agree."""

from dape.ops.attention.inspect import Intermediates, intermediates
from dape.ops.attention.memory import LagMemory
from dape.ops.attention.operator import Choice, attention

__all__ = ["Choice", "Intermediates", "LagMemory", "attention", "intermediates"]
