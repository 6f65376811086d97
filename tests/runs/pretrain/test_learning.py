"""On a small language with known structure every family learns more than how often each piece occurs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.checkpoint.folder import read_folder
from bertkit.data.store import Store
from bertkit.runs.pretrain.build import build, make_feed
from bertkit.runs.pretrain.run import Evaluation, pretrain
from bertkit.training.distributed import World
from bertkit.training.metrics_log import read_metrics

LOSS = {"gpt-mini": "lm_loss"}
CHANGES = {  # enough for each to see the structure in some seconds
    "batch_tokens": 512, "micro_tokens": 1024, "lengths": [[1.0, 48]], "eval_tokens": 4096, "eval_every": 1000,
    "log_every": 20, "held_out": 0.1, "masking": {"rate": 0.25},
    "loop": {"lr": 3e-3, "warmup": 0.05, "schedule": "linear"},
    "model": {"width": 64, "inner": 128, "embedding_width": 64, "init_std": 0.1, "dropout": 0.0,
              "attention_dropout": 0.0},
}  # fmt: skip
STEPS = {
    "bert-tiny": 350, "roberta-mini": 180, "albert-mini": 400, "electra-mini": 220, "modern-tiny": 140, "gpt-mini": 70,
}  # fmt: skip


def unigram_loss(settings) -> float:
    """Nats a piece when each is guessed by how often it occurs in the training documents, on the held-out ones."""
    built = build(settings, World())
    store: Store = built.store

    def pieces(documents: np.ndarray) -> np.ndarray:
        starts = store.sentence_starts[np.asarray(store.document_starts)]
        return np.concatenate([store.ids[starts[n] : starts[n + 1]] for n in documents])

    counts = np.bincount(pieces(built.train_documents), minlength=store.tokenizer.size) + 0.01
    return float(-np.log(counts / counts.sum())[pieces(built.held_out)].mean())


@pytest.mark.parametrize("preset", STEPS)
def test_every_family_beats_the_unigram_baseline(preset, make, tmp_path):
    settings = make(preset, tmp_path / "run", steps=STEPS[preset], **CHANGES)
    baseline = unigram_loss(settings)
    result = pretrain(settings)
    assert result[LOSS.get(preset, "mlm_loss")] < 0.8 * baseline, f"unigram {baseline:.2f}, reached {result}"
    rows = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in row]
    assert rows[-1]["loss"] < rows[0]["loss"]
    if preset == "electra-mini":  # one in seven is hidden, and the generator guesses some of those right
        assert result["replaced_accuracy"] > 0.85


def test_static_masks_and_a_length_curriculum_learn_too(make, tmp_path):
    masking = {"rate": 0.25, "copies": 4, "unit": "word"}
    changes = CHANGES | {"lengths": [[0.8, 32], [0.2, 48]], "masking": masking, "ramp": 0.2}
    settings = make("roberta-mini", tmp_path / "run", steps=200, **changes)
    assert pretrain(settings)["mlm_loss"] < 0.85 * unigram_loss(settings)


def test_averaged_weights_are_the_ones_written(make, tmp_path):
    from safetensors.numpy import load_file

    from bertkit.training.checkpoints import newest_generation

    settings = make("roberta-mini", tmp_path / "run", steps=8, loop={"ema": 0.9})
    pretrain(settings)
    newest = newest_generation(tmp_path / "run/checkpoints")
    written = load_file(tmp_path / "run/model.safetensors")["roberta.embeddings.word_embeddings.weight"]
    name = "model.encoder.embeddings.tokens.weight"
    assert np.array_equal(written, newest.tensors("average")[name].numpy())
    assert not np.array_equal(written, newest.tensors("weights")[name].numpy())


def test_the_scores_of_a_run_with_averaged_weights_are_those_of_the_model_it_writes(make, tmp_path):
    settings = make("roberta-mini", tmp_path / "run", steps=8, precision="fp32", loop={"ema": 0.5, "lr": 1e-2})
    result = pretrain(settings)
    built = build(settings, World())
    built.model.load_state_dict(read_folder(tmp_path / "run").model.state_dict())
    assert Evaluation(built, World())()["mlm_loss"] == pytest.approx(result["mlm_loss"], rel=1e-6)


def test_an_electra_with_averaged_weights_writes_one_table_of_word_vectors(make, tmp_path):
    pretrain(make("electra-mini", tmp_path / "run", steps=4, loop={"ema": 0.9}))
    models = [read_folder(tmp_path / "run" / name).model for name in ("", "generator")]
    assert torch.equal(*(model.encoder.embeddings.tokens.weight for model in models))


def test_a_gpt_run_sees_its_text_as_it_is(make, tmp_path):
    built = build(make("gpt-mini", tmp_path / "gpt", masking={"rate": 0.15}), World())
    for batch in make_feed(built, 10, World()).step(0):
        assert not len(batch.extra["places"])
        assert not (batch.ids == built.store.tokenizer.mask_id).any()
    judged = Evaluation(built, World())
    rows = [judged.feed.masked(length, number, 0, judged.rate) for length, number in judged.examples]
    assert all((example.ids == ids).all() and not len(hidden) for example, ids, hidden in rows)
