"""ULMFiT and semi-supervised sequence learning: what thaws, what is pooled, where the weights come from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertkit.ancestors.language_model.model import LanguageModel, network_of
from bertkit.ancestors.language_model.networks import LanguageModelObjective, LanguageModelShape
from bertkit.ancestors.lstm import transfer
from bertkit.ancestors.lstm.classifiers import STARTS, Autoencode, DaiLe, DaiLeSettings, Ulmfit, UlmfitSettings, doubled
from bertkit.ancestors.lstm.transfer import (
    POOLINGS,
    SLANTED,
    ClassifyObjective,
    Reader,
    RecurrentClassifier,
    Stage,
    StageSettings,
    TextFeed,
    cut_rows,
    loop_of,
    pooled,
)
from bertkit.data.batch import pack
from bertkit.errors import DamagedFile, UserError
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training import loop as training_loop
from bertkit.training.loop import Training
from bertkit.training.optimizer import rate
from bertkit.training.run_folder import MemoryFolder
from tests.support import synthetic

QUICK_ULMFIT = UlmfitSettings(lm_epochs=1, epochs=3, batch=8, dropout=0.1)
QUICK_SEQUENCE = DaiLeSettings(epochs=3, lr=1e-2, batch=16, dropout=0.0, reading_epochs=1, reading_length=16)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A language model that has learnt the made-up language a little."""
    tokenizer = learn(synthetic.text(60), VocabularySettings(kind="wordpiece", size=400))
    torch.manual_seed(0)
    network = network_of(LanguageModelShape("lstm", 128, width=32, layers=2, dropout=0.0))
    rows = cut_rows(tokenizer.ids_batch(synthetic.text(60)), 48)
    for _ in Training(LanguageModelObjective(network), TextFeed(rows, batch=16, seed=0), 100, loop_of(1e-2)):
        pass
    return LanguageModel(network, tokenizer)


def labelled(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Sentences in two tenses: the label is whether it was yesterday."""
    sentences = [s.strip() for text in synthetic.text(count, seed) for s in text.split(".") if s.strip()]
    return sentences[:count], [int(s.startswith("Yesterday")) for s in sentences[:count]]


def reader_of(model: LanguageModel, pooling: str = "concat", inner: int = 10) -> Reader:
    torch.manual_seed(1)
    return Reader(network_of(model.network.shape), pooling, 2, inner, 0.0).eval()  # type: ignore[arg-type]


# ---- reading


def test_pooling_sees_the_text_and_nothing_beside_it(model: LanguageModel) -> None:
    network = model.network
    ids = torch.randint(0, 100, (3, 20), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([20, 7, 1])
    with torch.no_grad():
        found = pooled(network, ids, lengths, POOLINGS["concat"])  # type: ignore[arg-type]
        for row, length in enumerate(lengths.tolist()):
            vectors = network.vectors(ids[row : row + 1, :length])[0][0]
            wanted = torch.cat([vectors[-1], vectors.amax(0), vectors.mean(0)])
            torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-6)
        ids[1, 7:] = 3
        ids[2, 1:] = 5
        torch.testing.assert_close(pooled(network, ids, lengths, POOLINGS["concat"]), found)  # type: ignore[arg-type]


def test_a_long_text_is_read_whole_with_its_state_carried_over(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(model)
    rows = [list(range(60)), [4, 5, 6]]
    with torch.no_grad():
        whole = reader(pack(rows))
        monkeypatch.setattr(transfer, "STRETCH", 8)
        torch.testing.assert_close(reader(pack(rows)), whole, rtol=1e-5, atol=1e-6)
        changed = reader(pack([[99, *rows[0][1:]], rows[1]]))
    assert not torch.equal(changed[0], whole[0])  # the first piece of the long text still counts


def test_only_the_end_of_a_very_long_text_teaches(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STRETCH", 8)
    monkeypatch.setattr(transfer, "TAUGHT", 16)
    reader = reader_of(model)
    ids = torch.arange(40)[None]
    pooled(reader.network, ids, torch.tensor([40]), POOLINGS["concat"]).sum().backward()
    taught = reader.network.words.weight.grad.abs().sum(1).nonzero()[:, 0]
    assert taught.min() >= 16 and taught.max() == 39
    feed = TextFeed([list(range(n)) for n in (3, 40, 5, 30, 6, 8)], [0] * 6, batch=6, seed=0)
    assert sorted(batch.lengths for batch in feed.step(0))[-2:] == [(30,), (40,)]
    assert sum(batch.texts for batch in feed.step(0)) == 6


def test_a_pass_visits_every_text_once_with_its_label() -> None:
    rows = [[2, n, *[9] * (n % 5), 3] for n in range(23)]
    feed = TextFeed(rows, list(range(23)), batch=4, seed=3)
    for epoch in range(2):
        seen = []
        for step in range(feed.steps_per_pass):
            for batch in feed.step(epoch * feed.steps_per_pass + step):
                seconds = batch.ids[batch.starts + 1].tolist()
                assert seconds == batch.extra["labels"].tolist()
                seen += seconds
        assert sorted(seen) == list(range(23))


def test_cutting_rows_loses_no_piece() -> None:
    row = [0, *range(10, 47), 1]
    cut = cut_rows([row, [0, 1]], 12)
    assert [piece for part in cut for piece in part[1:-1]] == row[1:-1]
    assert all(part[0] == 0 and part[-1] == 1 and len(part) <= 12 for part in cut)
    assert cut[-1] == [0, 1]


# ---- schedules and thawing


def test_the_rate_is_the_slanted_triangle_of_the_paper() -> None:
    steps, peak, cut, ratio = 200, 0.01, 20, 32
    rates = [rate(step, steps, peak, warmup=SLANTED["warmup"], shape="linear", floor=SLANTED["floor"])
             for step in range(steps)]  # fmt: skip
    for step in range(cut, steps):  # the paper's formula, falling side
        p = 1 - (step - cut) / (cut * (1 / 0.1 - 1))
        assert rates[step] == pytest.approx(peak * (1 + p * (ratio - 1)) / ratio)
    assert max(rates) == rates[cut] == peak
    rises = np.diff(rates[:cut])
    assert np.allclose(rises, rises[0]) and rises[0] > 8 * abs(rates[cut + 1] - rates[cut])


def test_groups_run_from_the_head_down_to_the_words(model: LanguageModel) -> None:
    reader = reader_of(model)
    assert reader.groups == 4
    found = {name: reader.group(name) for name, _ in reader.named_parameters()}
    assert {group for name, group in found.items() if name.startswith("head.")} == {0}
    assert {group for name, group in found.items() if name.startswith("network.layers.1.")} == {1}
    assert {group for name, group in found.items() if name.startswith("network.layers.0.")} == {2}
    assert found["network.words.weight"] == 3 and found["network.bias"] == -1


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_only_thawed_groups_change(model: LanguageModel, groups: int) -> None:
    reader = reader_of(model)
    before = {name: p.detach().clone() for name, p in reader.named_parameters()}
    texts, labels = labelled(16, 0)
    reader.thaw(groups)
    feed = TextFeed(model.tokenizer.ids_batch(texts), labels, batch=8, seed=0)
    for _ in Training(ClassifyObjective(reader), feed, 2, loop_of(1e-2)):
        pass
    changed = {reader.group(name) for name, p in reader.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(range(groups))


def test_lower_groups_learn_more_slowly_by_the_divisor(model: LanguageModel) -> None:
    reader = reader_of(model)
    reader.thaw(4)
    training = Training(
        ClassifyObjective(reader), TextFeed([[1, 2]], [0], batch=1, seed=0), 1, loop_of(1.0),
        scale=lambda name: 2.6 ** -reader.group(name),
    )  # fmt: skip
    scales = sorted({group["scale"] for optimizer in training.optimizers for group in optimizer.param_groups})
    assert scales == pytest.approx([2.6**-3, 2.6**-2, 2.6**-1, 1.0])


def test_a_stage_thaws_one_group_more_until_all_learn(model: LanguageModel) -> None:
    texts, labels = labelled(24, 1)
    found = Ulmfit(model, QUICK_ULMFIT).fit(texts, labels, 2, texts[:8], labels[:8])
    assert [stage["groups"] for stage in found.stages if "groups" in stage] == [1, 2, 3, 4]
    assert "next_loss" in found.stages[0]


def test_reading_on_in_the_tasks_texts_makes_them_less_surprising(model: LanguageModel) -> None:
    texts = ["the moon finds the moon finds the moon finds the moon."] * 40
    ulmfit = Ulmfit(model)
    network = ulmfit._network(True, 0.0, 0)
    before = model.perplexity(texts[:1])["perplexity"]
    ulmfit._read_on(
        LanguageModelObjective(network),
        model.tokenizer.ids_batch(texts),
        StageSettings(epochs=2, lr=2e-3, seed=0, seconds=0, divisor=2.6),
        batch=8,
    )
    assert LanguageModel(network, model.tokenizer).perplexity(texts[:1])["perplexity"] < 0.7 * before
    assert model.perplexity(texts[:1])["perplexity"] == before  # the source itself is untouched


# ---- the autoencoder


def test_the_autoencoder_guesses_the_second_half_only(model: LanguageModel) -> None:
    network = model.network
    rows = [doubled([2, 10, 11, 12, 3]), doubled([2, 3])]
    assert rows == [[2, 10, 11, 12, 3, 10, 11, 12, 3], [2, 3, 3]]
    objective = Autoencode(network)
    with torch.no_grad():
        wanted = 0.0
        for row, guessed in zip(rows, (4, 1)):
            logs = network.logits(network.vectors(torch.tensor([row[:-1]]))[0])[0].log_softmax(-1)
            wanted -= sum(float(logs[place - 1, row[place]]) for place in range(len(row) - guessed, len(row)))
        assert float(objective(pack(rows))["next"]) == pytest.approx(wanted, rel=1e-5)
    assert objective.counts(pack(rows)) == {"next": 5}


def test_an_autoencoder_learns_to_repeat(model: LanguageModel) -> None:
    torch.manual_seed(0)
    objective = Autoencode(network_of(LanguageModelShape("lstm", 12, width=24, layers=1, dropout=0.0)))
    rows = [doubled([0, *chunk, 1]) for chunk in np.random.default_rng(0).integers(2, 12, (200, 2)).tolist()]
    losses = [step.loss for step in Training(objective, TextFeed(rows, batch=32, seed=0), 150, loop_of(2e-2))]
    assert losses[-1] < 0.35 * losses[0]


# ---- where the weights come from


def test_the_start_carries_weights_over(model: LanguageModel) -> None:
    texts, labels = labelled(20, 2)
    still = DaiLeSettings(epochs=1, lr=0.0, batch=10, reading_epochs=1, reading_lr=0.0)
    heads, words = {}, {}
    for start in STARTS:
        found = DaiLe(model, start, still).fit(texts, labels, 2, texts, labels)
        words[start] = found.reader.network.words.weight  # type: ignore[union-attr]
        heads[start] = found.name
    assert torch.equal(words["language-model"], model.network.words.weight)
    assert not torch.equal(words["random"], model.network.words.weight)
    assert torch.equal(words["random"], words["autoencoder"])  # a rate of zero taught it nothing
    moved = DaiLeSettings(epochs=1, lr=0.0, batch=10, reading_epochs=1, reading_lr=1e-2)
    taught = DaiLe(model, "autoencoder", moved).fit(texts, labels, 2, texts, labels)
    assert not torch.equal(taught.reader.network.words.weight, words["random"])  # type: ignore[union-attr]
    given = DaiLe(model, "autoencoder", moved, reading=["the moon"]).fit(texts, labels, 2, texts, labels)
    assert not torch.equal(given.reader.network.words.weight, taught.reader.network.words.weight)  # type: ignore[union-attr]
    assert len(set(heads.values())) == 3


def makers(model: LanguageModel) -> dict[str, RecurrentClassifier]:
    return {"ulmfit": Ulmfit(model, QUICK_ULMFIT)} | {start: DaiLe(model, start, QUICK_SEQUENCE) for start in STARTS}


@pytest.mark.parametrize("which", ["ulmfit", *STARTS])
def test_each_learns_a_simple_task_and_comes_back_from_its_folder(
    model: LanguageModel, which: str, tmp_path: Path
) -> None:
    texts, labels = labelled(160, 3)
    test, answers = labelled(60, 4)
    classifier = makers(model)[which].fit(texts, labels, 2, *labelled(40, 5))  # type: ignore[attr-defined]
    found = classifier.probabilities(test)
    most = max(np.mean(answers), 1 - np.mean(answers))
    assert (found.argmax(1) == answers).mean() > most + 0.25
    assert found.shape == (60, 2) and np.allclose(found.sum(1), 1)
    classifier.save(tmp_path / "saved")
    again = type(classifier).load(tmp_path / "saved")
    assert np.array_equal(again.probabilities(test), found)
    assert again.parameters == classifier.parameters > 128 * 32 and again.name == classifier.name
    with pytest.raises(UserError, match="loaded for prediction"):
        again.fit(texts, labels, 2)  # type: ignore[attr-defined]


def test_the_same_seed_gives_the_same_classifier(model: LanguageModel) -> None:
    texts, labels = labelled(24, 6)
    found = [
        Ulmfit(model, QUICK_ULMFIT).fit(texts, labels, 2, seed=seed).probabilities(texts[:4]) for seed in (1, 1, 2)
    ]
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_the_weights_that_did_best_on_dev_are_kept(model: LanguageModel) -> None:
    texts, labels = labelled(40, 7)
    found = DaiLe(model, "language-model", QUICK_SEQUENCE)
    seen: list[float] = []
    judge = found._judge

    def listen(dev: tuple) -> dict[str, float]:
        scores = judge(dev)
        seen.append(scores["dev_accuracy"])
        return scores

    found._judge = listen  # type: ignore[method-assign]
    dev = labelled(30, 8)
    found.fit(texts, labels, 2, *dev)
    assert len(seen) == QUICK_SEQUENCE.epochs
    assert (found.probabilities(dev[0]).argmax(1) == dev[1]).mean() == pytest.approx(max(seen))


def test_a_time_budget_moves_the_end_of_the_schedule(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    now, step = {"now": 0.0}, Training._step

    def timed(self: Training, batches: list) -> object:
        now["now"] += 0.1
        return step(self, batches)

    monkeypatch.setattr(Training, "_step", timed)
    monkeypatch.setattr(training_loop, "time", SimpleNamespace(perf_counter=lambda: now["now"]))
    monkeypatch.setattr(MemoryFolder, "elapsed", lambda self: now["now"])
    feed = TextFeed([[1, 2]], [0], batch=1, seed=0)
    stage = Stage(ClassifyObjective(reader_of(model)), feed, StageSettings(2, 1e-3, 0, 5.0), scale=lambda name: 1.0)
    stage.go()
    assert now["now"] == pytest.approx(5.0, abs=0.2) and len(stage.losses) == stage.training.steps > 40


def test_mistakes_are_reported(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 texts and 1 labels"):
        Ulmfit(model).fit(["a", "b"], [0], 2)
    with pytest.raises(UserError, match="label 2 is not between 0 and 1"):
        Ulmfit(model).fit(["a", "b"], [0, 2], 2)
    with pytest.raises(UserError, match="not been trained"):
        Ulmfit(model).probabilities(["a"])
    with pytest.raises(UserError, match="start is 'zero'"):
        DaiLe(model, "zero")
    with pytest.raises(UserError, match="not a nnlm"):
        Ulmfit(LanguageModel(network_of(LanguageModelShape("nnlm", 128, width=4)), model.tokenizer))
    with pytest.raises(UserError, match="no such folder"):
        Ulmfit.load(tmp_path / "nowhere")
    texts, labels = labelled(8, 0)
    Ulmfit(model, QUICK_ULMFIT).fit(texts, labels, 2).save(tmp_path / "saved")
    with pytest.raises(UserError, match="holds no sequence-learning"):
        DaiLe.load(tmp_path / "saved")
    file = tmp_path / "saved" / "bertkit.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"head": {"pooling": "none", "labels": 2, "inner": 3}}))
    with pytest.raises(DamagedFile, match="damaged"):
        Ulmfit.load(tmp_path / "saved")
