"""The index of your documents: built in one pass, opened without reading it, searched exactly.

Files of its folder:
- `index.json`      the model and its fingerprint, how it was made, counts
- `passages.jsonl`  {"text", "file", "document", "id", "columns"}, one per line; `lines.npy` says where each begins
- `vectors.f16`     (passages, width) of length one
- `starts.npy` …    which passages contain which terms (bm25.py)
- `run.toml`        the settings it was made with
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertkit.checkpoint.locate import locate
from bertkit.checkpoint.tensorflow.read import CHECKPOINT_FILE, is_google
from bertkit.errors import DamagedFile, UserError
from bertkit.files.atomic import write_folder
from bertkit.files.json import open_regular, parse_json, read_array, read_json
from bertkit.files.manifest import digest_of, read_whole
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.retrieval.bm25 import BM25, Terms
from bertkit.retrieval.passages import Passage
from bertkit.text.load import LAYOUTS

# Beside the weights: how many layers there are, how texts are cut into pieces, and how a text's vector is made.
TOKENIZERS = tuple(name for names in LAYOUTS for name in names)
BESIDE = (
    "*config*.json", "modules.json", "[1-9]_*/*", "added_tokens.json", "special_tokens_map.json",
    *TOKENIZERS,
)  # fmt: skip
FILES = ("index.json", "passages.jsonl", "vectors.f16")
BY = ("both", "vectors", "words")
RERANKED = 50  # passages that a reranker reads for a question
YES = ("1", "yes", "true", "relevant", "positive", "entailment", "duplicate")  # labels of pairs that belong together
BLOCK = 65_536  # vectors compared at once
VECTOR_WEIGHT = 0.3  # of the cosine beside BM25, where an index does not say
TRIALS, AMONG = 200, 2000  # pseudo-questions that measure this weight, and the passages they are put to
SHORTEST, LONGEST = 12, 16  # pieces of a passage that can give a pseudo-question, and of the question


def is_index(folder: Path) -> bool:
    """Whether the folder holds an index."""
    return all((folder / name).is_file() for name in FILES)


def build(
    predictor: Predictor, model: str, passages: Iterator[Passage], out: Path, run: str = "", **about: Any
) -> dict[str, Any]:
    """Embed passages in order and write the folder, completely or not at all. run: the content of run.toml.

    Texts and vectors are written as they arrive; terms are kept in memory, four bytes each, until they are inverted.
    """
    facts: dict[str, Any] = {"passages": 0, "tokens": 0, "files": 0}
    terms = Terms(predictor.tokenizer)

    def write(folder: Path) -> None:
        lines, rows, files = [0], [], set()
        with (folder / "passages.jsonl").open("wb") as texts, (folder / "vectors.f16").open("wb") as vectors:
            while chunk := list(islice(passages, AT_ONCE)):
                embedded = _embedded(predictor, [passage.text for passage in chunk])
                vectors.write(embedded.astype(np.float16).tobytes())
                for passage in chunk:
                    line = json.dumps(passage.plain(), ensure_ascii=False).encode() + b"\n"
                    lines.append(lines[-1] + texts.write(line))
                rows += terms.of([passage.text for passage in chunk])
                files |= {passage.file for passage in chunk}
                facts["width"] = embedded.shape[1]
        if not rows:
            raise UserError("There is no text to index.")
        np.save(folder / "lines.npy", np.array(lines, np.int64))
        BM25.of(rows, terms.numbers(rows)).save(folder)
        facts.update(passages=len(rows), tokens=sum(map(terms.pieces_in, rows)), files=len(files))
        some = np.unique(np.linspace(0, len(rows) - 1, min(AMONG, len(rows))).astype(int))
        written = np.memmap(folder / "vectors.f16", np.float16, "r").reshape(len(rows), -1)
        with (folder / "passages.jsonl").open("rb") as file:
            sample = [_passage(file, folder, lines, n)["text"] for n in some]
        facts["vector_weight"] = vector_weight(predictor, terms, sample, written[some].astype(np.float32))
        prompt = predictor.pooling.prompt_for("document")
        given = {"model": model, "fingerprint": fingerprint(model), "prompt": prompt, **facts, **about}
        (folder / "index.json").write_text(json.dumps(given, ensure_ascii=False, indent=1), "utf-8")
        (folder / "run.toml").write_text(run, "utf-8")

    write_folder(out, write)
    return facts


def _embedded(predictor: Predictor, texts: Sequence[str], role: str = "document") -> np.ndarray:
    """Vectors of length one, with the model's prompt for this side of a search, if it has one."""
    prompt = predictor.pooling.prompt_for(role)
    return np.asarray(predictor.embed(texts, normalize=True, prompt_text=prompt))


def fingerprint(model: str | Path) -> str:
    """A fingerprint of the files that determine a model's vectors."""
    place = locate(model)
    folder = place if place.is_dir() else place.parent
    if is_google(place):
        stem = "*" if place.is_dir() else glob.escape(CHECKPOINT_FILE.sub("", place.name))
        weights = _files(folder, (f"{stem}.index", f"{stem}.data-*"))
    else:
        weights = _files(folder, ("*.safetensors", "pytorch_model.bin"))
    if not weights:
        raise UserError(f"{place}: this folder contains no weights. Pass the folder of the model that made the index.")
    digest = hashlib.sha256()
    for path in [*weights, *_files(folder, BESIDE)]:
        with open_regular(path) as file:
            digest.update(os.fsencode(path.name) + bytes.fromhex(digest_of(file.fileno())))
    return digest.hexdigest()[:16]


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]


@dataclass
class Index:
    """An open index."""

    folder: Path
    about: dict[str, Any]
    vectors: np.ndarray
    lines: np.ndarray
    words: BM25
    predictor: Predictor
    passages: IO[bytes]  # stays open, so that an index that is rebuilt meanwhile does not mix with this one

    @classmethod
    def open(cls, folder: Path, model: str = "", precision: str = "auto", device: str = "auto") -> Index:
        """Open the folder and its model (`model`: where it is, if it has moved)."""
        return read_whole(folder, lambda: cls._open(folder, model, precision, device), what="index")

    @classmethod
    def _open(cls, folder: Path, model: str, precision: str, device: str) -> Index:
        for name in FILES:
            if not (folder / name).is_file():
                raise UserError(f"{folder} is not an index ({name} is missing). Make one with `bertkit index`.")
        try:
            about = read_json(folder / "index.json")
            lines = np.array(read_array(folder / "lines.npy"))
            passages = open_regular(folder / "passages.jsonl")
            size = os.fstat(passages.fileno()).st_size
            open_regular(folder / "vectors.f16").close()
            vectors = np.memmap(folder / "vectors.f16", np.float16, "r").reshape(-1, int(about["width"]))
            words = BM25.open(folder)
            about["vector_weight"] = float(about.get("vector_weight", VECTOR_WEIGHT))
        except (ValueError, KeyError, TypeError, EOFError, OverflowError) as error:
            raise DamagedFile(f"{folder} is damaged ({error}). Rebuild it with `bertkit index`.") from None
        if not len(vectors) == len(lines) - 1 == len(words.lengths):
            raise DamagedFile(f"{folder} is damaged: its files disagree about the number of passages. Rebuild it.")
        words.check(len(vectors))
        if size != lines[-1] or lines[0] != 0 or not (np.diff(lines) > 0).all():
            raise DamagedFile(
                f"{folder / 'passages.jsonl'} is damaged: it has {size:,} bytes, but {int(lines[-1]):,} were written. "
                "Rebuild the index with `bertkit index`."
            )
        named = model or about.get("model")
        if not isinstance(named, str) or not named or "\0" in named:
            raise DamagedFile(f"{folder / 'index.json'} does not name the model. Pass it with --model.")
        place = locate(named, named_by=None if model else folder / "index.json")
        if fingerprint(place) != about.get("fingerprint"):
            raise UserError(
                f"{folder} was made with different weights, or a different tokenizer or pooling, than {named} has now. "
                "Rebuild the index, or pass the old model with --model."
            )
        predictor = Predictor.load(place, precision, device)
        if about.get("prompt", "") != predictor.pooling.prompt_for("document"):
            raise UserError(
                f"{folder} was made without the prompt that {named} has for documents. Rebuild it with `bertkit index`."
            )
        if predictor.width != vectors.shape[1] or predictor.tokenizer.size >= len(words.starts):
            raise DamagedFile(f"{folder}: its vectors or words are not those of {named}. Rebuild the index.")
        return cls(folder, about, vectors, lines, words, predictor, passages)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self.vectors)

    def search(
        self, question: str, top: int = 10, by: str = "both", reranker: Reranker | None = None
    ) -> list[dict[str, Any]]:
        """The nearest passages, best first: {score, cosine, text, file, document, id, columns}.

        By "words", no vector is computed and there is no cosine. score: the cosine; or BM25 (by "words"); or (by
        "both") the weighted mean of both, each scaled so that the best passage has 1 and the worst 0. A reranker reads
        the best passages again, and scores these by itself.
        """
        if reranker is not None:
            return reranker.rank(question, self.search(question, max(top, RERANKED), by))[:top]
        if top < 1:
            raise UserError(f"{top} passages requested; ask for at least 1.")
        if not question.strip():
            raise UserError("The question is empty.")
        if by == "words":
            scores, cosines = self.words.scores(self.terms.of([question])[0]), None
        else:
            scores = cosines = self._cosines(question)
        if by == "both":
            shared = self.words.scores(self.terms.of([question])[0])
            scores = fused(scores, shared, self.about["vector_weight"])
        best = [n for n in best_of(scores, top).tolist() if by != "words" or scores[n] > 0]
        seen = {n: {} if cosines is None else {"cosine": float(cosines[n])} for n in best}
        return [{"score": float(scores[n]), **seen[n], **self.passage(n)} for n in best]

    @cached_property
    def terms(self) -> Terms:
        """How a question is split into terms."""
        return Terms(self.predictor.tokenizer)

    def _cosines(self, question: str) -> np.ndarray:
        asked = _embedded(self.predictor, [question], "query")[0]
        parts = [self.vectors[n : n + BLOCK].astype(np.float32) @ asked for n in range(0, len(self), BLOCK)]
        return np.concatenate(parts)

    def documents(self) -> dict[str, list[str]]:
        """The texts of every document's passages, by its id."""
        texts: dict[str, list[str]] = {}
        for number in range(len(self)):
            row = self.passage(number)
            texts.setdefault(row["id"], []).append(row["text"])
        return texts

    @property
    def megabytes(self) -> float:
        """The size of its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) / 1e6

    def passage(self, number: int) -> dict[str, Any]:
        """The passage with this number, read from its line."""
        return _passage(self.passages, self.folder, self.lines, number)


def _passage(file: IO[bytes], folder: Path, lines: Sequence[int] | np.ndarray, number: int) -> dict[str, Any]:
    begin, end = int(lines[number]), int(lines[number + 1])
    where = f"{folder / 'passages.jsonl'}, line {number + 1}"
    try:
        row: dict[str, Any] = parse_json(os.pread(file.fileno(), end - begin, begin).decode(), where)
        if not all(isinstance(row[key], str) for key in ("text", "file")):
            raise TypeError("not text")
    except (ValueError, KeyError, TypeError, UserError):
        raise DamagedFile(f"{where}: the passage is damaged. Rebuild the index with `bertkit index`.") from None
    # Indexes of earlier versions have no ids.
    return {"id": f"{row['file']}#{row.get('document')}", **row}


def best_of(scores: np.ndarray, top: int) -> np.ndarray:
    """Indices of the highest scores, best first; ties go to the earlier."""
    top = min(top, len(scores))
    some = np.flatnonzero(scores >= np.partition(scores, len(scores) - top)[len(scores) - top])
    return some[np.argsort(-scores[some], kind="stable")][:top]


def fused(cosines: np.ndarray, words: np.ndarray, weight: float) -> np.ndarray:
    """Combine two scores of every passage, each scaled to 0 … 1; weight: of the cosines.

    Scores, not ranks: a passage that shares a rare word is far ahead by BM25, and its rank would not say so.
    """
    return weight * _scaled(cosines) + (1 - weight) * _scaled(words)


def _scaled(scores: np.ndarray) -> np.ndarray:
    low, high = float(scores.min()), float(scores.max())
    return (scores - low) / (high - low) if high > low else np.full_like(scores, high > 0)


def vector_weight(predictor: Predictor, terms: Terms, texts: Sequence[str], vectors: np.ndarray) -> float:
    """How much the cosine should count beside BM25 in an index, measured on passages of it and their vectors.

    A pseudo-question is a run of words cut out of a passage; what remains of the passage is its right answer. With
    the mean reciprocal ranks v by vectors and w by words, the weight is (v / (v + w))². Squared, because a cut-out
    resembles its passage more than a question does its answer, which flatters the vectors (docs/benchmarks.md).
    """
    remaining, asked, answers = list(texts), [], []
    rng = random.Random(0)
    for number in sorted(rng.sample(range(len(texts)), min(TRIALS, len(texts)))):
        encoding = predictor.tokenizer.encode(texts[number])
        spans = [span for span, special in zip(encoding.offsets, encoding.special) if not special]
        if len(spans) < SHORTEST:
            continue
        size = min(LONGEST, len(spans) // 3)
        first = rng.randrange(len(spans) - size)
        start, end = spans[first][0], spans[first + size - 1][1]
        asked.append(texts[number][start:end])
        remaining[number] = f"{texts[number][:start]} {texts[number][end:]}"
        answers.append(number)
    if not asked:
        return VECTOR_WEIGHT
    vectors = vectors.copy()
    vectors[answers] = _embedded(predictor, [remaining[number] for number in answers])
    cosines = _embedded(predictor, asked, "query") @ vectors.T
    rows = terms.of(remaining)
    table = BM25.of(rows, terms.numbers(rows))
    words = [table.scores(row) for row in terms.of(asked)]
    by_vectors, by_words = (
        sum(1 / (1 + int((row > row[answer]).sum())) for row, answer in zip(scores, answers) if row[answer] > 0)
        for scores in (cosines, words)
    )
    return round((by_vectors / max(by_vectors + by_words, 1e-9)) ** 2, 3)


# ---- A cross-encoder reads the question and a passage together: slower than vectors, and more exact.


class Reranker:
    """A model that scores pairs of texts, by its one number or by the probability that they belong together."""

    def __init__(self, name: str | Path, precision: str = "auto", device: str = "auto") -> None:
        self.name, self.predictor = str(name), Predictor.load(name, precision, device)
        task = self.predictor.task
        wrong = f"{name} cannot rerank: "
        if "rerank" not in task.abilities or task.makes_vectors or task.options.get("paired") is False:
            raise UserError(f"{wrong}it does not read pairs of texts. Train one with `bertkit finetune pair --rank`.")
        self.label = next((label for label in task.labels if label.casefold() in YES), "")
        if task.labelled_by_name and not self.label:
            raise UserError(
                f"{wrong}none of its labels ({', '.join(task.labels)}) says that two texts belong together. Train one "
                "with `bertkit finetune pair --rank`."
            )
        self.predictor.task = task if task.reads_pairs else task.for_pairs() or task

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question."""
        predictions = self.predictor.predict([{"text": question, "text_b": text} for text in texts])
        return [float(each["scores"][self.label] if self.label else each["value"]) for each in predictions]

    def rank(self, question: str, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first RERANKED hits in the order of the model's scores; the others after them, as they were."""
        scores = self.scores(question, [hit["text"] for hit in hits[:RERANKED]])
        read = [hit | {"score": score, "first_score": hit["score"]} for hit, score in zip(hits, scores)]
        return sorted(read, key=lambda hit: -hit["score"]) + hits[RERANKED:]
