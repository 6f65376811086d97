"""Offsets point at the user's own characters, and bad text is refused by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UserError
from bertkit.text.checks import tokenizer_errors
from bertkit.text.tokenizer import Tokenizer
from tests.support.written_lines import VOCABS, written_lines

any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


def check(tokenizer: Tokenizer, text: str) -> None:
    """Offsets are in range and in order, and the characters they hold normalise to the piece."""
    encoding = tokenizer.encode(text)
    columns = (encoding.segments, encoding.offsets, encoding.special, encoding.sides, encoding.words)
    assert {len(column) for column in columns} == {len(encoding)}
    before, word_before = 0, 0
    for position in range(len(encoding)):
        start, end = encoding.offsets[position]
        if encoding.special[position]:
            assert (start, end, encoding.sides[position], encoding.words[position]) == (0, 0, -1, -1)
            continue
        assert before <= start <= end <= len(text)
        assert encoding.words[position] >= word_before
        before, word_before = start, encoding.words[position]
        piece = tokenizer.id_to_token(encoding.ids[position])
        assert holds(tokenizer, text[start:end], piece, encoding.ids[position]), (text, piece, (start, end))


def holds(tokenizer: Tokenizer, characters: str, piece: str, number: int) -> bool:
    """Can this piece come out of these characters?"""
    if number in tokenizer.special_ids:
        return number == tokenizer.unk_id or characters.strip() == piece
    if tokenizer.kind == "bpe":
        written = bytes_of(piece)
        return written.strip() in characters.encode() or written.isspace()
    plain = piece.removeprefix("##" if tokenizer.kind == "wordpiece" else "▁")
    if characters in ("`", "'"):
        return plain in ("", characters, '"')  # ALBERT's two single quotes become one double, which points at the first
    return plain in tokenizer.backend.normalizer.normalize_str(characters)


VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
BYTES = {chr(byte): byte for byte in VISIBLE} | {chr(256 + n): byte for n, byte in enumerate(HIDDEN)}


def bytes_of(piece: str) -> bytes:
    """The bytes that a byte-level piece stands for."""
    return bytes(BYTES[char] for char in piece)


def test_offsets_hold_the_piece_on_all_sorts_of_lines(tokenizer):
    for line in written_lines(1500, seed=11):
        check(tokenizer, line)


@settings(max_examples=250, deadline=None)
@given(text=any_text)
def test_offsets_hold_the_piece_on_any_text(learnt, text):
    for tokenizer in learnt.values():
        check(tokenizer, text)


@pytest.mark.skipif(not VOCABS.is_dir(), reason="the shared data with the official vocabularies is absent")
@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased", "albert-v2", "gpt2"])
def test_offsets_hold_the_piece_with_official_vocabularies(name):
    tokenizer = Tokenizer.load(VOCABS / name)
    for line in written_lines(600, seed=12):
        check(tokenizer, line)


def test_a_pair_counts_characters_and_words_in_each_text(learnt):
    encoding = learnt["wordpiece"].encode("the river", "the mill")
    second = [i for i, side in enumerate(encoding.sides) if side == 1]
    assert encoding.offsets[second[0]][0] == 0 and encoding.words[second[0]] == 0
    assert [encoding.segments[i] for i in second] == [1] * len(second)
    assert set(learnt["bpe"].encode("the river", "the mill").segments) == {0}


def test_pre_split_words_keep_their_number_and_their_own_offsets(tokenizer):
    words = ["Katherine", "O'Neill", "opens", "公园", "café", "e\u0301", "🙂", "1999,"]
    encoding = tokenizer.encode_words(words)
    own = [i for i, word in enumerate(encoding.words) if word >= 0]
    assert sorted({encoding.words[i] for i in own}) == list(range(len(words)))
    for i in own:
        start, end = encoding.offsets[i]
        assert 0 <= start <= end <= len(words[encoding.words[i]])
    for number, word in enumerate(words):
        spans = [encoding.offsets[i] for i in own if encoding.words[i] == number]
        # The accent that stripping removed belongs to no piece.
        assert spans[0][0] == 0 and spans[-1][1] == len(word.removesuffix("\u0301") if tokenizer.lower else word)


def test_pre_split_words_give_the_ids_of_the_running_text(tokenizer):
    words = ["tomorrow", "Katherine", "will", "open", "her", "café", "in", "New", "York"]
    assert tokenizer.encode_words(words).ids == tokenizer.encode(" ".join(words)).ids


def test_empty_text_is_only_special_tokens(tokenizer):
    assert tokenizer.encode("").ids == [tokenizer.cls_id, tokenizer.sep_id]
    assert tokenizer.ids_batch([]) == [] and tokenizer.encode_words([]).special == [True, True]


def test_all_ways_to_encode_agree(tokenizer):
    lines = written_lines(300, seed=13)
    wanted = [tokenizer.encode(line).ids for line in lines]
    assert tokenizer.ids_batch(lines) == wanted
    assert [one.ids for one in tokenizer.encode_batch(lines)] == wanted
    assert tokenizer.pieces_batch(lines) == [ids[1:-1] for ids in wanted]
    assert tokenizer.ids_batch(lines, lines[::-1]) == [tokenizer.encode(a, b).ids for a, b in zip(lines, lines[::-1])]


@pytest.mark.parametrize(("bad", "said"), [("a\0b", "NUL character at position 1"), ("ab\ud83d", "position 2")])
def test_bad_characters_are_refused_with_their_place(tokenizer, bad, said):
    with pytest.raises(UserError, match=said):
        tokenizer.encode(bad)
    with pytest.raises(UserError, match=said):
        tokenizer.encode("fine", bad)
    for many in (tokenizer.encode_batch, tokenizer.ids_batch, tokenizer.pieces_batch):
        with pytest.raises(UserError, match=f"Row 2 .*{said}"):
            many(["fine", bad])
    with pytest.raises(UserError, match=f"Word 2 .*{said}"):
        tokenizer.encode_words(["fine", bad])


def test_what_is_no_text_is_refused_with_its_row(tokenizer):
    with pytest.raises(UserError, match="Row 3 is float nan"):
        tokenizer.ids_batch(["a", "b", float("nan")])
    with pytest.raises(UserError, match="2 texts but 1 second"):
        tokenizer.encode_batch(["a", "b"], ["c"])


def test_a_panic_becomes_a_user_error_and_an_interrupt_stays():
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(UserError, match=r"encoding: .*boom"), tokenizer_errors("encoding"):
        raise panic("boom")
    with pytest.raises(KeyboardInterrupt), tokenizer_errors("encoding"):
        raise KeyboardInterrupt


def test_continuation_marks_pieces_inside_words(learnt):
    for kind, inside, outside in [("wordpiece", "##ing", "the"), ("bpe", "ing", "Ġthe"), ("unigram", "s", "▁the")]:
        tokenizer = learnt[kind]
        assert tokenizer.continuation[tokenizer.token_to_id(inside)]
        assert not tokenizer.continuation[tokenizer.token_to_id(outside)]
        assert not any(tokenizer.continuation[number] for number in tokenizer.special_ids)
        assert len(tokenizer.continuation) == tokenizer.size
