"""Random calls of the operator against float64, within the bounds of docs/numerics.md.

Inputs are of every layout, dtype and size of numbers; ``operator_cases.py`` says what is drawn. Calls of the Triton
kernels are interpreted, in a process of their own.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from tests.fuzz.cases import fuzzed
from tests.fuzz.operator_cases import (
    Case,
    arguments,
    cases,
    encoding,
    features,
    judge,
    seen,
    small_tiles,
    tensors,
    usable_impl,
)
from tests.ops.attention.bounds import Exact, Rounding, excess

import dape
from dape.ops.attention import tiles
from dape.ops.attention.engines import tiles as tile_engine
from dape.ops.attention.memory import LagMemory
from dape.ops.attention.operator import Choice

ROOT = Path(__file__).parents[2]


@fuzzed(0.55)
@given(case=cases())
def test_any_call_is_within_the_bounds(case: Case):
    found = judge(case)
    event(f"{found.choice.impl}, {found.choice.kernel}, {case.dtype}")


# That the bounds are near enough to find something -------------------------------------------------------------------


def rounded_units(patch: pytest.MonkeyPatch) -> None:
    """Hidden units in bfloat16."""
    right = tiles.Call.hidden_units

    def wrong(*args):
        units = right(*args)
        return None if units is None else units.copy_(units.bfloat16())

    patch.setattr(tiles.Call, "hidden_units", wrong)


def uncorrected_delta(patch: pytest.MonkeyPatch) -> None:
    """The backward pass has the output in bfloat16, as the caller has it, and rows are not made to add up to 0."""
    right = tiles.run_backward
    patch.setattr(tiles, "run_backward", lambda c, t, grad, out, *s: right(c, t, grad, out.bfloat16().float(), *s))
    patch.setattr(torch.Tensor, "addcmul_", lambda self, *args, **options: self)


def other_slope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiles, "LEAKY_SLOPE", 0.0101)


def other_base(patch: pytest.MonkeyPatch) -> None:
    """log2(e) to four digits."""
    patch.setattr(tile_engine, "LOG2_E", 1.443)


def last_key_twice(patch: pytest.MonkeyPatch) -> None:
    right = tiles.Call.keys_of

    def wrong(self, parts, tile):
        keys = right(self, parts, tile)
        return torch.cat([keys[:, :-2], keys[:, -1:], keys[:, -1:]], 1) if isinstance(parts, list) else keys

    patch.setattr(tiles.Call, "keys_of", wrong)


DEFECTS = [rounded_units, uncorrected_delta, other_slope, other_base, last_key_twice]
USUAL = Case(name="dape-alibi", impl="blocked", heads=4, kv_heads=4, queries=25, keys=70, batch=1)
SOME = [replace(USUAL, seed=seed, values=values) for seed in range(3) for values in ("usual", "huge scores")]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_beyond_the_bounds(defect, monkeypatch):
    for case in SOME:
        judge(case)
    defect(monkeypatch)
    assert any(max(seen(case).excess.values()) > 1 for case in SOME)


# A text that grows token by token, with tables that are kept ---------------------------------------------------------


@fuzzed(0.03)
@given(case=cases(), steps=st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_a_memory_changes_nothing(case: Case, steps: list[int]):
    """Of the last keys, a few queries each; the parameters may change on the way."""
    case = replace(case, queries=8, keys=70, causal=True, positions="none", documents=False)
    pe, (q, k, v, towards), call, memory = encoding(case), tensors(case), arguments(case), LagMemory()
    read, keys = features(case, pe).get("features"), 8
    for step, queries in enumerate(steps):
        keys = min(70, keys + queries)
        if step == 2:
            with torch.no_grad():
                for parameter in pe.parameters():
                    parameter.mul_(1.25)
        now = {
            **call,
            **({"key_padding_mask": call["key_padding_mask"][:, :keys]} if "key_padding_mask" in call else {}),
            **({"features": (read[0][:, :queries], read[1][:, :keys])} if read is not None else {}),
        }
        given_now = (q[:, :, :queries], k[:, :, :keys], v[:, :, :keys])
        with small_tiles(case), torch.no_grad():
            impl = usable_impl(case, pe, q)
            out, choice = dape.attention(*given_now, pe, memory=memory, impl=impl, explain=True, **now)
        rounding = Rounding(case.dtype, weights=choice.impl == "sdpa")
        exact = Exact(pe, *given_now, towards[:, :, :queries], rounding, now)
        assert excess(exact, {**exact.values, "output": out})["output"] <= 1, (step, choice)


# What is not finite --------------------------------------------------------------------------------------------------


@fuzzed(0.0175)
@given(case=cases(), where=st.sampled_from("qkv"), what=st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_what_is_not_finite_stays_where_it_is(case: Case, where: str, what: float):
    """A query reaches its own row, a key or value the rows of its item. A NaN that a row sees shows, except in
    PyTorch's own attention, which returns zeros for a row of few keys that are all NaN."""
    case = replace(case, values="usual", parameters="usual", layouts=("plain", "plain", "plain"))
    pe, (q, k, v, _), call = encoding(case), tensors(case), arguments(case)
    call |= features(case, pe)
    x = {"q": q, "k": k, "v": v}[where]
    if not x.numel():
        return
    before, choice = usable_call(case, pe, q, k, v, call)
    item, head, token = (case.seed % n for n in x.shape[:3])
    x[item, head, token, 0] = what
    after, _ = usable_call(case, pe, q, k, v, call)
    assert after.shape == before.shape
    touched = torch.zeros(after.shape, dtype=torch.bool)
    if where == "q":
        touched[item, :, token] = True
    else:
        touched[item] = True
    assert torch.equal(after[~touched], before[~touched])
    visible = Exact(
        pe, torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), after * 0, Rounding(case.dtype), call
    )
    if what != what and after.numel() and k.numel() and choice.impl != "sdpa":
        group = case.heads // case.kv_heads
        heads = slice(head, head + 1) if where == "q" else slice(head * group, (head + 1) * group)
        seen = visible.visible.expand(*after.shape[:3], k.shape[2])[item, heads]
        rows = seen[:, token].any(-1) if where == "q" else seen[:, :, token]
        found = after[item, heads, token] if where == "q" else after[item, heads]
        assert found.isnan().any(-1)[rows].all()


def usable_call(case: Case, pe, q, k, v, call) -> tuple[torch.Tensor, Choice]:
    with small_tiles(case), torch.no_grad():
        return dape.attention(q, k, v, pe, impl=usable_impl(case, pe, q), explain=True, **call)


# Triton --------------------------------------------------------------------------------------------------------------

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.slow  # ten seconds a case
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_triton_in_a_process_of_its_own(pytestconfig):
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    arguments = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "interpreted_triton", __file__]
    if (seed := pytestconfig.getoption("--hypothesis-seed")) is not None:
        arguments.append(f"--hypothesis-seed={seed}")
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]


# Without f a kernel also casts scores that nobody reads, where numpy warns; an infinity that is read would be found.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.skipif(not INTERPRETED, reason="the kernels are not interpreted here")
@fuzzed(0.0025)
@given(case=cases(impls=["triton"], dtypes=[torch.float32, torch.bfloat16, torch.float16]))
def test_interpreted_triton_is_within_the_bounds(case: Case):
    case = replace(case, queries=min(case.queries, 18), keys=min(case.keys, 40), batch=min(case.batch, 2))
    found = judge(case)
    event(found.choice.impl)
