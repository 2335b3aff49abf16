"""Kernels that came with the package: the best that fits, whole, of these very sources; otherwise one is built here."""

import ctypes
import functools
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dape
from dape.errors import UsageError
from dape.files import sha256
from dape.ops import native, prebuilt
from dape.ops.attention.fused import available, kinds, library

spec = importlib.util.spec_from_file_location("packaging_kernels", Path(__file__).parents[2] / "packaging/kernels.py")
packaging = importlib.util.module_from_spec(spec)
spec.loader.exec_module(packaging)

V4, V3, ARM = prebuilt.TARGETS
pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and shutil.which("g++") and platform.libc_ver()[0] == "glibc"),
    reason="the libraries are for Linux with glibc",
)


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }\n')
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "compiled")
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "compiled"


def put(folder: Path, source: Path, *targets: prebuilt.Target, content: bytes = b"a library") -> list[Path]:
    made = []
    for target in targets:
        place = folder / target.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "new").write_bytes(content)
        made.append((place / "new").rename(place / f"{prebuilt.stem(source, target)}-{sha256(place / 'new')}.so"))
    return made


def processor(monkeypatch, machine: str, *features: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(native, "processor", lambda: f"model name : x\nflags\t\t: {' '.join(features)}")


def build(source: Path) -> Path:
    """As `make wheel` does, for a processor like this one."""
    if V3.needs - prebuilt.features():
        pytest.skip("this processor is older than x86-64-v3")
    packaging.compile_one(source, V3, "g++", prebuilt.FOLDER / V3.name)
    (made,) = prebuilt.FOLDER.glob("*/*.so")
    return made


def answer(source: Path) -> tuple[int, str]:
    loaded = prebuilt.load(source, lambda path: ctypes.CDLL(str(path)))
    return loaded.answer(), prebuilt.origin(loaded)


# Which one -----------------------------------------------------------------------------------------------------------


def test_the_best_that_the_processor_can_run(folder, source, monkeypatch):
    v4, v3, arm = put(folder, source, V4, V3, ARM)
    for machine, features, expected in (
        ("x86_64", V4.needs, v4),
        ("x86_64", V4.needs - {"avx512vl"}, v3),
        ("x86_64", V3.needs - {"fma"}, None),
        ("x86_64", (), None),
        ("aarch64", (), arm),
        ("riscv64", V4.needs, None),
    ):
        processor(monkeypatch, machine, *features)
        assert prebuilt.find(source) == expected


def test_cores_that_differ(monkeypatch):
    monkeypatch.setattr(native, "processor", lambda: "flags : a b c\nmodel name : x\nflags : b c d")
    assert prebuilt.features() == {"b", "c"}


@pytest.mark.parametrize("libc", [("", ""), ("glibc", "2.27"), ("musl", "1.2")])
def test_another_c_library(folder, source, monkeypatch, libc):
    put(folder, source, V3)
    processor(monkeypatch, "x86_64", *V3.needs)
    assert prebuilt.find(source) is not None
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert prebuilt.find(source) is None


def test_not_of_another_source(folder, source, monkeypatch):
    put(folder, source, V3)
    processor(monkeypatch, "x86_64", *V3.needs)
    source.write_text(source.read_text() + "// changed\n")
    assert prebuilt.find(source) is None


# Loading -------------------------------------------------------------------------------------------------------------


def test_used_without_a_compiler(folder, source, monkeypatch):
    build(source)
    monkeypatch.setenv("PATH", "")
    assert answer(source) == (42, "prebuilt for x86-64-v3")
    assert not (folder.parent / "cache").exists()


def test_native_is_compiled_here_all_the_same(folder, source, monkeypatch):
    build(source)
    monkeypatch.setenv("DAPE_FUSED", "native")
    assert answer(source) == (42, "compiled here for this processor")


def test_damage_is_said_and_one_is_built_here(folder, source, capsys, monkeypatch):
    made = build(source)
    made.write_bytes(made.read_bytes().replace(b"\x2a", b"\x2b"))  # it would load, and answer 43
    assert answer(source) == (42, "compiled here for this processor")
    assert f"{made} is damaged; install the package again" in capsys.readouterr().err
    assert made.exists()  # what the installer wrote is left to it
    monkeypatch.setenv("DAPE_FUSED", "prebuilt")
    with pytest.raises(OSError, match="is damaged"):
        answer(source)


def test_what_cannot_be_loaded_is_said(folder, source, capsys, monkeypatch):
    put(folder, source, V3, content=b"no ELF")
    processor(monkeypatch, "x86_64", *V3.needs)
    assert answer(source)[0] == 42 and "cannot be used" in capsys.readouterr().err


def test_nothing_is_compiled_if_only_prebuilt_ones_are_wanted(folder, source, monkeypatch):
    monkeypatch.setenv("DAPE_FUSED", "prebuilt")
    with pytest.raises(
        OSError, match=r"none came with the package for this system and processor; .* DAPE_FUSED is pre"
    ):
        answer(source)


def test_an_unknown_mode_is_refused(monkeypatch):
    available._try.cache_clear()
    monkeypatch.setenv("DAPE_FUSED", "fast")
    with pytest.raises(UsageError, match=r"DAPE_FUSED is 'fast', but must be one of 0: .*native: .*or unset it"):
        available.why_not_compiled(torch.empty(0))


# How they are made ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ('#include <string>\nextern "C" long f(int n) { return std::string(n, 97).find("b"); }', "libstdc"),
        ('extern "C" int elsewhere(); extern "C" int f() { return elsewhere(); }', "elsewhere"),
    ],
)
def test_a_library_that_needs_more_than_the_c_library_is_refused(folder, tmp_path, text, needs):
    source = tmp_path / "more.cpp"
    source.write_text(text)
    with pytest.raises(SystemExit, match=needs):
        packaging.compile_one(source, V3, "g++", folder)


@pytest.fixture(scope="module")
def every_kernel(tmp_path_factory) -> Path:
    """The folder of all libraries for processors like this one, made once: a minute. `make wheel` compiles
    and links them for the other targets."""
    if V3.needs - prebuilt.features():
        pytest.skip("this processor is older than x86-64-v3")
    folder = tmp_path_factory.mktemp("compiled")
    for source in packaging.SOURCES:
        packaging.compile_one(source, V3, "g++", folder / V3.name)
    return folder


@pytest.mark.slow
def test_every_kernel_has_its_functions(every_kernel):
    for source in packaging.SOURCES:
        (made,) = every_kernel.glob(f"{V3.name}/{source.stem}-*.so")
        function = "dape_forward" if source == library.SOURCE else f"dape_{source.stem}_forward"
        assert function.encode() in made.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dape-kerple", "transformer-xl", "cope", "dape-v2-kerple"])
def test_attention_by_a_prebuilt_kernel(every_kernel, folder, name, monkeypatch):
    """Every one of the libraries for processors like this one, against the definition."""
    monkeypatch.setattr(prebuilt, "FOLDER", every_kernel)
    monkeypatch.setenv("DAPE_FUSED", "prebuilt")
    for module in (library, kinds):
        monkeypatch.setattr(module, "load", functools.cache(module.load.__wrapped__))
    for size in ("lanes", "block", "strip"):  # an earlier test may have read those of a library with wider vectors
        monkeypatch.setattr(library, size, functools.cache(getattr(library, size).__wrapped__))
    available._try.cache_clear()
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=4, head_dim=6, train_length=16)
    q, k, v = torch.randn(3, 2, 4, 75, 6)
    out, choice = dape.attention(q, k, v, pe, explain=True)
    assert "fused" in (choice.impl, choice.kernel) or "compiled" in choice.reason, choice
    exact = dape.attention(q.double(), k.double(), v.double(), pe.double(), impl="reference")
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)
    available._try.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64-static") and packaging.compiler_for(ARM)), reason="no ARM, no emulator"
)
def test_on_arm(tmp_path):
    """The main kernel in an emulator (Debian's qemu-user-static): 256 calls, forward and backward, as on x86."""
    driver, told = Path(__file__).parent / "attention" / "sanitized.cpp", []
    for target, before in ((V3, []), (ARM, ["qemu-aarch64-static"])):
        made, program, compiler = tmp_path / "calls.o", tmp_path / target.name, packaging.compiler_for(target)
        flags = [flag for flag in target.flags if flag != "-fno-exceptions"]  # the driver's threads are C++'s
        what = ["-DTELL", f'-DKERNEL="{library.SOURCE}"', "-c", str(driver), "-o", str(made)]
        for command in ([compiler, *flags, *what], [compiler, "-static", str(made), "-o", str(program), "-lpthread"]):
            subprocess.run(command, check=True, timeout=600)
        said = subprocess.run([*before, program], check=True, capture_output=True, text=True, timeout=1200).stdout
        assert said.endswith("256 calls, forward and backward, 3 threads\n")
        told.append(torch.tensor([float(word) for word in said.partition(" calls")[0].split()[:-1]]))
    assert len(told[0]) == 2048
    torch.testing.assert_close(*told, rtol=1e-4, atol=1e-4)
