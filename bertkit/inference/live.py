"""Small models that learn in front of the reader: a tiny BERT on a pasted text, a classifier on a few typed rows.

Both are generators of events, so that whoever shows them can stop at any time; both are bounded in size and in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.data.batch import Batch, pack
from bertkit.data.examples import TextRow
from bertkit.data.feed import collate
from bertkit.data.masking import MaskVocabulary, mask_tokens
from bertkit.data.packing import Example
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.model.inference import TorchEngine
from bertkit.objectives.masked import Masked
from bertkit.objectives.supervised import Supervised
from bertkit.settings.model import Config
from bertkit.settings.training import LIVE_CHARACTERS as CHARACTERS
from bertkit.settings.training import LIVE_ROWS as ROWS
from bertkit.settings.training import LIVE_SECONDS as SECONDS
from bertkit.settings.training import LIVE_STEPS as STEPS
from bertkit.settings.training import LoopSettings, MaskSettings
from bertkit.tasks import make
from bertkit.tasks.batches import SupervisedFeed, outputs_of
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training.loop import Training
from bertkit.training.run import run_in_view

LENGTH = 48  # tokens of a row
TINY: dict[str, Any] = {"width": 64, "depth": 2, "heads": 4, "inner": 128, "positions": 64, "max_tokens": 64}


@dataclass
class _Rows:
    """A feed of masked rows: every step masks a random choice of rows afresh."""

    examples: list[Example]
    pieces: MaskVocabulary
    seed: int
    batch: int = 16

    def step(self, step: int) -> list[Batch]:
        """The batch of this step of a model that learns live."""
        chance = np.random.default_rng((self.seed, step))
        chosen = [self.examples[n] for n in chance.integers(0, len(self.examples), self.batch)]
        settings = MaskSettings()
        return [collate([(example, *mask_tokens(example, settings, 0.15, self.pieces, chance)) for example in chosen])]


def pretrain_live(
    text: str, gap: str, *, steps: int = 300, seconds: float = 20.0, seed: int = 0, every: int = 10
) -> Iterator[dict[str, Any]]:
    """A tiny BERT, from nothing, on one text. gap: a text with [MASK], filled again every `every` steps.

    Yields {start: {pieces, parameters, rows, words}}, then {step, loss, seconds, guesses: [{token, probability}]},
    and {end: steps or seconds} as the last event.
    """
    _check_budget(steps, seconds)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(text) > CHARACTERS or len("".join(lines)) < 40:
        raise UserError(f"The text has {len(text)} characters; to learn from it, it needs 40 to {CHARACTERS}.")
    tokenizer = learn(lines, VocabularySettings(size=min(2000, 200 + len(text) // 4), min_frequency=2))
    mask = tokenizer.mask_id
    asked = tokenizer.encode(gap)
    if mask is None or mask not in asked.ids or len(asked) > TINY["max_tokens"]:
        raise UserError("The gap needs a [MASK], in a text of at most 62 pieces. Put [MASK] where a word is missing.")
    examples = list(_examples(tokenizer, lines))
    ordinary = np.asarray([n for n in range(tokenizer.size) if n not in tokenizer.special_ids])
    torch.manual_seed(seed)
    config = Config(vocabulary=tokenizer.size, segments=1, dropout=0.0, attention_dropout=0.0, **TINY)
    model = Model(config, {"mlm": 0}, pooler=False)
    feed = _Rows(examples, MaskVocabulary(mask, ordinary), seed)
    training = Training(Masked(model), feed, steps, LoopSettings(lr=3e-3, warmup=0.05), seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    yield {"start": {"pieces": tokenizer.size, "parameters": parameters, "rows": len(examples), "words": len(lines)}}
    place = asked.ids.index(mask)

    def shown() -> dict[str, Any]:
        return {"guesses": _guesses(model, tokenizer, asked, place)}

    yield {"step": 0, "loss": None, "seconds": 0.0, **shown()}
    yield from run_in_view(training, seconds, every, shown)


def _examples(tokenizer: Tokenizer, lines: Sequence[str]) -> Iterator[Example]:
    """Each line of the text a tiny BERT learns from live as rows of at most LENGTH tokens."""
    for line in lines:
        encoding = tokenizer.encode(line)
        body = [n for n, special in enumerate(encoding.special) if not special]
        first = [n for n, special in enumerate(encoding.special) if special]
        for start in range(0, len(body), LENGTH):
            part = encoding.picked([*first[:1], *body[start : start + LENGTH], *first[1:]])
            special = np.asarray(part.special)
            starts = np.asarray([not tokenizer.continuation[n] for n in part.ids]) & ~special
            yield Example(np.asarray(part.ids), np.zeros(len(part), np.int64), special, starts)


@torch.no_grad()
def _guesses(model: Model, tokenizer: Tokenizer, asked: Encoding, place: int) -> list[dict[str, Any]]:
    """What the model trained live guesses for a mask, with probabilities."""
    model.eval()
    scores = model.ask("mlm", model.encoder(pack([asked.ids])), torch.tensor([place]))[0].float().softmax(-1)
    best = scores[: tokenizer.size].topk(5)
    return [
        {"token": tokenizer.id_to_token(n) or "", "probability": p}
        for p, n in zip(best.values.tolist(), best.indices.tolist())
    ]


def finetune_live(
    predictor: Predictor, rows: Sequence[tuple[str, str]], probe: str, *, steps: int = 60, seconds: float = 30.0,
    seed: int = 0, every: int = 2,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A classifier from a pretrained encoder, on rows of (text, label). probe: a new text, labelled every few steps.

    Yields {start: {labels, rows, parameters}}, then {step, loss, seconds, right, probe: {label: probability}}, where
    `right` is the fraction of the rows that are labelled as given, and {end: steps or seconds}.
    """
    _check_budget(steps, seconds)
    labels = tuple(sorted({label for _, label in rows}))
    if not 2 <= len(labels) <= 20 or not 4 <= len(rows) <= ROWS:
        raise UserError(
            f"There are {len(rows)} rows with {len(labels)} labels; give 4 to {ROWS} rows with 2 to 20 labels."
        )
    torch.manual_seed(seed)
    source = predictor.as_written()
    config = source.model.config
    model = Model(config, {"text": len(labels)})
    model.encoder.load_state_dict(source.model.encoder.state_dict())
    task = make("classify", labels=labels, options={})
    windows = Windows(min(128, config.max_tokens), "truncate")
    examples = [TextRow(text, label=label, line=n) for n, (text, label) in enumerate(rows, 1)]
    items = task.encode(examples, source.tokenizer, windows)
    asked = task.encode([TextRow(probe or rows[0][0])], source.tokenizer, windows)
    feed = SupervisedFeed(items, task, batch=8, seed=seed, micro_tokens=4096)
    training = Training(Supervised(model, task), feed, steps, LoopSettings(lr=3e-4, warmup=0.1), seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    yield {"start": {"labels": list(labels), "rows": len(rows), "parameters": parameters}}

    def shown() -> dict[str, Any]:
        model.eval()
        answers = [
            task.decode(item, output) for item, output in zip(items, outputs_of(TorchEngine(model), task, items))
        ]
        right = sum(answer["label"] == label for answer, (_, label) in zip(answers, rows)) / len(rows)
        (guess,) = (
            task.decode(item, output) for item, output in zip(asked, outputs_of(TorchEngine(model), task, asked))
        )
        return {"right": right, "probe": guess["scores"]}

    yield {"step": 0, "loss": None, "seconds": 0.0, **shown()}
    yield from run_in_view(training, seconds, every, shown)


def _check_budget(steps: int, seconds: float) -> None:
    if not (1 <= steps <= STEPS and 0 < seconds <= SECONDS):
        raise UserError(f"{steps} steps in {seconds:g} s are requested; at most {STEPS} in {SECONDS:g} s are allowed.")
