"""The catalogue of positional encodings: one line each. This module does not import torch, so listing is instant.

To add an encoding: write ``positional/<name>.py`` and add its line to ``_LINES``. Outside of this package, call
:func:`register`. Names compose: ``dape-<base>`` and ``dape-v2-<base>`` put DAPE on a base that allows it,
``logn-<anything>`` lets scores grow with the logarithm of the length, ``sink-<anything>`` gives every head a sink,
``randomized-<anything>`` reads it through randomised positions.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dape.errors import did_you_mean
from dape.positional.names import BIAS_ONLY, DAPE, DAPE_V2, MODIFIERS, RANDOMIZED, parse

if TYPE_CHECKING:
    from dape.positional.base import PositionalEncoding

DAPE_BASES_OF_THE_PAPER = ("alibi", "kerple", "fire")


@dataclass(frozen=True)
class Entry:
    """What ``dape list`` shows of an encoding, and where its class is."""

    name: str
    target: "str | type[PositionalEncoding]"
    """``module:Class`` within dape.positional, or the class itself."""
    hook: str
    """Where position enters: none, embed, rotate, bias (an additive bias in the logits) or logits."""
    equation: str
    learns: str
    """Learnable parameters per layer."""
    extrapolates: str
    """Beyond the training length, as reported in the literature."""
    bidirectional: bool = True
    """Has a form for attention without causal mask."""
    dape: bool = False
    """DAPE may be put on top of it."""
    features: bool = False
    """Reads numbers of each token beside queries and keys."""

    def load(self) -> "type[PositionalEncoding]":
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f"dape.positional.{module}"), name)


_LINES = [
    Entry("nope", "base:PositionalEncoding", "none", "A", "nothing", "weakly", dape=True),
    Entry("sinusoidal", "sinusoidal:Sinusoidal", "embed", "x_p + [sin(p w), cos(p w)]", "nothing", "no"),
    Entry("learned", "learned:Learned", "embed", "x_p + E[p]", "E (rows, model), once", "impossible past its table"),
    Entry("rope", "rope:Rope", "rotate", "q, k turned by p w_m", "nothing", "no, collapses by 2x", dape=True),
    Entry("pi", "rope:PositionInterpolation", "rotate", "rope at p / s", "nothing", "with tuning", dape=True),
    Entry("yarn", "yarn:Yarn", "rotate", "rope, slow w_m / s, sharpened", "nothing", "partly", dape=True),
    Entry("ntk", "scaled_rope:Ntk", "rotate", "rope, base s^(d/(d-2))", "nothing", "partly", dape=True),
    Entry("dynamic", "scaled_rope:DynamicNtk", "rotate", "rope, base (f s - f + 1)^(d/(d-2))", "nothing", "partly", dape=True),
    Entry("llama3", "scaled_rope:Llama3", "rotate", "rope, slow w_m / f", "nothing", "with tuning", dape=True),
    Entry("longrope", "scaled_rope:LongRope", "rotate", "rope, w_m / short_m or long_m", "nothing", "with tuning", dape=True),
    Entry("partial", "rope:Partial", "rotate", "rope on a part of the channels", "nothing", "no", dape=True),
    Entry("proportional", "scaled_rope:Proportional", "rotate", "rope, slow w_m = 0", "nothing", "weakly", dape=True),
    Entry("t5", "t5:T5", "bias", "A + E[bucket(i-j)]", "E (32, h), shared", "short range only", dape=True),
    Entry("alibi", "alibi:Alibi", "bias", "A - m_h |i-j|", "nothing", "yes, stays local", dape=True),
    Entry("kerple", "kerple:Kerple", "bias", "A - r1 log(1 + r2 |i-j|)", "r1, r2 (h)", "partly", dape=True),
    Entry("kerple-power", "kerple:KerplePower", "bias", "A - r1 |i-j|^r2", "r1, r2 (h)", "partly", dape=True),
    Entry("sandwich", "sandwich:Sandwich", "bias", "A + (sum_m cos((i-j) w_m) - w/2) h_max/8h", "nothing", "yes, mostly", dape=True),
    Entry("fire", "fire:Fire", "bias", "A + MLP(psi(i-j) / psi(max(L, i)))", "MLP 1-32-h, c, L", "depends on L", dape=True),
    Entry("fox", "fox:Fox", "bias", "A + c_i - c_j, c = cumsum log sigmoid(w x + b)", "w (h, model), b (h)", "yes, forgets", bidirectional=False, dape=True, features=True),
    Entry("inkling", "inkling:Inkling", "bias", "t_i (A + (W_r x_i P)[i-j]), near", "W_r (16h, model), P (16, extent)", "unknown", bidirectional=False, dape=True, features=True),
    Entry("rerope", "two_rotations:ReRope", "logits", "A at lag min(i-j, w)", "nothing", "untrained", bidirectional=False),
    Entry("self-extend", "two_rotations:SelfExtend", "logits", "A at lag i//g - j//g + w - w//g from w on", "nothing", "untrained", bidirectional=False),
    Entry("talking-heads", "talking_heads:TalkingHeads", "logits", "A + M A over heads", "M (h, h)", "unknown"),
    Entry("multi-token", "multi_token:MultiToken", "rotate, logits", "conv over keys and heads of rope's A", "theta (h, 11), M (h, 2)", "unknown"),
    Entry("transformer-xl", "transformer_xl:TransformerXL", "logits", "A + [u k + (q+v) W s(i-j)] / sqrt(d)", "u, v (h, d), W (hd, hd)", "fairly"),
    Entry("cope", "cope:Cope", "logits", "A + q E[sum of gates]", "E (d, 64)", "poorly", bidirectional=False),
]  # fmt: skip

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _LINES}


def encodings() -> Mapping[str, Entry]:
    """The catalogue: every name :func:`dape.build` accepts. Any of them may also have the prefixes ``randomized-``,
    ``sink-`` and ``logn-``, in this order; ``bias-only-dape-X`` is dape-X with ``variant="bias_only"``.

    Returns:
        An entry with equation, hook and sizes by name.

    Examples:
        >>> encodings()["alibi"].equation
        'A - m_h |i-j|'
        >>> [name for name in encodings() if name.endswith("fire")]
        ['fire', 'dape-fire', 'dape-v2-fire']
    """
    return {**ENTRIES, **{e.name: e for base in ENTRIES.values() if base.dape for e in _dape_entries(base)}}


def _dape_entries(base: Entry) -> list[Entry]:
    has_bias = base.hook == "bias"
    inputs, reads = ("2h", "[A; B]") if has_bias else ("h", "A")
    kept = f"B of {base.name}" if has_bias else f"A of {base.name}"
    own = "" if base.learns == "nothing" else f" + {base.learns}"

    def entry(prefix: str, f: str, network: str, extrapolates: str) -> Entry:
        total = f"A + B + {f}({reads})" if has_bias else f"A + {f}({reads})"
        return replace(
            base,
            name=prefix + base.name,
            equation=f"{total}, {kept}",
            hook="logits" if base.hook in ("bias", "none") else f"{base.hook}, logits",
            learns=f"{network} {inputs}-32-h{own}",
            extrapolates=extrapolates,
            dape=False,
        )

    reported = "best in the paper" if base.name in DAPE_BASES_OF_THE_PAPER else "not in the paper"
    return [entry(DAPE, "f", "f", reported), entry(DAPE_V2, "conv", "conv 1x3", "successor paper")]


def _bias_only(entry: Entry) -> Entry:
    return replace(
        entry,
        name=BIAS_ONLY + entry.name.removeprefix(DAPE),
        equation=entry.equation.replace("f([A; B])", "f(B)"),
        learns=entry.learns.replace("f 2h-", "f h-"),
        extrapolates="an ablation of the paper",
    )


def shared_by_layers(name: str) -> bool:
    """Whether the layers of a model use one set of this encoding's parameters: what acts on the embeddings, and T5's
    table, as in the authors' program. Everything else has parameters per layer."""
    parsed = parse(name)
    return not parsed.wrapper and (find(parsed.base).hook == "embed" or parsed.base == "t5")


def find(name: str) -> Entry:
    """The entry of a name, which ``randomized-`` and modifiers do not change, or an error that suggests the nearest."""
    known, parsed, given = encodings(), parse(name), name
    name = parsed.inner
    if name in known:
        return known[name]
    if parsed.wrapper == BIAS_ONLY and DAPE + parsed.base in known and known[parsed.base].hook == "bias":
        return _bias_only(known[DAPE + parsed.base])
    if name.startswith((RANDOMIZED, *MODIFIERS)):
        once = ", ".join(map(repr, (RANDOMIZED, *MODIFIERS)))
        raise ValueError(f"{once} may each stand in front of a name once, in this order; got {given!r}")
    if parsed.wrapper and parsed.base in ENTRIES:
        alone = parsed.wrapper == BIAS_ONLY
        allowed = ", ".join(sorted(e.name for e in ENTRIES.values() if e.dape and not (alone and e.hook != "bias")))
        without = "no additive bias" if alone else "neither an additive bias nor plain scores"
        raise ValueError(
            f"dape cannot be put on {parsed.base!r}: it has {without}. "
            f"Possible: {parsed.wrapper}X with X one of {allowed}"
        )
    # The same list with the other prefix, so that "randomised-alibi" is understood.
    hint = did_you_mean(name.lower(), [*known, *(RANDOMIZED + n for n in known)])
    raise ValueError(
        f"unknown positional encoding {name!r}.{hint} Known: {', '.join(sorted(ENTRIES))}; "
        f"also dape-X, dape-v2-X, bias-only-dape-X, logn-X, sink-X and randomized-X (see `dape list`)"
    )


def register(
    name: str,
    encoding: "type[PositionalEncoding]",
    *,
    equation: str = "",
    extrapolates: str = "unknown",
    replace_existing: bool = False,
) -> None:
    """Add an encoding of your own: :func:`dape.build`, and the DAPE wraps then know it by ``name``, in this process.

    Args:
        name: letters, digits, ``-``, ``_`` and ``.``.
        encoding: the class; keyword-only arguments of its ``__init__`` become options.
        equation: what ``dape list`` shows.
        extrapolates: likewise.
        replace_existing: whether ``name`` may be taken already.

    Raises:
        ValueError: a name that is taken or cannot be typed.

    Examples:
        >>> from dape import Dape, RelativeBias, build
        >>> class Far(RelativeBias):
        ...     def bias_at(self, lag, *, causal):
        ...         return -lag.long().abs().expand(self.dims.num_heads, *lag.shape).to(self.precision)
        >>> register("far", Far, replace_existing=True)
        >>> isinstance(build("dape-far", num_heads=2, head_dim=4, train_length=8), Dape)
        True
    """
    from dape.positional.describe import describe_class

    if not name or not all(c.isalnum() or c in "-_." for c in name):
        raise ValueError(f"a name is letters, digits, '-', '_' and '.', so that it can be typed; got {name!r}")
    if name in encodings() and not replace_existing:
        raise ValueError(f"{name!r} is taken; choose another name or pass replace_existing=True")
    reserved = (DAPE, "v2-", RANDOMIZED, *MODIFIERS)
    if name.startswith(reserved):
        raise ValueError(f"{name!r} starts with a reserved prefix ({', '.join(reserved)}): register the base alone")
    ENTRIES[name] = describe_class(name, encoding, equation=equation, extrapolates=extrapolates)
