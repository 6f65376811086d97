"""Texts and tokenizers to prepare, and what plain Python makes of them."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from bertkit.data.store import Store
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.text.words import is_cjk, segment, split_sentences

ENGLISH = [
    "The cat sat on the mat.",
    "A dog ran home!",
    "Mr. Smith paid 3.50 for it.",
    'She said: "no".',
    "Café déjà vu?",
]
CHINESE = ["我来到北京清华大学。", "今天天气很好！", "他买了三本书，花了20元。", "机器学习很有意思；"]
MIXED = ["我用iPhone手机上网。", "T恤 is a shirt.", "卡拉OK在city中心！", "北京 (Beijing) is large."]
KINDS = {
    "cased": ("wordpiece", True),
    "uncased": ("wordpiece", False),
    "bytes": ("bpe", True),
    "unigram": ("unigram", False),
}


@cache
def small_tokenizers() -> dict[str, Tokenizer]:
    text = (ENGLISH + CHINESE + MIXED) * 3
    return {
        name: learn(text, VocabularySettings(kind=kind, size=400, cased=cased, min_frequency=1))
        for name, (kind, cased) in KINDS.items()
    }


def written(folder: Path, texts: list[str], name: str = "text.txt") -> Path:
    (folder / name).write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return folder / name


def plainly(texts: list[str], tokenizer: Tokenizer) -> list[list[tuple[list[int], list[int]]]]:
    """The documents of a store made with BERT's rules, one sentence and one token at a time."""
    documents, seen = [], set()
    for text in texts:
        key = text.split()
        if tuple(key) in seen:
            continue
        seen.add(tuple(key))
        sentences = []
        for line in text.split("\n"):
            for sentence in split_sentences(line):
                encoding = tokenizer.backend.encode(sentence, add_special_tokens=False)
                first_characters = [start for start, _ in segment(sentence)]
                starts = []
                for piece, (start, _) in zip(encoding.tokens, encoding.offsets):
                    whole = not is_cjk(sentence[start]) or start in first_characters
                    starts.append(int(not piece.startswith("##") and whole))
                sentences.append((encoding.ids, starts))
        documents.append(sentences)
    return documents


def read_back(store: Store) -> list[list[tuple[list[int], list[int]]]]:
    sentences = []
    for first, last in zip(store.document_starts[:-1], store.document_starts[1:]):
        bounds = store.sentence_starts[first : last + 1]
        sentences.append([(store.ids[a:b].tolist(), store.word_starts[a:b].tolist()) for a, b in pairwise(bounds)])
    return sentences


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the report, which tells the seconds it took."""
    inside = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "report.txt"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in inside}


def made_up(megabytes: float, seed: int = 0) -> Iterator[str]:
    """Documents of a few hundred words each, all different."""
    rng = np.random.default_rng(seed)
    words = np.array(["".join(rng.choice(list("abcdefgh"), rng.integers(2, 9))) for _ in range(5000)])
    size = 0
    while size < megabytes * 1e6:
        document = ". ".join(" ".join(sentence).capitalize() for sentence in rng.choice(words, (12, 15))) + "."
        size += len(document)
        yield document
