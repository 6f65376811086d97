"""What every benchmark shares: options, texts of known lengths, turns, and the document that comes out.

Speed on a shared machine swings from minute to minute, so contestants take turns in one run, medians are reported, and
only ratios count. `ratio` is above 1 when a contestant is faster than the baseline of its case, whatever the unit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

RESULTS = Path(__file__).resolve().parent / "results"
MIXES = {"short": (28, 128), "long": (180, 512)}  # mean and longest, in tokens with the special ones
SPREAD = 0.4  # of the logarithm: naive batches of 32 then carry 2.2 times the tokens they need
SMALLER_IS_FASTER = {"ms", "s"}
PAUSE = 0.3  # seconds between turns: idle OpenMP threads spin for up to 0.2 s, which would slow the next contestant
Row = dict[str, Any]


def options(description: str, forms: Sequence[str] = ("full", "quick", "smoke")) -> argparse.Namespace:
    """The options of every benchmark; `.form` is one of `forms`. Sets the threads of this and child processes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(form="full")
    if "quick" in forms:
        parser.add_argument("--quick", dest="form", action="store_const", const="quick", help="within three minutes")
    if "smoke" in forms:
        parser.add_argument("--smoke", dest="form", action="store_const", const="smoke", help="does it run at all")
    if "table" in forms:
        parser.add_argument("--table", dest="form", action="store_const", const="table", help="for the docs' tables")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of a table")
    parser.add_argument("--threads", type=int, default=2, help="for every contestant (default 2)")
    parser.add_argument("--rounds", type=int, default=0, help="turns of each contestant (default: by case)")
    parser.add_argument("--case", default="", help="only cases whose name begins with this (pretrain, embed)")
    parser.add_argument("--only", default="", help="contestants, separated by commas; the baseline always runs")
    chosen = parser.parse_args()
    # Before any library is imported: OpenMP and rayon read these once.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return chosen


def wanted(names: Sequence[str], only: str, baseline: str) -> list[str]:
    """The contestants asked for, the baseline among them; an unknown name ends the run with a message."""
    asked = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := set(asked) - set(names):
        raise SystemExit(f"No contestant {', '.join(sorted(unknown))}. There are: {', '.join(names)}.")
    return [name for name in names if not asked or name in asked or name == baseline]


@contextmanager
def only_the_document() -> Iterator[TextIO]:
    """Gives the real stdout; whatever libraries print meanwhile goes to stderr."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(real, "w", encoding="utf-8", closefd=True) as out:
        try:
            yield out
        finally:
            out.flush()
            sys.stdout.flush()
            os.dup2(real, 1)


def machine(threads: int, libraries: Sequence[str] = ()) -> dict[str, Any]:
    """The machine and its measured matrix speed, how busy it is, and the versions of the contestants' libraries."""
    import torch

    from bertkit.machine import describe

    torch.set_num_threads(threads)
    busy = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    facts = describe(threads) | {"load_before": busy}
    for name in libraries:
        try:
            facts["versions"][name] = version(name)
        except PackageNotFoundError:
            facts["versions"][name] = "not installed"
    return facts


def take_turns(
    turns: Mapping[str, Callable[[], Any]],
    rounds: int,
    failed: Callable[[str, Exception], None],
    pause: float = PAUSE,
) -> dict[str, list[Any]]:
    """What each contestant's turns gave, every other round in reverse order. None is no turn; one that fails is out."""
    results: dict[str, list[Any]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(results)[:: -1 if number % 2 else 1]:
            time.sleep(pause)
            try:
                gave = turns[name]()
                results[name] += [] if gave is None else [gave]
            except Exception as reason:  # a contestant's fault, of whatever kind, is never the run's
                del results[name]
                failed(name, reason)
    return results


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """Seconds by the clock and seconds of all cores that `work` took."""
    cpu, clock = time.process_time(), time.perf_counter()
    work(*arguments)
    return time.perf_counter() - clock, time.process_time() - cpu


def row(case: str, contestant: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    """One result: the median of the turns, with their range."""
    spread = [neat(min(values)), neat(max(values))]
    value = neat(statistics.median(values))
    return {"case": case, "contestant": contestant, "value": value, "unit": unit, "range": spread, **more}


def skipped(case: str, contestant: str, reason: str) -> Row:
    """A contestant that could not take part, and why."""
    return {"case": case, "contestant": contestant, "skipped": reason}


def with_ratios(rows: Sequence[Row], baseline: str) -> list[Row]:
    """Rows with `ratio`: how many times as fast as the baseline of the same case; None where that is missing."""
    base = {each["case"]: each["value"] for each in rows if each["contestant"] == baseline and "value" in each}
    done = []
    for each in rows:
        if "value" in each:
            against = base.get(each["case"])
            quotient = against and each["value"] / against
            if quotient and each["unit"] in SMALLER_IS_FASTER:
                quotient = 1 / quotient
            each = each | {"ratio": quotient and neat(quotient), "baseline": baseline}
        done.append(each)
    return done


def neat(value: float) -> float:
    """Four significant digits: more would pretend."""
    return float(f"{value:.4g}")


def publish(name: str, document: dict[str, Any], *, as_json: bool, out: TextIO, results: Path | None = RESULTS) -> None:
    """Append the document with its date to results/NAME.jsonl, and show it: JSON or a table."""
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        dated = {"date": datetime.now(UTC).isoformat(timespec="seconds")} | document
        with (results / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dated, ensure_ascii=False) + "\n")
    printed = json.dumps(document, ensure_ascii=False) if as_json else "\n".join(table(document["rows"]))
    out.write(printed + "\n")


def table(rows: Sequence[Row]) -> list[str]:
    """Rows for a person: a block a case, by tiers of exactness, the fastest first and the absent last."""
    lines = []
    for case in dict.fromkeys(each["case"] for each in rows):
        block = sorted(
            (each for each in rows if each["case"] == case),
            key=lambda each: (-each.get("tier", 1.0 if "value" in each else -1.0), -(each.get("ratio") or 0)),
        )
        lines += ["", case]
        for each in block:
            if "skipped" in each:
                lines.append(f"  {each['contestant']:26} skipped: {each['skipped']}")
                continue
            low, high = each["range"]
            times = f"× {each['ratio']:.2f}" if each["ratio"] else ""
            cosine = (
                f"cosine {each['cosine']['mean']:.4f} (least {each['cosine']['min']:.4f})" if "cosine" in each else ""
            )
            line = f"  {each['contestant']:26} {each['value']:9.4g} {each['unit']:8} {times:8} {low:g}-{high:g}"
            tier = f", tier {each['tier']:g}" if cosine and each.get("tier") else ", below every tier" if cosine else ""
            lines.append(f"{line:72}{cosine}{tier if 'tier' in each else ''}".rstrip())
    return lines


def tell(message: str) -> None:
    """Progress, on stderr."""
    print(message, file=sys.stderr, flush=True)


def made_up_words(number: int, seed: int = 0) -> list[str]:
    """So many different words of syllables, the short ones first: those are to be the frequent ones."""
    rng = random.Random(seed)
    syllables = [a + b + c for a in ("", *"bcdfgklmnprstv") for b in "aeiou" for c in ("", "", "n", "r", "s", "l")]
    words: dict[str, None] = {}
    while len(words) < number:
        words["".join(rng.choices(syllables, k=rng.choices((1, 2, 3, 4), (2, 5, 4, 1))[0]))] = None
    return sorted(words, key=lambda word: len(word) + rng.random() * 4)


def made_up_lines(words: Sequence[str], lines: int, seed: int = 0, length: int = 20) -> list[str]:
    """Sentences of words drawn by Zipf's law."""
    rng = random.Random(seed)
    total, weights = 0.0, []
    for place in range(len(words)):
        total += 1 / (place + 3)
        weights.append(total)
    return [" ".join(rng.choices(words, cum_weights=weights, k=length)) + "." for _ in range(lines)]


def lengths_of(mix: str, number: int, seed: int = 0) -> list[int]:
    """Token counts of a length mix: log-normal, cut off at the longest."""
    mean, longest = MIXES[mix]
    rng = random.Random(f"{mix} {seed}")
    middle = math.log(mean) - SPREAD**2 / 2
    return [min(longest, max(3, round(rng.lognormvariate(middle, SPREAD)))) for _ in range(number)]


def texts_of(mix: str, number: int, tokenizer: Any, words: Sequence[str], seed: int = 0) -> list[str]:
    """Texts of made-up words that have exactly the token counts of a mix under a bertkit Tokenizer."""
    pieces = [len(ids) for ids in tokenizer.pieces_batch(words)]
    special = len(tokenizer.ids_batch([""])[0])
    single = [word for word, count in zip(words, pieces) if count == 1]
    if not single:
        raise ValueError("No word is one piece: texts of exact length cannot be made.")
    rng = random.Random(seed)
    texts = []
    for length in lengths_of(mix, number, seed):
        chosen: list[str] = []
        room = length - special
        while room > 0:
            place = int(len(words) ** rng.random()) - 1  # frequent words first, as in real text
            fits = pieces[place] <= room
            chosen.append(words[place] if fits else rng.choice(single))
            room -= pieces[place] if fits else 1
        texts.append(" ".join(chosen))
    return texts


def peak_of(command: list[str]) -> int:
    """The most bytes a command held; a wait of ours may miss what it took in its last twentieth of a second."""
    if not Path("/proc/self/status").exists():
        raise SystemExit("The peak of another process is read from /proc, which this system does not have.")
    peak = 0
    with tempfile.TemporaryFile() as notes:
        process = subprocess.Popen(command, cwd=RESULTS.parents[1], stdout=subprocess.DEVNULL, stderr=notes)
        while process.poll() is None:
            # Not getrusage: what it tells of a child begins with what its parent held.
            with suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
                peak = max(peak, int(found[1]) * 1024) if found else peak
            time.sleep(0.05)
        if process.returncode:
            notes.seek(0)
            message = notes.read().decode("utf-8", "replace")[-500:]
            raise SystemExit(f"{command[:4]} ended with code {process.returncode}: {message}")
    return peak
