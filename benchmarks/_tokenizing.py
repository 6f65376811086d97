"""Characters to ids in megabytes of text a second: bertkit, the bare `tokenizers` library, and transformers.

    python benchmarks/tokenize.py [--quick|--smoke] [--json] [--threads 2] [--rounds N] [--only NAME,NAME]

One vocabulary learnt from made-up text, saved to a folder that all contestants open; each in a process of its own, in
turns. `ids` are ids alone; `offsets` are ids that remember their characters. All must give the same ids.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _workers as workers
from _harness import (
    PAUSE,
    Row,
    machine,
    made_up_lines,
    neat,
    only_the_document,
    options,
    publish,
    row,
    skipped,
    take_turns,
    timed,
    wanted,
    with_ratios,
)
from _models import learn_vocabulary

Encode = Callable[[list[str]], Sequence[Sequence[int]]]
# thousands of lines of 20 words, and rounds
FORMS = {"smoke": (0.2, 1), "quick": (20, 5), "full": (100, 9)}
LIBRARIES = ("tokenizers", "transformers")


def bertkit_ids(folder: Path) -> Encode:
    from bertkit.text.tokenizer import Tokenizer

    return Tokenizer.load(folder).ids_batch


def bertkit_offsets(folder: Path) -> Encode:
    from bertkit.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def bare_ids(folder: Path) -> Encode:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda texts: [encoding.ids for encoding in backend.encode_batch_fast(texts)]


def bare_offsets(folder: Path) -> Encode:
    """Ids and offsets taken out, as any use of offsets must."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda texts: [pair[0] for pair in [(each.ids, each.offsets) for each in backend.encode_batch(texts)]]


def transformers_ids(folder: Path) -> Encode:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda texts: tokenizer(texts)["input_ids"]


def transformers_offsets(folder: Path) -> Encode:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda texts: tokenizer(texts, return_offsets_mapping=True)["input_ids"]


@dataclass(frozen=True)
class Contestant:
    """What it gives (the case it belongs to), how to open it, and the library it needs."""

    case: str
    open: Callable[[Path], Encode]
    needs: str


CONTESTANTS = {
    "bertkit ids_batch": Contestant("ids", bertkit_ids, "bertkit"),
    "tokenizers encode_batch_fast": Contestant("ids", bare_ids, "tokenizers"),
    "transformers": Contestant("ids", transformers_ids, "transformers"),
    "bertkit encode_batch": Contestant("offsets", bertkit_offsets, "bertkit"),
    "tokenizers encode_batch": Contestant("offsets", bare_offsets, "tokenizers"),
    "transformers with offsets": Contestant("offsets", transformers_offsets, "transformers"),
}
BASELINES = {"ids": "tokenizers encode_batch_fast", "offsets": "tokenizers encode_batch"}


class Held:
    """An open contestant and the texts it will be asked for again and again."""

    def __init__(self, open_: Callable[[Path], Encode], folder: Path, texts: list[str]) -> None:
        self.encode, self.texts = open_(folder), texts


def checksum(held: Held) -> int:
    """A number of all ids, the same when they are the same; also the warm-up."""
    return zlib.crc32(repr([list(ids) for ids in held.encode(held.texts)]).encode())


def turn(held: Held) -> tuple[float, float]:
    return timed(held.encode, held.texts)


def measure(case: str, names: Sequence[str], folder: Path, texts: list[str], rounds: int, pause: float) -> list[Row]:
    """Rows of a case, the absent among them."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    title = f"{case}, {megabytes:.1f} MB" if megabytes >= 0.1 else case
    there: dict[str, workers.Worker] = {}
    absent: dict[str, str] = {}

    def drop(name: str, reason: Exception) -> None:
        absent[name] = workers.told(reason)

    for name in names:
        contestant = CONTESTANTS[name]
        try:
            if find_spec(contestant.needs) is None:
                raise workers.Failed(f"{contestant.needs} not installed (pip install 'bertkit[dev]')")
            there[name] = workers.Worker(Held, contestant.open, folder, texts)
        except Exception as reason:
            drop(name, reason)
    sums = take_turns({name: partial(there[name].ask, checksum) for name in there}, 1, drop, 0)
    results = take_turns({name: partial(there[name].ask, turn) for name in sums}, rounds, drop, pause)
    for worker in there.values():
        worker.close()
    truth: Any = sums.get(BASELINES[case])
    rows = []
    for name, times in results.items():
        more = {"per_cpu_second": neat(megabytes / min(cpu for _, cpu in times)), "same_ids": sums[name] == truth}
        rows.append(row(title, name, [megabytes / clock for clock, _ in times], "MB/s", **more))
    return with_ratios(rows, BASELINES[case]) + [skipped(title, name, reason) for name, reason in absent.items()]


def run(form: str, only: str, threads: int, rounds: int) -> dict[str, Any]:
    thousands, usual = FORMS[form]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = workers.apart(learn_vocabulary, folder, *((1000, 600) if form == "smoke" else ()))
        texts = made_up_lines(words, int(1000 * thousands), seed=1)
        for case, baseline in BASELINES.items():
            names = [name for name in wanted(list(CONTESTANTS), only, baseline) if CONTESTANTS[name].case == case]
            rows += measure(case, names, folder, texts, rounds or usual, 0 if form == "smoke" else PAUSE)
    return {"machine": workers.apart(machine, threads, LIBRARIES), "form": form, "rows": rows}


def main() -> None:
    asked = options(__doc__ or "")
    with only_the_document() as out:
        workers.use("transformers.models.auto.tokenization_auto", "tokenizers")
        document = run(asked.form, asked.only, asked.threads, asked.rounds)
        recorded = {} if asked.form != "smoke" else {"results": None}
        publish("tokenize", document, as_json=asked.json, out=out, **recorded)
