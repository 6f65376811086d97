"""Metrics of extracted answers, by the official rules of SQuAD 1.1/2.0 and CMRC 2018."""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from bertkit.errors import UserError
from bertkit.metrics.tally import Array, Measures, Scores, Tally, check_same_length, score, share
from bertkit.text.words import HAN, KANA

_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# The marks CMRC 2018 removes before it compares; others, such as % and the decimal point, count.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_BY_CHARACTER = KANA + HAN
_HAN = re.compile(f"[{_BY_CHARACTER}]")
# A single character, a complete Latin word or number (3.5, don't), or any other single mark.
_MIXED = re.compile(rf"[{_BY_CHARACTER}]|[^\W_{_BY_CHARACTER}]+(?:[.,'][^\W_{_BY_CHARACTER}]+)*|\S")


def answers(gold: Sequence[Sequence[str]], predicted: Sequence[str], *, chinese: bool | str = "auto") -> Scores:
    """Metrics of answers to questions, f1 and exact: the best over a question's gold answers, averaged over questions.

    For a question without gold answers (none, or empty ones), "" is right and everything else wrong. When such
    questions occur, f1 and exact of the answerable ones and the accuracy on the others follow.
    English: lower case, no punctuation, no articles; f1 from words in common (SQuAD). Chinese: no punctuation,
    by character with Latin words and numbers whole; f1 from the longest common run (CMRC 2018).
    "auto" takes the Chinese rules when at least half of the gold answers contain a Chinese character.
    """
    return score(answers_tallies(gold, predicted, chinese=chinese))


def answers_tallies(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], *, chinese: bool | str = "auto"
) -> list[Tally]:
    """The tally that `answers` is computed from."""
    check_same_length(gold, predicted, "answers")
    if chinese not in (True, False, "auto"):
        raise UserError(f"chinese={chinese!r} is not a choice. Use True, False or 'auto'.")
    for number, options in enumerate(gold, 1):
        if isinstance(options, str):
            raise UserError(
                f"Question {number}: its gold answers are the text {options!r}. Give a list: [{options!r}]."
            )
    compare = _compare_chinese if (is_chinese(gold) if chinese == "auto" else chinese) else _compare_english
    clean = clean_chinese if compare is _compare_chinese else clean_english
    columns = np.zeros((len(gold), 3))
    for row, (options, answer) in enumerate(zip(gold, predicted)):
        real = [option for option in options if clean(option)]
        f1, exact = zip(*(compare(option, answer) for option in real or [""]))
        columns[row] = max(f1), max(exact), bool(real)
    return [Tally(columns, _answer_measures if not columns[:, 2].all() else _always_answered)]


def _always_answered(columns: Array, weights: Array) -> Measures:
    f1, exact, _ = (weights @ columns).T
    return {"f1": share(f1, weights.sum(1)), "exact": share(exact, weights.sum(1))}


def _answer_measures(columns: Array, weights: Array) -> Measures:
    """F1 and exact match of extracted answers, with and without an answer in the text."""
    with_answer = weights * columns[:, 2]
    f1, exact, answerable = (with_answer @ columns).T
    _, unanswered, _ = ((weights - with_answer) @ columns).T
    measures = {
        "f1_answerable": share(f1, answerable, otherwise=np.nan),
        "exact_answerable": share(exact, answerable, otherwise=np.nan),
        "accuracy_unanswerable": share(unanswered, weights.sum(1) - answerable, otherwise=np.nan),
    }
    return _always_answered(columns, weights) | measures


def is_chinese(gold: Sequence[Sequence[str]]) -> bool:
    """Whether at least half of the gold answers contain a Chinese (or Japanese) character."""
    texts = [option for options in gold for option in options if option]
    return bool(texts) and 2 * sum(bool(_HAN.search(text)) for text in texts) >= len(texts)


def clean_english(text: str) -> str:
    """The text as SQuAD compares it: lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split())


def clean_chinese(text: str) -> str:
    """The text as CMRC 2018 compares it: lower case, no punctuation."""
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


def _compare_english(gold: str, answer: str) -> tuple[float, float]:
    return _compare(clean_english(gold), clean_english(answer), str.split, _words_in_common)


def _compare_chinese(gold: str, answer: str) -> tuple[float, float]:
    return _compare(clean_chinese(gold), clean_chinese(answer), _MIXED.findall, _longest_common_run)


def _compare(
    gold: str, answer: str, split: Callable[[str], list[str]], shared: Callable[[list[str], list[str]], int]
) -> tuple[float, float]:
    """(f1, exact) of one predicted answer against one gold answer, both cleaned."""
    exact = float(gold == answer)
    left, right = split(gold), split(answer)
    return 2 * shared(left, right) / (len(left) + len(right)) if left and right else exact, exact


def _words_in_common(left: list[str], right: list[str]) -> int:
    return (Counter(left) & Counter(right)).total()


def _longest_common_run(left: list[str], right: list[str]) -> int:
    """The length of the longest common run of pieces, as CMRC 2018 scores answers."""
    places = defaultdict(list)
    for place, piece in enumerate(right):
        places[piece].append(place)
    longest, ending = 0, {-1: 0}
    for piece in left:
        ending = {place: ending.get(place - 1, 0) + 1 for place in places[piece]}
        longest = max(longest, *ending.values(), 0)
    return longest
