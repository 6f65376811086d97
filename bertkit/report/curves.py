"""The rows of metrics.jsonl as plots: all numbers, sorted into panels by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertkit.report.format import as_number
from bertkit.report.html import Figure
from bertkit.report.svg import line_plot
from bertkit.report.words import name_of, rows_of, words

Series = dict[str, tuple[list[float], list[float]]]


class Panel(NamedTuple):
    """A panel of curves. word: the caption. keys: a pattern of the names drawn together. floor: a y the axis must show.

    of_rows: the numbers are of certain rows, which the caption then names.
    """

    word: str
    keys: str
    log_y: bool = False
    smooth: bool = False
    floor: float | None = None
    of_rows: bool = False


PANELS = (
    Panel("panel_loss", r".*loss.*", smooth=True, of_rows=True),
    Panel("panel_perplexity", r".*perplexity.*|bits_per_.*", log_y=True, of_rows=True),
    Panel(
        "panel_scores",
        r".*(accuracy|f1|precision|recall|mcc|auc|pearson|spearman|exact|minimal_pairs|blimp|score).*",
        of_rows=True,
    ),
    Panel("panel_lr", r"lr|learning_rate", floor=0.0),
    Panel("panel_grad_norm", r"grad.*norm", log_y=True, smooth=True),
    Panel("panel_speed", r".*_per_second", smooth=True, floor=0.0),
    Panel("panel_memory", r"memory.*|rss.*", floor=0.0),
)
NOT_CURVES = {"step", "steps", "tokens", "seconds", "epoch", "eval", "time", "eta", "rank", "seed", "examples", "rows"}
LEGENDS = {"documents": "in_documents", "dev": "in_dev"}
MOST_OTHERS = 4


def is_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics is a point of the held-out curves."""
    return bool(row.get("eval"))


def numbers_of(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers of a row of metrics that curves show; a dict within is one level of names."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key} · {inner}", number) for inner, number in numbers_of(value))
        elif not isinstance(value, bool) and (number := as_number(value)) is not None:
            yield key, number


def last_number(rows: Sequence[Mapping[str, Any]], *keys: str, evaluation: bool | None = None) -> float | None:
    """The last finite value, where a curve ends, of the first of `keys` that occurs in the metrics."""
    for key in keys:
        for row in reversed(rows):
            if evaluation is None or is_evaluation(row) == evaluation:
                number = as_number(row.get(key))
                if number is not None:
                    return number
    return None


def curve_figures(
    rows: Iterable[Mapping[str, Any]],
    lang: str,
    *,
    held_out: str = "documents",
    marks: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
) -> list[Figure]:
    """The curves of a run: one figure per panel with data. marks: name → step; levels: name → loss.

    held_out: what the evaluation rows were measured on, "documents" or "dev".
    """
    train, evaluated = _series(rows)
    strings = words(lang)
    figures, used = [], set(NOT_CURVES)
    for panel in PANELS:
        keys = [key for key in (*train, *evaluated) if re.fullmatch(panel.keys, key) and key not in used]
        series, smooth = _named(keys, train, evaluated, held_out, lang)
        used.update(keys)
        if series:
            svg = line_plot(
                series,
                x_label=strings["step"],
                y_label="",
                log_y=panel.log_y,
                smooth=smooth if panel.smooth else (),
                marks=marks,
                levels=levels if panel.word == "panel_loss" else None,
                floor=panel.floor,
                lang=lang,
            )
            on = held_out if not smooth else "train" if len(smooth) == len(series) else ""
            figures.append(Figure(_caption(panel, list(series), on, lang), svg))
    others = [
        key for key in dict.fromkeys((*train, *evaluated)) if key not in used and _is_changing(key, train, evaluated)
    ]
    for key in others[:MOST_OTHERS]:
        series, _ = _named([key], train, evaluated, held_out, lang)
        figures.append(Figure(name_of(key, lang), line_plot(series, x_label=strings["step"], y_label="", lang=lang)))
    return figures


def _caption(panel: Panel, names: list[str], on: str, lang: str) -> str:
    """The caption of a figure of curves. on: the rows all were measured on; empty where the legend says so."""
    strings = words(lang)
    caption = names[0] if len(names) == 1 else strings[panel.word]
    if panel.of_rows and on:
        caption += strings["on_rows"].format(rows=rows_of(on, lang))
    return f"{caption}{strings['log_scale']}" if panel.log_y else caption


def _series(rows: Iterable[Mapping[str, Any]]) -> tuple[Series, Series]:
    """The series of a run's metrics: those of training, and those of evaluations."""
    train: Series = {}
    evaluated: Series = {}
    for place, row in enumerate(rows):
        step = as_number(row.get("step"))
        for key, number in numbers_of(row):
            xs, ys = (evaluated if is_evaluation(row) else train).setdefault(key, ([], []))
            xs.append(place if step is None else step)
            ys.append(number)
    return train, evaluated


def _named(keys: Iterable[str], train: Series, evaluated: Series, held_out: str, lang: str) -> tuple[Series, list[str]]:
    """The curves of `keys` under names for people, and the names of those from training rows."""
    strings = words(lang)
    series: Series = {}
    smooth = []
    has_both = any(key in train for key in keys) and any(key in evaluated for key in keys)
    for key in dict.fromkeys(keys):
        for source, where in ((train, "in_training"), (evaluated, LEGENDS[held_out])):
            if key in source:
                name = f"{name_of(key, lang)} ({strings[where]})" if has_both else name_of(key, lang)
                series[name] = source[key]
                smooth += [name] if source is train else []
    return series, smooth


def _is_changing(key: str, train: Series, evaluated: Series) -> bool:
    return any(len(set(source[key][1])) > 1 for source in (train, evaluated) if key in source)
