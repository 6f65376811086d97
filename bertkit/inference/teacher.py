"""What a better model says of a text: its states at every word, aligned by characters, or its sentence vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bertkit.checkpoint.folder import Folder
from bertkit.checkpoint.locate import facts_of_model
from bertkit.data.batch import ROUND, Batch, pack
from bertkit.data.packing import Example
from bertkit.files.atomic import atomic_write
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.model.inference import choose, prepare
from bertkit.notify import note, track
from bertkit.tasks.embed import Teacher
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import is_cjk

KNOWN_WORDS = 500_000  # spellings kept at once


class WordsOfPieces:
    """A row of pieces as its teacher sees it: where each word begins, and how it is spelled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = [tokenizer.id_to_token(number) or "" for number in range(tokenizer.size)]
        self.chinese = np.array([any(map(is_cjk, piece)) for piece in pieces])  # each is a word
        self.continues = np.asarray(tokenizer.continuation) & ~self.chinese
        self.spelled: dict[tuple[int, ...], str] = {}
        self.mark = "##" if tokenizer.kind == "wordpiece" else ""
        self.pieces = pieces

    def of(self, ids: np.ndarray, special: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """The word of every token that a teacher is matched at, -1 for special ones, and the words' spellings."""
        begins = self.begins(ids)
        begins[1:] |= special[:-1]
        begins &= ~special
        number = np.where(special, -1, np.cumsum(begins) - 1)
        places = np.flatnonzero(begins)
        # A word ends where the next one begins, or at a special token.
        ends = np.searchsorted(np.flatnonzero(begins | special), places, side="right")
        bounds = np.append(np.flatnonzero(begins | special), len(ids))
        row = ids.tolist()
        return number, [self._spelled(tuple(row[a : bounds[e]])) for a, e in zip(places, ends)]

    def begins(self, ids: np.ndarray) -> np.ndarray:
        """Where a word that a teacher is matched at begins in a row of pieces; the first piece begins one."""
        begins = ~self.continues[ids]
        begins[1:] |= self.chinese[ids[:-1]]
        begins[:1] = True
        return begins

    def _spelled(self, word: tuple[int, ...]) -> str:
        """A word of the student's pieces as text, for the teacher; empty if the student does not know it."""
        text = self.spelled.get(word)
        if text is None:
            if len(self.spelled) >= KNOWN_WORDS:
                self.spelled.clear()
            if any(piece in self.tokenizer.special_ids for piece in word):
                text = ""  # unknown to the student
            elif self.mark:
                text = "".join(self.pieces[piece].removeprefix(self.mark) for piece in word)
            else:
                text = self.tokenizer.decode(word).strip()
            self.spelled[word] = text
        return text


class WordTeacher:
    """A teacher at every word: normalized states of an encoder's chosen layers, the mean of each word's pieces."""

    def __init__(
        self, folder: Folder, layers: Sequence[int], student: Tokenizer, precision: str = "auto", device: str = "cpu"
    ) -> None:
        config = folder.model.config
        top = max(layers)
        self.layers, self.device, self.width = tuple(layers), device, config.width
        weights = hashlib.sha256(str(config).encode())
        for name, tensor in sorted(folder.model.encoder.state_dict().items()):
            weights.update(name.encode() + tensor.float().numpy().tobytes())
        self.digest = weights.hexdigest()  # computed before the weights get their inference layout
        self.tokenizer, self.longest = folder.tokenizer, config.max_tokens
        self.precision = str(choose(precision, device))
        self.encoder = prepare(folder.model, precision, device).encoder
        if top < config.depth:  # the layers above are never used
            if config.unique_layers == config.depth:
                del self.encoder.layers[top:]
                config = replace(config, unique_layers=top)
            self.encoder.config = replace(config, depth=top)
            self.encoder.final_norm = None
        self.words = WordsOfPieces(student)

    def __call__(self, examples: Sequence[Example]) -> tuple[np.ndarray, Tensor]:
        """The word of every token of concatenated rows (tokens,), and the teacher's states (words, layers, width).

        A token whose word has no teacher state (it is special, unknown, or beyond the teacher's limit) has
        the number of words as its word.
        """
        numbers, texts, starts = [], [], []
        for example in examples:
            number, words = self.words.of(example.ids, example.special)
            lengths = np.fromiter((len(word) + 1 for word in words), np.int64, len(words))
            numbers.append(number)
            starts.append(np.cumsum(lengths) - lengths)
            texts.append(" ".join(words))
        encodings = self.tokenizer.encode_batch(texts)
        ids = [encoding.ids[: self.longest] for encoding in encodings]
        batch = pack(ids, multiple=ROUND)
        # The word of every token of the teacher, over all rows, in the batch's order.
        first = np.concatenate([[0], np.cumsum([len(s) for s in starts])])
        total = int(first[-1])
        owner = []
        for row in batch.order:
            encoding, size = encodings[row], len(ids[row])
            begin = np.fromiter((offset[0] for offset in encoding.offsets[:size]), np.int64, size)
            word = np.searchsorted(starts[row], begin, side="right") - 1 + first[row]
            special = np.fromiter(encoding.special[:size], bool, size)
            owner.append(np.where(special | (len(starts[row]) == 0), total, word))
        states, pieces = self._states(batch, np.concatenate(owner) if owner else np.zeros(0, np.int64), total)
        has_state = pieces > 0
        renumber = np.append(np.where(has_state, np.cumsum(has_state) - 1, has_state.sum()), has_state.sum())
        tokens = [renumber[np.where(n < 0, total, n + shift)] for n, shift in zip(numbers, first)]
        return np.concatenate(tokens), states[torch.from_numpy(has_state)]

    @torch.no_grad()
    def _states(self, batch: Batch, owner: np.ndarray, words: int) -> tuple[Tensor, np.ndarray]:
        """The teacher's states of some layers at every word: the mean over its pieces."""
        encoded = self.encoder(batch.to(self.device), layers=True)
        word = torch.from_numpy(owner).to(self.device)
        pieces = torch.bincount(word, minlength=words + 1)[:words]
        by_layer = []
        for layer in self.layers:
            states = encoded.layers[layer][: batch.tokens].float()
            sums = torch.zeros(words + 1, self.width, device=states.device).index_add_(0, word, states)
            by_layer.append(F.layer_norm(sums[:words] / pieces.clamp(min=1)[:, None], (self.width,)))
        return torch.stack(by_layer, 1).to(encoded.tokens.dtype).cpu(), pieces.cpu().numpy()


# ---- Token vectors to start from. A rare word is seen a few times in a short run: its vector would stay near its
# random start, and the teacher's token vectors already tell sentiment and topic.

START_SCALE = 0.1  # root mean square of the vectors, near where training takes them: Adam moves them little at first


def start_vectors(teacher: Folder, student: Tokenizer, rows: int, width: int) -> Tensor:
    """Token vectors for the student, from the teacher's: centred, reduced by principal components. (rows, width).

    A piece that the teacher lacks starts from the mean of the teacher's pieces of its spelling.
    """
    table = teacher.model.encoder.embeddings.tokens.weight.detach().float()
    role_ids = {
        student.token_to_id(spelling): teacher.tokenizer.token_to_id(teacher.tokenizer.roles[role])
        for role, spelling in student.roles.items()
        if role in teacher.tokenizer.roles
    }
    mark = "##" if student.kind == "wordpiece" else ""
    vectors = torch.zeros(rows, table.shape[1])
    for number in range(student.size):
        piece = student.id_to_token(number) or ""
        same = role_ids.get(number, teacher.tokenizer.token_to_id(piece))
        ids = [same] if same is not None else teacher.tokenizer.pieces_batch([piece.removeprefix(mark)])[0]
        if ids:
            vectors[number] = table[ids].mean(0)
    known = vectors[: student.size]
    centred = known - known.mean(0)
    if width < table.shape[1]:
        _, directions = torch.linalg.eigh(centred.T @ centred)  # by growing variance
        centred = centred @ directions[:, -width:].flip(1)
    start = torch.zeros(rows, width)
    start[: student.size, : centred.shape[1]] = centred
    return start * (START_SCALE / start[: student.size].pow(2).mean().sqrt())


# ---- Sentence vectors, cached in the run folder so that they are computed once.


def teacher(name: str, keep: Path, precision: str = "auto", device: str = "auto") -> Teacher:
    """A sentence-vector teacher: a function from texts to the named model's vectors, cached in the folder `keep`."""
    return partial(_vectors, name, keep, precision, device)


def _vectors(name: str, keep: Path, precision: str, device: str, texts: list[str]) -> np.ndarray:
    """A teacher's sentence vectors of texts, kept in a file for the next run."""
    decides = (name, precision, repr(facts_of_model(name)), *texts)
    digest = hashlib.sha256("\0".join(decides).encode("utf-8", "surrogatepass")).hexdigest()
    path = keep / f"{digest[:16]}.safetensors"
    try:
        return load(path.read_bytes())["vectors"].float().numpy()
    except (OSError, SafetensorError):
        pass  # not computed yet, or the file is incomplete
    model = Predictor.load(name, precision, device)
    note(f"Computing the vectors of {len(texts):,} texts with {name}.")
    parts = [texts[n : n + AT_ONCE] for n in range(0, len(texts), AT_ONCE)]
    vectors = np.concatenate([np.asarray(model.embed(part)) for part in track(parts, "asking the teacher", len(parts))])
    vectors = (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float16)
    keep.mkdir(parents=True, exist_ok=True)
    atomic_write(path, save({"vectors": torch.from_numpy(vectors)}))
    return vectors.astype(np.float32)
