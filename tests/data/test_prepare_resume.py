"""Preparing text that is interrupted, killed, or short of disk or memory: nothing is lost, and memory is bounded."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit import notify
from bertkit.data.prepare import run
from bertkit.data.prepare.run import prepare
from bertkit.data.prepare.write_store import StoreWriter
from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer
from tests.support.prepared_texts import (
    CHINESE,
    ENGLISH,
    contents,
    made_up,
    plainly,
    read_back,
    small_tokenizers,
    written,
)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return small_tokenizers()


class StopsAfter:
    """A listener that ends the work after some steps, as Ctrl-C would."""

    def __init__(self, steps: int) -> None:
        self.steps, self.notes = steps, []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def track(self, items, label, total):
        for count, item in enumerate(items):
            if count == self.steps:
                raise KeyboardInterrupt
            yield item


def test_work_interrupted_at_any_step_ends_in_the_same_bytes(
    tmp_path: Path, tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHUNK", 5_000)
    texts = list(made_up(0.08))
    paths = [written(tmp_path, texts[:30], "a.txt"), written(tmp_path, texts[30:] + texts[:5], "b.txt")]
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress("\n\n".join(made_up(0.01, 5)).encode()))
    paths.append(tmp_path / "c.txt.gz")
    prepare(paths, tokenizers["cased"], tmp_path / "whole", workers=1)
    for step in range(0, 70, 10):
        out = tmp_path / f"stopped{step}"
        for steps in (step, 3):
            monkeypatch.setattr(notify, "_listener", StopsAfter(steps))
            with pytest.raises(KeyboardInterrupt):
                prepare(paths, tokenizers["cased"], out, workers=1)
            assert not out.exists()
        heard = StopsAfter(10**9)
        monkeypatch.setattr(notify, "_listener", heard)
        prepare(paths, tokenizers["cased"], out, workers=1)
        assert any("continuing after" in message for message in heard.notes)
        assert contents(out) == contents(tmp_path / "whole")
        assert not (tmp_path / f"stopped{step}.partial").exists()


CHILD = """
import sys
from pathlib import Path
from bertkit.data.prepare import run as preparing
from bertkit.text.tokenizer import Tokenizer
source, tokenizer, out, chunk, limit = sys.argv[1:]
preparing.CHUNK = int(chunk)
if int(limit):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
from bertkit.errors import UserError
try:
    preparing.prepare([source], Tokenizer.load(tokenizer), out, workers=1, journal_every=0)
except UserError as mistake:
    sys.exit(str(mistake))
# Not getrusage: its peak counts what the parent held when it started this process.
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def child(source: Path, tokenizer: Path, out: Path, chunk: int = run.CHUNK, limit: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(source), str(tokenizer), str(out), str(chunk), str(limit)]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)


def test_an_interrupt_right_after_a_chunk_was_written_counts_the_chunk_once(
    tmp_path: Path, tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHUNK", 5_000)
    path = written(tmp_path, list(made_up(0.03)))
    prepare([path], tokenizers["cased"], tmp_path / "whole", workers=1)
    append, calls = StoreWriter._append, []

    def interrupted(self, parts):
        sizes = append(self, parts)
        calls.append(sizes)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return sizes

    monkeypatch.setattr(StoreWriter, "_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare([path], tokenizers["cased"], tmp_path / "stopped", workers=1)
    _, report = prepare([path], tokenizers["cased"], tmp_path / "stopped", workers=1)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole") and report["duplicates"] == 0


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path, tokenizers: dict[str, Tokenizer], notes: list) -> None:
    path = written(tmp_path, list(made_up(2)) + CHINESE)
    tokenizers["cased"].save(tmp_path / "tokenizer", 512)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    prepare([path], tokenizer, tmp_path / "whole")
    for documents_done in (1, 300):
        process = child(path, tmp_path / "tokenizer", tmp_path / "killed", chunk=3000)
        journal = tmp_path / "killed.partial" / "journal.json"
        while process.poll() is None:
            if journal.exists() and json.loads(journal.read_text())["progress"]["read"]["documents"] >= documents_done:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.002)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    # A torn write after the last journal does not count.
    with (tmp_path / "killed.partial" / "tokens.bin").open("ab") as file:
        file.write(b"torn")
    prepare([path], tokenizer, tmp_path / "killed")
    assert any("continuing after" in message for message in notes)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_disk_that_takes_no_more_is_reported_in_bytes_and_loses_nothing(
    tmp_path: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    path = written(tmp_path, list(made_up(1)))
    tokenizers["cased"].save(tmp_path / "tokenizer", 512)
    # A limit on the size of files is what a test can set; a full disk fails at the same call.
    process = child(path, tmp_path / "tokenizer", tmp_path / "out", chunk=20_000, limit=300_000)
    told = process.communicate()[1]
    assert process.returncode == 1 and "Traceback" not in told
    assert "more bytes" in told and "bytes are free" in told and "same command again" in told
    assert not (tmp_path / "out").exists()
    done = json.loads((tmp_path / "out.partial" / "journal.json").read_text())["progress"]["read"]["documents"]
    assert done > 50
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    prepare([path], tokenizer, tmp_path / "out")
    prepare([path], tokenizer, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_disk_too_full_for_the_tokenizer_is_reported(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    path = written(tmp_path, list(made_up(1)))
    tokenizers["cased"].save(tmp_path / "tokenizer", 512)
    process = child(path, tmp_path / "tokenizer", tmp_path / "out", limit=100)
    told = process.communicate()[1]
    assert process.returncode == 1 and "Traceback" not in told
    assert "could not store the tokenizer" in told and "bytes are free" in told
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")] == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizers["cased"].save(tmp_path / "tokenizer", 512)
    peaks = []
    for megabytes in (2, 14):
        path = written(tmp_path, list(made_up(megabytes)), f"{megabytes}.txt")
        process = child(path, tmp_path / "tokenizer", tmp_path / f"store{megabytes}")
        peaks.append(int(process.communicate()[0]))
        assert process.returncode == 0
    assert peaks[1] < 1.10 * peaks[0]


def test_changed_input_begins_anew(tmp_path: Path, tokenizers: dict[str, Tokenizer], monkeypatch) -> None:
    monkeypatch.setattr(run, "CHUNK", 3_000)
    path = written(tmp_path, list(made_up(0.03)))
    monkeypatch.setattr(notify, "_listener", StopsAfter(0))
    with pytest.raises(KeyboardInterrupt):
        (tmp_path / "c.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
        prepare([tmp_path / "c.txt.gz"], tokenizers["cased"], tmp_path / "out", workers=1)
    heard = StopsAfter(10**9)
    monkeypatch.setattr(notify, "_listener", heard)
    store, _ = prepare([path], tokenizers["cased"], tmp_path / "out")
    assert any("starting over" in message for message in heard.notes)
    assert read_back(store) == plainly(list(made_up(0.03)), tokenizers["cased"])


def test_a_second_writer_and_a_name_in_use_are_refused(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    path = written(tmp_path, ENGLISH)
    with StoreWriter(tmp_path / "out", "job"), pytest.raises(UserError, match="in use"):
        prepare([path], tokenizers["cased"], tmp_path / "out")
    prepare([path], tokenizers["cased"], tmp_path / "out")
    with pytest.raises(UserError, match="exists already"):
        prepare([path], tokenizers["cased"], tmp_path / "out")


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    (tmp_path / "a.txt").write_bytes("中文。".encode("gb18030") * 20)
    with pytest.raises(UserError, match="gb18030"):
        prepare([tmp_path / "a.txt"], tokenizers["cased"], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
