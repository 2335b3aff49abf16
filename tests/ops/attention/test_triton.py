"""The Triton kernels without a GPU: interpreted, and compiled for several GPUs, each in a process of its own because
triton decides between the two when kernels are imported. ``pytest -m gpu`` runs them for real."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dape
from dape.bench.kernels import SHARED, KernelsBench, compiled_for
from dape.ops.attention.triton_kernels import available, plan

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

installed = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def interpret(which: str, names: str = "") -> None:
    """Tests of that mark whose names an expression of ``-k`` selects."""
    modules = [str(HERE / name) for name in ("triton_interpreted.py", "trust_interpreted.py")]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "-k", names, *modules]
    done = run_python(*words, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@installed
def test_interpreted():
    interpret("not slow")


PARTS = ["test_large_sizes", "test_other_situations", "test_square", "test_every_case_of_many_classes"]


@installed
@pytest.mark.slow
@pytest.mark.parametrize("part", [*PARTS, f"not ({' or '.join(PARTS)})"], ids=[*PARTS, "others"])
def test_interpreted_more(part):
    """Half a minute each, so that several processes can share them."""
    interpret("slow", part)


def test_nothing_needs_triton():
    """Torch imports it by itself, so it is hidden here."""
    code = "import sys; sys.modules['triton'] = None; import torch, dape; q = torch.ones(1, 2, 3, 8); "
    code += "dape.attention(q, q, q, dape.build('dape-kerple', num_heads=2, head_dim=8, train_length=8)); "
    done = run_python("-c", code + "assert not any(name.endswith('triton_kernels.kernels') for name in sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="kernels are interpreted here")
def test_refused_on_a_processor():
    q = torch.zeros(1, 2, 3, 8)
    pe = dape.build("dape-kerple", num_heads=2, head_dim=8, train_length=8)
    with pytest.raises(ValueError, match=r"impl='triton' is not possible: .* for GPUs, q is on cpu; use impl='auto'"):
        dape.attention(q, q, q, pe, impl="triton")
    cope = dape.build("cope", num_heads=2, head_dim=8, train_length=8)
    with pytest.raises(
        ValueError, match="impl='triton' is not possible: logits have no closed form that this engine knows"
    ):
        dape.attention(q, q, q, cope, impl="triton")


@pytest.mark.parametrize(("heads", "width", "hidden", "fits"), [(12, 64, 32, True), (12, 64, 33, False)])
def test_small_gpus_have_no_room_for_more_hidden_units(heads, width, hidden, fits):
    """Compiled for sm_86, 12 x 64 with 64 hidden units in half precision takes 110,592 bytes of 101,376."""
    assert plan.Sizes(heads=heads, group=1, width=width, values=width, hidden=hidden, gpu="small").fits == fits


def test_items_of_more_than_32_bits_are_found():
    cut = torch.empty(1, 8, 1 << 20, 512, device="meta")[..., :64]
    assert available._span(cut) >= 1 << 31 > available._span(cut[:, :1])


# Ahead of time -------------------------------------------------------------------------------------------------------


def _combinations():
    """One in the usual tests, small; the others take half a minute each: every kind of GPU, with every dtype once at
    least, the paper's models, and for every kind of GPU the largest that should fit. `dape bench kernels` shows any."""
    usual = ("sm_80", "fp16", 2, 16, 4)
    more = [("sm_80", "bf16", 12, 64, 32), ("sm_86", "fp16", 32, 128, 32), ("gfx942", "fp16", 32, 128, 32)]
    more += [("sm_90", "fp32", 32, 128, 32), ("sm_90", "bf16", 8, 128, 64)]
    more += [("gfx942", "fp32", 8, 32, 64)]  # the Chomsky-hierarchy encoder
    assert {target for target, *_ in (usual, *more)} == set(SHARED)
    return [usual, *(pytest.param(*each, marks=pytest.mark.slow) for each in more)]


def _spill_budget(dtype: str, heads: int, width: int, kernel: str) -> int:
    """Bytes of a thread. float32 has no tensor cores here and holds operands in registers; likewise the sums over the
    pieces of ramps, whose products are the widest."""
    if kernel == "terms of ramps":
        return 20_000 if dtype == "fp32" else 5000
    if dtype == "fp32":
        return 2500 if heads <= 16 else 10_000  # a term per cell; tables: 2100
    return 700 if heads * width < 1024 else 2400


@installed
@pytest.mark.parametrize(("target", "dtype", "heads", "width", "hidden"), _combinations())
def test_compiled_ahead_of_time(target, dtype, heads, width, hidden):
    """12 heads of width 64 and 32 hidden units are those of the paper's models."""
    config = KernelsBench(targets=(target,), dtype=dtype, heads=heads, head_dim=width, hidden=hidden)
    found = compiled_for(config, target)
    assert {row["kernel"] for row in found} >= {"forward", "queries", "keys", "terms"}
    for row in found:
        assert row["fits"], row
        assert row["spilled"] <= _spill_budget(dtype, heads, width, f"{row['kernel']} of {row['bias']}"), row
        assert row["registers"] > 32, row  # else the compiler gave up and keeps everything in memory


# On a GPU ------------------------------------------------------------------------------------------------------------

LABELS = ["kerple", "dape-kerple", "dape-rope", "fire", "dape-fire"]


def on_gpu(label: str, dtype: torch.dtype, *, heads: int, width: int, queries: int, keys: int, kv_heads: int):
    torch.manual_seed(0)
    pe = dape.build(label, num_heads=heads, head_dim=width, train_length=64).cuda()
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    q, k, v = (torch.randn(2, h, t, width, device="cuda").to(dtype).requires_grad_() for h, t in shapes)
    return pe, {"q": q, "k": k, "v": v}


def results(impl: str, pe, tensors: dict[str, torch.Tensor], **call) -> dict[str, torch.Tensor]:
    out = dape.attention(*tensors.values(), pe, impl=impl, **call)
    towards = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = {**tensors, **dict(pe.named_parameters())}
    grads = torch.autograd.grad(out, list(wanted.values()), towards, allow_unused=True)
    return {"output": out, **{n: g for n, g in zip(wanted, grads, strict=True) if g is not None}}


def exact(pe, tensors: dict[str, torch.Tensor], **call) -> dict[str, torch.Tensor]:
    double = {n: x.detach().double().requires_grad_() for n, x in tensors.items()}
    found = results("reference", pe.double(), double, **call)
    pe.float()
    return found


@pytest.mark.gpu
@installed
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    ("dtype", "output", "gradient"),
    [(torch.float32, 2e-5, 1e-3), (torch.float16, 5e-3, 3e-2), (torch.bfloat16, 3e-2, 0.2)],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "queries", "keys"),
    [
        (12, 12, 64, 200, 200),
        (8, 2, 80, 75, 301),
        (16, 16, 128, 64, 64),
        (32, 8, 64, 33, 90),
        (12, 4, 64, 1, 2000),
        (32, 8, 128, 70, 70),
        (32, 32, 80, 1, 2000),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_gpu(label, dtype, output, gradient, heads, kv_heads, width, queries, keys, causal):
    pe, tensors = on_gpu(label, dtype, heads=heads, width=width, queries=queries, keys=keys, kv_heads=kv_heads)
    found, wanted = results("triton", pe, tensors, causal=causal), exact(pe, tensors, causal=causal)
    for name, value in wanted.items():
        allowed = (output if name == "output" else gradient) * max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max() < allowed, name


@pytest.mark.gpu
@installed
@pytest.mark.parametrize("label", LABELS)
def test_gpu_same_bits_every_time(label):
    pe, tensors = on_gpu(label, torch.float16, heads=12, width=64, queries=300, keys=300, kv_heads=12)
    first = results("triton", pe, tensors)
    for _ in range(5):
        again = results("triton", pe, tensors)
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.gpu
@installed
def test_gpu_is_chosen():
    pe, tensors = on_gpu("dape-kerple", torch.float16, heads=12, width=64, queries=30, keys=30, kv_heads=12)
    _, choice = dape.attention(*tensors.values(), pe, explain=True)
    assert choice.impl == "triton"
