"""`bertkit learn KIND`: train one of BERT's ancestors on running text.

`bertkit seq2seq`: the Transformer, from pairs of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.ancestors import ANCESTORS
from bertkit.commands import SharedCommand
from bertkit.config import Common, merged, option
from bertkit.settings.ancestors import SEQ2SEQ_PRESETS, UNITS, Seq2SeqSettings

PIECES = tuple(row.key for row in ANCESTORS if row.source == "store")  # in the pieces of the store's tokenizer
KINDS = (*(row.key for row in ANCESTORS if row.source != "pairs"), "hmm")
SAMPLE = 1_000_000  # characters of a text that are inspected before training
MOST_UNKNOWN = 0.1  # of a small text's words


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit learn`. Zero: the default of the kind."""

    kind: str = option(help=f"One of {', '.join(KINDS)}.", argument=True, choices=KINDS)
    source: tuple[Path, ...] = option(
        help=f"Text files or folders; for {', '.join(PIECES)} the token store made by `bertkit prepare`; for hmm, "
        "tagged sentences.",
        argument=True,
    )
    out: Path = option(Path("runs/ancestor"), "The output folder.")
    width: int = option(0, "Width of the vectors; 0: the kind's default.", at_least=0)
    minutes: float = option(0.0, "Time budget, for neural models.", at_least=0)
    steps: int = option(0, "Budget in steps, for neural models.", at_least=0)
    tokens: int = option(0, "Budget in tokens, for neural models.", at_least=0)
    epochs: int = option(0, "Passes over the text, for word2vec and glove; 0: the kind's default.", at_least=0)
    order: int = option(5, "Maximum n-gram length.", at_least=1)
    min_count: int = option(0, "Rarer words are dropped (vectors) or unknown (ngram); 0: automatic.", at_least=0)
    architecture: str = option("skip-gram", "Architecture, for word2vec.", choices=("skip-gram", "cbow"))
    loss: str = option("negative", "Loss, for word2vec.", choices=("negative", "nce", "hierarchical"))
    window: int = option(0, "Context window in words, for word2vec and glove; 0: the kind's default.", at_least=0)
    units: str = option(
        "auto", "How text is split into words; auto: jieba for Chinese, else at spaces and punctuation.",
        choices=("auto", *UNITS),
    )  # fmt: skip
    cased: bool = option(False, "Keep case.")
    arpa: Path | None = option(None, "For ngram: also write an ARPA file, which KenLM reads; compressed if .gz or .xz.")
    vocabulary: int = option(20_000, "For elmo: number of words that can be predicted.", at_least=1)
    resume: bool = option(False, "Continue the run in --out, for neural models.")


def run(settings: Settings) -> dict[str, Any]:
    """Learn an n-gram model, word vectors, a recurrent language model or an ELMo from text, or an HMM from tags."""
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
        raise UserError(f"{settings.kind} learns from text files; {stores[0]} is a store. Pass the text itself.")
    if settings.arpa and settings.kind != "ngram":
        raise UserError(f"--arpa is for ngram; {settings.kind} has no such file.")
    settings = settings if settings.kind == "hmm" else _suited(settings)
    at_once: dict[str, Callable[[Settings], dict[str, Any]]] = {
        "ngram": _ngram, "word2vec": _vectors, "glove": _vectors, "piece-ngram": _pieces, "hmm": _hmm,
    }  # fmt: skip
    work = at_once.get(settings.kind, _elmo if settings.kind == "elmo" else _network)
    result = {"kind": settings.kind, "out": str(settings.out), **work(settings)}
    if settings.kind in at_once:  # the others are runs, which save their own settings
        atomic_write(settings.out / "run.toml", to_toml(to_plain(settings)))
    return result


def _suited(s: Settings) -> Settings:
    """Choose how `learn` splits the text and which words count, unless the user did; the choice is reported."""
    from bertkit.notify import note

    text, complete = ("", False) if s.kind in PIECES else _sample(s.source)
    if s.units == "auto":
        s = replace(s, units="jieba" if _is_chinese(text) else "words")
        if s.units == "jieba":
            note("The text is Chinese: it is split into words by jieba. Pass --units words to use single characters.")
    if s.kind == "ngram" and not s.min_count:
        seen_once = _share_seen_once(text, s.units, s.cased) if complete else 0.0
        s = replace(s, min_count=1 if seen_once > MOST_UNKNOWN else 2)
        if s.min_count == 1:
            note(f"The text is small, and {seen_once:.0%} of its words occur once: all are kept (--min-count 1).")
    return s


def _sample(source: tuple[Path, ...]) -> tuple[str, bool]:
    """The beginning of the text that `learn` reads, and whether that is all; empty for a stream read only once."""
    from bertkit.data.readers.documents import read_documents

    if not all(path.is_file() or path.is_dir() for path in source):
        return "", False
    parts: list[str] = []
    size = 0
    for document in read_documents(source):
        parts.append(document[: SAMPLE - size])
        size += len(document)
        if size > SAMPLE:
            return "\n".join(parts), False
    return "\n".join(parts), True


def _is_chinese(text: str) -> bool:
    """Whether a quarter or more of the characters that `learn` reads are ideographs."""
    from bertkit.text.words import is_cjk

    return bool(text) and sum(map(is_cjk, text)) >= len(text) / 4


def _share_seen_once(text: str, units: str, cased: bool) -> float:
    """The share of words in a sample that occur once."""
    from collections import Counter

    from bertkit.ancestors.ngram.model import cut

    counts = Counter(word for word in cut(text, units, cased) if word != "\n")
    return sum(times == 1 for times in counts.values()) / max(1, counts.total())


def _ngram(s: Settings) -> dict[str, Any]:
    """`learn ngram`: train and write an n-gram model."""
    from bertkit.ancestors.ngram.arpa import write_arpa
    from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
    from bertkit.data.readers.documents import read_documents

    model_settings = NgramSettings(order=s.order, min_count=s.min_count, cased=s.cased, units=s.units)
    model = NgramModel(model_settings).fit(read_documents(s.source))
    _write(s, model.write)
    if s.arpa:
        write_arpa(model, s.arpa)
    return {"ngrams": sum(model.ngrams), "words": len(model.words)}


def _vectors(s: Settings) -> dict[str, Any]:
    """`learn word2vec` and `learn glove`: train and write word vectors."""
    from bertkit.ancestors.vectors import glove, word2vec
    from bertkit.ancestors.vectors.corpus import read_sentences

    shared: dict[str, Any] = {"seed": s.seed, "threads": s.threads}
    chosen = {"dim": s.width, "epochs": s.epochs, "min_count": s.min_count, "window": s.window}
    shared |= {name: value for name, value in chosen.items() if value}
    sentences = read_sentences(s.source, units=s.units, cased=s.cased)
    if s.kind == "glove":
        vectors = glove.train(sentences, glove.GloveSettings(**shared))
    else:
        model_settings = word2vec.Word2VecSettings(architecture=s.architecture, loss=s.loss, **shared)
        vectors = word2vec.train(sentences, model_settings)
    _write(s, lambda folder: vectors.save(folder / "vectors.bin"))
    return {"words": len(vectors), "width": vectors.width}


def _hmm(s: Settings) -> dict[str, Any]:
    """`learn hmm`: a trigram HMM tagger, in a folder that `predict` and `evaluate` open."""
    from bertkit.ancestors.baselines.adapters import Tags
    from bertkit.ancestors.hmm import Hmm
    from bertkit.tasks import make
    from bertkit.tasks.base import Reading

    task = make("tag")
    sentences = [sentence for path in s.source for sentence in task.read(path, Reading())]
    task.fit_labels(sentences)
    tagger = Hmm()
    Tags("hmm", tagger.name, tagger).fit(task, sentences, [], seed=s.seed, minutes=0).save(s.out)
    return {"sentences": len(sentences), "tags": len(task.labels), "words": len(tagger.tagger.lexicon)}


def _pieces(s: Settings) -> dict[str, Any]:
    from bertkit.ancestors.ngram.pieces import PieceNgram

    model = PieceNgram.learn(s.source[0], s.order, seed=s.seed)
    model.save(s.out)
    return {"ngrams": model.parameters}


def _network(s: Settings) -> dict[str, Any]:
    """`learn` for the neural left-to-right models: train one on a store."""
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
    """`learn elmo`: train an ELMo."""
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
    """Write the folder of `learn`, with a bertkit.json that names the model's kind."""
    import json

    from bertkit.files.atomic import atomic_write, write_folder

    def write(folder: Path) -> None:
        save(folder)
        atomic_write(folder / "bertkit.json", json.dumps({"ancestor": s.kind, "units": s.units, "cased": s.cased}))

    write_folder(s.out, write)


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `learn`: the model's figures and its folder."""
    facts = ", ".join(f"{name} {value:,.6g}" for name, value in result.items() if isinstance(value, (int, float)))
    return [f"{result['kind']}: {facts}; the model is in {result['out']}"]


# ---- bertkit seq2seq


def run_seq2seq(settings: Seq2SeqSettings) -> dict[str, Any]:
    """Train the encoder-decoder Transformer to turn sources into targets."""
    from bertkit.ancestors.transformer.train import train
    from bertkit.files.atomic import check_folder

    check_folder(settings.out)
    return train(settings)


def seq2seq_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `seq2seq`: the scores, and where the model is."""
    rows = [f"{name:20} {value:.4f}" for name, value in result["metrics"].items()]
    return [*rows, f"scored on {result['rows']:,} dev pairs; best of step {result['best_step']:,} in {result['out']}"]


def resolve_seq2seq(table: dict[str, Any]) -> dict[str, Any]:
    """The settings of the command `seq2seq`: given options on top of the preset's. An unknown preset is refused."""
    return merged({"model": SEQ2SEQ_PRESETS.get(table.get("preset", ""), {})}, table)


seq2seq = SharedCommand(Seq2SeqSettings, run_seq2seq, seq2seq_lines, resolve_seq2seq)
