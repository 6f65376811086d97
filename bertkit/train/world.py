"""One process or many, seen alike: sums over ranks, and who speaks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 1 << 23  # numbers added up in one message: 32 MB


@dataclass(frozen=True)
class World:
    """This process's place among its peers."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def speaks(self) -> bool:
        """Whether this process writes files and tells the user."""
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
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        return self.sums({"flag": float(flag)})["flag"] > 0

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()


def join(device: str) -> World:
    """The world torchrun made, or a world of one."""
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
    """Take the process group down, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
