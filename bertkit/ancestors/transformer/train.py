"""Training the Transformer on pairs: the loop is bertkit's own, the best weights on the dev pairs are kept."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bertkit import machine
from bertkit.ancestors.transformer.data import PairFeed, Pairs, TextPair, batches, encode_pairs, read_pairs
from bertkit.ancestors.transformer.model import Seq2Seq, Transformer
from bertkit.checkpoint.locate import locate
from bertkit.config import build, to_plain
from bertkit.data.batch import Batch
from bertkit.data.examples import TextRow
from bertkit.errors import UserError
from bertkit.model.inference import choose
from bertkit.notify import note
from bertkit.settings.ancestors import Seq2SeqSettings, Seq2SeqShape
from bertkit.settings.training import LoopSettings, Plan
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training import distributed as worlds
from bertkit.training.loop import Objective, Training
from bertkit.training.optimizer import named
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals

PASSES = 20  # where no budget is given
FOR_STEPS = 0.9  # of a time budget; the rest is for writing out the dev pairs
HELD_OUT, MOST_HELD_OUT = 0.1, 1000
MOST_SCORED = 1000  # dev pairs that are written out at the end


class Rewriting(Objective):
    """The Transformer's objective: say each token of a target from its source and the target's tokens before it."""

    def __init__(self, model: Transformer, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The Transformer's loss, `target`: smoothed cross-entropy over every token of the targets and their ends."""
        assert isinstance(batch, Pairs)
        logits = self.model.words.logits(self.model(batch))
        targets = batch.extra["wanted"]
        smoothing = self.smoothing if self.training else 0
        loss = cross_entropy(logits, targets, reduction="sum", ignore_index=-1, label_smoothing=smoothing)
        return {"target": loss}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Target tokens that the Transformer guesses."""
        assert isinstance(batch, Pairs)
        return {"target": batch.target.tokens}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """The Transformer's loss without smoothing, and the right guesses."""
        assert isinstance(batch, Pairs)
        tokens = batch.target.tokens
        logits = self.model.words.logits(self.model(batch)[:tokens])
        targets = batch.extra["wanted"][:tokens]
        return {
            "target": float(cross_entropy(logits, targets, reduction="sum")),
            "target:right": float((logits.argmax(-1) == targets).sum()),
        }


class Seq2SeqTraining:
    """One training of the Transformer. After `go`, `seq2seq` is the finished model."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        self.settings = s = settings
        machine.set_up(s.threads)
        self.world = worlds.join(machine.device_for(s.device))
        rows = self._read()
        tokenizer = self._tokenizer(rows["train"])
        shape = build(Seq2SeqShape, {"vocabulary": tokenizer.size}, "model", s.model)
        self.facts: dict[str, dict[str, int]] = {}
        self.pairs: dict[str, list[TextPair]] = {}
        for role, members in rows.items():
            where = str(s.dev if role == "dev" and s.dev else s.train)
            self.pairs[role], self.facts[role] = encode_pairs(members, tokenizer, shape.max_tokens, s.on_long, where)
        torch.manual_seed(s.seed)
        model = Transformer(shape)
        model.initialise()
        model.encoder.dtype = choose(s.precision, self.world.device)
        self.seq2seq = Seq2Seq(model.to(self.world.device), tokenizer)
        self.objective = Rewriting(model, s.smoothing)

    def _read(self) -> dict[str, list[TextRow]]:
        """Pairs to train the Transformer on and to choose by."""
        s = self.settings
        train = read_pairs(s.train, s.text, s.text_b, s.encoding)
        if s.dev:
            return {"train": train, "dev": read_pairs(s.dev, s.text, s.text_b, s.encoding)}
        count = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(train))))
        if len(train) < 2:
            raise UserError(f"{s.train}: one pair is not enough to train and to evaluate on. Add pairs, or pass --dev.")
        order = np.random.default_rng((s.seed, 6)).permutation(len(train))
        held_out = set(order[:count].tolist())
        note(
            f"{s.train}: {count:,} of {len(train):,} pairs are held out for model selection; pass --dev to use others."
        )
        return {
            "train": [row for n, row in enumerate(train) if n not in held_out],
            "dev": [train[n] for n in sorted(held_out)],
        }

    def _tokenizer(self, rows: Sequence[TextRow]) -> Tokenizer:
        """The Transformer's tokenizer: the given one, or one vocabulary for both sides learnt from the pairs."""
        s = self.settings
        if s.tokenizer:
            return Tokenizer.load(locate(s.tokenizer))
        texts = [text for row in rows for text in (row.text, row.text_b or "")]
        return learn(texts, VocabularySettings(kind=s.kind, size=s.size, cased=s.cased))

    def go(self) -> dict[str, Any]:
        """Train the Transformer, keep the best weights, write the model. Returns what is known of the run."""
        s = self.settings
        with RunFolder(s.out, self.world, resume=s.resume) as folder, Signals() as signals:
            result = _Run(self, folder, signals).go()
            folder.forget()
        return result

    def judged(self) -> dict[str, float]:
        """The Transformer's scores over the dev pairs, each token guessed from the right ones before it."""
        self.objective.eval()
        sums: dict[str, float] = {}
        tokens = 0
        for batch in batches(self.pairs["dev"], self.settings.micro_tokens):
            tokens += batch.target.tokens
            for name, value in self.objective.judge(batch.to(self.world.device)).items():
                sums[name] = sums.get(name, 0.0) + value
        return {"dev_loss": sums["target"] / tokens, "token_accuracy": sums["target:right"] / tokens}

    def exact_match(self) -> tuple[float, int]:
        """The share of dev pairs whose target the Transformer writes as it should be, and how many were tried."""
        tried = self.pairs["dev"][:MOST_SCORED]
        if len(tried) < len(self.pairs["dev"]) and self.world.is_main:
            note(f"exact_match is computed on the first {len(tried):,} of {len(self.pairs['dev']):,} dev pairs.")
        predictions = self.seq2seq.search_ids([pair.source for pair in tried], self.settings.beam)
        text = self.seq2seq.tokenizer.decode
        right = sum(text(ids) == text(pair.wanted) for (ids, _, _), pair in zip(predictions, tried))
        return right / len(tried), len(tried)


class _Run(Run[dict[str, Any]]):
    """The steps of a training on pairs, and the model they end in."""

    def __init__(self, learning: Seq2SeqTraining, folder: RunFolder, signals: Signals) -> None:
        self.learning = learning
        s, seq2seq, pairs, world = learning.settings, learning.seq2seq, learning.pairs["train"], learning.world
        feed = PairFeed(
            pairs, batch=s.batch, seed=s.seed, micro_tokens=s.micro_tokens, rank=world.rank, ranks=world.size
        )
        passes = s.epochs or (0 if s.minutes else PASSES)
        plan = Plan(
            s.steps or math.ceil(passes * feed.steps_per_pass), s.minutes, deadline=True, share=FOR_STEPS,
            evals=s.evals, save_minutes=s.save_minutes,
        )  # fmt: skip
        # Adam's numbers are the paper's (section 5.3); its rate falls with the root of the steps and has no end.
        loop = LoopSettings(
            lr=s.lr, warmup=s.warmup, schedule=s.schedule, decay=s.decay, clip=s.clip, beta2=0.98, eps=1e-9
        )
        training = Training(learning.objective, feed, plan.steps or FIRST_GUESS, loop, s.seed, world)
        about = {
            "model": repr(seq2seq.model.shape),
            "tokenizer": seq2seq.tokenizer.fingerprint(),
            "training pairs": hashlib.sha256(repr(pairs).encode()).hexdigest(),
        }
        super().__init__(s, plan, training, folder, signals, about, keep_best=seq2seq.model)

    def introduce(self) -> str:
        """The message before the Transformer is trained: model, pairs and steps."""
        seq2seq, pairs = self.learning.seq2seq, self.learning.pairs["train"]
        parameters = sum(p.numel() for p in named(seq2seq.model).values())
        return (
            f"Transformer of {parameters:,} parameters, {seq2seq.tokenizer.size:,} pieces; {len(pairs):,} pairs, "
            f"{self.training.steps:,} steps of {self.learning.settings.batch}."
        )

    def eval_interval(self) -> int:
        """Steps between the Transformer's evaluations, so that there are `evals` of them."""
        return max(1, self.training.steps // self.plan.evals)

    def evaluate(self) -> dict[str, float]:
        """The Transformer's loss and accuracy on the dev pairs."""
        return self.learning.judged()

    def rank(self, scores: dict[str, float]) -> tuple[float, ...]:
        """The Transformer's best weights are those of the lowest dev loss."""
        return (-next(iter(scores.values())),)

    def finish(self) -> dict[str, Any]:
        """Score the Transformer's best weights and write the model."""
        learning, seq2seq = self.learning, self.learning.seq2seq
        seq2seq.model.encoder.dtype = torch.float32  # as it is when it is loaded
        exact, rows = learning.exact_match()
        metrics = {"exact_match": exact, **learning.judged()}
        result = {
            "out": str(learning.settings.out), "metrics": metrics, "rows": rows, "data": learning.facts,
            "steps": self.training.done, "best_step": self.best_step, "seconds": self.run.elapsed(),
            "settings": to_plain(learning.settings),
        }  # fmt: skip
        if self.world.is_main:
            self.run.metrics.write({"step": self.training.done, "final": True, **metrics})
            seq2seq.about = {key: result[key] for key in ("metrics", "rows", "data", "steps", "best_step")}
            seq2seq.save(learning.settings.out)
        return result


def train(settings: Seq2SeqSettings) -> dict[str, Any]:
    """Train the Transformer on pairs of texts. The result's `metrics` are of the dev pairs."""
    try:
        return Seq2SeqTraining(settings).go()
    finally:
        worlds.leave()
