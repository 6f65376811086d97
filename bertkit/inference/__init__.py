"""Loaded models at work: prediction, scores, explanations, probes.

Here: answers that show themselves in a notebook, lists and dicts as ever, with a picture where one is looked at.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

MOST_ROWS = 60
HIDDEN = ("scores", "tokens", "tags", "entities", "words")  # drawn in their own way, or too long for a cell
CELL = 'style="text-align:left;padding:.2em .8em .2em 0;vertical-align:top"'


class Answers(list[Any]):
    """Predictions, one dict per text; a notebook shows a table."""

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self if isinstance(row, Mapping) for name in row))
        columns = [name for name in names if name not in HIDDEN and not _is_nought(name, self)]
        has_scores = any(isinstance(row.get("scores"), (Mapping, list)) for row in self)
        has_tags = any("entities" in row for row in self)
        heads = [*columns, *(["scores"] if has_scores else []), *(["entities"] if has_tags else [])]
        rows = []
        for row in self[:MOST_ROWS]:
            cells = [_value(row.get(name)) for name in columns]
            cells += [_bars(row.get("scores"))] if has_scores else []
            cells += [_entities(row.get("entities") or ())] if has_tags else []
            rows.append(cells)
        return _table(heads, rows, len(self))


class Guesses(list[Any]):
    """The best words for every mask; a notebook shows a column of bars per mask."""

    def _repr_html_(self) -> str:
        masks = [guesses for guesses in self if isinstance(guesses, Sequence)]
        columns = [_bars({guess["token"]: guess["score"] for guess in guesses}) for guesses in masks]
        return _table([f"[MASK] {n}" for n in range(1, len(masks) + 1)], [columns], 1)


class WordUses(dict[str, Any]):
    """One word in several texts (`meaning`); a notebook shows the cosines of every two texts, by model and layer."""

    def _repr_html_(self) -> str:
        pairs = list(combinations(range(len(self["texts"])), 2))
        texts = "".join(
            f"<li>{escape(text[:a])}<b>{escape(text[a:b])}</b>{escape(text[b:])}</li>"
            for text, (a, b) in zip(self["texts"], self["spans"])
        )
        parts = [f"<ol>{texts}</ol>"]
        for model in self["models"]:
            heads = ["layer", *(f"{a + 1}–{b + 1}" for a, b in pairs)]
            rows = [
                [str(layer["layer"]), *(_shade(layer["cosines"][a][b]) for a, b in pairs)] for layer in model["layers"]
            ]
            parts.append(f"<p><b>{escape(model['model'])}</b> ({escape(model['kind'])})</p>" + _table(heads, rows, 1))
        return "".join(parts)


class Report(dict[str, Any]):
    """A result whose report is a whole page; a notebook shows the page. page: makes it when it is looked at."""

    def __init__(self, result: Mapping[str, Any], page: Callable[[], str]) -> None:
        super().__init__(result)
        self.page = page

    def _repr_html_(self) -> str:
        return framed(self.page())


def framed(page: str) -> str:
    """A whole page of results in a notebook, with its own style and without scripts."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:40em;border:1px solid #ddd" sandbox></iframe>'
    )


def escape(text: str) -> str:
    """Text of an answer, safe between tags in a notebook."""
    return html.escape(text)


def clip(text: str, most: int) -> str:
    """The beginning of a long text in a notebook's answer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    top = "".join(f"<th {CELL}>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td {CELL}>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    more = f"<p>… {total - MOST_ROWS:,}</p>" if total > MOST_ROWS else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}"


def _is_nought(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a column of answers says nothing in a notebook, as where no token was cut."""
    return name == "cut" and not any(row.get(name) for row in rows)


def _value(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else escape(clip(str(value), 120))


def _bars(scores: Any) -> str:
    """An answer's bars in a notebook: one per name (of choices: number), as long as its probability; the best 5."""
    if isinstance(scores, list):
        scores = dict(enumerate(scores))
    if not isinstance(scores, Mapping):
        return ""
    best = sorted(scores.items(), key=lambda entry: -float(entry[1]))[:5]
    return "".join(
        f'<div style="white-space:nowrap"><span style="display:inline-block;height:.7em;background:#0b6cad;'
        f'width:{6 * min(1.0, max(0.0, float(score))):.2f}em"></span> '
        f"{float(score):.2f} {escape(clip(str(name), 40))}</div>"
        for name, score in best
    )


def _shade(cosine: float) -> str:
    """A cosine on a ground that is the darker the larger it is, in light notebooks and in dark ones."""
    strength = 0.55 * max(0.0, min(1.0, cosine)) ** 2
    return f'<span style="background:rgba(11,108,173,{strength:.2f});padding:.1em .5em">{cosine:.2f}</span>'


def _entities(entities: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(
        f"<mark>{escape(clip(str(entity['text']), 60))} <small>{escape(str(entity['label']))}</small></mark>"
        for entity in entities
    )
