"""``dape train --dry-run`` for a cluster: memory, time and traffic of a run on several devices, without the devices.

With N processes and P parameters, a device holds these bytes:

state         16 P (weights, gradients, two moments of AdamW, in float32), with ``fsdp`` 16 P / N
copies        temporary whole tensors: with ``ddp`` the buckets of gradients, 4 P; with ``fsdp`` two blocks and the
              tables of the vocabulary, with gradients; in mixed precision also the weights in two bytes
activations   of the sequences that one process reads at a time: see ``dape.training.cost``. Of attention they contain
              queries, keys, values and the result; no matrix of t x t is kept.

In each step a device receives these bytes, times (N - 1) / N:

ddp           8 P: the gradients in float32, reduced and gathered again
fsdp          12 P: the weights twice (forward and backward; with accumulation for every part) and the gradients once;
              in mixed precision 8 P
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dape.errors import check_counts
from dape.machine import in_words
from dape.models.config import DecoderConfig
from dape.results.numbers import count
from dape.training.config import TrainConfig
from dape.training.cost import STATE_BYTES, UTILISATION, activation_bytes, gpu_hours, parameters, training_flops
from dape.training.launch import check_shares

Sharing = Literal["ddp", "fsdp"]
USABLE = 0.9
"""Share of a device's memory for the model. The framework and fragmentation take the rest."""
MOST_PROCESSES = 4096
NETWORK = 25e9
"""Bytes per second that a device receives from other machines: an assumption of 200 Gbit/s for each device."""


@dataclass(frozen=True)
class Device:
    name: str
    memory: float
    """Bytes."""
    peak: float
    """Dense operations per second in bfloat16, from the data sheet."""


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
    """Memory of one device. ``count``: the model's parameters, if known; counting them takes longer than the rest."""
    count, half = count or parameters(model), train.precision != "fp32"
    part = math.ceil(train.batch / train.accumulate / processes)
    share = processes if sharing == "fsdp" else 1
    tables = 2 * model.vocabulary * model.width
    whole = tables + 2 * (count - tables) / model.layers  # two blocks: one computes, the next is being gathered
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
    """Time, memory, traffic and checkpoint size of a run, and a verdict whether it fits; a line each."""
    check_counts(processes=processes)
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
        f"bf16 ({processes * hours:.3g} GPU-hours); an estimate: networks and short sequences make it longer"
        + (", and `precision` fp32 many times longer" if train.precision == "fp32" else ""),
    ]
    for sharing in ("ddp", "fsdp"):
        lines.append(_memory_line(memory_of(model, train, processes, sharing, count), sharing, kind))
    if processes > 1:
        lines.append(_traffic_line(train, processes, count, 3600 * hours / train.steps))
    checkpoint = 12 * count
    lines.append(
        f"checkpoint: {in_words(checkpoint)} in all (weights, two moments), {in_words(checkpoint / processes)} per "
        f"process with fsdp; the weights alone {in_words(4 * count)}"
    )
    return [*lines, _verdict(model, train, processes, kind, count)]


def _traffic_line(train: TrainConfig, processes: int, count: int, computing: float) -> str:
    found = {sharing: traffic_of(train, processes, sharing, count) for sharing in ("ddp", "fsdp")}
    sizes = [f"{in_words(size)} ({size / NETWORK:.2g} s) with {sharing}" for sharing, size in found.items()]
    return (
        f"traffic: per step each device receives {' or '.join(sizes)} at {NETWORK / 1e9:.0f} GB/s, and computes for "
        f"{computing:.2g} s; the two overlap in part"
    )


def _time(hours: float) -> str:
    return count(float(f"{hours:.3g}"), "hour") if hours < 48 else count(float(f"{hours / 24:.3g}"), "day")


def _memory_line(memory: Memory, sharing: Sharing, kind: Device) -> str:
    parts = ("weights", "gradients", "optimizer", "copies", "activations")
    sizes = ", ".join(f"{name} {in_words(getattr(memory, name))}" for name in parts)
    fits = "fits" if memory.total <= USABLE * kind.memory else "does not fit"
    return f"{sharing}: {in_words(memory.total)} on each device of {in_words(kind.memory)}, {fits} ({sizes})"


def _verdict(model: DecoderConfig, train: TrainConfig, processes: int, kind: Device, count: int) -> str:
    """The first change of settings that makes the run fit: on the given number of devices, then on more of them."""
    for number in [processes, *(n for n in _doublings(processes) if train.batch // train.accumulate % n == 0)]:
        for sharing, changed, settings in _changes(model, train, number):
            if memory_of(*changed, number, sharing, count).total <= USABLE * kind.memory:
                settings = settings if number == processes else {"processes": str(number), **settings}
                changes = ", ".join(f"`{name}` {value}".strip() for name, value in settings.items())
                return f"fits with `parallel` {sharing}" + (f" and {changes}" if changes else "")
    return f"does not fit on up to {MOST_PROCESSES} devices with any of these settings: choose a smaller model"


def _doublings(processes: int) -> Iterator[int]:
    while (processes := 2 * processes) <= MOST_PROCESSES:
        yield processes


Changed = tuple[Sharing, tuple[DecoderConfig, TrainConfig], Mapping[str, str]]


def _changes(model: DecoderConfig, train: TrainConfig, processes: int) -> Iterator[Changed]:
    """Ways to save memory, cheapest first: how to share, the changed settings, and the changes by name."""
    settings: Mapping[str, str] = {}
    for step in ("", "precision", "checkpoint_activations", "accumulate"):
        if step == "precision" and train.precision == "fp32":
            train, settings = replace(train, precision="bf16"), {**settings, step: "bf16"}
        elif step == "checkpoint_activations" and not model.checkpoint_activations:
            model, settings = replace(model, checkpoint_activations=True), {**settings, step: ""}
        for parts in _parts(train, processes) if step == "accumulate" else [train.accumulate]:
            changes = {**settings, "accumulate": str(parts)} if step == "accumulate" else settings
            for sharing in ("ddp", "fsdp") if processes > 1 else ("ddp",):
                yield sharing, (model, replace(train, accumulate=parts)), changes


def _parts(train: TrainConfig, processes: int) -> list[int]:
    """Greater values of ``accumulate`` that divide the batch."""
    return [n for n in range(train.accumulate + 1, train.batch + 1) if train.batch % (n * processes) == 0]
