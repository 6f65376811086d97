"""Any task with answers, as the loop sees it; and the answers of a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.causal import NextToken
from bertkit.tasks.base import Task
from bertkit.training.objective import Objective

# ---- Any task with answers, as the loop sees it.


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


# ---- A student learns what a teacher says of every example, and the right answers where they are known.


def soft_labels(said: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Kullback–Leibler divergence from the teacher's softened distribution (Hinton et al., 2015): (rows,).

    said, taught: logits (rows, labels). Times heat², so that gradients keep their size whatever the temperature.
    """
    own, wanted = ((x / temperature).log_softmax(-1) for x in (said, taught))
    return F.kl_div(own, wanted, reduction="none", log_target=True).sum(-1) * temperature**2


def soft_several(said: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """The same for each label by itself, yes or no, averaged over labels: (rows,)."""
    wanted = (taught / temperature).sigmoid()
    loss = F.binary_cross_entropy_with_logits(said / temperature, wanted, reduction="none")
    least = F.binary_cross_entropy_with_logits(taught / temperature, wanted, reduction="none")
    return (loss - least).mean(-1) * temperature**2


def soft_number(said: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Squared distance from the teacher's number; temperature means nothing here: (rows,)."""
    return (said - taught).square()[:, 0]


@dataclass(frozen=True)
class Kind:
    """The two losses of a kind of answer, one number a row: to the teacher, and to the right answer."""

    soft: Callable[[Tensor, Tensor, float], Tensor]
    hard: Callable[[Tensor, Tensor], Tensor]


LABELS = Kind(soft_labels, lambda said, target: F.cross_entropy(said, target, reduction="none"))
SEVERAL = Kind(
    soft_several, lambda said, target: F.binary_cross_entropy_with_logits(said, target, reduction="none").mean(-1)
)
NUMBER = Kind(soft_number, lambda said, target: (said[:, 0] - target).square())
KINDS = {"labels": LABELS, "several": SEVERAL, "number": NUMBER}  # a task's `answer_kind` → its losses


class Distill(Objective):
    """A student, its task, and batches that carry the teacher's numbers ("taught") and which answers are "known".

    temperature: of both softmaxes. alpha: the right answers' share of the loss.
    """

    def __init__(self, model: Model, task: Task, temperature: float = 2.0, alpha: float = 0.5) -> None:
        super().__init__()
        self.model, self.task, self.temperature = model, task, temperature
        self.kind = KINDS[task.answer_kind]
        self.weights = {"soft": 1.0 - alpha, "hard": alpha}  # type: ignore[misc]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """soft: over all rows; hard: over those whose answer is known."""
        taught, known, target = (batch.extra[name] for name in ("taught", "known", "target"))
        said = self.task.logits(self.model, self.model.encoder(batch), int(batch.extra["owner"].max()) + 1)
        soft = self.kind.soft(said, taught, self.temperature).sum()
        return {"soft": soft, "hard": self.kind.hard(said[known], target[known]).sum()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Rows, and rows whose answer is known."""
        return {"soft": len(batch.extra["known"]), "hard": int(batch.extra["known"].sum())}
