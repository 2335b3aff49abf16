"""Building the compiled kernel: where it goes, who may write there, and what happens where it cannot be built."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dape
from dape.ops import native
from dape.ops.attention.fused import available, library, run
from dape.ops.attention.fused.library import pack

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def unbuilt(monkeypatch):
    """As in a process that has not tried yet."""
    monkeypatch.setattr(library, "load", library.load.__wrapped__)
    available._try.cache_clear()
    yield
    available._try.cache_clear()


@needs_compiler
def test_built_once_and_only_for_its_owner(cache, monkeypatch):
    made = native.build(library.SOURCE)
    assert made.parent == cache and list(cache.iterdir()) == [made]  # nothing temporary is left
    if os.name == "posix":
        assert stat.S_IMODE(cache.stat().st_mode) == stat.S_IMODE(made.stat().st_mode) == 0o700
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.build(library.SOURCE) == made
    assert ctypes.CDLL(str(made)).dape_block() == library.block()


@needs_compiler
def test_another_source_or_processor_is_another_file(cache, monkeypatch):
    compiler = native.find_compiler()
    first = native._fingerprint(library.SOURCE, compiler)
    monkeypatch.setattr(native, "processor", lambda: "another")
    second = native._fingerprint(library.SOURCE, compiler)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DX"))
    assert len({first, second, native._fingerprint(library.SOURCE, compiler)}) == 3


@needs_compiler
def test_a_failed_compilation_leaves_nothing(cache, monkeypatch):
    monkeypatch.setattr(native, "FLAGS", ("-not-a-flag",))
    with pytest.raises(OSError, match="-not-a-flag"):
        native.build(library.SOURCE)
    assert list(cache.iterdir()) == []


def test_without_a_compiler_blocked_is_used_and_it_is_said_once(cache, unbuilt, monkeypatch, recwarn):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    pe = dape.build("dape-kerple", num_heads=2, head_dim=4, train_length=8)
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    for _ in range(2):
        out, choice = dape.attention(q, k, v, pe, explain=True)
        assert choice.impl == "blocked" and out.isfinite().all()
    said = [str(w.message) for w in recwarn if w.category is RuntimeWarning]
    assert len(said) == 1 and "no C++ compiler found (looked for g++, clang++, c++)" in said[0]
    with pytest.raises(ValueError, match=r"impl='fused' is not possible: no C\+\+ compiler"):
        dape.attention(q, k, v, pe, impl="fused")


def test_without_a_home_blocked_is_used(unbuilt, monkeypatch, recwarn):
    for name in ("DAPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert "home directory" in (available.why_not_compiled(torch.empty(0)) or "")
    assert [w.category for w in recwarn] == [RuntimeWarning]


def test_a_compiler_in_another_encoding(tmp_path, cache, monkeypatch):
    speaks = tmp_path / "g++"
    speaks.write_bytes(b"#!/bin/sh\nprintf 'Fehler f\\374r immer' >&2; exit 1\n")
    speaks.chmod(0o700)
    monkeypatch.setenv("CXX", str(speaks))
    with pytest.raises(OSError, match=r"Fehler f.r immer"):
        native.build(library.SOURCE)


def test_switched_off(unbuilt, monkeypatch, recwarn):
    monkeypatch.setenv("DAPE_FUSED", "0")
    assert available.why_not_compiled(torch.empty(0)) == "the environment variable DAPE_FUSED is 0"
    assert not recwarn.list


@pytest.mark.parametrize(
    ("q", "reason"),
    [
        (torch.empty(1, dtype=torch.float64), "computes in float32, q is torch.float64"),
        (torch.empty(1, device="meta"), "for CPUs, q is on meta"),
    ],
)
def test_not_for_every_call(q, reason):
    assert reason in (available.why_not_compiled(q) or "")


def test_no_closed_form():
    pe = dape.build("dape-v2-fire", num_heads=2, head_dim=4, train_length=8)
    with pytest.raises(ValueError, match="needs logits in closed form"):
        dape.attention(*torch.randn(3, 1, 2, 9, 4), pe, impl="fused")


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("queries", [1, 3, 8])
def test_decoding_reads_keys_where_they_are(queries, threads, monkeypatch, one_thread):
    """A part of a cache, as models hold it; the keys are cut for the threads and joined again."""
    monkeypatch.setattr(
        run, "pack", lambda x, layout, *rest: pack(x, layout, *rest) if layout == library.ROWS else None
    )
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    pe = dape.build("dape-kerple", num_heads=4, head_dim=6, train_length=8)
    cache = torch.randn(2, 2, 2, 700, 6)
    q, (k, v) = torch.randn(2, 4, queries, 6), cache[:, :, :, :603]
    out, choice = dape.attention(q, k, v, pe, explain=True)
    assert choice.impl == "fused"
    exact = dape.attention(q.double(), k.double(), v.double(), pe.double(), impl="reference")
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_uses_the_threads_of_torch():
    """A second OpenMP would have a pool of its own, which competes with torch's for the cores."""
    code = (
        "import torch, dape; torch.set_num_threads(2); pe = dape.build('dape-kerple', num_heads=2, head_dim=4, "
        "train_length=8); dape.attention(*torch.randn(3, 4, 2, 64, 4), pe, impl='fused'); "
        "print(*{l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l and '.so' in l})"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert len(done.stdout.split()) == 1, done.stdout


@needs_compiler
@pytest.mark.parametrize(
    "name", ["dape_forward", "dape_decode", "dape_backward", "dape_ramp_cells", "dape_ramp_backward"]
)
def test_memory_that_is_not_there_is_an_error(name):
    """No machine has scratch space for so many hidden units; nothing else of the call is looked at before."""
    call = library.Call(batch=1, heads=1, kv_heads=1, queries=1, keys=1, width=8, value_width=8, threads=2, splits=1)
    call.hidden, call.ramp.table, call.ramp.pieces = 1 << 40, 64, 1
    with pytest.raises(MemoryError, match=f"scratch space of {name}; fewer threads"):
        library.run(name, *((call, library.Backward(parts=1)) if name.endswith("backward") else (call,)))


@needs_compiler
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("name", "items"), [("kerple", 1), ("kerple", 8), ("dape-fire", 1), ("dape-fire", 8)])
def test_torchs_default_dtype_does_not_matter(name, items, default):
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=2, head_dim=4, train_length=8)
    inputs = [x.requires_grad_() for x in torch.randn(3, items, 2, 11, 4)]
    found = []
    for dtype in (torch.float32, default):
        torch.set_default_dtype(dtype)
        try:
            out = dape.attention(*inputs, pe, impl="fused")
            found.append((out, *torch.autograd.grad(out.square().sum(), [*inputs, *pe.parameters()])))
        finally:
            torch.set_default_dtype(torch.float32)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
