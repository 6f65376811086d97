"""`bertkit meaning`: one word in several texts, by model and layer. `bertkit neighbours`: the words nearest to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertkit.commands import SharedCommand
from bertkit.config import Common, option
from bertkit.errors import UserError

LEARNT = ("word2vec", "glove", "elmo")  # kinds that --models may name without a folder: trained on --learn
KINDS = {
    "static": "{} (one vector per word)",
    "elmo": "{} (ELMo: both directions)",
    "gpt": "{} (GPT: only the words before)",
    "bert": "{} (BERT: the whole text)",
}


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit meaning`."""

    word: str = option(help="The word, as it is written in the texts.", argument=True)
    texts: tuple[str, ...] = option(help="Two or more texts that contain it.", argument=True)
    models: str = option(
        "", "Models, separated by commas: embedded names, folders (BERT, GPT, ELMo, word vectors), or word2vec, glove, "
        "elmo to train one now (default: the embedded model of the language).",
    )  # fmt: skip
    learn: Path | None = option(None, "Text to train word2vec, glove or elmo on (default: the sample passages).")
    minutes: float = option(0.5, "Training time of an elmo.", at_least=0)


def run(settings: Settings) -> dict[str, Any]:
    """Compare the vectors of one word in several texts, by model and layer."""
    from bertkit import machine
    from bertkit.ancestors.meaning import meaning
    from bertkit.inference import WordUses

    if len(settings.texts) < 2:
        raise UserError("There is only one text, so nothing to compare it with. Usage: bertkit meaning WORD TEXT TEXT…")
    machine.set_up(settings.threads)
    language = "zh" if any(char >= "\u2e80" for text in settings.texts for char in text) else "en"
    names = [name.strip() for name in settings.models.split(",") if name.strip()] or [language]
    models = {name: _opened(settings, name, language) for name in names}
    return WordUses(meaning(settings.word, settings.texts, models))


def _opened(settings: Settings, name: str, language: str) -> Any:
    """A model of `meaning --models`: trained now, or opened."""
    from bertkit.ancestors.elmo.model import Elmo
    from bertkit.ancestors.vectors.vectors import WordVectors, open_vectors
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import open_model

    path = Path(name)
    if name in LEARNT and not path.exists():
        return _learnt(settings, name, language)
    model = open_vectors(path) if path.is_file() else open_model(name, settings.precision, settings.device)
    if not isinstance(model, (Predictor, Elmo, WordVectors)):
        raise UserError(f"{name} has no vectors of words. Use a BERT, a GPT, an ELMo or word vectors.")
    return model


def _learnt(settings: Settings, kind: str, language: str) -> Any:
    """A small model that `meaning` trains on --learn (or the sample passages) and the texts themselves."""
    from bertkit import samples
    from bertkit.commands import learn
    from bertkit.loading import open_model

    source = settings.learn or samples.path(language, "passages.txt")
    with TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        texts.write_text("\n\n".join(settings.texts), "utf-8")
        options: dict[str, Any] = {"minutes": settings.minutes} if kind == "elmo" else {"min_count": 1, "epochs": 5}
        if language == "zh" and len(settings.word) == 1:
            options["units"] = "words"  # single characters
        out = Path(folder) / kind
        learn.run(learn.Settings(
            kind=kind, source=(source, texts), out=out, seed=settings.seed, threads=settings.threads, **options
        ))  # fmt: skip
        return open_model(out)


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `meaning`: the texts by number, then a table per model, a row per layer."""
    pairs = list(combinations(range(len(result["texts"])), 2))
    printed = [f"{number:3}  {text}" for number, text in enumerate(result["texts"], 1)]
    for row in result["models"]:
        printed += ["", KINDS[row["kind"]].format(row["model"])]
        if not row["layers"]:
            printed.append(f"  does not know the word {result['word']}")
            continue
        columns = "  ".join(f"{f'{a + 1}–{b + 1}':>6}" for a, b in pairs)
        printed.append(f"  layer   {columns}")
        for layer in row["layers"]:
            values = "  ".join(f"{layer['cosines'][a][b]:6.3f}" for a, b in pairs)
            printed.append(f"  {layer['layer']:5}   {values}")
    return printed


# ---- bertkit neighbours


@dataclass(frozen=True, kw_only=True)
class NeighboursSettings(Common):
    """Options of `bertkit neighbours`."""

    model: str = option(help="Word vectors: a folder made by `bertkit learn word2vec|glove`, or a file.", argument=True)
    words: tuple[str, ...] = option(help="One word; or three for an analogy: a is to b as c is to what?", argument=True)
    top: int = option(10, "Number of words to show.", at_least=1)


def run_neighbours(settings: NeighboursSettings) -> dict[str, Any]:
    """Find the nearest words by cosine, or complete an analogy of three words."""
    from bertkit.ancestors.vectors.vectors import open_vectors

    if len(settings.words) not in (1, 3):
        raise UserError(f"Pass one word, or three for an analogy; got {len(settings.words)}.")
    vectors = open_vectors(settings.model)
    ask: Callable[..., list[tuple[str, float]]] = vectors.neighbours if len(settings.words) == 1 else vectors.analogy
    nearest = ask(*settings.words, top=settings.top)
    return {"words": list(settings.words), "found": [{"word": word, "cosine": cosine} for word, cosine in nearest]}


def neighbours_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `neighbours`: one word per line."""
    return [f"{row['cosine']:7.3f}  {row['word']}" for row in result["found"]]


neighbours = SharedCommand(NeighboursSettings, run_neighbours, neighbours_lines)
