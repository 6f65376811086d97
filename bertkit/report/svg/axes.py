"""Scales with round ticks, and the frame every plot is drawn in. Lengths are in the drawing's own units.

A drawing is WIDTH units wide and grows with the page. The layout counts with LETTER-sized text, which is what a phone
shows; wider screens print smaller letters into the same places, so what fits here fits everywhere.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from bertkit.report.format import clip, escape
from bertkit.report.words import words

WIDTH, HEIGHT, LETTER = 460.0, 280.0, 13.5
COLOURS = 7


@dataclass(frozen=True)
class Scale:
    """A scale of a plot's axis: values low … high to places start … end; `log` scales need low > 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value, kept inside the scale."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside an axis's scale."""
        return log_ticks(self.low, self.high, about) if self.log else round_ticks(self.low, self.high, about)


def round_step(span: float, about: int) -> float:
    """The step of an axis: 1, 2, 2.5 or 5 times a power of ten that divides `span` into about `about` parts."""
    rough = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Ticks of an axis: multiples of a round step from low to high."""
    step = round_step(high - low, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def log_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Ticks of a log axis: powers of ten, with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for within in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{n}e{power}") for power in range(first, last + 1) for n in within]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= about + 1:
            break
    else:
        ticks = ticks[:: math.ceil(len(ticks) / about)]
    return ticks if len(ticks) > 1 else round_ticks(low, high, about)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Labels of an axis with as many decimals as the ticks need: 0.25 · 1.5 k · 2 M · 1e-5."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest and largest < 1e-3:
        return [f"{tick:.2g}".replace("e-0", "e-") if tick else "0" for tick in ticks]
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if largest >= size:
            unit = 1e3 if letter == "k" else size
            return [f"{tick / unit:.6g}{letter}" if abs(tick) >= unit / 1e3 and tick else f"{tick:g}" for tick in ticks]
    return [f"{tick:.6g}" for tick in _padded(ticks)] if _is_uneven(ticks) else _decimals(ticks)


def _padded(ticks: Sequence[float]) -> Sequence[float]:
    return [float(f"{tick:.3g}") for tick in ticks]


def _is_uneven(ticks: Sequence[float]) -> bool:
    gaps = [b - a for a, b in pairwise(ticks)]
    return bool(gaps) and max(gaps) > 1.01 * min(gaps)


def _decimals(ticks: Sequence[float]) -> list[str]:
    places = max((len(f"{tick:.10g}".partition(".")[2]) for tick in ticks), default=0)
    return [f"{tick:,.{places}f}" for tick in ticks]


def span(values: Iterable[float], *, log: bool = False, floor: float | None = None) -> tuple[float, float]:
    """Ends of an axis that include all values with a small margin; `floor` is always inside. No values: 0 to 1."""
    usable = [value for value in values if not log or value > 0]
    low, high = (min(usable), max(usable)) if usable else (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        room = max(1.15, (high / low) ** 0.04) if high / low < 1e300 else 10.0
        return max(low / room, 5e-324), min(high * room, 1.7e308)
    if floor is not None:
        low, high = min(low, floor), max(high, floor)
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        room = abs(high) * 0.1 or 1.0
        return low - (0 if low == floor else room), high + room
    step = round_step(high - low, 5) if math.isfinite(high - low) else 0
    if not step:
        return low, high
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def text_width(text: str, size: float = LETTER) -> float:
    """About how wide a text is in an SVG drawing: Chinese characters are squares, others a little over half."""
    return size * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.58 for letter in text)


def write(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    """A line of text in an SVG drawing; the text is escaped here."""
    marks = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{where}{marks}>{escape(text)}</text>'


def stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line of class `kind` in an SVG drawing."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, radius: float, kind: str, title: str = "") -> str:
    """A dot of class `kind` in an SVG drawing; `title` is shown when it is pointed at."""
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{tooltip}</circle>'


class Drawing(str):
    """An SVG element as text. A notebook shows it as a picture."""

    __slots__ = ()

    def standalone(self) -> str:
        """The drawing as a file of its own: in its natural size, on white, with its part of the style sheet inside."""
        wide, tall = re.findall(r"[\d.]+", self.partition('viewBox="0 0 ')[2])[:2]
        opening, _, rest = self.partition(">")
        opening = opening.replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}"')
        return f'{opening}><style>{_style()}</style><rect width="100%" height="100%" fill="#fff"/>{rest}'

    def _repr_html_(self) -> str:
        """What a notebook shows of an SVG drawing."""
        return self.standalone()


@cache
def _style() -> str:
    """The style sheet's rules for SVG drawings, in its light colours."""
    sheet = (Path(__file__).parents[1] / "report.css").read_text("utf-8")
    colours = dict(re.findall(r"--([\w-]+): ([^;]+);", sheet.partition("@media")[0]))
    # Only a rule that begins a line: those of dark pages and of phones are indented.
    rules = re.findall(r"^\.plot [^{]+\{[^}]+\}", sheet, re.M)
    return re.sub(r"var\(--([\w-]+)\)", lambda name: colours[name[1]], re.sub(r"\s+", " ", " ".join(rules)))


def drawing(title: str, parts: Iterable[str], height: float = HEIGHT, width: float = WIDTH) -> Drawing:
    """The SVG element around the parts of a plot."""
    return Drawing(
        f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<title>{escape(clip(title, 200))}</title>{''.join(parts)}</svg>"
    )


def nothing(title: str, lang: str) -> Drawing:
    """The SVG drawing when there is nothing to draw."""
    return drawing(title, [write(WIDTH / 2, 40, words(lang)["no_data"], "middle")], 80)


def legend(names: Sequence[str], top: float, *, left: float = 0.0, first: int = 0) -> tuple[list[str], float]:
    """A plot's legend: coloured names in rows; returns the parts and where they end. One name alone needs none.

    A name is clipped only if it is wider than the drawing.
    """
    if len(names) < 2:
        return [], top
    parts, x, y = [], left, top + 10
    for n, name in enumerate(names, first):
        label = clip(name, 80)
        for limit in range(len(label), 0, -1):
            if text_width(label := clip(label, limit)) <= WIDTH - left - 38:
                break
        wide = 26 + text_width(label) + 12
        if x > left and x + wide > WIDTH:
            x, y = left, y + 19
        colour = n % COLOURS
        parts.append(stroke(x, y - 4, x + 20, y - 4, f"line s{colour} d{dash(n)}"))
        parts.append(write(x + 26, y, label, kind="strong"))
        x += wide
    return parts, y + 12


def dash(number: int) -> int:
    """Which dash pattern the n-th line of a plot has, so that lines differ on grey paper too."""
    return number % 4


@dataclass(frozen=True)
class Frame:
    """The axes of a plot: two scales, and what is drawn already: grid, ticks, names. height: of the drawing."""

    x: Scale
    y: Scale
    parts: list[str]
    height: float = HEIGHT


def frame(
    xs: tuple[float, float],
    ys: tuple[float, float],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    names: Sequence[str] = (),
    marks: Mapping[str, float] | None = None,
    height: float = HEIGHT,
    width: float = WIDTH,
) -> Frame:
    """A plot's axes with round ticks; `names` make a legend above, `marks` dashed upright lines.

    A legend of more than two rows makes the drawing taller, not the plot smaller.
    """
    parts, top = legend(names, 2)
    height += max(0.0, top - 43)
    if y_label:
        parts.append(write(0, top + 10, clip(y_label, 48)))
        top += 16
    top += 10 + (16 if marks else 0)
    bottom, right = height - 42, width - 14
    y = Scale(*ys, bottom, top, log_y)
    y_ticks = y.ticks()
    labels = tick_labels(y_ticks)
    left = 8 + max((text_width(label) for label in labels), default=0)
    x = Scale(*xs, left, right, log_x)
    for tick, label in zip(y_ticks, labels):
        parts.append(stroke(left, y(tick), right, y(tick), "grid"))
        parts.append(write(left - 8, y(tick) + 4.5, label, "end"))
    x_ticks = x.ticks(6)
    for tick, label in zip(x_ticks, tick_labels(x_ticks)):
        parts.append(stroke(x(tick), bottom, x(tick), bottom + 4, "axis"))
        parts.append(write(x(tick), bottom + 18, label, "middle"))
    parts.append(stroke(left, bottom, right, bottom, "axis"))
    parts.append(write(right, height - 5, clip(x_label, 48), "end"))
    for name, value in (marks or {}).items():
        if xs[0] <= value <= xs[1]:
            anchor = "end" if x(value) > width * 0.7 else "start" if x(value) < width * 0.3 else "middle"
            parts += [stroke(x(value), top, x(value), bottom, "mark"), write(x(value), top - 5, clip(name, 30), anchor)]
    return Frame(x, y, parts, height)
