"""`bertkit embed`: turn texts into vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import Common, option
from bertkit.errors import UserError

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit embed`."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    file: Path = option(help="csv, tsv, jsonl, parquet or txt (one text per line).", argument=True)
    out: Path = option(help="The output file: .npy, .parquet or .jsonl.", default=Path("embeddings.npy"))
    layers: str = option(
        "last",
        "embeddings, last, second-to-last, sum-last-4, concat-last-4, sum-all, layer numbers (-1,-2), "
        "or auto: whichever of the six separates the labels of --probe best.",
    )
    probe: Path | None = option(None, "Labelled rows for --layers auto; 2,000 are enough.")
    label: str = option("label", "Name (or number) of the label column of --probe.")
    pool: str = option(
        "",
        "How a text's token vectors become one: mean, cls, max, lasttoken, weightedmean, mean_sqrt_len_tokens, several "
        "joined by +, or none (default: as the model was trained, else mean).",
    )
    prompt: str | None = option(
        None, "Name of the model's prompt to put before every text, e.g. query; '' for none (default: its default one)."
    )
    prompt_text: str | None = option(None, "A prompt in words to put before every text, e.g. 'query: '.")
    text: str = option("text", "Name (or number) of the text column.")
    on_long: str = option(
        "window", "Texts longer than the model's limit: read in windows, truncate, or refuse.",
        choices=("window", "truncate", "error"),
    )  # fmt: skip
    normalize: bool = option(False, "Scale every vector to length 1.")
    encoding: str = option("utf-8", "Encoding of the file.")


def run(settings: Settings) -> dict[str, Any]:
    """Turn the texts of a file into vectors, in order and in bounded memory."""
    import numpy as np

    from bertkit import machine
    from bertkit.data.readers import read_rows
    from bertkit.data.write_vectors import open_vectors
    from bertkit.files.atomic import not_the_input
    from bertkit.inference.predictor import AT_ONCE, Predictor
    from bertkit.notify import note, track
    from bertkit.runs.finetune.start import report_unknown
    from bertkit.text.checks import by_line

    _check(settings)
    not_the_input(settings.out, settings.file, settings.probe)
    machine.limit_onednn_cache()
    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    note(f"{settings.model}: {predictor.precision} on {predictor.device}.")
    layers = _probed(settings, predictor) if settings.layers == "auto" else settings.layers
    prompt = predictor.pooling.prompt(settings.prompt, settings.prompt_text)
    rows = read_rows(settings.file, text=settings.text, labelled=False, encoding=settings.encoding)
    source = iter(track(rows, f"embedding {settings.file.name}"))
    start = time.perf_counter()
    width = 0
    with open_vectors(settings.out) as out:
        while chunk := list(islice(source, AT_ONCE)):
            texts = [row.text for row in chunk]
            with by_line([row.line for row in chunk], str(settings.file)):
                if settings.pool == "none":
                    answers = predictor.embed_tokens(texts, layers, settings.on_long, settings.normalize, prompt)
                    columns = {name: [text[name] for text in answers] for name in ("vectors", "tokens", "offsets")}
                    out.write_tokens(texts, **columns)
                    width = columns["vectors"][0].shape[-1]
                else:
                    chosen = (layers, settings.pool, settings.on_long, settings.normalize or None)
                    vectors = np.asarray(predictor.embed(texts, *chosen, prompt_text=prompt))
                    out.write(texts, vectors)
                    width = vectors.shape[-1]
    seconds = time.perf_counter() - start
    return {
        "file": str(settings.out), "rows": out.count, "width": width, "layers": layers,
        "pool": settings.pool or predictor.pooling.mode, "prompt": prompt,
        "precision": predictor.precision, "seconds": round(seconds, 2),
        "texts_per_second": round(out.count / seconds, 1),
        "unknown_share": report_unknown(predictor, settings.model),
    }  # fmt: skip


def _check(settings: Settings) -> None:
    from bertkit.model.pooling import check_mode

    check_mode(settings.pool or "mean", ("none",))
    if settings.layers == "auto" and settings.probe is None:
        raise UserError(
            "--layers auto needs labelled rows: pass --probe FILE (a text and a label per row), "
            "or name the layers, e.g. --layers last."
        )
    if settings.probe is not None and settings.layers != "auto":
        raise UserError(
            f"--probe is only used with --layers auto, but --layers is {settings.layers!r}. Leave one of them out."
        )


def _probed(settings: Settings, predictor: Predictor) -> str:
    """The layers that separate the labelled rows best; all scores are reported."""
    from bertkit.ancestors.features import best_layers, probe, table
    from bertkit.data.readers import read_rows
    from bertkit.notify import note

    assert settings.probe is not None
    rows = list(read_rows(settings.probe, text=settings.text, label=settings.label, encoding=settings.encoding))
    texts, labels = [row.text for row in rows], [str(row.label) for row in rows]
    found = probe(predictor.embed, predictor.config.depth, texts, labels, settings.seed, settings.pool)
    note(table(found))
    return best_layers(found)


def lines(result: dict[str, Any]) -> list[str]:
    """What `bertkit embed` prints: the file, its shape and the speed; the prompt, if there was one, as another line."""
    prompt = [f"Prompt before every text: {result['prompt']!r}"] if result["prompt"] else []
    return [
        f"{result['file']}: {result['rows']:,} texts × {result['width']} ({result['layers']}, {result['pool']}, "
        f"{result['precision']}), {result['seconds']} s, {result['texts_per_second']} texts/s",
        *prompt,
    ]
