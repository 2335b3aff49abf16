"""The implementation under test: its kind of callable, how to build it and how to call it.

A kind says what a callable takes and returns (``[h, q, k]`` may have a batch axis of 1 in front):

hooks       an object with ``bias(q_pos, k_pos)``, or ``rotate``, ``logits`` or ``embed`` as dape.PositionalEncoding
bias        ``(q_pos, k_pos) -> B [h, q, k]``
logits      ``(q, k) -> logits [1, h, t, t]``                q, k: ``[1, h, t, d]``
scores      ``(A) -> logits [1, h, t, t]``                   A: scaled scores
attention   ``(q, k, v) -> output [1, h, t, e]``             v is the identity matrix, so the output is the softmax
embed       ``(x, positions) -> x'`` or ``(positions) -> E``
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dape.conformance.case import Case
from dape.conformance.loading import TheirError, told
from dape.conformance.make import content, featured
from dape.conformance.parameters import Names, given_as_arguments, load_into
from dape.errors import UsageError
from dape.ops.attention.reference import scaled_scores
from dape.positional.base import PositionalEncoding

Kind = Literal["auto", "hooks", "bias", "logits", "scores", "attention", "embed"]
HOOKS = ("bias", "rotate", "logits", "embed")
SYNONYMS = {
    "num_heads": ("heads", "n_heads", "n_head", "nhead", "num_attention_heads"),
    "head_dim": ("dim_head", "d_head", "head_size", "dim_per_head", "d_k"),
    "train_length": ("train_len", "original_max_position_embeddings"),
    "model_dim": ("d_model", "embed_dim", "hidden_size", "n_embd"),
    "length": ("max_len", "max_length", "max_seq_len", "seq_len"),
    "stretch": ("scale", "factor", "scaling_factor"),
}
_QUERY_POSITIONS = re.compile("(q|query|queries)_?(pos|positions?|idx|index|ids?)|i")
_CONTENT = {"q": re.compile("q|query|queries"), "k": re.compile("k|key|keys"), "v": re.compile("v|value|values")}
_SCORES = re.compile("scores?|attention_scores|attn_scores|attention|attn|a|x|logits")
_POSITIONS = re.compile("positions?|pos|position_ids|p")


@dataclass(frozen=True, kw_only=True)
class Subject:
    target: Any
    """A class, a factory, a function or an object."""
    kind: Kind = "auto"
    init: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the constructor. The name of a fact of the case, such as num_heads, is replaced by its value."""
    names: Names = field(default_factory=dict)
    """The vectors' name for each parameter name of the implementation."""
    dtype: torch.dtype = torch.float64
    numpy: bool = False
    """Pass numpy arrays. Gradients are then not compared."""

    def built(self, case: Case) -> "Built":
        instance, signature = self.target, None
        if inspect.isclass(instance) or _is_factory(instance):
            with theirs(f"building it for the case {case.name},"):
                instance = _construct(instance, case, self.init)
        elif self.init:
            raise UsageError("`init` is for classes and factories; the target is neither")
        kind = self.kind if self.kind != "auto" else kind_of(instance)
        if isinstance(instance, nn.Module):
            instance.to(self.dtype)
        call = instance
        if kind != "hooks":
            signature = inspect.signature(instance.forward if isinstance(instance, nn.Module) else instance)
        values = {n: p.to(self.dtype) for n, p in case.parameters.items()}
        if signature is not None and not isinstance(instance, nn.Module):
            call, leaves = given_as_arguments(instance, signature, values, self.names)
        else:
            leaves = load_into(instance, values, self.names)
        return Built(case=case, call=call, kind=kind, signature=signature, leaves=leaves, subject=self)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The implementation with the parameters of a case."""

    case: Case
    call: Any
    kind: Kind
    signature: inspect.Signature | None
    leaves: Mapping[str, "Callable[[], Tensor | None]"]
    """For every parameter of the vectors, a function that returns its gradient in the shape of the vectors."""
    subject: Subject

    @property
    def gives_weights(self) -> bool:
        return self.kind == "attention"

    def runs(self) -> str | None:
        """The reason why this kind of callable cannot be compared on this case, or None."""
        case = self.case
        if (self.kind == "embed") != (case.x is not None) and self.kind != "hooks":
            return "an encoding of the embeddings is compared by `embed`, and no other"
        if case.q is None and case.x is None and self.kind not in ("hooks", "bias"):
            return "positions alone; this kind takes none"
        if case.entering is not None and self.kind != "hooks" and _entering_name(self.signature) is None:
            return "what enters the layer; it takes no argument `x`"
        if not case.causal and not self._takes_causal():
            return "without mask; it takes no argument `causal`"
        return None

    def _takes_causal(self) -> bool:
        if isinstance(self.call, PositionalEncoding):
            return self.call.supports_bidirectional
        called = self.call.bias if self.kind == "hooks" and hasattr(self.call, "bias") else self.call
        called = called.forward if isinstance(called, nn.Module) else called
        if self.kind == "hooks" and not hasattr(self.call, "bias"):
            return hasattr(self.call, "logits")  # the grid has it
        return _causal_name(inspect.signature(called)) is not None

    def output(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        """Logits ``[h, q, k]``, the weights of attention, or embeddings, as the case compares them."""
        with theirs(f"computing the case {self.case.name},"):
            return getattr(self, f"_{self.kind}")(q, k, x, entering)

    # One method per kind ---------------------------------------------------------------------------------------------

    def _hooks(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        case, pe = self.case, self.call
        if x is not None:
            return self._shaped(pe.embed(x, case.q_pos), tuple(x.shape))
        rows, keys = (t.to(self.subject.dtype) for t in content(case, q, k))
        grid = featured(case.grid, pe, entering)
        if hasattr(pe, "rotate"):
            rows, keys = pe.rotate(rows, keys, grid)
        scores = scaled_scores(rows, keys)
        if hasattr(pe, "logits"):
            return self._shaped(pe.logits(scores, rows, keys, grid), case.expected.shape)
        if not hasattr(pe, "bias"):
            return scores.squeeze(0)
        causal = _causal_name(inspect.signature(pe.bias))
        extra = {causal: case.causal} if causal else {}
        return scores.squeeze(0) + self._shaped(pe.bias(case.q_pos, case.k_pos, **extra), case.expected.shape)

    def _bias(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        rows, keys = (t.to(self.subject.dtype) for t in content(self.case, q, k))
        bias = self._called(self.case.q_pos, self.case.k_pos)
        return scaled_scores(rows, keys).squeeze(0) + self._shaped(bias, self.case.expected.shape)

    def _logits(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        assert q is not None and k is not None
        return self._rows(self._called(q.unsqueeze(0), k.unsqueeze(0), entering=entering))

    def _scores(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        assert q is not None and k is not None
        return self._rows(self._called(scaled_scores(q.unsqueeze(0), k.unsqueeze(0)), entering=entering))

    def _attention(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        assert q is not None and k is not None
        heads, length = q.shape[:2]
        v = torch.eye(length, dtype=q.dtype).expand(1, heads, length, length)
        return self._rows(self._called(q.unsqueeze(0), k.unsqueeze(0), v, entering=entering))

    def _embed(self, q: Tensor | None, k: Tensor | None, x: Tensor | None, entering: Tensor | None) -> Tensor:
        assert x is not None and self.signature is not None
        if _POSITIONS.fullmatch(next(iter(self.signature.parameters))):
            return x + self._shaped(self._called(self.case.q_pos), tuple(x.shape))
        return self._shaped(self._called(x, self.case.q_pos), tuple(x.shape))

    def _called(self, *given: Tensor, entering: Tensor | None = None) -> Any:
        causal, named = _causal_name(self.signature), _entering_name(self.signature)
        extra: dict[str, Any] = {causal: self.case.causal} if causal else {}
        if entering is not None and named:
            batched = entering.unsqueeze(0)
            extra[named] = batched.detach().numpy() if self.subject.numpy else batched
        if self.subject.numpy:
            return self.call(*(t.detach().numpy() for t in given), **extra)
        return self.call(*given, **extra)

    def _rows(self, found: Any) -> Tensor:
        """The compared rows of logits for all queries."""
        heads, length = self.case.dims.num_heads, self.case.length
        return self._shaped(found, (heads, length, length))[:, self.case.q_pos]

    def _shaped(self, found: Any, shape: tuple[int, ...]) -> Tensor:
        if found is None:
            raise self._result("a tensor or an array", "nothing")
        if not isinstance(found, Tensor):
            try:
                found = torch.from_numpy(np.array(found, dtype=np.float64))
            except (TypeError, ValueError):
                raise self._result("a tensor or an array", type(found).__name__) from None
        kept = found.squeeze(0) if found.dim() == len(shape) + 1 and found.shape[0] == 1 else found
        if tuple(kept.shape) != tuple(shape):
            raise self._result(f"the shape {list(shape)}", str(list(found.shape)))
        return kept

    def _result(self, wanted: str, given: str) -> TheirError:
        return TheirError(f"computing the case {self.case.name}, your code must give {wanted}, and gave {given}")


class theirs:
    """A context that turns exceptions into :class:`TheirError`, except for a UsageError of ours."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, UsageError | TheirError):
            raise TheirError(told(error, self.doing)) from error


# What a callable is --------------------------------------------------------------------------------------------------


def kind_of(instance: Any) -> Kind:
    """The kind, from the methods of an object or from the names of a callable's arguments."""
    if isinstance(instance, PositionalEncoding) or any(callable(getattr(instance, hook, None)) for hook in HOOKS):
        return "hooks"
    if not callable(instance):
        raise UsageError(f"`target`: {type(instance).__name__} cannot be called and has none of {', '.join(HOOKS)}")
    signature = inspect.signature(instance.forward if isinstance(instance, nn.Module) else instance)
    names = [p.name.lower() for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    needed = [p for p in signature.parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    first = [*names, "", "", ""]
    if all(pattern.fullmatch(name) for pattern, name in zip(_CONTENT.values(), first, strict=False)):
        return "attention"
    if _CONTENT["q"].fullmatch(first[0]) and _CONTENT["k"].fullmatch(first[1]):
        return "logits"
    if _QUERY_POSITIONS.fullmatch(first[0]):
        return "bias"
    if _POSITIONS.fullmatch(first[0]) or _POSITIONS.fullmatch(first[1]):
        return "embed"
    if len(needed) <= 1 and _SCORES.fullmatch(first[0]):
        return "scores"
    raise UsageError(
        f"`target`: what it takes cannot be told from its arguments {signature}. Say it by `kind`: bias (q_pos, "
        "k_pos), logits (q, k), scores (A), attention (q, k, v) or embed (x, positions)"
    )


def _causal_name(signature: inspect.Signature | None) -> str | None:
    return next((n for n in ("causal", "is_causal") if signature is not None and n in signature.parameters), None)


def _entering_name(signature: inspect.Signature | None) -> str | None:
    """The argument for the input of the layer, [1, t, m], which encodings with features need."""
    names = [] if signature is None else list(signature.parameters)[1:]
    return next((n for n in ("x", "hidden_states", "entering") if n in names), None)


def _is_factory(target: Any) -> bool:
    """A function whose first argument is a fact of the case, such as num_heads."""
    if not inspect.isroutine(target):
        return False
    first = next(iter(inspect.signature(target).parameters), "")
    return first in {*SYNONYMS, *(n for names in SYNONYMS.values() for n in names)}


def _construct(target: Any, case: Case, init: Mapping[str, Any]) -> Any:
    facts = facts_of(case)
    parameters = inspect.signature(target).parameters
    if inspect.isclass(target) and issubclass(target, PositionalEncoding):
        return target(case.dims, **{n: v for n, v in {**case.options, **init}.items() if n in parameters})
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: facts[n] for n in parameters if n in facts} | (dict(case.options) if everything else {})
    named |= {n: facts[fact] for fact, names in SYNONYMS.items() for n in names if n in parameters and fact in facts}
    named |= {n: facts.get(value, value) if isinstance(value, str) else value for n, value in init.items()}
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if missing := [name for name in needed if name not in named]:
        raise UsageError(
            f"{target.__name__}{inspect.signature(target)}: `init` must say what {', '.join(missing)} is, a value or "
            f"one of {', '.join(facts)}; as in {missing[0]}=num_heads"
        )
    return target(**named)


def facts_of(case: Case) -> dict[str, Any]:
    dims = {n: getattr(case.dims, n) for n in ("num_heads", "head_dim", "train_length", "model_dim")}
    return dims | {"length": case.length, "stretch": case.stretch} | dict(case.options)
