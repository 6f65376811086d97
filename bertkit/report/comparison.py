"""The report of a comparison: who reaches what, at which cost, and which one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report.format import as_number, between, duration, facts_of, large, percent, plain, settings_text
from bertkit.report.html import Block, Code, Facts, Figure, Good, Section, Table, Text, page, table_of, told
from bertkit.report.svg import Dot, line_plot, scatter_plot
from bertkit.report.verdict import verdict
from bertkit.report.words import name_of, rows_of, words

COLUMNS = ("p_value", "train_seconds", "ms_per_text", "megabytes", "parameters", "seeds", "note")


def comparison_report(result: Mapping[str, Any], *, lang: str = "en") -> str:
    """The page of a comparison; every key but `contenders` is optional.

    | key | meaning |
    |---|---|
    | task, name | words for the title |
    | headline | the name of the score; `rows` how many were scored, `level` (0.95) of the intervals |
    | scored_on | "dev" or "test"; without it, told from `settings` |
    | contenders | [{name, score, interval (low, high), p_value (against the best), train_seconds, ms_per_text,
      megabytes, parameters, seeds, note}] |
    | verdict | text or list of texts; without it, `verdict.verdict` writes one |
    | curve | learning curve {contender: [(training rows, score), …]}; `outlook` says what more labels would bring |
    | skipped | [{name, reason}] |
    | data, environment | facts, nested or not; `settings` nested; `notes` list of texts; `command` |
    """
    said = words(lang)
    contenders = [c for c in result.get("contenders") or () if isinstance(c, Mapping)]
    ranked = sorted(contenders, key=lambda c: -_number(c.get("score"), -1e300))
    spoken = result.get("verdict") or verdict(contenders, lang=lang)
    sentences = [spoken] if isinstance(spoken, str) else list(spoken)
    task = str(result.get("task") or "")
    title = said["comparison"].format(name=result.get("name") or name_of(task, lang, "tasks")).strip(" :：")
    command = [Code(str(result["command"]))] if result.get("command") else []
    settings = result.get("settings") or {}
    sections = [
        Section(said["verdict"], [Good(str(sentence)) for sentence in sentences]),
        Section(said["contenders"], [*_table(ranked, result, lang), *_front(ranked, result, lang)]),
        Section(said["learning"], _learning(result, lang)),
        Section(said["skipped"], table_of(said["skipped_caption"], result.get("skipped") or (), lang)),
        Section(said["data"], [Facts(facts_of(result["data"], lang, "roles"))] if result.get("data") else []),
        Section(said["notes"], told(result.get("notes") or (), lang)),
        Section(
            said["environment"], [Facts(facts_of(result["environment"], lang))] if result.get("environment") else []
        ),
        Section(said["settings"], [*command, *([Code(settings_text(settings))] if settings else [])]),
    ]
    return page(title, sections, lang=lang, subtitle=said["comparison_subtitle"], facts=_tiles(ranked, result, lang))


def _number(value: Any, otherwise: float) -> float:
    number = as_number(value)
    return otherwise if number is None else number


def _metric(result: Mapping[str, Any], lang: str) -> str:
    return name_of(str(result.get("headline") or "score"), lang)


def _scored(result: Mapping[str, Any], lang: str) -> str:
    """Which rows the scores are of: as `scored_on` says, else by the files that were given."""
    settings = result.get("settings") or {}
    return rows_of(result.get("scored_on") or next((role for role in ("test", "dev") if settings.get(role)), ""), lang)


def _tiles(ranked: Sequence[Mapping[str, Any]], result: Mapping[str, Any], lang: str) -> dict[str, Any]:
    if not ranked:
        return {}
    tiles: dict[str, Any] = {
        words(lang)["best"]: str(ranked[0].get("name")),
        _metric(result, lang): plain(ranked[0].get("score")),
        words(lang)["contenders"]: len(ranked),
    }
    if as_number(result.get("rows")) is not None:
        tiles[name_of("rows_scored", lang)] = plain(result["rows"])
    return tiles


def _table(ranked: Sequence[Mapping[str, Any]], result: Mapping[str, Any], lang: str) -> list[Block]:
    if not ranked:
        return [Text(words(lang)["no_data"])]
    tell = {"train_seconds": lambda value: duration(value, lang), "parameters": large, "p_value": _chance}
    keys = [key for key in COLUMNS if any(c.get(key) is not None for c in ranked)]
    rows = []
    for c in ranked:
        costs = [tell[key](c.get(key)) if key in tell else _short(c.get(key)) for key in keys]
        rows.append([str(c.get("name", "")), between(c.get("score"), c.get("interval")), *costs])
    columns = [words(lang)["contender"], _metric(result, lang), *(name_of(key, lang) for key in keys)]
    align = "lr" + "".join("l" if key == "note" else "r" for key in keys)
    caption = words(lang)["contenders_caption"].format(
        rows=_scored(result, lang), level=percent(_number(result.get("level"), 0.95), 0)
    )
    return [Table(caption, columns, rows, align=align, best=0)]


def _short(value: Any) -> Any:
    return plain(value, 3) if as_number(value) is not None and not isinstance(value, bool) else value


def _chance(value: Any) -> str:
    number = as_number(value)
    return "–" if number is None else "< 0.001" if number < 0.001 else f"{number:.3f}"


def _front(ranked: Sequence[Mapping[str, Any]], result: Mapping[str, Any], lang: str) -> list[Block]:
    blocks: list[Block] = []
    for key in ("ms_per_text", "train_seconds"):
        dots = []
        for c in ranked:
            score = between(c.get("score"), c.get("interval"))
            dots.append(Dot(as_number(c.get(key)), score.value, str(c.get("name", "")), score.low, score.high))
        if any(d.x is not None and d.x > 0 for d in dots):
            axis = words(lang)[f"axis_{key}"]
            wide, narrow = (
                scatter_plot(dots, x_label=axis, y_label=_metric(result, lang), wide=wide, lang=lang)
                for wide in (True, False)
            )
            caption = words(lang)[f"front_{key}"].format(rows=_scored(result, lang))
            blocks.append(Figure(caption, wide, wide=True, narrow_svg=narrow))
    return blocks


def _learning(result: Mapping[str, Any], lang: str) -> list[Block]:
    curve = result.get("curve") or {}
    outlook: list[Block] = [Text(str(result["outlook"]))] if result.get("outlook") else []
    series = {str(name): ([p[0] for p in points], [p[1] for p in points]) for name, points in curve.items()}
    if not series:
        return outlook
    svg = line_plot(series, x_label=words(lang)["training_rows"], y_label=_metric(result, lang), lang=lang)
    return [*outlook, Figure(words(lang)["learning_caption"].format(rows=_scored(result, lang)), svg)]
