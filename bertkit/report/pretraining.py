"""The report of a pretraining run: what was reached, the curves, the data, the machine and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertkit.report.curves import curve_figures, is_evaluation, last_number
from bertkit.report.format import as_number, duration, facts_of, large, percent, plain, settings_text
from bertkit.report.html import Block, Code, Facts, Good, Section, Text, Warning_, notes_of, page, table_of
from bertkit.report.words import name_of, words

HELD_OUT_LOSS = ("mlm_loss", "held_out_loss", "loss")
MOST_EVALUATIONS = 16


def pretraining_report(run: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], *, lang: str = "en") -> str:
    """The report page of a pretraining. run: the settings as in run.toml (or under "settings"), and besides them,

    | key | meaning |
    |---|---|
    | about | facts, nested or not: machine, versions, parameters, tokens_seen, seconds, data counts;
      `unigram_entropy` (nats) is drawn as a level in the loss plot |
    | notes | notes of the run: list of texts |
    | interrupted | true, or a text that says why the run ended early |
    | name | the run's name, for the title |

    metrics: rows of metrics.jsonl. Training rows have step and any of loss, lr, grad_norm, tokens_per_second, seconds,
    tokens, memory_gb; evaluation rows have "eval": true and any of mlm_loss, perplexity, mlm_accuracy,
    next_sentence_accuracy, minimal_pairs …. Every other number that changes is drawn too.
    """
    strings = words(lang)
    about = dict(run.get("about") or {})
    remaining = {
        key: value for key, value in run.items() if key not in ("about", "notes", "interrupted", "name", "settings")
    }
    settings = run.get("settings") or remaining
    title = strings["pretraining"].format(name=run.get("name") or settings.get("preset") or "").strip(" :：")
    entropy = as_number(about.get("unigram_entropy"))
    levels = {strings["unigram"]: entropy} if entropy is not None else None
    evaluations = [row for row in metrics if is_evaluation(row)]
    sections = [
        Section(strings["summary"], _summary(run, metrics, evaluations, lang)),
        Section(strings["curves"], curve_figures(metrics, lang, levels=levels) or [Text(strings["no_data"])]),
        Section(strings["evaluations"], _evaluation_table(evaluations, lang)),
        Section(strings["about"], [Facts(facts_of(about, lang))] if about else []),
        Section(strings["settings"], [Code(settings_text(settings))] if settings else []),
        Section(strings["notes"], notes_of(run.get("notes") or (), lang)),
    ]
    tiles = _tiles(about, metrics, lang)
    return page(title, sections, lang=lang, subtitle=strings["pretraining_subtitle"], facts=tiles)


def _tiles(about: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], lang: str) -> dict[str, str]:
    """The key figures of a pretraining report."""
    candidates: dict[str, tuple[float | None, Callable[[Any], str]]] = {
        "mlm_loss": (last_number(metrics, *HELD_OUT_LOSS, evaluation=True), plain),
        "perplexity": (last_number(metrics, "perplexity", evaluation=True), plain),
        "mlm_accuracy": (last_number(metrics, "mlm_accuracy", evaluation=True), percent),
        "next_sentence_accuracy": (last_number(metrics, "next_sentence_accuracy", evaluation=True), percent),
        "loss": (last_number(metrics, "loss", evaluation=False), plain),
        "tokens_seen": (_first(about.get("tokens_seen"), last_number(metrics, "tokens_seen", "tokens")), large),
        "seconds": (_first(about.get("seconds"), last_number(metrics, "seconds")), lambda s: duration(s, lang)),
        "parameters": (as_number(about.get("parameters")), large),
    }
    return {name_of(key, lang): format_(value) for key, (value, format_) in candidates.items() if value is not None}


def _first(*values: Any) -> float | None:
    return next((number for number in map(as_number, values) if number is not None), None)


def _summary(
    run: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    lang: str,
) -> list[Block]:
    """The summary of a pretraining report: what was reached, and whether the run was interrupted."""
    strings = words(lang)
    blocks: list[Block] = []
    if run.get("interrupted"):
        reason = run["interrupted"]
        blocks.append(Warning_(strings["interrupted"] + (f" {reason}" if isinstance(reason, str) else "")))
    key = next((key for key in HELD_OUT_LOSS if any(as_number(row.get(key)) is not None for row in evaluations)), "")
    losses = [(row.get("step"), number) for row in evaluations if (number := as_number(row.get(key))) is not None]
    if len(losses) > 1:
        (_, first), (last_step, last) = losses[0], losses[-1]
        best_step, best = min(losses, key=lambda each: each[1])
        fell = strings["loss_path"].format(first=plain(first, 3), last=plain(last, 3), step=plain(last_step))
        blocks.append(Good(fell) if last < first else Warning_(fell))
        if last > 1.02 * best and best_step != last_step:
            blocks.append(Warning_(strings["loss_rose"].format(best=plain(best, 3), step=plain(best_step))))
    not_finite = sum(1 for row in metrics if "loss" in row and as_number(row["loss"]) is None)
    if not_finite:
        blocks.append(Warning_(strings["not_finite"].format(count=f"{not_finite:,}")))
    if not metrics:
        blocks.append(Warning_(strings["no_rows"]))
    return blocks


def _evaluation_table(evaluations: Sequence[Mapping[str, Any]], lang: str) -> list[Block]:
    """The table of evaluations in a pretraining report."""
    rows = [{key: value for key, value in row.items() if key not in ("eval", "time")} for row in evaluations]
    if len(rows) > MOST_EVALUATIONS:
        selected = {round(n * (len(rows) - 1) / (MOST_EVALUATIONS - 1)) for n in range(MOST_EVALUATIONS)}
        rows = [row for n, row in enumerate(rows) if n in selected]
    caption = words(lang)["evaluations_caption"].format(shown=len(rows), count=f"{len(evaluations):,}")
    flat = [{key: value for key, value in row.items() if not isinstance(value, (Mapping, list))} for row in rows]
    return table_of(caption, flat, lang)
