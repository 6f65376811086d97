"""A teacher's states of every word of a store, computed once: reduced, in int8, in a folder beside the store.

Computed at every step, a teacher costs about as much as the student. From the second pass over the text on, reading
its states from the disk costs next to nothing. Each layer's states are projected on their main directions (PCA), and
each word's numbers are stored as int8 with their own scale: 128 numbers per layer are 128 bytes.

| file | content |
|---|---|
| cache.json | its source, and every file's size and SHA-256; written last, so a folder without it is unfinished |
| basis.safetensors | mean (layers, width) and directions (layers, numbers, width) |
| words.bin | int64 (sentences + 1): the number of the first word of each sentence |
| states.bin | int8 (words, layers, numbers) |
| scales.bin | float16 (words, layers): 0 where the teacher has no state |

The work is done batch by batch in bounded memory. If killed, it continues after the last complete batch.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save
from torch import Tensor

from bertkit.data.packing import Example, FullSentences
from bertkit.data.store import Store
from bertkit.errors import DamagedFile, UserError
from bertkit.files.atomic import atomic_write, explained, require_space
from bertkit.files.lock import RunLock
from bertkit.files.manifest import facts_of
from bertkit.inference.teacher import WordsOfPieces, WordTeacher
from bertkit.notify import note, status

FORMAT = 1
BATCH = 8192  # tokens the teacher reads at once
SAMPLE = 64  # batches from which the main directions are computed
FLUSH = 64  # batches between two restart points


class WordCache:
    """An open cache of a teacher's word states; called like a teacher, it reads what the teacher computed."""

    def __init__(self, folder: Path, store: Store, words: WordsOfPieces) -> None:
        """Use `open_cache`, which makes and checks the folder."""
        facts = json.loads((folder / "cache.json").read_bytes())
        self.store, self.words, self.width = store, words, int(facts["width"])
        basis = load_file(folder / "basis.safetensors")
        self.mean, self.directions = torch.from_numpy(basis["mean"]), torch.from_numpy(basis["directions"])
        layers, numbers, _ = self.directions.shape
        self.first = np.memmap(folder / "words.bin", np.int64, "r")
        self.scales = np.memmap(folder / "scales.bin", np.float16, "r").reshape(-1, layers)
        self.states = np.memmap(folder / "states.bin", np.int8, "r").reshape(-1, layers, numbers)

    def __call__(self, examples: Sequence[Example]) -> tuple[np.ndarray, Tensor]:
        """The word of every token (tokens,), and the words' states (words, layers, width), as a WordTeacher gives."""
        numbers = np.concatenate([self._words_of(example) for example in examples])
        words, owner = np.unique(numbers, return_inverse=True)
        words, shift = (words[1:], 1) if len(words) and words[0] < 0 else (words, 0)
        scales = np.asarray(self.scales[words], np.float32)
        known = scales.any(1)
        place = np.append(np.full(shift, known.sum()), np.where(known, np.cumsum(known) - 1, known.sum()))
        small = torch.from_numpy(np.asarray(self.states[words[known]], np.float32) * scales[known][:, :, None])
        states = torch.einsum("wln,lnd->wld", small, self.directions) + self.mean
        return place[owner], states.to(torch.bfloat16)

    def _words_of(self, example: Example) -> np.ndarray:
        """The word cache's number of each token's word, -1 for special tokens."""
        numbers = np.full(len(example.ids), -1)
        ordinary = np.flatnonzero(example.places >= 0)
        for run in np.split(ordinary, np.flatnonzero(np.diff(example.places[ordinary]) != 1) + 1):
            if len(run):
                numbers[run] = word_numbers(self.store, self.words, self.first, *example.places[run[[0, -1]]])
        return numbers


def word_numbers(store: Store, words: WordsOfPieces, first: np.ndarray, start: int, last: int) -> np.ndarray:
    """The number in the word cache of each token's word, for the store's tokens start to last, both included."""
    starts = store.sentence_starts
    sentence = int(np.searchsorted(starts, start, side="right")) - 1
    begin = int(starts[sentence])
    begins = _begins(store, words, begin, last + 1)
    return (first[sentence] + np.cumsum(begins) - 1)[start - begin :]


def _begins(store: Store, words: WordsOfPieces, start: int, stop: int) -> np.ndarray:
    """Where a word of the cache begins among these tokens; `start` is the first token of a sentence."""
    begins = words.begins(np.asarray(store.ids[start:stop], np.int64))
    a, b = np.searchsorted(store.sentence_starts, (start, stop))
    begins[np.asarray(store.sentence_starts[a:b]) - start] = True
    return begins


def cache_folder(store: Store, teacher: WordTeacher, numbers: int, length: int) -> Path:
    """The folder of the word cache of this teacher: beside the store, named after everything it depends on."""
    text = store.facts["files"]["tokens.bin"]["sha256"]
    key = json.dumps([FORMAT, text, teacher.digest, teacher.precision, teacher.layers, numbers, length])
    return store.folder.with_name(f"{store.folder.name}.words-{hashlib.sha256(key.encode()).hexdigest()[:12]}")


def open_cache(store: Store, teacher: WordTeacher, numbers: int, length: int) -> WordCache:
    """Open the word cache of this teacher's states of this store, made now if it is missing or unfinished."""
    if numbers > teacher.width:
        raise UserError(f"teaching.cache is {numbers}; the teacher's states have {teacher.width} numbers. Use fewer.")
    folder = cache_folder(store, teacher, numbers, length)
    if not (folder / "cache.json").is_file():
        with explained(f"{folder} could not be written"):
            folder.mkdir(exist_ok=True)
            with RunLock(folder):
                if not (folder / "cache.json").is_file():
                    _CacheWriter(folder, store, teacher, numbers, length).go()
    for name, file in json.loads((folder / "cache.json").read_bytes())["files"].items():
        if not (folder / name).is_file() or facts_of(folder / name)["sha256"] != file["sha256"]:
            raise DamagedFile(f"{folder / name} is missing or was altered. Delete {folder}; it will be made again.")
    return WordCache(folder, store, teacher.words)


class _CacheWriter:
    """Makes a cache, or continues an unfinished one."""

    def __init__(self, folder: Path, store: Store, teacher: WordTeacher, numbers: int, length: int) -> None:
        self.folder, self.store, self.teacher = folder, store, teacher
        self.numbers, self.layers = numbers, len(teacher.layers)
        self.rows = FullSentences(store, np.arange(store.documents), length)
        per_batch = max(1, BATCH // length)
        self.batches = [range(n, min(n + per_batch, len(self.rows))) for n in range(0, len(self.rows), per_batch)]

    def go(self) -> None:
        """Write everything that is missing in the word cache."""
        first = self._first_words()
        words = int(first[-1])
        size = words * self.layers * (self.numbers + 2)
        require_space(self.folder, size + first.nbytes)
        atomic_write(self.folder / "words.bin", first.tobytes())
        self.first = first
        mean, directions = self._basis()
        done = self._done()
        room = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
        note(
            f"{self.folder.name}: the teacher reads the text once, {len(self.batches) - done['batches']:,} of "
            f"{len(self.batches):,} batches; {room} on the disk."
        )
        with (self.folder / "states.bin").open("ab") as states, (self.folder / "scales.bin").open("ab") as scales:
            states.truncate(done["words"] * self.layers * self.numbers)
            scales.truncate(done["words"] * self.layers * 2)
            self._write(states, scales, done, mean, directions)
        names = ("basis.safetensors", "words.bin", "states.bin", "scales.bin")
        files = {name: facts_of(self.folder / name) for name in names}
        if files["scales.bin"]["bytes"] != words * self.layers * 2:
            raise DamagedFile(f"{self.folder}: the number of words is wrong. Delete it; it will be made again.")
        facts = {
            "format": FORMAT, "width": self.teacher.width, "layers": list(self.teacher.layers), "words": words,
            "teacher": self.teacher.digest, "files": files,
        }  # fmt: skip
        atomic_write(self.folder / "cache.json", json.dumps(facts, indent=1) + "\n")
        (self.folder / "progress.json").unlink(missing_ok=True)

    def _write(self, states: Any, scales: Any, done: dict[str, int], mean: np.ndarray, directions: np.ndarray) -> None:
        """Write a teacher's word states batch by batch, reduced and in int8."""
        begun = time.monotonic()
        for number in range(done["batches"], len(self.batches)):
            known, values = self._batch(self.batches[number])
            small = np.einsum("wld,lnd->wln", values - mean, directions)
            scale = (np.abs(small).max(-1) / 127).astype(np.float16)
            scale[~known] = 0
            safe = np.where(scale == 0, 1, scale).astype(np.float32)
            states.write(np.clip(np.rint(small / safe[:, :, None]), -127, 127).astype(np.int8).tobytes())
            scales.write(scale.tobytes())
            done["words"] += len(known)
            if (number + 1) % FLUSH == 0 or number + 1 == len(self.batches):
                for file in (states, scales):
                    file.flush()
                    os.fsync(file.fileno())
                atomic_write(self.folder / "progress.json", json.dumps({"batches": number + 1, "words": done["words"]}))
            seconds = (time.monotonic() - begun) / (number + 1 - done["batches"]) * (len(self.batches) - number - 1)
            status(f"{self.folder.name}: {number + 1:,} of {len(self.batches):,} batches, {seconds / 60:.0f} min to go")

    def _done(self) -> dict[str, int]:
        """How many batches and words of the word cache an interrupted run has completed."""
        try:
            return {
                key: int(json.loads((self.folder / "progress.json").read_bytes())[key]) for key in ("batches", "words")
            }
        except (OSError, ValueError, KeyError, TypeError):
            return {"batches": 0, "words": 0}

    def _first_words(self) -> np.ndarray:
        """The cache's number of each sentence's first word, and of all words at the end."""
        counts = []
        for a in range(0, self.store.sentences, 65536):
            b = min(a + 65536, self.store.sentences)
            start, stop = int(self.store.sentence_starts[a]), int(self.store.sentence_starts[b])
            ends = np.cumsum(_begins(self.store, self.teacher.words, start, stop))
            bounds = np.asarray(self.store.sentence_starts[a : b + 1]) - start
            counts.append(np.diff(np.append(0, ends)[bounds]))
        return np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)

    def _batch(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
        """Whether each word that begins in these rows has a state to cache, and the states."""
        chance = np.random.default_rng(0)
        examples = [self.rows.example(n, chance) for n in numbers]
        owner, states = self.teacher(examples)
        values = states.float().numpy()
        ids, places = (np.concatenate([getattr(example, name) for example in examples]) for name in ("ids", "places"))
        real = np.flatnonzero(places >= 0)
        word = np.concatenate(
            [
                word_numbers(self.store, self.teacher.words, self.first, int(e.places[1]), int(e.places[-2]))
                for e in examples
            ]
        )
        # A row that begins inside a word begins with its remainder: that word was counted in the row before.
        before = _word_before(self.store, self.teacher.words, self.first, int(places[real[0]]))
        begins = real[np.append(word[0] != before, np.diff(word) != 0)]
        assert len(ids) == len(owner)
        state_of = owner[begins]
        known = state_of < len(values)
        filled = np.zeros((len(begins), self.layers, self.teacher.width), np.float32)
        filled[known] = values[state_of[known]]
        return known, filled

    def _basis(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and main directions of the cached states of each layer, from batches spread over the text."""
        path = self.folder / "basis.safetensors"
        if not path.is_file():
            picked = np.unique(np.linspace(0, len(self.batches) - 1, SAMPLE).astype(int))
            sample = np.concatenate([values[known] for known, values in map(self._batch, self._picked(picked))])
            mean = sample.mean(0)
            centred = sample - mean
            covariance = np.einsum("wla,wlb->lab", centred, centred) / max(1, len(sample))
            values, vectors = np.linalg.eigh(covariance.astype(np.float64))
            directions = vectors[:, :, ::-1][:, :, : self.numbers].transpose(0, 2, 1)
            share = values[:, ::-1][:, : self.numbers].sum(1) / np.maximum(values.sum(1), 1e-12)
            note(
                f"{self.folder.name}: {self.numbers} numbers per layer keep "
                + ", ".join(f"{part:.1%}" for part in share)
                + " of the variance."
            )
            tensors = {"mean": mean.astype(np.float32), "directions": np.ascontiguousarray(directions, np.float32)}
            atomic_write(path, save(tensors))
        basis = load_file(path)
        return basis["mean"], basis["directions"]

    def _picked(self, numbers: np.ndarray) -> Iterator[range]:
        for n in numbers:
            yield self.batches[int(n)]


def _word_before(store: Store, words: WordsOfPieces, first: np.ndarray, place: int) -> int:
    """The cached word of the token before this one in its sentence; -1 at its start."""
    sentence = int(np.searchsorted(store.sentence_starts, place, side="right")) - 1
    if place == int(store.sentence_starts[sentence]):
        return -1
    return int(word_numbers(store, words, first, place - 1, place - 1)[0])
