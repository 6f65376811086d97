"""Cost against score: dots with intervals, names that do not overlap, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bertkit.report.format import as_number, clip, plain
from bertkit.report.svg.axes import (
    LETTER,
    WIDTH,
    Drawing,
    Frame,
    dot,
    drawing,
    frame,
    nothing,
    span,
    stroke,
    text_width,
    write,
)

SIZES = {False: (WIDTH, 340.0), True: (720.0, 380.0)}


@dataclass(frozen=True)
class Dot:
    """A dot of a scatter plot. low, high: the interval of y. A dot without a finite x and y is not drawn."""

    x: float | None
    y: float | None
    label: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Box:
    """A rectangle of a scatter plot that is already occupied."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two boxes of names in a scatter plot overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def pareto_front(dots: Sequence[Dot]) -> list[Dot]:
    """The dots of a scatter plot that none beats on both axes: less is better in x, more in y. Cheapest first."""
    front: list[Dot] = []
    placed = [(as_number(d.x), as_number(d.y), d) for d in dots]
    complete = [(x, y, d) for x, y, d in placed if x is not None and y is not None]
    for _, y, d in sorted(complete, key=lambda entry: (entry[0], -entry[1])):
        if not front or y > float(front[-1].y or 0.0):
            front.append(d)
    return front


def scatter_plot(
    points: Sequence[Dot],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = True,
    front: bool = True,
    wide: bool = False,
    lang: str = "en",
) -> Drawing:
    """A scatter plot: dots with intervals and names. front: draw the Pareto front as stairs.

    Dots far below all others are drawn at the bottom with their value, so that the others can be told apart.
    wide: drawn for the whole width of a page.
    """
    placed = [d for d in points if _is_placed(d, log_x)]
    title = f"{y_label}, {x_label}"
    if not placed:
        return nothing(title, lang)
    width, tall = SIZES[wide]
    near = _without_far_below(placed)
    ends = [as_number(end) for d in near for end in (d.y, d.low, d.high)]
    axes = frame(
        span([float(d.x or 0.0) for d in placed], log=log_x),
        span([end for end in ends if end is not None]),
        x_label=x_label,
        y_label=y_label,
        log_x=log_x,
        height=tall,
        width=width,
    )
    best = pareto_front(placed) if front else []
    if len(best) > 1:
        axes.parts.append(_stairs(axes, best))
    for d in near:
        axes.parts.extend(_interval(axes, d))
    for d in placed:
        x, y = _place(axes, d)
        tooltip = f"{clip(d.label, 60)}: {plain(d.x)}, {plain(d.y)}"
        axes.parts.append(dot(x, y, 5, "halo f0" if d in best or not front else "halo f6", tooltip))
    named = [d if d in near else replace(d, label=f"{clip(d.label, 20)} ↓ {plain(d.y, 3)}") for d in placed]
    return drawing(title, axes.parts + _names(axes, named, width), tall, width)


def _without_far_below(dots: Sequence[Dot]) -> list[Dot]:
    """A scatter plot's dots but the few lowest, if these are further below the others than their own range."""
    ranked = sorted(dots, key=lambda d: -float(d.y or 0.0))
    for cut in range(max(3, len(ranked) * 3 // 4), len(ranked)):
        top, last, below = (float(ranked[n].y or 0.0) for n in (0, cut - 1, cut))
        if last - below > 1.5 * max(top - last, 1e-9):
            return ranked[:cut]
    return ranked


def _is_placed(d: Dot, log_x: bool) -> bool:
    x = as_number(d.x)
    return x is not None and as_number(d.y) is not None and (x > 0 or not log_x)


def _place(axes: Frame, d: Dot) -> tuple[float, float]:
    return axes.x(float(d.x or 0.0)), axes.y(float(d.y or 0.0))


def _stairs(axes: Frame, best: Sequence[Dot]) -> str:
    """The Pareto front of a scatter plot, as steps."""
    x, y = _place(axes, best[0])
    path = f"M{x:.1f} {y:.1f}"
    for d in best[1:]:
        x, y = _place(axes, d)
        path += f"H{x:.1f}V{y:.1f}"
    return f'<path class="line s0 raw" d="{path}H{axes.x.end:.1f}"/>'


def _interval(axes: Frame, d: Dot) -> list[str]:
    """The whiskers of a dot in a scatter plot."""
    low, high = as_number(d.low), as_number(d.high)
    if low is None or high is None:
        return []
    x, _ = _place(axes, d)
    edges = [stroke(x - 3.5, axes.y(end), x + 3.5, axes.y(end), "whisker") for end in (low, high)]
    return [stroke(x, axes.y(low), x, axes.y(high), "whisker"), *edges]


def _names(axes: Frame, dots: Sequence[Dot], width: float) -> list[str]:
    """Each name of a scatter plot at the nearest free place; further ones get a thin line to their dot."""
    occupied = [Box(x - 6, y - 6, x + 6, y + 6) for x, y in (_place(axes, d) for d in dots)]
    for d in dots:
        low, high, x = as_number(d.low), as_number(d.high), _place(axes, d)[0]
        if low is not None and high is not None:
            occupied.append(Box(x - 3, axes.y(high), x + 3, axes.y(low)))
    parts = []
    for d in sorted(dots, key=lambda d: -_place(axes, d)[0]):
        x, y = _place(axes, d)
        label = clip(d.label, 30)
        wide = text_width(label)
        for left, middle in _places(x, y, wide):
            box = Box(left - 1, middle - LETTER * 0.55, left + wide + 1, middle + LETTER * 0.55)
            is_inside = box.left >= axes.x.start and box.right <= width and axes.y.end - 8 <= box.top
            if not is_inside or box.bottom > axes.y.start or any(box.meets(other) for other in occupied):
                continue
            occupied.append(box)
            # The side that faces the dot is the anchor, so that smaller letters stay near it.
            anchor, end = ("start", left) if left > x else ("end", left + wide) if left + wide < x else ("middle", x)
            end = left + wide / 2 if anchor == "middle" else end
            if abs(middle - y) > 20 or not left - 30 < x < left + wide + 30:
                parts.append(stroke(x, y, end, middle + (6 if middle < y else -6), "lead"))
            parts.append(write(end, middle + 4.5, label, anchor, "strong"))
            break
    return parts


def _places(x: float, y: float, wide: float) -> Iterator[tuple[float, float]]:
    """Left edge and middle height of a name in a scatter plot, nearest places first."""
    yield from ((x + 9, y), (x - 9 - wide, y), (x - wide / 2, y - 16), (x - wide / 2, y + 16))
    for ring in range(1, 24):
        away = 12.0 * ring
        for up in (-away, away):
            yield from ((x + 8, y + up), (x - 8 - wide, y + up), (x - wide / 2, y + up))
            yield from ((x + 8 + away, y + up), (x - 8 - wide - away, y + up))
