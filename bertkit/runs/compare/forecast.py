"""What more labels would bring, read off a learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SAID = {
    "en": (
        "{name}: from {half:,} to {rows:,} rows its score went from {before:.3f} to {after:.3f}. "
        "If the next doubling brings {share:.0%} of what this one did, {double:,} rows would give about {guess:.3f}."
    ),
    "zh": (
        "{name}：训练行数从 {half:,} 增至 {rows:,}，得分由 {before:.3f} 变为 {after:.3f}。"
        "若下一次翻倍的收益为这一次的 {share:.0%}，{double:,} 行约可达 {guess:.3f}。"
    ),
}
FLAT = {
    "en": (
        "{name}: the last doubling of the rows brought nothing ({before:.3f} to {after:.3f}); "
        "more labels of the same kind will hardly help."
    ),
    "zh": "{name}：最近一次把行数翻倍没有带来提升（{before:.3f} 到 {after:.3f}）；再标注同类数据帮助不大。",
}
FULL = {
    "en": "{name}: with {rows:,} rows no mistake is left on the rows it is scored on; more labels cannot show here.",
    "zh": "{name}：用 {rows:,} 行训练后，评分数据上已无错误；更多标注在此看不出差别。",
}


def outlook(curve: Mapping[str, Sequence[tuple[int, float]]], name: str, *, lang: str = "en") -> str:
    """A sentence on the contender `name` (or the first with a curve). Points: (rows, score) at a quarter, half, all."""
    if not curve:
        return ""
    name = name if name in curve else next(iter(curve))
    (_, first), (half, before), (rows, after) = curve[name][-3:]
    gain, earlier = after - before, before - first
    if gain <= 0:
        return FLAT[lang].format(name=name, before=before, after=after)
    if after >= 1:
        return FULL[lang].format(name=name, rows=rows)
    # Gains shrink from doubling to doubling; where they seemed to grow, noise is the likelier reason. Nor do mistakes
    # become fewer by a greater factor than they just did: so the score stays below 1.
    share = min(1.0, max(0.25, gain / earlier)) if earlier > 0 else 0.5
    share = min(share, (1 - after) / (1 - before))
    return SAID[lang].format(
        name=name,
        half=half,
        rows=rows,
        before=before,
        after=after,
        share=share,
        double=2 * rows,
        guess=after + share * gain,
    )
