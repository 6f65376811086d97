"""Bars, counts and a grid of shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report.format import as_number, clip, escape, plain
from bertkit.report.svg.axes import (
    WIDTH,
    Drawing,
    Scale,
    drawing,
    frame,
    nothing,
    round_step,
    span,
    stroke,
    text_width,
    tick_labels,
    write,
)
from bertkit.report.words import words

MOST_BARS = 40
MOST_CELLS = 40


def bar_plot(
    names: Sequence[str],
    values: Sequence[Any],
    intervals: Sequence[Any] | None = None,
    *,
    most: float | None = None,
    lang: str = "en",
) -> Drawing:
    """A bar plot: horizontal bars with names and values; intervals: (low, high) or None per bar.

    A negative value extends to the left, in another colour. The first 40 are drawn, and the others are counted.
    """
    numbers = [as_number(value) for value in values]
    rows = [(n, value) for n, value in enumerate(numbers) if value is not None]
    title = ", ".join(clip(names[n], 20) for n, _ in rows[:8])
    if not rows:
        return nothing(title, lang)
    drawn = rows[:MOST_BARS]
    between = {n: _interval(intervals[n]) for n, _ in drawn} if intervals else {}
    ends = [end for pair in between.values() if pair for end in pair]
    low, high = span([*(value for _, value in drawn), *ends], floor=0.0)
    high = max(high, most) if most is not None else high
    labels = [clip(names[n], 26) for n, _ in drawn]
    left = min(0.42 * WIDTH, 10 + max(text_width(label) for label in labels))
    x = Scale(low, high, left + (54 if low < 0 else 0), WIDTH - 62)
    height = 26.0 * len(drawn) + 26 + (20 if len(rows) > len(drawn) else 0)
    parts = _upright(x, 2, 26.0 * len(drawn) + 4)
    if low < 0:
        parts.append(stroke(x(0), 2, x(0), 26.0 * len(drawn) + 4, "mark"))
    for row, ((n, value), label) in enumerate(zip(drawn, labels)):
        y = 6 + 26.0 * row
        start, stop = sorted((x(min(max(0.0, low), high)), x(value)))
        parts.append(
            f'<rect class="{"f0" if value >= 0 else "f1"}" x="{start:.1f}" y="{y:.1f}" '
            f'width="{max(0.8, stop - start):.1f}" height="16" rx="2">'
            f"<title>{escape(clip(names[n], 120))}: {escape(plain(value))}</title></rect>"
        )
        parts.append(write(left - 8, y + 12.5, label, "end", "strong"))
        pair, end = between.get(n), stop if value >= 0 else start
        if pair:
            end = max(stop, x(pair[1])) if value >= 0 else min(start, x(pair[0]))
            middle = y + 8
            parts.append(stroke(x(pair[0]), middle, x(pair[1]), middle, "whisker"))
            parts += [stroke(x(edge), middle - 4, x(edge), middle + 4, "whisker") for edge in pair]
        aside, anchor = (6, "start") if value >= 0 else (-6, "end")
        parts.append(write(end + aside, y + 12.5, plain(value, 3), anchor))
    if len(rows) > len(drawn):
        parts.append(write(0, height - 4, words(lang)["more"].format(count=f"{len(rows) - len(drawn):,}")))
    return drawing(title, parts, height)


def histogram(
    values: Sequence[Any] = (),
    *,
    bins: Sequence[tuple[float, float, float]] | None = None,
    x_label: str,
    y_label: str = "",
    marks: Mapping[str, float] | None = None,
    lang: str = "en",
) -> Drawing:
    """A bar plot of how often values occur: from the values themselves, or from bins of (low, high, count)."""
    cells = [tuple(map(as_number, cell)) for cell in bins] if bins is not None else _binned(values)
    complete = [(a, b, c) for a, b, c in cells if a is not None and b is not None and c is not None and b > a]
    if not complete:
        return nothing(x_label, lang)
    ends = [end for low, high, _ in complete for end in (low, high)]
    xs = min(ends), max([*ends, *(marks or {}).values()])
    xs = xs if xs[1] <= 4 * max(ends) else (xs[0], max(ends))  # a distant mark would squeeze the bars
    ys = span([count for *_, count in complete], floor=0.0)
    axes = frame(xs, ys, x_label=x_label, y_label=y_label or words(lang)["rows"], marks=marks)
    for low, high, count in complete:
        left, right, top = axes.x(low), axes.x(high), axes.y(count)
        axes.parts.append(
            f'<rect class="f0" x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(0.8, right - left - 1):.1f}" '
            f'height="{max(0.0, axes.y.start - top):.1f}"><title>{escape(plain(low))} – {escape(plain(high))}: '
            f"{escape(plain(count))}</title></rect>"
        )
    return drawing(x_label, axes.parts)


def heat_map(
    matrix: Sequence[Sequence[Any]],
    row_names: Sequence[str],
    column_names: Sequence[str],
    *,
    row_label: str = "",
    column_label: str = "",
    lang: str = "en",
) -> Drawing:
    """A grid of counts beside the bar plots, each row shaded by its own share: a confusion matrix."""
    title = f"{row_label} × {column_label}"
    table = [[as_number(cell) for cell in list(row)[:MOST_CELLS]] for row in list(matrix)[:MOST_CELLS]]
    across = max((len(row) for row in table), default=0)
    if not across:
        return nothing(title, lang)
    longest = 18 if len(table) <= 12 else 12
    left_names, top_names = ([clip(name, longest) for name in names] for names in (row_names, column_names))
    left = min(150.0, 12 + max((text_width(name) for name in left_names), default=0)) + (18 if row_label else 0)
    side = min(64.0, (WIDTH - left - 26) / across)
    is_flat = all(text_width(name) <= side - 4 for name in top_names)
    slant = 20.0 if is_flat else 12 + 0.72 * max(text_width(name) for name in top_names)
    top = slant + (20 if column_label else 0)
    tall = min(44.0, side)
    parts = [write(left, 12, clip(column_label, 40))] if column_label else []
    if row_label:
        middle = top + tall * len(table) / 2
        turned = f'<g transform="translate(12 {middle:.1f}) rotate(-90)">'
        parts.append(turned + write(0, 0, clip(row_label, 30), "middle") + "</g>")
    for c, name in enumerate(top_names[:across]):
        x = left + side * (c + 0.5)
        place = f'<g transform="translate({x:.1f} {top - 7:.1f}){"" if is_flat else " rotate(-45)"}">'
        parts.append(place + write(0, 0, name, "middle" if is_flat else "start", "strong") + "</g>")
    for r, row in enumerate(table):
        total = sum(cell for cell in row if cell) or 1.0
        y = top + tall * r
        if r < len(left_names):
            parts.append(write(left - 8, y + tall / 2 + 4.5, left_names[r], "end", "strong"))
        for c, cell in enumerate(row):
            parts.append(_cell(left + side * c, y, side, tall, cell, (cell or 0.0) / total))
    hidden = max(len(matrix), max((len(row) for row in matrix), default=0)) - MOST_CELLS
    height = top + tall * len(table) + (24 if hidden > 0 else 6)
    if hidden > 0:
        parts.append(write(left, height - 4, words(lang)["more"].format(count=f"{hidden:,}")))
    return drawing(title, parts, height)


def _cell(x: float, y: float, side: float, tall: float, value: float | None, share: float) -> str:
    """A cell of a heat map, with its value."""
    strength = 0.05 + 0.9 * min(1.0, max(0.0, share))
    label = escape(plain(value) if value is None or value != int(value) else f"{int(value):,}")
    parts = (
        f'<rect class="f0" fill-opacity="{strength:.2f}" x="{x + 0.75:.1f}" y="{y + 0.75:.1f}" rx="2" '
        f'width="{side - 1.5:.1f}" height="{tall - 1.5:.1f}"><title>{label} ({100 * share:.0f} %)</title></rect>'
    )
    if side < text_width(label, 11) + 4 or tall < 15 or value is None:
        return parts
    return parts + write(x + side / 2, y + tall / 2 + 4.5, label, "middle", "on" if strength > 0.5 else "strong")


def _upright(x: Scale, top: float, bottom: float) -> list[str]:
    ticks = x.ticks(4)
    parts = [stroke(x(tick), top, x(tick), bottom, "grid") for tick in ticks]
    return parts + [write(x(tick), bottom + 15, label, "middle") for tick, label in zip(ticks, tick_labels(ticks))]


def _interval(pair: Any) -> tuple[float, float] | None:
    ends = [as_number(end) for end in pair] if pair is not None else []
    return (ends[0], ends[1]) if len(ends) == 2 and ends[0] is not None and ends[1] is not None else None


def _binned(values: Sequence[Any]) -> list[tuple[float, float, float]]:
    """Values counted in bins of round width, for a histogram."""
    numbers = [number for number in map(as_number, values) if number is not None]
    if not numbers:
        return []
    low, high = min(numbers), max(numbers)
    wide = round_step(high - low, 30) if high > low else abs(high) * 0.1 or 1.0
    if all(number == int(number) for number in numbers):
        wide = max(1.0, math.ceil(wide))
    counts = Counter(math.floor(number / wide) for number in numbers)
    return [(n * wide, (n + 1) * wide, counts[n]) for n in range(min(counts), max(counts) + 1)]
