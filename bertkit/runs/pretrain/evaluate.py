"""Evaluation on held-out text during training, with the same masks every time, so that scores are comparable."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertkit.data.batch import batches_by_tokens
from bertkit.data.feed import Phase, PretrainingFeed, collate
from bertkit.model.heads import Model
from bertkit.runs.pretrain.build import Components
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import World

NAMES = {
    "words": "mlm",
    "states": "match",
    "next": "lm",
    "next_sentence": "next_sentence",
    "order": "order",
    "replaced": "replaced",
}


class Evaluation:
    """A fixed set of held-out examples with 15 % of their tokens masked (none if the next piece is predicted)."""

    def __init__(self, built: Components, world: World) -> None:
        self.built, self.world = built, world
        s = built.settings
        length = s.eval_length or s.length_plan[0][1]
        self.rate = 0.15 if s.hiding.rate else 0.0
        masking = replace(s.hiding, rate=self.rate, rate_end=0.0, copies=1)
        self.feed = PretrainingFeed(
            built.store, built.held_out, packing=s.packing, masking=masking, plan=[Phase(0, 1, length, 1)],
            seed=s.seed + 1, short_prob=0.0, micro_tokens=s.micro_tokens,
        )  # fmt: skip
        count = min(len(self.feed.packing(length)), max(1, s.eval_tokens // length))
        order = torch.randperm(len(self.feed.packing(length)), generator=torch.Generator().manual_seed(s.seed))
        examples = [(length, int(n)) for n in order[:count]]
        # A rank without examples evaluates one with weight 0: all ranks must have the same terms to add up.
        # Ranks with sharded weights must compute in lockstep, so each of them evaluates everything.
        mine = examples if s.shard else examples[world.rank :: world.size]
        self.examples, self.weight = mine or examples[:1], float(bool(mine))

    def __call__(self) -> dict[str, float]:
        """Losses, perplexity and accuracies over the set."""
        objective = self.built.objective.eval()
        rows = [self.feed.masked(length, number, 0, self.rate) for length, number in self.examples]
        sums: dict[str, float] = {}
        for part, picked in enumerate(batches_by_tokens([len(row[0].ids) for row in rows], 8192)):
            batch = collate([rows[i] for i in picked], self.built.words_teacher).to(self.world.device)
            for masks in objective.dropout_masks():
                masks.seed(self.built.settings.seed, 0, 0, part)
            for name, value in objective.judge(batch).items():
                sums[name] = sums.get(name, 0.0) + self.weight * value
            for name, number in objective.counts(batch).items():
                sums[f"{name}:count"] = sums.get(f"{name}:count", 0.0) + self.weight * number
        sums = sums if self.built.settings.shard else self.world.sums(sums)
        scores: dict[str, float] = {}
        for name in [key for key in sums if ":" not in key]:
            count = max(1.0, sums[f"{name}:count"])
            metric = NAMES[name]
            scores[f"{metric}_loss"] = sums[name] / count
            if f"{name}:right" in sums:
                scores[f"{metric}_accuracy"] = sums[f"{name}:right"] / count
            if metric in ("mlm", "lm"):
                scores["perplexity"] = math.exp(min(50.0, scores[f"{metric}_loss"]))
        if self.built.settings.minimal_pairs and self.world.is_main and not self.built.settings.shard:
            scores["minimal_pairs"] = self._minimal_pairs()
        objective.train()
        return scores

    def _minimal_pairs(self, most: int = 50) -> float:
        """Fraction of pairs whose good sentence is more likely: the first `most` of each file."""
        from bertkit.data.readers import read_minimal_pairs
        from bertkit.inference.scoring import score

        model = self.built.folders.get("generator", self.built.folders[""]).model
        scorer = Scorer(model, model.config, self.built.store.tokenizer, self.world.device)
        counts: dict[Any, int] = {}
        pairs = []
        for pair in read_minimal_pairs(Path(self.built.settings.minimal_pairs)):
            counts[pair.group] = counts.get(pair.group, 0) + 1
            if counts[pair.group] <= most:
                pairs.append(pair)
        good = score(scorer, [pair.good for pair in pairs])  # type: ignore[arg-type]
        bad = score(scorer, [pair.bad for pair in pairs])  # type: ignore[arg-type]
        return sum(g > b for g, b in zip(good, bad)) / max(1, len(pairs))


@dataclass
class Scorer:
    """The parts of a predictor that scoring needs, for a model still in training."""

    model: Model
    config: Config
    tokenizer: Tokenizer
    device: str
