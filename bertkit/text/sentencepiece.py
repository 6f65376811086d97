"""SentencePiece files read without the sentencepiece library, for ALBERT, XLM-RoBERTa, CamemBERT and DeBERTa.

The file is a protobuf message; only the few fields that tokenizing needs are read. Field numbers:
github.com/google/sentencepiece, src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import read_bytes
from bertkit.text.checks import tokenizer_errors
from bertkit.text.template import BERT_PAIR, ROBERTA_PAIR, add_specials, set_template

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
        contents = Pieces(
            pieces=pieces,
            algorithm=_last(trainer, 3, UNIGRAM),
            unk_id=_last(trainer, 40, 0),
            byte_fallback=bool(_last(trainer, 35, 0)),
            charsmap=_last(normalizer, 2, b""),
        )
        if not pieces or contents.pieces[contents.unk_id][2] != UNKNOWN:
            raise ValueError("it has no pieces, or its unknown piece is not where the file says")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise DamagedFile(
            f"{path}: not a complete SentencePiece file ({error}). Download it again; its usual name is spiece.model."
        ) from None
    return contents


@dataclass(frozen=True)
class FamilyLayout:
    """How a family numbers and prepares the pieces of its SentencePiece file."""

    family: str
    normalizer: Callable[[Mapping[str, Any], bytes], normalizers.Normalizer]
    dress: Callable[[tokenizers.Tokenizer], None]
    first: tuple[str, ...] = ()  # pieces before those of the file …
    replaced: int = 0  # … in place of as many of them
    last: tuple[str, ...] = ()  # pieces after those of the file, unless it has them
    needed: tuple[str, ...] = ()  # pieces without which a file is not this family's
    specials: tuple[str, ...] = ()
    unknown: str = ""  # "": the file's own
    pair: str = BERT_PAIR
    ends: tuple[str, str] = ("[CLS]", "[SEP]")
    comma_alone: bool = False  # no piece ends in a comma after a digit


def build(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a SentencePiece file; the family follows from the file's name and from `config`.

    `config`: tokenizer_config.json, which may say do_lower_case and keep_accents.
    """
    file, layout = read(path), _layout_of(path, config)
    if file.algorithm != UNIGRAM:
        kind = ALGORITHMS.get(file.algorithm, "unknown")
        raise UserError(
            f"{path}: this is a SentencePiece model of type '{kind}'; only 'unigram' ({layout.family}) is supported. "
            "Open the model with transformers once and save its tokenizer.json next to it."
        )
    names = {piece for piece, _, _ in file.pieces}
    if missing := [token for token in layout.needed if token not in names]:
        raise UserError(
            f"{path}: contains no {', '.join(missing)}, so it is not {layout.family}'s and its special tokens are "
            "unknown. Open the model with transformers once and save its tokenizer.json next to it."
        )
    vocabulary = [(piece, 0.0) for piece in layout.first]
    vocabulary += [
        (piece, _score(piece, score) if layout.comma_alone else score)
        for piece, score, _ in file.pieces[layout.replaced :]
    ]
    vocabulary += [(piece, 0.0) for piece in layout.last if piece not in names]
    unknown = layout.unknown or file.pieces[file.unk_id][0]
    unk_id = next((number for number, (piece, _) in enumerate(vocabulary) if piece == unknown), file.unk_id)
    with tokenizer_errors(f"{path}: cannot be used", DamagedFile):
        backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id, file.byte_fallback))
        backend.normalizer = layout.normalizer(config, file.charsmap)
        layout.dress(backend)
    # SentencePiece's user-defined symbols (ALBERT's are brackets, the full stop …) stay ordinary pieces. As added
    # tokens they would cut the text first, and the word after each would wrongly begin with a space.
    specials = layout.specials or tuple(piece for piece, _, kind in file.pieces if kind in (UNKNOWN, CONTROL))
    add_specials(backend, specials, eats_space=("<mask>",))
    set_template(backend, layout.pair, *layout.ends)
    return backend


def _layout_of(path: Path, config: Mapping[str, Any]) -> FamilyLayout:
    """Which family's SentencePiece file this is: by its name, or by tokenizer_config.json or config.json."""
    layouts = LAYOUTS.get(path.name, LAYOUTS["spiece.model"])
    named = str(config.get("tokenizer_class", "")).lower()
    if not any(layout.family.lower() in named for layout in layouts) and (path.parent / "config.json").is_file():
        named = (path.parent / "config.json").read_text("utf-8", errors="replace").lower()
    return next((layout for layout in layouts if layout.family.lower() in named), layouts[0])


def albert_normalizer(lower: bool, keep_accents: bool, charsmap: bytes = b"") -> normalizers.Normalizer:
    """ALBERT's normalizer before SentencePiece: quotes, accents, case, then SentencePiece's own character map."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if lower else []
    return normalizers.Sequence([*steps, *_own_map(charsmap)])


def _own_map(charsmap: bytes) -> list[normalizers.Normalizer]:
    """A SentencePiece file's own character map."""
    if not charsmap:
        return []
    own_map = normalizers.Precompiled(charsmap)
    # Precompiled deletes these too, but then miscounts every offset after one that begins a text.
    deletes = all(own_map.normalize_str(char) == "" for char in CONTROLS)
    return [*([normalizers.Replace(tokenizers.Regex(f"[{CONTROLS}]"), "")] if deletes else []), own_map]


SPACES = (("^ +| +$", ""), (" {2,}", " "))  # SentencePiece's own rule: none at the ends, one between words


def _deberta_normalizer(config: Mapping[str, Any], charsmap: bytes) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if config.get("do_lower_case", False) else []
    steps += [*_own_map(charsmap), *(normalizers.Replace(tokenizers.Regex(old), new) for old, new in SPACES)]
    return normalizers.Sequence(steps)


def dress_as_albert(backend: tokenizers.Tokenizer) -> None:
    """SentencePiece as ALBERT uses it: words begin with '▁', including the first."""
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")


def _dress_as_deberta(backend: tokenizers.Tokenizer) -> None:
    """SentencePiece as DeBERTa uses it: as ALBERT's, but only a plain space separates words."""
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")


_FAIRSEQ: dict[str, Any] = {
    "normalizer": lambda config, charsmap: normalizers.Sequence(_own_map(charsmap)),
    "dress": dress_as_albert,
    "last": ("<mask>",),
    "needed": ("<s>", "</s>"),
    "specials": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "unknown": "<unk>",
    "pair": ROBERTA_PAIR,
    "ends": ("<s>", "</s>"),
}
LAYOUTS: dict[str, tuple[FamilyLayout, ...]] = {
    "spiece.model": (
        FamilyLayout(
            "ALBERT",
            lambda config, charsmap: albert_normalizer(
                lower=config.get("do_lower_case", True),
                keep_accents=config.get("keep_accents", False),
                charsmap=charsmap,
            ),
            dress_as_albert,
            needed=("[CLS]", "[SEP]", "[MASK]"),
            comma_alone=True,
        ),
    ),
    # fairseq numbers special pieces of its own first, and leaves those of the file out (XLM-RoBERTa) or in (CamemBERT).
    "sentencepiece.bpe.model": (
        FamilyLayout("XLMRoberta", first=("<s>", "<pad>", "</s>", "<unk>"), replaced=3, **_FAIRSEQ),
        FamilyLayout(
            "CamemBERT",
            first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
            replaced=1,
            **_FAIRSEQ,
        ),
    ),
    "spm.model": (
        FamilyLayout(
            "DeBERTa",
            _deberta_normalizer,
            _dress_as_deberta,
            last=("[MASK]",),
            needed=("[CLS]", "[SEP]"),
            specials=("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
        ),
    ),
}


def _score(piece: str, score: float) -> float:
    # ALBERT re-splits pieces such as "1999," so that the comma stands alone (google-research/albert,
    # tokenization.py); making them very unlikely has the same effect.
    return score - 100 if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score


def _last(message: Fields, number: int, default: Any) -> Any:
    return message[number][-1] if number in message else default


def _fields(raw: bytes) -> Fields:
    """The fields of a protobuf message by number."""
    message: Fields = {}
    for number, value in _walk(raw):
        message.setdefault(number, []).append(value)
    return message


def _walk(raw: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a SentencePiece file's protobuf: (field number, value), int for varints, bytes otherwise."""
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
    """A number of a protobuf message, and where it ends."""
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
