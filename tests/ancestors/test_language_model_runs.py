"""Runs of left-to-right models: what they learn, what they leave behind, and how they go on after a stop."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit.ancestors.language_model import train
from bertkit.ancestors.language_model.model import LanguageModel
from bertkit.ancestors.language_model.train import NOTHING_HIDDEN, held_out_batches, learn, split, training_feed
from bertkit.ancestors.ngram.pieces import PieceNgram
from bertkit.data.feed import PretrainingFeed, phases
from bertkit.data.store import Store
from bertkit.errors import Stopped, UserError
from bertkit.inference.scoring import score_minimal_pairs
from bertkit.settings.ancestors import LearnSettings
from bertkit.settings.training import LoopSettings
from bertkit.training.checkpoints import newest_generation
from bertkit.training.distributed import World
from bertkit.training.metrics_log import read_metrics
from tests.support import synthetic

KINDS = ("nnlm", "rnn", "lstm", "gru")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return synthetic.make_store(tmp_path_factory.mktemp("store"))


def small(store: Store, out: Path, **changes: Any) -> LearnSettings:
    numbers: dict[str, Any] = {
        "data": store.folder, "out": out, "width": 32, "layers": 1, "steps": 6, "batch_tokens": 256, "length": 48,
        "threads": 1, "micro_tokens": 128, "eval_tokens": 1024, "log_every": 1, "eval_every": 3, "held_out": 0.1,
        "loop": LoopSettings(lr=1e-2, warmup=0.05),
    }  # fmt: skip
    return LearnSettings(**(numbers | changes))


def fingerprint(out: Path) -> dict[str, str]:
    """Hashes of everything a resumed run must reproduce."""
    newest = newest_generation(out / "checkpoints")
    files = {path.name: path for path in newest.path.glob("*.safetensors")}
    files |= {"metrics": out / "metrics.jsonl", "model": out / "model.safetensors"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def unigram_entropy(store: Store, texts: list[str]) -> float:
    """Nats a piece under the frequencies of the texts themselves: no model without context can do better."""
    pieces = np.concatenate([np.array(ids[1:]) for ids in store.tokenizer.ids_batch(texts)])
    shares = np.bincount(pieces) / len(pieces)
    return -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_what_no_single_frequencies_tell(kind: str, store: Store, tmp_path: Path) -> None:
    learn(small(store, tmp_path / "run", kind=kind, steps=80, micro_tokens=8192, eval_every=80, log_every=50))
    texts = synthetic.text(30, seed=99)
    found = LanguageModel.load(tmp_path / "run").perplexity(texts)
    assert np.log(found["perplexity"]) < 0.75 * unigram_entropy(store, texts)


@pytest.mark.parametrize("kind", ["nnlm", "lstm"])
def test_a_run_stopped_at_any_step_and_resumed_is_bit_equal(
    kind: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(small(store, tmp_path / "whole", kind=kind, dropout=0.2))
    whole = fingerprint(tmp_path / "whole")
    log = train._Learning._log
    for stop in (1, 5):
        out = tmp_path / f"stopped-{stop}"

        def hear(self: Any, step: Any, stop: int = stop) -> None:
            log(self, step)
            if step.step + 1 == stop:
                self.signals._hear(signal.SIGTERM, None)

        with monkeypatch.context() as patch:
            patch.setattr(train._Learning, "_log", hear)
            with pytest.raises(Stopped, match="--resume"):
                learn(small(store, out, kind=kind, dropout=0.2))
        assert LanguageModel.load(out).score(["today the cat sees a fish."])[0] < 0
        learn(small(store, out, kind=kind, dropout=0.2, resume=True))
        assert fingerprint(out) == whole, f"stopped after step {stop}"


def test_a_run_leaves_the_model_its_numbers_and_its_history(store: Store, tmp_path: Path) -> None:
    result = learn(small(store, tmp_path / "run", kind="gru", tokens=256 * 4, steps=0))
    assert result["steps"] == 4 and result["tokens"] > 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    assert {"lm_loss", "lm_accuracy", "perplexity"} <= set(next(row for row in rows if row.get("eval")))
    about = json.loads((tmp_path / "run" / "bertkit.json").read_text())
    assert about["ancestor"] == "rnnlm" and about["kind"] == "gru" and about["result"]["steps"] == 4
    assert (tmp_path / "run" / "run.toml").is_file() and (tmp_path / "run" / "tokenizer.json").is_file()


def test_averaged_weights_are_what_the_folder_holds(store: Store, tmp_path: Path) -> None:
    learn(small(store, tmp_path / "run", loop=LoopSettings(lr=1e-2, ema=0.9)))
    newest = newest_generation(tmp_path / "run" / "checkpoints")
    average = newest.tensors("average")["network.words.weight"]
    held = LanguageModel.load(tmp_path / "run").network.words.weight
    assert (average == held).all() and not (newest.tensors("weights")["network.words.weight"] == held).all()


def test_a_time_budget_ends_the_schedule(store: Store, tmp_path: Path) -> None:
    result = learn(small(store, tmp_path / "run", steps=0, minutes=0.02, log_every=1, eval_every=1000))
    last = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "lr" in row][-1]
    assert last["step"] == result["steps"] > 3
    assert last["lr"] < 0.5 * 1e-2


def test_a_run_without_an_end_or_in_a_used_folder_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No training budget"):
        learn(small(store, tmp_path / "endless", steps=0))
    learn(small(store, tmp_path / "run", steps=1))
    with pytest.raises(UserError, match="--resume"):
        learn(small(store, tmp_path / "run", steps=1))
    with pytest.raises(UserError, match="not the same model"):
        learn(small(store, tmp_path / "run", steps=2, resume=True, width=16))


def test_examples_come_in_the_order_of_a_gpt_run_with_nothing_hidden(store: Store, tmp_path: Path) -> None:
    settings = small(store, tmp_path / "run")
    documents, held_out = split(store, 0.1, 0)
    ours = training_feed(store, documents, 10, settings, World())
    theirs = PretrainingFeed(
        store, documents, packing="full-sentences", masking=NOTHING_HIDDEN, seed=0,
        plan=phases(10, ((1.0, 48),), 256),
    )  # fmt: skip
    assert ours.numbers(7) == theirs.numbers(7)
    mask = store.tokenizer.mask_id
    assert not any((batch.ids == mask).any() for batch in ours.step(7))
    batches = held_out_batches(store, held_out, settings)
    seen = {int(piece) for batch in batches for piece in batch.ids}
    assert batches and mask not in seen
    assert held_out_batches(store, held_out[:0], settings) == []


def test_settings_of_a_run_are_read_without_torch() -> None:
    import subprocess
    import sys

    script = "import sys, bertkit.settings.ancestors; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- counting pieces


@pytest.fixture(scope="module")
def counted(store: Store) -> PieceNgram:
    return PieceNgram.learn(store, 4, held_out=0.1)


def test_counted_pieces_sum_to_one_after_any_text(counted: PieceNgram) -> None:
    for text in ("", "Today", "Yesterday the old", "moon moon moon"):
        assert counted.probability(text).sum() == pytest.approx(1.0, abs=1e-5)


def test_counted_pieces_score_a_text_as_its_steps(counted: PieceNgram) -> None:
    words = ["today", "the", "cat", "sees", "a", "fish"]
    ids = counted.tokenizer.encode(" ".join(words)).ids
    total = sum(np.log(counted.probability(" ".join(words[:n]))[piece]) for n, piece in enumerate(ids[1:]))
    assert counted.score([" ".join(words)]) == [pytest.approx(total, rel=1e-4)]


def test_counted_pieces_know_the_tense_and_are_far_below_single_frequencies(counted: PieceNgram, store: Store) -> None:
    texts = synthetic.text(30, seed=99)
    found = counted.perplexity(texts)
    assert np.log(found["perplexity"]) < 0.5 * unigram_entropy(store, texts)
    assert {one["token"] for one in counted.suggest("Yesterday the cat", 4)} == set(synthetic.COMMANDS.values())


def test_counting_in_little_memory_gives_the_same_model(counted: PieceNgram, store: Store) -> None:
    small = PieceNgram.learn(store, 4, held_out=0.1, memory_mb=0.05)
    texts = synthetic.text(5, seed=4)
    assert small.score(texts) == pytest.approx(counted.score(texts), rel=1e-6)


def test_a_saved_count_comes_back_the_same(counted: PieceNgram, tmp_path: Path) -> None:
    counted.save(tmp_path / "counts")
    again = PieceNgram.load(tmp_path / "counts")
    texts = synthetic.text(5, seed=4)
    assert again.score(texts) == counted.score(texts) and again.parameters == counted.parameters
    assert again.suggest("Today", 3) == counted.suggest("Today", 3)
    with pytest.raises(UserError, match="no left-to-right model"):
        LanguageModel.load(tmp_path / "counts")


def test_minimal_pairs_are_judged_by_any_of_them(counted: PieceNgram, tmp_path: Path) -> None:
    rows = [
        {"sentence_good": f"Yesterday the cat {past} a fish.", "sentence_bad": f"Yesterday the cat {present} a fish."}
        for present, past in synthetic.COMMANDS.items()
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert score_minimal_pairs(counted, path)["metrics"]["accuracy"] == 1.0
