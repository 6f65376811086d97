"""Vocabularies are learnt to size, by kind, from a stream, and reported on truthfully."""

from collections import Counter

import pytest

from bertkit.errors import UserError
from bertkit.text.coverage import report, survey
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support.written_lines import CHINESE, ENGLISH, written_lines

LINES = written_lines(400)


@pytest.mark.parametrize("size", [300, 700, 2500])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_vocabulary_never_exceeds_its_size(kind, size):
    lines = [" ".join(ENGLISH), CHINESE] * 3 if kind == "unigram" else written_lines(800)
    tokenizer = learn(lines, VocabularySettings(kind, size=size))
    assert tokenizer.size <= size
    assert [tokenizer.id_to_token(n) is None for n in range(tokenizer.size)].count(True) == 0


def test_special_tokens_have_the_ids_models_expect(learnt):
    assert [learnt["wordpiece"].id_to_token(n) for n in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [learnt["bpe"].id_to_token(n) for n in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert learnt["bpe"].mask_id == learnt["bpe"].size - 1
    assert [learnt["unigram"].id_to_token(n) for n in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    for tokenizer in learnt.values():
        assert tokenizer.encode("").ids == [tokenizer.cls_id, tokenizer.sep_id]


def test_learning_twice_gives_the_same_vocabulary():
    for kind in ("wordpiece", "bpe", "unigram"):
        first, second = (learn(written_lines(400), VocabularySettings(kind, size=600)) for _ in range(2))
        assert first.fingerprint() == second.fingerprint()


def test_a_list_and_a_stream_of_it_give_the_same_vocabulary():
    for kind in ("wordpiece", "bpe"):
        lists, streams = (learn(texts, VocabularySettings(kind, size=1500)) for texts in (LINES, iter(LINES)))
        assert lists.fingerprint() == streams.fingerprint()


def test_characters_are_counted_and_those_inside_words_known():
    found = survey(["a bc, d", "e", "c"])
    assert found.counts == Counter("a bc, dec") and found.inside == {"c"}
    several = survey(["mill 公园"] * 200_000 + ["zq"])
    assert several.counts["l"] == 400_000 and several.counts["\n"] == 0
    assert several.inside == set("ilq") and several.chinese_share() == pytest.approx(2 / 7, rel=1e-3)


def test_learning_reads_a_stream_once():
    read = []

    def stream():
        for line in written_lines(300):
            read.append(line)
            yield line

    learn(stream(), VocabularySettings(size=500))
    assert read == written_lines(300)


def test_bytes_leave_nothing_unknown_and_come_back_as_they_were(learnt):
    tokenizer = learnt["bpe"]
    for line in written_lines(300, seed=41):
        if "<s>" not in line:
            ids = tokenizer.pieces_batch([line])[0]
            assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == line


def test_case_is_kept_only_when_asked():
    lines = ["The Mill and the mill"] * 5
    cased, uncased = (learn(lines, VocabularySettings(size=100, cased=cased)) for cased in (True, False))
    assert cased.token_to_id("The") and not uncased.token_to_id("The")
    assert cased.lower is False and uncased.lower is True


def test_the_rarest_characters_go_when_the_alphabet_alone_fills_the_size(notes):
    lines = [CHINESE * 3] * 20 + ["龘靐齉"]
    tokenizer = learn(lines, VocabularySettings(size=len(set(CHINESE)) + 5))
    assert tokenizer.unk_id not in tokenizer.pieces_batch([CHINESE])[0]
    assert set(tokenizer.pieces_batch(["龘靐齉"])[0]) == {tokenizer.unk_id}
    assert any("different characters are kept" in message for message in notes)


def test_much_chinese_gets_a_larger_alphabet_and_is_reported(notes):
    characters = "".join(chr(0x4E00 + n) for n in range(2500))
    tokenizer = learn([characters, characters], VocabularySettings(size=4000))
    assert tokenizer.unk_id not in tokenizer.pieces_batch([characters])[0]
    assert any("6000 different characters" in message for message in notes)


def test_a_text_too_small_for_the_size_is_reported(notes):
    tokenizer = learn(["a little text"] * 3, VocabularySettings(size=5000))
    assert any(f"gave {tokenizer.size} pieces, not 5000" in message for message in notes)


@pytest.mark.parametrize(
    ("texts", "chosen", "said"),
    [
        ([], {}, "no text to learn"),
        (["  ", "\n"], {}, "no text to learn"),
        (["a"], {"kind": "wordpeice"}, "Did you mean 'wordpiece'"),
        (["a"], {"kind": "bpe", "size": 100}, "Use at least 262"),
        (["fine", "a\0b"], {}, "Text 1 has a NUL"),
        ("one text", {}, "not a single text"),
        (written_lines(300), {"kind": "unigram", "size": 50}, "Use --size"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_with_the_fix(texts, chosen, said):
    with pytest.raises(UserError, match=said):
        learn(texts, VocabularySettings(**chosen))


def test_a_failure_of_the_users_own_stream_stays_what_it_was():
    def stream():
        yield from ["the mill"] * 3
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        learn(stream(), VocabularySettings(size=100))


def test_the_report_counts_what_a_slow_count_counts(tokenizer):
    lines = written_lines(400, seed=42)
    found = report(tokenizer, iter(lines), sample=300)
    encodings = [tokenizer.encode(line) for line in lines[:300]]
    per_word: dict[tuple[int, int], list[int]] = {}
    for row, encoding in enumerate(encodings):
        for number, word in zip(encoding.ids, encoding.words):
            if word >= 0:
                per_word.setdefault((row, word), []).append(number)
    pieces = [number for word in per_word.values() for number in word]
    assert (found.texts, found.words, found.pieces) == (300, len(per_word), len(pieces))
    assert found.unknown_rate == pytest.approx(pieces.count(tokenizer.unk_id) / len(pieces))
    assert found.pieces_per_word == pytest.approx(len(pieces) / len(per_word))
    whole = [word for word in per_word.values() if len(word) == 1 and word[0] != tokenizer.unk_id]
    assert found.one_piece_share == pytest.approx(len(whole) / len(per_word))
    assert found.length_percentiles[100] == max(map(len, encodings))


def test_the_report_names_the_characters_that_nothing_can_write():
    tokenizer = learn([" ".join(ENGLISH)] * 3, VocabularySettings(size=400))
    found = report(tokenizer, ["the Ж mill Ж 龘", "river"])
    assert found.unknown_characters == [("Ж", 2), ("龘", 1)]
    assert "'Ж' (2)" in "\n".join(found.lines())
    with pytest.raises(UserError, match="no text"):
        report(tokenizer, [])


def test_the_report_of_a_text_without_spaces_counts_by_characters():
    lines = ["今天天气很好，我们去公园散步。", "他们昨天在图书馆看书。", "明天 下雨"] * 30
    tokenizer = learn(lines, VocabularySettings(size=60, kind="unigram"))
    found = report(tokenizer, lines)
    pieces = sum(len(tokenizer.pieces_batch([line])[0]) for line in lines)
    assert found.characters == sum(len(line.replace(" ", "")) for line in lines)
    assert found.pieces_per_character == pytest.approx(pieces / found.characters)
    shown = "\n".join(found.lines())
    assert f"{found.pieces_per_character:.3f} pieces per character" in shown and "word" not in shown
    english = report(learn(["the mill and the river"] * 9, VocabularySettings(size=60)), ["the mill"])
    assert "pieces per word" in "\n".join(english.lines())
