"""Any task with labels as an objective, and distillation from a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.causal import NextToken
from bertkit.tasks.base import Task
from bertkit.training.loop import Objective

# ---- Any task with answers.


class Supervised(Objective):
    """The objective of fine-tuning: a model and the task it learns from labels.

    language: with a causal model, the weight of an extra language-modelling loss, as in GPT's fine-tuning.
    """

    def __init__(self, model: Model, task: Task, language: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.guess = NextToken(model) if language else None
        self.weights = {"next": language}  # type: ignore[misc]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The supervised loss of a task, summed, and the language-modelling loss if requested."""
        encoded = self.model.encoder(batch)
        return {"loss": self.task.loss(self.model, encoded), **(self.guess.guess(encoded) if self.guess else {})}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What supervised losses are divided by: the task's count, and the number of predicted pieces."""
        return {"loss": self.task.count(batch), **(self.guess.counts(batch) if self.guess else {})}


# ---- A student learns a teacher's predictions for every example, and the labels where they are known.


def soft_labels(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Distillation's loss for labels: divergence from the teacher's softened distribution (Hinton et al., 2015).

    Kullback–Leibler: (rows,).

    logits, taught: the student's and the teacher's, (rows, labels). Multiplied by temperature², so that gradients keep
    their size.
    """
    student, teacher = ((x / temperature).log_softmax(-1) for x in (logits, taught))
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1) * temperature**2


def soft_several(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Distillation's loss for several labels per text: each independently, averaged over labels: (rows,)."""
    target = (taught / temperature).sigmoid()
    loss = F.binary_cross_entropy_with_logits(logits / temperature, target, reduction="none")
    lowest = F.binary_cross_entropy_with_logits(taught / temperature, target, reduction="none")
    return (loss - lowest).mean(-1) * temperature**2


def soft_number(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Distillation's loss for numbers: squared distance from the teacher's; temperature has no effect: (rows,)."""
    return (logits - taught).square()[:, 0]


@dataclass(frozen=True)
class Kind:
    """The two losses of distillation for a kind of answer, one number per row: to the teacher, and to the label."""

    soft: Callable[[Tensor, Tensor, float], Tensor]
    hard: Callable[[Tensor, Tensor], Tensor]


LABELS = Kind(soft_labels, lambda logits, target: F.cross_entropy(logits, target, reduction="none"))
SEVERAL = Kind(
    soft_several, lambda logits, target: F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
)
NUMBER = Kind(soft_number, lambda logits, target: (logits[:, 0] - target).square())
KINDS = {"labels": LABELS, "several": SEVERAL, "number": NUMBER}  # a task's `answer_kind` → its losses


class Distill(Objective):
    """The objective of distillation: a student, its task.

    Batches carry the teacher's logits ("taught") and which answers are "known".

    temperature: of both softmaxes. alpha: the weight of the loss on labels.
    """

    def __init__(self, model: Model, task: Task, temperature: float = 2.0, alpha: float = 0.5) -> None:
        super().__init__()
        self.model, self.task, self.temperature = model, task, temperature
        self.kind = KINDS[task.answer_kind]
        self.weights = {"soft": 1.0 - alpha, "hard": alpha}  # type: ignore[misc]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Distillation's losses. soft: over all rows; hard: over those with a known label."""
        taught, known, target = (batch.extra[name] for name in ("taught", "known", "target"))
        logits = self.task.logits(self.model, self.model.encoder(batch), int(batch.extra["owner"].max()) + 1)
        soft = self.kind.soft(logits, taught, self.temperature).sum()
        return {"soft": soft, "hard": self.kind.hard(logits[known], target[known]).sum()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What distillation's losses are divided by: rows, and rows with a known label."""
        return {"soft": len(batch.extra["known"]), "hard": int(batch.extra["known"].sum())}
