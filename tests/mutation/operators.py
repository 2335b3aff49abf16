"""Small changes of a Python source, each of which some test should notice.

Left alone: docstrings, annotations, decorators, messages (what is raised, asserted or formatted) and the keywords of
:data:`UNTOUCHED`. Changes that hardly any test can miss, such as returning None, are not made: they flatter the score.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

UNTOUCHED = ("device", "strict")
"""Keywords: tests run on one device; ``zip(strict=True)`` is an assertion."""
COMPARISONS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
ARITHMETIC = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr)]
SWAPPED = {a: b for pair in (*COMPARISONS, *ARITHMETIC) for a, b in (pair, pair[::-1])} | {
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitXor: ast.BitOr},
    **{ast.And: ast.Or, ast.Or: ast.And},
}
NAMES = [("min", "max"), ("amin", "amax"), ("any", "all"), ("floor", "ceil"), ("sin", "cos"), ("log", "log2")]
OTHER_NAME = {a: b for pair in NAMES for a, b in (pair, pair[::-1])}


Place = Any
"""A node of the tree that has lines and columns."""
Change = tuple[str, ast.AST, tuple[Place, ast.AST | None]]
"""Operator, what replaces the node, and the two sides to show."""


@dataclass
class Mutant:
    path: str
    line: int
    function: str
    operator: str
    change: str
    """The line, with [before -> after] where it changes."""
    inside: bool
    """A function's body changes, so that its code can be exchanged without importing the module again."""
    tree: ast.Module
    node: ast.AST
    other: ast.AST

    def source(self) -> str:
        """Of the whole file with the change."""
        kind, fields = self.node.__class__, self.node.__dict__
        try:
            self.node.__class__, self.node.__dict__ = self.other.__class__, self.other.__dict__
            return ast.unparse(self.tree)
        finally:
            self.node.__class__, self.node.__dict__ = kind, fields

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function} {self.operator}: {self.change}"

    @property
    def name(self) -> str:
        """Without the line, which moves."""
        return f"{self.path} {self.function}: {self.change}"


def mutants(path: str, source: str) -> Iterator[Mutant]:
    tree, lines = ast.parse(source), source.encode().splitlines()
    for node, function, inside in _nodes(tree, "module", False):
        for operator, other, (before, after) in _changes(node):
            change = _shown(lines, before, after)
            yield Mutant(path, before.lineno, function, operator, change, inside, tree, node, other)


def _shown(lines: list[bytes], before: Place, after: ast.AST | None) -> str:
    first, last = lines[before.lineno - 1], lines[before.end_lineno - 1]
    front, back = first[: before.col_offset].decode().lstrip(), last[before.end_col_offset :].decode()
    old, new = (" ".join(ast.unparse(x).split()) if x else "" for x in (before, after))
    old, new = (x if len(x) <= 70 else f"{x[:40]} ... {x[-25:]}" for x in (old, new))
    return f"{front[-40:]}[{old} -> {new}]{back[:30]}".strip()


def _nodes(node: ast.AST, function: str, inside: bool) -> Iterator[tuple[ast.AST, str, bool]]:
    """What may be changed, the function or class it is in, and whether it is in a function's body."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_docstring(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    yield node, function, inside
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg in UNTOUCHED):
                body = isinstance(node, ast.FunctionDef) and field == "body"
                yield from _nodes(child, function, inside or body)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[Change]:
    def to(operator: str, other: ast.AST) -> Change:
        return operator, other, (node, other)

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield to("comparison", _with(node, ops=[*ops[:i], SWAPPED[type(op)](), *ops[i + 1 :]]))
            for name in ("left", "comparators"):
                yield from (to("text", x) for x in _other_texts(node, name))
        case ast.MatchValue():
            yield from (to("text", x) for x in _other_texts(node, "value"))
        case ast.BinOp(op=ast.BitOr(), right=ast.Constant(value=None)) | ast.BinOp(op=ast.MatMult()):
            pass  # a type; a product of matrices has no neighbour
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            yield to("logic" if isinstance(node, ast.BoolOp) else "arithmetic", _with(node, op=SWAPPED[type(op)]()))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield to("sign", operand)
        case ast.Constant(value=bool() as value):
            yield to("number", ast.Constant(not value))
        case ast.Constant(value=int() | float() as value):
            yield to("number", ast.Constant(value + 1))
        case ast.Expr(value=ast.Call()):
            yield to("statement", ast.Pass())
        case ast.Slice(lower=lower, upper=upper):
            yield from [to("slice", _with(node, lower=None))] if lower else []
            yield from [to("slice", _with(node, upper=None))] if upper else []
        case ast.Call(keywords=keywords):
            for i, given in enumerate(keywords):
                if given.arg is not None and given.arg not in UNTOUCHED:
                    yield "keyword", _with(node, keywords=[*keywords[:i], *keywords[i + 1 :]]), (given, None)
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield to("name", _with(node, attr=OTHER_NAME[name]))
        case ast.Name(id=name) if name in OTHER_NAME:
            yield to("name", _with(node, id=OTHER_NAME[name]))
        case ast.Break():
            yield to("jump", ast.Continue())
        case ast.Continue():
            yield to("jump", ast.Break())
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                negated = ast.UnaryOp(ast.Not(), test)
                yield "condition", _with(node, test=negated), (test, negated)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    other.__dict__.update(fields)
    return other


def _other_texts(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """Words that something is compared with; other strings are messages more often than not."""
    value = getattr(node, field)
    values = value if isinstance(value, list) else [value]
    for i, each in enumerate(values):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            other = ast.Constant(each.value + "?")
            yield _with(node, **{field: [*values[:i], other, *values[i + 1 :]] if value is values else other})
