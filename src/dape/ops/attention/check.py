"""Refuse invalid calls with messages that say what to do."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from dape.ops.switch import WHY_OFF, kernels_mode
from dape.positional.base import (
    PositionalEncoding,
    Separable,
    accumulation_dtype,
    check_intact,
    require_encoding,
    require_features,
)
from dape.positional.grid import Grid
from dape.positional.positions import as_positions, require_integers

Features = Float[Tensor, "b k n"] | tuple[Float[Tensor, "b q n"], Float[Tensor, "b k n"]]


@torch.compiler.assume_constant_result  # its body is not traced
def why_off() -> str | None:
    """The reason if hand-written kernels are switched off, else None."""
    return WHY_OFF if kernels_mode() == "off" else None


def check_tensors(q: Tensor, k: Tensor, v: Tensor, pe: PositionalEncoding) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k and v must be [batch, heads, tokens, width], got {shapes}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v must have the same batch size, got {shapes}")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"k and v must have the same heads and tokens, got {shapes}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must have the same width, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: the first number must be a multiple of the "
            "second"
        )
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise TypeError(
            f"q, k and v must have the same floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}; "
            "convert them with .to(...), or use torch.autocast around the projections"
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")
    _check_encoding(q, pe)


def _check_encoding(q: Tensor, pe: PositionalEncoding) -> None:
    check_intact(require_encoding(pe, "pe"))
    if q.shape[1] != pe.dims.num_heads or q.shape[3] != pe.dims.head_dim:
        raise ValueError(
            f"the encoding was built for {pe.dims.num_heads} heads of width {pe.dims.head_dim}, "
            f"but q has {q.shape[1]} heads of width {q.shape[3]}"
        )
    for name, parameter in pe.named_parameters():
        if parameter.device != q.device:
            raise ValueError(f"q is on {q.device}, the encoding's {name} on {parameter.device}: move one with .to(...)")


def check_bias_shape(bias: Tensor, expected: tuple[int, ...]) -> None:
    """Check the shape of B: a custom encoding may mix up its axes, and a kernel would read beyond them."""
    if tuple(bias.shape[-len(expected) :]) != expected:
        raise ValueError(
            f"the encoding's bias has shape {list(bias.shape)}, but must end in {list(expected)}: "
            "heads first, then lags (bias_at) or query rows and keys (bias_on)"
        )


def check_causal(pe: PositionalEncoding, causal: bool) -> None:
    if not causal and not pe.supports_bidirectional:
        raise ValueError(f"{type(pe).__name__} is defined for causal attention only; call attention with causal=True")


def check_no_tangents(*tensors: Tensor) -> None:
    """Refuse forward-mode differentiation: our operators would silently give zero."""
    if not torch.compiler.is_compiling() and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("impl='blocked' has no forward-mode derivative; use impl='reference'")


def check_outcome(out: Tensor, pe: PositionalEncoding) -> None:
    """Raise ValueError that names a non-finite parameter, if the output is not finite.

    Non-finite inputs are allowed, as in any torch operator: loss scaling relies on it. Checked only on a CPU, because
    reading the output would stall other devices.
    """
    if torch.compiler.is_compiling() or out.device.type != "cpu":
        return
    if bool(out.detach().sum(dtype=accumulation_dtype(out.dtype)).isfinite()):
        return
    broken = [name for name, parameter in pe.named_parameters() if not bool(parameter.isfinite().all())]
    if broken:
        raise ValueError(
            f"attention is not finite because the encoding's {', '.join(broken)} is not. "
            "Training has diverged: go back to a checkpoint, lower the learning rate or clip gradients"
        )


def make_grid(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    q_document: Tensor | None = None,
    k_document: Tensor | None = None,
    *,
    causal: bool,
) -> Grid:
    """The grid of a call: with given positions, or with keys at 0, 1, 2, ... and queries at the last keys."""
    queries, keys = q.shape[2], k.shape[2]
    if (q_pos is None) != (k_pos is None):
        raise ValueError("give both q_pos and k_pos, or neither (keys then count from 0 and the queries are the last)")
    if (q_document is None) != (k_document is None):
        raise ValueError("give both q_document and k_document, or neither")
    _check_mask(key_padding_mask, q, keys)
    for name, ids, length in (("q_document", q_document, queries), ("k_document", k_document, keys)):
        if ids is not None:
            _check_integers(name, ids, q, length)
    if q_pos is None or k_pos is None:
        if queries > keys:
            raise ValueError(
                f"{queries} queries but only {keys} keys: without q_pos and k_pos the queries are the last keys. "
                "Pass both to give the positions of the queries"
            )
        grid = Grid.of_length(queries, keys, causal=causal, device=q.device)
    else:
        _check_integers("q_pos", q_pos, q, queries)
        _check_integers("k_pos", k_pos, q, keys)
        q_pos, k_pos = (_shared_positions(as_positions(name, x)) for name, x in (("q_pos", q_pos), ("k_pos", k_pos)))
        grid = Grid(q_index=q_pos, k_index=k_pos, causal=causal, offset=_known_offset(q_pos, k_pos))
    if q_document is not None and k_document is not None and q_document.dim() != k_document.dim():
        q_document, k_document = (ids.expand(q.shape[0], -1) for ids in (q_document, k_document))
    return replace(grid, key_padding_mask=key_padding_mask, q_document=q_document, k_document=k_document)


def _shared_positions(positions: Tensor) -> Tensor:
    """Remove the batch axis if all items have the same positions, as in Hugging Face models: this allows tables over
    lags. Not while compiling, because it reads values."""
    if positions.dim() == 1 or torch.compiler.is_compiling() or not positions.numel():
        return positions
    return positions[0] if bool((positions == positions[:1]).all()) else positions


def _known_offset(q_pos: Tensor, k_pos: Tensor) -> int | None:
    """The first query's position minus the first key's, if both are consecutive, which allows faster kernels.

    Items may begin at different positions, if this difference is the same. None while compiling, because it reads
    values.
    """
    if torch.compiler.is_compiling() or not (q_pos.numel() and k_pos.numel()):
        return None
    first = q_pos[..., 0] - k_pos[..., 0]
    if all(bool((x.diff() == 1).all()) for x in (q_pos, k_pos)) and bool((first == first.flatten()[0]).all()):
        return int(first.flatten()[0])
    return None


def check_separable(separable: Separable, q: Tensor, k: Tensor) -> None:
    for name, x, like in (("rows", separable.rows, q), ("keys", separable.keys, k)):
        expected = (q.shape[0], q.shape[1], like.shape[2])
        if x.dim() != 3 or x.shape[0] not in (1, expected[0]) or x.shape[1:] != expected[1:]:
            raise ValueError(
                f"{name} of a separable bias must be [batch, heads, {name}] = {list(expected)}, or [1, ...] for all "
                f"items; got {list(x.shape)}"
            )


def with_features(grid: Grid, features: Features | None, pe: PositionalEncoding, q: Tensor, k: Tensor) -> Grid:
    """The grid, with the features of its queries and keys if the encoding reads any."""
    require_features(pe, given=features is not None)
    if features is None:
        return grid
    of_queries, of_keys = features if isinstance(features, tuple) else (None, features)
    if of_queries is None:
        if q.shape[2] > k.shape[2]:
            raise ValueError(f"{q.shape[2]} queries but only {k.shape[2]} keys: give features as a pair of both")
        _check_features("features", of_keys, k)
        of_queries = of_keys[:, k.shape[2] - q.shape[2] :]
    else:
        _check_features("features of the queries", of_queries, q)
        _check_features("features of the keys", of_keys, k)
    return replace(grid, q_features=of_queries, k_features=of_keys)


def _check_features(what: str, x: Tensor, like: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{what} must be a floating tensor, as pe.features(x) gives; got {kind}")
    batch, tokens = like.shape[0], like.shape[2]
    if x.dim() != 3 or x.shape[0] not in (1, batch) or x.shape[1] != tokens:
        raise ValueError(f"{what} must be [{batch}, {tokens}, numbers], as pe.features(x) gives; got {list(x.shape)}")
    if x.device != like.device:
        raise ValueError(f"{what} are on {x.device}, q and k on {like.device}")


def _check_integers(name: str, values: Tensor, q: Tensor, length: int) -> None:
    require_integers(name, values)
    if values.shape not in ((length,), (q.shape[0], length)):
        raise ValueError(f"{name} must be [{length}] or [{q.shape[0]}, {length}], got {list(values.shape)}")
    if values.device != q.device:
        raise ValueError(f"{name} is on {values.device}, q on {q.device}")


def _check_mask(mask: Tensor | None, q: Tensor, keys: int) -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"key_padding_mask must be a boolean tensor with True for padding, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"key_padding_mask must be boolean with True for padding, got {mask.dtype}")
    if mask.shape != (q.shape[0], keys):
        raise ValueError(f"key_padding_mask must be [batch, keys] = [{q.shape[0]}, {keys}], got {list(mask.shape)}")
    if mask.device != q.device:
        raise ValueError(f"key_padding_mask is on {mask.device}, q on {q.device}")
