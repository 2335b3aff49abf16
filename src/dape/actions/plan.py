"""What a run on several devices would need, worked out without any: what ``dape train --dry-run`` says of a cluster.

N processes, P parameters, bytes per device:

state     16 P (weights, gradients, two moments of AdamW, in float32), with ``fsdp`` 16 P / N
copies    what is whole for a moment: with ``ddp`` the buckets of gradients, 4 P; with ``fsdp`` two blocks and the
          tables of the vocabulary, with gradients; in mixed precision also the weights in two bytes
kept      activations of the sequences that one process reads at a time: see ``dape.training.cost``

Attention keeps queries, keys, values and its result only, which are in those activations: no matrix of t x t.

Bytes that a device receives in a step, times (N - 1) / N:

ddp       8 P: the sum of the gradients in float32, reduced and gathered again
fsdp      the weights twice (forward and backward; with accumulation for every part) and the gradients once: 12 P, in
          mixed precision 8 P
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dape.errors import UsageError
from dape.machine import in_words
from dape.models.config import DecoderConfig
from dape.results.numbers import count
from dape.training.config import TrainConfig
from dape.training.cost import STATE_BYTES, UTILISATION, activation_bytes, gpu_hours, parameters, training_flops
from dape.training.launch import check_shares

Sharing = Literal["ddp", "fsdp"]
USABLE = 0.9
"""Of a device's memory: the rest is the framework's own, and lost between blocks."""
MOST_PROCESSES = 4096
NETWORK = 25e9
"""Bytes per second that a device receives from other machines: 200 Gbit/s for each, a guess."""


@dataclass(frozen=True)
class Device:
    name: str
    memory: float
    """Bytes."""
    peak: float
    """Operations per second in bfloat16, dense, as its maker states them."""


DEVICES = {
    "a800": Device("A800", 80e9, 312e12),
    "a100": Device("A100", 80e9, 312e12),
    "a100-40g": Device("A100", 40e9, 312e12),
    "h100": Device("H100", 80e9, 989e12),
    "h200": Device("H200", 141e9, 989e12),
}


@dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.copies + self.activations


def memory_of(
    model: DecoderConfig, train: TrainConfig, processes: int, sharing: Sharing, count: int | None = None
) -> Memory:
    """``count``: the model's parameters, where they are known: to count them takes longer than the rest."""
    count, half = count or parameters(model), train.precision != "fp32"
    part = math.ceil(train.batch / train.accumulate / processes)
    share = processes if sharing == "fsdp" else 1
    tables = 2 * model.vocabulary * model.width
    whole = tables + 2 * (count - tables) / model.layers  # of blocks one at work, one on its way
    copies = 2.0 * half * count if sharing == "ddp" else (2 if half else 4) * 2 * whole
    buckets = 4 * count if sharing == "ddp" and processes > 1 else 0
    return Memory(
        weights=4 * count / share,
        gradients=4 * count / share,
        optimizer=(STATE_BYTES["step"] - STATE_BYTES["forward_backward"]) * count / share,
        copies=(copies if processes > 1 or sharing == "ddp" else 0.0) + buckets,
        activations=activation_bytes(model, batch=part, half=half),
    )


def traffic_of(train: TrainConfig, processes: int, sharing: Sharing, count: int) -> float:
    """Bytes that each device receives in a step."""
    weights = 2 if train.precision != "fp32" else 4
    whole = 8 * count if sharing == "ddp" else (2 * weights * train.accumulate + 4) * count
    return whole * (processes - 1) / processes


def plan_lines(model: DecoderConfig, train: TrainConfig, *, processes: int, device: str) -> list[str]:
    """What to know before asking a cluster for it."""
    if processes < 1:
        raise UsageError(f"`processes` must be at least 1, got {processes}")
    check_shares(train.batch, train.accumulate, processes)
    kind, count = DEVICES[device], parameters(model)
    tokens = train.steps * train.batch * model.train_length
    operations = train.steps * train.batch * training_flops(model)
    hours = gpu_hours(operations, kind.peak) / processes
    lines = [
        f"{model.encoding}: {model.layers} layers of width {model.width}, {count:,} parameters, vocabulary "
        f"{model.vocabulary:,}",
        f"{train.steps} steps of {train.batch} x {model.train_length} tokens, {tokens:.3g} in all; {operations:.3g} "
        "operations",
        f"time: {_time(hours)} on {processes} x {kind.name} at {UTILISATION:.0%} of {kind.peak / 1e12:.0f} TFLOP/s in "
        f"bf16 ({processes * hours:.3g} GPU-hours); a guess that networks and short sequences make worse"
        + (", and `precision` fp32 many times" if train.precision == "fp32" else ""),
    ]
    for sharing in ("ddp", "fsdp"):
        lines.append(_memory_line(memory_of(model, train, processes, sharing, count), sharing, kind))
    if processes > 1:
        lines.append(_traffic_line(train, processes, count, 3600 * hours / train.steps))
    checkpoint = 12 * count
    lines.append(
        f"checkpoint: {in_words(checkpoint)} in all (weights, two moments), of each process with fsdp "
        f"{in_words(checkpoint / processes)}; the weights alone {in_words(4 * count)}"
    )
    return [*lines, _verdict(model, train, processes, kind, count)]


def _traffic_line(train: TrainConfig, processes: int, count: int, computing: float) -> str:
    found = {sharing: traffic_of(train, processes, sharing, count) for sharing in ("ddp", "fsdp")}
    told = [f"{sharing} {in_words(size)} ({size / NETWORK:.2g} s)" for sharing, size in found.items()]
    return (
        f"traffic: in a step each device receives with {' and with '.join(told)} at {NETWORK / 1e9:.0f} GB/s, and "
        f"computes for {computing:.2g} s; much of it happens at the same time"
    )


def _time(hours: float) -> str:
    return count(float(f"{hours:.3g}"), "hour") if hours < 48 else count(float(f"{hours / 24:.3g}"), "day")


def _memory_line(memory: Memory, sharing: Sharing, kind: Device) -> str:
    parts = ("weights", "gradients", "optimizer", "copies", "activations")
    told = ", ".join(f"{name} {in_words(getattr(memory, name))}" for name in parts)
    fits = "fits" if memory.total <= USABLE * kind.memory else "does not fit"
    return f"{sharing}: {in_words(memory.total)} on each device of {in_words(kind.memory)}, {fits} ({told})"


def _verdict(model: DecoderConfig, train: TrainConfig, processes: int, kind: Device, count: int) -> str:
    """What fits, or the first change of settings that makes it fit; then the number of devices."""
    for number in [processes, *(n for n in _doublings(processes) if train.batch // train.accumulate % n == 0)]:
        for sharing, changed, flags in _changes(model, train, number):
            if memory_of(*changed, number, sharing, count).total <= USABLE * kind.memory:
                told = [*([f"processes {number}"] if number != processes else []), *flags]
                return f"fits with `parallel` {sharing}" + (f" and {', '.join(map(_as_flag, told))}" if told else "")
    return f"does not fit, whatever is changed, on up to {MOST_PROCESSES} devices: choose a smaller model"


def _doublings(processes: int) -> Iterator[int]:
    while (processes := 2 * processes) <= MOST_PROCESSES:
        yield processes


def _as_flag(setting: str) -> str:
    name, _, value = setting.partition(" ")
    return f"`{name}` {value}".strip()


Changed = tuple[Sharing, tuple[DecoderConfig, TrainConfig], Sequence[str]]


def _changes(model: DecoderConfig, train: TrainConfig, processes: int) -> Iterator[Changed]:
    """From what costs nothing to what costs time."""
    settings: Mapping[str, str] = {}
    for step in ("", "precision", "checkpoint_activations", "accumulate"):
        if step == "precision" and train.precision == "fp32":
            train, settings = replace(train, precision="bf16"), {**settings, step: "bf16"}
        elif step == "checkpoint_activations" and not model.checkpoint_activations:
            model, settings = replace(model, checkpoint_activations=True), {**settings, step: ""}
        for parts in _parts(train, processes) if step == "accumulate" else [train.accumulate]:
            told = {**settings, "accumulate": str(parts)} if step == "accumulate" else settings
            for sharing in ("ddp", "fsdp") if processes > 1 else ("ddp",):
                changed = replace(train, accumulate=parts)
                yield sharing, (model, changed), [f"{name} {value}".strip() for name, value in told.items()]


def _parts(train: TrainConfig, processes: int) -> list[int]:
    """How often a batch may be divided, beyond what is asked for."""
    return [n for n in range(train.accumulate + 1, train.batch + 1) if train.batch % (n * processes) == 0]
