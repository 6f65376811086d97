"""SentencePiece files (spiece.model) read without the sentencepiece library, for ALBERT.

The file is a protobuf message; only the few fields that tokenizing needs are read. Field numbers:
github.com/google/sentencepiece, src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertkit.errors import DamagedFile, UserError
from bertkit.files.json import read_bytes
from bertkit.text.checks import tokenizer_errors
from bertkit.text.template import BERT_PAIR, add_specials, set_template

UNIGRAM, NORMAL, UNKNOWN, CONTROL = 1, 1, 2, 3
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
CONTROLS = "".join(map(chr, [*range(1, 9), 11, *range(14, 32), 127, 143, 159]))
Fields = dict[int, list[Any]]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The content of a SentencePiece file: (piece, score, type) per id, and how text is normalized."""

    pieces: list[tuple[str, float, int]]
    algorithm: int
    unk_id: int
    byte_fallback: bool
    charsmap: bytes


def read(path: Path) -> Pieces:
    """Parse a SentencePiece file; DamagedFile if it is not one."""
    try:
        message = _fields(read_bytes(path))
        pieces = []
        for raw in message.get(1, []):
            piece = _fields(raw)
            score = struct.unpack("<f", piece[2][-1])[0] if 2 in piece else 0.0
            pieces.append((piece[1][-1].decode("utf-8"), score, _last(piece, 3, NORMAL)))
        trainer, normalizer = (_fields(_last(message, number, b"")) for number in (2, 3))
        model = Pieces(
            pieces=pieces,
            algorithm=_last(trainer, 3, UNIGRAM),
            unk_id=_last(trainer, 40, 0),
            byte_fallback=bool(_last(trainer, 35, 0)),
            charsmap=_last(normalizer, 2, b""),
        )
        if not pieces or model.pieces[model.unk_id][2] != UNKNOWN:
            raise ValueError("it has no pieces, or its unknown piece is not where the file says")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise DamagedFile(
            f"{path}: not a complete SentencePiece file ({error}). Download it again; its usual name is spiece.model."
        ) from None
    return model


def build(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """ALBERT's tokenizer from its SentencePiece file. `config` may say do_lower_case and keep_accents."""
    model = read(path)
    if model.algorithm != UNIGRAM:
        kind = ALGORITHMS.get(model.algorithm, "unknown")
        raise UserError(
            f"{path}: this is a SentencePiece model of type '{kind}'; only 'unigram' (ALBERT) is supported. "
            "Open the model with transformers once and save its tokenizer.json next to it."
        )
    ids = {piece: number for number, (piece, _, _) in enumerate(model.pieces)}
    missing = [token for token in ("[CLS]", "[SEP]", "[MASK]") if token not in ids]
    if missing:
        raise UserError(
            f"{path}: contains no {', '.join(missing)}, so it is not ALBERT's and its special tokens are unknown. "
            "Open the model with transformers once and save its tokenizer.json next to it."
        )
    vocabulary = [(piece, _score(piece, score)) for piece, score, _ in model.pieces]
    with tokenizer_errors(f"{path}: cannot be used", DamagedFile):
        backend = tokenizers.Tokenizer(models.Unigram(vocabulary, model.unk_id, model.byte_fallback))
        backend.normalizer = albert_normalizer(
            lower=config.get("do_lower_case", True),
            keep_accents=config.get("keep_accents", False),
            charsmap=model.charsmap,
        )
        dress_as_albert(backend)
    # SentencePiece's user-defined symbols (ALBERT's are brackets, the full stop …) stay ordinary pieces. As added
    # tokens they would split the text first, and the word after each would wrongly begin with a space.
    add_specials(backend, [piece for piece, _, kind in model.pieces if kind in (UNKNOWN, CONTROL)])
    set_template(backend, BERT_PAIR, "[CLS]", "[SEP]")
    return backend


def albert_normalizer(lower: bool, keep_accents: bool, charsmap: bytes = b"") -> normalizers.Normalizer:
    """ALBERT's order: quotes, accents, case, then SentencePiece's own character map."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if lower else []
    if charsmap:
        own_map = normalizers.Precompiled(charsmap)
        # Precompiled deletes these too, but then miscounts every offset after one that begins a text.
        if all(own_map.normalize_str(char) == "" for char in CONTROLS):
            steps.append(normalizers.Replace(tokenizers.Regex(f"[{CONTROLS}]"), ""))
        steps.append(own_map)
    return normalizers.Sequence(steps)


def dress_as_albert(backend: tokenizers.Tokenizer) -> None:
    """Words begin with '▁', including the first."""
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")


def _score(piece: str, score: float) -> float:
    # ALBERT re-splits pieces such as "1999," so that the comma stands alone (google-research/albert,
    # tokenization.py); making them very unlikely has the same effect.
    return score - 100 if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score


def _last(message: Fields, number: int, default: Any) -> Any:
    return message[number][-1] if number in message else default


def _fields(raw: bytes) -> Fields:
    message: Fields = {}
    for number, value in _walk(raw):
        message.setdefault(number, []).append(value)
    return message


def _walk(raw: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) for each field: int for varints, bytes for everything else."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(raw, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field of unknown type at byte {at}")
        if at + size > len(raw):
            raise ValueError(f"it ends early, at byte {len(raw)}")
        yield key >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise ValueError(f"it ends early, at byte {at}")
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f"number too long at byte {at}")
