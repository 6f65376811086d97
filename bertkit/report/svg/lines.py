"""Lines over an axis: curves of training, calibration, and what abstaining buys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from bertkit.report.format import as_number, clip, percent, plain
from bertkit.report.svg.axes import (
    COLOURS,
    Drawing,
    Frame,
    dash,
    dot,
    drawing,
    frame,
    nothing,
    span,
    stroke,
    text_width,
    write,
)
from bertkit.report.words import words

Points = list[tuple[float, float]]
MOST_BUCKETS = 320  # more columns of points cannot be told apart
MOST_SERIES = 12


def line_plot(
    series: Mapping[str, tuple[Sequence[Any], Sequence[Any]]],
    *,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    smooth: bool | Collection[str] = False,
    marks: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
    floor: float | None = None,
    lang: str = "en",
) -> Drawing:
    """A line plot of {name: (xs, ys)}; points that are not finite (or not above 0 when log_y) are skipped.

    smooth draws a running mean over the faint raw curve, of all series or of those named. marks: name → x, upright
    lines; levels: name → y, level lines. floor: a y that the axis must hold, such as 0. At most 12 series are drawn.
    """
    title = f"{y_label or ', '.join(series)}, {x_label}"
    curves = {name: points_of(*both, above_zero=log_y) for name, both in list(series.items())[:MOST_SERIES]}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return nothing(title, lang)
    flat = {name: y for name, y in (levels or {}).items() if as_number(y) is not None and (y > 0 or not log_y)}
    xs = _ends([x for points in curves.values() for x, _ in points])
    ys = span([*(y for points in curves.values() for _, y in points), *flat.values()], log=log_y, floor=floor)
    axes = frame(xs, ys, x_label=x_label, y_label=y_label, log_y=log_y, names=list(curves), marks=marks)
    for name, y in flat.items():
        axes.parts.append(stroke(axes.x.start, axes.y(y), axes.x.end, axes.y(y), "mark"))
        axes.parts.append(write(axes.x.end, axes.y(y) - 5, clip(name, 40), "end"))
    for number, (name, points) in enumerate(curves.items()):
        colour, pattern = f"s{number % COLOURS}", f"d{dash(number)}"
        if len(points) > 4 and (smooth if isinstance(smooth, bool) else name in smooth):
            axes.parts.append(_path(axes, thinned(points), f"line raw {colour}"))
            points = running_mean(points)
        axes.parts.append(_path(axes, thinned(points), f"line {colour} {pattern}"))
        if len(points) <= 24:
            axes.parts.extend(
                dot(axes.x(x), axes.y(y), 3, f"f{number % COLOURS}", f"{clip(name, 60)}: {plain(x)}, {plain(y)}")
                for x, y in points
            )
    return drawing(title, axes.parts, axes.height)


def points_of(xs: Sequence[Any], ys: Sequence[Any], *, above_zero: bool = False) -> Points:
    """The finite points of a line, by x."""
    pairs = ((as_number(x), as_number(y)) for x, y in zip(xs, ys))
    points = [(x, y) for x, y in pairs if x is not None and y is not None and (y > 0 or not above_zero)]
    return sorted(points, key=lambda point: point[0])


def thinned(points: Points, buckets: int = MOST_BUCKETS) -> Points:
    """A line with at most 4 points per bucket of x: its first, lowest, highest and last, so that no spike is lost."""
    if len(points) <= 4 * buckets:
        return points
    low, wide = points[0][0], (points[-1][0] - points[0][0]) or 1.0
    by_bucket: dict[int, Points] = {}
    for point in points:
        by_bucket.setdefault(min(buckets - 1, int(buckets * (point[0] - low) / wide)), []).append(point)
    remaining: Points = []
    for bucket in by_bucket.values():
        chosen = {0, len(bucket) - 1}
        by_height = range(len(bucket))
        chosen |= {min(by_height, key=lambda n: bucket[n][1]), max(by_height, key=lambda n: bucket[n][1])}
        remaining += [bucket[n] for n in sorted(chosen)]
    return remaining


def running_mean(points: Points) -> Points:
    """The smoothed line of a line plot: the mean over a twentieth around each point, less at the ends."""
    half, last = max(2, len(points) // 40), len(points) - 1
    sums = [0.0, *accumulate(y for _, y in points)]
    out = []
    for n, (x, _) in enumerate(points):
        reach = min(half, n, last - n)
        out.append((x, (sums[n + reach + 1] - sums[n - reach]) / (2 * reach + 1)))
    return out


def reliability_plot(bins: Sequence[Any], *, before: Sequence[Any] = (), lang: str = "en") -> Drawing:
    """A line plot of confidence against accuracy, a dot per bin sized by its rows; `before`: before calibration.

    A bin is an object or a dict with confidence, accuracy and count (or rows).
    """
    strings = words(lang)
    both = {strings["before"]: _bins(before), strings["after"]: _bins(bins)}
    sets = both if before else {strings["accuracy"]: _bins(bins)}
    if not any(sets.values()):
        return nothing(strings["reliability"], lang)
    names = list(sets) if before else ()
    axes = frame((0.0, 1.0), (0.0, 1.0), x_label=strings["confidence"], y_label=strings["accuracy"], names=names)
    axes.parts.append(stroke(axes.x(0), axes.y(0), axes.x(1), axes.y(1), "mark"))
    axes.parts.append(write(axes.x(0.03), axes.y(0.9), strings["diagonal"]))
    for number, points in enumerate(sets.values()):
        total = sum(count for _, _, count in points) or 1.0
        axes.parts.append(_path(axes, [(c, a) for c, a, _ in points], f"line s{number} d{dash(number)}"))
        for confidence, accuracy, count in points:
            tooltip = f"{plain(confidence)} → {plain(accuracy)} ({plain(count)})"
            radius = 2.5 + 7 * (count / total) ** 0.5
            axes.parts.append(dot(axes.x(confidence), axes.y(accuracy), radius, f"halo f{number}", tooltip))
    return drawing(strings["reliability"], axes.parts)


def coverage_plot(points: Sequence[Any], *, chosen: Any = None, lang: str = "en") -> Drawing:
    """A line plot: accuracy of the surest part of the rows, by its size; `chosen` is the threshold in use.

    A point is an object or a dict with coverage, accuracy and threshold.
    """
    strings = words(lang)
    pairs = [tuple(as_number(take(point, key)) for key in ("coverage", "accuracy")) for point in points]
    curve = sorted((x, y) for x, y in pairs if x is not None and y is not None)
    if not curve:
        return nothing(strings["coverage_title"], lang)
    low, _ = span([y for _, y in curve])
    axes = frame((0.0, 1.0), (min(low, 0.99), 1.0), x_label=strings["coverage"], y_label=strings["accuracy_answered"])
    axes.parts.append(_path(axes, thinned(curve), "line s0"))
    if len(curve) == 1:
        axes.parts.append(dot(axes.x(curve[0][0]), axes.y(curve[0][1]), 3.5, "f0"))
    x, y = (as_number(take(chosen, key)) for key in ("coverage", "accuracy"))
    if x is not None and y is not None:
        axes.parts.append(dot(axes.x(x), axes.y(y), 5, "halo f1"))
        label = strings["chosen"].format(
            threshold=f"{as_number(take(chosen, 'threshold')) or 0.0:.3g}", coverage=percent(x, 0)
        )
        # The curve falls to the right, so the free places are below it to the left and above it to the right.
        is_left = axes.x(x) - text_width(label) > axes.x.start
        anchor, aside, down = ("end", -8, 18) if is_left else ("start", 8, -8)
        axes.parts.append(write(axes.x(x) + aside, axes.y(y) + down, label, anchor, "strong"))
    return drawing(strings["coverage_title"], axes.parts)


def take(item: Any, *names: str) -> Any:
    """The first of `names` that a point of a line plot, a dict or an object, has; or None."""
    for name in names:
        value = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
        # A named tuple's own `count` is a method, not a number of rows.
        if value is not None and not callable(value):
            return value
    return None


def _bins(bins: Sequence[Any]) -> list[tuple[float, float, float]]:
    rows = ([as_number(take(b, *names)) for names in (("confidence",), ("accuracy",), ("count", "rows"))] for b in bins)
    return [(c, a, n) for c, a, n in rows if c is not None and a is not None and n]


def _ends(xs: list[float]) -> tuple[float, float]:
    low, high = min(xs), max(xs)
    return (low, high) if low < high else span([low])


def _path(axes: Frame, points: Sequence[tuple[float, float]], kind: str) -> str:
    places = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in points)
    return f'<path class="{kind}" d="M{places}"/>' if len(points) > 1 else ""
