"""Windows and cuts lose nothing they should keep."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.windows import Windows, rows_of
from bertkit.errors import UserError
from bertkit.text.encoding import Encoding, truncated, windows_of
from tests.support.written_lines import ENGLISH, written_lines


def single(tokens: int) -> Encoding:
    return pair(tokens, None)


def pair(first: int, second: int | None) -> Encoding:
    """[CLS] a0 a1 … [SEP] and b0 b1 … [SEP] with ids that tell where each token came from."""
    sides = [-1, *[0] * first, -1] + ([] if second is None else [*[1] * second, -1])
    ids = list(range(len(sides)))
    return Encoding(ids, [max(s, 0) for s in sides], [(i, i + 1) for i in ids], [s < 0 for s in sides], sides, ids)


@given(st.integers(0, 300), st.integers(3, 90), st.integers(0, 100))
def test_each_token_is_owned_by_exactly_one_window(tokens, limit, overlap):
    encoding = single(tokens)
    if tokens + 2 > limit and overlap >= limit - 2:
        with pytest.raises(UserError, match="Use an overlap below"):
            windows_of(encoding, limit=limit, overlap=overlap)
        return
    windows = windows_of(encoding, limit=limit, overlap=overlap)
    owned = [i for window in windows for i in window.encoding.ids[slice(*window.core)]]
    assert owned == list(range(1, tokens + 1))
    assert all(len(window.encoding) <= limit for window in windows)
    assert all(window.encoding.special[0] and window.encoding.special[-1] for window in windows)


@given(st.integers(30, 200), st.integers(12, 30), st.integers(0, 8))
def test_a_token_belongs_to_the_window_where_it_has_most_context(tokens, limit, overlap):
    windows = windows_of(single(tokens), limit=limit, overlap=overlap)

    def context(window, number: int) -> int:
        at, ids = window.encoding.ids.index(number), window.encoding.ids
        left = tokens if ids[1] == 1 else at - 1
        right = tokens if ids[-2] == tokens else len(ids) - 2 - at
        return min(left, right)

    for window in windows:
        for number in window.encoding.ids[slice(*window.core)]:
            there = [context(other, number) for other in windows if number in other.encoding.ids[1:-1]]
            assert context(window, number) == max(there)


@given(st.integers(0, 12), st.integers(0, 200), st.integers(30, 60), st.integers(0, 9))
def test_a_pair_keeps_its_first_text_whole_in_every_window(first, second, limit, overlap):
    encoding = pair(first, second)
    windows = windows_of(encoding, limit=limit, overlap=overlap)
    owned = [i for window in windows for i in window.encoding.ids[slice(*window.core)]]
    start = first + 2 if second else 1
    assert owned == list(range(start, start + (second or first)))
    for window in windows:
        assert window.encoding.ids[: first + 2] == list(range(first + 2))
        assert len(window.encoding) <= limit


@given(st.integers(61, 200), st.integers(0, 12), st.integers(30, 60), st.integers(0, 9))
def test_windows_can_go_over_the_first_text_with_the_second_whole_in_each(first, second, limit, overlap):
    windows = windows_of(pair(first, second), limit=limit, overlap=overlap, side=0)
    owned = [i for window in windows for i in window.encoding.ids[slice(*window.core)]]
    assert owned == list(range(1, first + 1))
    for window in windows:
        assert len(window.encoding) <= limit
        assert window.encoding.sides.count(1) == second


def test_a_first_text_that_leaves_under_a_quarter_is_refused_with_the_fix():
    with pytest.raises(UserError, match=r"takes 90 of 100 tokens and leaves 7 .* Shorten it"):
        windows_of(pair(90, 50), limit=100, overlap=2)
    assert len(windows_of(pair(72, 50), limit=100, overlap=2)) > 1


def test_windows_over_text_read_as_the_text(tokenizer):
    text = " ".join(ENGLISH * 4)
    windows = tokenizer.windows(text, limit=40, overlap=10)
    assert len(windows) > 1
    whole = tokenizer.encode(text)
    owned = [span for window in windows for span in window.encoding.offsets[slice(*window.core)]]
    assert owned == [span for span, special in zip(whole.offsets, whole.special) if not special]
    assert tokenizer.windows(text, limit=len(whole), overlap=10)[0].encoding == whole


def test_pre_split_words_can_be_windowed_too(tokenizer):
    encoding = tokenizer.encode_words(ENGLISH)
    windows = tokenizer.windows_of(encoding, limit=30, overlap=8)
    owned = [word for window in windows for word in window.encoding.words[slice(*window.core)]]
    assert owned == [word for word in encoding.words if word >= 0]


@settings(max_examples=200)
@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 45))
def test_cutting_agrees_with_transformers_longest_first(wordpiece_pair, first, second, limit):
    ours, theirs, words = wordpiece_pair
    a, b = " ".join(words[:first]), " ".join(words[:second])
    encoding = ours.encode(a, b)
    if limit < 3:
        with pytest.raises(UserError, match="Use at least 3"):
            ours.truncated(encoding, limit)
        return
    short, cut = ours.truncated(encoding, limit)
    wanted = theirs(a, b, truncation="longest_first", max_length=limit)
    assert short.ids == wanted["input_ids"]
    assert cut == len(encoding) - len(short)


@pytest.fixture(scope="module")
def wordpiece_pair(learnt, tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("cutting")
    learnt["wordpiece"].save(folder, 128)
    theirs = AutoTokenizer.from_pretrained(folder)
    words = [word for word in ENGLISH if len(learnt["wordpiece"].pieces_batch([word])[0]) == 1]
    return learnt["wordpiece"], theirs, words


def test_truncating_a_single_text_keeps_its_beginning_and_counts_what_was_removed(tokenizer):
    encoding = tokenizer.encode(" ".join(ENGLISH))
    short, cut = truncated(encoding, 10)
    assert short.ids == [*encoding.ids[:9], tokenizer.sep_id] and cut == len(encoding) - 10
    assert truncated(encoding, len(encoding)) == (encoding, 0)


def test_no_window_is_needed_for_what_fits(tokenizer):
    for line in written_lines(50, seed=21):
        (window,) = tokenizer.windows(line, limit=10_000, overlap=5)
        start, end = window.core
        assert [not special for special in window.encoding.special].count(True) == end - start


@pytest.mark.parametrize("question", [20, 80, 92, 93])
def test_a_long_question_does_not_multiply_the_windows_over_its_context(question, tokenizer):
    encoding = pair(question, 2000)
    found = rows_of(tokenizer, encoding, Windows(128, side=1)).rows
    owned = [i for row in found for i in row.ids[slice(*row.core)]]
    assert owned == list(range(question + 2, question + 2002))
    room = 128 - question - 3
    assert len(found) <= 2000 / (room // 2) + 1


def test_cutting_from_the_start_keeps_the_end_and_the_special_tokens(tokenizer):
    encoding = tokenizer.encode(" ".join(ENGLISH))
    short, cut = truncated(encoding, 10, from_start=True)
    assert short.ids == [tokenizer.cls_id, *encoding.ids[-9:]] and cut == len(encoding) - 10
    pair = tokenizer.encode("the", " ".join(ENGLISH))
    kept, _ = truncated(pair, 12, from_start=True)
    assert kept.ids[-6:] == pair.ids[-6:] and kept.sides.count(0) == pair.sides.count(0)
