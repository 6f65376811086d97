import gzip
import random
import re

import pytest

from bertkit.ancestors.ngram.arpa import read_arpa, write_arpa
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
from bertkit.errors import DamagedFile, UserError

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ate", "it", "."]
TEXTS = [" ".join(random.Random(i).choices(WORDS, k=9)) for i in range(80)]


def parse(path):
    """The format as its description has it, read with nothing of ours: {words: (log10 p, back-off)}."""
    announced, table, order = {}, {}, 0
    for line in path.read_text(encoding="utf-8").split("\n"):
        if found := re.match(r"ngram (\d+)=(\d+)$", line):
            announced[int(found[1])] = int(found[2])
        elif found := re.match(r"\\(\d+)-grams:$", line):
            order = int(found[1])
        elif order and "\t" in line:
            prob, words, *weight = line.split("\t")
            key = tuple(words.split(" "))
            assert len(key) == order and key not in table
            table[key] = (float(prob), float(weight[0]) if weight else 0.0)
    assert {k: sum(len(key) == k for key in table) for k in announced} == announced
    return table


def back_off_log10(table, words):
    """Katz look-up: the longest n-gram there is, and the weights of the contexts left behind."""
    if words in table:
        return table[words][0]
    return table.get(words[:-1], (0, 0.0))[1] + back_off_log10(table, words[1:])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_an_independent_reader_finds_the_same_probabilities(tmp_path, order):
    model = NgramModel(NgramSettings(order=order, min_count=2)).fit([*TEXTS, "a hapax"])
    write_arpa(model, tmp_path / "a.arpa")
    table = parse(tmp_path / "a.arpa")
    assert sum(len(key) == 1 for key in table) == len(model.words)
    rng = random.Random(order)
    for _ in range(50):
        context = ["<s>"] * rng.randint(0, 1) + rng.choices([*model.words[3:], "<unk>"], k=rng.randint(0, order))
        prob = model.probability(context)
        tail = tuple(context)[max(0, len(context) - order + 1) :]
        for i, word in enumerate(model.words):
            if word != "<s>":
                assert prob[i] == pytest.approx(10 ** back_off_log10(table, (*tail, word)), rel=1e-4)


@pytest.mark.parametrize("name", ["a.arpa", "a.arpa.gz", "a.arpa.xz"])
def test_a_model_written_and_read_scores_alike(tmp_path, name):
    model = NgramModel(NgramSettings(order=4, min_count=1)).fit(TEXTS)
    write_arpa(model, tmp_path / name)
    again = read_arpa(tmp_path / name)
    assert again.ngrams == model.ngrams and again.settings.order == 4
    assert again.score(TEXTS[:20]) == pytest.approx(model.score(TEXTS[:20]), rel=1e-6)
    write_arpa(again, tmp_path / "b.arpa")
    write_arpa(read_arpa(tmp_path / "b.arpa"), tmp_path / "c.arpa")
    assert (tmp_path / "b.arpa").read_bytes() == (tmp_path / "c.arpa").read_bytes()


def test_a_character_model_keeps_its_spaces(tmp_path):
    settings = NgramSettings(order=3, min_count=1, units="characters")
    model = NgramModel(settings).fit(["a cat sat", "春 晓\u3000处"])
    write_arpa(model, tmp_path / "a.arpa")
    parse(tmp_path / "a.arpa")
    again = read_arpa(tmp_path / "a.arpa", settings)
    assert again.words == model.words
    assert again.score(["a sat 春\u3000"]) == pytest.approx(model.score(["a sat 春\u3000"]), rel=1e-6)


def test_orders_without_an_ngram_are_not_announced(tmp_path):
    model = NgramModel(NgramSettings(order=6, min_count=1)).fit(["a", "a b"])
    write_arpa(model, tmp_path / "a.arpa")
    assert {len(key) for key in parse(tmp_path / "a.arpa")} == {1, 2, 3, 4}
    assert read_arpa(tmp_path / "a.arpa").score(["b a b"]) == pytest.approx(model.score(["b a b"]), rel=1e-6)


def test_kenlm_agrees(tmp_path):
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    model = NgramModel(NgramSettings(order=3, min_count=1)).fit(TEXTS)
    write_arpa(model, tmp_path / "a.arpa")
    judge = kenlm.Model(str(tmp_path / "a.arpa"))
    for text in TEXTS[:20]:
        assert judge.score(text) * 2.302585 == pytest.approx(model.score([text])[0], rel=1e-4)


FOREIGN = """written by another tool

\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-99 <s> -0.3
-0.5 </s>
-0.7 cat -0.2
-0.4 the -0.1

\\2-grams:
-0.2 the cat
-0.1 <s> the

\\end\\
"""


def test_a_file_with_spaces_no_unknown_word_and_any_order_is_read(tmp_path):
    (tmp_path / "a.arpa").write_text(FOREIGN)
    model = read_arpa(tmp_path / "a.arpa", NgramSettings(cased=False))
    ln10 = 2.302585092994046
    assert model.score(["The cat"])[0] == pytest.approx((-0.1 - 0.2 + (-0.2 - 0.5)) * ln10, rel=1e-5)
    assert model.probability(["cat"])[model.ids["<unk>"]] < 1e-90


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("ngram 2=2", "ngram 2=3", "3 of order 2|2 of the 3|n-gram 3"),
        ("-0.7 cat -0.2", "-0.7 cat -0.2 9 9", "line 10"),
        ("-0.7 cat -0.2", "x cat -0.2", "line 10"),
        ("-0.2 the cat", "-0.2 the dog", "the dog"),
        ("-0.2 the cat", "-0.1 <s> the", "twice"),
        ("\\2-grams:", "\\3-grams:", "3-grams"),
        ("\\2-grams:\n-0.2 the cat\n-0.1 <s> the\n", "", "1 of 2"),
        ("\\data\\\nngram 1=4\nngram 2=2", "", "1-grams"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path, old, new, told):
    assert old in FOREIGN
    (tmp_path / "a.arpa").write_text(FOREIGN.replace(old, new))
    with pytest.raises(DamagedFile, match=told):
        read_arpa(tmp_path / "a.arpa")


def test_an_absent_or_truncated_file_is_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "a.arpa.gz").write_bytes(gzip.compress(FOREIGN.encode())[:-30])
    with pytest.raises(DamagedFile, match=r"a\.arpa\.gz"):
        read_arpa(tmp_path / "a.arpa.gz")
