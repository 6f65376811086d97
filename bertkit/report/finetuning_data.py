"""The data part of a fine-tuning report: files, balance of labels, lengths, and what was not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.report.describing import facts_of, table_of
from bertkit.report.html import Block, Facts, Figure, Good, Table, Warning_
from bertkit.report.plots import histogram
from bertkit.report.words import name_of, words
from bertkit.report.writing import as_number, percent

MOST_LABELS = 50


def data_blocks(data: dict[str, Any], lang: str) -> list[Block]:
    """The blocks of `result["data"]`:

    | key | meaning |
    |---|---|
    | files | [{role, name, rows, …}]: any further keys are columns |
    | labels | {role: {label: rows}} |
    | lengths | bins [(low, high, rows)] or values [tokens a text]; limit (tokens a window); any other facts |
    | cut | {role: {rows, rows_cut, tokens, tokens_cut}} |
    | anything else | a fact: duplicates, overlap, dropped … |
    """
    files, labels, lengths, cut = (data.pop(key, None) for key in ("files", "labels", "lengths", "cut"))
    said = words(lang)
    facts = facts_of(data, lang)
    return [
        *_cut(cut or {}, lang),
        *table_of(said["files_caption"], _named_roles(files or (), lang), lang),
        *([Facts(facts)] if facts else []),
        *_balance(labels or {}, lang),
        *_lengths(dict(lengths or {}), lang),
    ]


def _named_roles(files: Any, lang: str) -> list[dict[str, Any]]:
    return [{**row, "role": name_of(str(row["role"]), lang)} if "role" in row else dict(row) for row in files]


def _balance(labels: Mapping[str, Mapping[str, Any]], lang: str) -> list[Block]:
    said = words(lang)
    if labels and not isinstance(next(iter(labels.values())), Mapping):
        labels = {"train": labels}
    names = list(dict.fromkeys(label for counts in labels.values() for label in counts))
    if not names:
        return []
    totals = {role: sum(as_number(count) or 0.0 for count in counts.values()) for role, counts in labels.items()}
    columns, rows = [said["label"]], [[name] for name in names[:MOST_LABELS]]
    heat = {}
    for role, counts in labels.items():
        columns += [name_of(role, lang), said["share"]]
        heat[len(columns) - 2] = (0.0, max((as_number(count) or 0.0 for count in counts.values()), default=1.0))
        for row in rows:
            row += [counts.get(row[0], 0), percent((as_number(counts.get(row[0])) or 0.0) / (totals[role] or 1.0))]
    caption = said["balance_caption"].format(count=f"{len(names):,}")
    if len(names) > MOST_LABELS:
        caption += " " + said["largest"].format(shown=MOST_LABELS, count=f"{len(names):,}")
    return [Table(caption, columns, rows, align="l" + "rr" * len(labels), heat=heat)]


def _lengths(lengths: dict[str, Any], lang: str) -> list[Block]:
    said = words(lang)
    bins, values = lengths.pop("bins", None), lengths.pop("values", None)
    limit = as_number(lengths.get("limit"))
    blocks: list[Block] = []
    if (bins is not None and len(bins)) or (values is not None and len(values)):
        marks = {said["limit"]: limit} if limit is not None else None
        svg = histogram(values if values is not None else (), bins=bins, x_label=said["tokens"], marks=marks, lang=lang)
        blocks.append(Figure(said["lengths_caption"], svg))
    facts = facts_of(lengths, lang)
    return [*blocks, Facts(facts)] if facts else blocks


def _cut(cut: Mapping[str, Mapping[str, Any]], lang: str) -> list[Block]:
    said = words(lang)
    if not cut:
        return []
    rows, total = [], 0.0
    for role, counts in cut.items():
        all_rows, rows_cut, tokens, tokens_cut = (
            as_number(counts.get(key)) or 0.0 for key in ("rows", "rows_cut", "tokens", "tokens_cut")
        )
        total += rows_cut + tokens_cut
        rows.append(
            [
                name_of(role, lang),
                round(all_rows),
                round(rows_cut),
                percent(rows_cut / (all_rows or 1.0)),
                round(tokens),
                round(tokens_cut),
                percent(tokens_cut / (tokens or 1.0)),
            ]
        )
    if not total:
        return [Good(said["nothing_cut"])]
    columns = [said[key] for key in ("file", "rows", "rows_cut", "share", "tokens", "tokens_cut", "share")]
    return [Warning_(said["something_cut"]), Table(said["cut_caption"], columns, rows, align="lrrrrrr")]
