"""The models of a server, what each can do, and which one a request refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.checkpoint.locate import embedded
from bertkit.data.batch import TOKENS
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.loading import open_model
from bertkit.server.errors import ApiError, Limits
from bertkit.server.schemas import DIMENSIONS, ID, MASKED, PROMPT
from bertkit.tasks import task_classes

ALWAYS = ("embed", "similarity", "tokenize")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
# The most by which a number of an answer may depend on what else is computed with it, on a CPU. The encoder gives the
# same bits in any batch (see data.batch.pack); a head's last map is float32, whose sums may be ordered differently.
BATCH_DIFFERENCE = 1e-6
BY_VECTORS = ("rerank",)  # what else a model without a task supports
LACKS = {  # ability that does not belong to one task → the model that has it
    "rerank": "a model fine-tuned on pairs of texts, or an embedding model",
    "fill": "a model with an mlm head, such as 'en'",
}


def lacking(ability: str) -> str:
    """The message for those who serve no model with this ability: which model has it."""
    if ability in LACKS:
        return LACKS[ability]
    first, *others = (name for name, task in task_classes().items() if ability in task.abilities)
    names = [f"`bertkit finetune {first}`", *(f"`{name}`" for name in others)]
    joined = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"one fine-tuned with {joined}"


@dataclass(frozen=True)
class ServedModel:
    """A model under its name."""

    name: str
    predictor: Predictor

    @cached_property
    def task(self) -> str:
        """The task a served model was fine-tuned for; empty if there is none, or its head is untrained."""
        try:
            task = self.predictor.task
            if task.head:
                self.predictor.needs(task.head, "predict")
        except UserError:
            return ""
        return task.name

    @cached_property
    def pairs(self) -> bool | None:
        """Whether a served model's task reads two texts; None if the folder does not say."""
        if not self.task:
            return False
        if "task" not in self.predictor.folder.about and self.predictor.task.for_pairs() is not None:
            return None
        return self.predictor.task.reads_pairs

    @cached_property
    def abilities(self) -> tuple[str, ...]:
        """The operations a served model supports, in the order of the routes."""
        can = [*(self.predictor.task.abilities if self.task else BY_VECTORS), *ALWAYS]
        engine, mask = self.predictor.engine, self.predictor.tokenizer.mask_id
        causal = self.predictor.config.causal  # it guesses what comes next, not what is hidden
        if "mlm" in engine.heads and "mlm" not in engine.untrained and mask is not None and not causal:
            can.insert(0, "fill")
        if "predict" in can and "rerank" in can and self.pairs is False:
            can.remove("rerank")  # by reading both texts, which this model does not
        return tuple(can)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label names of a served model's task."""
        return self.predictor.task.labels if self.task else ()

    @property
    def _is_steady(self) -> bool:
        """Whether a served model's numbers do not depend on what else is computed with them: torch's on a CPU."""
        return (self.predictor.engine.name, self.predictor.device) == ("torch", "cpu")

    def info(self, limits: Limits, on_long: str) -> dict[str, Any]:
        """A served model in TEI's /info, and what it can do."""
        named = {
            "id2label": {str(n): label for n, label in enumerate(self.labels)},
            "label2id": {label: n for n, label in enumerate(self.labels)},
        }
        kind = self.predictor.task.served_as if self.task else ""
        limit = self.predictor.windows().limit if self.task else self.predictor.vector_limit
        return {
            "model_id": self.name, "model_sha": None, "model_dtype": DTYPES[self.predictor.precision],
            "served_model_name": self.name,
            "model_type": {kind: named} if kind else {"embedding": {"pooling": self.predictor.pooling.mode}},
            "max_concurrent_requests": limits.waiting, "max_input_length": limit, "max_batch_tokens": TOKENS,
            "max_batch_requests": None, "max_client_batch_size": limits.items, "auto_truncate": on_long == "truncate",
            "tokenization_workers": 1, "version": __version__, "sha": None, "docker_label": None,
            "task": self.task or None, "abilities": list(self.abilities), "labels": list(self.labels),
            "width": self.predictor.width, "precision": self.predictor.precision,
            "prompts": list(self.predictor.pooling.prompts), "engine": self.predictor.engine.name,
            "batch_difference": BATCH_DIFFERENCE if self._is_steady else None,
        }  # fmt: skip


class ModelRegistry(Mapping[str, ServedModel]):
    """All models by name, in the order they were given."""

    def __init__(self, models: Sequence[ServedModel], ancestors: dict[str, Any] | None = None) -> None:
        self._models = {model.name: model for model in models}
        self.ancestors = ancestors or {}  # for the page alone: those opened, and those trained there
        self.learnt: dict[str, str] = {}  # the language of each ancestor that was trained there

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def bounds(self) -> dict[str, dict[str, Any]]:
        """Titles of the schema → what every served model accepts: its ids, dimensions, prompts and masks."""
        predictors = [model.predictor for model in self.values()]
        ids = min(min(predictor.tokenizer.size, predictor.config.vocabulary) for predictor in predictors)
        masks = {
            predictor.tokenizer.id_to_token(predictor.tokenizer.mask_id) or ""
            for predictor in predictors
            if predictor.tokenizer.mask_id
        }
        names = sorted({name for predictor in predictors for name in predictor.pooling.prompts})
        pattern = "|".join(re.escape(mask) for mask in sorted(masks))
        return {
            ID: {"maximum": ids - 1},
            DIMENSIONS: {"maximum": min(predictor.config.width for predictor in predictors)},
            PROMPT: {"enum": names} if names else {"type": "null"},
            MASKED: {"pattern": f"^[^\\u0000]*({pattern})[^\\u0000]*$"} if masks else {},
        }

    def unknown(self, name: str) -> ApiError:
        """The error for a model that is not served, with those that are."""
        return ApiError(
            "model", f"There is no model {name[:80]!r} here. Choose from: {', '.join(self)}.", param="model"
        )

    def pick(self, name: str | None, ability: str) -> ServedModel:
        """The served model with this name, else the first that supports the operation."""
        if name is not None and name not in self:
            raise self.unknown(name)
        able = [model for model in self.values() if ability in model.abilities and name in (None, model.name)]
        if not able:
            remedy = f"Serve {lacking(ability)}."
            raise ApiError(
                "ability",
                f"The model '{name}' does not support {ability}. {remedy}" if name
                else f"No model here supports {ability}. {remedy}",
                param="model",
            )  # fmt: skip
        return able[0]


def names_of(models: Sequence[str]) -> dict[str, str]:
    """Name → model. A model is served under its own name: embedded, hub, or its folder's; or as NAME=MODEL."""
    named: dict[str, str] = {}
    for given in models:
        name, equals, model = given.partition("=")
        if not equals or Path(given).exists():
            model = given
            path = Path(given)
            name = path.resolve().name if path.exists() and given not in embedded() else given
        if not name or not model:
            raise UserError(f"'{given}' is not a model. Pass a name, a folder, or NAME=MODEL.")
        if name in named:
            raise UserError(
                f"Two models would be called '{name}': {named[name]} and {model}. Name one, e.g. {name}2={model}."
            )
        named[name] = model
    return named


def load(models: Sequence[str], precision: str = "auto", device: str = "auto", engine: str = "auto") -> ModelRegistry:
    """Open the models to serve, each once. Ancestors (word vectors, ELMo, the Transformer) are for the page."""
    opened = {name: open_model(model, precision, device, engine=engine) for name, model in names_of(models).items()}
    encoders = {name: model for name, model in opened.items() if isinstance(model, Predictor)}
    ancestors = {name: model for name, model in opened.items() if name not in encoders}
    for name, model in ancestors.items():
        if kind_of_ancestor(model) is None or not encoders:
            raise UserError(
                f"{name} is not an encoder, and only encoders can be served. Use `bertkit predict` instead."
            )
    for model in encoders.values():
        model.steady = True
    return ModelRegistry([ServedModel(name, model) for name, model in encoders.items()], ancestors)


# The ancestors that the page shows, by the name of their class: no ancestor is imported for a server without any.
ANCESTORS = {"WordVectors": "word2vec", "Elmo": "elmo", "Seq2Seq": "transformer", "Predictor": "gpt"}


def kind_of_ancestor(model: Any) -> str | None:
    """What the page calls a served ancestor."""
    return ANCESTORS.get(type(model).__name__)
