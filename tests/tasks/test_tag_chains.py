"""Tags chosen together (--crf), and words that all their pieces speak for (--word)."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import bertkit
from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.data.examples import TaggedSentence
from bertkit.errors import DamagedFile, UserError
from bertkit.model.heads import Crf
from bertkit.runs.finetune.run import Finetuning
from bertkit.runs.finetune.split import check_settings, task_of
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.base import Reading
from bertkit.tasks.batches import SupervisedFeed, outputs_of
from bertkit.tasks.tag import Tag, Words, words_of
from tests.support import toy

VALID = r"(O |B-PER |B-LOC (I-LOC )*)*"


def is_valid(tags: list[str]) -> bool:
    return re.fullmatch(VALID, "".join(f"{tag} " for tag in tags)) is not None


@pytest.fixture(scope="module")
def chained(runs):
    """A tagger with a CRF."""
    files = toy.files(runs.folder, "tag")
    return runs.tune("tag", "chained", **files, steps=100, crf=True)


@pytest.fixture(scope="module")
def unsure(runs):
    """A CRF tagger whose head says anything: its words alone would often break the rules."""
    files = toy.files(runs.folder, "tag")
    run = runs.tune("tag", "unsure", **files, steps=4, crf=True)
    torch.manual_seed(0)
    torch.nn.init.normal_(run.model.head("token").out.weight, std=0.5)
    return run


def test_a_tagger_with_a_crf_learns_and_knows_what_follows_what(chained, runs):
    assert chained.result["metrics"]["f1"] > 0.9
    labels = chained.task.labels
    field = chained.model.crf
    at, inside, outside = (labels.index(tag) for tag in ("B-LOC", "I-LOC", "O"))
    assert field.step[at, inside] > field.step[at, outside] + 0.1
    assert field.start[inside] < field.start[outside]


def test_the_same_answers_come_from_the_folder_opened_again(chained, runs):
    rows = [row["tokens"] for row in toy.sentences(12, 5)]
    again = bertkit.load(chained.result["out"], precision="fp32")
    assert again.predict(rows) == chained.predict(rows)
    dev = runs.folder / "tag-dev.jsonl"
    assert again.evaluate(dev) == pytest.approx(dict(chained.result["metrics"]), abs=1e-6)


def test_tags_that_bio_forbids_are_never_said(unsure):
    rows = [row["tokens"] for row in toy.sentences(60, 6)]
    assert unsure.task.options["rules"]
    assert all(is_valid(said["tags"]) for said in unsure.predict(rows))
    unsure.task.options["rules"] = False
    try:
        assert not all(is_valid(said["tags"]) for said in unsure.predict(rows)), "or there was nothing to forbid"
    finally:
        unsure.task.options["rules"] = True


@torch.no_grad()
def test_a_short_sentence_gets_the_best_of_every_sequence_with_its_marginals(unsure):
    task, field = unsure.task, unsure.model.crf
    count = len(task.labels)
    for row in toy.sentences(8, 7, least=2, most=5):
        words = row["tokens"][:5]
        (item,) = task.encode(task.from_inputs([words]), unsure.tokenizer, unsure.windows())
        emissions = task.logits(unsure.model, unsure.model.encoder(task.collate([item], training=False)))
        (output,) = outputs_of(unsure.engine, task, [item])
        scores = {}
        for tags in product(range(count), repeat=len(words)):
            if is_valid([task.labels[tag] for tag in tags]):
                total = field.start[tags[0]] + field.end[tags[-1]]
                total = total + sum(emissions[n, tag] for n, tag in enumerate(tags))
                scores[tags] = float(total + sum(field.step[a, b] for a, b in pairwise(tags)))
        assert tuple(output[:, 0].astype(int)) == max(scores, key=scores.__getitem__)
        every = np.exp(np.array(list(scores.values())) - max(scores.values()))
        for n, tag in product(range(len(words)), range(count)):
            wanted = every[[tags[n] == tag for tags in scores]].sum() / every.sum()
            assert np.exp(output[n, 1 + tag]) == pytest.approx(wanted, abs=1e-4)


def test_an_entity_scores_the_geometric_mean_of_its_words_marginals(chained):
    (said,) = chained.predict([["the", "new", "london", "and", "anna"]])
    assert [entity["text"] for entity in said["entities"]] == ["new london", "anna"]
    task = chained.task
    (item,) = task.encode(task.from_inputs([said["tokens"]]), chained.tokenizer, chained.windows())
    (output,) = outputs_of(chained.engine, task, [item])
    probabilities = np.exp(output[:, 1:])
    assert probabilities.sum(-1) == pytest.approx(np.ones(5), abs=1e-4)
    first, second = (probabilities[n, task.labels.index(tag)] for n, tag in ((1, "B-LOC"), (2, "I-LOC")))
    assert said["entities"][0]["score"] == pytest.approx(float(np.sqrt(first * second)), rel=1e-4)


def test_a_sentence_of_many_windows_is_one_chain(chained, unsure):
    (row,) = toy.sentences(1, seed=8, least=900, most=901)
    (said,) = chained.predict([row["tokens"]])
    assert said["seen"] > 900 and said["cut"] == 0
    assert said["tags"] == row["tags"]
    (item,) = unsure.task.encode(unsure.task.from_inputs([row["tokens"]]), unsure.tokenizer, unsure.windows())
    assert len(item.rows) > 10
    (said,) = unsure.predict([row["tokens"]])
    assert is_valid(said["tags"]), "a border between windows is no border of the chain"


def test_words_past_a_cut_and_words_of_nothing_are_outside(chained):
    (row,) = toy.sentences(1, seed=6, least=300, most=301)
    (said,) = chained.predict([row["tokens"]], on_long="truncate")
    assert said["cut"] > 200 and set(said["tags"][200:]) == {"O"} and is_valid(said["tags"])
    found = chained.predict([["\u200b", "anna", "\u200b"], ["\u200b"], []])
    assert [said["tags"] for said in found] == [["O", "B-PER", "O"], ["O"], []]


@torch.no_grad()
def test_the_folder_opens_in_transformers_without_the_crf_and_says_so(chained):
    out = Path(chained.result["out"])
    theirs, report = hf.AutoModelForTokenClassification.from_pretrained(out, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert set(load_file(out / "crf.safetensors")) == {"start", "step", "end"}
    task = chained.task
    (item,) = task.encode(task.from_inputs([["the", "new", "london"]]), chained.tokenizer, chained.windows())
    (row,) = item.rows
    logits = theirs.eval()(input_ids=torch.tensor([row.ids])).logits[0]
    ours = task.logits(chained.model, chained.model.encoder(task.collate([item], training=False)))
    torch.testing.assert_close(ours, logits[[place for place, _, _ in words_of(row)]], atol=1e-5, rtol=1e-4)
    card = (out / "README.md").read_text("utf-8")
    assert "crf.safetensors" in card and "transformers opens the folder without" in card


def test_a_converted_folder_keeps_the_crf_and_a_torn_one_is_refused(chained, tmp_path):
    folder = read_folder(Path(chained.result["out"]))
    write_folder(tmp_path / "copy", folder)
    rows = [row["tokens"] for row in toy.sentences(4, 9)]
    copy = bertkit.load(str(tmp_path / "copy"), precision="fp32")
    assert copy.predict(rows) == chained.predict(rows)
    folder.model.crf = Crf(3)
    (tmp_path / "other").mkdir()
    write_folder(tmp_path / "other", folder)
    with pytest.raises(DamagedFile, match=r"crf.safetensors.*4 tags"):
        read_folder(tmp_path / "other")
    (tmp_path / "copy/crf.safetensors").write_bytes(b"torn")
    with pytest.raises(DamagedFile, match=r"crf\.safetensors"):
        read_folder(tmp_path / "copy")
    (tmp_path / "copy/crf.safetensors").unlink()
    with pytest.raises(DamagedFile, match="is missing"):
        read_folder(tmp_path / "copy")


def prepared(runs, **more) -> Finetuning:
    files = toy.files(runs.folder, "tag")
    small = {"dropout": 0.0, "precision": "fp32", "max_tokens": 24, "overlap": 6, "threads": 1}
    return Finetuning(
        FinetuneSettings(task="tag", model=str(runs.model), out=runs.folder / "p", **small, **files, **more)
    )


@pytest.mark.parametrize("crf", [False, True])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(crf, runs):
    run = prepared(runs, crf=crf)
    assert any(len(item.rows) > 1 for item in run.items["train"])
    found = []
    for micro in (10**6, 60):
        batches = SupervisedFeed(run.items["train"], run.task, batch=16, seed=0, micro_tokens=micro).step(1)
        run.model.zero_grad()
        count = sum(run.task.count(batch) for batch in batches)
        for batch in batches:
            (run.task.loss(run.model, run.model.encoder(batch)) / count).backward()
        found.append(torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-3)


@torch.no_grad()
def test_the_loss_is_that_of_whole_sentences_whatever_their_windows(runs):
    run = prepared(runs, crf=True)
    torch.nn.init.normal_(run.model.crf.step)
    items = sorted(run.items["train"], key=lambda item: -len(item.rows))[:3] + run.items["train"][:3]
    batch = run.task.collate(items, training=True)
    logits = run.task.logits(run.model, run.model.encoder(batch))
    wanted, at = 0.0, 0
    for item in items:
        tags = torch.tensor([run.task.labels.index(tag) for tag in item.example.sentence.tags])
        part = logits[at : at + len(tags)]
        wanted -= float(run.model.crf(part[None], tags[None], torch.tensor([len(tags)])))
        at += len(tags)
    assert at == len(logits) == run.task.count(batch)
    assert float(run.task.loss(run.model, run.model.encoder(batch))) == pytest.approx(wanted, rel=1e-5)


POOLED = {"first": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}


@pytest.mark.parametrize("how", POOLED)
@torch.no_grad()
def test_a_words_vector_is_made_of_all_its_pieces_as_asked(how, runs):
    run = prepared(runs, word=how)
    words = ["the", "gardenriverletter", "x", "unbelievably", *["station"] * 30, "summerwinterkitchen"]
    (item,) = run.task.encode(run.task.from_inputs([words]), run.folder.tokenizer, run.windows)
    batch = run.task.collate([item], training=False)
    encoded = run.model.encoder(batch)
    rows = batch.split(encoded.tokens)
    wanted, seen = [], []
    for number, row in enumerate(item.rows):
        for place, pieces, word in words_of(row):
            assert set(row.encoding.words[place : place + pieces]) == {word}
            wanted.append(POOLED[how](rows[number][place : place + pieces]))
            seen.append((word, pieces))
    assert [word for word, _ in seen] == list(range(len(words)))
    assert len(item.rows) > 1 and max(pieces for _, pieces in seen) > 2
    mine = run.task.logits(run.model, encoded)
    torch.testing.assert_close(mine, run.model.head("token")(torch.stack(wanted)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_tagger_with_pooled_words_learns_and_remembers_how(how, runs):
    files = toy.files(runs.folder, "tag")
    run = runs.tune("tag", f"word-{how}", **files, steps=100, word=how)
    assert run.result["metrics"]["f1"] > 0.9
    out = Path(run.result["out"])
    assert json.loads((out / "bertkit.json").read_text("utf-8"))["options"]["word"] == how
    assert f"the {how} of its pieces" in (out / "README.md").read_text("utf-8")
    rows = [row["tokens"] for row in toy.sentences(6, 5)]
    assert bertkit.load(str(out), precision="fp32").predict(rows) == run.predict(rows)


def test_training_tags_that_break_bio_are_reported_and_forbid_nothing(runs, notes):
    rows = toy.sentences(40, 3)
    for row in rows[::2]:
        row["tags"] = [tag.replace("B-PER", "I-PER") for tag in row["tags"]]
    train = toy.write(runs.folder / "iob1.jsonl", rows)
    run = runs.tune("tag", "iob1", train=train, dev=train, steps=2, crf=True)
    assert run.task.options["rules"] is False
    assert any("training sentences have tags that BIO forbids" in note and "line 1" in note for note in notes)


def test_parts_of_speech_have_no_rules(tmp_path):
    task = Tag(options={"crf": True})
    path = toy.write(tmp_path / "pos.jsonl", [{"tokens": ["a", "b"], "tags": ["DET", "NOUN"]}])
    task.fit_labels(task.read(path, Reading()))
    assert task.labels == ("DET", "NOUN") and task.options["rules"] is False


@pytest.mark.parametrize(
    ("task", "wrong", "words"),
    [
        ("classify", {"crf": True}, "--crf has no meaning for the task classify; it is for tag"),
        ("classify", {"word": "mean"}, "--word has no meaning"),
        ("tag", {"multi_label": True}, "--multi-label has no meaning for the task tag"),
        ("tag", {"crf": True, "class_weights": True}, "--class-weights .* --crf"),
    ],
)
def test_options_that_could_only_be_ignored_are_refused(task, wrong, words, runs):
    with pytest.raises(UserError, match=words):
        runs.tune(task, "refused", train=runs.folder / "never-read.csv", **wrong)


@pytest.mark.parametrize(
    ("tags", "settings", "wanted"),
    [
        (("O", "B-PER", "I-PER"), {}, True),
        (("B", "M", "E", "S"), {}, True),
        (("DET", "NOUN", "VERB"), {}, False),
        (("O", "B-PER", "I-PER"), {"crf": False}, False),
        (("DET", "NOUN", "VERB"), {"crf": True}, True),
        (("O", "B-PER", "I-PER"), {"class_weights": True}, False),
    ],
)
def test_a_crf_is_the_default_where_tags_are_bio_or_similar(tags, settings, wanted):
    task = task_of(FinetuneSettings(task="tag", train=Path("rows.conll"), **settings))
    sentence = TaggedSentence(tuple("abcd")[: len(tags)], tags, 1)
    task.fit_labels([Words(sentence, "a b c d", ())])
    assert bool(task.options.get("crf")) is wanted


def test_no_crf_in_the_run_toml_of_another_task_asks_for_nothing():
    check_settings(FinetuneSettings(task="classify", train=Path("rows.csv"), crf=False))
    with pytest.raises(UserError, match="--crf has no meaning for the task classify"):
        check_settings(FinetuneSettings(task="classify", train=Path("rows.csv"), crf=True))
