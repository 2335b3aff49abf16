"""``dape doctor``: true, complete, readable in 80 columns, and its exit code means something."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch

import dape
from dape.cli import main
from dape.doctor import choices, comparisons, facts, gpu
from dape.doctor import run as doctor
from dape.doctor.section import Line, Section, section
from dape.extras import EXTRAS, install_command
from dape.ops.attention.triton_kernels.remembered import Outcome

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
FINE = section("Fine", [("a", "b")])


@pytest.fixture
def quick(monkeypatch):
    """Sections that take seconds are tested by themselves."""
    monkeypatch.setattr(comparisons, "self_test", lambda: FINE)


# What is told --------------------------------------------------------------------------------------------------------


def test_extras_are_those_of_the_project():
    """Names in their order, and the libraries of each."""
    wanted = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert list(EXTRAS) == list(wanted)
    for name, requirements in wanted.items():
        inner = [re.fullmatch(r"dape\[(.*)\]", each) for each in requirements]
        included = {part for found in inner if found for part in found[1].split(",")}
        libraries = {re.match(r"[\w.-]+", r)[0] for r, found in zip(requirements, inner, strict=True) if not found}
        assert (set(EXTRAS[name].needs), set(EXTRAS[name].includes)) == (libraries, included)


def test_a_missing_extra_comes_with_its_command(monkeypatch):
    monkeypatch.setitem(EXTRAS["report"].needs, "jinja2", "no_such_module")
    lines = {line.name: line.value for line in facts.extras().lines}
    assert lines["report"].endswith(f"missing jinja2: {install_command('report')}")
    assert EXTRAS["dev"].missing().count("jinja2") == 1


def test_every_encoding_has_its_choice():
    (on_cpu,) = choices.choices()
    told = [name for line in on_cpu.lines for name in line.value.partition(":")[0].split(", ")]
    assert sorted(told) == sorted(dape.encodings())
    pe = dape.build("dape-fire", num_heads=12, head_dim=64, train_length=16)
    q = torch.zeros(1, 12, 16, 64)
    _, choice = dape.attention(q, q, q, pe, explain=True)
    (line,) = (line for line in on_cpu.lines if "dape-fire" in line.value.partition(":")[0].split(", "))
    assert line.name == f"{choice.impl}, {choice.kernel}" and line.value.endswith(choice.reason)


def test_without_kernels_it_says_why(monkeypatch):
    monkeypatch.setenv("DAPE_KERNELS", "off")
    lines = {line.name: line.value for line in facts.kernels().lines}
    assert lines["DAPE_KERNELS"].startswith("off: ") and "DAPE_KERNELS=off" in lines["C++ kernel"]
    assert all(not line.name.startswith("fused") for line in choices.choices()[0].lines)


@pytest.mark.parametrize("value", ["word " * 40, "/a/very/long/path" * 20, "x", ""])
@pytest.mark.parametrize("name", ["short", "a name that is longer than its column", "n" * 100])
def test_lines_fit_and_lose_nothing(name, value):
    text = Section("t", (Line(name, value), Line(name, value, ok=False))).as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert re.sub(r"\s", "", value) in re.sub(r"\s", "", text)
    assert text.count("FAILED") == 1


# The self-test -------------------------------------------------------------------------------------------------------


def test_the_self_test_passes_here_and_touches_no_random_numbers():
    before = torch.get_rng_state()
    found = comparisons.self_test()
    assert found.ok, found.as_text()
    assert f"{len(comparisons.ON_PROCESSORS)} of {len(comparisons.ON_PROCESSORS)} agree" in found.lines[0].value
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tensor", ["output", "q", "v", "f.first.weight", "f.second.weight", "base.r1"])
def test_a_wrong_tensor_is_found(tensor, monkeypatch):
    """Off by a thousandth of its largest entry."""
    right = comparisons._outcome

    def wrong(impl, *arguments):
        found = right(impl, *arguments)
        if impl == "blocked":
            found[tensor] = found[tensor] + 1e-3 * found[tensor].abs().max()
        return found

    monkeypatch.setattr(comparisons, "_outcome", wrong)
    compared = comparisons.compare(comparisons.Problem(encoding="dape-kerple"), "blocked")
    assert not compared.ok and compared.tensor == tensor


def test_what_raises_fails_the_test(monkeypatch):
    def broken(problem, impl):
        raise RuntimeError("no luck")

    monkeypatch.setattr(comparisons, "compare", broken)
    (line,) = comparisons.against_definition("blocked", [comparisons.Problem(encoding="kerple")])
    assert not line.ok and line.value.endswith("RuntimeError: no luck")


# The command ---------------------------------------------------------------------------------------------------------


def test_output_fits_80_columns_and_is_plain(quick, capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80 and "\x1b" not in said
    for word in ("Versions", "Devices", "Kernels", "Extras", "What auto takes on cpu", torch.__version__):
        assert word in said


def test_a_failed_self_test_is_exit_code_1_and_stands_in_the_report(monkeypatch, capsys, tmp_path):
    wrong = Section("Self-test", (Line("fused", "wrong", ok=False),))
    monkeypatch.setattr(doctor, "examine", lambda: iter([FINE, wrong]))
    assert main(["doctor", "--out", str(tmp_path / "report.txt")]) == 1
    assert "FAILED: wrong" in capsys.readouterr().out
    content = json.loads((tmp_path / "report.txt.json").read_text())
    assert not content["ok"] and [each["ok"] for each in content["sections"]] == [True, False]
    assert "FAILED: wrong" in (tmp_path / "report.txt").read_text()
    assert content["provenance"]["torch"] == str(torch.__version__)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert "no GPU that torch can use" in said.err and max(map(len, said.err.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_out_is_checked_first(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: pytest.fail("examined"))
    assert main(["doctor", "--out", str(tmp_path)]) == 2
    assert main(["doctor", "--out", str(tmp_path / "nowhere" / "x")]) == 2
    assert capsys.readouterr().err.count("--out") == 2


@pytest.mark.parametrize("command", [["doctor"], ["list"], ["train"]])
def test_a_wrong_switch_is_exit_code_2(command, monkeypatch, capsys):
    monkeypatch.setenv("DAPE_KERNELS", "yes")
    assert main(command) == 2
    assert "DAPE_KERNELS is 'yes', but must be one of off: " in capsys.readouterr().err


# A pretended GPU -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """One GPU, which is the CPU; one class of its kernels is wrong. Whole calls run in tiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "gpus", lambda: [torch.device("cpu")])
    monkeypatch.setattr(facts, "describe", lambda device: "a GPU of the mind")
    monkeypatch.setattr(gpu, "recheck", lambda shape, device: Outcome(shape.heads != 8, "so it is"))
    monkeypatch.setattr(gpu, "CALLS", [(2, 1, 8, 5, 9)])
    right = comparisons.compare
    monkeypatch.setattr(comparisons, "compare", lambda problem, impl: right(problem, "blocked"))


def test_a_gpu_is_examined_and_reported(pretended, capsys, tmp_path):
    assert main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert max(map(len, said.out.splitlines())) <= 80
    assert f"1 of {len(gpu.classes())}: float32, 12 heads of 64, f of 32, lag tables, causal" in said.err
    content = json.loads((tmp_path / "dape-doctor.txt.json").read_text())
    by_title = {each["title"]: each for each in content["sections"]}
    check = by_title["Self-check of the Triton kernels on cpu"]
    assert len(check["lines"]) == len(gpu.classes()) == 120
    wrong = [line["value"] for line in check["lines"] if not line["ok"]]
    assert len(wrong) == 24 and all("8 heads of 32" in value for value in wrong)
    for dtype in ("float32", "float16", "bfloat16"):
        whole = by_title[f"Attention on cpu in {dtype}, impl='triton'"]
        assert whole["ok"] and "10 of 10 agree" in whole["lines"][0]["value"]


def test_classes_have_names_of_their_own():
    assert len({str(shape) for shape in gpu.classes()}) == len(gpu.classes())
