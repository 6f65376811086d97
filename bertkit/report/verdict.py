"""Which contender to use, in one or two sentences that follow from the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report.format import as_number, between, plain
from bertkit.report.words import words

NOISE = 0.05
SMALL = 0.02  # a gap of scores between 0 and 1 that few would pay for
NEAR = 0.15  # of the way from the worst to the best: more is a loss, whatever a test on few rows says
CHEAPER = 1.5  # a smaller saving is no reason to take a lower score
COSTS = ("ms_per_text", "train_seconds", "megabytes")


def verdict(contenders: Sequence[Mapping[str, Any]], *, lang: str = "en", p_below: float = NOISE) -> str:
    """Use the cheapest that is clearly cheaper than the best and within noise of it; the best where it is truly better.

    A cheaper one that lost much, but not more than chance may take on so few rows, leaves it open.

    Within noise: its p-value against the best is not under `p_below`; without a p-value, the best score lies inside
    its interval. The cost is milliseconds a text, else training seconds, else megabytes: the first that all have.
    """
    said = words(lang)
    scored = [c for c in contenders if as_number(c.get("score")) is not None]
    if not scored:
        return said["verdict_none"]
    best = max(scored, key=_score)
    if len(scored) == 1:
        return said["verdict_alone"].format(best=best.get("name"), a=plain(_score(best)))
    kind = next((key for key in COSTS if all((as_number(c.get(key)) or 0.0) > 0 for c in scored)), None)
    cheaper = [c for c in scored if c is not best and (not kind or CHEAPER * float(c[kind]) <= float(best[kind]))]
    level = [c for c in cheaper if kind and _is_level(c, best, p_below) and _is_near(c, best, scored)]
    pick = min(level, key=lambda c: (float(c[kind]), -_score(c)), default=best) if kind else best
    if pick is not best and kind:
        ratio = float(best[kind]) / float(pick[kind])
        return said["verdict_cheap"].format(
            pick=pick.get("name"),
            best=best.get("name"),
            a=plain(_score(pick)),
            b=plain(_score(best)),
            p=_chance(pick),
            ratio=_times(ratio),
            cost=said[f"cost_{kind}"],
        )
    if not cheaper:
        return said["verdict_both"].format(best=best.get("name"), a=plain(_score(best)))
    rival = max(cheaper, key=_score)
    sentence = said["verdict_unsure" if _is_level(rival, best, p_below) else "verdict_best"].format(
        best=best.get("name"), rival=rival.get("name"), a=plain(_score(best)), b=plain(_score(rival)), p=_chance(rival)
    )
    if kind is None:
        return sentence
    ratio = float(best[kind]) / float(rival[kind])
    return sentence + " " + said["verdict_price"].format(ratio=_times(ratio), cost=said[f"cost_{kind}"])


def _is_near(contender: Mapping[str, Any], best: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it lost little of what the best gained over the worst: few rows make large gaps look like noise."""
    worst = min(_score(c) for c in scored)
    return _score(best) - _score(contender) <= max(SMALL, NEAR * (_score(best) - worst))


def _score(contender: Mapping[str, Any]) -> float:
    return as_number(contender.get("score")) or 0.0


def _is_level(contender: Mapping[str, Any], best: Mapping[str, Any], p_below: float) -> bool:
    chance = as_number(contender.get("p_value"))
    if chance is not None:
        return chance >= p_below
    reach = between(contender.get("score"), contender.get("interval")).high
    return reach is not None and reach >= _score(best)


def _chance(contender: Mapping[str, Any]) -> str:
    chance = as_number(contender.get("p_value"))
    return "" if chance is None else ", p < 0.001" if chance < 0.001 else f", p = {chance:.2g}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"
