"""GPT fine-tuned: a causal model reads start, text, delimiter, text, extract; its last piece answers."""

from __future__ import annotations

import pytest
import torch

from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.objectives.supervised import Supervised
from bertkit.runs.finetune.run import Finetuning
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer
from tests.support.toy import SMALL, make_model, messages, numbers, pairs, write


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    place = tmp_path_factory.mktemp("gpt")
    tokenizer = read_folder(make_model(place / "bert")).tokenizer
    torch.manual_seed(0)
    shape = Config(
        vocabulary=tokenizer.size, width=32, depth=2, heads=2, inner=64, init_std=0.1, causal=True, summary="last",
        segments=0, norm="pre", embedding_norm=False, word_head="plain", activation="gelu_tanh",
        summary_activation="none",
    )  # fmt: skip
    write_folder(place / "gpt", Folder(Model(shape, {"mlm": 0}, pooler=False), tokenizer, "gpt2"))
    return place / "gpt"


@pytest.mark.parametrize(("task", "rows"), [("classify", messages), ("pair", pairs)])
def test_a_causal_model_learns_texts_and_pairs(task, rows, gpt, tmp_path):
    train, dev = write(tmp_path / "train.csv", rows(200)), write(tmp_path / "dev.csv", rows(60, seed=1))
    settings = FinetuneSettings(
        task=task, train=train, dev=dev, model=str(gpt), out=tmp_path / "out", language=0.5,
        **SMALL | {"steps": 150 if task == "classify" else 20},
    )  # fmt: skip
    run = Finetuning(settings)
    result = run.go()
    if task == "classify":
        assert result.metrics["accuracy"] > 0.85
    example = run.items["train"][0].rows[0]
    names = [run.folder.tokenizer.id_to_token(i) for i in example.ids]
    assert (names[0], names[-1], names.count("[SEP]")) == ("[CLS]", "[SEP]", 2 if task == "pair" else 1)
    assert len(Predictor.load(tmp_path / "out").predict([run.items["dev"][0].example])) == 1


def test_a_causal_model_learns_numbers_and_adds_their_mean_itself(gpt, tmp_path, notes):
    train, dev = write(tmp_path / "train.csv", numbers(200)), write(tmp_path / "dev.csv", numbers(40, seed=1))
    settings = FinetuneSettings(
        task="regress", train=train, dev=dev, model=str(gpt), out=tmp_path / "out", **SMALL | {"steps": 120}
    )
    result = Finetuning(settings).go()
    assert result.metrics["pearson"] > 0.9 and result.metrics["mae"] < 20  # they are 10 and 100
    model = Predictor.load(tmp_path / "out", "fp32")
    low, high = (one["value"] for one in model.predict(["the prize of the house", "the meeting of the house"]))
    assert low < 40 < 70 < high
    assert model.task.options["mean"] == pytest.approx(55) and sum("adds the mean 55" in line for line in notes) == 1


def test_the_language_loss_is_added_with_its_weight(gpt, tmp_path):
    train = write(tmp_path / "train.csv", messages(40))
    settings = FinetuneSettings(
        task="classify", train=train, model=str(gpt), out=tmp_path / "out", language=0.5, **SMALL
    )  # fmt: skip
    run = Finetuning(settings)
    batch = run.task.collate(run.items["train"][:4], training=True)
    both, alone = Supervised(run.model, run.task, 0.5), Supervised(run.model, run.task)
    run.model.eval()
    losses, plain = both(batch), alone(batch)
    assert set(losses) == {"loss", "next"} and set(plain) == {"loss"}
    assert torch.equal(losses["loss"], plain["loss"]) and both.weights["next"] == 0.5
    assert both.counts(batch)["next"] == sum(len(row.ids) - 1 for item in run.items["train"][:4] for row in item.rows)


def test_a_model_that_looks_both_ways_has_no_next_piece(tmp_path):
    train = write(tmp_path / "train.csv", messages(40))
    with pytest.raises(UserError, match="GPT"):
        Finetuning(
            FinetuneSettings(
                task="classify", train=train, model=str(make_model(tmp_path / "bert")), out=tmp_path / "o", language=0.5
            )
        )


def test_a_pair_without_an_order_is_answered_alike_both_ways(gpt, tmp_path):
    train = write(tmp_path / "train.csv", pairs(60))
    settings = {"task": "pair", "train": train, "model": str(gpt), **SMALL | {"steps": 5}}
    Finetuning(FinetuneSettings(out=tmp_path / "one", **settings)).go()
    Finetuning(FinetuneSettings(out=tmp_path / "both", symmetric=True, **settings)).go()
    two = ("the prize of the house", "the meeting")
    scores = {}
    for name in ("one", "both"):
        model = Predictor.load(tmp_path / name, "fp32")
        scores[name] = [list(answer["scores"].values()) for answer in model.predict([two, two[::-1]])]
    assert scores["both"][0] == pytest.approx(scores["both"][1], abs=1e-6)
    assert scores["one"][0] != pytest.approx(scores["one"][1], abs=1e-4)
    # Without another pass over the texts, its logits are the mean of those of both orders.
    model = Predictor.load(tmp_path / "both", "fp32")
    both = model.task.encode(model.task.from_inputs([two]), model.tokenizer, model.windows("window"))[0].rows
    assert [row.ids for row in both] == [model.tokenizer.encode(*order).ids for order in (two, two[::-1])]


def test_numbers_of_single_texts_cannot_be_symmetric(gpt, tmp_path):
    train = write(tmp_path / "train.csv", numbers(40))
    settings = FinetuneSettings(task="regress", train=train, model=str(gpt), out=tmp_path / "out", symmetric=True)
    with pytest.raises(UserError, match="--symmetric is for pairs"):
        Finetuning(settings)


def test_a_tokenizer_of_gpt_2_gets_a_delimiter_and_keeps_its_offsets(tmp_path):
    import tokenizers

    backend = tokenizers.ByteLevelBPETokenizer()
    backend.train_from_iterator(["the cat sat on the mat"] * 9, vocab_size=300, special_tokens=["<|endoftext|>"])
    backend._tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    plain = Tokenizer(backend._tokenizer)
    assert not any(plain.encode("the cat", "a mat").special)
    bordered = plain.with_borders()
    bordered.save(tmp_path, 64)
    end = backend.token_to_id("<|endoftext|>")
    for tokenizer in (bordered, Tokenizer.load(tmp_path)):
        pair = tokenizer.encode("the cat", "a mat")
        assert (pair.ids[0], pair.ids[-1], pair.ids.count(end)) == (end, end, 3)
        assert [pair.offsets[n] for n in range(len(pair)) if not pair.special[n]] == plain.encode(
            "the cat", "a mat"
        ).offsets
    assert bordered.with_borders() is bordered
