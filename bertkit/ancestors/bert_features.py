"""BERT as a source of features: the six choices of layers of its paper's table 7, for labelled texts and for tags.

The model is frozen, and each choice (model/layer_choice.py) gives vectors. `probe` trains a linear classifier on the
vectors of texts. `six_features` trains a BiLSTM tagger on the vectors of words; there, the two sums are learnt mixes,
as in the paper. How well each does says what the layers hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bertkit import metrics
from bertkit.ancestors.lstm.bilstm import BiLstmTagger
from bertkit.ancestors.lstm.network import Features, Sentences
from bertkit.data.examples import TaggedSentence
from bertkit.data.windows import Row, Rows, Windows, rows_of
from bertkit.errors import UserError
from bertkit.model.encoder import Encoded
from bertkit.model.layer_choice import CHOICES, choose
from bertkit.notify import note, track
from bertkit.settings.ancestors import BiLstmSettings
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer

Halves = NDArray[np.float16]
AT_ONCE = 256  # sentences whose piece vectors are in memory at once


class GivesVectors(Protocol):
    """What the feature-based approach needs of a loaded model; bertkit.inference.predictor.Predictor has it."""

    config: Config
    tokenizer: Tokenizer

    def run(self, rows: Sequence[Row], use: Callable[[Encoded], Sequence[Any]], *, layers: bool = False) -> list[Any]:
        """What features are computed with: `use` of every row's Encoded, in order."""

    def windows(self, on_long: str = "") -> Windows:
        """How long texts are read when features are computed."""


def word_layers(predictor: GivesVectors, sentences: Sentences, numbers: Sequence[int] | None = None) -> list[Halves]:
    """Features of every word from a model's layers: (layers, words, width) per sentence.

    numbers: which, 0 the embeddings; None: all.

    Every vector has mean zero and variance one: in a pre-norm model the layers' own sizes grow with depth, and a tagger
    would see little but the largest. The first piece represents a word, as in tagging. A long sentence is read in
    windows, and a word is taken from the window in which it has most context. A word without pieces is zero.
    """
    windows = predictor.windows("window")
    numbers = range(predictor.config.depth + 1) if numbers is None else numbers

    def use(encoded: Encoded) -> list[Halves]:
        """(tokens, layers, width) a row."""
        stacked = torch.stack([encoded.layers[n] for n in numbers], 1).float()
        return [row.cpu().numpy() for row in encoded.batch.split(F.layer_norm(stacked, stacked.shape[-1:]).half())]

    vectors: list[Halves] = []
    for first in track(range(0, len(sentences), AT_ONCE), "features", -(-len(sentences) // AT_ONCE)):
        part = sentences[first : first + AT_ONCE]
        encoded_rows = [
            rows_of(predictor.tokenizer, predictor.tokenizer.encode_words(list(words)), windows) for words in part
        ]
        answers = iter(predictor.run([row for rows in encoded_rows for row in rows.rows if row.ids], use, layers=True))
        shape = (len(numbers), predictor.config.width)
        vectors += [_of_words(rows, len(words), answers, shape) for rows, words in zip(encoded_rows, part)]
    return vectors


def _of_words(rows: Rows, words: int, answers: Any, shape: tuple[int, int]) -> Halves:
    """The layer vectors of a text's words, from the first piece of each: (layers, words, width)."""
    table = np.zeros((shape[0], words, shape[1]), np.float16)
    first: dict[int, np.ndarray] = {}
    for row in rows.rows:
        if not row.ids:
            continue
        vectors = next(answers)
        assert row.encoding is not None
        for place in range(*row.core):
            if not row.encoding.special[place]:
                first.setdefault(row.encoding.words[place], vectors[place])
    for word, vector in first.items():
        table[:, word] = vector
    return table


def joined(layers: Sequence[Halves], choice: str, depth: int) -> list[Halves]:
    """The features a tagger gets of one choice: the layers to mix (layers, words, width), or one wide layer.

    layers: all.
    """
    picked = choose(choice, depth)
    return [_join([sentence[n] for n in picked.numbers], picked.join) for sentence in layers]


def _join(parts: Sequence[Halves], how: str) -> Halves:
    return np.stack(parts) if how == "sum" else np.concatenate(parts, -1)[None]


class WordFeatures:
    """One choice of a model's layers as features of words: call it with sentences."""

    def __init__(self, predictor: GivesVectors, choice: str = "concat-last-4") -> None:
        self.predictor, self.picked = predictor, choose(choice, predictor.config.depth)

    def __call__(self, sentences: Sentences) -> list[Halves]:
        """(layers to mix or 1, words, width) a sentence."""
        return [
            _join(list(layers), self.picked.join)
            for layers in word_layers(self.predictor, sentences, self.picked.numbers)
        ]


def looked_up(sentences: Sentences, arrays: Sequence[np.ndarray]) -> Features:
    """Features that were computed once: a function that gives each of these sentences its array."""
    by_sentence = {tuple(words): array for words, array in zip(sentences, arrays)}
    return lambda requested: [by_sentence[tuple(words)] for words in requested]


def six_features(
    predictor: GivesVectors,
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    *,
    seeds: int = 5,
    epochs: int = 0,
    width: int = 200,
    choices: Sequence[str] = tuple(CHOICES),
) -> list[dict[str, Any]]:
    """The paper's six choices of features, a row each: {choice, metric, mean, spread, scores}.

    Scores are of dev over `seeds` runs, each with its best pass.

    metric: entity F1 where the tags are chunks, else accuracy. spread: the standard deviation over seeds. width: cells
    of each direction of the tagger (768 in the paper). Features are held in memory as float16.
    """
    all_sentences = [*train, *dev]
    for sentence in all_sentences:
        if sentence.tags is None:
            raise UserError(f"line {sentence.line}: this sentence has no tags. Give tagged sentences.")
    sentences = [list(sentence.tokens) for sentence in all_sentences]
    names = sorted({tag for sentence in all_sentences for tag in sentence.tags or ()})
    number = {name: place for place, name in enumerate(names)}
    tags = [[number[tag] for tag in sentence.tags or ()] for sentence in all_sentences]
    layers = word_layers(predictor, sentences)
    note(f"Features of {sum(map(len, sentences)):,} words take {sum(item.nbytes for item in layers) / 2**20:,.0f} MB.")

    def measure(gold: list[list[int]], predicted: list[list[int]]) -> float:
        return float(next(iter(judge(gold, predicted).values())))

    def judge(gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]]) -> dict[str, float]:
        return metrics.tagging(*([[names[tag] for tag in tagged] for tagged in side] for side in (gold, predicted)))

    border = len(train)
    rows = []
    for choice in track(choices, "six features", len(choices)):
        features = looked_up(sentences, joined(layers, choice, predictor.config.depth))
        scores = []
        for seed in range(seeds):
            tagger = BiLstmTagger(BiLstmSettings(cells=width), features=features)
            tagger.fit(
                sentences[:border], tags[:border], len(names), sentences[border:], tags[border:],
                seed=seed, epochs=epochs, measure=measure,
            )  # fmt: skip
            scores.append(judge(tags[border:], tagger.tag(sentences[border:])))
        metric = next(iter(scores[0]))
        values = [float(item[metric]) for item in scores]
        row = {"choice": choice, "metric": metric, "mean": float(np.mean(values)), "spread": float(np.std(values))}
        rows.append(row | {"scores": values})
        note(f"{choice}: {metric} {row['mean']:.4f} ± {row['spread']:.4f}")
    return rows


# ---- Labelled texts: a linear classifier on each choice.

MOST_ROWS = 2000  # more rows change the result little, and take longer
FOLDS = 5
Embed = Callable[..., Any]  # Predictor.embed


def probe(
    embed: Embed, depth: int, texts: Sequence[str], labels: Sequence[str], seed: int = 0, pool: str = "mean"
) -> list[dict[str, Any]]:
    """The six features (layer choices) compared, by 5-fold logistic regression: {choice, accuracy, spread} each.

    embed, depth: the model's. pool: mean or cls; other ways are probed by the mean.
    At most 2,000 rows are used, drawn at random; this is reported.
    """
    if len(texts) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(seed).permutation(len(texts))[:MOST_ROWS])
        note(f"The probe uses {MOST_ROWS:,} of {len(texts):,} labelled rows, drawn at random.")
        texts, labels = [texts[n] for n in sample], [labels[n] for n in sample]
    folds = _folds(labels)
    # Pooling and joining layers commute, so one pass gives all six choices.
    pool = pool if pool == "cls" else "mean"
    all_layers = embed(texts, layers=list(range(depth + 1)), pool=pool).reshape(len(texts), depth + 1, -1)
    return [{"choice": choice, **_judge(_joined(all_layers, choice), labels, folds, seed)} for choice in CHOICES]


def best_layers(rows: Sequence[dict[str, Any]]) -> str:
    """The choice of layers whose probe is most accurate; of equals, `last` if it is among them, else the first."""
    return str(max(rows, key=lambda row: (row["accuracy"], row["choice"] == "last"))["choice"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The compared choices of features as a sentence for the user."""
    listed = ", ".join(f"{row['choice']} {row['accuracy']:.1%} ± {row['spread']:.1%}" for row in rows)
    return f"Accuracy of a linear probe by layers: {listed}. {best_layers(rows)} is used."


def _folds(labels: Sequence[str]) -> int:
    """How many folds cross-validation of the probe can have with these labels."""
    counts = Counter(labels)
    if len(counts) < 2:
        raise UserError(f"The --probe rows have {len(counts)} different labels; at least two are needed.")
    rarest, least = min(counts.items(), key=lambda pair: pair[1])
    if least < 2:
        raise UserError(
            f"Only one --probe row is labelled {rarest!r}, but each label needs two. Add a row, or remove this one."
        )
    return min(FOLDS, least)


def _joined(all_layers: np.ndarray, choice: str) -> np.ndarray:
    """Layers joined to one feature: (rows, depth + 1, width) → (rows, width of the choice)."""
    picked = choose(choice, all_layers.shape[1] - 1)
    parts = all_layers[:, list(picked.numbers)]
    return parts.sum(1) if picked.join == "sum" else parts.reshape(len(parts), -1)


def _judge(vectors: np.ndarray, labels: Sequence[str], folds: int, seed: int) -> dict[str, float]:
    """The probe's accuracy in cross-validation: a logistic regression on the vectors of one choice of layers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = cross_val_score(model, vectors, np.array(labels), cv=parts)
    return {"accuracy": float(scores.mean()), "spread": float(scores.std())}
