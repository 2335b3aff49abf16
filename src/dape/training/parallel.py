"""One run in several processes: each computes its share of every batch, and gradients and losses are summed.

A step computes the same for any number of processes: all draw the same batch from (seed, step) and take their share of
it. `ddp` keeps the whole model in every process. `fsdp` (FSDP2) keeps a share of every block, which is gathered while
it is used. Encodings stay whole even then, and their gradients are summed: they take kilobytes, and some parameters are
scalars, which cannot be divided.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore, GradBucket, HashStore, PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dape.errors import UsageError
from dape.positional.base import encodings_in
from dape.training.config import TrainConfig
from dape.training.launch import LOST, PATIENCE, STORE, Mode, check_shares, patience, restart

T = TypeVar("T")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Group:
    """The processes of a run, and the rank of this one. A single process does not use torch.distributed."""

    mode: Mode = "single"
    rank: int = 0
    world: int = 1
    saving: Any = None
    """Another torch group of the same processes, for checkpoints that are written while training goes on: two threads
    must not use collectives of one group."""

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def is_first(self) -> bool:
        """The first process prints, logs, and writes whatever is not sharded."""
        return self.rank == 0

    # Collectives -----------------------------------------------------------------------------------------------------

    def sums(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        if self.alone:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._cpu)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.sums(float(flag))[0] > 0

    def gather(self, text: str, *, saving: bool = False) -> list[str]:
        """The texts of all processes, by rank. They are sent as bytes: unpickling could run code."""
        if self.alone:
            return [text]
        group = self.saving if saving else self._cpu
        own = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=group)
        longest = int(max(size.item() for size in sizes))
        padded = nn.functional.pad(own, (0, longest - len(own)))
        found = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(found, padded, group=group)
        pairs = zip(found, sizes, strict=True)
        return [bytes(each[: int(size.item())].tolist()).decode().strip("\0") for each, size in pairs]

    @property
    def _cpu(self) -> Any:
        """The torch group for a few numbers or a text, which stay on the CPU: the default one, unless it is NCCL's."""
        return None if self.alone or dist.get_backend() == "gloo" else _cpu_group()

    def from_first(self, work: Callable[[], str]) -> str:
        """Call ``work`` in the first process, and return its result in all."""
        return self.gather(self.together(work if self.is_first else str))[0]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Fill the tensor in every process with that of process ``source``."""
        dist.broadcast(tensor, source)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes."""
        if not self.alone:
            dist.all_reduce(tensor)

    def together(self, work: Callable[[], T], caught: type[Exception] = Exception) -> T:
        """Call ``work`` in every process. If it fails in any of them, all stop, and the first one reports why.

        Work that uses collectives must fail in all processes or in none; ``caught`` are the errors that do.
        """
        if self.alone:
            return work()
        error, found = None, None
        try:
            found = work()
        except caught as failed:
            error = failed
        text = "" if error is None else f"{'usage' if isinstance(error, UsageError) else 'other'} {error}"
        self._stop_all(self.gather(text), error)
        return found  # pyright: ignore[reportReturnType]

    def _stop_all(self, errors: Sequence[str], own: Exception | None) -> None:
        """Raise the first of the processes' ``errors``; "" means none. ``own`` is the exception of this process."""
        failed = [(rank, text) for rank, text in enumerate(errors) if text]
        if not failed:
            return
        rank, (kind, _, words) = failed[0][0], failed[0][1].partition(" ")
        if not self.is_first:
            raise SystemExit(2 if kind == "usage" else 1)
        if own is not None:
            raise own
        where = "" if len(failed) == self.world else f"process {rank} of {self.world}: "
        raise (UsageError if kind == "usage" else RuntimeError)(f"{where}{words}") from own

    def check_same(self, **settings: Any) -> None:
        """Raise UsageError if the processes were given different settings."""
        own = json.dumps(settings, sort_keys=True, default=str)
        given = self.gather(own if len(own) < 1 << 16 else hashlib.sha256(own.encode()).hexdigest())
        other = next((rank for rank, text in enumerate(given) if text != given[0]), None)
        if other is None:
            return
        if not self.is_first:
            raise SystemExit(2)
        raise UsageError(
            f"process {other} was given other settings than process 0: {_difference(given[0], given[other])}. "
            "All processes of a run need the same text and the same settings"
        )

    # Sharing the work ------------------------------------------------------------------------------------------------

    def share(self, rows: Tensor) -> Tensor:
        """This process's share of the rows, as many as every other's."""
        return rows if self.alone else rows.chunk(self.world)[self.rank]

    def check(self, config: TrainConfig) -> None:
        check_shares(config.batch, config.accumulate, self.world)
        if self.mode == "fsdp" and config.precision == "fp16":
            raise UsageError("`precision` fp16 and its loss scaler do not work with `parallel` fsdp; use bf16")

    def barrier(self) -> None:
        if not self.alone:
            self.sums(0.0)


def _difference(one: str, other: str) -> str:
    """The first three settings that differ between two JSON texts."""
    try:
        a, b = json.loads(one), json.loads(other)
    except ValueError:
        return "their checksums differ"
    flat = [_flat(a), _flat(b)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if flat[0].get(name) != flat[1].get(name)]
    return "; ".join(f"{name} {flat[1].get(name)} instead of {flat[0].get(name)}" for name in names[:3])


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as {"model.width": 64, ...}."""
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {name: item for key, inner in value.items() for name, item in _flat(inner, f"{prefix}{key}.").items()}


ALONE = Group()
_GROUPS: dict[str, Any] = {}
_MEETINGS = itertools.count()
_KEPT: list[Any] = []
"""References to torch groups, kept after a run to avoid a deadlock. Dropping the last one waits for gloo's threads to
end while holding Python's GIL, and such a thread may need the GIL to free its last tensors (seen under load)."""


def _cpu_group() -> Any:
    if "cpu" not in _GROUPS:
        _GROUPS["cpu"] = dist.new_group(backend="gloo")
    return _GROUPS["cpu"]


@contextlib.contextmanager
def joined(mode: Mode | None, device: torch.device) -> Iterator[Group]:
    """Join the group of processes that torchrun or :mod:`dape.training.launch` has started; alone, there is none."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if mode == "single" and world > 1:
        raise UsageError(f"`parallel` single, but {world} processes were started; choose ddp or fsdp")
    if world == 1 and mode != "fsdp":
        yield ALONE
        return
    rank, limit = int(os.environ.get("RANK", "0")), timedelta(seconds=patience())
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=_store(rank, world, limit), rank=rank, world_size=world, timeout=limit)
    own = dist.new_group(backend="gloo")
    _KEPT[:] = [dist.group.WORLD, own]
    try:
        yield Group(mode or "ddp", rank, world, own)
    except RuntimeError as error:
        if world == 1 or not re.search("gloo|NCCL|onnection|peer|imed out", str(error)):
            raise
        print(f"dape: process {rank} has lost another one ({str(error).splitlines()[0]})", file=sys.stderr, flush=True)
        raise SystemExit(LOST) from error
    finally:
        _KEPT.extend(_GROUPS.values())
        _GROUPS.clear()
        dist.destroy_process_group()


def _store(rank: int, world: int, limit: timedelta) -> Store:
    """The key-value store through which the processes find each other."""
    attempt, meeting = restart(), next(_MEETINGS)  # one process may train several models, one after the other
    if path := os.environ.get(STORE):
        return PrefixStore(f"{attempt}-{meeting}", FileStore(path, world))
    if "MASTER_ADDR" not in os.environ:  # `parallel` fsdp in one process
        return HashStore()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        attempt = 0  # the first process serves a new store at each attempt; hosts may differ in their restarts
    # Torchrun's own store outlives an attempt: without the prefix, gloo would connect to processes that have died.
    where = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
    try:
        if rank > 0:
            _wait_for_answer(where, limit.total_seconds())
        store, _, _ = next(rendezvous("env://", rank, world, timeout=limit))
    except (dist.DistNetworkError, dist.DistStoreError, OSError, ValueError) as error:
        raise UsageError(
            f"process {rank} of {world} does not find the others at {where} ($MASTER_ADDR:$MASTER_PORT) within "
            f"{limit.total_seconds():g} s (${PATIENCE}): {str(error).splitlines()[0]}"
        ) from error
    store.set_timeout(limit)
    return PrefixStore(f"{attempt}-{meeting}", store)


def _wait_for_answer(where: str, limit: float) -> None:
    """Wait for the first process, which may start last. Torch would wait too, but print pages of C++ traces."""
    host, _, port = where.rpartition(":")
    deadline = time.monotonic() + limit
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=limit).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# The model of several processes ------------------------------------------------------------------------------------


class _Replicated(DistributedDataParallel):
    """DDP that also passes on the attributes of the model that it wraps, which tasks use."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


@dataclass
class Spread:
    """A model spread over a group."""

    model: nn.Module
    """Has the parameters."""
    group: Group = ALONE
    computing: nn.Module = field(init=False)
    """What tasks call: ``model``, wrapped for `ddp`."""
    _whole: list[nn.Parameter] = field(init=False, default_factory=list)
    """Parameters of a sharded model that stay whole; FSDP does not sum their gradients."""

    def __post_init__(self) -> None:
        self.computing = self.model

    @contextlib.contextmanager
    def exchanging(self, *, last: bool) -> Iterator[None]:
        """Exchange gradients once per batch, in the backward pass of its ``last`` part."""
        if isinstance(self.computing, FSDPModule):
            self.computing.set_requires_gradient_sync(last)
        skip = isinstance(self.computing, DistributedDataParallel) and not last
        with self.computing.no_sync() if skip else contextlib.nullcontext():  # pyright: ignore
            yield

    def sum_whole_gradients(self) -> None:
        """Sum over the processes the gradients that FSDP does not."""
        found = [p.grad for p in self._whole if p.grad is not None]
        if not found or self.group.alone:
            return
        flat = torch.cat([gradient.flatten() for gradient in found])
        dist.all_reduce(flat)
        for gradient, summed in zip(found, flat.split([g.numel() for g in found]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def clip(self, learned: Sequence[nn.Parameter], most: float) -> float:
        """Scale the gradients so that their joint norm is at most ``most``; return the norm before."""
        if not isinstance(self.computing, FSDPModule):
            return nn.utils.clip_grad_norm_(learned, most).item()
        kinds = [
            [p for p in learned if isinstance(p, DTensor) is wanted and p.grad is not None] for wanted in (False, True)
        ]
        norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds if kind]
        total = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, most, total)
        return total.item()


def spread(model: nn.Module, group: Group, config: TrainConfig) -> Spread:
    """Spread a model over a group. Every process must have built it with the same weights."""
    found = Spread(model, group)
    if group.mode == "fsdp":
        found._whole = _shard(model, group, config)
    elif group.mode == "ddp" and not group.alone:
        wrapped = _Replicated(model)
        wrapped.register_comm_hook(None, _sum_bucket)
        found.computing = wrapped
    return found


def _sum_bucket(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients, where DDP would average: losses are divided by the count of the whole batch already."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _shard(model: nn.Module, group: Group, config: TrainConfig) -> list[nn.Parameter]:
    """Apply FSDP2 with a unit for every block and one for the rest; return the parameters that stay whole."""
    from torch.distributed.device_mesh import init_device_mesh

    whole = [p for pe in encodings_in(model) for p in pe.parameters()]
    device = next(model.parameters()).device.type
    options: dict[str, Any] = {"mesh": init_device_mesh(device, (group.world,)), "ignored_params": set(whole)}
    for block in getattr(model, "blocks", []):
        if dtype := HALF.get(config.precision):
            # Matrices are gathered in half precision; norms and the residual stream stay in float32, as under autocast.
            half = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
            for part in block.children():
                if not isinstance(part, nn.LayerNorm):
                    fully_shard(part, mp_policy=half, **options)
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sums, as in _sum_bucket
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    return list(dict.fromkeys(whole))


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This process's part of a tensor that may be sharded, and the number of its first row."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), offset[0]
