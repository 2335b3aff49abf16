"""One run in several processes: each takes its share of every batch, gradients and losses are those of the whole.

What a step computes does not depend on the number of processes: the batch is drawn from (seed, step) by all of them
and then divided, losses and gradients are sums over the shares. `ddp` keeps the whole model in every process, `fsdp`
(FSDP2) a share of every block, gathered while it is used. Encodings are kilobytes, some of them scalars, which cannot
be divided: they stay whole, and their gradients are summed.
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
    """The processes of a run, and this one's place among them. Alone, nothing is asked of torch.distributed."""

    mode: Mode = "single"
    rank: int = 0
    world: int = 1
    saving: Any = None
    """A group of its own for checkpoints that are written while training goes on: collectives of two threads must not
    meet in one group."""

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def speaks(self) -> bool:
        """One process prints, logs and writes what is not divided."""
        return self.rank == 0

    # Collectives -----------------------------------------------------------------------------------------------------

    def sums(self, *values: float) -> list[float]:
        """Over all processes."""
        if self.alone:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._cpu)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        return self.sums(float(flag))[0] > 0

    def texts(self, text: str, *, saving: bool = False) -> list[str]:
        """What every process says, in order. Bytes, not pickled objects: nothing that arrives can run."""
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
        """Sums of a few numbers go by the CPU, whatever the model is on; the group of checkpoints is idle between them
        only on GPUs, where the default group cannot."""
        return None if self.alone or dist.get_backend() == "gloo" else _cpu_group()

    def first(self, work: Callable[[], str]) -> str:
        """What the first process finds, for all."""
        return self.texts(self.together(work if self.speaks else str))[0]

    def send(self, tensor: Tensor, source: int) -> None:
        """Fill the tensor in every process with that of process ``source``."""
        dist.broadcast(tensor, source)

    def total(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes."""
        if not self.alone:
            dist.all_reduce(tensor)

    def together(self, work: Callable[[], T], caught: type[Exception] = Exception) -> T:
        """``work()`` in every process; if it fails in any of them, all stop, and one says why. Work that exchanges
        something on its way must fail in all or none: ``caught`` is what does."""
        if self.alone:
            return work()
        error, found = None, None
        try:
            found = work()
        except caught as failed:
            error = failed
        told = self.texts("" if error is None else f"{'usage' if isinstance(error, UsageError) else 'other'} {error}")
        self._stop_all(told, error)
        return found  # pyright: ignore[reportReturnType]

    def _stop_all(self, told: Sequence[str], own: Exception | None) -> None:
        failed = [(rank, text) for rank, text in enumerate(told) if text]
        if not failed:
            return
        rank, (kind, _, words) = failed[0][0], failed[0][1].partition(" ")
        if not self.speaks:
            raise SystemExit(2 if kind == "usage" else 1)
        if own is not None:
            raise own
        where = "" if len(failed) == self.world else f"process {rank} of {self.world}: "
        raise (UsageError if kind == "usage" else RuntimeError)(f"{where}{words}") from own

    def check_same(self, **settings: Any) -> None:
        """Refuse to begin when the processes were not given the same."""
        own = json.dumps(settings, sort_keys=True, default=str)
        told = self.texts(own) if len(own) < 1 << 16 else self.texts(hashlib.sha256(own.encode()).hexdigest())
        other = next((rank for rank, text in enumerate(told) if text != told[0]), None)
        if other is None:
            return
        if not self.speaks:
            raise SystemExit(2)
        raise UsageError(f"process {other} was given other settings than process 0: {_difference(told[0], told[other])}"
                         ". All processes of a run need the same text and the same settings")  # fmt: skip

    # Sharing the work ------------------------------------------------------------------------------------------------

    def share(self, rows: Tensor) -> Tensor:
        """This process's rows, of as many for everyone."""
        return rows if self.alone else rows.chunk(self.world)[self.rank]

    def check(self, config: TrainConfig) -> None:
        check_shares(config.batch, config.accumulate, self.world)
        if self.mode == "fsdp" and config.precision == "fp16":
            raise UsageError("`precision` fp16 and its loss scaler do not work with `parallel` fsdp; use bf16")

    def barrier(self) -> None:
        if not self.alone:
            self.sums(0.0)


def _difference(one: str, other: str) -> str:
    try:
        a, b = json.loads(one), json.loads(other)
    except ValueError:
        return "their checksums differ"
    flat = [_flat(a), _flat(b)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if flat[0].get(name) != flat[1].get(name)]
    return "; ".join(f"{name} {flat[1].get(name)} instead of {flat[0].get(name)}" for name in names[:3])


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {name: item for key, inner in value.items() for name, item in _flat(inner, f"{prefix}{key}.").items()}


ALONE = Group()
_GROUPS: dict[str, Any] = {}
_MEETINGS = itertools.count()
_KEPT: list[Any] = []
"""Groups outlive a run. Whoever drops the last reference to one waits for gloo's threads to end, with Python's lock in
hand; one of them may be waiting for that lock, to let go of the last tensors (seen under load: the run never ended)."""


def _cpu_group() -> Any:
    if "cpu" not in _GROUPS:
        _GROUPS["cpu"] = dist.new_group(backend="gloo")
    return _GROUPS["cpu"]


@contextlib.contextmanager
def joined(mode: Mode | None, device: torch.device) -> Iterator[Group]:
    """The processes that torchrun or :mod:`dape.training.launch` have started, or this one alone."""
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
    """Where the processes find each other."""
    attempt, meeting = restart(), next(_MEETINGS)  # one process may train several models, one after the other
    if path := os.environ.get(STORE):
        return PrefixStore(f"{attempt}-{meeting}", FileStore(path, world))
    if "MASTER_ADDR" not in os.environ:  # `parallel` fsdp in one process
        return HashStore()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        attempt = 0  # a store of this attempt alone, and hosts need not have been started again equally often
    # Otherwise torchrun keeps the store of an attempt that died, and gloo would connect to the dead.
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
    """The first process may start last. Torch itself would wait too, with pages of C++ on standard error."""
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
    """Everything that tasks ask of a model is there."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


@dataclass
class Spread:
    """A model spread over a group: ``model`` has the parameters, ``computing`` is what tasks call."""

    model: nn.Module
    group: Group = ALONE
    computing: nn.Module = field(init=False)
    _whole: list[nn.Parameter] = field(init=False, default_factory=list)
    """Parameters of a sharded model that every process has, and whose gradients nobody else sums."""

    def __post_init__(self) -> None:
        self.computing = self.model

    @contextlib.contextmanager
    def exchanging(self, *, last: bool) -> Iterator[None]:
        """Gradients are exchanged once, with the last part of a batch."""
        if isinstance(self.computing, FSDPModule):
            self.computing.set_requires_gradient_sync(last)
        skip = isinstance(self.computing, DistributedDataParallel) and not last
        with self.computing.no_sync() if skip else contextlib.nullcontext():  # pyright: ignore
            yield

    def exchange(self) -> None:
        """Sum the gradients of what stayed whole beside shares."""
        found = [p.grad for p in self._whole if p.grad is not None]
        if not found or self.group.alone:
            return
        flat = torch.cat([gradient.flatten() for gradient in found])
        dist.all_reduce(flat)
        for gradient, summed in zip(found, flat.split([g.numel() for g in found]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def clip(self, learned: Sequence[nn.Parameter], most: float) -> float:
        """Scale gradients down to the norm ``most`` of all of them together; their norm before."""
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
    """The same model, for a group; every process has built it with the same weights."""
    found = Spread(model, group)
    if group.mode == "fsdp":
        found._whole = _shard(model, group, config)
    elif group.mode == "ddp" and not group.alone:
        wrapped = _Replicated(model)
        wrapped.register_comm_hook(None, _sum_bucket)
        found.computing = wrapped
    return found


def _sum_bucket(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Losses are divided by the count of the whole batch: gradients are sums, where torch would average."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _shard(model: nn.Module, group: Group, config: TrainConfig) -> list[nn.Parameter]:
    """FSDP2, a unit for every block and one for the rest. What stayed whole."""
    from torch.distributed.device_mesh import init_device_mesh

    whole = [p for pe in encodings_in(model) for p in pe.parameters()]
    device = next(model.parameters()).device.type
    options: dict[str, Any] = {"mesh": init_device_mesh(device, (group.world,)), "ignored_params": set(whole)}
    for block in getattr(model, "blocks", []):
        if dtype := HALF.get(config.precision):
            # Weights of matrices travel in half precision; norms and the residual stream stay in float32, as under
            # autocast.
            half = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
            for part in block.children():
                if not isinstance(part, nn.LayerNorm):
                    fully_shard(part, mp_policy=half, **options)
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sums, as above
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    return list(dict.fromkeys(whole))


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """What this process holds of a tensor that may be shared, and its first row."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), offset[0]
