"""What a run leaves behind opens in transformers and says the same there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf

from bertkit.checkpoint.folder import read_folder
from bertkit.data.batch import Batch
from bertkit.objectives.causal import NextToken
from bertkit.objectives.masked import Masked
from bertkit.runs.pretrain.build import build, make_feed
from bertkit.runs.pretrain.run import pretrain
from bertkit.training.distributed import World
from bertkit.training.metrics_log import read_metrics

CLASSES = {
    "bert-tiny": "BertForPreTraining", "roberta-mini": "RobertaForMaskedLM", "albert-mini": "AlbertForPreTraining",
    "modern-tiny": "ModernBertForMaskedLM", "gpt-mini": "GPT2LMHeadModel",
}  # fmt: skip


def padded(batch: Batch, pad: int) -> dict[str, torch.Tensor]:
    """The batch as transformers wants it; labels are -100 where nothing is hidden."""
    labels = torch.full((batch.tokens,), -100).index_put((batch.extra["places"],), batch.extra["targets"])
    starts = batch.starts.tolist()
    wide = max(batch.lengths)

    def rows(values: torch.Tensor, fill: int) -> torch.Tensor:
        parts = [values[a : a + n].tolist() + [fill] * (wide - n) for a, n in zip(starts, batch.lengths)]
        return torch.tensor(parts)

    return {
        "input_ids": rows(batch.ids, pad), "token_type_ids": rows(batch.segments, 0),
        "attention_mask": rows(torch.ones_like(batch.ids), 0), "labels": rows(labels, -100),
    }  # fmt: skip


def a_batch(settings) -> Batch:
    built = build(settings, World())
    (batch,) = make_feed(built, settings.steps, World()).step(1)
    assert len(set(batch.lengths)) > 1
    return batch


@pytest.mark.parametrize("preset", CLASSES)
@torch.no_grad()
def test_transformers_gives_the_same_losses_for_the_same_batch(preset, make, tmp_path):
    settings = make(
        preset, tmp_path / "run", precision="fp32", micro_tokens=10**6, steps=4, short_prob=0.5, loop={"lr": 1e-2}
    )
    with torch.enable_grad():
        pretrain(settings)
    batch = a_batch(settings)
    folder = read_folder(tmp_path / "run")
    objective = (NextToken if preset == "gpt-mini" else Masked)(folder.model).eval()
    counts = objective.counts(batch)
    ours = {name: float(loss) / counts[name] for name, loss in objective(batch).items()}
    theirs = getattr(hf, CLASSES[preset]).from_pretrained(tmp_path / "run", attn_implementation="eager").eval()
    given = padded(batch, folder.tokenizer.pad_id)
    labels = given.pop("labels")
    if preset not in ("bert-tiny", "albert-mini"):
        given.pop("token_type_ids")
    if preset == "gpt-mini":
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        wanted = {"next": float(theirs(**given, labels=labels).loss)}
    elif preset == "bert-tiny":
        out = theirs(**given, labels=labels, next_sentence_label=batch.extra["labels"])
        pair = F.cross_entropy(out.seq_relationship_logits, batch.extra["labels"])
        wanted = {"words": float(out.loss - pair), "next_sentence": float(pair)}
        assert sum(ours.values()) == pytest.approx(float(out.loss), rel=1e-5)
    elif preset == "albert-mini":
        out = theirs(**given, labels=labels, sentence_order_label=batch.extra["labels"])
        pair = F.cross_entropy(out.sop_logits, batch.extra["labels"])
        wanted = {"words": float(out.loss - pair), "order": float(pair)}
    else:
        wanted = {"words": float(theirs(**given, labels=labels).loss)}
    assert ours == pytest.approx(wanted, rel=2e-5)


@torch.no_grad()
def test_an_electra_run_leaves_a_discriminator_and_its_generator(make, tmp_path):
    settings = make("electra-mini", tmp_path / "run", precision="fp32", micro_tokens=10**6, steps=3)
    with torch.enable_grad():
        pretrain(settings)
    batch = a_batch(settings)
    given = padded(batch, read_folder(tmp_path / "run").tokenizer.pad_id)
    labels, mask = given.pop("labels"), given["attention_mask"].bool()
    found = {}
    for name, kind, head in (("", "ElectraForPreTraining", "replaced"), ("generator", "ElectraForMaskedLM", "mlm")):
        theirs = getattr(hf, kind).from_pretrained(tmp_path / "run" / name, attn_implementation="eager").eval()
        ours = read_folder(tmp_path / "run" / name).model.eval()
        answers = ours.ask(head, ours.encoder(batch))[: batch.tokens].squeeze(-1)
        torch.testing.assert_close(answers, theirs(**given).logits[mask], rtol=1e-4, atol=1e-5)
        found[name] = theirs.get_input_embeddings().weight
    assert torch.equal(found[""], found["generator"]), "the word vectors are shared"
    assert (labels >= 0).sum() == len(batch.extra["targets"])


def test_a_run_leaves_everything_a_reader_needs(make, tmp_path):
    out = tmp_path / "run"
    result = pretrain(make("bert-tiny", out, steps=6))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md", "run.toml", "report.html"):
        assert (out / name).stat().st_size > 0, name
    rows = list(read_metrics(out / "metrics.jsonl"))
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 7))
    assert all({"lr", "grad_norm", "tokens", "words_loss", "next_sentence_loss"} <= row.keys() for row in steps)
    assert [row["step"] for row in rows if row.get("eval")] == [3, 6]
    assert result["tokens"] == steps[-1]["tokens"] and result["steps"] == 6
    assert result["mlm_loss"] == [row for row in rows if row.get("eval")][-1]["mlm_loss"]
    assert result["perplexity"] == pytest.approx(np.exp(result["mlm_loss"]))
    assert "<html" in (out / "report.html").read_text("utf-8")
    assert json.loads((out / "bertkit.json").read_text())["preset"] == "bert-tiny"


def test_the_same_settings_give_the_same_run(make, tmp_path):
    for name in ("a", "b"):
        pretrain(make("bert-tiny", tmp_path / name, steps=3))
    pretrain(make("bert-tiny", tmp_path / "c", steps=3, seed=1))
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_the_vocabulary_is_padded_and_transformers_knows_the_padding(make, tmp_path, store: Path):
    pretrain(make("roberta-mini", tmp_path / "run", steps=1))
    rows = json.loads((tmp_path / "run/config.json").read_text())["vocab_size"]
    size = read_folder(tmp_path / "run").tokenizer.size
    assert rows % 64 == 0 and size <= rows < size + 64
