import itertools
import lzma
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.hmm import HmmSettings, HmmTagger, interpolated, shape
from bertkit.errors import DamagedFile, UserError

DATA = Path(__file__).resolve().parents[2] / "../shared/data"


def random_language(seed, sentences=60, tags=4):
    rng = random.Random(seed)
    follow = {pair: rng.choices(range(tags), k=2) for pair in itertools.product(range(tags + 1), repeat=2)}
    words, answers = [], []
    for _ in range(sentences):
        path = [tags, tags]
        for _ in range(rng.randint(1, 7)):
            path.append(rng.choice(follow[path[-2], path[-1]]) if rng.random() < 0.9 else rng.randrange(tags))
        # A word belongs to one or two tags, and its ending hints at the tag.
        words.append([f"{rng.choice('abc')}{tag if rng.random() < 0.8 else rng.randrange(tags)}" for tag in path[2:]])
        answers.append([f"T{tag}" for tag in path[2:]])
    return words, answers


def plain_transitions(answers, tags):
    """Brants' deleted interpolation with dictionaries. Border tags are None."""
    three, two, one, history, context = (Counter() for _ in range(5))
    for path in answers:
        path = [None, None, *path, None]
        for a, b, c in zip(path, path[1:], path[2:]):
            three[a, b, c] += 1
            two[b, c] += 1
            one[c] += 1
            history[b] += 1
            context[a, b] += 1
    total = sum(one.values())
    votes = [1, 1, 1]
    for (a, b, c), count in three.items():
        left_out = [
            (one[c] - 1) / (total - 1) if total > 1 else 0,
            (two[b, c] - 1) / (history[b] - 1) if history[b] > 1 else 0,
            (count - 1) / (context[a, b] - 1) if context[a, b] > 1 else 0,
        ]
        votes[left_out.index(max(left_out))] += count
    weights = [vote / sum(votes) for vote in votes]

    def prob(a, b, c):
        single = one[c] / total
        pair = two[b, c] / history[b] if history[b] else single
        triple = three[a, b, c] / context[a, b] if context[a, b] else pair
        return weights[0] * single + weights[1] * pair + weights[2] * triple

    states = [*tags, None]
    return {(a, b, c): prob(a, b, c) for a in states for b in states for c in states}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), tags=st.integers(1, 4), size=st.integers(1, 60))
def test_the_best_and_the_share_of_all_tag_sequences_are_found(seed, tags, size):
    words, answers = random_language(seed, size, tags)
    tagger = HmmTagger().fit(words, answers)
    moves = plain_transitions(answers, tagger.tags)
    known = Counter((word, tag) for w, a in zip(words, answers) for word, tag in zip(w, a))
    seen, often = {word for word, _ in known}, Counter(tag for a in answers for tag in a)

    def weigh(sentence, path):
        steps = [None, None, *path, None]
        total = sum(math.log(moves[abc]) for abc in zip(steps, steps[1:], steps[2:]))
        for place, (word, tag) in enumerate(zip(sentence, path)):
            if word in seen:
                total += math.log(known[word, tag] / often[tag]) if known[word, tag] else -math.inf
            else:
                ids, logs = tagger.emissions(word, place == 0)
                total += dict(zip(ids.tolist(), logs.tolist()))[tagger.tags.index(tag)]
        return total

    rng = random.Random(seed)
    for sentence in ([*rng.choice(words)[:4], "zz9"], rng.choice(words)[:5], ["q", "Xy-7"]):
        found = tagger.tag([sentence])[0]
        paths = {path: weigh(sentence, path) for path in itertools.product(tagger.tags, repeat=len(sentence))}
        assert weigh(sentence, found) == pytest.approx(max(paths.values()), rel=1e-9)
        whole = np.logaddexp.reduce(list(paths.values()))
        for place, shares in enumerate(tagger.log_shares(sentence)):
            for tag, share in zip(tagger.tags, shares):
                of_all = np.logaddexp.reduce([w for path, w in paths.items() if path[place] == tag])
                assert math.exp(share) == pytest.approx(math.exp(of_all - whole), abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), states=st.integers(2, 6))
def test_transitions_out_of_any_pair_of_tags_sum_to_one(seed, states):
    counts = np.random.default_rng(seed).poisson(0.5, (states,) * 3)
    counts[0, 0, 0] += 1
    prob = interpolated(counts)
    assert np.allclose(prob.sum(2), 1)


def test_an_unknown_word_is_judged_by_its_ending_and_shape():
    sentences = [["she", "is", f"{stem}ing"] for stem in ("walk", "read", "go", "eat")] * 2
    sentences += [["she", "sees", f"{stem}ness"] for stem in ("kind", "sad", "dark", "ill")] * 2
    sentences += [["she", "sees", name] for name in ("Ada", "Bo", "Cy", "Di")] * 2
    tags = [["P", "V", {"ng": "G", "ss": "N"}.get(words[-1][-2:], "NAME")] for words in sentences]
    tagger = HmmTagger().fit(sentences, tags)
    assert tagger.tag([["she", "is", "juggling"], ["she", "sees", "boldness"], ["she", "sees", "Eve"]]) == [
        ["P", "V", "G"], ["P", "V", "N"], ["P", "V", "NAME"],
    ]  # fmt: skip
    ids, logs = tagger.emissions("hopping")
    assert len(ids) == len(tagger.tags) and tagger.tags[int(logs.argmax())] == "G"


def test_shapes_name_what_a_word_looks_like():
    words = {
        "word": "",
        "Word": "capital",
        "NATO": "capitals capital",
        "B-5": "digit hyphen capitals capital",
        "7": "digit",
    }
    words |= {"中文": "ideograph", "well-known": "hyphen", "-": "", "Übung": "capital", "über": "", "_x": ""}
    assert {word: shape(word) for word in words} == words


def test_a_capital_at_the_start_of_a_sentence_does_not_make_a_word_unknown():
    tagger = HmmTagger().fit([["a", "dog", "barks"], ["Rex", "barks"]] * 3, [["D", "N", "V"], ["X", "V"]] * 3)
    assert tagger.tag([["Dog", "barks"]]) == [["N", "V"]]


def test_a_synthetic_language_is_learnt_better_than_by_its_most_frequent_tags():
    words, answers = random_language(5, 1500)
    tagger = HmmTagger().fit(words[:1200], answers[:1200])
    often = {}
    for w, a in zip(words[:1200], answers[:1200]):
        for word, tag in zip(w, a):
            often.setdefault(word, Counter())[tag] += 1
    pairs = list(zip(words[1200:], answers[1200:], tagger.tag(words[1200:])))
    by_path = sum(x == y for _, a, found in pairs for x, y in zip(a, found))
    by_word = sum(often[word].most_common(1)[0][0] == tag for w, a, _ in pairs for word, tag in zip(w, a))
    assert by_path > by_word * 1.03


def test_a_wide_beam_changes_nothing_and_a_narrow_one_stays_a_tagging():
    words, answers = random_language(6, 200)
    tagger = HmmTagger().fit(words, answers)
    exact = tagger.tag(words)
    tagger.settings = HmmSettings(beam=1e30)
    assert tagger.tag(words) == exact
    tagger.settings = HmmSettings(beam=1)
    assert [len(path) for path in tagger.tag(words)] == [len(w) for w in words]


def test_a_saved_tagger_is_the_same_tagger(tmp_path):
    words, answers = random_language(7)
    tagger = HmmTagger(HmmSettings(longest_suffix=3, rare=2)).fit(words, answers)
    tagger.save(tmp_path)
    again = HmmTagger.load(tmp_path)
    texts = [*words, ["unheard", "of"], []]
    assert again.tag(texts) == tagger.tag(texts) and again.settings == tagger.settings
    (tmp_path / "hmm.npz").write_bytes(b"nothing")
    with pytest.raises(DamagedFile):
        HmmTagger.load(tmp_path)
    with pytest.raises(UserError, match=r"hmm\.json"):
        HmmTagger.load(tmp_path / "elsewhere")


def test_mistakes_are_reported():
    with pytest.raises(UserError, match="Sentence 2 has 1 words but 2 tags"):
        HmmTagger().fit([["a"], ["b"]], [["X"], ["X", "Y"]])
    with pytest.raises(UserError, match="not been trained"):
        HmmTagger().tag([["a"]])
    with pytest.raises(UserError, match="0 different tags"):
        HmmTagger().fit([], [])


def read_conllu(path):
    with lzma.open(path, "rt", encoding="utf-8") as file:
        blocks = file.read().strip().split("\n\n")
    rows = [[line.split("\t") for line in block.split("\n") if line[0].isdigit()] for block in blocks]
    rows = [[row for row in block if row[0].isdigit()] for block in rows]
    return [[row[1] for row in block] for block in rows], [[row[3] for row in block] for block in rows]


def test_english_parts_of_speech_are_tagged_nine_times_out_of_ten():
    folder = DATA / "tagging/ud_ewt"
    if not folder.exists():
        pytest.skip("the shared treebank is not here")
    words, answers = read_conllu(folder / "dev.conllu.xz")
    tagger = HmmTagger().fit(*read_conllu(folder / "train.conllu.xz"))
    pairs = [(x, y) for a, found in zip(answers, tagger.tag(words)) for x, y in zip(a, found)]
    assert sum(x == y for x, y in pairs) / len(pairs) > 0.92
