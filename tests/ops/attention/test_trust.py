"""When the Triton kernels are used: the switch, what is remembered where, and what is said. Kernels and GPU are
pretended; ``trust_interpreted.py`` runs the check itself."""

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator

import pytest
import torch

import dape
from dape.ops.attention.engines import triton
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.triton_kernels import remembered, trust
from dape.ops.attention.triton_kernels.remembered import Machine, Outcome

GOOD = Outcome(True, "they were verified")
BAD = Outcome(False, "the gradient of wa is off by 0.5")


@pytest.fixture
def checks(monkeypatch, tmp_path) -> Iterator[list[str]]:
    """A machine with a GPU, on which attention takes its tensors for the GPU's. The classes that were checked."""
    names: list[str] = []

    def checked(shape, device):
        names.append(str(shape))
        return GOOD

    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DAPE_KERNELS", raising=False)
    monkeypatch.setattr(triton, "serves", lambda device: True)
    monkeypatch.setattr(triton, "why_not_triton", lambda *_: None)
    for work in ("forward", "backward"):
        monkeypatch.setattr(ENGINES["triton"], work, getattr(ENGINES["blocked"], work))
    for layout in ("heads_beside", "gradient_heads_beside"):
        monkeypatch.setattr(ENGINES["triton"], layout, False)
    monkeypatch.setattr(trust, "INTERPRETED", False)
    monkeypatch.setattr(trust, "checked", checked)
    monkeypatch.setattr(trust, "machine_of", lambda device: machine())
    trust.forget()
    yield names
    trust.forget()


def machine(sources: str = "a" * 64) -> Machine:
    return Machine(gpu="NVIDIA X-1 (80 GB)", capability="9.0", torch="2", triton="3", dape="0", sources=sources)


def call(name: str = "dape-kerple", impl: str = "auto", **options):
    pe = dape.build(name, num_heads=2, head_dim=4, train_length=8)
    q = torch.randn(1, 2, 5, 4)
    return dape.attention(q, q, q, pe, impl=impl, explain=True, **options)[1]


def test_checked_once_for_a_class_and_used(checks):
    choices = [call(), call(), call(impl="triton")]
    assert {choice.impl for choice in choices} == {"triton"} and len(checks) == 1
    assert all("they were verified" in choice.reason for choice in choices)
    assert call("kerple").impl == call(causal=False).impl == call("dape-fire").impl == "triton"
    assert checks == [
        "float32, 2 heads of 4, f of 32, lag tables, causal",
        "float32, 2 heads of 4, lag tables, causal",
        "float32, 2 heads of 4, f of 32, lag tables",
        "float32, 2 heads of 4, f of 32, ramps of 32 kinks, causal",
    ]


def test_the_file_is_used_by_the_next_process(checks):
    call()
    (file,) = machine().file.parent.iterdir()
    assert file == machine().file and file.name.startswith("nvidia-x-1-80-gb-")
    if os.name == "posix":
        assert file.parent.stat().st_mode & 0o777 == 0o700
    trust.forget()
    assert call().impl == "triton" and len(checks) == 1
    call("kerple")
    trust.forget()
    call()
    call("kerple")
    assert len(checks) == 2  # the second class stands beside the first


def test_other_sources_are_checked_anew(checks, monkeypatch):
    call()
    trust.forget()
    monkeypatch.setattr(trust, "machine_of", lambda device: machine(sources="b" * 64))
    call()
    assert len(checks) == 2 and len(list(machine().file.parent.iterdir())) == 2


def test_sources_are_those_of_the_kernels(tmp_path, monkeypatch):
    names = ["kernels/kernels.py", "kernels/run.py", "kernels/remembered.py", "engines/base.py", "engines/triton.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(remembered, "__file__", str(tmp_path / "kernels" / "remembered.py"))
    before = remembered.sources.__wrapped__()
    for name in names:
        (tmp_path / name).write_text("2")
        assert remembered.sources.__wrapped__() != before
        before = remembered.sources.__wrapped__()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"ok": true', '"ok": false'),
        lambda text: json.dumps({"machine": 3, "outcomes": {}}),
        lambda text: json.dumps({**json.loads(text), "checksum": 0}),
        lambda text: "",
    ],
    ids=["cut off", "edited", "other content", "wrong checksum", "empty"],
)
def test_a_damaged_file_is_said_and_made_anew(checks, damage):
    call()
    file = machine().file
    file.write_text(damage(file.read_text()))
    trust.forget()
    with pytest.warns(RuntimeWarning, match="are not used: .*Checking again"):
        assert call().impl == "triton"
    assert len(checks) == 2
    trust.forget()
    assert call().impl == "triton" and len(checks) == 2


def test_a_file_about_another_machine_is_not_believed(checks):
    call()
    other = machine(sources="c" * 64)
    machine().file.rename(other.file)
    with pytest.warns(RuntimeWarning, match="is about another GPU or other versions"):
        assert remembered.read_outcomes(other) == {}


def test_what_is_wrong_is_said_once_and_blocked_is_used(checks, monkeypatch):
    monkeypatch.setattr(trust, "checked", lambda shape, device: BAD)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        choices = [call(), call(), call()]
    (message,) = (str(each.message) for each in said)
    assert "the gradient of wa is off by 0.5" in message and "`dape doctor --gpu` writes a report" in message
    assert {choice.impl for choice in choices} == {"blocked"} and BAD.words in choices[2].reason
    with pytest.raises(ValueError, match=r"impl='triton' is not possible: the gradient of wa is off by 0\.5; use"):
        call(impl="triton")
    trust.forget()
    monkeypatch.setattr(trust, "checked", lambda *_: pytest.fail("checked again"))
    with pytest.warns(RuntimeWarning, match="off by 0.5"):  # the next process says it, too
        assert call().impl == "blocked"


def test_what_raised_is_tried_again_by_the_next_process(checks, monkeypatch):
    right = trust.checked
    monkeypatch.setattr(trust, "checked", lambda shape, device: OSError("no C compiler"))
    with pytest.warns(
        RuntimeWarning, match=r"could not be compiled or launched for float32, .*\(OSError: no C compiler"
    ):
        assert call().impl == "blocked"
    assert not machine().file.exists()
    trust.forget()
    monkeypatch.setattr(trust, "checked", right)
    assert call().impl == "triton"


def test_without_a_cache_the_process_remembers(checks, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file in the way")
    choices = [call(), call()]
    assert len(checks) == 1 and "for this process only" in choices[1].reason and choices[1].impl == "triton"


def test_threads_check_once(checks, monkeypatch):
    right = trust.checked

    def slow(shape, device):
        time.sleep(0.2)
        return right(shape, device)

    monkeypatch.setattr(trust, "checked", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(call().impl)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["triton"] * 4 and len(checks) == 1


# Where no check can be made ------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_while_tracing_only_what_is_known_counts(checks):
    @torch.compile(backend="eager", dynamic=True)
    def traced(q, pe):
        return dape.attention(q, q, q, pe, explain=True)

    pe, q = dape.build("dape-kerple", num_heads=2, head_dim=4, train_length=8), torch.randn(1, 2, 5, 4)
    with pytest.warns(
        RuntimeWarning, match="no check is made while torch.compile traces. Make such a call once before"
    ):
        assert traced(q, pe)[1].impl == "blocked"
    assert checks == []
    dape.attention(q, q, q, pe)
    torch.compiler.reset()
    assert traced(q, pe)[1].impl == "triton" and len(checks) == 1


def test_while_a_graph_is_captured_only_what_is_known_counts(checks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    shape = trust.ShapeClass(
        **{"dtype": "float32", "heads": 2, "group": 1, "width": 4, "values": 4, "hidden": 0},
        **{"tables": True, "causal": True, "static": True, "padding": False},
    )
    with pytest.warns(RuntimeWarning, match="while a CUDA graph is captured"):
        assert not trust.verdict(shape, torch.device("cuda", 0)).ok
    monkeypatch.undo()
    assert checks == []


def test_asking_without_checking_says_nothing(checks):
    with trust.only_remembered():
        choice = call()
    assert choice.impl == "blocked" and "have not been checked on this GPU" in choice.reason and checks == []
    assert call().impl == "triton"


# The switch ----------------------------------------------------------------------------------------------------------


def test_trust_checks_nothing(checks, monkeypatch):
    monkeypatch.setenv("DAPE_KERNELS", "trust")
    choice = call()
    assert choice.impl == "triton" and "trusted unchecked (DAPE_KERNELS=trust)" in choice.reason and checks == []


@pytest.mark.parametrize("impl", ["fused", "triton"])
def test_off_means_neither(impl, monkeypatch):
    monkeypatch.setenv("DAPE_KERNELS", "off")
    choice = call()
    assert choice.impl == "blocked" and "DAPE_KERNELS=off" in choice.reason
    with pytest.raises(ValueError, match=f"impl='{impl}' is not possible: .*DAPE_KERNELS=off"):
        call(impl=impl)
    monkeypatch.delenv("DAPE_KERNELS")  # read at every call
    assert "DAPE_KERNELS" not in call().reason


def test_off_means_neither_on_a_gpu(checks, monkeypatch):
    monkeypatch.setenv("DAPE_KERNELS", "off")
    choice = call()
    assert choice.impl == "blocked" and "DAPE_KERNELS=off" in choice.reason and checks == []


@pytest.mark.parametrize("given", ["", "on", "OFF", "0"])
def test_other_values_are_refused(given, monkeypatch):
    monkeypatch.setenv("DAPE_KERNELS", given)
    with pytest.raises(ValueError, match=f"DAPE_KERNELS is '{given}', but must be one of off: .*verify: .*trust: "):
        call()
