"""What can go wrong with a run is reported with what to do, and nothing that was saved is lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertkit import config
from bertkit.commands import prepare
from bertkit.commands.pretrain import resolve
from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic
from bertkit.runs.pretrain.run import pretrain
from bertkit.settings.pretrain import PretrainSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training.checkpoints import newest_generation
from bertkit.training.loop import NotFinite
from tests.support import synthetic


def prepared(folder: Path, text: str, tokenizer: Path) -> Path:
    (folder / "text.txt").write_text(text, "utf-8")
    prepare.run(
        prepare.Settings(texts=(folder / "text.txt",), tokenizer=str(tokenizer), out=folder / "made", workers=1)
    )
    return folder / "made"


def test_a_full_disk_is_reported_and_the_run_goes_on_when_there_is_room(make, tmp_path, monkeypatch):
    whole = pretrain(make("roberta-mini", tmp_path / "whole", steps=6, save_every=2))
    free = atomic.calls.free_bytes
    asked = []

    def shrinking(folder: Path) -> int:
        asked.append(folder)
        return free(folder) if len(asked) < 3 else 1000

    with monkeypatch.context() as patch:
        patch.setattr(atomic.calls, "free_bytes", shrinking)
        with pytest.raises(UserError, match=r"1,000 are free.*Free some space"):
            pretrain(make("roberta-mini", tmp_path / "run", steps=6, save_every=2))
    assert newest_generation(tmp_path / "run/checkpoints").step in (2, 4)
    resumed = pretrain(make("roberta-mini", tmp_path / "run", steps=6, save_every=2, resume=True))
    assert resumed["mlm_loss"] == whole["mlm_loss"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "run")]
    assert metrics[0] == metrics[1]


def test_a_loss_that_is_no_number_is_never_saved(make, tmp_path):
    out = tmp_path / "run"
    settings = make("roberta-mini", out, steps=6, save_every=1, loop={"clip": 0.0, "warmup": 0.0})
    wild = replace(settings, loop=replace(settings.loop, lr=1e30))  # `make` itself would refuse it
    with pytest.raises(NotFinite, match=r"Step \d+: .*learning rate.*pieces \[.*--resume"):
        pretrain(wild)
    assert not (out / "model.safetensors").exists()
    weights = newest_generation(out / "checkpoints").tensors("weights")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


@pytest.mark.parametrize("damage", ["tokens.bin", "store.json", "tokenizer/tokenizer.json"])
def test_a_damaged_store_is_refused_before_anything_is_made(damage, make, store, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    content = (copy / damage).read_bytes()
    (copy / damage).write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedFile, match=rf"{Path(damage).name}.*Make it again"):
        pretrain(make("bert-tiny", tmp_path / "run", data=copy))
    assert not (tmp_path / "run").exists()


def test_a_missing_store_is_reported_with_the_command_that_makes_one(make, tmp_path):
    with pytest.raises(UserError, match=r"does not exist.*bertkit prepare"):
        pretrain(make("bert-tiny", tmp_path / "run", data=tmp_path / "nowhere"))


def test_a_store_of_another_tokenizer_does_not_go_with_the_model(make, tmp_path):
    pretrain(make("bert-tiny", tmp_path / "model", steps=1))
    other = tmp_path / "other"
    learn(synthetic.text(30), VocabularySettings(size=150)).save(other, 64)
    data = prepared(tmp_path, "\n\n".join(synthetic.text(20)), other)
    table = {"init": str(tmp_path / "model"), "data": data, "out": tmp_path / "run", "steps": 1, "lengths": [[1.0, 32]]}
    with pytest.raises(UserError, match=r"different tokenizer.*prepare the text again"):
        pretrain(config.build(PretrainSettings, resolve(table)))


@pytest.mark.parametrize("text, told", [
    ("Only one sentence here.", r"1 sentence .*at least 2 are needed"), ("", "empty"), ("\n\n \n", "contains no text"),
])  # fmt: skip
def test_a_text_too_small_to_learn_from_is_refused_when_it_is_prepared(text, told, store, tmp_path):
    with pytest.raises(UserError, match=told):
        prepared(tmp_path, text, store / "tokenizer")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("text, told", [
    ("One text. It has two sentences.", "at least two documents"),
    ("One text.\n\nAnother text.\n\nA third.\n\nA fourth.\n\nA fifth.", "two sentences.*roberta"),
])  # fmt: skip
def test_a_text_without_sentence_pairs_is_reported_with_presets_that_need_none(text, told, make, store, tmp_path):
    data = prepared(tmp_path, text, store / "tokenizer")
    with pytest.raises(UserError, match=told):
        pretrain(make("bert-tiny", tmp_path / "run", data=data))
    result = pretrain(make("roberta-mini", tmp_path / "roberta", data=data, steps=1))
    assert result["steps"] == 1


def test_held_out_documents_without_pairs_cost_the_evaluation_not_the_run(make, store, tmp_path, notes):
    short = [f"Short {word}." for word in ("cat", "dog", "bird", "king", "moon", "fish", "stone", "house")]
    data = prepared(tmp_path, "\n\n".join([*synthetic.text(3), *short]), store / "tokenizer")
    for seed in range(20):  # until the split leaves the long documents to training
        notes.clear()
        out = tmp_path / f"run-{seed}"
        result = pretrain(make("bert-tiny", out, data=data, steps=1, held_out=0.15, seed=seed))
        if any("Evaluation is off" in note for note in notes):
            assert "mlm_loss" not in result and (out / "model.safetensors").exists()
            return
    pytest.fail("no split left the long documents to training")


def test_a_run_without_a_budget_asks_how_long(make, tmp_path):
    with pytest.raises(UserError, match=r"--minutes, --steps or --tokens"):
        pretrain(make("bert-tiny", tmp_path / "run", steps=0))


def test_of_two_budgets_the_one_that_counts_is_reported(make, tmp_path, notes):
    result = pretrain(make("bert-tiny", tmp_path / "run", steps=2, minutes=30.0))
    assert result["steps"] == 2
    told = "--steps 2 takes precedence; --minutes 30.0 is ignored. Pass --steps 0 to use --minutes."
    assert [note for note in notes if "takes precedence" in note] == [told]
    pretrain(make("bert-tiny", tmp_path / "one", steps=2))
    assert len([note for note in notes if "takes precedence" in note]) == 1


def test_lengths_beyond_the_model_are_refused_with_both_numbers(make, tmp_path):
    with pytest.raises(UserError, match=r"lengths has 100 tokens, but the model's limit is 64"):
        pretrain(make("bert-tiny", tmp_path / "run", lengths=[[1.0, 100]]))


@pytest.mark.parametrize("lengths", [[], [[1.0]], [[1.0, 32, 3]], [[1.0, -32]], [[0.0, 32]]])
def test_lengths_that_are_no_pairs_are_refused(make, tmp_path, lengths):
    with pytest.raises(UserError, match=r"lengths is .*pairs of a fraction"):
        pretrain(make("bert-tiny", tmp_path / "run", lengths=lengths))


def test_a_budget_in_tokens_is_kept_to_the_step(make, tmp_path):
    result = pretrain(make("roberta-mini", tmp_path / "run", steps=0, tokens=1024))
    assert result["steps"] == 4 and result["tokens"] <= 1024


def test_mistyped_settings_are_reported_with_what_was_meant(tmp_path):
    for table, told in (
        ({"preset": "bert-tinny"}, "Did you mean 'bert-tiny'"),
        ({"modell": {}}, "Did you mean 'model'"),
        ({"masking": {"rates": 0.1}}, "Did you mean 'rate'"),
        ({"masking": {"unit": "words"}}, "Did you mean 'word'"),
        ({"masking": {"most_span": 0}}, "masking: most_span is 0; it must be at least 1"),
        ({"loop": {"beta2": 1.0}}, "loop: beta2 is 1.0"),
    ):
        with pytest.raises(UserError, match=told):
            config.build(PretrainSettings, resolve({"data": tmp_path, **table}))


def test_electra_cannot_go_on_without_its_generator(make, store, tmp_path):
    pretrain(make("electra-mini", tmp_path / "electra", steps=1))
    assert Tokenizer.load(tmp_path / "electra/generator").size
    table = {"init": str(tmp_path / "electra"), "data": store, "out": tmp_path / "run", "steps": 1}
    with pytest.raises(UserError, match="generator is not in the folder"):
        pretrain(config.build(PretrainSettings, resolve(table)))


@pytest.mark.parametrize("preset, changes, told", [
    ("modern-tiny", {"objective": "next-token", "model": {"causal": True}}, r"modernbert cannot express causal = True"),
    ("bert-tiny", {"model": {"norm": "pre"}}, r"bert cannot express norm = 'pre' \(it has 'post'\)"),
    ("bert-tiny", {"model": {"rotary_base": 1e4}}, r"bert cannot express rotary_base"),
    ("electra-mini", {"model": {"gated": True}}, r"electra cannot express gated"),
    ("modern-tiny", {"packing": "next-sentence"}, r"no modernbert class with the heads mlm, next_sentence"),
    ("modern-tiny", {"objective": "replaced"}, r"no modernbert class with the heads replaced.*another family"),
])  # fmt: skip
def test_a_model_that_no_folder_of_its_family_can_hold_is_refused_before_it_is_trained(
    preset, changes, told, make, tmp_path
):
    with pytest.raises(UserError, match=told):
        pretrain(make(preset, tmp_path / "run", **changes))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_minimal_pairs_of_sharded_weights_are_refused_not_left_out(make, tmp_path):
    with pytest.raises(UserError, match=r"--minimal-pairs needs whole weights.*--shard"):
        pretrain(make("bert-tiny", tmp_path, shard=True, minimal_pairs="pairs.jsonl"))


def test_a_share_read_from_left_to_right_is_for_masked_words(make, tmp_path):
    with pytest.raises(UserError, match="causal is for masked-word pretraining"):
        pretrain(make("gpt-mini", tmp_path, causal=0.5))
