"""What holds for every task: it learns, it answers in the contract's words, and nothing is silently lost."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit import samples
from bertkit.checkpoint.folder import read_folder
from bertkit.data.examples import Choice, Question
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.metrics.calibration import no_answer_threshold
from bertkit.model.heads import HEADS
from bertkit.objectives.supervised import KINDS
from bertkit.report.words import tables
from bertkit.settings.finetune import COMPARED_TASKS, FinetuneSettings
from bertkit.tasks import TASKS, make
from bertkit.tasks.answer import Answer
from bertkit.tasks.base import Reading, learnt_labels
from bertkit.tasks.batches import outputs_of
from tests.support import toy

KEYS = {
    "classify": {"label", "score", "scores", "tokens", "cut"},
    "multi-label": {"labels", "scores", "tokens", "cut"},
    "pair": {"label", "score", "scores", "tokens", "cut"},
    "regress": {"value", "tokens", "cut"},
    "regress-pair": {"value", "tokens", "cut"},
    "tag": {"tokens", "tags", "entities", "seen", "cut"},
    "answer": {"answer", "start", "end", "score", "tokens", "cut"},
    "answer-or-none": {"answer", "start", "end", "score", "tokens", "cut"},
    "choose": {"choice", "scores", "tokens", "cut"},
    "embed": {"similarity", "vectors", "tokens", "cut"},
    "embed-scored": {"similarity", "vectors", "tokens", "cut"},
}
# The headline, and what must be beaten by far: the commonest label, the mean, or chance.
BASELINES = {
    "classify": ("accuracy", 0.5), "multi-label": ("micro_f1", 0.67), "pair": ("accuracy", 0.5),
    "regress": ("spearman", 0.0), "regress-pair": ("spearman", 0.0), "tag": ("f1", 0.0), "answer": ("f1", 0.1),
    "answer-or-none": ("f1", 0.34), "choose": ("accuracy", 0.34), "embed": ("accuracy", 0.09),
    "embed-scored": ("spearman", 0.0),
}  # fmt: skip


def inputs(case: str, number: int = 20) -> list:
    """What a user hands to predict: the dev rows without their answers."""
    _, rows, more, _ = toy.CASES[case]
    hidden = {"label", "tags", "answers"}
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows(number, 1, **more)]


def test_every_task_has_a_case_here():
    assert {task for task, *_ in toy.CASES.values()} == set(TASKS)
    assert set(KEYS) == set(BASELINES) == set(toy.CASES)


@pytest.mark.parametrize("case", toy.CASES)
def test_a_tiny_model_learns_the_task_and_beats_its_baseline(case, runs):
    result = runs(case).result
    headline, baseline = BASELINES[case]
    assert result["headline"] == headline == next(iter(result["metrics"]))
    assert result["metrics"][headline] > baseline + 0.3
    low, high = result["intervals"][headline]
    assert low <= result["metrics"][headline] <= high


@pytest.mark.parametrize("case", toy.CASES)
def test_predictions_have_exactly_the_promised_keys(case, runs):
    rows = inputs(case)
    found = runs(case).predict(rows)
    assert len(found) == len(rows)
    for said in found:
        assert set(said) == KEYS[case]
        assert said["cut"] == 0 and said.get("seen", said["tokens"])


@pytest.mark.parametrize("case", toy.CASES)
def test_predictions_do_not_depend_on_order_or_company(case, runs):
    rows = inputs(case, 12)
    together = runs(case).predict(rows)
    backwards = runs(case).predict(rows[::-1])[::-1]
    alone = [said for row in rows for said in runs(case).predict([row])]
    for others in (backwards, alone):
        for one, two in zip(together, others, strict=True):
            assert {k: v for k, v in one.items() if isinstance(v, (str, int))} == {
                k: v for k, v in two.items() if isinstance(v, (str, int))
            }
            for key in ("score", "value", "similarity"):
                if key in one:
                    assert one[key] == pytest.approx(two[key], abs=1e-4)


@pytest.mark.parametrize("case", toy.CASES)
def test_a_finished_run_opens_again_as_the_same_object(case, runs):
    run = runs(case)
    again = bertkit.load(run.result["out"], precision="fp32")
    rows = inputs(case, 6)
    for one, two in zip(run.predict(rows), again.predict(rows), strict=True):
        one.pop("vectors", None), two.pop("vectors", None)
        assert one == two
    dev = runs.folder / f"{case}-dev.jsonl"
    assert again.evaluate(dev) == pytest.approx(dict(run.result["metrics"]), abs=1e-6)


@pytest.mark.parametrize("case", ["classify", "pair", "multi-label", "tag"])
def test_label_names_are_the_users_strings_in_every_file(case, runs):
    out = runs(case).result["out"]
    wanted = {
        "pair": ["different", "same"], "classify": ["ham", "spam"], "multi-label": ["ham", "spam"],
        "tag": ["B-LOC", "B-PER", "I-LOC", "O"],
    }[case]  # fmt: skip
    config = hf.AutoConfig.from_pretrained(out)
    assert [config.id2label[n] for n in range(config.num_labels)] == wanted
    assert config.label2id == {name: n for n, name in enumerate(wanted)}
    assert json.loads((runs.folder / f"run-{case}" / "bertkit.json").read_text("utf-8"))["labels"] == wanted
    written = (runs.folder / f"run-{case}" / "config.json").read_text("utf-8")
    assert "LABEL_0" not in written


CLASSES = {
    "classify": hf.AutoModelForSequenceClassification, "multi-label": hf.AutoModelForSequenceClassification,
    "pair": hf.AutoModelForSequenceClassification, "regress": hf.AutoModelForSequenceClassification,
    "regress-pair": hf.AutoModelForSequenceClassification, "tag": hf.AutoModelForTokenClassification,
    "answer": hf.AutoModelForQuestionAnswering, "choose": hf.AutoModelForMultipleChoice, "embed": hf.AutoModel,
}  # fmt: skip


@pytest.mark.parametrize("case", CLASSES)
@torch.no_grad()
def test_the_folder_opens_in_transformers_and_gives_the_same_numbers(case, runs):
    out = runs(case).result["out"]
    theirs = CLASSES[case].from_pretrained(out).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(out)
    ours = read_folder(runs.folder / f"run-{case}").model.eval()
    run = runs(case)
    items = run.task.encode(run.task.from_inputs(inputs(case, 3)), run.tokenizer, run.windows())
    for item in items:
        batch = run.task.collate([item], training=False)
        encoded = ours.encoder(batch)
        for n, row in enumerate(item.rows):
            ids, segments = torch.tensor([row.ids]), torch.tensor([row.segments or [0] * len(row.ids)])
            shape = (ids[None], segments[None]) if case == "choose" else (ids, segments)
            answer = theirs(input_ids=shape[0], token_type_ids=shape[1])
            if case == "tag":
                mine, wanted = batch.split(ours.ask("token", encoded))[n], answer.logits[0]
            elif case == "answer":
                mine = batch.split(ours.ask("span", encoded))[n]
                wanted = torch.stack([answer.start_logits[0], answer.end_logits[0]], -1)
            elif case == "embed":
                mine, wanted = batch.split(encoded.tokens)[n], answer.last_hidden_state[0]
            else:
                mine, wanted = batch.restore(ours.ask(run.task.head, encoded))[n], answer.logits[0]
            torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)
    text = "the old house in paris"
    assert tokenizer(text)["input_ids"] == run.tokenizer.encode(text).ids


@pytest.mark.parametrize("case", toy.CASES)
def test_an_empty_text_is_answered_like_any_other(case, runs):
    (row,) = inputs(case, 1)
    empty = {k: "" if isinstance(v, str) else v for k, v in row.items()}
    if case == "tag":
        empty = ""
    (said,) = runs(case).predict([empty])
    assert set(said) == KEYS[case] and said["cut"] == 0
    if case.startswith("answer"):
        assert (said["answer"], said["start"], said["end"]) == ("", -1, -1)
    numbers = [v for v in said.values() if isinstance(v, float)]
    assert np.isfinite(numbers).all()


WRONG = {
    "classify": [[3], [{"txt": "no text"}], [{"text": None}]],
    "pair": [["one text"], [{"text": "no second"}]],
    "regress": [[("a", "b")]],
    "regress-pair": [["one text"]],
    "tag": [[["a", 3]], [{"words": ["a"]}]],
    "answer": [["only a question"], [{"question": "no context"}]],
    "choose": [["no choices"], [{"text": "a", "choices": "b"}]],
    "embed": [["one text"]],
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_input_of_the_wrong_kind_is_named_and_refused(case, runs):
    for wrong in WRONG[case]:
        with pytest.raises(UserError, match="Input 1 is"):
            runs(case).predict(wrong)


def test_a_question_without_choices_is_named_and_refused(runs):
    for empty in ({"text": "a", "choices": []}, Choice("a", ())):
        with pytest.raises(UserError, match=r"Input 2 has no choices\. Give at least one"):
            runs("choose").predict([{"text": "a", "choices": ["b", "c"]}, empty])


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="'classify'"):
        make("clasify")


def test_a_model_without_a_task_says_that_it_must_be_fine_tuned(runs):
    with pytest.raises(UserError, match="finetune"):
        bertkit.load(str(runs.model)).predict(["text"])


def test_a_label_that_says_none_is_known_is_reported(notes):
    assert learnt_labels(["ham", "nan", "spam", "nan"], (), "rows.csv") == ("ham", "nan", "spam")
    assert "'nan' (2 times) counts as a label" in notes[0]


def squads_best_score(scores: list[float], margins: list[float], answerable: list[bool]) -> float:
    """The score of the best threshold, as find_best_thresh of SQuAD 2.0's evaluate-v2.0.py finds it."""
    score = best = float(sum(not has for has in answerable))
    for number in sorted(range(len(margins)), key=margins.__getitem__):
        score += scores[number] if answerable[number] else -1
        best = max(best, score)
    return best / len(margins)


@given(st.lists(st.tuples(st.integers(-400, 400), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1,
                unique_by=lambda row: row[0]))  # fmt: skip
def test_the_margin_of_no_answer_is_as_good_as_the_one_squads_scorer_finds(rows):
    margins, scores, answerable = ([row[n] for row in rows] for n in range(3))
    answered = np.array([score * has for score, has in zip(scores, answerable)])
    unanswered = np.array([1.0 - has for has in answerable])
    chosen = no_answer_threshold(np.array(margins) / 100, answered, unanswered)
    reached = np.where(np.array(margins) / 100 <= chosen, answered, unanswered).mean()
    assert reached == pytest.approx(squads_best_score(scores, margins, answerable))
    at_zero = np.where(np.array(margins) <= 0, answered, unanswered).mean()
    assert chosen == 0 or reached > at_zero, "another margin than 0 has a reason"


def test_a_model_too_fond_of_no_answer_gets_its_margin_from_the_dev_questions(runs, tmp_path, notes):
    model = runs("answer-or-none")
    path = toy.write(tmp_path / "dev.jsonl", toy.questions(48, 1, impossible=True))
    examples = model.task.read(path, Reading())
    items = model.task.encode(examples, model.tokenizer, Windows(64))
    outputs = outputs_of(model.engine, model.task, items)
    for item, output in zip(items, outputs):
        at = 0
        for row in item.rows:
            output[at] += 20  # start and end at [CLS], which stands for no answer
            at += len(row.ids)
    fond = Answer(options={"impossible": True})
    refused = fond.score(examples, list(map(fond.decode, items, outputs)))
    told = fond.choose_thresholds(items, outputs)["no_answer"]
    said = list(map(fond.decode, items, outputs))
    reached = fond.score(examples, said)
    assert fond.options["threshold"] == told["threshold"] > 20
    assert (told["f1_at_zero"], told["f1"]) == pytest.approx((refused["f1"], reached["f1"]))
    assert reached["f1"] > refused["f1"] + 0.3
    assert any("No answer is given if it scores more than" in line and "48 dev rows" in line for line in notes)
    assert all(one["score"] >= 0.5 for one in said), "the score is that of what is said"


def test_the_margin_of_no_answer_is_kept_shown_and_used(runs):
    model = runs("answer-or-none")
    chosen, folder = model.result["no_answer"], runs.folder / "run-answer-or-none"
    about = json.loads((folder / "bertkit.json").read_text("utf-8"))
    assert about["options"]["threshold"] == about["calibration"]["threshold"] == chosen["threshold"]
    assert "gives no answer if" in (folder / "report.html").read_text("utf-8")
    assert model.evaluate(runs.folder / "answer-or-none-dev.jsonl")["f1"] == pytest.approx(chosen["f1"])
    assert "no_answer" not in runs("answer").result


def test_questions_whose_answers_stand_nowhere_teach_nothing():
    lost = Question("1", "who?", "Anna left.", (("Bob", -1),), False, 1)
    with pytest.raises(UserError, match="nothing to learn"):
        make("answer").fit_labels([lost])


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_says_of_itself_is_known_elsewhere(name):
    task = make(name)
    assert task.name == name and (not task.head or task.head in HEADS)
    assert set(task.stored_settings) <= set(task.accepted_settings) <= {f.name for f in fields(FinetuneSettings)}
    assert task.answer_kind in ("", *KINDS) and samples.path("en", task.sample).is_file()
    assert task.served_as in ("", "classifier", "reranker")


def test_what_compare_and_the_report_call_tasks_are_tasks():
    assert set(COMPARED_TASKS) <= set(TASKS) == set(tables("en")["tasks"]) == set(tables("zh")["tasks"])


def test_the_page_says_how_many_errors_there_were_beyond_those_shown(runs):
    out = Path(runs("regress").result["out"])
    assert len(runs("regress").result["errors"]) == 40 and "error_count" not in runs("regress").result
    assert "40 of 48 errors" in (out / "report.html").read_text("utf-8")  # a number is always off by something
