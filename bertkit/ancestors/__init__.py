"""BERT's ancestors: what each is called, what it learns from, and how its folder opens.

`bertkit learn` and `bertkit.load` read this table. It imports nothing until a folder is opened, so help stays quick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bertkit.ancestors.elmo.model import Elmo
    from bertkit.ancestors.language_model.model import LanguageModel
    from bertkit.ancestors.ngram.model import NgramModel
    from bertkit.ancestors.ngram.pieces import PieceNgram
    from bertkit.ancestors.transformer.model import Seq2Seq
    from bertkit.ancestors.vectors.vectors import WordVectors

    AncestorModel: TypeAlias = NgramModel | PieceNgram | LanguageModel | Elmo | Seq2Seq | WordVectors


@dataclass(frozen=True)
class Ancestor:
    """key: what `learn` calls it. stored: what its bertkit.json calls it. source: text, a store, or pairs of texts."""

    key: str
    stored: str
    source: str
    open: Callable[[Path], AncestorModel]


def _ngram(folder: Path) -> NgramModel:
    """Open the folder of an n-gram model over words."""
    from bertkit.ancestors.ngram.model import NgramModel

    return NgramModel.load(folder)


def _piece_ngram(folder: Path) -> PieceNgram:
    """Open the folder of an n-gram model over a tokenizer's pieces."""
    from bertkit.ancestors.ngram.pieces import PieceNgram

    return PieceNgram.load(folder)


def _vectors(folder: Path) -> WordVectors:
    from bertkit.ancestors.vectors.vectors import open_vectors

    return open_vectors(folder)


def _language_model(folder: Path) -> LanguageModel:
    from bertkit.ancestors.language_model.model import LanguageModel

    return LanguageModel.load(folder)


def _elmo(folder: Path) -> Elmo:
    from bertkit.ancestors.elmo.model import Elmo

    return Elmo.load(folder)


def _seq2seq(folder: Path) -> Seq2Seq:
    from bertkit.ancestors.transformer.model import Seq2Seq

    return Seq2Seq.load(folder)


ANCESTORS = (
    Ancestor("ngram", "ngram", "text", _ngram),
    Ancestor("word2vec", "word2vec", "text", _vectors),
    Ancestor("glove", "glove", "text", _vectors),
    Ancestor("piece-ngram", "piece-ngram", "store", _piece_ngram),
    Ancestor("nnlm", "nnlm", "store", _language_model),
    Ancestor("rnn", "rnnlm", "store", _language_model),
    Ancestor("lstm", "rnnlm", "store", _language_model),
    Ancestor("gru", "rnnlm", "store", _language_model),
    Ancestor("elmo", "elmo", "text", _elmo),
    Ancestor("seq2seq", "seq2seq", "pairs", _seq2seq),
)
