"""One process or many behind the same interface: sums over ranks, and which one writes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertkit.errors import UserError

BUCKET = 1 << 23  # numbers added up in one message: 32 MB


@dataclass(frozen=True)
class World:
    """This process's place among its peers in distributed training."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Each value added up over all ranks; the keys are the same everywhere."""
        if self.size == 1:
            return values
        keys = sorted(values)
        tensor = torch.tensor([values[k] for k in keys], dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return dict(zip(keys, tensor.tolist()))

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add up gradients over ranks, in place, in buckets. Losses were divided by global counts already."""
        if self.size == 1:
            return
        waiting: list[Tensor] = []
        size = 0
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if is_sharded(parameter):
                parameter.grad.mul_(self.size)  # FSDP has averaged it over the ranks; we want the sum
                continue
            waiting.append(parameter.grad)
            size += parameter.numel()
            if size >= BUCKET:
                self._reduce(waiting)
                waiting, size = [], 0
        if waiting:
            self._reduce(waiting)

    @staticmethod
    def _reduce(gradients: list[Tensor]) -> None:
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def clip(self, parameters: list[nn.Parameter], longest: float) -> float:
        """Clip the norm of the gradient to `longest` (0: no clipping). Returns the norm before clipping."""
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
        """Wait until every rank has reached this call."""
        if self.size > 1:
            dist.barrier()


def is_sharded(tensor: Tensor) -> bool:
    """In distributed training: whether each rank holds only its part of this tensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """In distributed training: the complete tensor; every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def like(saved: Tensor, parameter: Tensor) -> Tensor:
    """In distributed training: a complete tensor, sharded as `parameter` is."""
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
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return World(rank, size, device)


def leave() -> None:
    """Leave distributed training: take the process group down, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
