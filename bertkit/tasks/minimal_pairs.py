"""Which of two sentences a language model finds likelier: BLiMP and its kin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertkit import metrics
from bertkit.data.readers import read_minimal_pairs
from bertkit.notify import track

AT_ONCE = 500  # pairs scored together
RESAMPLES = 2000


class TextScorer(Protocol):
    """Anything that prefers one text to another."""

    def score(self, texts: list[str]) -> list[float]:
        """How likely each text is; higher is likelier."""


def judge(scorer: TextScorer, path: str | Path, most: int = 0) -> dict[str, Any]:
    """The share of pairs whose good sentence is likelier: over all, and by group (the mean of groups is BLiMP's)."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in read_minimal_pairs(path):
        kept = groups.setdefault(str(pair.group), [])
        if not most or len(kept) < most:
            kept.append((pair.good, pair.bad))
    pairs = [(group, *texts) for group, kept in groups.items() for texts in kept]
    good: list[float] = []
    bad: list[float] = []
    for start in track(range(0, len(pairs), AT_ONCE), "scoring pairs", -(-len(pairs) // AT_ONCE)):
        part = pairs[start : start + AT_ONCE]
        scores = scorer.score([text for _, one, two in part for text in (one, two)])
        good += scores[0::2]
        bad += scores[1::2]
    scores_all = metrics.minimal_pairs(good, bad)
    by_group: dict[str, list[bool]] = {}
    for (group, _, _), g, b in zip(pairs, good, bad):
        by_group.setdefault(group, []).append(g > b)
    shares = {group: sum(wins) / len(wins) for group, wins in sorted(by_group.items())}
    return {
        "metrics": {"mean_of_groups": sum(shares.values()) / max(1, len(shares)), **scores_all},
        "intervals": {
            "mean_of_groups": _interval([(sum(wins), len(wins)) for wins in by_group.values()]),
            "accuracy": list(metrics.bootstrap(metrics.minimal_pairs, good, bad)["accuracy"]),
        },
        "groups": shares, "rows": len(pairs), "rows_cut": 0,
    }  # fmt: skip


def _interval(groups: list[tuple[int, int]]) -> list[float]:
    """The 95 % interval of the mean of groups, pairs resampled within each. groups: (won, pairs) of each."""
    chance = np.random.default_rng(0)
    drawn = [chance.binomial(pairs, won / pairs, RESAMPLES) / pairs for won, pairs in groups]
    return [float(edge) for edge in np.percentile(np.mean(drawn, axis=0), (2.5, 97.5))]
