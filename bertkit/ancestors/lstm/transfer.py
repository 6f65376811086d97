"""What the two recurrent text classifiers share: their interface, their stages of training, and their folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit import machine
from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.language_model.model import LanguageModel, fill, network_of
from bertkit.ancestors.language_model.networks import (
    LanguageModelObjective,
    LanguageModelShape,
    Rnnlm,
    State,
    add_bos_eos,
    unpacked,
)
from bertkit.data.batch import Batch, batches_by_tokens, pack, run_batched
from bertkit.errors import UserError
from bertkit.model.inference import choose
from bertkit.model.layers import Dropout, Linear, Norm
from bertkit.settings.training import LoopSettings, Plan
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import Objective, Training
from bertkit.training.run import FIRST_GUESS, MemoryRun
from bertkit.training.run_folder import MemoryFolder

# ---- A recurrent network that reads complete texts; its vectors are pooled for a small head.

STRETCH = 512  # pieces read at once
# Only the last pieces of a text get gradients. Earlier ones are read and pooled without: this bounds memory for any
# length. Texts longer than this have their own batch.
TAUGHT = 4096
POOLINGS: dict[str, tuple[str, ...]] = {"last": ("last",), "concat": ("last", "max", "mean")}


def pooled(network: Rnnlm, ids: Tensor, lengths: Tensor, ways: Sequence[str]) -> Tensor:
    """Transfer from a language model: texts of any length, its last layer pooled side by side.

    Returns (texts, len(ways) × hidden).

    ids: (texts, time); what is right of a text's length changes nothing. ways: last, max, mean.
    """
    texts, time = ids.shape
    wide = network.shape.inner
    sums = {"last": torch.zeros(texts, wide), "mean": torch.zeros(texts, wide)}
    sums |= {"max": torch.full((texts, wide), -torch.inf)}
    sums = {way: tensor.to(ids.device) for way, tensor in sums.items()}
    state: State = None
    teaching = torch.is_grad_enabled()
    for start in range(0, time, STRETCH):
        with torch.set_grad_enabled(teaching and start + STRETCH > time - TAUGHT):
            vectors, state = network.vectors(ids[:, start : start + STRETCH], state)
            column = torch.arange(start, start + vectors.shape[1], device=ids.device)
            is_real = (column < lengths[:, None])[..., None]
            is_last = (column == lengths[:, None] - 1)[..., None]
            sums["last"] = sums["last"] + torch.where(is_last, vectors, 0.0).sum(1)
            sums["mean"] = sums["mean"] + torch.where(is_real, vectors, 0.0).sum(1) / lengths[:, None]
            sums["max"] = torch.maximum(sums["max"], torch.where(is_real, vectors, -torch.inf).amax(1))
    return torch.cat([sums[way] for way in ways], dim=-1)


class Reader(nn.Module):
    """Transfer from a language model: its network, pooling and a head.

    inner: width of the head's hidden layer; 0: it has none.
    """

    def __init__(self, network: Rnnlm, pooling: str, labels: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.network, self.pooling, self.labels, self.inner = network, pooling, labels, inner
        wide = network.shape.inner * len(POOLINGS[pooling])
        drop = Dropout(dropout, network.drop.dropout_masks)
        # Layer norm where ULMFiT has batch norm: an answer must not depend on the texts that share its batch.
        hidden = [Norm(wide, 1e-5), drop, Linear(wide, inner), nn.ReLU(), Norm(inner, 1e-5)] if inner else []
        self.head = nn.Sequential(*hidden, drop, Linear(inner or wide, labels))

    def forward(self, batch: Batch) -> Tensor:
        """Logits of a classifier over a pretrained LSTM: (texts, labels), in packed order."""
        return self.head(pooled(self.network, *unpacked(batch), POOLINGS[self.pooling]))

    @property
    def groups(self) -> int:
        """How many layer groups a pretrained LSTM classifier has: the head, each recurrent layer, the word vectors."""
        return len(self.network.layers) + 2

    def group(self, name: str) -> int:
        """The layer group of a pretrained LSTM's parameter, counted from the top; -1: it has no part in reading."""
        parts = name.removeprefix("reader.").split(".")
        if parts[:2] == ["network", "layers"]:
            return len(self.network.layers) - int(parts[2])
        return {"head": 0, "words": self.groups - 1}.get(parts[0] if parts[0] == "head" else parts[1], -1)

    def thaw(self, groups: int) -> None:
        """Gradual unfreezing (ULMFiT): train the upper `groups` only, and freeze those below."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(0 <= self.group(name) < groups)


class ClassifyObjective(Objective):
    """The objective of an LSTM classifier that transfers a language model: texts and their labels."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of an LSTM classifier in transfer, over texts."""
        return {"loss": F.cross_entropy(self.reader(batch), batch.extra["labels"], reduction="sum")}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of texts an LSTM classifier's loss is divided by."""
        return {"loss": batch.texts}


class TextFeed:
    """The feed of an LSTM classifier that transfers a language model: all rows once per pass, in a random order."""

    def __init__(self, rows: Sequence[list[int]], labels: Sequence[int] = (), *, batch: int, seed: int) -> None:
        self.rows, self.labels, self.seed = rows, labels, seed
        self.batch = min(batch, len(rows))
        self.steps_per_pass = -(-len(rows) // self.batch)

    def step(self, step: int) -> list[Batch]:
        """The examples of a transfer stage's step, in parts that fit into memory."""
        epoch, place = divmod(step, self.steps_per_pass)
        order = np.random.default_rng((self.seed, 5, epoch)).permutation(len(self.rows))
        numbers = order[place * self.batch : (place + 1) * self.batch].tolist()
        short = [n for n in numbers if len(self.rows[n]) <= TAUGHT]
        parts = [[n] for n in numbers if len(self.rows[n]) > TAUGHT]
        parts += [[short[i] for i in part] for part in batches_by_tokens([len(self.rows[n]) for n in short], TAUGHT)]
        return [self._collate(part) for part in parts]

    def _collate(self, numbers: list[int]) -> Batch:
        batch = pack([self.rows[n] for n in numbers])
        if len(self.labels):
            batch.extra["labels"] = torch.tensor([self.labels[numbers[caller]] for caller in batch.order])
        return batch


def cut_rows(rows: Sequence[list[int]], length: int) -> list[list[int]]:
    """Split rows from [CLS] to [SEP] for transfer into rows of at most `length` ids, each with its own marks."""
    room = length - 2
    return [
        [row[0], *row[start : min(start + room, len(row) - 1)], row[-1]]
        for row in rows
        for start in range(1, max(2, len(row) - 1), room)
    ]


# ---- The base of both classifiers.

# Slanted triangular rates (Howard and Ruder 2018): up over the first tenth, then in a line down to 1/32.
SLANTED: dict[str, Any] = {"warmup": 0.1, "schedule": "linear", "floor": 1 / 32, "beta1": 0.7, "beta2": 0.99}


def loop_of(lr: float) -> LoopSettings:
    """The loop of a transfer stage: slanted triangular rates with this peak."""
    return LoopSettings(lr=lr, **SLANTED)


@dataclass(frozen=True)
class StageSettings:
    """One stage of transfer: `epochs` passes or, with `seconds` (0: none), as many steps as fit into them.

    divisor: the learning rate of a layer is that of the layer above, divided by this.
    """

    epochs: int
    lr: float
    seed: int
    seconds: float
    divisor: float = 1.0


class Stage(MemoryRun):
    """One stage of transfer learning, with slanted triangular rates.

    scores: on the dev texts, after every pass. earlier: the stage before, whose best weights stay the best until these
    are better. Each stage goes on from the last weights; only after the last one are the best restored.
    """

    def __init__(
        self,
        objective: Objective,
        feed: TextFeed,
        settings: StageSettings,
        *,
        scale: Callable[[str], float],
        reader: Reader | None = None,
        scores: Callable[[], dict[str, float]] = dict,
        earlier: Stage | None = None,
    ) -> None:
        seconds, steps = settings.seconds, settings.epochs * feed.steps_per_pass
        plan = Plan(0 if seconds else steps, seconds / 60, eval_every=feed.steps_per_pass)
        planned, loop = FIRST_GUESS if seconds else steps, loop_of(settings.lr)
        training = Training(objective, feed, planned, loop, settings.seed, scale=scale)
        super().__init__(plan, training, MemoryFolder(), reader)
        self.dev_scores = scores
        self.losses: list[float] = []
        if earlier is not None:
            self.best, self.best_rank, self.best_weights = earlier.best, earlier.best_rank, earlier.best_weights

    def logged(self, row: dict[str, Any]) -> None:
        """Store the loss of every step of a transfer stage."""
        self.losses.append(row["loss"])

    def evaluate(self) -> dict[str, float]:
        """Accuracy and loss of a transfer stage on the dev texts."""
        return self.dev_scores()

    def rank(self, scores: dict[str, float]) -> tuple[float, ...]:
        """The best pass of a transfer stage: accuracy first; of equals the lower loss."""
        return scores["dev_accuracy"], -scores["dev_loss"]

    def weights(self) -> dict[str, Tensor]:
        """All weights in a transfer stage: what is frozen in this one learns in another."""
        assert self.keep_best is not None
        return {name: tensor.clone() for name, tensor in self.keep_best.state_dict().items()}

    def restore_best(self) -> None:
        """Leave the last weights to the next transfer stage."""


class RecurrentClassifier:
    """LSTM transfer learning: a reader that starts from a left-to-right model's numbers, and its tokenizer."""

    ancestor: ClassVar[str]  # what bertkit.json calls it

    def __init__(self, source: LanguageModel | str | Path | None) -> None:
        """source: a recurrent language model or its folder; None only for a model that is loaded to answer."""
        self.source = source if isinstance(source, LanguageModel) or source is None else LanguageModel.load(source)
        if self.source is not None and not isinstance(self.source.network, Rnnlm):
            raise UserError(
                f"This needs a recurrent language model (rnn, lstm, gru), not a {self.source.network.shape.kind}: "
                "learn one with kind='lstm'."
            )
        self.reader: Reader | None = None
        self.stages: list[dict[str, float]] = []  # what each stage of learning reached
        self._newest: Stage | None = None

    @property
    def name(self) -> str:
        """The name of a pretrained LSTM classifier in tables."""
        raise NotImplementedError

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the LSTM language model it was transferred from."""
        return self._source.tokenizer if self.source is not None else self._tokenizer

    @property
    def _source(self) -> LanguageModel:
        if self.source is None:
            raise UserError(
                "This classifier was loaded for prediction only. "
                "To train one, create it from a language model's folder."
            )
        return self.source

    # ---- learning

    def _begin(self, texts: Sequence[str], labels: Sequence[int], labels_count: int) -> list[list[int]]:
        """Check the arguments of a transfer. Returns the ids of each text from [CLS] to [SEP], untruncated."""
        if not len(texts) or len(texts) != len(labels):
            raise UserError(f"There are {len(texts)} texts and {len(labels)} labels; give one label for each text.")
        invalid = sorted({int(label) for label in labels if not 0 <= label < labels_count})
        if invalid:
            raise UserError(
                f"label {invalid[0]} is not between 0 and {labels_count - 1} (labels_count {labels_count})."
            )
        machine.set_up(machine.threads())
        self.stages = []
        return add_bos_eos(self.tokenizer, list(texts))

    def _network(self, like_source: bool, dropout: float, seed: int) -> Rnnlm:
        """The LSTM to transfer from: the source's, or one of its shape with random weights."""
        torch.manual_seed(seed)
        shape = self._source.network.shape
        network = copy.deepcopy(self._source.network) if like_source else network_of(shape)
        assert isinstance(network, Rnnlm)
        network.drop.rate = dropout
        return network

    def _read_on(
        self, objective: LanguageModelObjective, rows: Sequence[list[int]], settings: StageSettings, *, batch: int
    ) -> None:
        """Train the LSTM language model further on the texts themselves, without labels, before the transfer."""
        objective.set_precision(choose("auto"))
        objective.requires_grad_(True)
        feed = TextFeed(rows, batch=batch, seed=settings.seed)
        depth = len(objective.network.layers)  # type: ignore[arg-type]

        def scale(name: str) -> float:
            parts = name.split(".")  # network.layers.1.…: the words, tied to the output, learn at the top rate
            return settings.divisor ** -(depth - int(parts[2])) if parts[1] == "layers" else 1.0

        stage = Stage(objective, feed, settings, scale=scale)
        stage.go()
        objective.set_precision(torch.float32)
        self.stages.append({"next_loss": float(np.mean(stage.losses[-feed.steps_per_pass :]))})

    def _stage(
        self, feed: TextFeed, dev: tuple[Sequence[str], Sequence[int]], settings: StageSettings, *, groups: int
    ) -> None:
        """One transfer stage: train the upper `groups` layer groups; the weights that are best on dev are kept."""
        reader = self._reader
        reader.thaw(groups)
        stage = self._newest = Stage(
            ClassifyObjective(reader), feed, settings, reader=reader, scores=lambda: self._judge(dev),
            earlier=self._newest, scale=lambda name: settings.divisor ** -reader.group(name),
        )  # fmt: skip
        stage.go()
        self.stages.append({"groups": groups, "steps": stage.training.done, "loss": stage.losses[-1], **stage.scores})

    def _judge(self, dev: tuple[Sequence[str], Sequence[int]]) -> dict[str, float]:
        """Accuracy and loss of a transfer on dev; {} without dev texts, and then the last weights are kept."""
        if not len(dev[0]):
            return {}
        probabilities, labels = self.probabilities(dev[0]), np.asarray(dev[1])
        of_label = np.maximum(probabilities[np.arange(len(labels)), labels], 1e-9)
        accuracy = float((probabilities.argmax(1) == labels).mean())
        return {"dev_accuracy": accuracy, "dev_loss": float(-np.log(of_label).mean())}

    def _start(self, reader: Reader) -> None:
        self.reader, self._newest = reader, None

    def _finish(self) -> Self:
        """Take the best weights of the last stage, and end the classifier's training."""
        if self._newest is not None and self._newest.best_weights:
            self._reader.load_state_dict(self._newest.best_weights)
        self._reader.requires_grad_(False).eval()
        self._newest = None
        return self

    # ---- answering

    @property
    def _reader(self) -> Reader:
        if self.reader is None:
            raise UserError("This classifier has not been trained yet. Call fit(…), or load a saved one.")
        return self.reader

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """ULMFiT's label probabilities of texts of any length: (texts, labels), each row sums to one."""
        reader = self._reader.eval()
        rows = add_bos_eos(self.tokenizer, list(texts))
        results = np.zeros((len(rows), reader.labels))

        def compute(numbers: list[int]) -> None:
            batch = pack([rows[n] for n in numbers])
            results[numbers] = batch.restore(reader(batch)).double().softmax(-1).numpy()

        run_batched([len(row) for row in rows], compute)
        return results

    @property
    def parameters(self) -> int:
        """Number of a pretrained LSTM classifier's weights that are used in a prediction."""
        reader = self._reader
        return sum(p.numel() for name, p in reader.named_parameters() if reader.group(name) >= 0)

    # ---- saving

    def _about(self) -> dict[str, Any]:
        """Further facts that `load` needs of a pretrained LSTM classifier."""
        return {}

    def save(self, folder: str | Path) -> None:
        """Write a pretrained LSTM classifier and its tokenizer's files; all of them or none."""
        reader = self._reader
        head = {"pooling": reader.pooling, "labels": reader.labels, "inner": reader.inner}
        about = {"ancestor": self.ancestor, "numbers": asdict(reader.network.shape), "head": head, **self._about()}
        storage.save(folder, self._layout(), about, reader.state_dict(), self.tokenizer)

    @classmethod
    def _layout(cls) -> Layout:
        return Layout(cls.ancestor, "bertkit.json", "model.safetensors", (cls.ancestor,))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a saved LSTM classifier that was transferred from a language model."""
        folder, layout = Path(folder), cls._layout()
        about, tensors = storage.load(folder, layout)
        model = cls._from(about)
        with storage.opened(folder, layout), torch.device("meta"):
            network = network_of(LanguageModelShape(**about["numbers"]))
            if not isinstance(network, Rnnlm):
                raise ValueError(f"its network is no recurrent one but {type(network).__name__}")
            model.reader = Reader(network, **about["head"], dropout=0.0)
        fill(model.reader, tensors, str(folder / layout.tensors))
        model.reader.requires_grad_(False).eval()
        model._tokenizer = Tokenizer.load(folder)
        return model

    @classmethod
    def _from(cls, about: dict[str, Any]) -> Self:
        """A pretrained LSTM classifier that can only predict."""
        return cls(None)

    _tokenizer: Tokenizer
