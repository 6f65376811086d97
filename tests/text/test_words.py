"""Sentences and words of English and Chinese."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.text.words import is_cjk, segment, split_sentences
from tests.support.written_lines import written_lines

pieces = st.sampled_from(
    [*".!?…。！？；\"'”’）)]\n3aB好,\u2028\x85\x1c", "\n\n", "Mr", "e.g", "U.S", "3.14", "I", "The", " ", " ", " "]
)


@pytest.mark.parametrize(
    "sentences",
    [
        ["The mill is old.", "It still runs!", "Does it?", "Yes."],
        ["Mr. Smith met Dr. Jones in St. Ives.", "They spoke."],
        ["J. R. R. Tolkien wrote it.", "We read it."],
        ["It cost 3.50 in 1999.", "Now it costs more."],
        ["She waited... and waited.", "Then..."],
        ["He left...", "Nobody knew."],
        ['"Why?" he asked.', '"Because!"', "Then silence."],
        ["(It was late.)", "We went home."],
        ["See Fig. 3 and No. 7.", "They differ."],
        ["We moved to the U.S.", "The house was small."],
        ["He works for Acme Inc. in Leeds.", "He likes it."],
        ["1. Introduction", "This is it."],
        ["So did I.", "Then we left."],
        ["他说：“你好！”", "然后走了。", "真的吗？", "是的；", "好……", "走吧。"],
        ["他笑了。", "真好。", "He laughed and 走了。"],
        ["「走吧。」", "他说。"],
        ["真的？！", "嗯。"],
        ["No end here"],
    ],
)
def test_sentences_end_where_a_reader_would_end_them(sentences):
    separator = " " if sentences[0].isascii() else ""
    if sentences[0].startswith("1."):
        separator = "\n\n"
    assert split_sentences(separator.join(sentences)) == sentences


def test_a_blank_line_ends_a_sentence_and_a_line_break_does_not():
    assert split_sentences("A heading\n\nThe text goes\non here. \n \n End") == [
        "A heading",
        "The text goes\non here.",
        "End",
    ]


@given(st.lists(pieces, max_size=40).map("".join) | st.text(max_size=80))
def test_splitting_never_loses_a_visible_character(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_splitting_keeps_the_order_and_the_inside_of_sentences():
    for line in written_lines(500, seed=51):
        at = 0
        for sentence in split_sentences(line):
            at = line.index(sentence, at) + len(sentence)


def test_chinese_characters_are_those_of_bert():
    from tokenizers.normalizers import BertNormalizer

    normalizer = BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    # The library lacks U+2B820 to U+2B91F, which Google's own code has.
    for code in [
        *range(0x2E80, 0xD800, 7),
        *range(0xE000, 0x2B820, 13),
        *range(0x2B920, 0x30000, 13),
        0x4E00,
        0x9FFF,
        0x3400,
        0x4DBF,
        0x41,
    ]:
        char = chr(code)
        assert is_cjk(char) == (normalizer.normalize_str(char) == f" {char} "), hex(code)


@settings(deadline=None)  # the dictionary is read at the first call
@given(st.text(st.sampled_from("今天天气很好，我们去公园。 Hello world 𠀀🙂\n3.5"), max_size=40))
def test_chinese_words_cover_the_text_in_order(text):
    spans = segment(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(start < end for start, end in spans)


def test_chinese_words_are_words():
    text = "我们去北京大学学习中文"
    assert "北京大学" in [text[start:end] for start, end in segment(text)]
    assert unicodedata.category(text[0]) == "Lo"
