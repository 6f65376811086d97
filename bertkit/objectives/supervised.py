"""Any task with answers, as the loop sees it."""

from __future__ import annotations

from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.objective import Objective
from bertkit.tasks.task import Task


class Supervised(Objective):
    """A model and the task it learns."""

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The task's loss, summed."""
        return {"loss": self.task.loss(self.model, batch)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What the task counts."""
        return {"loss": self.task.count(batch)}
