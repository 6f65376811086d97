"""What more labels would bring, read off a learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SAID = {
    "en": (
        "{name}: from {half:,} to {rows:,} rows its score went from {before:.3f} to {after:.3f}. "
        "If each doubling goes on bringing {share:.0%} of the one before, {double:,} rows would give about {guess:.3f}."
    ),
    "zh": (
        "{name}：训练行数从 {half:,} 增至 {rows:,}，得分由 {before:.3f} 变为 {after:.3f}。"
        "若每次翻倍的收益为前一次的 {share:.0%}，{double:,} 行约可达 {guess:.3f}。"
    ),
}
FLAT = {
    "en": (
        "{name}: the last doubling of the rows brought nothing ({before:.3f} to {after:.3f}); "
        "more labels of the same kind will hardly help."
    ),
    "zh": "{name}：最近一次把行数翻倍没有带来提升（{before:.3f} 到 {after:.3f}）；再标注同类数据帮助不大。",
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
    # Gains shrink from doubling to doubling; where they seemed to grow, noise is the likelier reason.
    share = min(1.0, max(0.25, gain / earlier)) if earlier > 0 else 0.5
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
