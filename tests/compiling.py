"""Marks of tests that run torch.compile. The fixture ``forget_graphs`` is in conftest.py."""

import pytest

# Warnings of the compiler about itself: dynamo looks at the gradients of what enters a graph, inductor uses torch.jit.
WARNINGS = ("ignore:The .grad attribute of a Tensor that is not a leaf", "ignore:`torch.jit:DeprecationWarning")
COMPILES = [
    pytest.mark.compile,
    pytest.mark.usefixtures("forget_graphs"),
    *(pytest.mark.filterwarnings(warning) for warning in WARNINGS),
]
