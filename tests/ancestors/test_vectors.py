import gzip
import lzma
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.vectors.corpus import number, read_sentences, words_of
from bertkit.ancestors.vectors.evaluate import AnalogyCount, analogies, similarities
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.errors import DamagedFile, UserError

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
NAMES = ["king", "queen", "man", "woman", "Paris", "naïve", "银行", "don't"]


def some_vectors(count=8, width=7, seed=0):
    words = NAMES + [f"w{i}" for i in range(count - len(NAMES))]
    return WordVectors(words[:count], np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32))


def as_gensim(vectors):
    theirs = KeyedVectors(vectors.width)
    theirs.add_vectors(vectors.words, vectors.matrix)
    return theirs


@pytest.mark.parametrize("kind", ["binary", "text", "glove"])
@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_what_is_saved_comes_back_bit_for_bit(tmp_path, kind, ending):
    ours = some_vectors()
    ours.save(tmp_path / f"v.{'bin' if kind == 'binary' else 'txt'}{ending}", kind)
    again = WordVectors.load(next(tmp_path.iterdir()))
    assert again.words == ours.words
    assert np.array_equal(again.matrix, ours.matrix)


@pytest.mark.parametrize("binary", [True, False])
def test_gensim_opens_our_files_and_we_open_gensims(tmp_path, binary):
    ours = some_vectors(40, 11)
    path = tmp_path / ("v.bin" if binary else "v.txt")
    ours.save(path)
    theirs = KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert theirs.index_to_key == ours.words
    assert np.array_equal(theirs.vectors, ours.matrix)
    theirs.save_word2vec_format(str(path), binary=binary)
    back = WordVectors.load(path)
    assert back.words == ours.words
    np.testing.assert_allclose(back.matrix, ours.matrix, rtol=1e-6)


def test_gensim_opens_our_glove_files(tmp_path):
    ours = some_vectors()
    ours.save(tmp_path / "v.txt", "glove")
    theirs = KeyedVectors.load_word2vec_format(str(tmp_path / "v.txt"), binary=False, no_header=True)
    assert np.array_equal(theirs.vectors, ours.matrix)


def test_the_original_programs_files_with_line_ends_and_trailing_spaces_open(tmp_path):
    (tmp_path / "c.bin").write_bytes(
        b"2 2\na " + struct.pack("<2f", 1, 10) + b"\nb " + struct.pack("<2f", 3, 4) + b"\n"
    )
    (tmp_path / "c.txt").write_text("2 2\na 1 10 \nb 3 4 \n", encoding="utf-8")
    for name in ("c.bin", "c.txt"):
        vectors = WordVectors.load(tmp_path / name)
        assert vectors.words == ["a", "b"] and vectors.matrix.tolist() == [[1, 10], [3, 4]]


def test_a_value_that_looks_like_a_space_or_a_line_end_is_still_a_number(tmp_path):
    odd = np.frombuffer(b"    \n\n\n\n \n \n", np.float32).reshape(1, 3).copy()
    WordVectors(["a"], odd).save(tmp_path / "v.bin")
    assert np.array_equal(WordVectors.load(tmp_path / "v.bin").matrix, odd)


def test_large_binary_files_are_read_across_block_borders(tmp_path):
    ours = some_vectors(5000, 100)
    ours.save(tmp_path / "v.bin")
    assert np.array_equal(WordVectors.load(tmp_path / "v.bin").matrix, ours.matrix)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_do_worse_than_a_clear_error(tmp_path_factory, raw, header):
    folder = tmp_path_factory.mktemp("odd")
    for name in ("v.bin", "v.txt"):
        (folder / name).write_bytes((b"3 4\n" if header else b"") + raw)
        try:
            vectors = WordVectors.load(folder / name)
        except UserError as error:
            assert name in str(error)
        else:
            assert np.isfinite(vectors.matrix).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2 3\na 1 2 3\nb 1 2\n", "line 3"),
        ("a 1 2\nb 1 zwei\n", "line 2"),
        ("a 1 2\nb 1 nan\n", "line 2"),
        ("3 2\na 1 2\nb 1 2\n", "3 words, but it has 2"),
        ("1 99999999999\na 1\n", "99999999999 numbers"),
        ("word\n", "line 1"),
    ],
)
def test_a_bad_text_file_is_refused_with_the_line(tmp_path, text, said):
    (tmp_path / "v.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        WordVectors.load(tmp_path / "v.txt")


def test_a_truncated_binary_file_says_where_it_ends(tmp_path):
    some_vectors().save(tmp_path / "v.bin")
    whole = (tmp_path / "v.bin").read_bytes()
    (tmp_path / "v.bin").write_bytes(whole[:-9])
    with pytest.raises(DamagedFile, match="word 8 of 8"):
        WordVectors.load(tmp_path / "v.bin")
    (tmp_path / "w.bin.gz").write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(DamagedFile, match=r"w\.bin\.gz"):
        WordVectors.load(tmp_path / "w.bin.gz")


def test_a_huge_promise_in_the_first_line_takes_no_memory(tmp_path):
    (tmp_path / "v.bin").write_bytes(b"999999999999999 300\na 1234")
    with pytest.raises(DamagedFile, match="the file ends"):
        WordVectors.load(tmp_path / "v.bin")


def test_words_that_come_twice_are_reported(tmp_path, notes):
    (tmp_path / "v.txt").write_text("a 1 2\na 3 4\nb 5 6\n", encoding="utf-8")
    vectors = WordVectors.load(tmp_path / "v.txt")
    assert vectors.matrix.tolist() == [[1, 2], [5, 6]]
    assert any("more than once" in each for each in notes)


def test_words_with_spaces_cannot_be_saved_and_nothing_is_left_behind(tmp_path):
    with pytest.raises(UserError, match="new york"):
        WordVectors(["new york"], np.ones((1, 2), np.float32)).save(tmp_path / "v.txt")
    assert not list(tmp_path.iterdir())


def test_glove_words_with_spaces_inside_are_read(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\n. . . 3 4\n", encoding="utf-8")
    assert WordVectors.load(tmp_path / "v.txt").words == ["a", ". . ."]


def test_neighbours_similarity_and_analogies_agree_with_gensim():
    ours = some_vectors(200, 12)
    theirs = as_gensim(ours)
    for word in ("king", "银行", "w30"):
        expected = theirs.most_similar(word, topn=8)
        found = ours.neighbours(word, 8)
        assert [each for each, _ in found] == [each for each, _ in expected]
        np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-5)
    assert ours.similarity("man", "w7") == pytest.approx(float(theirs.similarity("man", "w7")), abs=1e-5)
    expected = theirs.most_similar(positive=["queen", "man"], negative=["king"], topn=5)
    assert [each for each, _ in ours.analogy("king", "queen", "man", 5)] == [each for each, _ in expected]


def test_asking_for_more_neighbours_than_words_gives_all_the_others():
    vectors = some_vectors(5)
    assert sorted(word for word, _ in vectors.neighbours("king", 99)) == sorted(vectors.words[1:])
    assert vectors.neighbours("king", 0) == []


def test_an_unknown_word_is_named_with_the_nearest_known_one():
    with pytest.raises(UserError, match=r"'quen'.*'queen'"):
        some_vectors().vector("quen")


def test_the_mean_of_a_text_is_over_its_known_words_in_any_case():
    vectors = some_vectors()
    expected = (vectors.vector("king") + vectors.vector("Paris") + vectors.vector("don't")) / 3
    np.testing.assert_allclose(vectors.mean_of("King, zzz – Paris! DON'T."), expected, rtol=1e-6)
    assert not vectors.mean_of("nothing known").any()
    np.testing.assert_allclose(vectors.mean_of("我去银行", units="jieba"), vectors.vector("银行"))


def test_sentences_are_lines_of_words_without_punctuation(tmp_path):
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress("The cat's here: 3 mice!\n…\n\nB.\n".encode()))
    assert list(read_sentences(tmp_path / "t.txt.gz")) == [["the", "cat's", "here", "3", "mice"], ["b"]]
    assert words_of("我们去银行。", "jieba") == ["我们", "去", "银行"]


def test_numbering_keeps_every_frequent_word_in_its_sentence():
    rng = np.random.default_rng(0)
    text = [[f"w{i}" for i in rng.geometric(0.1, rng.integers(0, 12))] for _ in range(300)]
    corpus = number(iter(text), 5)
    sentences = [[corpus.names[w] for w in corpus.words[b:e]] for b, e in pairwise(corpus.ends)]
    known = set(corpus.names)
    wanted = [[word for word in sentence if word in known] for sentence in text]
    assert sentences == [sentence for sentence in wanted if sentence]
    assert corpus.counts.tolist() == sorted(corpus.counts.tolist(), reverse=True)
    assert corpus.counts.min() >= 5 and corpus.read == sum(map(len, text))


def test_a_text_without_line_ends_becomes_many_sentences():
    corpus = number([["a", "b"] * 12_500], 1)
    assert np.diff(corpus.ends).tolist() == [10_000, 10_000, 5_000]


def test_strings_in_place_of_sentences_and_too_little_text_are_refused():
    with pytest.raises(UserError, match="list of words"):
        number(["the cat"], 1)
    with pytest.raises(UserError, match="min_count"):
        number([["a", "b", "a"]], 2)


def questions_file(folder):
    rng = np.random.default_rng(1)
    lines = [": first"] + [" ".join(f"w{i}" for i in rng.integers(0, 30, 4)) for _ in range(40)]
    lines += [": second one"] + [" ".join(f"w{i}" for i in rng.integers(0, 60, 4)) for _ in range(40)]
    (folder / "q.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder / "q.txt"


def test_analogy_scores_agree_with_gensim(tmp_path):
    # In two dimensions random questions are often answered by chance, so the agreement is no agreement on nothing.
    ours = WordVectors([f"w{i}" for i in range(35)], np.random.default_rng(3).standard_normal((35, 2)))
    path = questions_file(tmp_path)
    found = analogies(ours, path)
    _, sections = as_gensim(ours).evaluate_word_analogies(str(path), case_insensitive=False)
    for section in sections[:-1]:
        correct, wrong = len(section["correct"]), len(section["incorrect"])
        assert found[section["section"]] == AnalogyCount(40, correct + wrong, correct)
    assert found["total"].correct > 0
    assert found["total"].asked == 80 and 0 < found["total"].coverage < 1


def test_similarity_scores_agree_with_gensim(tmp_path):
    ours = some_vectors(30)
    rng = np.random.default_rng(2)
    rows = [f"w{rng.integers(0, 40)}\tw{rng.integers(0, 40)}\t{rng.integers(0, 10)}" for _ in range(60)]
    (tmp_path / "s.tsv").write_text("# head\n" + "\n".join(rows), encoding="utf-8")
    found = similarities(ours, tmp_path / "s.tsv")
    _, spearman, unknown = as_gensim(ours).evaluate_word_pairs(str(tmp_path / "s.tsv"), case_insensitive=False)
    assert found.spearman == pytest.approx(spearman.statistic, abs=1e-5)
    assert 100 * (1 - found.coverage) == pytest.approx(unknown)


def test_a_bad_line_of_a_test_set_is_named(tmp_path):
    (tmp_path / "q.txt").write_text(": a\nw1 w2 w3\n", encoding="utf-8")
    (tmp_path / "s.txt").write_text("w1 w2 high\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2"):
        analogies(some_vectors(), tmp_path / "q.txt")
    with pytest.raises(UserError, match="line 1"):
        similarities(some_vectors(), tmp_path / "s.txt")


@pytest.mark.parametrize(
    ("name", "count"), [("questions-words.txt", 19544), ("ca8_semantic.txt", None), ("ca8_morphological.txt", None)]
)
def test_real_analogy_files_are_read_whole(shared_data, name, count):
    path = shared_data / "vectors" / f"{name}.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip() and not line.startswith(":")]
    vectors = WordVectors(sorted({line[0].lower() for line in lines}), np.eye(len({line[0].lower() for line in lines})))
    assert analogies(vectors, path)["total"].asked == (count or len(lines))


@pytest.mark.parametrize(("name", "count"), [("simlex999.txt", 999), ("wordsim353.tsv", 353), ("men3k.txt", 3000)])
def test_real_similarity_files_are_read_whole(shared_data, name, count):
    assert similarities(some_vectors(), shared_data / "vectors" / f"{name}.xz").pairs == count
