"""The report of a fine-tuning run or an evaluation: every part is optional and shown when it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bertkit.notify import translated
from bertkit.report.curves import curve_figures
from bertkit.report.format import as_number, between, duration, facts_of, percent, plain, settings_text
from bertkit.report.html import (
    Block,
    Code,
    Facts,
    Figure,
    Good,
    Section,
    Table,
    Text,
    Warning_,
    notes_of,
    page,
    table_of,
)
from bertkit.report.svg import bar_plot, coverage_plot, heat_map, histogram, reliability_plot
from bertkit.report.svg.lines import take
from bertkit.report.words import name_of, rows_of, sentence_of, words

SHARES = {"precision", "recall", "f1", "accuracy", "share"}
EXAMPLE_COLUMNS = [
    "line",
    "text",
    "text_b",
    "question",
    "gold",
    "predicted",
    "suggested",
    "label",
    "labels",
    "answer",
    "value",
]
MOST_ERRORS = 40
MOST_LABELS = 50
LISTS = ("errors", "suspects")  # for the page and for Python; result.json goes without
COUNTS = ("error_count", "suspect_count")  # for the page alone

Part = Mapping[str, Any]


@dataclass(frozen=True)
class FinetuneResult:
    """The result of a fine-tuning run, as result.json stores it, commands print it and the report shows it.

    Every part is optional: None is what there is not. The order of the parts is that of the stored file.

    task, model, name: words for the title. out: the run's folder.
    headline: which of `metrics` counts most (else the first).
    metrics: {name: number} or {name: {"value", "low", "high"}}.
    intervals: {name: (low, high)}, as `metrics.bootstrap` gives them; `level` (0.95) and `rows` (evaluated).
    scored_on: "dev" or "test": the rows of metrics, baselines, per_class, confusion, errors and seeds.
    data: files [{role, name, rows, …}], labels {role: {label: rows}}, lengths, cut, other facts (`data_blocks`).
    run: settings (nested), curves (rows of metrics.jsonl), best_step, seconds, stopped (text), seeds [{seed, score …}],
    and any other facts.
    errors: [{text, text_b, gold, predicted, score, line}], worst first; error_count: how many there were.
    environment, speed: facts, nested or not. command: the command that repeats the run.
    calibration: of the dev rows: temperature, ece_before, ece_after, before, after (bins of confidence, accuracy, count
    or rows). coverage: of the dev rows: points with coverage, accuracy, threshold; abstain: the chosen one.
    thresholds: {label: the least probability with which a text has it}, chosen on the dev rows.
    no_answer: of the dev rows: threshold (how much better no answer must score than the best one), f1, f1_at_zero.
    notes: what was told during the run: list of texts.
    per_class: [{label, precision, recall, f1, gold, predicted}]. confusion: {labels, counts[gold][predicted]}.
    suspects: [{text, gold, suggested, score, line}] of training rows, worst first; suspect_count as above.
    seeds, folds: mean, spread and scores of a run that was repeated.
    baselines: {contender: {metric: number}}: what cheap methods reach on the same rows.
    baseline: of one of them: name, metric, rows, trained_on, seconds, and difference (this model's score minus the
    baseline's), low, high, p_value.
    predictions: [{text, label, score …}]: predictions on fresh texts.
    """

    task: str | None = None
    model: str | None = None
    out: str | None = None
    headline: str | None = None
    metrics: Part | None = None
    intervals: Part | None = None
    rows: int | None = None
    scored_on: str | None = None
    data: Part | None = None
    run: Part | None = None
    errors: Sequence[Part] | None = None
    environment: Part | None = None
    command: str | None = None
    calibration: Part | None = None
    coverage: Sequence[Any] | None = None
    abstain: Any = None
    thresholds: Part | None = None
    no_answer: Part | None = None
    notes: Sequence[str] | None = None
    dev_metrics: Part | None = None
    per_class: Sequence[Part] | None = None
    confusion: Part | None = None
    suspects: Sequence[Part] | None = None
    folds: Part | None = None
    seeds: Part | None = None
    baselines: Part | None = None
    baseline: Part | None = None
    predictions: Sequence[Part] | None = None
    labels: Any = None
    name: str | None = None
    level: float | None = None
    speed: Part | None = None
    error_count: int | None = None
    suspect_count: int | None = None

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> FinetuneResult:
        """A fine-tuning result from a stored file; what is not a part of a result is left out."""
        return cls(**{part.name: table[part.name] for part in fields(cls) if part.name in table})

    def to_dict(self) -> dict[str, Any]:
        """The parts a fine-tuning result has, as commands print and reports show them."""
        parts = {part.name: getattr(self, part.name) for part in fields(self) if part.name not in COUNTS}
        return {name: value for name, value in parts.items() if value is not None}

    def stored(self) -> dict[str, Any]:
        """The parts of a fine-tuning result that result.json holds."""
        return {name: value for name, value in self.to_dict().items() if name not in LISTS}

    @property
    def score(self) -> float:
        """The headline's value of a fine-tuning result."""
        return float((self.metrics or {})[self.headline or ""])

    @property
    def dev_score(self) -> float:
        """A fine-tuning result's headline on the dev rows: choices are made by this, never by the test rows'."""
        scores = self.metrics if self.dev_metrics is None else self.dev_metrics
        return float((scores or {})[self.headline or ""])


def finetuning_report(result: FinetuneResult | Mapping[str, Any], *, lang: str = "en") -> str:
    """The report page of a fine-tuning result, or of a table of its parts.

    Texts may be as long and as hostile as they like.
    """
    result = result if isinstance(result, FinetuneResult) else FinetuneResult.from_dict(result)
    strings = words(lang)
    run = dict(result.run or {})
    task = str(result.task or "")
    title = strings["finetuning"].format(name=result.name or name_of(task, lang, "tasks")).strip(" :：")
    settings = dict(run.pop("settings", None) or {})
    command = [Code(str(result.command))] if result.command else []
    sections = [
        Section(strings["result"], _scores(result, lang)),
        Section(strings["by_label"], _by_label(result, lang)),
        Section(strings["trust"], _trust(result, lang)),
        Section(strings["errors"], _errors(result, lang)),
        Section(strings["suspects"], _suspects(result, lang)),
        Section(strings["predictions"], _predictions(result, lang)),
        Section(strings["data"], data_blocks(dict(result.data or {}), lang)),
        Section(strings["training"], _training(run, _scored(result, lang), lang)),
        Section(strings["speed"], [Facts(facts_of(result.speed, lang))] if result.speed else []),
        Section(strings["notes"], notes_of(result.notes or (), lang)),
        Section(strings["environment"], [Facts(facts_of(result.environment, lang))] if result.environment else []),
        Section(strings["settings"], [*command, *([Code(settings_text(settings))] if settings else [])]),
    ]
    model = result.model
    subtitle = strings["finetuning_subtitle"].format(model=model) if model else ""
    return page(title, sections, lang=lang, subtitle=subtitle, facts=_tiles(result, run, lang))


def _headline(result: FinetuneResult) -> str:
    metrics = result.metrics or {}
    named = result.headline
    return str(named) if named in metrics else next(iter(metrics), "")


def _scored(result: FinetuneResult, lang: str) -> str:
    return rows_of(result.scored_on, lang)


def _score(result: FinetuneResult, name: str) -> Any:
    return between((result.metrics or {})[name], (result.intervals or {}).get(name))


def _tiles(result: FinetuneResult, run: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """The key figures of a fine-tuning report."""
    tiles: dict[str, Any] = {}
    metrics = result.metrics or {}
    first = _headline(result)
    for name in [first, *(name for name in metrics if name != first)][:3] if metrics else ():
        tiles[name_of(name, lang)] = plain(_score(result, name).value)
    for key, count in (("rows", result.rows), ("labels", result.labels)):
        if as_number(count) is not None:
            tiles[name_of(f"{key}_scored", lang)] = plain(count)
    if as_number(run.get("seconds")) is not None:
        tiles[name_of("train_seconds", lang)] = duration(run["seconds"], lang)
    return tiles


def _scores(result: FinetuneResult, lang: str) -> list[Block]:
    """The part of a fine-tuning report with all scores and intervals."""
    metrics, strings = result.metrics or {}, words(lang)
    if not metrics:
        return []
    blocks: list[Block] = []
    first = _headline(result)
    best = _score(result, first)
    level = percent(0.95 if result.level is None else result.level, 0)
    if best.value is not None:
        key = "headline_interval" if best.low is not None else "headline"
        sentence = sentence_of(
            key,
            lang,
            metric=name_of(first, lang),
            rows=_scored(result, lang),
            value=plain(best.value),
            low=plain(best.low),
            high=plain(best.high),
            level=level,
        )
        blocks.append(Good(sentence))
    caption = strings["metrics_caption"].format(level=level, rows=_scored(result, lang), count=plain(result.rows))
    rows = [[name_of(name, lang), _score(result, name)] for name in metrics]
    blocks.append(Table(caption, [strings["metric"], strings["score_interval"]], rows))
    blocks += _against_baseline(result, first, level, lang)
    for key, repeated in (("folds_scored", result.folds), ("seeds_scored", result.seeds)):
        if repeated:
            blocks.append(Text(sentence_of(
                key, lang, metric=name_of(first, lang), mean=plain(repeated["mean"]), spread=plain(repeated["spread"]),
                runs=len(repeated["scores"]), rows=plain(repeated.get("rows")), scored=_scored(result, lang),
            )))  # fmt: skip
    rivals = {name: as_number((scores or {}).get(first)) for name, scores in (result.baselines or {}).items()}
    if rivals:
        names, values = [*rivals, strings["this_model"]], [*rivals.values(), best.value]
        pairs = [None] * len(rivals) + [(best.low, best.high) if best.low is not None else None]
        svg = bar_plot(names, values, pairs, most=1.0 if max(filter(None, values), default=0) <= 1 else None, lang=lang)
        caption = sentence_of("baselines_caption", lang, metric=name_of(first, lang), rows=_scored(result, lang))
        blocks.append(Figure(caption, svg))
    return blocks


def _against_baseline(result: FinetuneResult, metric: str, level: str, lang: str) -> list[Block]:
    """How much better a fine-tuned model is than the baseline, as a sentence; a warning where it may be chance."""
    if result.task == "answer":
        return [Text(words(lang)["baseline_of_answers"])]
    facts = dict(result.baseline or {})
    difference, low, high = (as_number(facts.get(key)) for key in ("difference", "low", "high"))
    if difference is None or low is None or high is None:
        return []
    key = "baseline_beaten" if low > 0 else "baseline_unbeaten" if high < 0 else "baseline_unsure"
    sentence = sentence_of(
        key, lang, name=facts["name"], rows=_scored(result, lang), metric=name_of(metric, lang), level=level,
        value=plain((result.baselines or {})[facts["name"]][metric]), difference=plain(abs(difference)),
        low=plain(low), high=plain(high), seconds=plain(facts["seconds"], 2), count=plain(facts["trained_on"]),
    )  # fmt: skip
    return [Good(sentence) if low > 0 else Warning_(sentence)]


def _by_label(result: FinetuneResult, lang: str) -> list[Block]:
    """The part of a fine-tuning report with scores per label and the confusion matrix."""
    strings, scored = words(lang), _scored(result, lang)
    blocks: list[Block] = []
    confusion = result.confusion or {}
    labels, counts = [str(label) for label in confusion.get("labels", ())], confusion.get("counts")
    # A numpy array has no truth value of its own.
    if counts is not None and len(counts):
        order = sorted(range(len(labels)), key=lambda n: -sum(counts[n]))[:40]
        selected = sorted(order)
        matrix = [[counts[r][c] for c in selected] for r in selected]
        names = [labels[n] for n in selected]
        caption = strings["confusion_caption"].format(rows=scored) + (
            ""
            if len(selected) == len(labels)
            else " " + strings["largest"].format(shown=len(selected), count=len(labels))
        )
        svg = heat_map(matrix, names, names, row_label=strings["gold"], column_label=strings["predicted"], lang=lang)
        blocks.append(Figure(caption, svg, wide=len(selected) > 10))
        mixed = [(int(counts[r][c]), r, c) for r in range(len(labels)) for c in range(len(labels)) if r != c]
        worst = [(n, r, c) for n, r, c in sorted(mixed, key=lambda each: -each[0]) if n > 0][:8]
        if len(labels) > 2 and worst:
            rows = [[labels[r], labels[c], n, percent(n / (sum(counts[r]) or 1))] for n, r, c in worst]
            columns = [name_of("gold", lang), name_of("predicted", lang), strings["rows"], strings["share"]]
            blocks.append(Table(strings["mixed_caption"].format(rows=scored), columns, rows, align="llrr"))
    counts_of = {"gold": "rows_gold", "predicted": "rows_predicted"}
    per_class = [{counts_of.get(key, key): value for key, value in row.items()} for row in result.per_class or ()]
    wanted = ("label", "precision", "recall", "f1", "accuracy", *counts_of.values(), "support")
    caption = strings["per_class_caption"].format(rows=scored)
    table = table_of(caption, per_class[:100], lang, only=wanted, heat=sorted(SHARES), digits=3)
    return [*table, *blocks]


def _trust(result: FinetuneResult, lang: str) -> list[Block]:
    """The part of a fine-tuning report on calibration and abstaining."""
    strings, dev = words(lang), rows_of("dev", lang)
    blocks: list[Block] = []
    calibration = dict(result.calibration or {})
    before, after = calibration.pop("before", None) or (), calibration.pop("after", None) or ()
    was, now = as_number(calibration.get("ece_before")), as_number(calibration.get("ece_after"))
    if was is not None and now is not None:
        sentence = strings["calibrated"].format(
            rows=dev, before=percent(was), after=percent(now), temperature=plain(calibration.get("temperature"), 3)
        )
        blocks.append(Good(sentence) if now <= max(was, 0.02) else Warning_(sentence))
    elif calibration:
        blocks.append(Facts(facts_of(calibration, lang)))
    chosen = result.abstain
    if chosen is not None and as_number(take(chosen, "coverage")) is not None:
        shares = {key: percent(take(chosen, key)) for key in ("coverage", "accuracy")}
        threshold = plain(take(chosen, "threshold"), 3)
        blocks.append(Text(strings["abstaining"].format(rows=dev, threshold=threshold, **shares)))
    if result.no_answer:
        values = {key: plain(value, 3) for key, value in result.no_answer.items()}
        blocks.append(Text(strings["no_answer"].format(**values | {"rows": dev})))
    if result.thresholds:
        rows = [[label, plain(value, 3)] for label, value in list(result.thresholds.items())[:MOST_LABELS]]
        caption = strings["thresholds_caption"].format(rows=dev)
        blocks.append(Table(caption, [name_of("label", lang), strings["threshold"]], rows, align="lr"))
    if len(before) or len(after):
        svg = reliability_plot(after or before, before=before if len(after) else (), lang=lang)
        blocks.append(Figure(strings["reliability_caption"].format(rows=dev), svg))
    coverage = result.coverage
    if coverage is not None and len(coverage):
        svg = coverage_plot(coverage, chosen=chosen, lang=lang)
        blocks.append(Figure(strings["coverage_caption"].format(rows=dev), svg))
    return blocks


def _errors(result: FinetuneResult, lang: str) -> list[Block]:
    """The part of a fine-tuning report with the worst mistakes."""
    strings, rows = words(lang), list(result.errors or ())
    counts = (result.confusion or {}).get("counts")
    count = as_number(result.error_count)
    if count is None and counts is not None and len(counts):
        count = sum(float(n) for r, row in enumerate(counts) for c, n in enumerate(row) if r != c)
    return _examples(
        rows, strings["errors_caption"], strings["errors_uncounted"], count, lang, rows=_scored(result, lang)
    )


def _suspects(result: FinetuneResult, lang: str) -> list[Block]:
    strings, rows = words(lang), list(result.suspects or ())
    count = as_number(result.suspect_count)
    return _examples(rows, strings["suspects_caption"], strings["suspects_uncounted"], count, lang)


def _predictions(result: FinetuneResult, lang: str) -> list[Block]:
    caption, rows = words(lang)["predictions_caption"], list(result.predictions or ())
    return _examples(rows, caption, caption, len(rows), lang)


def _examples(
    examples: Sequence[Mapping[str, Any]], caption: str, uncounted: str, count: float | None, lang: str, **blanks: str
) -> list[Block]:
    """A fine-tuning report's table of the first examples. count: how many there were before any were cut off."""
    if not examples:
        return []
    if count is None and len(examples) < MOST_ERRORS:
        count = len(examples)
    rows = [dict(row) for row in examples[:MOST_ERRORS]]
    keys = dict.fromkeys(key for row in rows for key in row if not isinstance(row[key], Mapping))
    only = [*(key for key in EXAMPLE_COLUMNS if key in keys), *(key for key in keys if key not in EXAMPLE_COLUMNS)]
    text = uncounted if count is None else caption
    text = text.format(shown=len(rows), count=f"{round(max(count or 0, len(examples))):,}", **blanks)
    return table_of(text, rows, lang, only=only, digits=3, row_names=False)


def _training(run: dict[str, Any], scored: str, lang: str) -> list[Block]:
    """The part of a fine-tuning report with curves, seeds and facts of the run."""
    strings = words(lang)
    curves, seeds = run.pop("curves", None) or (), run.pop("seeds", None) or ()
    best = as_number(run.get("best_step"))
    facts = facts_of(run, lang)
    return [
        *([Facts(facts)] if facts else []),
        *curve_figures(curves, lang, held_out="dev", marks={strings["best"]: best} if best is not None else None),
        *table_of(strings["seeds_caption"].format(rows=scored), seeds, lang),
    ]


def data_blocks(data: dict[str, Any], lang: str) -> list[Block]:
    """The blocks of `result.data`:

    | key | meaning |
    |---|---|
    | files | [{role, name, rows, …}]: any further keys are columns |
    | labels | {role: {label: rows}} |
    | lengths | bins [(low, high, rows)] or values [tokens a text]; limit (tokens a window); any other facts |
    | cut | {role: {rows, rows_cut, tokens, tokens_cut}} |
    | anything else | a fact: duplicates, overlap, dropped … |
    """
    files, labels, lengths, cut = (data.pop(key, None) for key in ("files", "labels", "lengths", "cut"))
    strings = words(lang)
    facts = facts_of(data, lang)
    return [
        *_cut(cut or {}, lang),
        *table_of(strings["files_caption"], _named_roles(files or (), lang), lang),
        *([Facts(facts)] if facts else []),
        *_balance(labels or {}, lang),
        *_lengths(dict(lengths or {}), lang),
    ]


def _named_roles(files: Any, lang: str) -> list[dict[str, Any]]:
    """The files of a fine-tuning report, with what they are for and where held-out rows come from in its words."""
    named = [
        {**row, "name": translated(str(row["name"]), lang, is_part=True)} if "name" in row else row for row in files
    ]
    return [{**row, "role": name_of(str(row["role"]), lang, "roles")} if "role" in row else dict(row) for row in named]


def _balance(labels: Mapping[str, Mapping[str, Any]], lang: str) -> list[Block]:
    """The labels of each set of rows, in a fine-tuning report."""
    strings = words(lang)
    if labels and not isinstance(next(iter(labels.values())), Mapping):
        labels = {"train": labels}
    names = list(dict.fromkeys(label for counts in labels.values() for label in counts))
    if not names:
        return []
    totals = {role: sum(as_number(count) or 0.0 for count in counts.values()) for role, counts in labels.items()}
    columns, rows = [strings["label"]], [[name] for name in names[:MOST_LABELS]]
    heat = {}
    for role, counts in labels.items():
        columns += [name_of(role, lang, "roles"), strings["share"]]
        heat[len(columns) - 2] = (0.0, max((as_number(count) or 0.0 for count in counts.values()), default=1.0))
        for row in rows:
            row += [counts.get(row[0], 0), percent((as_number(counts.get(row[0])) or 0.0) / (totals[role] or 1.0))]
    caption = strings["balance_caption"].format(count=f"{len(names):,}")
    if len(names) > MOST_LABELS:
        caption += " " + strings["largest"].format(shown=MOST_LABELS, count=f"{len(names):,}")
    return [Table(caption, columns, rows, align="l" + "rr" * len(labels), heat=heat)]


def _lengths(lengths: dict[str, Any], lang: str) -> list[Block]:
    """The lengths of rows in tokens, in a fine-tuning report."""
    strings = words(lang)
    bins, values = lengths.pop("bins", None), lengths.pop("values", None)
    limit = as_number(lengths.get("limit"))
    blocks: list[Block] = []
    if (bins is not None and len(bins)) or (values is not None and len(values)):
        marks = {strings["limit"]: limit} if limit is not None else None
        svg = histogram(
            values if values is not None else (), bins=bins, x_label=strings["tokens"], marks=marks, lang=lang
        )
        blocks.append(Figure(strings["lengths_caption"], svg))
    facts = facts_of(lengths, lang)
    return [*blocks, Facts(facts)] if facts else blocks


def _cut(cut: Mapping[str, Mapping[str, Any]], lang: str) -> list[Block]:
    """The truncated tokens of each set of rows, in a fine-tuning report."""
    strings = words(lang)
    if not cut:
        return []
    rows, total = [], 0.0
    for role, counts in cut.items():
        all_rows, rows_cut, tokens, tokens_cut = (
            as_number(counts.get(key)) or 0.0 for key in ("rows", "rows_cut", "tokens", "tokens_cut")
        )
        total += rows_cut + tokens_cut
        of_rows = [round(all_rows), round(rows_cut), percent(rows_cut / (all_rows or 1.0))]
        of_tokens = [round(tokens), round(tokens_cut), percent(tokens_cut / (tokens or 1.0))]
        rows.append([name_of(role, lang, "roles"), *of_rows, *of_tokens])
    if not total:
        return [Good(strings["nothing_cut"])]
    columns = [strings[key] for key in ("file", "rows", "rows_cut", "share", "tokens", "tokens_cut", "share")]
    return [Warning_(strings["something_cut"]), Table(strings["cut_caption"], columns, rows, align="lrrrrrr")]
