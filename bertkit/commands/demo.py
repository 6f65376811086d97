"""`bertkit demo`: fine-tune, compare and predict with the embedded model and sample data."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.config import Common, option
from bertkit.notify import padded


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit demo`."""

    lang: str = option("en", "Language of the sample data.", choices=("en", "zh"))
    out: Path = option(Path("runs/demo"), "The output folder; an earlier demo in it is replaced.")


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tune on sample messages, compare with cheap baselines, predict, write a report."""
    import shutil

    from bertkit import machine, samples
    from bertkit.checkpoint.locate import embedded
    from bertkit.errors import Stopped, UserError
    from bertkit.files.atomic import atomic_write, explained, make_folder
    from bertkit.inference.predictor import Predictor
    from bertkit.notify import note
    from bertkit.runs.compare.contenders import Resources, contenders_for
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.settings.finetune import FinetuneSettings

    start = time.perf_counter()
    machine.set_up(settings.threads)
    out = settings.out / settings.lang
    if out.exists() and not (out / "demo.txt").exists():
        raise UserError(f"{out} exists and is not an earlier demo. Choose another --out.")
    with explained(f"{out} cannot be written to"):
        if out.exists():
            shutil.rmtree(out)
        make_folder(out)
        atomic_write(out / "demo.txt", "Written by bertkit demo; the next demo replaces this folder.\n")
    train_file, dev_file, test_file = (
        samples.path(settings.lang, f"messages_{role}.csv") for role in ("train", "dev", "test")
    )
    model = settings.lang if settings.lang in embedded() else _pretrained(settings, out)
    tuned = FinetuneSettings(
        task="classify", train=train_file, dev=dev_file, test=test_file, model=model, out=out / "model",
        lang=settings.lang, seed=settings.seed,
        threads=settings.threads, precision=settings.precision, device=settings.device, epochs=8, baseline=False,
    )  # fmt: skip
    finetuning = Finetuning(tuned)
    try:
        reached = finetuning.go()
    except Stopped as stop:
        raise Stopped(stop.signal, "the demo was stopped; run it again to start over.") from None
    train, dev, test = (finetuning.split.examples[role] for role in ("train", "dev", "test"))
    baselines = {}
    for entry in contenders_for("classify", ("majority", "tfidf"), Resources()):
        baseline = entry.make(Resources()).fit(finetuning.task, train, dev, seed=settings.seed, minutes=0.0)
        baselines[baseline.name] = dict(finetuning.task.score(test, baseline.predict(test)))
    predictor = Predictor.load(out / "model", settings.precision, settings.device)
    fresh = samples.path(settings.lang, "fresh.txt").read_text("utf-8").splitlines()
    predictions = [{"text": text, **_short(p)} for text, p in zip(fresh, predictor.predict(fresh))]
    reached = replace(reached, baselines=baselines, predictions=predictions)
    finetuning.write_report(reached)
    note(f"The whole demo took {time.perf_counter() - start:.0f} s.")
    seconds = round(time.perf_counter() - start, 1)
    shutil.copyfile(out / "model" / "report.html", settings.out / "report.html")
    return reached.to_dict() | {"seconds": seconds, "report": str(settings.out / "report.html")}


def _short(prediction: dict[str, Any]) -> dict[str, Any]:
    return {key: prediction[key] for key in ("label", "score")}


def _pretrained(settings: Settings, out: Path) -> str:
    """Pretrain a tiny model for the demo on the sample text, if there is no embedded one."""
    from bertkit import config, samples
    from bertkit.commands import prepare, tokenizer
    from bertkit.notify import note
    from bertkit.runs.pretrain.run import pretrain
    from bertkit.settings.pretrain import PretrainSettings

    note(f"There is no embedded model '{settings.lang}'; pretraining a tiny one on the sample text first.")
    text = samples.path(settings.lang, "passages.txt")
    tokenizer.run(tokenizer.Settings(texts=(text,), out=out / "tokenizer", size=4000))
    prepare.run(prepare.Settings(texts=(text,), tokenizer=str(out / "tokenizer"), out=out / "store"))
    table = config.merged(
        config.preset("modern-tiny"),
        {
            "preset": "modern-tiny", "data": out / "store", "out": out / "pretrained", "steps": 150,
            "batch_tokens": 2048, "lengths": [[1.0, 64]], "threads": settings.threads, "seed": settings.seed,
            "precision": settings.precision, "device": settings.device, "held_out": 0.05, "eval_tokens": 4096,
        },
    )  # fmt: skip
    pretrain(config.build(PretrainSettings, table))
    return str(out / "pretrained")


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `demo`: predictions, then the table against the baselines."""
    head = result["headline"]
    low, high = result["intervals"][head]
    rows = [(name, scores[head]) for name, scores in result["baselines"].items()]
    table = [f"  {name:32} {value:.3f}" for name, value in rows]
    table.append(f"  {'bertkit':32} {result['metrics'][head]:.3f}   (95 % interval {low:.3f} to {high:.3f})")
    predictions = [f"  {p['score']:.2f}  {padded(p['label'], 6)}  {p['text']}" for p in result["predictions"]]
    return [
        "New messages:", *predictions, "", f"{head} on {result['rows']} test messages:", *table, "",
        f"Report: {result['report']}",
    ]  # fmt: skip
