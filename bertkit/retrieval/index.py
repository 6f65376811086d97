"""The index of your documents: built in one pass, opened without reading it, added to and deleted from in place.

Files of its folder:
- `index.json`      the model and its fingerprint, how it was made, counts, the names of its segments
- the files of its first segment (segments.py); later ones are in `segments/N`
- `deleted.npy`     (passages, 2): segment and number of each passage that was deleted or replaced
- `run.toml`        the settings it was made with

A change writes its new files beside the old ones and then replaces the manifest in one step (files/atomic.py): after
a crash at any moment, the index is as it was before the change, or as it is after it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.checkpoint.locate import locate
from bertkit.checkpoint.tensorflow.read import CHECKPOINT_FILE, is_google
from bertkit.errors import DamagedFile, UserError, suggest
from bertkit.files.atomic import write_folder
from bertkit.files.guarded import open_regular, read_array, read_json
from bertkit.files.lock import RunLock
from bertkit.files.manifest import digest_of, read_whole
from bertkit.inference.predictor import Predictor
from bertkit.retrieval.bm25 import BM25, Terms, best_of, fused
from bertkit.retrieval.bm25 import scores as bm25_scores
from bertkit.retrieval.conditions import Where
from bertkit.retrieval.evaluate import RERANKED, Reranker
from bertkit.retrieval.passages import Passage
from bertkit.retrieval.segments import FEWEST, Segment, embedded, key_of, merge, write_segment
from bertkit.text.load import LAYOUTS

if TYPE_CHECKING:
    from bertkit.retrieval.postgres import PostgresIndex

# Beside the weights: how many layers there are, how texts are cut into pieces, and how a text's vector is made.
TOKENIZERS = tuple(name for names in LAYOUTS for name in names)
BESIDE = ("*config*.json", "modules.json", "[1-9]_*/*", "added_tokens.json", "special_tokens_map.json", *TOKENIZERS)
FILES = ("index.json", "passages.jsonl", "vectors.f16")
BY = ("both", "vectors", "words")
FORMAT = 2  # of index.json; 1 had one segment, and no format
VECTOR_WEIGHT = 0.3  # of the cosine beside BM25, where an index does not say
TRIALS, AMONG = 200, 2000  # pseudo-questions that measure this weight, and the passages they are put to
SHORTEST, LONGEST = 12, 16  # pieces of a passage that can give a pseudo-question, and of the question


def is_index(name: Path | str) -> bool:
    """Whether the folder holds an index, or the name is the URL of one."""
    return in_database(name) or all((Path(name) / part).is_file() for part in FILES)


def in_database(name: Path | str) -> bool:
    """Whether an index is named by the URL of a database (postgres.py), not by its folder."""
    return isinstance(name, str) and name.startswith(("postgresql://", "postgres://"))


def open_index(
    name: Path | str, model: str = "", precision: str = "auto", device: str = "auto"
) -> Index | PostgresIndex:
    """Open an index by its folder or its URL."""
    if in_database(name):
        from bertkit.retrieval.postgres import PostgresIndex

        return PostgresIndex.open(str(name), model, precision, device)
    return Index.open(Path(name), model, precision, device)


def shown(name: Path | str) -> str:
    """An index's name as results and messages show it: never with a password."""
    if not in_database(name):
        return str(name)
    from bertkit.retrieval.postgres import Place

    return Place.of(str(name)).shown


def build(
    predictor: Predictor,
    model: str,
    passages: Iterator[Passage],
    out: Path,
    run: str = "",
    embed: Callable[[list[str]], np.ndarray] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Build an index: embed passages in order and write the folder, completely or not at all.

    embed: as in `write_segment`.
    about: what index.json keeps besides: dimensions, vectors (f16, int8 or binary), engine, passage.
    """
    facts: dict[str, Any] = {}

    def write(folder: Path) -> None:
        facts.update(write_segment(folder, predictor, passages, *_form(about), embed))
        facts["vector_weight"] = _weight(predictor, [Segment.open(folder, facts["width"])], about.get("dimensions", 0))
        given = {
            "format": FORMAT, "model": model, "fingerprint": fingerprint(model),
            "prompt": predictor.pooling.prompt_for("document"), **facts, **about, "segments": [0], "next": 1,
            "weight_measured_on": facts["passages"],
        }  # fmt: skip
        (folder / "index.json").write_text(json.dumps(given, ensure_ascii=False, indent=1), "utf-8")
        (folder / "run.toml").write_text(run, "utf-8")

    with RunLock(out, "changing"):
        write_folder(out, write)
    return facts


def _form(about: dict[str, Any]) -> tuple[int, str, str]:
    """How a segment of an index is written: dimensions, kind of vectors, engine."""
    return int(about.get("dimensions", 0)), about.get("vectors", "f16"), about.get("engine", "auto")


def _weight(predictor: Predictor, segments: Sequence[Segment], dimensions: int) -> float:
    """An index's weight of vectors, measured on passages spread over the segments."""
    places = [(segment, n) for segment in segments for n in np.flatnonzero(segment.alive).tolist()]
    some = [places[n] for n in np.unique(np.linspace(0, len(places) - 1, min(AMONG, len(places))).astype(int))]
    texts = [segment.passage(n)["text"] for segment, n in some]
    vectors = np.stack([np.asarray(segment.vectors.exact[n], np.float32) for segment, n in some])
    return vector_weight(predictor, Terms(predictor.tokenizer), texts, vectors, dimensions)


# ---- Changes to an index


def change(
    folder: Path,
    read: Callable[[Index], Iterator[Passage]] | None = None,
    delete: Collection[str] = (),
    **opening: Any,
) -> dict[str, Any]:
    """Change an index: add passages and delete documents (by id, or all of a file by its name), all or nothing.

    A document whose id is in the index replaces it; a file without ids replaces all documents of that file.
    read: gives the passages, for the open index; opening: options of `Index.open`.
    """
    with RunLock(folder, "changing"):
        index = Index.open(folder, **opening, verify=False)
        about, counts = index.about, {"added": 0, "replaced": 0, "deleted": 0}
        gone: list[str] = []

        def write(staging: Path) -> None:
            keys = np.array([key_of(name) for name in delete], np.uint64)
            counts["deleted"] = index.bury(lambda ids, files: np.isin(ids, keys) | np.isin(files, keys), delete)
            number = int(about["next"])
            if read is not None:
                place = staging / "segments" / str(number)
                place.mkdir(parents=True)
                added = write_segment(place, index.predictor, read(index), *_form(about))
                new = Segment.open(place, index.width)
                counts["added"] = len(new)
                own, files = _names(new)
                counts["replaced"] = index.bury(lambda ids, names: np.isin(ids, own) | np.isin(names, files))
                gone.extend(_absorb(index, new, staging, number, about))
                if len(index) > 2 * int(about.get("weight_measured_on", 0)):
                    about["vector_weight"] = _weight(index.predictor, index.segments, int(about.get("dimensions", 0)))
                    about["weight_measured_on"] = len(index)
                about["tokens"] = int(about.get("tokens", 0)) + added["tokens"]
            rows = [(n, row) for n, each in zip(index.numbers, index.segments) for row in np.flatnonzero(~each.alive)]
            np.save(staging / "deleted.npy", np.array(rows, np.int64).reshape(-1, 2))
            named = {key for each in index.segments for key in each.keys[each.alive, 1].tolist()}
            about.update(format=FORMAT, passages=len(index), files=len(named), segments=index.numbers)
            (staging / "index.json").write_text(json.dumps(about, ensure_ascii=False, indent=1), "utf-8")

        write_folder(folder, write, add=True, without=lambda: gone)
        for name in gone:
            with suppress(OSError):
                (folder / name).rmdir()
    return {**counts, "passages": len(index)}


def _names(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """The keys of a new segment's ids, and of its files whose documents have no ids, to change an index by."""
    values = segment.columns.values
    files = set(values["file"])
    unnamed = {name for given in values["id"] for name in (given, given.rpartition("#")[0]) if name in files}
    return segment.keys[:, 0], np.array([key_of(name) for name in unnamed], np.uint64)


def _absorb(index: Index, new: Segment, staging: Path, number: int, about: dict[str, Any]) -> list[str]:
    """Put an index's new segment in place, joined with the last ones that are not larger: so there are always few.

    A passage is copied as often as its segment doubles, so adding costs time in proportion to what is added.
    """
    small = 0
    size = len(new)
    while small < len(index.segments) - 1 and len(index.segments[-1 - small]) <= 2 * size:
        small += 1
        size += len(index.segments[-small])
    absorbed = index.numbers[len(index.numbers) - small :]
    joined, final = new, number
    if small:
        final = number + 1
        place = staging / "segments" / str(final)
        place.mkdir()
        _, kind, engine = _form(about)
        merge(place, [*index.segments[-small:], new], index.width, kind, engine)
        joined = Segment.open(place, index.width)
        for path in sorted((staging / "segments" / str(number)).iterdir()):
            path.unlink()
        (staging / "segments" / str(number)).rmdir()
    index.segments[len(index.segments) - small :] = [joined]
    index.numbers[len(index.numbers) - small :] = [final]
    about["next"] = final + 1
    return [f"segments/{each}" for each in absorbed]


def fingerprint(model: str | Path) -> str:
    """A fingerprint of the files that determine the vectors of an index's model."""
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


def check_question(question: str, top: int, by: str) -> None:
    """Refuse a question that no index can answer."""
    if by not in BY:
        raise UserError(f"by is {by!r}. {suggest(by, list(BY))}")
    if top < 1:
        raise UserError(f"{top} passages requested; ask for at least 1.")
    if not question.strip():
        raise UserError("The question is empty.")


def model_of(about: dict[str, Any], name: str, model: str, precision: str, device: str) -> Predictor:
    """Open the model that an index was made with. name: the index; model: where it is now, if it has moved."""
    named = model or about.get("model")
    source = name if "://" in name else str(Path(name) / "index.json")
    if not isinstance(named, str) or not named or "\0" in named:
        raise DamagedFile(f"{source} does not name the model. Pass it with --model.")
    place = locate(named, named_by=None if model else source)
    if fingerprint(place) != about.get("fingerprint"):
        raise UserError(
            f"{name} was made with different weights, or a different tokenizer or pooling, than {named} has now. "
            "Rebuild the index, or pass the old model with --model."
        )
    predictor = Predictor.load(place, precision, device)
    if about.get("prompt", "") != predictor.pooling.prompt_for("document"):
        raise UserError(
            f"{name} was made without the prompt that {named} has for documents. Rebuild it with `bertkit index`."
        )
    if min(predictor.width, int(about.get("dimensions") or predictor.width)) != int(about["width"]):
        raise DamagedFile(f"{name}: its vectors are not those of {named}. Rebuild the index.")
    return predictor


@dataclass
class Index:
    """An open index. Passages are numbered through all segments."""

    folder: Path
    about: dict[str, Any]
    segments: list[Segment]
    predictor: Predictor
    numbers: list[int] = field(default_factory=lambda: [0])  # the names of the segments

    @classmethod
    def open(
        cls, folder: Path, model: str = "", precision: str = "auto", device: str = "auto", verify: bool = True
    ) -> Index:
        """Open an index's folder and its model (`model`: where it is, if it has moved)."""
        return read_whole(folder, lambda: cls._open(folder, model, precision, device), what="index", verify=verify)

    @classmethod
    def _open(cls, folder: Path, model: str, precision: str, device: str) -> Index:
        for name in FILES:
            if not (folder / name).is_file():
                raise UserError(f"{folder} is not an index ({name} is missing). Make one with `bertkit index`.")
        try:
            about = read_json(folder / "index.json")
            if int(about.get("format", 1)) > FORMAT:
                raise UserError(
                    f"{folder} was written by a later version of bertkit (format {about['format']}). Update bertkit, "
                    "or rebuild the index with `bertkit index`."
                )
            numbers, width = [int(n) for n in about.get("segments", [0])], int(about["width"])
            about["vector_weight"] = float(about.get("vector_weight", VECTOR_WEIGHT))
            segments = [Segment.open(folder / "segments" / str(n) if n else folder, width) for n in numbers]
            if (folder / "deleted.npy").is_file():
                for n, row in read_array(folder / "deleted.npy").tolist():
                    segments[numbers.index(n)].alive[row] = False
        except (ValueError, KeyError, TypeError, EOFError, OverflowError, IndexError) as error:
            raise DamagedFile(f"{folder} is damaged ({error}). Rebuild it with `bertkit index`.") from None
        predictor = model_of(about, str(folder), model, precision, device)
        if any(predictor.tokenizer.size >= len(each.words.starts) for each in segments):
            raise DamagedFile(f"{folder}: its words are not those of {about.get('model')}. Rebuild the index.")
        return cls(folder, about, segments, predictor, numbers)

    def __len__(self) -> int:
        """The number of passages that can be found."""
        return int(sum(segment.alive.sum() for segment in self.segments))

    @property
    def width(self) -> int:
        """The numbers of a vector in the index."""
        return int(self.about["width"])

    def bury(self, dead: Callable[[np.ndarray, np.ndarray], np.ndarray], must: Collection[str] = ()) -> int:
        """Mark an index's passages as deleted, by keys of ids and files. Returns how many documents they were of.

        must: names that have to be in the index.
        """
        wanted = np.array([key_of(name) for name in must], np.uint64)
        known = np.any([np.isin(wanted, each.keys[each.alive]) for each in self.segments], axis=0)
        for name in (name for name, is_there in zip(must, known) if not is_there):
            raise UserError(f"{self.folder} has no document with the id {name!r}, and none of a file of that name.")
        documents: set[int] = set()
        for segment in self.segments:
            lost = segment.alive & dead(segment.keys[:, 0], segment.keys[:, 1])
            documents |= set(segment.keys[lost, 0].tolist())
            self.about["tokens"] = int(self.about.get("tokens", 0)) - segment.pieces(lost, self.predictor.tokenizer)
            segment.alive = segment.alive & ~lost
        return len(documents)

    def search(
        self, question: str, top: int = 10, by: str = "both", reranker: Reranker | None = None,
        where: Where | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Search the index: the nearest passages, best first: {score, cosine, text, file, document, id, columns}.

        By "words", no vector is computed and there is no cosine. score: the cosine; or BM25 (by "words"); or (by
        "both") the weighted mean of both, each scaled so that the best passage has 1 and the worst 0. A reranker reads
        the best passages again: theirs is the mean of its score and the first one, scaled alike.
        where: which documents may be found.
        """
        if reranker is not None:
            return reranker.rank(question, self.search(question, max(top, RERANKED), by, where=where))[:top]
        check_question(question, top, by)
        alive = np.concatenate([segment.alive for segment in self.segments])
        allowed = alive if where is None else alive & self._matching(where)
        if not allowed.any():
            return []
        if by == "words":
            shared = self._words(question)
            numbers = np.flatnonzero(allowed & (shared > 0))
            scores, cosines = shared[numbers], None
        else:
            if any(segment.vectors.proposes for segment in self.segments):
                numbers, cosines, scores = self._proposed(question, top, by, alive, allowed)
            else:
                numbers, asked = np.flatnonzero(alive), self._asked(question)
                cosines = np.concatenate([segment.vectors.cosines(asked) for segment in self.segments])[numbers]
                weight = self.about["vector_weight"]
                scores = fused(cosines, self._words(question)[numbers], weight) if by == "both" else cosines
            inside = allowed[numbers]  # the others set the scale
            numbers, cosines, scores = numbers[inside], cosines[inside], scores[inside]
        best = best_of(scores, top).tolist() if len(numbers) else []
        seen = [{} if cosines is None else {"cosine": float(cosines[n])} for n in best]
        return [{"score": float(scores[n]), **extra, **self.passage(int(numbers[n]))} for n, extra in zip(best, seen)]

    def _proposed(
        self, question: str, top: int, by: str, alive: np.ndarray, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers, cosines and scores of the index's passages that vectors and words propose. Few allowed ones: all."""
        asked, everyone, share = self._asked(question), np.flatnonzero(allowed), allowed.mean()
        few = len(everyone) <= max(FEWEST, 10 * top) or share < 0.01
        wide = 1 if few else int(np.ceil(top / share))
        numbers = self._near(asked, wide)
        while not few and allowed[numbers].sum() < top and wide < len(allowed):  # those allowed may be the far ones
            wide *= 4
            numbers = self._near(asked, wide)
        if few:
            numbers = np.union1d(numbers, everyone)
        shared = self._words(question) if by == "both" else None
        if shared is not None:
            best = [
                np.flatnonzero(alive)[best_of(shared[alive], 1)],
                everyone[best_of(shared[allowed], max(FEWEST, top))],
            ]
            numbers = np.union1d(numbers, np.concatenate(best))
        numbers = numbers[alive[numbers]]
        cosines = scores = self._cosines_of(asked, numbers)
        if shared is not None:
            # The scale of cosines needs the lowest one: that of passages spread over the index stands for it.
            spread = np.flatnonzero(alive)[:: max(1, int(alive.sum()) // AMONG)]
            lowest = self._cosines_of(asked, spread).min(initial=cosines.min(initial=1.0))
            words = np.append(shared[numbers], shared[alive].min())
            scores = fused(np.append(cosines, lowest), words, self.about["vector_weight"])[:-1]
        return numbers, cosines, scores

    def _near(self, asked: np.ndarray, wide: int) -> np.ndarray:
        """The numbers of the index's passages among which the nearest `wide` are likely to be."""
        near = [each.vectors.candidates(asked, wide) + start for each, start in zip(self.segments, self.starts)]
        return np.concatenate(near)

    @property
    def starts(self) -> np.ndarray:
        """The number of the first passage of each of the index's segments, and of the end."""
        return np.cumsum([0, *(len(segment) for segment in self.segments)])

    @cached_property
    def terms(self) -> Terms:
        """How the index splits a question into terms."""
        return Terms(self.predictor.tokenizer)

    def _asked(self, question: str) -> np.ndarray:
        asked: np.ndarray = embedded(self.predictor, [question], int(self.about.get("dimensions", 0)), "query")[0]
        return asked

    def _words(self, question: str) -> np.ndarray:
        alive = [segment.alive for segment in self.segments]
        return bm25_scores([segment.words for segment in self.segments], self.terms.of([question])[0], alive)

    def _cosines_of(self, asked: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        cosines = np.zeros(len(numbers), np.float32)
        for segment, start in zip(self.segments, self.starts):
            here = (numbers >= start) & (numbers < start + len(segment))
            cosines[here] = segment.vectors.cosines_of(asked, numbers[here] - start)
        return cosines

    def _matching(self, where: Where) -> np.ndarray:
        where.check(list(dict.fromkeys(name for segment in self.segments for name in segment.columns.values)))
        return np.concatenate([where.mask(segment.columns) for segment in self.segments])

    def documents(self) -> dict[str, list[str]]:
        """The texts of every document's passages in the index, by its id."""
        texts: dict[str, list[str]] = {}
        for segment in self.segments:
            for number in np.flatnonzero(segment.alive).tolist():
                row = segment.passage(number)
                texts.setdefault(row["id"], []).append(row["text"])
        return texts

    @property
    def megabytes(self) -> float:
        """The size of the index's files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) / 1e6

    def passage(self, number: int) -> dict[str, Any]:
        """The index's passage with this number, read from its line."""
        place = int(np.searchsorted(self.starts, number, "right")) - 1
        return self.segments[place].passage(number - int(self.starts[place]))


def vector_weight(
    predictor: Predictor, terms: Terms, texts: Sequence[str], vectors: np.ndarray, dimensions: int = 0
) -> float:
    """How much the cosine should count beside BM25 in an index, measured on passages of it and their vectors.

    A pseudo-question is a run of words cut out of a passage; what remains of the passage is its right answer. With
    the mean reciprocal ranks v by vectors and w by words, the weight is v / (v + w) for a model whose folder says how
    it makes vectors of texts (sentence-transformers, `finetune embed`), and the square of it for other encoders: a
    cut-out resembles its passage more than a question does its answer, which flatters their vectors
    (docs/benchmarks.md).
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
    vectors[answers] = embedded(predictor, [remaining[number] for number in answers], dimensions)
    cosines = embedded(predictor, asked, dimensions, "query") @ vectors.T
    rows = terms.of(remaining)
    table = BM25.of(rows, terms.numbers(rows))
    words = [table.scores(row) for row in terms.of(asked)]
    by_vectors, by_words = (
        sum(1 / (1 + int((row > row[answer]).sum())) for row, answer in zip(scores, answers) if row[answer] > 0)
        for scores in (cosines, words)
    )
    share = by_vectors / max(by_vectors + by_words, 1e-9)
    return round(share if predictor.folder.pooling else share**2, 3)
