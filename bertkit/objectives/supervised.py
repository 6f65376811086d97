"""Any task with answers, as the loop sees it."""

from __future__ import annotations

from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.causal import NextToken
from bertkit.tasks.base import Task
from bertkit.training.objective import Objective


class Supervised(Objective):
    """A model and the task it learns.

    language: with a causal model, the weight of guessing each next piece beside the task, as GPT was fine-tuned.
    """

    def __init__(self, model: Model, task: Task, language: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.guess = NextToken(model) if language else None
        self.weights = {"next": language}  # type: ignore[misc]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The task's loss, summed, and that of the next pieces where it is asked for."""
        encoded = self.model.encoder(batch)
        return {"loss": self.task.loss(self.model, encoded), **(self.guess.guess(encoded) if self.guess else {})}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What the task counts, and pieces guessed."""
        return {"loss": self.task.count(batch), **(self.guess.counts(batch) if self.guess else {})}
