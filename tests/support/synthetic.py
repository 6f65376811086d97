"""A small made-up language with known structure: what every model should be able to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertkit.data.store import Store

SUBJECTS = ("the cat", "the dog", "a bird", "the old king", "my sister", "the teacher")
COMMANDS = {"sees": "saw", "likes": "liked", "finds": "found", "hears": "heard"}
OBJECTS = ("a fish", "the river", "an apple", "the small house", "a red stone", "the moon")
TIMES = {"today": 0, "yesterday": 1}


def document(chance: np.random.Generator, sentences: int) -> str:
    """Sentences about one subject; the verb's tense follows the word of time at the front."""
    subject = SUBJECTS[chance.integers(len(SUBJECTS))]
    lines = []
    for _ in range(sentences):
        time = list(TIMES)[chance.integers(2)]
        verb = list(COMMANDS)[chance.integers(len(COMMANDS))]
        word = COMMANDS[verb] if TIMES[time] else verb
        lines.append(f"{time.capitalize()} {subject} {word} {OBJECTS[chance.integers(len(OBJECTS))]}.")
    return " ".join(lines)


def text(documents: int = 120, seed: int = 0) -> list[str]:
    chance = np.random.default_rng(seed)
    return [document(chance, int(chance.integers(3, 14))) for _ in range(documents)]


def write_text(path: Path, documents: int = 120, seed: int = 0) -> Path:
    path.write_text("\n\n".join(text(documents, seed)) + "\n", "utf-8")
    return path


def make_store(folder: Path, documents: int = 120, kind: str = "wordpiece") -> Store:
    """Text, a vocabulary of its own, and the store of both."""
    from bertkit.commands import prepare
    from bertkit.text.vocabulary import VocabularySettings, learn

    source = write_text(folder / f"text-{kind}.txt", documents)
    learn(text(documents), VocabularySettings(kind=kind, size=400)).save(folder / f"tokenizer-{kind}", 512)
    prepare.run(
        prepare.Settings(
            texts=(source,), tokenizer=str(folder / f"tokenizer-{kind}"), out=folder / f"store-{kind}", workers=1
        )
    )
    return Store.open(folder / f"store-{kind}")
