"""The report of a comparison: scores, costs, and which contender to use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.files.atomic import atomic_write, make_folder
from bertkit.notify import translated
from bertkit.report.format import as_number, between, duration, facts_of, large, percent, plain, settings_text
from bertkit.report.html import Block, Code, Facts, Figure, Good, Section, Table, Text, notes_of, page, table_of
from bertkit.report.svg import Dot, line_plot, scatter_plot
from bertkit.report.words import name_of, rows_of, words

COLUMNS = ("p_value", "train_seconds", "ms_per_text", "megabytes", "parameters", "seeds", "note")


def comparison_report(result: Mapping[str, Any], *, lang: str = "en") -> str:
    """The report page of a comparison; every key but `contenders` is optional.

    | key | meaning |
    |---|---|
    | task, name, subtitle | words for the title |
    | headline | the name of the score; `rows` how many were scored, `level` (0.95) of the intervals |
    | scored_on | "dev" or "test"; without it, derived from `settings` |
    | contenders | [{name, score, interval (low, high), p_value (against the best), train_seconds, ms_per_text,
      megabytes, parameters, seeds, note}] |
    | verdict | text or list of texts; without it, `verdict.verdict` writes one |
    | curve | learning curve {contender: [(training rows, score), …]}; `outlook` says what more labels would bring |
    | skipped | [{name, reason}] |
    | errors | rows of dicts: what the best contender got most wrong |
    | data, environment | facts, nested or not; `settings` nested; `notes` list of texts; `command` |
    """
    strings = words(lang)
    contenders = [c for c in result.get("contenders") or () if isinstance(c, Mapping)]
    ranked = sorted(contenders, key=lambda c: -_number(c.get("score"), -1e300))
    conclusion = result.get("verdict") or verdict(contenders, lang=lang)
    sentences = [conclusion] if isinstance(conclusion, str) else list(conclusion)
    task = str(result.get("task") or "")
    title = strings["comparison"].format(name=result.get("name") or name_of(task, lang, "tasks")).strip(" :：")
    command = [Code(str(result["command"]))] if result.get("command") else []
    settings = result.get("settings") or {}
    sections = [
        Section(strings["verdict"], [Good(str(sentence)) for sentence in sentences]),
        Section(strings["contenders"], [*_table(ranked, result, lang), *_front(ranked, result, lang)]),
        Section(strings["learning"], _learning(result, lang)),
        Section(
            strings["errors"], table_of(strings["worst_queries"], result.get("errors") or (), lang, row_names=False)
        ),
        Section(strings["skipped"], table_of(strings["skipped_caption"], _left_out(result, lang), lang)),
        Section(strings["data"], [Facts(facts_of(result["data"], lang, "roles"))] if result.get("data") else []),
        Section(strings["notes"], notes_of(result.get("notes") or (), lang)),
        Section(
            strings["environment"], [Facts(facts_of(result["environment"], lang))] if result.get("environment") else []
        ),
        Section(strings["settings"], [*command, *([Code(settings_text(settings))] if settings else [])]),
    ]
    return page(
        title,
        sections,
        lang=lang,
        subtitle=result.get("subtitle") or strings["comparison_subtitle"],
        facts=_tiles(ranked, result, lang),
    )


def _number(value: Any, otherwise: float) -> float:
    number = as_number(value)
    return otherwise if number is None else number


def _metric(result: Mapping[str, Any], lang: str) -> str:
    return name_of(str(result.get("headline") or "score"), lang)


def _left_out(result: Mapping[str, Any], lang: str) -> list[dict[str, Any]]:
    """What a comparison's report left out, with the reasons in its language."""
    skipped = result.get("skipped") or ()
    return [{**row, "reason": translated(str(row.get("reason", "")), lang, is_part=True)} for row in skipped]


def _scored(result: Mapping[str, Any], lang: str) -> str:
    """Which rows a comparison's report says were scored: by `scored_on`, else by the files in the settings."""
    settings = result.get("settings") or {}
    return rows_of(result.get("scored_on") or next((role for role in ("test", "dev") if settings.get(role)), ""), lang)


def _tiles(ranked: Sequence[Mapping[str, Any]], result: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """The key figures of a comparison: the best contender, its score, and its cost."""
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
    """The table of contenders in a comparison's report."""
    if not ranked:
        return [Text(words(lang)["no_data"])]
    formats = {"train_seconds": lambda value: duration(value, lang), "parameters": large, "p_value": _chance}
    keys = [key for key in COLUMNS if any(c.get(key) is not None for c in ranked)]
    rows = []
    for c in ranked:
        costs = [formats[key](c.get(key)) if key in formats else _short(c.get(key)) for key in keys]
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
    """Plots of score against cost in a comparison's report."""
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
    """The learning curves in a comparison's report, and what more labels may bring."""
    curve = result.get("curve") or {}
    outlook: list[Block] = [Text(str(result["outlook"]))] if result.get("outlook") else []
    series = {str(name): ([p[0] for p in points], [p[1] for p in points]) for name, points in curve.items()}
    if not series:
        return outlook
    svg = line_plot(series, x_label=words(lang)["training_rows"], y_label=_metric(result, lang), lang=lang)
    return [*outlook, Figure(words(lang)["learning_caption"].format(rows=_scored(result, lang)), svg)]


# ---- Ways to search, side by side.


def search_report(result: dict[str, Any], out: Path, lang: str) -> dict[str, Any]:
    """Write report.html and result.json of a measured search; the result with its verdict and the page's name."""
    contenders = [
        {
            "name": row["name"], "score": row["metrics"][result["headline"]], "p_value": row["p_value"],
            "interval": row["intervals"].get(result["headline"]), "ms_per_text": row["ms_per_query"],
            "megabytes": row["megabytes"] or None,
            "note": ", ".join(f"{name} {value:.3f}" for name, value in list(row["metrics"].items())[1:]),
        }
        for row in result["ranked_by"]
    ]  # fmt: skip
    conclusion = verdict(contenders, lang=lang)
    facts = {name: result[name] for name in ("index", "documents", "file", "queries", "passages") if name in result}
    page_text = comparison_report(
        {
            "name": words(lang)["search_name"], "subtitle": words(lang)["search_subtitle"],
            "headline": result["headline"], "rows": result["queries"], "contenders": contenders,
            "verdict": conclusion, "errors": result["worst"], "skipped": result.get("skipped") or (), "data": facts,
            "scored_on": "queries",
        },
        lang=lang,
    )  # fmt: skip
    full = {**result, "verdict": conclusion, "report": str(out / "report.html")}
    make_folder(out)
    atomic_write(out / "report.html", page_text)
    atomic_write(out / "result.json", json.dumps(full, ensure_ascii=False, indent=1))
    return full


# ---- Which contender to use, in one or two sentences that follow from the numbers.

NOISE = 0.05
SMALL = 0.02  # a difference of scores between 0 and 1 that is rarely worth its cost
NEAR = 0.15  # fraction of the range from worst to best: a larger difference counts, significant or not
CHEAPER = 1.5  # a smaller saving does not justify a lower score
NOTICEABLE = 1.1  # a smaller difference in cost is measurement noise
COSTS = ("ms_per_text", "train_seconds", "megabytes")


def verdict(contenders: Sequence[Mapping[str, Any]], *, lang: str = "en", p_below: float = NOISE) -> str:
    """A comparison's verdict: the cheapest contender clearly cheaper than the best and within noise, else the best.

    If a cheaper one is much worse, but not significantly so on these few rows, the verdict stays open.

    Within noise: its p-value against the best is not under `p_below`; without a p-value, the best score lies inside
    its interval. The cost is milliseconds per text, else training seconds, else megabytes: the first that all have.
    One whose training was stopped early is only mentioned.
    """
    unfinished = [c for c in contenders if c.get("stopped")]
    finished = [c for c in contenders if not c.get("stopped")]
    sentences = [_verdict(finished, lang, p_below)] if finished or not unfinished else []
    sentences += [words(lang)["verdict_stopped"].format(name=c.get("name"), steps=c["stopped"]) for c in unfinished]
    return _spaced(sentences, lang)


def _spaced(sentences: Sequence[str], lang: str) -> str:
    """Sentences one after the other: in Chinese no space follows a full stop."""
    return ("" if lang == "zh" else " ").join(sentences)


def _verdict(contenders: Sequence[Mapping[str, Any]], lang: str, p_below: float) -> str:
    """The verdict of a comparison: the best contender, and a cheaper one that is about as good."""
    strings = words(lang)
    scored = [c for c in contenders if as_number(c.get("score")) is not None]
    if not scored:
        return strings["verdict_none"]
    best = max(scored, key=_score)
    if len(scored) == 1:
        return strings["verdict_alone"].format(best=best.get("name"), a=plain(_score(best)))
    kind = next((key for key in COSTS if all((as_number(c.get(key)) or 0.0) > 0 for c in scored)), None)
    cheaper = [c for c in scored if c is not best and (not kind or CHEAPER * float(c[kind]) <= float(best[kind]))]
    level = [c for c in cheaper if kind and _is_level(c, best, p_below) and _is_near(c, best, scored)]
    pick = min(level, key=lambda c: (float(c[kind]), -_score(c)), default=best) if kind else best
    if pick is not best and kind:
        ratio = float(best[kind]) / float(pick[kind])
        return strings["verdict_cheap"].format(
            pick=pick.get("name"),
            best=best.get("name"),
            a=plain(_score(pick)),
            b=plain(_score(best)),
            p=_p_value(pick, strings),
            ratio=_times(ratio),
            cost=strings[f"cost_{kind}"],
        )
    if not cheaper:
        return strings["verdict_both"].format(best=best.get("name"), a=plain(_score(best)))
    savings = {id(c): _saving(c, best, scored) for c in scored if c is not best}
    rival = max((c for c in scored if savings.get(id(c))), key=_score, default=max(cheaper, key=_score))
    sentence = strings["verdict_unsure" if _is_level(rival, best, p_below) else "verdict_best"].format(
        best=best.get("name"),
        rival=rival.get("name"),
        a=plain(_score(best)),
        b=plain(_score(rival)),
        p=_p_value(rival, strings),
    )
    saving = savings[id(rival)]
    if saving is None:
        return sentence
    cost, ratio = saving
    price = strings["verdict_price"].format(ratio=_times(ratio), cost=strings[f"cost_{cost}"])
    return _spaced([sentence, price], lang)


def _saving(
    contender: Mapping[str, Any], best: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]
) -> tuple[str, float] | None:
    """The first cost in which a contender of the verdict is cheaper than the best, and by what factor.

    In the first cost a tenth is enough; in the others the saving must be clear.
    """
    costs = [key for key in COSTS if all((as_number(c.get(key)) or 0.0) > 0 for c in scored)]
    for key in costs:
        ratio = float(best[key]) / float(contender[key])
        if ratio >= (NOTICEABLE if key == costs[0] else CHEAPER):
            return key, ratio
        if ratio * NOTICEABLE < 1:
            return None
    return None


def _is_near(contender: Mapping[str, Any], best: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the verdict may call it close to the best, relative to the worst; on few rows, much looks like noise."""
    worst = min(_score(c) for c in scored)
    return _score(best) - _score(contender) <= max(SMALL, NEAR * (_score(best) - worst))


def _score(contender: Mapping[str, Any]) -> float:
    return as_number(contender.get("score")) or 0.0


def _is_level(contender: Mapping[str, Any], best: Mapping[str, Any], p_below: float) -> bool:
    """Whether a contender's score may just as well be the best one's."""
    chance = as_number(contender.get("p_value"))
    if chance is not None:
        return chance >= p_below
    reach = between(contender.get("score"), contender.get("interval")).high
    return reach is not None and reach >= _score(best)


def _p_value(contender: Mapping[str, Any], strings: Mapping[str, str]) -> str:
    chance = as_number(contender.get("p_value"))
    if chance is None:
        return ""
    return strings["verdict_p"].format(p="p < 0.001" if chance < 0.001 else f"p = {chance:.2g}")


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"
