"""Training the Transformer on pairs: the loop is bertkit's own, the best weights on the dev pairs are kept."""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bertkit import machine
from bertkit.ancestors.transformer.data import Pair, PairFeed, Pairs, batches, encode_pairs, read_pairs
from bertkit.ancestors.transformer.model import Seq2Seq, Transformer
from bertkit.checkpoint.locate import locate
from bertkit.config import build, to_plain
from bertkit.data.batch import Batch
from bertkit.data.examples import TextRow
from bertkit.errors import Stopped, UserError
from bertkit.model.inference import choose
from bertkit.notify import note, status
from bertkit.settings.ancestors import Seq2SeqSettings, Shape
from bertkit.settings.training import LoopSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training import distributed as worlds
from bertkit.training.loop import Training
from bertkit.training.objective import Objective
from bertkit.training.optimizer import named
from bertkit.training.run_folder import RunFolder, Signals

PASSES = 20  # where no budget is given
HELD_OUT, MOST_HELD_OUT = 0.1, 1000
MOST_SCORED = 1000  # dev pairs that are written out at the end


class Rewriting(Objective):
    """Say each token of a target from its source and the target's tokens before it."""

    def __init__(self, model: Transformer, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """target: cross-entropy, smoothed, over every token of the targets and their ends."""
        assert isinstance(batch, Pairs)
        logits = self.model.words.logits(self.model(batch))
        wanted = batch.extra["wanted"]
        return {
            "target": cross_entropy(
                logits, wanted, reduction="sum", ignore_index=-1, label_smoothing=self.smoothing if self.training else 0
            )
        }

    def counts(self, batch: Batch) -> dict[str, int]:
        """Tokens that are guessed."""
        assert isinstance(batch, Pairs)
        return {"target": batch.target.tokens}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """The loss without smoothing, and the right guesses."""
        assert isinstance(batch, Pairs)
        tokens = batch.target.tokens
        logits = self.model.words.logits(self.model(batch)[:tokens])
        wanted = batch.extra["wanted"][:tokens]
        return {
            "target": float(cross_entropy(logits, wanted, reduction="sum")),
            "target:right": float((logits.argmax(-1) == wanted).sum()),
        }


class Learning:
    """One run. After `go`, `seq2seq` is the finished model."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        self.settings = s = settings
        machine.set_up(s.threads)
        self.world = worlds.join(machine.device_for(s.device))
        rows = self._read()
        tokenizer = self._tokenizer(rows["train"])
        shape = build(Shape, {"vocabulary": tokenizer.size}, "model", s.model)
        self.facts: dict[str, dict[str, int]] = {}
        self.pairs: dict[str, list[Pair]] = {}
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
        """Rows to learn from and to choose by."""
        s = self.settings
        train = read_pairs(s.train, s.text, s.text_b, s.encoding)
        if s.dev:
            return {"train": train, "dev": read_pairs(s.dev, s.text, s.text_b, s.encoding)}
        count = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(train))))
        if len(train) < 2:
            raise UserError(f"{s.train}: one pair alone cannot be learnt and judged. Give more, or --dev.")
        order = np.random.default_rng((s.seed, 6)).permutation(len(train))
        held = set(order[:count].tolist())
        note(f"{s.train}: {count:,} of {len(train):,} pairs are held out to choose by; --dev names others.")
        return {
            "train": [row for n, row in enumerate(train) if n not in held],
            "dev": [train[n] for n in sorted(held)],
        }

    def _tokenizer(self, rows: Sequence[TextRow]) -> Tokenizer:
        """The one given, or one vocabulary for both sides learnt from the training pairs."""
        s = self.settings
        if s.tokenizer:
            return Tokenizer.load(locate(s.tokenizer))
        texts = [text for row in rows for text in (row.text, row.text_b or "")]
        return learn(texts, VocabularySettings(kind=s.kind, size=s.size, cased=s.cased))

    def go(self) -> dict[str, Any]:
        """Train, keep the best, write the model. Returns what is known of the run."""
        s = self.settings
        feed = PairFeed(
            self.pairs["train"], batch=s.batch, seed=s.seed, micro_tokens=s.micro_tokens,
            rank=self.world.rank, ranks=self.world.size,
        )  # fmt: skip
        # Adam's numbers are the paper's (section 5.3); its rate falls with the root of the steps and has no end.
        loop = LoopSettings(
            lr=s.lr, warmup=s.warmup, schedule=s.schedule, decay=s.decay, clip=s.clip, beta2=0.98, eps=1e-9
        )
        steps = s.steps or math.ceil((s.epochs or PASSES) * feed.steps_a_pass)
        training = Training(self.objective, feed, max(1, steps), loop, s.seed, self.world)
        about = {
            "model": repr(self.seq2seq.model.shape),
            "tokenizer": self.seq2seq.tokenizer.fingerprint(),
            "training pairs": hashlib.sha256(repr(self.pairs["train"]).encode()).hexdigest(),
        }
        with RunFolder(s.out, self.world, resume=s.resume) as run, Signals() as signals:
            self._train(training, run, signals, about)
            return self._finish(training, run)

    def _train(self, training: Training, run: RunFolder, signals: Signals, about: dict[str, Any]) -> None:
        s = self.settings
        own = run.begin(training, s, about)
        self.best, self.best_step = float(own.get("best", math.inf)), int(own.get("best_step", 0))
        self.best_weights: dict[str, Tensor] = run.generation.tensors("best") if run.generation else {}
        self._introduce(training)
        seconds: list[float] = []
        last = time.monotonic()
        for step in training:
            done, now = step.step + 1, time.monotonic()
            seconds, last = [*seconds[-50:], now - last], now
            self._log(run, {"step": done, "loss": step.loss, "lr": step.lr, "grad_norm": step.gradient})
            left = (training.steps - done) * float(np.mean(seconds))
            status(f"step {done:,}/{training.steps:,}  loss {step.loss:.3f}  about {left:.0f} s to go")
            if s.minutes and done == 5 and not s.steps and not s.epochs:
                fitting = int(s.minutes * 60 * 0.9 / float(np.mean(seconds[1:])))
                training.set_steps(self.world.most(max(10, fitting)))
            late = self.world.anywhere(bool(s.minutes) and run.elapsed() > s.minutes * 60)
            if done % max(1, training.steps // s.evals) == 0 or done == training.steps or late:
                self._evaluate(run, done)
            stop = self.world.anywhere(bool(signals.asked))
            if stop or self.world.anywhere(time.monotonic() - run.last_save > s.save_minutes * 60):
                kept = self.best_weights or self._weights()
                run.save(training, about, {"best": self.best, "best_step": self.best_step}, {"best": kept})
            if stop:
                words = f"saved at step {done} of {training.steps} in {s.out}; continue with --resume."
                raise Stopped(signals.asked or signal.SIGTERM, words)
            if late:
                note(f"stopped after {s.minutes:g} minutes.")
                break
        if self.best_weights:
            self.seq2seq.model.load_state_dict(self.best_weights, strict=False)

    def _introduce(self, training: Training) -> None:
        numbers = sum(p.numel() for p in named(self.seq2seq.model).values())
        if self.world.is_main:
            note(
                f"Transformer of {numbers:,} numbers, {self.seq2seq.tokenizer.size:,} pieces; "
                f"{len(self.pairs['train']):,} pairs, {training.steps:,} steps of {self.settings.batch}."
            )

    def _log(self, run: RunFolder, row: dict[str, Any]) -> None:
        if self.world.is_main:
            run.metrics.write(row)

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in named(self.seq2seq.model).items()}

    def judged(self) -> dict[str, float]:
        """Over the dev pairs, each token guessed from the right ones before it."""
        self.objective.eval()
        sums: dict[str, float] = {}
        tokens = 0
        for batch in batches(self.pairs["dev"], self.settings.micro_tokens):
            tokens += batch.target.tokens
            for name, value in self.objective.judge(batch.to(self.world.device)).items():
                sums[name] = sums.get(name, 0.0) + value
        return {"dev_loss": sums["target"] / tokens, "token_accuracy": sums["target:right"] / tokens}

    def _evaluate(self, run: RunFolder, done: int) -> None:
        """Judge by the dev loss; keep the weights if they are the best so far."""
        scores = self.judged()
        better = scores["dev_loss"] < self.best
        if better:
            self.best, self.best_step, self.best_weights = scores["dev_loss"], done, self._weights()
        self._log(run, {"step": done, "eval": True, **scores})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        if self.world.is_main:
            note(f"step {done:,}: {shown}{'  ← best' if better else ''}")

    def exact_match(self) -> tuple[float, int]:
        """The share of dev pairs whose target is written as it should be, and how many were tried."""
        tried = self.pairs["dev"][:MOST_SCORED]
        if len(tried) < len(self.pairs["dev"]) and self.world.is_main:
            note(f"exact_match is of the first {len(tried):,} of {len(self.pairs['dev']):,} dev pairs.")
        said = self.seq2seq.search_ids([pair.source for pair in tried], self.settings.beam)
        text = self.seq2seq.tokenizer.decode
        right = sum(text(ids) == text(pair.wanted) for (ids, _, _), pair in zip(said, tried))
        return right / len(tried), len(tried)

    def _finish(self, training: Training, run: RunFolder) -> dict[str, Any]:
        s = self.settings
        self.seq2seq.model.encoder.dtype = torch.float32  # as it is when it is loaded
        exact, rows = self.exact_match()
        metrics = {"exact_match": exact, **self.judged()}
        self._log(run, {"step": training.done, "final": True, **metrics})
        result = {
            "out": str(s.out), "metrics": metrics, "rows": rows, "data": self.facts, "steps": training.done,
            "best_step": self.best_step, "seconds": run.elapsed(), "settings": to_plain(s),
        }  # fmt: skip
        if self.world.is_main:
            self.seq2seq.about = {key: result[key] for key in ("metrics", "rows", "data", "steps", "best_step")}
            self.seq2seq.save(s.out)
        return result


def train(settings: Seq2SeqSettings) -> dict[str, Any]:
    """Run it. The result's `metrics` are of the dev pairs."""
    try:
        return Learning(settings).go()
    finally:
        worlds.leave()
