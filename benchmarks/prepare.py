"""`bertkit prepare`: its speed against the bare tokenizers library, and its memory on a small and a large text.

Speed: the library gets the documents ready in memory and only encodes them, in batches and on all cores; `prepare`
also reads the file, splits sentences, looks for duplicates, finds Chinese words and writes the store.
Memory: the peak of all processes of one command together, read from /proc; its ratio is the growth.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import (
    RESULTS,
    Row,
    machine,
    made_up_lines,
    made_up_words,
    only_the_document,
    options,
    publish,
    row,
    skipped,
    take_turns,
    tell,
    with_ratios,
)  # fmt: skip

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared/data"
TEXTS = {"English": ("en_wikipedia", "bert-base-uncased"), "Chinese": ("zh_wikipedia", "bert-base-chinese")}
# Megabytes for speed, turns, and megabytes of the two texts for memory.
SIZES = {"smoke": (1, 1, (1, 2)), "quick": (8, 2, (10, 50)), "full": (25, 3, (50, 500))}


def documents(language: str) -> Iterator[str]:
    """Documents without end, no two the same; made up where there is no corpus."""
    path = DATA / "corpus" / f"{TEXTS[language][0]}.txt.xz"
    words = made_up_words(20_000)
    if language == "Chinese":
        words = [chr(0x4E00 + number % 5000) + chr(0x4E00 + number * 7 % 4001) for number in range(20_000)]
    for turn in count():
        if not path.exists():
            yield "\n".join(made_up_lines(words, 15, seed=turn))
            continue
        with lzma.open(path, "rt", encoding="utf-8") as file:
            texts = file.read().split("\n\n")
        yield from (f"{text}\n{turn} {text[:20]}" if turn else text for text in texts if text.strip())


def write_text(path: Path, language: str, megabytes: int) -> Path:
    size = 0
    with path.open("wb") as file:
        for document in documents(language):
            size += file.write(f"{document}\n\n".encode())
            if size >= megabytes * 1_000_000:
                break
    return path


def tokenizer_for(language: str, folder: Path) -> Tokenizer:
    """The usual vocabulary of the language, or one learnt from the text."""
    from bertkit.text.tokenizer import Tokenizer
    from bertkit.text.vocabulary import VocabularySettings, learn

    usual = DATA / "vocabs" / TEXTS[language][1]
    made = (
        Tokenizer.load(usual)
        if usual.is_dir()
        else learn(islice(documents(language), 3000), VocabularySettings(size=16_000))
    )
    made.save(folder, 512)
    return Tokenizer.load(folder)


def speed(folder: Path, language: str, megabytes: int, rounds: int, threads: int) -> list[Row]:
    from bertkit.data.prepare.run import prepare
    from bertkit.data.readers.documents import read_documents

    source = write_text(folder / "text.txt", language, megabytes)
    tokenizer = tokenizer_for(language, folder / "tokenizer")
    texts = list(read_documents(source))
    mb = sum(len(text.encode()) for text in texts) / 1e6
    case = f"speed, {mb:.0f} MB of {language}"
    rows: list[Row] = []

    def bare(read_ids: bool) -> None:
        for start in range(0, len(texts), 1000):
            results = tokenizer.backend.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)
            if read_ids:
                for encoding in results:
                    encoding.ids  # noqa: B018

    def store(workers: int) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out:
            prepare([source], tokenizer, Path(out) / "store", workers=workers)

    def rate(work: Callable[[Any], None], argument: Any) -> Callable[[], float]:
        def turn() -> float:
            began = time.perf_counter()
            work(argument)
            return mb / (time.perf_counter() - began)

        return turn

    turns = {
        "encode_batch_fast": rate(bare, False),
        "encode_batch_fast, ids read": rate(bare, True),
        "prepare, 1 process": rate(store, 1),
        f"prepare, {max(threads, 2)} workers": rate(store, max(threads, 2)),
    }
    results = take_turns(turns, rounds, lambda name, reason: rows.append(skipped(case, name, str(reason))))
    rows += [row(case, name, values, "MB/s") for name, values in results.items()]
    return with_ratios(rows, "encode_batch_fast")


def family_memory(process: int) -> int:
    """Resident bytes of a process and all below it."""
    total = 0
    with suppress(OSError, ValueError, IndexError):  # it may have just ended
        total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            total += sum(family_memory(int(child)) for child in children.read_text().split())
    return total


def peak_of(source: Path, tokenizer: Path, out: Path) -> int:
    """Peak bytes of one `bertkit prepare` with all its workers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bertkit", "prepare", source, "--tokenizer", tokenizer, "--out", out, "--workers", "2"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    peak = 0
    while process.poll() is None:
        peak = max(peak, family_memory(process.pid))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"bertkit prepare ended with code {process.returncode}.")
    return peak


def memory(folder: Path, sizes: tuple[int, int]) -> list[Row]:
    tokenizer_for("English", folder / "tokenizer")
    rows = []
    for megabytes in sizes:
        source = write_text(folder / "text.txt", "English", megabytes)
        peak = peak_of(source, folder / "tokenizer", folder / f"store{megabytes}")
        rows.append(row("peak memory, English", f"{megabytes} MB of text", [peak / 1e6], "MB"))
    return with_ratios(rows, f"{sizes[0]} MB of text")


def main() -> None:
    chosen = options(__doc__ or "")
    megabytes, rounds, sizes = SIZES[chosen.form]
    with only_the_document() as out, tempfile.TemporaryDirectory() as folder:
        rows = []
        for language in TEXTS:
            tell(f"speed, {language}")
            (Path(folder) / language).mkdir()
            rows += speed(Path(folder) / language, language, megabytes, chosen.rounds or rounds, chosen.threads)
        if Path("/proc/self/statm").exists():
            tell("memory")
            rows += memory(Path(folder), sizes)
        document = {"machine": machine(chosen.threads, ["tokenizers", "rjieba"]), "rows": rows}
        publish("prepare", document, as_json=chosen.json, out=out, results=None if chosen.form == "smoke" else RESULTS)


if __name__ == "__main__":
    main()
