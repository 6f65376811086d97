"""Vocabularies learned from the user's text.

The same text gives the same wordpiece and bpe vocabulary each time; a unigram one may differ where two pieces are
equally good, because its trainer sums in no fixed order.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertkit.errors import UserError, suggest
from bertkit.notify import note, track
from bertkit.text.checks import refuse_bad_text, tokenizer_panics
from bertkit.text.chinese_forms import add_simplifying
from bertkit.text.coverage import Survey, survey
from bertkit.text.load import configure_bert, dress_as_bytes
from bertkit.text.sentencepiece import albert_normalizer, dress_as_albert
from bertkit.text.template import BERT_PAIR, add_specials, set_roberta_template, set_template
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer


BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # and <mask> as the last piece
ALBERT_SPECIALS = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
SURVEYED = 20_000_000  # characters of a one-shot stream that choose the alphabet
ALPHABET, CHINESE_ALPHABET = 1000, 6000
MUCH_CHINESE = 0.1
TRAINERS_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class VocabularySettings:
    """How a vocabulary is learned from text: its size, algorithm and rules.

    kind: wordpiece (BERT), bpe (byte-level, RoBERTa) or unigram (ALBERT). size: maximum number of pieces, special
    tokens included. cased: keep case and accents. min_frequency: how often a piece must occur (not for unigram).
    alphabet_limit: maximum number of different characters (wordpiece only); 0 chooses 1000, or 6000 if at least
    a tenth of the text is Chinese. simplify: read traditional characters and full-width forms as simplified ones
    (wordpiece only).
    """

    kind: str = "wordpiece"
    size: int = 16000
    cased: bool = False
    min_frequency: int = 2
    alphabet_limit: int = 0
    simplify: bool = False


def learn(texts: Iterable[str], settings: VocabularySettings | None = None) -> Tokenizer:
    """Learn a vocabulary; memory grows only with the distinct words.

    Texts that can be read twice (a list, a dataset) are: first for their characters, then for their words. For a
    one-shot stream, the first 20 million characters choose the alphabet.
    """
    settings = settings or VocabularySettings()
    if settings.kind not in LEARNERS:
        raise UserError(f"There is no kind of vocabulary '{settings.kind}'. {suggest(settings.kind, list(LEARNERS))}")
    smallest = SMALLEST[settings.kind]
    if settings.size < smallest:
        raise UserError(
            f"A {settings.kind} vocabulary of {settings.size} pieces is too small. Use at least {smallest}."
        )
    if settings.simplify and settings.kind != "wordpiece":
        raise UserError(f"Only wordpiece vocabularies can simplify Chinese text, not {settings.kind}.")
    if isinstance(texts, str):
        raise UserError("Pass a list or stream of texts, not a single text: put it in a list.")
    if iter(texts) is texts:
        stream = _checked(texts, "learning the vocabulary")
        first = _first(stream, SURVEYED)
        seen, stream = survey(first), chain(first, stream)
    else:
        seen = survey(_checked(texts, "counting characters"))
        stream = _checked(texts, "learning the vocabulary")
    if not any(not char.isspace() for char in seen.counts):
        raise UserError("There is no text to learn a vocabulary from. Check the input files.")
    if not settings.alphabet_limit:
        settings = replace(settings, alphabet_limit=_alphabet_limit(seen, settings.kind))
    with tokenizer_panics("The vocabulary cannot be learned"):
        tokenizer = Tokenizer(LEARNERS[settings.kind](_batches(stream), settings, seen))
    if tokenizer.size < settings.size:
        note(f"The text gave {tokenizer.size} pieces, not {settings.size}: it is too short for more.")
    return tokenizer


def _learn_wordpiece(batches: Iterator[list[str]], settings: VocabularySettings, seen: Survey) -> tokenizers.Tokenizer:
    """Learn a WordPiece vocabulary."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=not settings.cased)
    if settings.simplify:
        add_simplifying(backend)
    configure_bert(backend)
    alphabet, inner = _alphabet(seen.normalized(backend.normalizer), settings)
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.min_frequency,
        # The trainer numbers the characters inside words in the order it meets them, which differs from run to run and
        # decides between equally frequent pieces. Listed here, they have fixed numbers.
        special_tokens=[*BERT_SPECIALS, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(batches, trainer)
    shape = json.loads(backend.to_str())
    shape["added_tokens"] = shape["added_tokens"][: len(BERT_SPECIALS)]
    backend = tokenizers.Tokenizer.from_str(json.dumps(shape))
    set_template(backend, BERT_PAIR, "[CLS]", "[SEP]")
    return backend


def _alphabet(seen: Survey, settings: VocabularySettings) -> tuple[list[str], list[str]]:
    """The most frequent characters for a new vocabulary, and '##' forms of those inside words."""
    ranked = sorted(seen.counts, key=lambda char: (-seen.counts[char], char))
    alphabet, inner, room = [], [], settings.size - len(BERT_SPECIALS)
    for char in ranked[: settings.alphabet_limit]:
        room -= 2 if char in seen.inside else 1
        if room < 0:
            break
        alphabet.append(char)
        inner += ["##" + char] if char in seen.inside else []
    lost = sum(seen.counts[char] for char in ranked[len(alphabet) :])
    if lost:
        note(
            f"{len(alphabet)} of {len(ranked)} different characters are kept; "
            f"the other, rarer ones make up {lost / seen.counts.total():.3%} of the text."
        )
    return sorted(alphabet), sorted(inner)


def _learn_bpe(batches: Iterator[list[str]], settings: VocabularySettings, seen: Survey) -> tokenizers.Tokenizer:
    """Learn a byte-level BPE vocabulary."""
    # Byte-level text keeps its case: RoBERTa has no normalizer, and its class in transformers supports none.
    if not settings.cased:
        note("A byte-level vocabulary always keeps case; 'cased' is set to true.")
    backend = tokenizers.Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    dress_as_bytes(backend)
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size - 1,
        min_frequency=settings.min_frequency,
        special_tokens=ROBERTA_SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(batches, trainer)
    shape = json.loads(backend.to_str())
    shape["model"]["vocab"]["<mask>"] = len(shape["model"]["vocab"])
    shape["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    backend = tokenizers.Tokenizer.from_str(json.dumps(shape))
    add_specials(backend, [*ROBERTA_SPECIALS, "<mask>"], eats_space=["<mask>"])
    set_roberta_template(backend, add_prefix_space=False)
    return backend


def _learn_unigram(batches: Iterator[list[str]], settings: VocabularySettings, seen: Survey) -> tokenizers.Tokenizer:
    """Learn a unigram vocabulary."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = albert_normalizer(lower=not settings.cased, keep_accents=settings.cased)
    dress_as_albert(backend)
    counts = seen.normalized(backend.normalizer).counts
    distinct = len(counts)
    if distinct + len(ALBERT_SPECIALS) + 1 > settings.size:
        raise UserError(
            f"The text has {distinct} different characters, and a unigram vocabulary must contain them all: "
            f"{settings.size} pieces are too few. Use --size {2 * distinct} or more, or the kind bpe."
        )
    trainer = trainers.UnigramTrainer(
        vocab_size=settings.size, special_tokens=ALBERT_SPECIALS, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(batches, trainer)
    shape = json.loads(backend.to_str())
    learned = shape["model"]["vocab"]
    specials = learned[: len(ALBERT_SPECIALS)]
    pieces = _settled(learned[len(specials) :], counts)
    shape["model"]["vocab"] = specials + pieces[: settings.size - len(specials)]
    backend = tokenizers.Tokenizer.from_str(json.dumps(shape))
    set_template(backend, BERT_PAIR, "[CLS]", "[SEP]")
    return backend


def _settled(pieces: list[list[Any]], counts: Counter[str]) -> list[list[Any]]:
    """A learnt vocabulary's pieces by decreasing score, without what differs from run to run. That is the last digits

    That is the last digits of each score (the order of summing), and the order of characters too rare to be learned,
    which the trainer adds with scores 0.0001 apart: here the more frequent come first.
    """
    phases = {piece: score / TRAINERS_STEP % 1 for piece, score in pieces if len(piece) == 1}
    usual = Counter(round(phase, 4) for phase in phases.values()).most_common(1)
    off = {char: abs(phase - usual[0][0]) for char, phase in phases.items()}
    rare = {char for char, distance in off.items() if min(distance, 1 - distance) < 2e-4}
    scores = sorted((score for piece, score in pieces if piece in rare), reverse=True)
    ranked = dict(zip(sorted(rare, key=lambda char: (-counts[char], char)), scores))
    settled = [[piece, round(ranked.get(piece, score), 6)] for piece, score in pieces]
    return sorted(settled, key=lambda entry: (-entry[1], entry[0]))


LEARNERS: dict[str, Callable[[Iterator[list[str]], VocabularySettings, Survey], tokenizers.Tokenizer]] = {
    "wordpiece": _learn_wordpiece,
    "bpe": _learn_bpe,
    "unigram": _learn_unigram,
}
# Special tokens (and all 256 bytes for bpe), with room for at least some pieces.
SMALLEST = {"wordpiece": 30, "bpe": 262, "unigram": 30}


def _checked(texts: Iterable[str], label: str) -> Iterator[str]:
    for row, text in enumerate(track(texts, label)):
        refuse_bad_text(text, f"Text {row}")
        yield text


def _first(stream: Iterator[str], characters: int) -> list[str]:
    """The first texts of a stream, up to a number of characters."""
    first = []
    while characters > 0 and (text := next(stream, None)) is not None:
        first.append(text)
        characters -= len(text)
    return first


def _alphabet_limit(seen: Survey, kind: str) -> int:
    """How many different characters a vocabulary keeps: more for Chinese."""
    if seen.chinese_share() < MUCH_CHINESE:
        return ALPHABET
    if kind == "wordpiece":
        note(f"Much of the text is Chinese: up to {CHINESE_ALPHABET} different characters are kept, not {ALPHABET}.")
    return CHINESE_ALPHABET


def _batches(stream: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(stream, 1000)):
        yield batch


# ---- Whole words added to a vocabulary, for texts of a domain the vocabulary has not seen.


def extended(tokenizer: Tokenizer, new_tokens: Sequence[str]) -> Tokenizer:
    """A tokenizer whose vocabulary has each of these words as one piece; old ids keep their meaning.

    The words go into the vocabulary itself, under the tokenizer's own rules (lower-cased where it lower-cases).
    Byte-level BPE also needs the steps that lead to a word, so it may grow by more than the words.
    """
    shape = copy.deepcopy(tokenizer.shape)
    words = [_one_word(tokenizer, token) for token in dict.fromkeys(new_tokens)]
    new = [
        word
        for word in dict.fromkeys(words)
        if len(tokenizer.pieces_batch([word])[0]) != 1 or _unknown(tokenizer, word)
    ]
    if len(new) < len(new_tokens):
        note(
            f"{len(new_tokens) - len(new)} of {len(new_tokens)} new tokens were already in the vocabulary or given "
            "twice."
        )
    next_id = tokenizer.size
    for word in sorted(new, key=len):  # a word that contains another is scored against it
        next_id = GROW[tokenizer.kind](tokenizer, shape["model"], word, next_id)
    grown = type(tokenizer)(tokenizers.Tokenizer.from_str(json.dumps(shape)), tokenizer.config)
    split = [word for word, pieces in zip(new, grown.pieces_batch(new)) if len(pieces) != 1]
    if split:
        raise UserError(f"These new tokens cannot be one piece each: {', '.join(split[:10])}. Leave them out.")
    return grown


def _one_word(tokenizer: Tokenizer, token: str) -> str:
    """The token that would extend a vocabulary, as the rules leave it. A byte-level word gets the space before it."""
    backend = tokenizer.backend
    word = token.strip()
    if backend.normalizer is not None:
        word = backend.normalizer.normalize_str(word).strip()
    if tokenizer.kind == "bpe":
        word = " " + word
    parts = [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(word)] if backend.pre_tokenizer else [word]
    if len(parts) != 1 or not word.strip():
        listing = ", ".join(parts) or "nothing"
        raise UserError(
            f"New token '{token}' is not one word: the tokenizer splits it into {listing}. "
            "Pass single words without spaces or punctuation."
        )
    return word


def _unknown(tokenizer: Tokenizer, word: str) -> bool:
    return tokenizer.unk_id is not None and tokenizer.unk_id in tokenizer.pieces_batch([word])[0]


def _grow_wordpiece(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    """Add a word to a WordPiece vocabulary."""
    model["vocab"][word] = next_id
    return next_id + 1


def _grow_bpe(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    """Add a word to a BPE vocabulary, with the merges that lead to it."""
    # New merges come last, so a text is first split into its old pieces, which are then joined from the left.
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.shape | {"model": model}))
    pieces = backend.encode(word, add_special_tokens=False).tokens
    joined = pieces[0]
    for right in pieces[1:]:
        model["merges"].append([joined, right])
        joined += right
        if joined not in model["vocab"]:
            model["vocab"][joined] = next_id
            next_id += 1
    return next_id


def _grow_unigram(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    """Add a word to a unigram vocabulary, with a score that wins."""
    # One more than its best score so far is enough to be preferred, and changes least for other words.
    model["vocab"].append(["▁" + word, _best_score(dict(model["vocab"]), "▁" + word) + 1])
    return next_id + 1


def _best_score(scores: dict[str, float], word: str) -> float:
    """The score of the best split of a word into pieces of the vocabulary, including words added before it."""
    unknown = min(scores.values()) - 10
    best = [0.0]
    for end in range(1, len(word) + 1):
        best.append(max(best[start] + scores.get(word[start:end], -math.inf) for start in range(end)))
        best[end] = max(best[end], best[end - 1] + unknown)
    return best[-1]


GROW: dict[str, Callable[[Tokenizer, dict[str, Any], str, int], int]] = {
    "wordpiece": _grow_wordpiece,
    "bpe": _grow_bpe,
    "unigram": _grow_unigram,
}
