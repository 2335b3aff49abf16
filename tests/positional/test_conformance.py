"""What every encoding must keep to. The names come from the catalogue: a new line there is tested here by itself, with
its DAPE wraps and read through randomised positions.

A test runs a whole small layer (embed, project, attend), so that all three hooks take part.
"""

import copy
import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import dape
from dape.positional.base import PositionalEncoding, RelativeBias
from dape.positional.catalogue import DAPE, DAPE_V2, ENTRIES, RANDOMIZED, encodings, find
from dape.positional.dape import DapeWrapper
from dape.positional.grid import Grid
from dape.positional.names import SINK, parse
from dape.positional.randomized import Randomized
from dape.positional.rope import Rope

HEADS, WIDTH, TRAIN = 6, 8, 16
MODEL = HEADS * WIDTH
DRAWN, POOL = 320, 512

MODIFIED = ["logn-kerple", "logn-rope", "logn-dape-fox", "logn-transformer-xl", "randomized-logn-dape-v2-alibi"]
MODIFIED += ["sink-rope", "sink-kerple", "sink-dape-fox", "sink-cope", "randomized-sink-logn-dape-fire"]
NAMES = [*encodings(), *(RANDOMIZED + base for base in ENTRIES), "randomized-dape-kerple", "randomized-dape-v2-fire"]
NAMES += MODIFIED
WRAPS = [name for name in encodings() if name.startswith(DAPE)]
IMPLS = ["reference", "blocked"]


def priced(rows: list) -> list:
    """DAPE on rotations differs from dape-rope by their angles alone: in the slow tier."""

    def slow(name: str) -> bool:
        parsed = parse(name)
        return bool(parsed.wrapper) and ENTRIES[parsed.base].hook == "rotate" and parsed.base != "rope"

    every = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=pytest.mark.slow if slow(row[0]) else ()) for row in every]


every_name = pytest.mark.parametrize("name", priced(NAMES))


def entry_of(name: str) -> dape.Entry:
    return find(name)


def make(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> PositionalEncoding:
    """An encoding with every parameter moved away from its initial value: zeros would hide what they multiply."""
    torch.manual_seed(seed)
    if name.startswith(RANDOMIZED):
        options["pool"] = POOL
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=TRAIN, **options)
    with torch.no_grad():
        for parameter in pe.parameters():
            # Scalars and one value per head stay positive and inside the ranges that kerple allows.
            noise = torch.randn_like(parameter) if parameter.dim() > 1 else torch.rand_like(parameter)
            parameter.mul_(0.8).add_(0.3 * noise)
    if isinstance(pe, Randomized):
        pe = pe.draw(DRAWN, torch.Generator().manual_seed(7))
    return pe.to(dtype)


def tokens(batch: int, length: int, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, MODEL, generator=torch.Generator().manual_seed(seed), dtype=dtype)


PROJECTIONS = torch.randn(3, MODEL, MODEL, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / MODEL**0.5


def project(x: Tensor, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """Fixed random projections to q, k and v."""
    w_q, w_k, w_v = PROJECTIONS.to(x.dtype)
    columns = kv_heads * WIDTH
    q, k, v = ((x @ w).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for w in (w_q, w_k[:, :columns], w_v[:, :columns]))
    return 1.5 * q, k, v


def layer(
    pe: PositionalEncoding, x: Tensor, *, rows: slice = slice(None), positions: Tensor | None = None, **call
) -> Tensor:
    """The chosen rows of an attention layer. Positions are 0, 1, 2, ... and implicit unless given."""
    counted = torch.arange(x.shape[1]) if positions is None else positions
    entering = pe.embed(x, counted)
    q, k, v = project(entering)
    explicit = {} if positions is None else {"q_pos": positions[..., rows], "k_pos": positions}
    found = pe.features(entering, padding=call.get("key_padding_mask"))
    features = None if found is None else (found[:, rows], found)
    return dape.attention(q[:, :, rows], k, v, pe, features=features, **explicit, **call)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def directions(name: str) -> list[bool]:
    """The values of ``causal`` that an encoding allows."""
    return [True, False] if entry_of(name).bidirectional else [True]


def cases(names: list[str]) -> list[tuple[str, bool]]:
    return [(name, causal) for name in names for causal in directions(name)]


every_direction = pytest.mark.parametrize(("name", "causal"), priced(cases(NAMES)))


# Rows ----------------------------------------------------------------------------------------------------------------


@every_direction
def test_block_by_block_equals_whole(name, causal):
    pe, x, positions = make(name), tokens(2, 21), torch.arange(21)
    whole = layer(pe, x, causal=causal, impl="reference")
    blocks = [slice(0, 1), slice(1, 8), slice(8, 17), slice(17, 21)]
    parts = [layer(pe, x, rows=block, positions=positions, causal=causal) for block in blocks]
    assert_near(torch.cat(parts, dim=2), whole)


@every_name
def test_decoding_rows_are_the_last_rows(name):
    pe, x = make(name), tokens(2, 21)
    whole = layer(pe, x, impl="reference")
    for queries, impl in product([1, 3], IMPLS):
        assert_near(layer(pe, x, rows=slice(-queries, None), impl=impl), whole[:, :, -queries:])


@every_name
def test_future_is_invisible(name):
    pe, x = make(name), tokens(2, 21)
    changed = x.clone()
    changed[:, 9:] = 30 * tokens(2, 12, seed=5)
    for impl in IMPLS:
        before, after = layer(pe, x, impl=impl), layer(pe, changed, impl=impl)
        assert_near(after[:, :, :9], before[:, :, :9], 1e-11)
        assert not torch.allclose(after[:, :, 9:], before[:, :, 9:])


# Positions -----------------------------------------------------------------------------------------------------------


def reads_lags_only(name: str) -> bool:
    base = ENTRIES.get(name.removeprefix(DAPE_V2).removeprefix(DAPE))
    return base is not None and (issubclass(base.load(), RelativeBias) or base.load() is Rope)


@pytest.mark.parametrize(("name", "causal"), cases([n for n in encodings() if reads_lags_only(n)]))
def test_shift_invariant(name, causal):
    pe, x, positions = make(name), tokens(2, 21), torch.arange(21)
    here = layer(pe, x, positions=positions, causal=causal)
    assert_near(layer(pe, x, positions=positions + 4321, causal=causal), here)


@every_direction
def test_four_times_the_training_length(name, causal):
    length = 4 * TRAIN
    x = tokens(1, length)
    if name == "learned":
        pe = make(name, max_positions=TRAIN)
        layer(pe, x[:, :TRAIN], causal=causal)
        with pytest.raises(ValueError, match=f"reach from 0 to {TRAIN - 1}, but position {length - 1}"):
            layer(pe, x, causal=causal)
        return
    pe = make(name)
    out = layer(pe, x, causal=causal)
    assert out.isfinite().all()
    last = slice(length - 2, None)
    assert_near(layer(pe, x, rows=last, causal=causal, impl="reference"), out[:, :, last])


@every_name
def test_bidirectional_works_or_is_refused(name):
    pe, x = make(name), tokens(2, 13)
    if not entry_of(name).bidirectional:
        with pytest.raises(ValueError, match=r"defined for causal attention only.*causal=True"):
            layer(pe, x, causal=False)
        return
    changed = x.clone()
    changed[:, -1] += 1
    before, after = layer(pe, x, causal=False), layer(pe, changed, causal=False)
    assert before.isfinite().all()
    assert not torch.allclose(after[:, :, 0], before[:, :, 0])


@pytest.mark.parametrize("name", [name for name in NAMES if entry_of(name).features])
def test_features_go_on_where_a_cache_ends(name):
    """Also across padding in the middle of a text, which must be as if it were not there."""
    pe, x = make(name), tokens(2, 21)
    whole = pe.features(x)
    first, more = pe.features(x[:, :8]), []
    for t in range(8, 21):
        past = more[-1][:, 0] if more else first[:, -1]
        more.append(pe.features(x[:, t : t + 1], past=past))
    assert_near(torch.cat([first, *more], dim=1), whole)
    text = torch.ones(2, 21, dtype=torch.bool)
    text[:, 4:7] = False
    beside, alone = pe.features(x, padding=~text), pe.features(x[:, text[0]])
    assert_near(beside[:, text[0]], alone)
    with pytest.raises(ValueError, match=r"reads features of every token, and none were given.*features=pe.features"):
        dape.attention(*project(x), pe)


# Masks ---------------------------------------------------------------------------------------------------------------


def check_left_padding(name: str, causal: bool, *, length: int, padding: int) -> None:
    pe, x = make(name), tokens(2, length)
    alone = layer(pe, x[1:, padding:], causal=causal, impl="reference")
    positions = torch.stack([torch.arange(length), torch.arange(length) - padding]).clamp(min=0)
    mask = torch.zeros(2, length, dtype=torch.bool)
    mask[1, :padding] = True
    for impl in IMPLS:
        out = layer(pe, x, positions=positions, key_padding_mask=mask, causal=causal, impl=impl)
        assert_near(out[1:, :, padding:], alone)


@every_direction
def test_left_padding_changes_nothing(name, causal):
    check_left_padding(name, causal, length=9, padding=3)


@every_direction
def test_left_padding_beside_a_long_sequence(name, causal):
    """An item within the training length does not notice that another one exceeds it."""
    check_left_padding(name, causal, length=40, padding=30)


def check_packed_documents(name: str, causal: bool, *, lengths: tuple[int, int]) -> None:
    pe, x = make(name), tokens(1, sum(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
    apart = [layer(pe, part, causal=causal, impl="reference") for part in x.split(lengths, dim=1)]
    for impl in IMPLS:
        call = {"q_document": document, "k_document": document, "causal": causal, "impl": impl}
        assert_near(layer(pe, x, positions=positions, **call), torch.cat(apart, dim=2))


@every_direction
def test_packed_documents_equal_separate_calls(name, causal):
    check_packed_documents(name, causal, lengths=(5, 9))


@every_direction
def test_packed_documents_beside_a_long_one(name, causal):
    check_packed_documents(name, causal, lengths=(7, 40))


@every_direction
def test_rows_that_see_nothing_are_zero(name, causal):
    pe = make(name)
    mask = torch.zeros(2, 13, dtype=torch.bool)
    mask[1] = True
    for impl in IMPLS:
        x = tokens(2, 13).requires_grad_()
        out = layer(pe, x, key_padding_mask=mask, causal=causal, impl=impl)
        assert (out[1] == 0).all() and (out[0] != 0).any()
        (out * torch.randn_like(out)).sum().backward()
        assert x.grad.isfinite().all() and (x.grad[1] == 0).all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in pe.parameters())


@every_name
def test_shared_key_heads_equal_repeated_ones(name):
    pe = make(name)
    entering = pe.embed(tokens(2, 13), torch.arange(13))
    (q, k, v), call = project(entering, kv_heads=2), {"features": pe.features(entering)}
    repeated = (x.repeat_interleave(HEADS // 2, dim=1) for x in (k, v))
    expected = dape.attention(q, *repeated, pe, impl="reference", **call)
    for impl in IMPLS:
        assert_near(dape.attention(q, k, v, pe, impl=impl, **call), expected)


# Gradients and precision ---------------------------------------------------------------------------------------------


def same_for_a_whole_row(name: str, parameter: str) -> bool:
    """Parameters that shift all logits of a row alike, which softmax does not see: the last bias before it."""
    parsed = parse(name)
    around = "base." * (parsed.randomized + len(parsed.modifiers))
    if SINK in parsed.modifiers:  # beside which a whole row matters
        return False
    return parameter.removeprefix(around) in ("f.second.bias", "second.bias")


@every_direction
def test_gradients_are_finite_and_reach_every_parameter(name, causal):
    pe, x = make(name), tokens(2, 13).requires_grad_()
    out = layer(pe, x, causal=causal)
    (out * torch.randn_like(out)).sum().backward()
    assert x.grad.isfinite().all() and (x.grad != 0).any()
    for parameter, value in pe.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all(), parameter
        if same_for_a_whole_row(name, parameter):
            assert value.grad.abs().max() < 1e-10, parameter
        else:
            assert value.grad.abs().max() > 1e-7, parameter


@every_direction
def test_double_is_double_throughout(name, causal):
    """Numerical differentiation in float64 notices any step that is rounded to float32 on the way."""
    pe, x = make(name), tokens(1, 6).requires_grad_()
    out = layer(pe, x, causal=causal, impl="reference")
    assert out.dtype == torch.float64
    # gradcheck moves the values it is given, and these are the module's own.
    assert gradcheck(lambda *_: layer(pe, x, causal=causal, impl="reference"), (x, *pe.parameters()), fast_mode=True)


@every_direction
def test_bfloat16_is_near_float32(name, causal):
    """300 positions: bfloat16 cannot tell those beyond 256 apart."""
    length, rows, dtype = 300, slice(296, 300), torch.bfloat16
    half = make(name, dtype=dtype)
    full = copy.deepcopy(half).float()
    x = tokens(1, length, dtype=torch.float32).to(dtype)
    grid = Grid.of_length(4, length, causal=causal)
    # The rounding of an output that is itself in half precision.
    ulp = {"rtol": torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps}

    embedded = half.embed(x, torch.arange(length))
    torch.testing.assert_close(embedded.float(), full.embed(x.float(), torch.arange(length)), **ulp)
    q, k, v = project(embedded.detach())
    q = q[:, :, rows]
    features = half.features(embedded)
    if features is not None:
        assert features.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(features, full.features(embedded.float()))
        grid = replace(grid, q_features=features[:, rows], k_features=features)
    for turned, expected in zip(half.rotate(q, k, grid), full.rotate(q.float(), k.float(), grid), strict=True):
        assert turned.dtype == dtype
        torch.testing.assert_close(turned.float(), expected, **ulp)
    scores = torch.randn(1, HEADS, 4, length)
    logits = half.logits(scores, q, k, grid)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, full.logits(scores, q.float(), k.float(), grid), rtol=1e-5, atol=1e-5)

    # Rotated q and k are rounded once, which is compared above. DAPE multiplies what that changes in the scores by the
    # weights of f, up to a whole logit: from there on the exact output is that of the rounded ones.
    settled, there = half.settle(grid)
    turned = (x.float() for x in settled.rotate(q, k, there))
    out = dape.attention(q, k, v, half, causal=causal, features=features)
    exact = dape.attention(*turned, v.float(), full, causal=causal, features=features, rotated=True)
    assert out.dtype == dtype
    # What is left is the rounding of the output and, in sdpa, of weights that add up to 1: half an eps of |v| each.
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=ulp["atol"] * v.float().abs().max().item())


# State ---------------------------------------------------------------------------------------------------------------


def state_of(pe: nn.Module) -> dict[str, object]:
    """Everything a module holds: tensors with their edit counters, and the text of all other attributes."""
    own = ("_parameters", "_buffers", "_modules")
    tensors = {n: (t.clone(), t._version) for n, t in [*pe.named_parameters(), *pe.named_buffers()]}
    others = {n: {a: repr(v) for a, v in vars(m).items() if a not in own} for n, m in pe.named_modules()}
    return {"tensors": tensors, "attributes": others}


@every_direction
def test_running_leaves_no_trace(name, causal):
    pe, x = make(name), tokens(2, 13).requires_grad_()
    before, rng, python_rng = state_of(pe), torch.get_rng_state(), random.getstate()
    for impl in IMPLS:
        layer(pe, x, causal=causal, impl=impl).sum().backward()
    after = state_of(pe)
    assert after["attributes"] == before["attributes"]
    assert after["tensors"].keys() == before["tensors"].keys()
    for key, (value, version) in after["tensors"].items():
        assert torch.equal(value, before["tensors"][key][0]) and version == before["tensors"][key][1], key
    assert torch.equal(torch.get_rng_state(), rng)
    assert random.getstate() == python_rng


@every_name
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_hooks_take_integers_of_any_width(name, dtype):
    """Of positions and lags; the largest distance of 8 bits has no negative there."""
    pe, positions = make(name), torch.arange(5, 12)
    assert torch.equal(pe.embed(tokens(1, 7), positions.to(dtype)), pe.embed(tokens(1, 7), positions))
    if isinstance(pe, RelativeBias):
        lag = torch.arange(torch.iinfo(torch.int8).min, 127) if dtype.is_signed else positions
        assert torch.equal(pe.bias_at(lag.to(dtype), causal=False), pe.bias_at(lag, causal=False))
    if entry_of(name).hook == "bias" and not pe.needs_features:
        assert torch.equal(pe.bias(positions.to(dtype), (positions + 90).to(dtype)), pe.bias(positions, positions + 90))


@every_name
def test_state_dict_round_trips(name, tmp_path):
    pe, other, x = make(name), make(name, seed=9), tokens(2, 13)
    out = layer(pe, x)
    if pe.state_dict():
        assert not torch.allclose(layer(other, x), out)
    other.load_state_dict(through_a_file(pe.state_dict(), tmp_path / "encoding.safetensors"), strict=True)
    assert torch.equal(layer(other, x), out)


def through_a_file(state: dict[str, Tensor], path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file, save_file
    except ImportError:
        return {key: value.clone() for key, value in state.items()}
    save_file(state, path)
    return load_file(path)


# DAPE ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "causal"), priced(cases(WRAPS)))
def test_dape_with_a_silent_f_is_its_base(name, causal):
    pe, x = make(name), tokens(2, 13)
    assert isinstance(pe, DapeWrapper)
    last = pe.second if name.startswith(DAPE_V2) else pe.f.second
    assert not torch.allclose(layer(pe, x, causal=causal), layer(pe.base, x, causal=causal))
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    for impl in IMPLS:
        assert_near(layer(pe, x, causal=causal, impl=impl), layer(pe.base, x, causal=causal, impl="reference"))
    if pe.has_bias and not pe.needs_features:
        q_pos, k_pos = torch.arange(5, 8), torch.arange(8)
        assert torch.equal(pe.bias(q_pos, k_pos, causal=causal), pe.base.bias(q_pos, k_pos, causal=causal))


# Compilation ---------------------------------------------------------------------------------------------------------

LENGTHS = (5, 9, 17, 40)


def graphs_per_length(function, inputs, *, fullgraph: bool = True) -> list[int]:
    """How many graphs there are after each length; every result is compared with the eager one."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, dynamic=True, fullgraph=fullgraph)
    counts = []
    for length in LENGTHS:
        torch.testing.assert_close(compiled(*inputs(length)), function(*inputs(length)), rtol=1e-4, atol=1e-4)
        counts.append(counter.frame_count)
    return counts


COMPILED = [
    *ENTRIES,
    "logn-kerple",
    "sink-kerple",
    "dape-kerple",
    "dape-fox",
    "dape-rope",
    "dape-fire",
    "dape-v2-kerple",
]


@pytest.mark.compile
@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_of_logits_serves_all_lengths(name):
    pe = make(name, dtype=torch.float32)

    def logits(scores: Tensor, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        features, grid = pe.features(x), Grid.of_length(q.shape[2], k.shape[2], causal=True)
        return pe.logits(scores, q, k, replace(grid, q_features=features, k_features=features))

    def inputs(length: int) -> tuple[Tensor, ...]:
        x = tokens(2, length, dtype=torch.float32)
        q, k, _ = project(x)
        return q @ k.transpose(-1, -2), q, k, x

    counts = graphs_per_length(logits, inputs)
    assert counts[1] == counts[-1] <= 2


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own
@pytest.mark.parametrize(
    ("name", "impl"),
    [
        *((name, "auto") for name in COMPILED),
        *((name, "reference") for name in ("learned", "rope", "t5", "fire", "cope", "dape-fox", "dape-v2-kerple")),
        *((name, "blocked") for name in ("rope", "alibi", "fire", "dape-kerple", "dape-fire")),
    ],
)
def test_one_graph_of_a_layer_serves_all_lengths(name, impl):
    """A bias that is evaluated on each tile stays outside of the graph, which then has two parts. The definition adds
    little to the graph of logits above, and is compiled for one encoding of each kind; so are tiles for each kind of
    bias that they know. Row blocks are a loop that is unrolled for each length, as documented."""
    pe = make(name, dtype=torch.float32)
    whole = impl == "reference" or "fire" not in name
    counts = graphs_per_length(
        lambda x: layer(pe, x, impl=impl), lambda length: (tokens(2, length, dtype=torch.float32),), fullgraph=whole
    )
    assert counts[1] == counts[-1]
