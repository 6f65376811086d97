"""`bertkit inspect`: show how a model reads one text, as a page; or the rows that pretraining reads from a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option
from bertkit.errors import UserError
from bertkit.notify import padded
from bertkit.settings.pretrain import PACKING


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit inspect`."""

    model: str = option(help="Embedded name, folder, hub name; or a token store, or an n-gram model.", argument=True)
    text: str = option("", "The text; leave it out for a store (and for the commonest n-grams).", argument=True)
    text_b: str = option("", "The second text of a pair.")
    out: Path = option(Path("inspect.html"), "The page to write.")
    lang: str = option("en", "Language of the page.", choices=("en", "zh"))
    rows: int = option(3, "Store or n-grams: number of rows to show.", at_least=1)
    packing: str = option("next-sentence", "Store: how rows are formed.", choices=PACKING)
    unit: str = option("token", "Store: what is masked together.", choices=("token", "word", "span"))
    length: int = option(128, "Store: maximum tokens per row.", at_least=16)


def run(settings: Settings) -> dict[str, Any]:
    """Show tokens, where every head looks, and which tokens matter; or the masked rows and pairs of a store."""
    if (Path(settings.model) / "store.json").is_file():
        return _store(settings)
    if _is_ngram(Path(settings.model)):
        return _ngrams(settings)
    if not settings.text:
        raise UserError("There is no text to inspect. Usage: bertkit inspect MODEL TEXT")
    from bertkit import machine
    from bertkit.checkpoint.vocabulary_fit import report_unknown
    from bertkit.files.atomic import atomic_write, check_folder, explained, make_folder
    from bertkit.inference.explain import explain
    from bertkit.inference.predictor import Predictor
    from bertkit.report.explain import explain_report

    check_folder(settings.out.parent)
    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    result = explain(predictor, settings.text, settings.text_b or None)
    with explained(f"{settings.out} cannot be written"):
        make_folder(settings.out.parent)
    atomic_write(settings.out, explain_report(result, model=settings.model, lang=settings.lang))
    rounded = [[[[round(float(x), 4) for x in row] for row in head] for head in layer] for layer in result["attention"]]
    share = report_unknown(predictor, settings.model)
    return {**result, "attention": rounded, "page": str(settings.out), "unknown_share": share}


def _is_ngram(path: Path) -> bool:
    """Whether `inspect` is given an n-gram model: a folder of `learn ngram`, or an ARPA file."""
    return (path / "ngram.json").is_file() or (path.is_file() and ".arpa" in path.suffixes)


def _ngrams(settings: Settings) -> dict[str, Any]:
    """`inspect` on an n-gram model: those behind each word of a text; without one, the most probable of each order."""
    from bertkit.ancestors.ngram.model import NgramModel
    from bertkit.loading import open_model

    model = open_model(settings.model)
    assert isinstance(model, NgramModel)
    if settings.text:
        return {"ngrams": model.ngrams, "text": settings.text, "words": model.listing(settings.text)}
    orders = {order: model.top(order, settings.rows) for order in range(1, len(model.ngrams) + 1)}
    return {"ngrams": model.ngrams, "orders": orders}


def _ngram_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `inspect` for an n-gram model."""
    if "words" in result:
        rows = result["words"]
        return [
            f"{row['probability']:10.3g}  {row['order']}-gram  {' '.join([*row['context'], row['word']])}"
            for row in rows
        ]
    printed = []
    for order, rows in result["orders"].items():
        printed.append(f"{order}-grams: {result['ngrams'][int(order) - 1]:,}")
        printed += [f"{row['probability']:10.3g}  {' '.join(row['words'])}" for row in rows]
    return printed


def _store(settings: Settings) -> dict[str, Any]:
    """`inspect STORE`: some rows as pretraining reads them, with their masks."""
    from bertkit.data.feed import rows_of_store
    from bertkit.data.store import Store
    from bertkit.settings.training import MaskSettings

    if settings.text:
        raise UserError(f"{settings.model} is a token store, which needs no text. Leave the text out.")
    rows = rows_of_store(
        Store.open(settings.model), packing=settings.packing, masking=MaskSettings(unit=settings.unit),
        length=settings.length, rows=settings.rows, seed=settings.seed,
    )  # fmt: skip
    return {"store": settings.model, "packing": settings.packing, "unit": settings.unit, "rows": rows}


LABELS = {"next-sentence": ("the second text follows", "the second text is from another document"),
          "sentence-order": ("in order", "swapped")}  # fmt: skip


def _row_lines(result: dict[str, Any], number: int) -> list[str]:
    """`inspect` on a store: a row before masking, after it, and what became of each token to be predicted."""
    row = result["rows"][number]
    label = LABELS[result["packing"]][row["label"]] if row["label"] >= 0 else ""
    masked = [token for token in row["tokens"] if token["fate"]]
    fates = [f"{token['token']} → {token['shown']} ({token['fate']})" for token in masked]
    title = f"row {number + 1}: {len(row['tokens'])} tokens, {row['masked']} to be predicted"
    return [
        f"{title}; {label}" if label else title,
        "  before  " + " ".join(token["token"] for token in row["tokens"]),
        "  after   " + " ".join(token["shown"] for token in row["tokens"]),
        "  masked  " + ", ".join(fates),
    ]


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `inspect`: a token per line, with a bar for its importance (light: against the label).

    Of a store: each row before and after masking.
    """
    if "ngrams" in result:
        return _ngram_lines(result)
    if "store" in result:
        return [line for number in range(len(result["rows"])) for line in _row_lines(result, number)]
    prediction = result["said"]
    printed = [f"{prediction['label']}  {prediction['score']:.3f}"] if prediction else []
    most = max((abs(token["importance"]) for token in result["tokens"]), default=0.0) or 1.0
    for token in result["tokens"]:
        if not token["special"]:
            bar = ("█" if token["importance"] > 0 else "░") * round(24 * abs(token["importance"]) / most)
            printed.append(f"{padded(token['token'], 16)} {token['importance']:8.4f}  {bar}")
    return [*printed, result["page"]]
