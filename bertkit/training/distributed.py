"""One process or many behind the same interface: sums over ranks, and which one writes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertkit.errors import UserError

BUCKET = 1 << 23  # numbers added up in one message: 32 MB
EXCHANGED = {"fp32": torch.float32, "bf16": torch.bfloat16}
PATIENCE = 600.0  # seconds in which all ranks must come to the meeting
LONGEST_WORK = timedelta(days=7)  # of one rank while the others wait; torch gives up after half an hour


@dataclass(frozen=True)
class World:
    """This process's place among its peers in distributed training."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    patient: Any = field(default=None, repr=False, compare=False)  # the group in which ranks wait for each other

    @property
    def is_main(self) -> bool:
        """Whether this process of a distributed training writes files and messages."""
        return self.rank == 0

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Each value added up over all ranks; the keys are the same everywhere."""
        if self.size == 1:
            return values
        keys = sorted(values)
        tensor = torch.tensor([values[k] for k in keys], dtype=torch.float64, device=self.device)
        with _connected():
            dist.all_reduce(tensor)
        return dict(zip(keys, tensor.tolist()))

    def clip(self, parameters: list[nn.Parameter], longest: float) -> float:
        """Clip the norm of the gradient over all ranks to `longest` (0: no clipping). Returns the norm before."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not any(is_sharded(p) for p in parameters) and not any(g.is_sparse for g in gradients):
            return float(nn.utils.clip_grad_norm_(parameters, longest or float("inf"), foreach=True))
        replicated = [g.coalesce().values() if g.is_sparse else g for g in gradients if not is_sharded(g)]
        shared = sum(float(g.square().sum()) for g in replicated)
        local = sum(float(g.to_local().square().sum()) for g in gradients if is_sharded(g))  # type: ignore[attr-defined, misc]
        length = float((shared + self.sums({"local": local})["local"]) ** 0.5)
        if longest and length > longest:
            for gradient in gradients:
                gradient.mul_(longest / (length + 1e-6))
        return length

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number], device=self.device)
        with _connected():
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def shard(self, model: nn.Module) -> None:
        """Shard every layer's weights over the ranks (FSDP2); embeddings and heads stay complete on each."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        from bertkit.model.encoder import Encoder, Layer

        if self.size == 1:
            raise UserError("--shard spreads the weights over several processes: start it with torchrun.")
        for module in model.modules():
            if isinstance(module, Encoder) and module.config.unique_layers < module.config.depth:
                raise UserError("--shard does not work with layers that are visited more than once (ALBERT).")
        mesh = init_device_mesh(self.device.partition(":")[0], (self.size,))
        for module in list(model.modules()):
            if isinstance(module, Layer):
                # Without this, a layer counts as the root and stays unsharded after an evaluation.
                fully_shard(module, mesh=mesh, reshard_after_forward=True)

    def anywhere(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.sums({"flag": float(flag)})["flag"] > 0

    def wait(self) -> None:
        """Wait until every rank has reached this call, even if one makes a teacher's cache for hours before."""
        if self.size > 1:
            with _connected():
                dist.barrier(group=self.patient)

    def check_same(self, facts: dict[str, Any]) -> None:
        """Stop if one of these facts is not the same on every rank: they would train on different things."""
        if self.size == 1:
            return
        everyone: list[dict[str, Any]] = [{}] * self.size
        with _connected():
            dist.all_gather_object(everyone, facts)
        for rank, others in enumerate(everyone):
            for name, value in everyone[0].items():
                if others[name] != value:
                    raise UserError(
                        f"Process {rank} has another {name} than process 0: {others[name]!r:.60} instead of "
                        f"{value!r:.60}. All machines need the same settings and data, and a run folder on a disk that "
                        "they share."
                    )


@contextmanager
def _connected() -> Iterator[None]:
    """Say in words that another rank of distributed training is gone."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"The connection to another process was lost ({str(error).splitlines()[0]}). Its messages say why it "
            "ended. torchrun restarts all processes if --max-restarts allows it; otherwise start the same command "
            "again with --resume."
        ) from error


class Exchange:
    """Adds up the gradients of a training step over the ranks, in place. Losses were divided by global counts already.

    Gradients travel in buckets, last layers first, as the backward pass finishes them: after `overlap`, the next
    backward pass sends each bucket as soon as it is complete, while it computes the others. Every rank sends the same
    buckets in the same order, whichever of them has gradients: so sums are the same in every run, to the last bit.
    """

    def __init__(self, parameters: Sequence[Tensor], world: World, precision: str = "fp32") -> None:
        self.size, self.kind = world.size, EXCHANGED[precision]
        self.sharded = [parameter for parameter in parameters if is_sharded(parameter)]
        # With sharded weights, FSDP communicates during the backward pass; on GPUs, overlapping was never tested.
        self.overlaps = world.size > 1 and not self.sharded and world.device == "cpu"
        self.buckets: list[list[Tensor]] = []
        size = BUCKET
        for parameter in reversed([p for p in parameters if not is_sharded(p)]):
            # The word embeddings come last: what is complete before them must not wait in their bucket.
            if size >= BUCKET or parameter.numel() >= BUCKET // 2:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.numel()
        self._bucket_of = {id(p): n for n, bucket in enumerate(self.buckets) for p in bucket}
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._missing: list[int] = []
        self._hooks: list[Any] = []

    def overlap(self) -> None:
        """Let ranks exchange gradients during the backward pass; call before a step's last backward pass."""
        if self.overlaps:
            self._missing = [len(bucket) for bucket in self.buckets]
            parameters = (parameter for bucket in self.buckets for parameter in bucket)
            self._hooks = [p.register_post_accumulate_grad_hook(self._complete) for p in parameters]

    def _complete(self, parameter: Tensor) -> None:
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while len(self._sent) < len(self.buckets) and not self._missing[len(self._sent)]:
            self._send()

    def _send(self) -> None:
        """Start adding up the next bucket of gradients over the ranks."""
        gradients = []
        for parameter in self.buckets[len(self._sent)]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad.reshape(-1))
        flat = torch.cat(gradients).to(self.kind)
        with _connected():
            self._sent.append((dist.all_reduce(flat, async_op=True), flat))

    def finish(self) -> None:
        """Wait until every gradient is the sum over all ranks."""
        if self.size == 1:
            return
        for hook in self._hooks:
            hook.remove()
        for parameter in self.sharded:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(self.size)  # FSDP has averaged it over the ranks; we want the sum
        while len(self._sent) < len(self.buckets):
            self._send()
        for (work, flat), bucket in zip(self._sent, self.buckets):
            with _connected():
                work.wait()
            for parameter, total in zip(bucket, flat.split([p.numel() for p in bucket])):
                assert parameter.grad is not None
                parameter.grad.copy_(total.view_as(parameter))
        self._sent, self._hooks = [], []


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds only its part of this tensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The complete tensor from all ranks' parts; every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def like(saved: Tensor, parameter: Tensor) -> Tensor:
    """A complete tensor, sharded over the ranks as `parameter` is."""
    if not is_sharded(parameter):
        return saved
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]


def join(device: str) -> World:
    """Join distributed training: the process group that torchrun started, or a world of one process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(device=device)
    rank = int(os.environ["RANK"])
    if device.startswith("cuda"):
        device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _end_with_torchrun()
        store, _, _ = next(dist.rendezvous("env://", rank, size))
        store = dist.PrefixStore(_meeting(store, rank, size), store)
        backend = "nccl" if device.startswith("cuda") else "gloo"
        with _connected():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return World(rank, size, device, dist.new_group(timeout=LONGEST_WORK, backend="gloo"))


def _meeting(store: dist.Store, rank: int, size: int) -> str:
    """The name of this meeting of all ranks, which no earlier one had.

    After a restart torchrun hands out the same store, in which gloo would find the addresses of processes that are gone
    and fail to connect. So every rank announces itself under a new name, rank 0 invites each name to its own meeting
    until all have come, and a rank that was invited by a rank 0 that has died since is simply invited again.
    """
    name, until = uuid.uuid4().hex, time.monotonic() + PATIENCE
    store.set(f"here/{rank}", name)
    invited: dict[int, str] = {}
    absent, pause = list(range(1, size)), 0.01
    while time.monotonic() < until:
        if rank:
            if store.check([f"invited/{name}"]):
                meeting = store.get(f"invited/{name}").decode()
                store.set(f"came/{meeting}/{rank}", name)
                if store.check([f"begin/{meeting}"]):
                    return meeting
        else:
            for other in absent:
                if store.check([f"here/{other}"]) and invited.get(other) != (
                    guest := store.get(f"here/{other}").decode()
                ):
                    store.set(f"invited/{guest}", name)
                    invited[other] = guest
            absent = [other for other in absent if not store.check([f"came/{name}/{other}"])]
            if not absent:
                store.set(f"begin/{name}", name)
                return name
        time.sleep(pause)
        pause = min(0.2, pause * 1.2)
    raise UserError(
        f"Not all {size} processes could meet within {PATIENCE:.0f} s: check that --nnodes is the number of machines "
        "on which torchrun was started, and that they reach each other."
    )


def _end_with_torchrun() -> None:
    """If torchrun is killed, end too: otherwise this process would train on beside the one that takes its place."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave() -> None:
    """Leave distributed training: take the process group down, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
