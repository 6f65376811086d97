"""Traditional and full-width forms are read as simplified ones; offsets point at the user's own characters."""

from __future__ import annotations

import pytest

import bertkit
from bertkit.errors import UserError
from bertkit.text.chinese_forms import simplified, simplifies, simplify
from bertkit.text.vocabulary import VocabularySettings, learn


@pytest.fixture(scope="module")
def zh():
    return bertkit.load("zh", precision="fp32")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("臺灣的國語課本", "台湾的国语课本"),
        ("１２３ｔｏｋｅｎｓ", "123tokens"),
        ("￥５ ① ㎡ Ⅳ", "¥5 1 m2 IV"),
        ("今天，“很好”！……％", "今天，“很好”！……％"),  # punctuation stays
        ("café ½ 한국 がく naïve", "café ½ 한국 がく naïve"),
    ],
)
def test_forms_are_read_as_simplified_ones(written, read):
    assert simplify(written) == read


def test_no_piece_of_a_traditional_text_is_unknown_to_zh(zh):
    text = "臺灣大學的學生在圖書館讀書，共１２３人，每人￥５０。"
    found = zh.tokenizer.encode(text)
    assert zh.tokenizer.unk_id not in found.ids
    assert found.ids == zh.tokenizer.encode("台湾大学的学生在图书馆读书,共123人,每人¥50。".replace(",", "，")).ids


def test_offsets_point_at_the_users_own_characters(zh):
    text = "國語１２３頭髮"
    found = zh.tokenizer.encode(text)
    spans = [text[a:b] for (a, b), special in zip(found.offsets, found.special) if not special]
    assert "".join(spans) == text
    assert spans[:2] == ["國", "語"]


def test_the_same_words_in_both_scripts_have_the_same_vector(zh):
    one, other = zh.embed(["我喜歡這個圖書館", "我喜欢这个图书馆"])
    assert abs(one - other).max() == 0


def test_transformers_reads_the_same_pieces(zh, tmp_path):
    transformers = pytest.importorskip("transformers")
    from bertkit.checkpoint.locate import locate

    text = "臺灣的國語課本，１２３ tokens"
    other = transformers.AutoTokenizer.from_pretrained(locate("zh"))
    assert other(text)["input_ids"] == zh.tokenizer.encode(text).ids


def test_a_vocabulary_can_be_learnt_with_it_and_keeps_it_when_saved(tmp_path):
    lines = ["國語課本和国语课本", "１２３ 和 123"] * 20
    tokenizer = learn(lines, VocabularySettings(size=100, simplify=True))
    tokenizer.save(tmp_path, 128)
    again = type(tokenizer).load(tmp_path)
    assert simplifies(again.backend)
    assert again.encode("國語").ids == again.encode("国语").ids
    assert again.token_to_id("國") is None
    assert simplified(again).fingerprint() == again.fingerprint()  # never twice


def test_byte_level_vocabularies_refuse_it():
    with pytest.raises(UserError, match="Only wordpiece"):
        learn(["國"], VocabularySettings("bpe", size=300, simplify=True))
    with pytest.raises(UserError, match="Only wordpiece"):
        simplified(learn(["國語"] * 9, VocabularySettings("bpe", size=300)))
