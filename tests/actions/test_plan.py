"""What a cluster would need: numbers worked out by hand, and the memory of a real run."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from dape.actions.plan import memory_of, plan_lines, traffic_of
from dape.actions.settings import settings
from dape.errors import UsageError
from dape.training.cost import parameters

BILLIONS = settings("6.7b", {"encoding": "rope", "precision": "bf16"})


def with_gpt2_words():
    model, train = BILLIONS
    return replace(model, vocabulary=50304), train


def test_by_hand():
    """6.856e9 parameters: 16 bytes each over 64 devices, and 4 sequences of 512 on each."""
    model, train = with_gpt2_words()
    assert parameters(model) / 1e9 == pytest.approx(6.856, rel=1e-3)
    memory = memory_of(model, train, 64, "fsdp")
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(16 * 6.856e9 / 64, rel=1e-3)
    # A block's input for each of 32 layers in float32, one block's 52 bytes a channel, 16 for each word of the logits.
    assert memory.activations == 4 * 512 * (32 * 4 * 4096 + 4096 * 52 + 16 * 50304)
    # Two bytes, weights and gradients: two blocks of 12 m^2 and the tables of the vocabulary.
    assert memory.copies == pytest.approx(2 * 2 * (2 * 12 * 4096**2 + 2 * 50304 * 4096), rel=1e-3)


def test_whole_copies_do_not_fit_and_shares_do():
    lines = plan_lines(*with_gpt2_words(), processes=64, device="a800")
    ddp, fsdp = (next(line for line in lines if line.startswith(f"{kind}:")) for kind in ("ddp", "fsdp"))
    assert "does not fit" in ddp and ", fits" in fsdp
    assert lines[-1] == "fits with `parallel` fsdp"


def test_what_to_change_makes_it_fit():
    model, train = with_gpt2_words()
    assert plan_lines(model, train, processes=1, device="a800")[-1].startswith(
        "fits with `parallel` fsdp and `processes` 2"
    )
    model, train = settings("125m", {"batch": 65536, "encoding": "rope"})
    assert "`accumulate`" in plan_lines(model, train, processes=8, device="a100-40g")[-1]


def test_nothing_helps():
    model, train = settings("6.7b", {"layers": 200, "width": 262144, "heads": 64, "encoding": "rope"})
    assert "does not fit on up to 4096 devices with any" in plan_lines(model, train, processes=8, device="a800")[-1]


def test_twice_the_devices_take_half_the_time():
    model, train = with_gpt2_words()
    one, two = (plan_lines(model, train, processes=n, device="a800")[2] for n in (64, 128))
    assert float(one.split()[1]) == pytest.approx(2 * float(two.split()[1]), rel=0.01)


def test_traffic_by_hand():
    """Two devices receive half of what is exchanged: 8 bytes a parameter; with shares, weights twice in 2 bytes."""
    model, train = with_gpt2_words()
    assert traffic_of(train, 2, "ddp", 10**9) == 4e9
    assert traffic_of(train, 2, "fsdp", 10**9) == (2 * 2 + 4) * 1e9 / 2
    assert traffic_of(replace(train, precision="fp32", accumulate=4), 64, "fsdp", 64) == (4 * 2 * 4 + 4) * 63
    (line,) = (line for line in plan_lines(model, train, processes=64, device="a800") if line.startswith("traffic:"))
    assert "54 GB (2.2 s) with ddp or 54 GB (2.2 s) with fsdp at 25 GB/s" in line


def test_a_batch_that_cannot_be_divided():
    with pytest.raises(UsageError, match="`batch` 256 cannot be divided among 96 processes"):
        plan_lines(*BILLIONS, processes=96, device="a800")


def test_no_processes():
    with pytest.raises(UsageError, match="`processes` must be at least 1"):
        plan_lines(*BILLIONS, processes=0, device="a800")


CHILD = """
import json, mmap, sys, threading, time
import dape
most = 0  # without files that are mapped, such as torch itself: a busy machine takes their pages back at any time
def watch():
    global most
    while True:
        with open("/proc/self/statm") as file:
            resident, shared = map(int, file.read().split()[1:3])
        most = max(most, (resident - shared) * mmap.PAGESIZE)
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
out, given = sys.argv[1], json.loads(sys.argv[2])
text = out + "/words.txt"
open(text, "w").write("these are a few words, again and again. " * 20000)
dape.train(text, out=out + "/first", steps=1, batch=1, layers=1, width=32, heads=4, device="cpu", threads=1)
before, most = most, 0
dape.train(text, out=out + "/second", device="cpu", threads=1, **given)
print(most - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"encoding": "rope", "layers": 6, "width": 768, "heads": 12, "train_length": 128, "batch": 4},
        {"encoding": "dape-kerple", "layers": 8, "width": 512, "heads": 8, "train_length": 256, "batch": 16},
        {"encoding": "rope", "layers": 12, "width": 384, "heads": 6, "train_length": 512, "batch": 16},
    ],
    ids=["weights", "both", "activations"],
)
def test_the_memory_of_a_real_run(given, tmp_path):
    """Measured as the growth of a process at its worst, in which a small model has been trained before."""
    given = {**given, "steps": 2}
    model, train = settings("tiny", given)
    asked = [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(given)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=500, check=True)
    measured = float(done.stdout.split()[-1])
    planned = memory_of(model, train, 1, "ddp").total
    print(f"planned {planned / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB, {planned / measured - 1:+.1%}")
    assert planned == pytest.approx(measured, rel=0.15)
