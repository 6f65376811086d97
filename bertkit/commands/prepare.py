"""`bertkit prepare`: turn running text into a token store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit prepare`."""

    texts: tuple[Path, ...] = option(help="Files or folders of running text.", argument=True)
    tokenizer: str = option(help="A tokenizer folder, or a model whose tokenizer to use.")
    out: Path = option(help="The token store to write.")
    lang: str = option(
        "auto", "Segment Chinese text into words, except with en.", choices=("auto", "en", "zh")
    )  # fmt: skip
    keep_duplicates: bool = option(False, "Keep documents that occur more than once.")
    on: str = option(
        "", "Where text is prepared: here, or by Ray's workers (RAY_ADDRESS names a cluster).", choices=("", "ray")
    )
    workers: int = option(0, "Number of processes, here or of Ray; 0: one per core.", at_least=0)
    text: str = option("text", "Name (or number) of the text column of tables.")
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Turn running text into a token store for pretraining: streaming, on all cores, restartable."""
    from bertkit.checkpoint.locate import locate
    from bertkit.commands.jobs import prepared
    from bertkit.data.prepare.run import Reading, prepare
    from bertkit.text.tokenizer import Tokenizer

    _, report = prepare(
        settings.texts,
        Tokenizer.load(locate(settings.tokenizer)),
        settings.out,
        Reading(settings.text, settings.encoding, settings.lang, settings.keep_duplicates),
        workers=settings.workers or settings.threads,
        through=prepared if settings.on == "ray" else None,
    )
    return {"store": str(settings.out), **report}


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `prepare`: the store's name, then the report."""
    return [result["store"], *result["lines"]]
