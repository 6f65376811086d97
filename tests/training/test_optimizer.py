"""The optimizers are torch's own, without the seconds that torch's compiler adds to the start of a run."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from bertkit.training import optimizer
from bertkit.training.optimizer import make_optimizers, set_rate


class Small(nn.Module):
    """A layer, a table with sparse gradients, and an output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8)])})
        self.table, self.output = nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.encoder["layers"][0](self.table(ids)))


def trained(kind: str) -> list[torch.Tensor]:
    model = Small()
    optimizers = make_optimizers(model, kind=kind, decay=0.1, betas=(0.9, 0.98), eps=1e-6)
    for _ in range(3):
        set_rate(optimizers, 0.01)
        model(torch.arange(5)).square().sum().backward()
        for each in optimizers:
            each.step()
            each.zero_grad(set_to_none=True)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_bit_is_as_with_torchs_own_classes(kind, monkeypatch):
    ours = trained(kind)
    monkeypatch.setattr(optimizer, "eager", lambda optimizer_class: optimizer_class)
    assert all(torch.equal(a, b) for a, b in zip(ours, trained(kind), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours, Small().parameters(), strict=True))


SCRIPT = """
import sys, torch
from bertkit.training.optimizer import make_optimizers
model = torch.nn.Sequential(torch.nn.Embedding(9, 8, sparse=True), torch.nn.Linear(8, 4))
model(torch.arange(5)).square().sum().backward()
for optimizer in make_optimizers(model, decay=0.1, betas=(0.9, 0.98), eps=1e-6):
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("torch._dynamo" in sys.modules)
"""


def test_training_does_not_import_torchs_compiler():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
