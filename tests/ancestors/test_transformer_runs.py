"""From a file of pairs to a model that writes: reading, learning, stopping and going on, and the command line."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from bertkit import notify
from bertkit.ancestors.transformer.data import PairFeed, encode_pairs, read_pairs, read_sources
from bertkit.ancestors.transformer.model import Seq2Seq
from bertkit.ancestors.transformer.train import train
from bertkit.config import build
from bertkit.data.examples import TextRow
from bertkit.errors import Stopped, UserError
from bertkit.settings.ancestors import Seq2SeqSettings, Seq2SeqShape
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support.command_line import CommandLine

LETTERS = "abcdefgh"
SMALL = Seq2SeqShape(width=16, depth=1, heads=2, inner=32, max_tokens=16)


def reversals(count: int, seed: int, longest: int = 6) -> list[tuple[str, str]]:
    """Letters and the same letters backwards."""
    chance = np.random.default_rng(seed)
    rows = [chance.choice(list(LETTERS), chance.integers(2, longest + 1)).tolist() for _ in range(count)]
    return [(" ".join(row), " ".join(reversed(row))) for row in rows]


def write(path: Path, pairs: list[tuple[str, str]], header: str = "") -> Path:
    path.write_text(header + "".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


def small(folder: Path, out: str = "run", **other) -> Seq2SeqSettings:
    given = {
        "train": folder / "train.tsv", "out": folder / out, "kind": "wordpiece", "size": 40, "steps": 12, "batch": 8,
        "evals": 3, "threads": 1, "precision": "fp32", "model": SMALL,
    }  # fmt: skip
    return Seq2SeqSettings(**given | other)


@pytest.mark.slow
def test_it_learns_to_write_backwards(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", reversals(3000, 0, 5))
    dev = write(tmp_path / "dev.tsv", reversals(200, 1, 5))
    shape = Seq2SeqShape(width=64, depth=1, heads=4, inner=128, max_tokens=16, dropout=0.0)
    result = train(small(tmp_path, dev=dev, steps=260, batch=64, lr=3e-3, model=shape))
    assert result["metrics"]["exact_match"] > 0.95 and result["rows"] == 200
    model = Seq2Seq.load(tmp_path / "run")
    unseen = reversals(60, 2, 5)
    for beam in (1, 4):
        said = model.rewrite([source for source, _ in unseen], beam=beam)
        assert sum(one["text"] == target for one, (_, target) in zip(said, unseen)) > 0.95 * len(unseen)
        assert all(one["finished"] and one["cut"] == 0 for one in said)


class StopAt(list):
    """A listener that asks the run to stop at a step, as a user would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def note(self, message: str) -> None:
        self.append(message)

    def status(self, message: str) -> None:
        if message.startswith(f"step {self.step}/"):
            signal.raise_signal(signal.SIGTERM)

    def track(self, items, label, total):
        yield from items


@pytest.mark.parametrize("stop, precision", [(1, "fp32"), (7, "bf16")])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch, notes, stop, precision) -> None:
    write(tmp_path / "train.tsv", reversals(80, 0))
    numbers = {
        "model": Seq2SeqShape(**vars(SMALL) | {"dropout": 0.2, "attention_dropout": 0.1}),
        "micro_tokens": 40,
        "precision": precision,
    }
    whole = train(small(tmp_path, "whole", **numbers))
    with monkeypatch.context() as patch, pytest.raises(Stopped, match=f"saved at step {stop} of 12"):
        patch.setattr(notify, "_listener", StopAt(stop))
        train(small(tmp_path, "torn", **numbers))
    with pytest.raises(UserError, match="--resume"):
        train(small(tmp_path, "torn", **numbers))
    resumed = train(small(tmp_path, "torn", resume=True, **numbers))
    assert resumed["metrics"] == whole["metrics"]
    for name in ("model.safetensors", "metrics.jsonl", "tokenizer.json"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_does_not_go_on_with_other_pairs(tmp_path: Path, monkeypatch, notes) -> None:
    write(tmp_path / "train.tsv", reversals(80, 0))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(notify, "_listener", StopAt(2))
        train(small(tmp_path))
    write(tmp_path / "train.tsv", reversals(80, 5))
    with pytest.raises(UserError, match="not the same training pairs"):
        train(small(tmp_path, resume=True))


def test_the_run_folder_holds_the_best_model_and_its_story(tmp_path: Path, notes) -> None:
    write(tmp_path / "train.tsv", reversals(80, 0))
    result = train(small(tmp_path))
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "model.safetensors", "bertkit.json", "tokenizer.json", "run.toml", "metrics.jsonl",
    }  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    judged = {row["step"]: row["dev_loss"] for row in rows if row.get("eval")}
    assert list(judged) == [4, 8, 12] and result["best_step"] == min(judged, key=judged.__getitem__)
    assert rows[-1]["final"] and rows[-1]["dev_loss"] == pytest.approx(min(judged.values()), rel=1e-5)
    about = json.loads((tmp_path / "run/bertkit.json").read_text())
    assert about["ancestor"] == "seq2seq" and about["metrics"] == result["metrics"]
    assert any("8 of 80 pairs are held out" in note for note in notes)


def test_a_run_within_minutes_ends_with_a_model(tmp_path: Path, notes) -> None:
    write(tmp_path / "train.tsv", reversals(80, 0))
    result = train(small(tmp_path, steps=0, minutes=0.01))
    assert result["steps"] >= 1 and Seq2Seq.load(tmp_path / "run").rewrite(["a b"])


def test_a_tokenizer_that_is_given_is_used(tmp_path: Path, notes) -> None:
    write(tmp_path / "train.tsv", reversals(40, 0))
    learn(["a b c d e f g h x y z"], VocabularySettings(kind="bpe", size=270, cased=True)).save(tmp_path / "t", 16)
    train(small(tmp_path, tokenizer=str(tmp_path / "t"), steps=2))
    assert Tokenizer.load(tmp_path / "run").fingerprint() == Tokenizer.load(tmp_path / "t").fingerprint()


@pytest.mark.parametrize(
    "name, content",
    [
        ("p.tsv", "a\tb\nc d\te f\n"),
        ("p.tsv", "text\ttext_b\na\tb\nc d\te f\n"),
        ("p.tsv", "source\ttarget\na\tb\nc d\te f\n"),
        ("p.csv", "text_b,text\nb,a\ne f,c d\n"),
        ("p.jsonl", '{"text": "a", "text_b": "b"}\n{"text": "c d", "text_b": "e f"}\n'),
        ("p.jsonl", '{"target": "b", "source": "a"}\n{"source": "c d", "target": "e f"}\n'),
    ],
)
def test_pairs_are_read_from_any_table_with_two_texts(tmp_path: Path, notes, name, content) -> None:
    (tmp_path / name).write_text(content)
    rows = read_pairs(tmp_path / name, "text", "text_b")
    assert [(row.text, row.text_b) for row in rows] == [("a", "b"), ("c d", "e f")]
    assert list(read_sources(tmp_path / name, "text")) == ["a", "c d"]


def test_a_file_of_lines_is_rewritten_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a b\nc\n")
    (tmp_path / "p.tsv").write_text("a b\nc\n")
    assert (
        list(read_sources(tmp_path / "p.txt", "text")) == ["a b", "c"] == list(read_sources(tmp_path / "p.tsv", "text"))
    )


@pytest.mark.parametrize(
    "content, words",
    [
        ("a\tb\nc\t \n", r"line 2: the target is empty\. Write it, or remove"),
        ("a\tb\n\t\tc\n", r"line 2: 3 columns, but the first line has 2"),
        ("a\tb\tc\n", r"3 columns and no header.*--text 1 --text-b 2"),
        ("a b\n", r"1 column and no header.*Separate them by a tab"),
        ("text\tother\na\tb\n", r"no column 'text_b'"),
        ("a\tb\n", r"one pair is not enough"),
    ],
)
def test_a_file_that_holds_no_pairs_is_reported_with_the_fix(tmp_path: Path, notes, content, words) -> None:
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(UserError, match=words) as told:
        train(small(tmp_path))
    assert "train.tsv" in str(told.value)


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return learn([" ".join(LETTERS)] * 3, VocabularySettings(kind="wordpiece", size=40, cased=True))


def test_pairs_that_are_too_long_are_counted_and_reported(letters, notes) -> None:
    rows = [TextRow("a b", "b a", line=1), TextRow("a b c d e", "a", line=2), TextRow("a", "a b c d e f", line=3)]
    kept, facts = encode_pairs(rows, letters, 4, "drop", "p.tsv")
    assert len(kept) == 1 and facts == {"pairs": 1, "long": 2, "tokens_cut": 0}
    assert "2 of 3 pairs have more than 4 tokens" in notes[-1] and "left out" in notes[-1]
    kept, facts = encode_pairs(rows, letters, 4, "truncate", "p.tsv")
    assert facts == {"pairs": 3, "long": 2, "tokens_cut": 2 + 3} and "truncated, by 5 tokens" in notes[-1]
    end = letters.sep_id
    assert [len(pair.source) for pair in kept] == [3, 4, 2] and all(pair.source[-1] == end for pair in kept)
    assert kept[0].wanted[-1] == end and kept[2].wanted == letters.pieces_batch(["a b c d"])[0]
    assert all(pair.given[1:] == pair.wanted[:-1] for pair in kept)
    with pytest.raises(UserError, match=r"p\.tsv, line 2: 6 and 2 tokens; the model reads at most 4 per side"):
        encode_pairs(rows, letters, 4, "error", "p.tsv")
    with pytest.raises(UserError, match="no pair is short enough"):
        encode_pairs(rows[1:], letters, 4, "drop", "p.tsv")


def test_a_pass_visits_every_pair_once_and_ranks_share_a_step(letters) -> None:
    rows = [TextRow(source, target) for source, target in reversals(40, 3)]
    pairs, _ = encode_pairs(rows, letters, 16, "drop", "p.tsv")
    feed = PairFeed(pairs, batch=8, seed=1, micro_tokens=30)
    seen = np.concatenate([feed.numbers(step) for step in range(feed.steps_per_pass)])
    assert sorted(seen.tolist()) == list(range(40))
    assert feed.numbers(7).tolist() != feed.numbers(2).tolist()
    shares = [PairFeed(pairs, batch=8, seed=1, micro_tokens=30, rank=rank, ranks=2).step(3) for rank in (0, 1)]
    assert sum(batch.texts for share in shares for batch in share) == 8 == sum(batch.texts for batch in feed.step(3))


@pytest.mark.parametrize(
    "wrong, words", [({"smoothing": 1.0}, "smoothing is 1.0"), ({"batch": 0}, "batch is 0"), ({"beam": 0}, "beam is 0")]
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, wrong, words) -> None:
    with pytest.raises(UserError, match=words):
        build(Seq2SeqSettings, {"train": tmp_path / "none.tsv"} | wrong)


def test_the_command_line_trains_and_rewrites(tmp_path: Path, monkeypatch, capsys) -> None:
    run = CommandLine(monkeypatch, capsys)
    write(tmp_path / "pairs.tsv", reversals(60, 0), "text\ttext_b\n")
    numbers = [f"--set=model.{name}={getattr(SMALL, name)}" for name in ("width", "depth", "heads", "inner")]
    trained = run(
        "seq2seq", "--train", tmp_path / "pairs.tsv", "--out", tmp_path / "run", "--steps", 5, "--size", 300, *numbers
    )
    assert trained.code == 0, trained.err
    assert "exact_match" in trained.out and "Transformer of" in trained.err
    said = run("rewrite", tmp_path / "run", tmp_path / "pairs.tsv", "--beam", 2)
    assert said.code == 0, said.err
    answers = [json.loads(line) for line in said.out.splitlines()]
    assert len(answers) == 60 and answers[0].keys() == {"text", "score", "tokens", "cut", "finished"}
    assert run("rewrite", tmp_path / "run", tmp_path / "pairs.tsv", "--beam", 2, "--json").json == answers
    written = run("rewrite", tmp_path / "run", tmp_path / "pairs.tsv", "--beam", 2, "--out", tmp_path / "said.jsonl")
    assert written.code == 0 and "60 texts" in written.out
    assert [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()] == answers
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b c\nh g\n"))
    piped = run("rewrite", tmp_path / "run", "-")
    assert len(piped.out.splitlines()) == 2
    again = run("seq2seq", "--train", tmp_path / "none.tsv", "--out", tmp_path / "other")
    assert again.code == 2 and "none.tsv does not exist" in again.mistake
    other = run("rewrite", tmp_path, tmp_path / "pairs.tsv")
    assert other.code == 2 and "bertkit.json" in other.mistake
