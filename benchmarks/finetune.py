"""One epoch of fine-tuning: bertkit and transformers' Trainer on the same random weights and texts, examples a second.

    python benchmarks/finetune.py [--quick|--smoke] [--json] [--threads 2] [--rounds N] [--only NAME,NAME]

BERT-base's and BERT-mini's shape, texts of two length mixes, two labels, batches of 32. Texts are encoded beforehand
for everyone; a turn is one pass over them with AdamW, without evaluation or saving. Each contestant has a process of
its own and makes one step before it is measured; then they take turns. Trainer pads each batch to its longest text,
which is what it does by itself; `trainer-max-length` pads all texts to the longest of the mix, as many scripts do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _workers as workers
from _harness import (
    MIXES,
    PAUSE,
    Row,
    machine,
    row,
    skipped,
    take_turns,
    tell,
    texts_of,
    timed,
    with_ratios,
)
from _models import SHAPES, learn_vocabulary, make

from bertkit.text.tokenizer import Tokenizer

BATCH = 32
BASELINE = "trainer-default"
MINI = (4, 256, 4, 1024)
Epoch = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A model's shape, a length mix, how many texts (a multiple of the batch), and how many turns."""

    model: str
    mix: str
    texts: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.mix}, {self.texts} examples"


FORMS = {
    "smoke": [Case("tiny", "short", 64, 1)],
    "quick": [Case("mini", "short", 512, 3), Case("base", "short", 64, 1), Case("mini", "long", 64, 1)],
    "full": [
        Case("mini", "short", 2048, 5), Case("mini", "long", 256, 3), Case("base", "short", 256, 3),
        Case("base", "long", 64, 3),
    ],
}  # fmt: skip
ENOUGH = {"smoke": float("inf"), "quick": 130.0, "full": float("inf")}  # seconds after which no turn is started


def bertkit(folder: Path, texts: Sequence[str], mix: str, threads: int, precision: str = "auto") -> dict[str, Epoch]:
    """The loop of `bertkit finetune`, with its own packing and precision."""
    from bertkit.objectives.supervised import Supervised
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.runs.finetune.split import Split
    from bertkit.settings.finetune import FinetuneSettings
    from bertkit.settings.training import LoopSettings
    from bertkit.tasks import make as make_task
    from bertkit.tasks.batches import SupervisedFeed
    from bertkit.training.loop import Training

    rows = make_task("classify").from_inputs([{"text": t, "label": "ab"[n % 2]} for n, t in enumerate(texts)])
    settings = FinetuneSettings(
        task="classify", train=Path(), model=str(folder), batch=BATCH, threads=threads, precision=precision
    )
    run = Finetuning(settings, Split({"train": rows}))

    def epoch(steps: int = 0) -> None:
        feed = SupervisedFeed(run.items["train"], run.task, batch=BATCH, seed=0, micro_tokens=settings.micro_tokens)
        objective = Supervised(run.model, run.task)
        for _ in Training(objective, feed, steps or feed.steps_per_pass, LoopSettings(lr=2e-5), 0, run.world):
            pass

    return {"epoch": epoch, "step": partial(epoch, 1)}


def bertkit_fp32(folder: Path, texts: Sequence[str], mix: str, threads: int) -> dict[str, Epoch]:
    return bertkit(folder, texts, mix, threads, "fp32")


def trainer(
    folder: Path, texts: Sequence[str], mix: str, threads: int, padding: str | bool = False, **more: Any
) -> dict[str, Epoch]:
    """transformers' Trainer with the settings it has by itself, but for saving, logging and progress."""
    import warnings

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    encoded = tokenizer(list(texts), truncation=True, padding=padding, max_length=MIXES[mix][1])
    rows = [{"label": n % 2} | {key: values[n] for key, values in encoded.items()} for n in range(len(texts))]

    settings = TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=2e-5,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, **more,
    )  # fmt: skip
    made = Trainer(model, settings, train_dataset=rows, processing_class=tokenizer)

    def epoch(steps: int = -1) -> None:
        made.args.max_steps = steps
        made.train()

    return {"epoch": epoch, "step": partial(epoch, 1)}


def trainer_max_length(folder: Path, texts: Sequence[str], mix: str, threads: int) -> dict[str, Epoch]:
    return trainer(folder, texts, mix, threads, "max_length")


def trainer_bf16(folder: Path, texts: Sequence[str], mix: str, threads: int) -> dict[str, Epoch]:
    return trainer(folder, texts, mix, threads, bf16=True)


CONTESTANTS = {
    "bertkit": bertkit,
    BASELINE: trainer,
    "trainer-bf16-dynamic": trainer_bf16,
    "bertkit-fp32": bertkit_fp32,
    "trainer-max-length": trainer_max_length,
}


def warm_up(held: dict[str, Epoch]) -> None:
    held["step"]()


def turn(held: dict[str, Epoch]) -> tuple[float, float]:
    return timed(held["epoch"])


def make_shape(folder: Path, shape: str) -> None:
    """Random weights beside the vocabulary in `folder`."""
    SHAPES.setdefault("mini", MINI)
    make(folder, shape)


def measure(
    case: Case, folder: Path, texts: list[str], names: Sequence[str], threads: int, rounds: int, until: float
) -> list[Row]:
    """Rows of a case, the absent among them."""
    there: dict[str, workers.Worker] = {}
    absent: dict[str, str] = {}

    def drop(name: str, reason: Exception) -> None:
        absent[name] = workers.told(reason)
        tell(f"  {name} is out: {absent[name]}")
        if name in there:
            there.pop(name).close()

    def play(name: str) -> tuple[float, float] | None:
        return None if time.perf_counter() > until else there[name].ask(turn)

    for name in names:
        try:
            if time.perf_counter() > until:
                raise workers.Failed("no time was left in this form of the benchmark")
            there[name] = workers.Worker(CONTESTANTS[name], folder, texts, case.mix, threads)
            there[name].ask(warm_up)
        except Exception as reason:
            drop(name, reason)
    results = take_turns({name: partial(play, name) for name in there}, rounds, drop, PAUSE)
    rows = []
    for name, times in results.items():
        if not times:
            drop(name, workers.Failed("no time was left in this form of the benchmark"))
            continue
        more = {"turns": len(times), "per_cpu_second": round(len(texts) / min(cpu for _, cpu in times), 2)}
        rows.append(row(case.name, name, [len(texts) / clock for clock, _ in times], "examples/s", **more))
    for worker in there.values():
        worker.close()
    return rows + [skipped(case.name, name, reason) for name, reason in absent.items()]


def run(form: str, names: Sequence[str], threads: int, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    libraries = ("transformers", "accelerate")
    document: dict[str, Any] = {"machine": workers.apart(machine, threads, libraries), "form": form, "cases": {}}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in FORMS[form]:
            folder = Path(temporary) / case.name.replace(" ", "-")
            folder.mkdir()
            words = workers.apart(learn_vocabulary, folder, *((1000, 600) if form == "smoke" else ()))
            workers.apart(make_shape, folder, case.model)
            tokenizer = Tokenizer.load(folder)
            texts = texts_of(case.mix, case.texts, tokenizer, words)
            counts = [len(ids) for ids in tokenizer.ids_batch(texts)]
            document["cases"][case.name] = {"texts": len(texts), "tokens": sum(counts), "longest": max(counts)}
            rows += measure(case, folder, texts, names, threads, rounds or case.rounds, began + ENOUGH[form])
            tell(f"{time.perf_counter() - began:4.0f} s  {case.name}: done")
    return document | {"rows": with_ratios(rows, BASELINE), "seconds": round(time.perf_counter() - began)}


def main() -> None:
    workers.compete("finetune", __doc__ or "", list(CONTESTANTS), BASELINE, run)


if __name__ == "__main__":
    main()
