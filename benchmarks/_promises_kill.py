"""Commands in forked children, killed at a random moment; and what must be true of what they leave behind."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _forked import finish

import bertkit.runs.finetune.run
import bertkit.runs.pretrain.run  # noqa: F401  imported once here, so that no child has to
from bertkit import cli
from bertkit.checkpoint.folder import Folder, read_folder
from bertkit.checkpoint.folder import write_folder as write_model
from bertkit.files.atomic import write_folder
from bertkit.training.checkpoints import newest_generation
from tests.support.toy import make_model, messages
from tests.support.toy import write as write_rows

RESULT = "result.json"


def fork(work: Callable[[], object], log: Path) -> int:
    """Start `work` in a child whose output goes to `log`. Returns its process number."""
    child = os.fork()
    if not child:
        finish(work, log)
    return child


def wait(child: int) -> int:
    """The exit code of a child; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(*words: object) -> Callable[[], None]:
    """A command line as a function."""

    def run() -> None:
        sys.argv = ["bertkit", *map(str, words)]
        cli.main()

    return run


def ask(work: Callable[[], object], log: Path) -> object:
    """What `work` returns in a child of its own, or the exit code as a string where it failed."""
    target = log.with_name(RESULT)
    target.unlink(missing_ok=True)
    code = wait(fork(lambda: target.write_text(json.dumps(work())), log))
    return json.loads(target.read_text()) if code == 0 else f"exit code {code}"


def kill_at_random(work: Callable[[], object], log: Path, dice: random.Random, longest: float) -> bool:
    """Start `work` and kill it at a random moment. Returns whether it was still running."""
    child = fork(work, log)
    end = time.monotonic() + dice.uniform(0, longest)
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def digests(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The SHA-256 of these files."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def run_killed_again_and_again(
    work: Path, count: int, dice: random.Random, words: tuple[object, ...], files: tuple[str, ...]
) -> dict[str, object]:
    """Kill a resumable run `count` times; every run that gets through must be byte-equal to one left alone."""
    log = work / "log"
    started = time.monotonic()
    assert wait(fork(command(*words, "--out", work / "alone"), log)) == 0, log.read_text()
    longest = time.monotonic() - started
    expected = digests(work / "alone", files)
    kills = bad = finished = 0
    while kills < count or not finished:
        out = work / f"run{finished}"
        resumed = ["--resume"] if out.exists() else []
        if kills < count and kill_at_random(command(*words, "--out", out, *resumed), log, dice, longest):
            kills += 1
            state = ask(lambda out=out: getattr(newest_generation(out / "checkpoints"), "step", -1), log)
            bad += not isinstance(state, int)  # the newest checkpoint opens, or none was written yet
            continue
        if kills >= count:
            bad += wait(fork(command(*words, "--out", out, *resumed), log)) != 0
        bad += digests(out, files) != expected
        shutil.rmtree(out)
        finished += 1
    return {"tried": kills, "bad": bad, "finished runs": finished}


def corpus(path: Path, documents: int, seed: int = 0) -> Path:
    """Running text: made-up sentences, a blank line between documents."""
    rows = messages(documents * 3, seed)
    lines = [". ".join(row["text"].capitalize() for row in rows[3 * n : 3 * n + 3]) + "." for n in range(documents)]
    path.write_text("\n\n".join(lines) + "\n", "utf-8")
    return path


def tiny(work: Path) -> Path:
    """A tiny model, made in a child so that torch starts no thread here."""
    log = work / "log"
    assert wait(fork(lambda: make_model(work / "tiny"), log)) == 0, log.read_text()
    return work / "tiny"


def tiny_store(work: Path) -> Path:
    """A token store for pretraining."""
    model, log = tiny(work), work / "log"
    text = corpus(work / "corpus.txt", 300)
    made = command("prepare", text, "--tokenizer", model, "--out", work / "store", "--workers", 1)
    assert wait(fork(made, log)) == 0, log.read_text()
    return work / "store"


def pretraining(work: Path, steps: int) -> tuple[object, ...]:
    """The command of a short pretraining run, without its --out."""
    store = tiny_store(work)
    return (
        "pretrain", "--preset", "bert-tiny", "--set", "model.width=32", "--set", "model.inner=64", "--data", store,
        "--steps", steps, "--batch-tokens", 512, "--save-every", 3, "--eval-every", 7, "--eval-tokens", 500,
        "--threads", 1, "--log-every", 1,
    )  # fmt: skip


def finetuning(work: Path, steps: int) -> tuple[object, ...]:
    """The command of a short fine-tuning run that saves after every step, without its --out."""
    train, dev = (write_rows(work / f"{name}.csv", messages(60, seed)) for seed, name in enumerate(("train", "dev")))
    return (
        "finetune", "classify", "--train", train, "--dev", dev, "--model", tiny(work), "--steps", steps, "--batch", 8,
        "--evals", 4, "--save-minutes", 0, "--threads", 1, "--precision", "fp32",
    )  # fmt: skip


def pretrain(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill pretraining."""
    return run_killed_again_and_again(work, count, dice, pretraining(work, 30), ("model.safetensors", "metrics.jsonl"))


def finetune(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill fine-tuning."""
    words = finetuning(work, 30)
    return run_killed_again_and_again(work, count, dice, words, ("model.safetensors", "bertkit.json", "metrics.jsonl"))


def replaced_for_ever(folder: Path, first: Path, second: Path) -> None:
    """Replace a model folder by the first model, the second, the first …, each with labels of its own."""
    contents: list[Folder] = [read_folder(path) for path in (first, second)]
    while True:
        for content in contents:
            write_folder(folder, lambda at, content=content: write_model(at, content))


def two_models(work: Path) -> tuple[Path, Path]:
    """Two fine-tuned models with the same labels and opposite answers."""
    log, model = work / "log", tiny(work)
    rows = messages(80)
    swapped = {"spam": "ham", "ham": "spam"}
    other = [{**row, "label": swapped[row["label"]]} for row in rows]
    for name, own in (("first", rows), ("second", other)):
        train = write_rows(work / f"{name}.csv", own)
        run = command(
            "finetune", "classify", "--train", train, "--model", model, "--steps", 60, "--lr", 3e-3, "--batch", 16,
            "--threads", 1, "--precision", "fp32", "--evals", 1, "--out", work / name,
        )  # fmt: skip
        assert wait(fork(run, log)) == 0, log.read_text()
    return work / "first", work / "second"


def answer(folder: Path) -> list[float]:
    """What a classifier says to a few texts, to the last bit."""
    import bertkit

    rows = bertkit.load(str(folder), precision="fp32").predict([row["text"] for row in messages(8, 5)])
    return [row["scores"]["spam"] for row in rows]


def model(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill the replacement of a model folder by one whose answers are the opposite."""
    first, second = two_models(work)
    log = work / "log"
    known = [ask(lambda path=path: answer(path), log) for path in (first, second)]
    assert all(isinstance(scores, list) for scores in known) and known[0] != known[1], log.read_text()
    target = work / "served"
    shutil.copytree(first, target)
    bad, seen = 0, [0, 0]
    for _ in range(count):
        kill_at_random(lambda: replaced_for_ever(target, first, second), log, dice, 0.6)
        scores = ask(lambda: answer(target), log)
        if scores in known:
            seen[known.index(scores)] += 1
        else:
            bad += 1
    return {"tried": count, "bad": bad, "opened as first and second": f"{seen[0]}/{seen[1]}"}


def found(index: Path) -> list[object]:
    """The best passages of an index for one query."""
    from bertkit.retrieval.index import Index

    return [hit["text"] for hit in Index.open(index).search("anna bread market", 3)]


def index(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill the writing of an index."""
    text, log = corpus(work / "corpus.txt", 200), work / "log"
    words = ("index", text, "--model", tiny(work), "--threads", 1)
    started = time.monotonic()
    assert wait(fork(command(*words, "--out", work / "alone"), log)) == 0, log.read_text()
    longest = time.monotonic() - started
    expected = ask(lambda: found(work / "alone"), log)
    bad = absent = 0
    for number in range(count):
        out = work / f"index{number}"
        kill_at_random(command(*words, "--out", out), log, dice, longest * 1.1)
        if (out / "index.json").exists():
            bad += ask(lambda out=out: found(out), log) != expected
        else:
            absent += 1
            bad += wait(fork(command(*words, "--out", out), log)) != 0  # a second try is not in its own way
            bad += ask(lambda out=out: found(out), log) != expected
        shutil.rmtree(out, ignore_errors=True)
    return {"tried": count, "bad": bad, "absent after the kill": absent}


def store(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill the preparation of a token store."""
    model, log = tiny(work), work / "log"
    text = corpus(work / "corpus.txt", 4000)
    words = ("prepare", text, "--tokenizer", model, "--workers", 1)
    started = time.monotonic()
    assert wait(fork(command(*words, "--out", work / "alone"), log)) == 0, log.read_text()
    longest = time.monotonic() - started
    names = ("store.json", "tokens.bin", "sentences.bin", "documents.bin", "words.bin")
    expected = digests(work / "alone", names)
    bad = kills = 0
    for number in range(count):
        out = work / f"store{number}"
        kills += kill_at_random(command(*words, "--out", out), log, dice, longest)
        if not (out / "store.json").exists():
            bad += wait(fork(command(*words, "--out", out), log)) != 0
        bad += digests(out, names) != expected
        shutil.rmtree(out)
    return {"tried": kills, "bad": bad}


__all__ = ["finetune", "index", "model", "pretrain", "store"]
