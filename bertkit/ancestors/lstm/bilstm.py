"""The usual model before BERT: a two-layer BiLSTM over word vectors that tags words or classifies texts.

Its words have vectors of their own, possibly initialized from word2vec or GloVe, or frozen features: ELMo's layers with
a learned mix, or BERT's (ancestors/bert_features.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.lstm.network import (
    BiLstmNetwork,
    Features,
    GivenFeatures,
    SentenceFeed,
    Sentences,
    Source,
    WordEmbedding,
)
from bertkit.ancestors.ngram.model import cut
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.config import build
from bertkit.data.batch import batches_by_tokens
from bertkit.errors import UserError
from bertkit.model.layers import DropoutMasks
from bertkit.notify import note
from bertkit.settings.ancestors import BiLstmSettings
from bertkit.settings.training import LoopSettings, Plan
from bertkit.training.loop import Training
from bertkit.training.run import MemoryRun
from bertkit.training.run_folder import MemoryFolder

# ---- Training, answering, saving and loading: what tagger and classifier share.

DESCRIBED = "bilstm.json"  # the owner of the folder may add a bertkit.json
AT_ONCE = 2048  # sentences whose features are in memory at once when answering
FEWEST_STEPS = 200  # patience cannot end the run earlier: passes over few sentences are short


class BiLstm:
    """A BiLSTM that labels words or texts. features: frozen features of words; vectors: initial word vectors."""

    ancestor: ClassVar[str]

    def __init__(
        self,
        settings: BiLstmSettings | None = None,
        *,
        features: Features | None = None,
        vectors: WordVectors | None = None,
    ) -> None:
        if features and vectors:
            raise UserError("Give features or vectors, not both: frozen features replace the word vectors.")
        self.settings = settings or BiLstmSettings()
        self.features, self.vectors = features, vectors
        self.model: BiLstmNetwork | None = None
        self.result: dict[str, Any] = {}  # epochs: passes made; best: the pass kept; dev: its score

    @property
    def name(self) -> str:
        """The BiLSTM's name in tables."""
        return "BiLSTM over features" if self.features else "BiLSTM"

    @property
    def parameters(self) -> int:
        """Number of the BiLSTM's weights; 0 before training."""
        return sum(p.numel() for p in self.model.parameters()) if self.model else 0

    @property
    def _pool(self) -> str:
        return "none"

    def _make(self, source: Source, labels: int, chance: DropoutMasks) -> BiLstmNetwork:
        return BiLstmNetwork(source, labels, self.settings, self._pool, chance)

    def _learn(
        self,
        sentences: Sentences,
        targets: Sequence[Sequence[int]],
        labels: int,
        dev: Sentences,
        measure: Callable[[list[np.ndarray]], float],
        seed: int,
        minutes: float,
        epochs: int,
    ) -> None:
        """Train the BiLSTM; `measure` scores the answers on `dev` after every pass, and the best pass is kept."""
        s = self.settings
        _check_targets(sentences, targets, labels)
        chance = DropoutMasks()
        folder = MemoryFolder()  # its clock starts here, so that computing features counts
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            source: Source
            if self.features:
                rows = GivenFeatures.given(self.features, sentences)
                source = GivenFeatures(self.features, rows[0].shape[0], rows[0].shape[2])
            else:
                source = WordEmbedding.of(sentences, s.word_width, self.vectors, chance)
                rows = source.read(sentences)
            self.model = self._make(source, labels, chance)
        feed = SentenceFeed(source, rows, [np.array(target, np.int64) for target in targets], s.batch, seed)
        loop = LoopSettings(lr=s.lr, warmup=0.0, schedule="constant", decay=0.0, clip=5.0)
        training = Training(self.model, feed, feed.batches * (epochs or s.epochs), loop, seed)
        plan = Plan(
            training.steps, minutes, deadline=True, patience=s.patience, patience_from=FEWEST_STEPS,
            eval_every=feed.batches,
        )  # fmt: skip
        dev_rows = source.read(dev)
        score = (lambda: {"dev": measure(self._logits(dev_rows))}) if dev_rows else dict
        run = _Run(plan, training, folder, self.model, score)
        run.go()
        if run.late:
            note(f"{self.name}: time ran out in pass {math.ceil(training.done / feed.batches)}.")
        if not dev_rows:
            note(f"{self.name}: there are no rows to choose the best pass on; the last pass is kept.")
        self.model.eval()
        best = {"best": math.ceil(run.best_step / feed.batches), "dev": run.best["dev"]} if run.best else {}
        self.result = {"epochs": training.done / feed.batches} | best

    def _answers(self, sentences: Sentences) -> list[np.ndarray]:
        """The BiLSTM's logits of each sentence: (words, labels), or (1, labels) of a text."""
        if self.model is None:
            raise UserError(f"This {self.name} has not been trained yet. Call fit, or load a saved one.")
        logits: list[np.ndarray] = []
        for first in range(0, len(sentences), AT_ONCE):
            logits += self._logits(self.model.source.read(sentences[first : first + AT_ONCE]))
        return logits

    @torch.no_grad()
    def _logits(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The BiLSTM's logits of every row, in the order of the rows."""
        assert self.model is not None
        self.model.eval()
        results: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for part in batches_by_tokens([row.shape[-2] if row.ndim > 1 else len(row) for row in rows]):
            batch = self.model.source.batch([rows[n] for n in part])
            logits = self.model.logits(batch)
            by_row = batch.split(logits) if self._pool == "none" else batch.restore(logits)[:, None]
            for number, answer in zip(part, by_row):
                results[number] = answer.numpy()
        return results

    def save(self, folder: str | Path) -> None:
        """Write the BiLSTM's model.safetensors and bilstm.json; features that others give are not in it."""
        if self.model is None:
            raise UserError(f"This {self.name} has not been trained yet, so there is nothing to save.")
        source = self.model.source
        described = {
            "ancestor": self.ancestor, "settings": asdict(self.settings), "result": self.result,
            "labels": self.model.out.out_features, "width": source.width,
        }  # fmt: skip
        if isinstance(source, GivenFeatures):
            described["layers"] = source.layers
        else:
            described |= {"words": source.names, "further": source.further}
        storage.save(folder, self._layout(), described, self.model.state_dict())

    @classmethod
    def _layout(cls) -> Layout:
        return Layout(cls.ancestor, DESCRIBED, "model.safetensors", (cls.ancestor,))

    @classmethod
    def load(cls, folder: str | Path, features: Features | None = None) -> Self:
        """Open a saved BiLSTM; features: the same function that it was trained on, if on any."""
        described, weights = storage.load(folder, cls._layout())
        with storage.opened(folder, cls._layout()):
            if ("layers" in described) != (features is not None):
                fix = "give load the same features" if "layers" in described else "load it without features"
                raise UserError(f"{folder}: trained with{'' if 'layers' in described else 'out'} features; {fix}.")
            model = cls(build(BiLstmSettings, described["settings"], str(Path(folder) / DESCRIBED)), features=features)
            chance, source = DropoutMasks(), None
            if features:
                source = GivenFeatures(features, described["layers"], described["width"])
            model.model = model._make(
                source or WordEmbedding(described["words"], described["further"], described["width"], chance),
                described["labels"], chance,
            )  # fmt: skip
            model.model.load_state_dict(weights)
            model.result = described["result"]
        model.model.eval()
        return model


class _Run(MemoryRun):
    """Passes over the sentences, each followed by an evaluation. scores: on the dev sentences; {} without any."""

    def __init__(
        self,
        plan: Plan,
        training: Training,
        folder: MemoryFolder,
        model: BiLstmNetwork,
        scores: Callable[[], dict[str, float]],
    ) -> None:
        super().__init__(plan, training, folder, model)
        self.dev_scores = scores

    def evaluate(self) -> dict[str, float]:
        """The score of this pass of the BiLSTM's training."""
        return self.dev_scores()

    def rank(self, scores: dict[str, float]) -> tuple[float, ...]:
        """The best pass of a BiLSTM: by score; of equal passes the first."""
        return scores["dev"], -self.training.done

    @property
    def late(self) -> bool:
        """Whether the minutes ended the BiLSTM's training before its last pass, or its patience, did."""
        return self.training.done < self.training.steps and self.run.elapsed() > self.plan.minutes * 60 > 0


def _check_targets(sentences: Sentences, targets: Sequence[Sequence[int]], labels: int) -> None:
    """Refuse training data of the BiLSTM that is empty or has labels out of range."""
    if not sentences:
        raise UserError("There is nothing to learn from. Give at least one text with a word in it.")
    for number, answers in enumerate(targets, 1):
        if any(not 0 <= label < labels for label in answers):
            raise UserError(f"Text {number} has a label outside 0 to {labels - 1}: {list(answers)[:20]}.")


# ---- The tagger and the classifier.

Tags = Sequence[Sequence[int]]


class BiLstmTagger(BiLstm):
    """A BiLSTM with one label per word."""

    ancestor = "bilstm-tagger"

    def fit(
        self,
        sentences: Sentences,
        tags: Tags,
        labels_count: int,
        dev_sentences: Sentences = (),
        dev_tags: Tags = (),
        *,
        seed: int = 0,
        minutes: float = 0,
        epochs: int = 0,
        measure: Callable[[list[list[int]], list[list[int]]], float] | None = None,
    ) -> Self:
        """Train a BiLSTM on tags (below labels_count), one per word; epochs 0: the settings'; minutes 0: no limit.

        measure(gold, predicted): the score that chooses the best pass; by default the accuracy.
        """
        full = [n for n, words in enumerate(sentences) if len(words)]
        _check_pairs(sentences, tags, "training")
        _check_pairs(dev_sentences, dev_tags, "dev")
        dev_nonempty = [n for n, words in enumerate(dev_sentences) if len(words)]
        gold = [list(dev_tags[n]) for n in dev_nonempty]
        judge = measure or _accuracy

        def of(logits: list[np.ndarray]) -> float:
            return judge(gold, [row.argmax(-1).tolist() for row in logits])

        dev = [dev_sentences[n] for n in dev_nonempty]
        self._learn([sentences[n] for n in full], [tags[n] for n in full], labels_count, dev, of, seed, minutes, epochs)
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """The BiLSTM's most likely label of every word."""
        return [numbers for numbers, _ in self.judge(sentences)]

    def judge(self, sentences: Sentences) -> list[tuple[list[int], np.ndarray]]:
        """The BiLSTM's most likely labels per sentence, and the log-probabilities of all (words, labels)."""
        answers = iter(self._answers([words for words in sentences if len(words)]))
        results = []
        for words in sentences:
            logits = next(answers) if len(words) else np.zeros((0, 1))
            results.append((logits.argmax(-1).tolist(), log_softmax(logits, -1)))
        return results


class BiLstmClassifier(BiLstm):
    """A BiLSTM with one label per text; its words are pooled (settings.pool)."""

    ancestor = "bilstm-classifier"

    @property
    def _pool(self) -> str:
        return self.settings.pool

    def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        labels_count: int,
        dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (),
        *,
        seed: int = 0,
        minutes: float = 0,
        epochs: int = 0,
    ) -> Self:
        """Train a BiLSTM on labels (numbers below labels_count); epochs 0: as in the settings; minutes 0: no limit."""
        for rows, answers, role in ((texts, labels, "training"), (dev_texts, dev_labels, "dev")):
            if len(rows) != len(answers):
                raise UserError(f"There are {len(rows)} {role} texts but {len(answers)} labels.")
        gold = np.array(dev_labels)

        def of(logits: list[np.ndarray]) -> float:
            return float((np.concatenate(logits).argmax(-1) == gold).mean())

        targets = [[label] for label in labels]
        self._learn(self._cut(texts), targets, labels_count, self._cut(dev_texts), of, seed, minutes, epochs)
        return self

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The BiLSTM's probabilities: (texts, labels)."""
        answers = self._answers(self._cut(texts))
        labels = self.model.out.out_features if self.model else 0
        logits = np.concatenate(answers) if answers else np.zeros((0, labels), np.float32)
        return torch.from_numpy(logits).softmax(-1).numpy()

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        """Texts as words for the BiLSTM; a text without any becomes the empty word, which is unknown."""
        s = self.settings
        return [[word for word in cut(text, s.units, s.cased) if word != "\n"] or [""] for text in texts]


def _accuracy(gold: list[list[int]], predicted: list[list[int]]) -> float:
    pairs = [tag == guess for a, b in zip(gold, predicted) for tag, guess in zip(a, b)]
    return sum(pairs) / max(1, len(pairs))


def _check_pairs(sentences: Sentences, tags: Tags, role: str) -> None:
    if len(sentences) != len(tags):
        raise UserError(f"There are {len(sentences)} {role} sentences but {len(tags)} lists of tags.")
    for number, (words, answers) in enumerate(zip(sentences, tags), 1):
        if len(words) != len(answers):
            raise UserError(f"{role} sentence {number} has {len(words)} words but {len(answers)} tags.")
