"""Which encodings may be an adapter, and how one is built for a model."""

from typing import TYPE_CHECKING, Any

from dape.hf.families import FAMILIES
from dape.positional.base import AdditiveBias, PositionalEncoding
from dape.positional.build import build
from dape.positional.catalogue import ENTRIES, find
from dape.positional.gated import Gated
from dape.positional.names import DAPE, DAPE_V2, parse

if TYPE_CHECKING:
    from dape.hf.adapter import Adapter, Rope
    from dape.hf.hosts import Host

STAND_INS = ("rerope", "self-extend")


def check_method(method: str) -> None:
    if not isinstance(method, str):
        raise TypeError(f"an adapter is chosen by its name, a string such as 'dape-kerple'; got {method!r}")
    entry, name = find(method), parse(method)
    if stands_in(method):
        return
    if "rotate" in entry.hook:
        raise ValueError(
            f"{method}: turns queries and keys, but the model has its own rotation, or was trained without any. For a "
            "slower one use rope='yarn', factor=... (`dape extend --rope yarn --factor ...`) under another adapter; "
            f"{_possible()}"
        )
    if name.randomized or name.modifiers or (entry.hook != "bias" and not name.wrapper):
        raise ValueError(f"{method}: an adapter is an additive bias or DAPE; {_possible()}")


def check_for_host(method: str, host: "Host") -> None:
    """A model that adds ALiBi to its scores has it inside the adapter, where f sees it."""
    if _adds_alibi(host) and (parse(method).wrapper != DAPE or parse(method).base != "alibi"):
        raise ValueError(
            f"{host.model_type} was trained with ALiBi, which becomes the base of its adapter: A + B + f([A; B]). "
            f"Possible is dape-alibi, with options such as hidden=16; got {method}"
        )


def stands_in(method: str) -> bool:
    """Whether the encoding turns queries and keys in place of the model's own rotation, with nothing to train."""
    return method in STAND_INS


def in_place_of_rotation(
    method: str, host: "Host", config: Any, rope: "Rope", options: dict[str, Any]
) -> dict[str, Any]:
    """The options of an encoding that stands in: its base and its share of the channels are the model's."""
    rotation = host.rope_parameters or {}
    plain = rotation.get("rope_type", "default") == "default" and "rope_theta" in rotation
    if not (host.rotates and plain and all(getattr(config, "no_rope_layers", None) or [True])):
        raise ValueError(
            f"{method} stands in for a plain rotation, the same in every layer; {host.model_type} has "
            f"{'another one' if host.rotates else 'none'}. Use another adapter"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise ValueError(
            f"{method} makes scores of its own, and {host.model_type} bounds its scores; use another adapter"
        )
    if rope == "yarn":
        raise ValueError(
            f"{method} stands in for the model's rotation, so that rope='yarn' means nothing; leave it out"
        )
    return {"base": rotation["rope_theta"], "fraction": rotation.get("partial_rotary_factor", 1.0), **options}


def _adds_alibi(host: "Host") -> bool:
    return FAMILIES[host.model_type].positions == "alibi"


def _possible() -> str:
    biases = [entry.name for entry in ENTRIES.values() if entry.hook == "bias" and not entry.features]
    bases = [
        entry.name for entry in ENTRIES.values() if entry.dape and "rotate" not in entry.hook and not entry.features
    ]
    return (
        f"possible: {', '.join(biases)}, and dape-X with X one of {', '.join(bases)}; in place of the model's rotation "
        f"{' and '.join(STAND_INS)}"
    )


def new_encoding(adapter: "Adapter") -> PositionalEncoding:
    host, options = adapter.host, dict(adapter.options)
    name = parse(adapter.method)
    is_dape = name.wrapper == DAPE
    if adapter.zero_init and name.wrapper == DAPE_V2:
        raise ValueError("dape-v2 cannot start as the model it is put into; use zero_init=False, or dape-X")
    has_bias = find(name.base).hook == "bias" if is_dape else False
    if adapter.zero_init and is_dape:
        if options.get("zero_init_out", True) is not True:
            raise ValueError(
                f"zero_init_out={options['zero_init_out']!r} lets f change the model from the start, zero_init=True "
                "promises that nothing does; pass zero_init=False, or leave zero_init_out away"
            )
        # B itself would change the model, unless it is the model's own; f sees it, and is 0 at first.
        adds = _adds_alibi(host)
        kinds = ("concat_residual", "add_residual") if adds else ("concat", "bias_map")
        options = {"zero_init_out": True, **({"variant": kinds[0]} if has_bias else {}), **options}
        if options.get("variant", kinds[0]) not in kinds:
            how = "leaves the model's own B away" if adds else "adds B from the start"
            raise ValueError(f"variant={options['variant']!r} {how}; with zero_init choose {' or '.join(kinds)}")
    pe = build(
        adapter.method,
        num_heads=host.heads,
        head_dim=host.head_dim,
        model_dim=host.width,
        train_length=adapter.train_length,
        **options,
    )
    if pe.needs_features:
        raise ValueError(
            f"{adapter.method}: reads what enters each attention layer, which an adapter inside another model does not "
            f"see; {_possible()}"
        )
    if adapter.zero_init and isinstance(pe, AdditiveBias):
        return Gated(pe.dims, pe)
    return pe
