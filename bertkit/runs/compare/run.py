"""A comparison from rows to verdict: the same splits for all, the cheapest first, as many as fit the time."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import machine, metrics
from bertkit.checkpoint.vocabulary_fit import starting_model
from bertkit.config import to_plain, to_toml
from bertkit.errors import Stopped, UserError
from bertkit.files.atomic import atomic_write
from bertkit.inference import framed
from bertkit.notify import note
from bertkit.report.comparison import comparison_report, verdict
from bertkit.runs.compare.contenders import ContenderModel, Entry, Resources, contenders_for
from bertkit.runs.compare.encoder_contenders import Progress
from bertkit.runs.finetune.split import held_out, key_of, names_of, note_amounts
from bertkit.settings.finetune import CompareSettings
from bertkit.tasks import make
from bertkit.tasks.base import Prediction, Reading, Task

# ---- What more labels would bring, extrapolated from a learning curve.

GAIN = {
    "en": (
        "{name}: from {half:,} to {rows:,} rows its score went from {before:.3f} to {after:.3f}. "
        "If the next doubling brings {share:.0%} of what this one did, {double:,} rows would give about {guess:.3f}."
    ),
    "zh": (
        "{name}：训练行数从 {half:,} 增至 {rows:,}，得分由 {before:.3f} 变为 {after:.3f}。"
        "若下一次翻倍的收益为这一次的 {share:.0%}，{double:,} 行约可达 {guess:.3f}。"
    ),
}
FLAT = {
    "en": (
        "{name}: the last doubling of the rows brought nothing ({before:.3f} to {after:.3f}); "
        "more labels of the same kind will hardly help."
    ),
    "zh": "{name}：最近一次把行数翻倍没有带来提升（{before:.3f} 到 {after:.3f}）；再标注同类数据帮助不大。",
}
FULL = {
    "en": "{name}: with {rows:,} rows no mistake is left on the rows it is scored on; more labels cannot show here.",
    "zh": "{name}：用 {rows:,} 行训练后，评分数据上已无错误；更多标注在此看不出差别。",
}


def forecast(curve: Mapping[str, Sequence[tuple[int, float]]], name: str, *, lang: str = "en") -> str:
    """A comparison's forecast of what more rows would bring the contender `name` (or the first with a curve).

    Points: (rows, score) at a quarter, half, all.
    """
    if not curve:
        return ""
    name = name if name in curve else next(iter(curve))
    (_, first), (half, before), (rows, after) = curve[name][-3:]
    gain, earlier = after - before, before - first
    if gain <= 0:
        return FLAT[lang].format(name=name, before=before, after=after)
    if after >= 1:
        return FULL[lang].format(name=name, rows=rows)
    # Gains shrink from doubling to doubling; where they seem to grow, the reason is probably noise. Errors do not
    # decrease by a larger factor than in the last doubling, so the score stays below 1.
    share = min(1.0, max(0.25, gain / earlier)) if earlier > 0 else 0.5
    share = min(share, (1 - after) / (1 - before))
    return GAIN[lang].format(
        name=name,
        half=half,
        rows=rows,
        before=before,
        after=after,
        share=share,
        double=2 * rows,
        guess=after + share * gain,
    )


# ---- A comparison from rows to verdict: the same splits for all, the cheapest first, as many as fit the time.

SHARES = (0.25, 0.5)  # of the training rows, for the learning curve
LEAST_SECONDS = 20.0  # a contender is not started with less
STOPPED = "the comparison was stopped"
BLIND = ("majority", "mean")  # they do not read the text, so they have no learning curve


@dataclass
class ComparisonRows:
    """The rows of a comparison: to train on, to choose the best pass by, and to score on."""

    train: list[Any]
    choose: list[Any]
    judge: list[Any]
    facts: dict[str, Any]


@dataclass
class ContenderResult:
    """Score and cost of one contender. Score, interval, p-value and folder are the first seed's.

    p_value: of its difference to the best; None for the best itself. stopped: the progress of a training that ran out
    of time.
    """

    name: str
    score: float
    train_seconds: float
    ms_per_text: float
    megabytes: float
    parameters: int
    seeds: int
    folder: str
    note: str = ""
    stopped: str = ""
    interval: list[float] = field(default_factory=list)
    p_value: float | None = None

    def plain(self) -> dict[str, Any]:
        """What a comparison's run found out about one contender, as values for JSON and the report."""
        return {name: value for name, value in vars(self).items() if value not in ("", None, [])}


@dataclass(frozen=True)
class LeftOut:
    """A contender, or a learning curve, that a comparison did not run, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class CompareResult:
    """A finished comparison, the best contender first.

    rows: how many were scored. data: facts of the files. curve: of some contenders, (training rows, score) from few
    rows to all. outlook: what more labels would bring.
    """

    task: str
    headline: str
    rows: int
    contenders: list[ContenderResult]
    verdict: str
    skipped: list[LeftOut]
    data: dict[str, Any]
    minutes: float
    environment: dict[str, Any]
    settings: dict[str, Any]
    out: str
    report: str
    curve: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    outlook: str = ""

    def plain(self) -> dict[str, Any]:
        """A comparison's result as values for JSON and the report."""
        lists = {"contenders": [row.plain() for row in self.contenders], "skipped": [vars(row) for row in self.skipped]}
        table = {**vars(self), **lists}
        return table if self.curve else {key: table[key] for key in table if key not in ("curve", "outlook")}

    def _repr_html_(self) -> str:
        """A comparison's report, for a notebook."""
        return framed(Path(self.report).read_text("utf-8"))


@dataclass
class Outcome:
    """A contender's result, and what the comparison needs besides. minutes: its time limit."""

    entry: Entry
    predictions: list[Prediction]
    result: ContenderResult
    minutes: float = 0.0


def compare(settings: CompareSettings) -> CompareResult:
    """Run a comparison of contenders. Returns the content of the report."""
    machine.set_up(settings.threads)
    import sklearn.feature_extraction.text  # before the clock starts: no contender pays for it
    import sklearn.linear_model
    import sklearn.model_selection  # noqa: F401

    return _Comparison(settings).go()


class _Comparison:
    def __init__(self, settings: CompareSettings) -> None:
        self.settings = s = settings
        self.task: Task = make(s.task)
        self.rows = _read(s, self.task)
        self.task.fit_labels(self.rows.train + self.rows.choose)
        self.task.check(self.rows.judge, str(s.test or s.dev or s.train))
        self.resources = Resources(
            models=tuple(
                starting_model(name.strip(), self.task, self.rows.train) for name in s.models.split(",") if name.strip()
            ),
            vectors=str(s.vectors or ""), lm=str(s.lm or ""), elmo=str(s.elmo or ""), gpt=s.gpt,
            threads=s.threads, precision=s.precision, device=s.device,
        )  # fmt: skip
        wanted = tuple(name.strip() for name in s.contenders.split(",") if name.strip())
        self.entries = contenders_for(s.task, wanted, self.resources)
        self.start = time.monotonic()
        self.skipped: list[LeftOut] = []
        self.outcomes: list[Outcome] = []
        self.curve: dict[str, list[tuple[int, float]]] = {}

    def _left(self) -> float:
        """Seconds of the comparison's budget that remain for the contenders themselves; the curve has its own third."""
        if not self.settings.minutes:
            return float("inf")
        budget = self.settings.minutes * 60
        return budget * (0.7 if self.settings.curve else 1.0) - (time.monotonic() - self.start)

    def go(self) -> CompareResult:
        """Run every contender of the comparison, then the learning curve, then write the report."""
        for place, entry in enumerate(self.entries):
            if reason := entry.lacks(self.resources):
                self.skipped.append(LeftOut(entry.key, reason))
                continue
            remaining = self._left()
            if remaining < LEAST_SECONDS and self.outcomes:
                self.skipped.append(LeftOut(entry.key, f"no time was left of {self.settings.minutes:g} min"))
                continue
            waiting = sum(not other.lacks(self.resources) for other in self.entries[place:])
            share = 0.0 if remaining == float("inf") else remaining / waiting / max(1, self.settings.seeds) / 60
            try:
                self._run(entry, share)
            except (UserError, ValueError) as reason:  # one contender failed; the others still count
                self.skipped.append(LeftOut(entry.key, str(reason)))
                note(f"{entry.key} is left out: {reason}")
            except (Stopped, KeyboardInterrupt) as stop:
                raise self._stopped(stop, place) from None
        if not self.outcomes:
            reasons = "; ".join(f"{row.name}: {row.reason}" for row in self.skipped)
            raise UserError(f"No contender could be run: {reasons}")
        self._judge()
        try:
            self._learning_curves()
        except (Stopped, KeyboardInterrupt) as stop:
            raise self._reported(stop) from None
        return self._finish()

    def _stopped(self, stop: Stopped | KeyboardInterrupt, place: int) -> Stopped:
        """A comparison that was stopped: score and report the finished contenders, list the others as skipped."""
        if not self.outcomes:
            return Stopped(_signal_of(stop), "stopped before any contender was finished; nothing was written.")
        self.skipped += [LeftOut(entry.key, STOPPED) for entry in self.entries[place:]]
        self._judge()
        return self._reported(stop)

    def _reported(self, stop: Stopped | KeyboardInterrupt) -> Stopped:
        """Write the report of a comparison that was stopped. Returns the error that names it."""
        report, number = self._finish().report, _signal_of(stop)
        return Stopped(number, f"stopped; the {len(self.outcomes)} contenders that were finished are in {report}.")

    def _run(self, entry: Entry, minutes: float) -> None:
        """Train a contender of the comparison with every seed, measure the time, and keep the first model."""
        scores: list[float] = []
        first: ContenderModel | None = None
        first_predictions: list[Prediction] = []
        seconds = predict_seconds = 0.0
        notes = []
        for seed in range(max(1, self.settings.seeds)):
            started = time.perf_counter()
            contender = entry.make(self.resources)
            contender.fit(self.task, self.rows.train, self.rows.choose, seed=self.settings.seed + seed, minutes=minutes)
            seconds += time.perf_counter() - started
            contender.predict(self.rows.judge[:8])  # warm-up: one-time preparation is not part of the cost per text
            started = time.perf_counter()
            predictions = contender.predict(self.rows.judge)
            if first is None:
                first, first_predictions, predict_seconds = contender, predictions, time.perf_counter() - started
            scores.append(self._score(predictions))
        assert first is not None
        folder = self.settings.out / "models" / entry.key.replace(":", "-").replace("/", "-")
        first.save(folder)
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6
        if len(scores) > 1:
            notes.append(f"mean {np.mean(scores):.4f} ± {np.std(scores):.4f} over {len(scores)} seeds")
        shortfall = _shortfall(first.progress)
        if shortfall:
            notes.append(f"cut short: {shortfall} in {minutes:.1f} minutes")
        result = ContenderResult(
            name=first.name, score=scores[0], train_seconds=seconds / len(scores),
            ms_per_text=1000 * predict_seconds / len(self.rows.judge), megabytes=size, parameters=first.parameters,
            seeds=len(scores), folder=str(folder), note="; ".join(notes),
            stopped=shortfall if first.progress and first.progress.stopped else "",
        )  # fmt: skip
        note(
            f"{result.name}: {result.score:.4f} in {result.train_seconds:.1f} s, {result.ms_per_text:.2f} ms per text."
        )
        self.outcomes.append(Outcome(entry, first_predictions, result, minutes))

    def _score(self, predictions: Sequence[Prediction]) -> float:
        return float(next(iter(self.task.score(self.rows.judge, predictions).values())))

    def _judge(self) -> None:
        """The comparison's intervals, and the significance of every contender's difference to the best."""
        finished = [outcome for outcome in self.outcomes if not outcome.result.stopped]
        best = max(finished or self.outcomes, key=lambda outcome: outcome.result.score)
        metric, gold, top, more = self.task.metric_inputs(self.rows.judge, best.predictions)
        self.headline = next(iter(metric(gold, top, **more)))
        for outcome in self.outcomes:
            _, _, answers, extra = self.task.metric_inputs(self.rows.judge, outcome.predictions)
            interval = metrics.bootstrap(metric, gold, answers, seed=self.settings.seed, **extra)[self.headline]
            outcome.result.interval = [float(edge) for edge in interval]
            if outcome is not best:
                pair = {**extra, "scores": (more["scores"], extra["scores"])} if "scores" in extra else extra
                gap = metrics.paired_difference(
                    gold, top, answers, metric, name=self.headline, seed=self.settings.seed, **pair
                )
                outcome.result.p_value = gap.p_value
        self.best = best

    def _learning_curves(self) -> None:
        """The comparison's learning curves: scores of the best and the cheapest from fewer rows, as time permits."""
        cheapest = sorted(self.outcomes, key=lambda outcome: outcome.result.train_seconds)
        others = (outcome for outcome in cheapest if outcome is not self.best and outcome.entry.key not in BLIND)
        selected = [self.best, *others][:4] if self.settings.curve else []
        for place, outcome in enumerate(selected):
            name = outcome.result.name
            try:
                self.curve[name] = self._curve(outcome)
            except (UserError, ValueError) as reason:  # too few rows for this contender; the others still have theirs
                self.skipped.append(LeftOut(f"learning curve of {name}", str(reason)))
            except (Stopped, KeyboardInterrupt):
                left = [other.result.name for other in selected[place:]]
                self.skipped += [LeftOut(f"learning curve of {name}", STOPPED) for name in left]
                raise

    def _curve(self, outcome: Outcome) -> list[tuple[int, float]]:
        """One contender's learning curve in the comparison: (training rows, score); UserError where it has none."""
        end = self.start + self.settings.minutes * 60 if self.settings.minutes else float("inf")
        order = np.random.default_rng((self.settings.seed, 7)).permutation(len(self.rows.train))
        points = []
        for share in SHARES:
            part = [self.rows.train[n] for n in sorted(order[: max(2, round(share * len(order)))])]
            if time.monotonic() + outcome.result.train_seconds * (0.3 + share) > end:
                raise UserError("no time was left for it")
            if not _has_labels(self.task, part):
                raise UserError(f"{len(part):,} of the training rows have one label only")
            contender = outcome.entry.make(self.resources)
            contender.fit(self.task, part, self.rows.choose, seed=self.settings.seed, minutes=outcome.minutes)
            points.append((len(part), self._score(contender.predict(self.rows.judge))))
        return [*points, (len(self.rows.train), outcome.result.score)]

    def _finish(self) -> CompareResult:
        """The result of a comparison: contenders by score, verdict and report."""
        s = self.settings
        contenders = sorted((outcome.result for outcome in self.outcomes), key=lambda row: -row.score)
        result = CompareResult(
            task=s.task, headline=self.headline, rows=len(self.rows.judge), contenders=contenders,
            verdict=verdict([row.plain() for row in contenders], lang=s.lang), skipped=self.skipped,
            data=self.rows.facts, minutes=round((time.monotonic() - self.start) / 60, 2),
            environment=machine.describe(machine.threads()), settings=to_plain(s), out=str(s.out),
            report=str(s.out / "report.html"), curve=self.curve,
            outlook=forecast(self.curve, self.best.result.name, lang=s.lang),
        )  # fmt: skip
        s.out.mkdir(parents=True, exist_ok=True)
        atomic_write(s.out / "run.toml", to_toml(to_plain(s)))
        atomic_write(s.out / "compare.json", json.dumps(result.plain(), ensure_ascii=False, indent=1, default=str))
        atomic_write(s.out / "report.html", comparison_report(result.plain(), lang=s.lang))
        return result


def _signal_of(stop: Stopped | KeyboardInterrupt) -> int:
    """The number of the signal that stopped a comparison."""
    return stop.signal if isinstance(stop, Stopped) else signal.SIGINT


def _read(s: CompareSettings, task: Task) -> ComparisonRows:
    """A comparison's three sets of rows, from files or held out of the training rows; shared rows are reported."""
    reading = Reading(s.text, s.text_b, s.label, s.encoding, s.label_separator)
    task.keep_columns(reading)
    train = task.read(s.train, reading)
    note_amounts(train, task, str(s.train), "compare")
    train = _sampled(train, s.rows, s.seed, "training rows are used (--rows)")
    judge_file = s.test or s.dev
    if judge_file is not None:
        judge = _sampled(task.read(judge_file, reading), s.max_test_rows, s.seed, "rows are scored (--max-test-rows)")
    else:
        train, judge = held_out(train, 0.2, s.seed)
        note(f"No --dev file: {len(judge)} rows are held out of {s.train} to score on.")
    if s.test and s.dev:
        choose = task.read(s.dev, reading)
    else:
        train, choose = held_out(train, 0.1, s.seed + 1)
        note(f"{len(choose)} training rows are held out for choosing the best pass; none of them is scored.")
    if not train or not choose or not judge:
        raise UserError(f"{s.train}: there are too few different rows for training, model selection and scoring.")
    learned_from = {key_of(row) for row in (*train, *choose)}
    shared = sum(key_of(row) in learned_from for row in judge)
    if shared:
        note(f"{shared} of {len(judge)} scored rows are also training rows; scores will be too optimistic.")
    facts = {
        "train": {"file": s.train.name, "rows": len(train)},
        "choose": {"rows": len(choose)},
        "score": {
            "file": judge_file.name if judge_file else s.train.name,
            "rows": len(judge),
            "also_learnt_from": shared,
        },
    }
    return ComparisonRows(train, choose, judge, facts)


def _shortfall(progress: Progress | None) -> str:
    """The steps that a contender of a comparison ran, if fewer than planned."""
    if progress is None or progress.steps >= progress.planned:
        return ""
    return f"{progress.steps:,} of {progress.planned:,} steps"


def _sampled(rows: list[Any], most: int, seed: int, what: str) -> list[Any]:
    """A sample of at most `most` rows of a comparison, by the seed, in the file's order."""
    if not most or len(rows) <= most:
        return rows
    note(f"{most} of {len(rows)} {what}.")
    return [rows[n] for n in sorted(np.random.default_rng((seed, 6)).permutation(len(rows))[:most])]


def _has_labels(task: Task, rows: Sequence[Any]) -> bool:
    """Whether a comparison's rows have at least two labels, or numbers."""
    return len({name for row in rows for name in names_of(row)}) != 1
