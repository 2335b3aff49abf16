"""All engines, in the order in which ``auto`` tries them."""

from dape.ops.attention.engines.base import Engine
from dape.ops.attention.engines.cpp import Cpp
from dape.ops.attention.engines.tiles import Tiles
from dape.ops.attention.engines.triton import Triton

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Triton(), Cpp(), Tiles())}
