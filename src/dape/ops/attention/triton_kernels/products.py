# Type checkers do not understand kernel code, which triton compiles with types of its own.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportReturnType=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false, reportMissingImports=false
"""Products of tiles, and their two layouts, planes [head, row, key] and cells [row * key, head]: see ``kernels.py``."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def dot(a, b, STORE: tl.constexpr, TYPE: tl.constexpr):
    return tl.dot(a.to(STORE).to(TYPE), b.to(STORE).to(TYPE), input_precision="ieee")


@triton.jit
def turn(x):
    """[h, a, b] -> [h, b, a]"""
    return tl.permute(x, (0, 2, 1))


@triton.jit
def cells(x, HP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    return tl.reshape(tl.permute(x, (1, 2, 0)), (M * N, HP))


@triton.jit
def planes(x, HP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    return tl.permute(tl.reshape(x, (M, N, HP)), (2, 0, 1))
