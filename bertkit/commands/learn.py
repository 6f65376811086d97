"""`bertkit learn KIND`: teach one of BERT's ancestors from running text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option

VECTORS = ("word2vec", "glove")
PIECES = ("piece-ngram", "nnlm", "rnn", "lstm", "gru")  # of a store, in the pieces of its tokenizer
KINDS = ("ngram", *VECTORS, *PIECES, "elmo")


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `learn` needs. Zero means: what suits the kind."""

    kind: str = option(help=f"One of {', '.join(KINDS)}.", argument=True, choices=KINDS)
    source: tuple[Path, ...] = option(
        help=f"Text files or folders; for {', '.join(PIECES)} the store that `bertkit prepare` made.", argument=True
    )
    out: Path = option(Path("runs/ancestor"), "Where to.")
    width: int = option(0, "Width of the vectors.", at_least=0)
    minutes: float = option(0.0, "Time budget of a neural model.", at_least=0)
    steps: int = option(0, "Budget of a neural model in steps.", at_least=0)
    tokens: int = option(0, "Budget of a neural model in tokens.", at_least=0)
    epochs: int = option(0, "Passes of word2vec and glove.", at_least=0)
    order: int = option(5, "Longest n-gram.", at_least=1)
    min_count: int = option(0, "Rarer words are dropped (vectors) or unknown (ngram).", at_least=0)
    architecture: str = option("skip-gram", "Of word2vec.", choices=("skip-gram", "cbow"))
    loss: str = option("negative", "Of word2vec.", choices=("negative", "hierarchical"))
    window: int = option(0, "Farthest word around that counts, for vectors.", at_least=0)
    units: str = option("words", "How text is cut into words.", choices=("words", "jieba", "characters"))
    cased: bool = option(False, "Keep capitals apart.")
    vocabulary: int = option(20_000, "Words that elmo can guess.", at_least=1)
    resume: bool = option(False, "Continue a neural model's run in --out.")


def run(settings: Settings) -> dict[str, Any]:
    """Learn an n-gram model, word vectors, a recurrent language model or an ELMo from running text."""
    from bertkit import machine
    from bertkit.config import to_plain, to_toml
    from bertkit.errors import UserError
    from bertkit.files.atomic import atomic_write, check_folder

    check_folder(settings.out)
    machine.set_up(settings.threads)
    stores = [path for path in settings.source if (path / "store.json").is_file()]
    if settings.kind in PIECES and (len(settings.source) != 1 or not stores):
        raise UserError(
            f"{settings.kind} learns from one store, not from {', '.join(map(str, settings.source))}. "
            "Make it with `bertkit prepare TEXT… --tokenizer DIR --out STORE`."
        )
    if settings.kind not in PIECES and stores:
        raise UserError(f"{settings.kind} learns from text files; {stores[0]} is a store. Give the text itself.")
    at_once: dict[str, Callable[[Settings], dict[str, Any]]] = {
        "ngram": _ngram, "word2vec": _vectors, "glove": _vectors, "piece-ngram": _pieces,
    }  # fmt: skip
    work = at_once.get(settings.kind, _elmo if settings.kind == "elmo" else _network)
    result = {"kind": settings.kind, "out": str(settings.out), **work(settings)}
    if settings.kind in at_once:  # the others are runs, which keep their settings themselves
        atomic_write(settings.out / "run.toml", to_toml(to_plain(settings)))
    return result


def _ngram(s: Settings) -> dict[str, Any]:
    from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
    from bertkit.data.readers.documents import read_documents

    how = NgramSettings(order=s.order, min_count=s.min_count or 2, cased=s.cased, units=s.units)
    model = NgramModel(how).fit(read_documents(s.source))
    _write(s, model.save)
    return {"ngrams": sum(model.ngrams), "words": len(model.words)}


def _vectors(s: Settings) -> dict[str, Any]:
    from bertkit.ancestors.vectors import glove, word2vec
    from bertkit.ancestors.vectors.corpus import read_sentences

    shared: dict[str, Any] = {"seed": s.seed, "threads": s.threads}
    chosen = {"dim": s.width, "epochs": s.epochs, "min_count": s.min_count, "window": s.window}
    shared |= {name: value for name, value in chosen.items() if value}
    sentences = read_sentences(s.source, units=s.units, cased=s.cased)
    if s.kind == "glove":
        vectors = glove.train(sentences, glove.GloveSettings(**shared))
    else:
        how = word2vec.Word2VecSettings(architecture=s.architecture, loss=s.loss, **shared)
        vectors = word2vec.train(sentences, how)
    _write(s, lambda folder: vectors.save(folder / "vectors.bin"))
    return {"words": len(vectors), "width": vectors.width}


def _pieces(s: Settings) -> dict[str, Any]:
    from bertkit.ancestors.ngram.pieces import PieceNgram

    model = PieceNgram.learn(s.source[0], s.order, seed=s.seed)
    model.save(s.out)
    return {"ngrams": model.parameters}


def _network(s: Settings) -> dict[str, Any]:
    from bertkit.ancestors.language_model.train import learn
    from bertkit.settings.ancestors import LearnSettings

    sizes: dict[str, Any] = {"width": s.width} if s.width else {}
    return learn(
        LearnSettings(
            kind=s.kind, data=s.source[0], out=s.out, minutes=s.minutes, steps=s.steps, tokens=s.tokens,
            resume=s.resume, seed=s.seed, threads=s.threads, device=s.device, precision=s.precision, **sizes,
        )
    )  # fmt: skip


def _elmo(s: Settings) -> dict[str, Any]:
    from dataclasses import replace

    from bertkit.ancestors.elmo.train import train
    from bertkit.settings.ancestors import ElmoNumbers, ElmoSettings

    model = ElmoNumbers()
    model = replace(model, width=s.width, cells=max(model.cells, s.width)) if s.width else model
    return train(
        ElmoSettings(
            texts=s.source, out=s.out, minutes=s.minutes, steps=s.steps, tokens=s.tokens, resume=s.resume,
            units=s.units, cased=s.cased, vocabulary=s.vocabulary, seed=s.seed, threads=s.threads, model=model,
        )
    )  # fmt: skip


def _write(s: Settings, save: Callable[[Path], None]) -> None:
    """A folder that says what it is."""
    import json

    from bertkit.files.atomic import atomic_write, write_folder

    def write(folder: Path) -> None:
        save(folder)
        atomic_write(folder / "bertkit.json", json.dumps({"ancestor": s.kind, "units": s.units, "cased": s.cased}))

    write_folder(s.out, write)


def lines(result: dict[str, Any]) -> list[str]:
    """What was learnt, and where it is."""
    told = ", ".join(f"{name} {value:,.6g}" for name, value in result.items() if isinstance(value, (int, float)))
    return [f"{result['kind']}: {told}; in {result['out']}"]
