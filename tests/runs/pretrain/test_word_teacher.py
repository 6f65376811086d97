"""A teacher's states matched at every word: alignment, the loss, and whole runs."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import read_folder
from bertkit.data.batch import pack
from bertkit.data.packing import Example
from bertkit.errors import Stopped, UserError
from bertkit.inference.teacher import START_SCALE, WordsOfPieces, WordTeacher, start_vectors
from bertkit.model.encoder import Encoded
from bertkit.objectives.masked import WordStates
from bertkit.runs.pretrain.build import build, make_feed
from bertkit.runs.pretrain.run import pretrain
from bertkit.settings.pretrain import TeachingSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import World
from bertkit.training.metrics_log import read_metrics
from tests.support.interrupted import fingerprint, stop_after
from tests.support.toy import make_model


def example(tokenizer: Tokenizer, text: str) -> Example:
    found = tokenizer.encode(text)
    ids, special = np.asarray(found.ids), np.asarray(found.special)
    return Example(ids, np.zeros_like(ids), special, np.ones(len(ids), bool))


@pytest.fixture
def student() -> Tokenizer:
    return read_folder(bertkit.checkpoint.locate.locate("en")).tokenizer


def test_words_are_spelled_as_in_the_text(student):
    row = example(student, "Unbelievable photosynthesis, isn't it?")
    number, words = WordsOfPieces(student).of(row.ids, row.special)
    assert words == ["unbelievable", "photosynthesis", ",", "isn", "'", "t", "it", "?"]
    assert [int(n) for n in number[row.special]] == [-1, -1]
    pieces = [student.id_to_token(int(piece)) for piece in row.ids]
    for n, word in enumerate(words):
        assert "".join(p.removeprefix("##") for p, own in zip(pieces, number) if own == n) == word


def test_every_chinese_character_is_a_word():
    tokenizer = read_folder(bertkit.checkpoint.locate.locate("zh")).tokenizer
    row = example(tokenizer, "今天天气很好, hello")
    assert WordsOfPieces(tokenizer).of(row.ids, row.special)[1][:6] == list("今天天气很好")


def test_a_word_the_student_does_not_know_has_no_state(student, tmp_path):
    teacher = WordTeacher(read_folder(make_model(tmp_path / "t")), [1], student, "fp32")
    row = example(student, "good 𓀀 day")
    word, states = teacher([row])
    assert len(states) == 2
    unknown = [n for n, piece in enumerate(row.ids) if student.id_to_token(int(piece)) == "[UNK]"]
    assert [int(word[n]) for n in unknown] == [2] * len(unknown)  # the number of words: of none


def test_word_states_agree_with_transformers(student, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = make_model(tmp_path / "teacher", seed=3, depth=3)
    texts = ["Free prize for unbelievable winners, call now!", "See you", "the meeting is at noon tomorrow"]
    rows = [example(student, text) for text in texts]
    word, states = WordTeacher(read_folder(folder), [1, 2], student, "fp32")(rows)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    at = 0
    for row, text in zip(rows, texts):
        _, words = WordsOfPieces(student).of(row.ids, row.special)
        with torch.no_grad():
            inputs = tokenizer(text, return_tensors="pt")
            layers = model(**inputs, output_hidden_states=True).hidden_states
        owner = inputs.word_ids(0)  # transformers' own words: split at blanks and punctuation, as the student's are
        for n in range(len(words)):
            mine = [place for place, who in enumerate(owner) if who == n]
            for pair, layer in enumerate((1, 2)):
                mean = layers[layer][0, mine].mean(0)
                wanted = torch.nn.functional.layer_norm(mean, mean.shape)
                assert torch.allclose(states[at + n, pair], wanted, atol=1e-5)
        at += len(words)
    assert at == len(states)
    assert len(word) == sum(len(row.ids) for row in rows)


def test_a_student_that_is_its_teacher_loses_nothing(tmp_path):
    folder = read_folder(make_model(tmp_path / "t", depth=2))
    tokenizer, model = folder.tokenizer, folder.model.eval()
    rows = [example(tokenizer, "free prize, call now"), example(tokenizer, "see you at the meeting")]
    own = model.encoder
    batch = pack([row.ids for row in rows])
    ordered = [rows[n] for n in batch.order]
    match = WordStates([1, 2], model.config.width, model.config.width)
    with torch.no_grad():
        for linear in match.maps:
            linear.weight.copy_(torch.eye(model.config.width))
            linear.bias.zero_()
        encoded: Encoded = own(batch, layers=True)
        word, states = WordTeacher(read_folder(tmp_path / "t"), [1, 2], tokenizer, "fp32")(ordered)
        batch.extra = {"word": torch.from_numpy(word), "states": states}
        assert float(match(encoded)) < 1e-6
        batch.extra["states"] = states.flip(0)
        assert float(match(encoded)) > 0.1


def test_masked_words_can_be_left_to_the_masked_word_loss():
    batch = pack([[5, 6, 7, 8], [9, 10]])
    word = torch.tensor([0, 0, 1, 3, 2, 3])  # the last one of each text belongs to no word
    batch.extra = {"word": word, "states": torch.randn(3, 1, 8), "places": torch.tensor([1, 5])}
    layers = [torch.randn(6, 8)]
    every, shown = WordStates([0], 8, 8), WordStates([0], 8, 8, masked=False)
    shown.load_state_dict(every.state_dict())
    encoded = Encoded(layers[0], batch, tuple(layers))
    assert (every.count(batch), shown.count(batch)) == (3, 2)
    with torch.no_grad():
        less = float(shown(encoded))
        batch.extra["states"][0] += 100.0
        assert float(shown(encoded)) == less and float(every(encoded)) > less + 10
        batch.extra["places"] = torch.tensor([5])
        assert float(shown(encoded)) == pytest.approx(float(every(encoded)), rel=1e-5)


def test_the_weight_falls_and_stays():
    plan = TeachingSettings(weight=8, weight_end=0.8, fall=0.6)
    assert [round(plan.at(x), 2) for x in (0, 0.3, 0.6, 1)] == [8, 4.4, 0.8, 0.8]


def test_layers_are_matched_at_like_heights_unless_named():
    assert TeachingSettings().layer_pairs(12, 6) == [(5, 3), (8, 5), (10, 6)]
    assert TeachingSettings().layer_pairs(4, 6) == [(2, 3), (3, 5), (4, 6)]
    assert TeachingSettings(pairs=((7, 6),)).layer_pairs(12, 6) == [(7, 6)]
    with pytest.raises(UserError, match=r"\[13, 6\].*0 to 12"):
        TeachingSettings(pairs=((13, 6),)).layer_pairs(12, 6)


@pytest.fixture
def matched(make, tmp_path):
    """Settings of a run with a teacher at every word: matched(out, **changes)."""
    model = make_model(tmp_path / "teacher", seed=5, width=64)
    return lambda out, **changes: make("modern-tiny", tmp_path / out, **{"teacher": str(model), **changes})


def test_the_match_is_learnt_beside_the_words_and_leaves_no_weights(matched, tmp_path):
    result = pretrain(matched("run", steps=120, loop={"lr": 3e-3}, eval_every=120))
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "states_loss" in row]
    first, last = (np.mean([row["states_loss"] for row in part]) for part in (rows[:10], rows[-10:]))
    assert last < 0.8 * first
    assert 0 < result["match_loss"] < first
    plain = pretrain(matched("plain", steps=2, teacher=""))
    keys = [set(read_folder(tmp_path / name).model.state_dict()) for name in ("run", "plain")]
    assert keys[0] == keys[1]
    assert "match_loss" not in plain


def test_a_run_with_a_teacher_at_every_word_resumes_to_the_last_bit(matched, tmp_path, monkeypatch):
    pretrain(matched("whole"))
    for step in (1, 3):
        with monkeypatch.context() as patch:
            stop_after(step, patch)
            with pytest.raises(Stopped):
                pretrain(matched(f"stopped-{step}"))
        pretrain(matched(f"stopped-{step}", resume=True))
        assert fingerprint(tmp_path / f"stopped-{step}") == fingerprint(tmp_path / "whole")


def test_a_share_of_the_examples_is_matched_and_the_teacher_reads_no_others(matched, tmp_path):
    settings = matched("run", steps=6, teaching={"share": 0.25}, batch_tokens=1024, loop={"lr": 3e-3})
    feed = make_feed(build(settings, World()), 6, World())
    matches = [(len(batch.extra.get("states", ())) > 0, len(batch.order)) for batch in feed.step(0)]
    some, every = sum(rows for taught, rows in matches if taught), sum(rows for _, rows in matches)
    assert some == ceil(every / 4) < every
    pretrain(settings)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(0 < row["states_loss"] < 2 for row in rows if "states_loss" in row)


def test_a_run_goes_on_without_its_teacher(matched, tmp_path):
    pretrain(matched("run", steps=4))
    result = pretrain(matched("run", steps=8, teacher="", resume=True, other_settings=True))
    assert result["steps"] == 8


def test_settings_of_a_teacher_without_a_teacher_are_not_silently_ignored(make, tmp_path):
    with pytest.raises(UserError, match="pass --teacher"):
        pretrain(make("modern-tiny", tmp_path / "run", teaching={"weight": 4.0}))


def test_only_masked_words_have_such_a_teacher(make, tmp_path):
    with pytest.raises(UserError, match="masked-word pretraining"):
        pretrain(make("gpt-mini", tmp_path / "gpt", teacher=str(make_model(tmp_path / "t"))))


def test_a_teacher_may_come_later(matched, tmp_path):
    pretrain(matched("run", steps=4, teacher="", loop={"ema": 0.9}))
    result = pretrain(matched("run", steps=8, loop={"ema": 0.9}, resume=True, other_settings=True))
    assert result["match_loss"] > 0


def test_token_vectors_start_where_the_teachers_stand_to_each_other(student, tmp_path):
    teacher = read_folder(make_model(tmp_path / "t", width=64))
    table = teacher.model.encoder.embeddings.tokens.weight.detach()
    shared = [n for n in range(student.size) if teacher.tokenizer.token_to_id(student.id_to_token(n)) is not None]
    theirs = table[[teacher.tokenizer.token_to_id(student.id_to_token(n)) for n in shared]]
    for width in (64, 96):  # nothing is lost where the student is wide enough
        start = start_vectors(teacher, student, student.size + 10, width)
        assert start.shape == (student.size + 10, width) and not start[student.size :].any()
        assert float(start[: student.size].pow(2).mean().sqrt()) == pytest.approx(START_SCALE, rel=1e-4)
        ratio = torch.pdist(start[shared]) / torch.pdist(theirs).clamp(min=1e-9)
        assert float(ratio.std() / ratio.mean()) < 1e-3
    half = start_vectors(teacher, student, student.size, 32)
    correlation = np.corrcoef(torch.pdist(half[shared]).numpy(), torch.pdist(theirs).numpy())[0, 1]
    assert correlation > 0.6


def test_a_piece_the_teacher_lacks_starts_from_the_pieces_of_its_spelling(student, tmp_path):
    teacher = read_folder(make_model(tmp_path / "t", width=64))
    lacking = next(
        n
        for n in range(student.size)
        if teacher.tokenizer.token_to_id(student.id_to_token(n)) is None
        and n not in student.special_ids
        and len(teacher.tokenizer.pieces_batch([student.id_to_token(n).removeprefix("##")])[0]) > 1
    )
    start = start_vectors(teacher, student, student.size, 64)
    spelling = teacher.tokenizer.pieces_batch([student.id_to_token(lacking).removeprefix("##")])[0]
    table = teacher.model.encoder.embeddings.tokens.weight.detach()
    others = [n for n in range(student.size) if teacher.tokenizer.token_to_id(student.id_to_token(n)) is not None][:200]
    theirs = table[[teacher.tokenizer.token_to_id(student.id_to_token(n)) for n in others]]
    ratio = (start[others] - start[lacking]).norm(dim=1) / (theirs - table[spelling].mean(0)).norm(dim=1)
    assert float(ratio.std() / ratio.mean()) < 1e-3


def test_a_run_may_start_from_the_teachers_token_vectors_and_resumes_to_the_last_bit(matched, tmp_path, monkeypatch):
    teaching = {"vectors": "teacher"}
    random, taught = (pretrain(matched(name, steps=30, teaching=t)) for name, t in (("a", {}), ("b", teaching)))
    assert taught["mlm_loss"] != random["mlm_loss"]
    pretrain(matched("whole", teaching=teaching))
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Stopped):
            pretrain(matched("stopped", teaching=teaching))
    pretrain(matched("stopped", teaching=teaching, resume=True))
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")
