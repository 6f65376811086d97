"""Stops, faults, full disks, signals, readers and ranks: the checks of promises.py that are not random kills."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from _promises_kill import (
    answer,
    ask,
    command,
    digests,
    finetuning,
    fork,
    kill_at_random,
    pretraining,
    replaced_for_ever,
    two_models,
    wait,
)

from bertkit import cli, notify
from bertkit.errors import UserError
from tests.support.save_routines import FAULTS, ROUTINES, fault_at, in_child

FILES = ("model.safetensors", "metrics.jsonl")


def stopped_at(step: int, words: tuple[object, ...]) -> None:
    """The command, which receives SIGTERM while it computes this step."""
    from bertkit.runs.pretrain.run import _Run

    log = _Run._log

    def hear(self: _Run, done: object) -> None:
        log(self, done)
        if done.step + 1 == step:
            self.signals._hear(signal.SIGTERM, None)

    _Run._log = hear
    command(*words)()


def resume(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Stop a run of `count` steps at every step, resume it, and compare all bytes; dropout and masking are on."""
    log, bad, tried = work / "log", 0, 0
    base = pretraining(work, count)
    variants = {
        "plain": (),
        "accumulated": ("--micro-tokens", 200),
        "bf16": ("--precision", "bf16"),
        "two threads": ("--threads", 2),
        "Muon, averaged": ("--set", "loop.optimizer=muon", "--set", "loop.ema=0.9"),
    }
    for name, extra in variants.items():
        words = (*base, *extra)
        assert wait(fork(command(*words, "--out", work / f"{name} alone"), log)) == 0, log.read_text()
        expected = digests(work / f"{name} alone", FILES)
        for step in range(1, count, 1 if name == "plain" else 7):
            out = work / "run"
            stopped = wait(fork(lambda words=words, out=out, step=step: stopped_at(step, (*words, "--out", out)), log))
            done = wait(fork(command(*words, "--out", out, "--resume"), log))
            bad += (stopped, done) != (128 + signal.SIGTERM, 0) or digests(out, FILES) != expected
            tried += 1
            shutil.rmtree(out)
    return {"tried": tried, "bad": bad, "kinds": ", ".join(variants)}


def faults(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Every system call that changes the disk, of a checkpoint, a model folder and a file, meets every fault."""
    notify.listen(cli.Terminal(quiet=True))
    tried = bad = 0
    for start, run, opened, again in ROUTINES.values():
        for path in (work / "start", work / "clean"):
            shutil.rmtree(path, ignore_errors=True)
        start(work / "start")
        shutil.copytree(work / "start", work / "clean")
        with fault_at(0, None) as seen:
            run(work / "clean")
        for name, fault in FAULTS.items():
            for number in range(1, seen.total() + 1):
                folder = work / "folder"
                shutil.copytree(work / "start", folder)
                finished = False
                with fault_at(number, fault):
                    if name in ("crash", "torn write"):
                        in_child(lambda folder=folder, run=run: run(folder))
                    else:
                        try:
                            run(folder)
                            finished = True
                        except UserError:
                            pass
                try:
                    state = opened(folder)
                    again(folder)
                    bad += finished and state != "new"
                except Exception:
                    bad += 1
                tried += 1
                shutil.rmtree(folder)
    return {"tried": tried, "bad": bad, "faults": ", ".join(FAULTS)}


def disk_full(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Train on a disk that fills up (a file-size limit where none can be mounted), free it, and resume."""
    log, bad = work / "log", 0
    words = pretraining(work, 20)
    assert wait(fork(command(*words, "--out", work / "alone"), log)) == 0, log.read_text()
    expected = digests(work / "alone", FILES)
    disk = work / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True).returncode:
        return {"tried": 0, "bad": 0, "skipped": "no small disk can be mounted here"}
    try:
        for _ in range(count):
            free = shutil.disk_usage(disk).free
            (disk / "ballast").write_bytes(b"x" * (free - dice.randrange(200_000, 900_000)))
            log.unlink(missing_ok=True)
            code = wait(fork(command(*words, "--out", disk / "run"), log))
            message = re.search(r"needs [\d,]+ bytes and [\d,]+ are free|No space left", log.read_text())
            (disk / "ballast").unlink()
            resumed = wait(fork(command(*words, "--out", disk / "run", "--resume"), log))
            bad += code != 2 or not message or resumed != 0 or digests(disk / "run", FILES) != expected
            shutil.rmtree(disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    return {"tried": count, "bad": bad}


def signals(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Send each signal at a random moment of training: a checkpoint, the right exit code, and a resumable run."""
    log, bad, slowest = work / "log", 0, 0.0
    words = pretraining(work, 400)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for n in range(count):
        out = work / "run"
        child = fork(command(*words, "--out", out), log)
        while not list(out.glob("checkpoints/step-*")):  # the handlers are set before the first step
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.5))
        sent = time.monotonic()
        os.kill(child, numbers[n % 3])
        code = wait(child)
        slowest = max(slowest, time.monotonic() - sent)
        bad += code != 128 + numbers[n % 3] or not list(out.glob("checkpoints/step-*"))
        shutil.rmtree(out)
    return {"tried": count, "bad": bad, "slowest exit": f"{slowest:.2f} s"}


def readers(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Open a model folder again and again while another process keeps replacing it."""
    first, second = two_models(work)
    log, target = work / "log", work / "served"
    known = [ask(lambda path=path: answer(path), log) for path in (first, second)]
    shutil.copytree(first, target)
    writer = fork(lambda: replaced_for_ever(target, first, second), work / "writer.log")

    def read() -> list[int]:
        seen = [0, 0, 0]
        for _ in range(count):
            scores = answer(target)
            seen[known.index(scores) if scores in known else 2] += 1
        return seen

    seen = ask(read, log)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    if not isinstance(seen, list):
        return {"tried": count, "bad": count, "failed": seen, "log": log.read_text()[-500:]}
    return {"tried": count, "bad": seen[2], "opened as first and second": f"{seen[0]}/{seen[1]}"}


def poisoned_at(step: int, words: tuple[object, ...]) -> None:
    """The command, whose loss is not a number at this step."""
    from bertkit.training.loop import Training

    taken = Training._step

    def poisoned(self: Training, batches: list) -> object:
        if self.done + 1 == step:
            self.objective.register_forward_hook(
                lambda _, __, losses: {name: loss * float("nan") for name, loss in losses.items()}
            )
        return taken(self, batches)

    Training._step = poisoned
    command(*words)()


def not_a_number(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """A loss becomes NaN at a random step: the run stops and names it, and resumes to the bytes of an untouched one."""
    log, bad = work / "log", 0
    words = pretraining(work, 20)
    assert wait(fork(command(*words, "--out", work / "alone"), log)) == 0, log.read_text()
    expected = digests(work / "alone", FILES)
    for _ in range(count):
        out, step = work / "run", dice.randint(1, 20)
        log.unlink(missing_ok=True)
        code = wait(fork(lambda out=out, step=step: poisoned_at(step, (*words, "--out", out)), log))
        named = re.search(rf"Step {step - 1}\b.*nan", log.read_text())
        resumed = wait(fork(command(*words, "--out", out, "--resume"), log))
        bad += code != 2 or not named or resumed != 0 or digests(out, FILES) != expected
        shutil.rmtree(out)
    return {"tried": count, "bad": bad}


def flat_memory(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """`predict` on a hundredth of the rows and on all of them: its peak may grow by 5 %."""
    from predict_memory import memory

    rows = memory(work, (max(100, count // 100), count), 1)
    peaks = {row["contestant"]: f"{row['value']:.0f} MB" for row in rows}
    return {"tried": count, "bad": int(rows[-1]["ratio"] > 1.05), "peaks": peaks}


def second_writer(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Start a second trainer on the folder of a running one."""
    log, bad = work / "log", 0
    words = pretraining(work, 400)
    out = work / "run"
    child = fork(command(*words, "--out", out), log)
    while not list(out.glob("checkpoints/step-*")):
        time.sleep(0.01)
    for _ in range(count):
        bad += wait(fork(command(*words, "--out", out, "--resume"), log)) != 2
    os.kill(child, signal.SIGTERM)
    bad += wait(child) != 128 + signal.SIGTERM
    return {"tried": count, "bad": bad}


def ranks(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """Kill one of two processes under torchrun; it restarts both, and they must end bit-equal."""
    words = [str(word) for word in (*pretraining(work, 60), "--batch-tokens", 2048, "--resume")]

    def torchrun(out: Path, restarts: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                "--max-restarts", str(restarts), "-m", "bertkit", *words, "--out", str(out),
            ],
            stdout=subprocess.DEVNULL, stderr=(work / "torchrun.log").open("ab"), start_new_session=True,
        )  # fmt: skip

    started = time.monotonic()
    assert torchrun(work / "alone", 0).wait() == 0, (work / "torchrun.log").read_text()
    longest = time.monotonic() - started
    expected = digests(work / "alone", FILES)
    kills = failed = different = runs = 0
    while kills < count:
        out = work / f"run{runs}"
        runs += 1
        # After a kill, gloo often needs several tries to connect again, and each costs a restart.
        parent = torchrun(out, 100)
        while parent.poll() is None:
            time.sleep(dice.uniform(0.3, 0.8) * longest)
            workers = subprocess.run(["pgrep", "-P", str(parent.pid)], capture_output=True, text=True).stdout.split()
            if kills < count and workers and parent.poll() is None:
                os.kill(int(dice.choice(workers)), signal.SIGKILL)
                kills += 1
            if kills >= count:
                parent.wait()
        failed += parent.returncode != 0
        different += parent.returncode == 0 and digests(out, FILES) != expected
    return {
        "tried": kills, "bad": failed + different, "runs": runs, "ended with an error": failed,
        "other bytes": different,
    }  # fmt: skip


def trainer(work: Path, count: int, dice: random.Random) -> dict[str, object]:
    """The same kills for transformers' Trainer: how often does `resume_from_checkpoint=True` fail or end otherwise?"""
    log = work / "log"
    words = finetuning(work, 30)
    train, model = Path(str(words[3])), Path(str(words[7]))

    def run(out: Path) -> None:
        import csv

        import torch
        import transformers as hf
        from transformers.trainer_utils import get_last_checkpoint

        torch.set_num_threads(1)
        tokenizer = hf.AutoTokenizer.from_pretrained(model)
        net = hf.AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
        with train.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        encoded = [{**tokenizer(row["text"]), "labels": int(row["label"] == "spam")} for row in rows]
        settings = hf.TrainingArguments(
            str(out), max_steps=30, save_steps=1, save_total_limit=2, per_device_train_batch_size=8, report_to=[],
            use_cpu=True, disable_tqdm=True, seed=0,
        )  # fmt: skip
        collate = hf.DataCollatorWithPadding(tokenizer)
        trained = hf.Trainer(net, settings, data_collator=collate, train_dataset=encoded)
        last = get_last_checkpoint(str(out)) if out.is_dir() else None
        trained.train(resume_from_checkpoint=last)
        trained.save_model(str(out / "final"))

    started = time.monotonic()
    if wait(fork(lambda: run(work / "alone"), log)):
        return {"tried": 0, "bad": 0, "skipped": log.read_text()[-200:].replace("\n", " ")}
    longest = time.monotonic() - started
    expected = digests(work / "alone" / "final", ("model.safetensors",))
    failed = different = kills = 0
    for number in range(count):
        out = work / f"run{number}"
        kills += kill_at_random(lambda out=out: run(out), log, dice, longest)
        if wait(fork(lambda out=out: run(out), log)):
            failed += 1
        else:
            different += digests(out / "final", ("model.safetensors",)) != expected
        shutil.rmtree(out)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return {"tried": kills, "bad": failed + different, "failed": failed, "other weights": different, "peak MB": peak}
