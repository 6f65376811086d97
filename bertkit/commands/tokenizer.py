"""`bertkit tokenizer`: train a tokenizer on text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option

SAMPLE = 4_000_000  # characters from the beginning of the text on which coverage is measured


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit tokenizer`."""

    texts: tuple[Path, ...] = option(help="Files or folders of running text.", argument=True)
    out: Path = option(help="The folder to write.", default=Path("tokenizer"))
    kind: str = option(
        "wordpiece", "The algorithm that splits words into pieces.", choices=("wordpiece", "bpe", "unigram")
    )
    size: int = option(16000, "Vocabulary size, in pieces.", at_least=1)
    cased: bool = option(False, "Keep case and accents.")
    simplify: bool = option(False, "Read traditional and full-width Chinese forms as simplified (wordpiece only).")
    min_frequency: int = option(2, "Pieces seen less often are not learned.", at_least=0)
    max_tokens: int = option(512, "Maximum text length of a model with this tokenizer, in tokens.", at_least=1)
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Train a tokenizer on running text, streaming, and report how well it fits."""
    from bertkit.data.readers import read_documents
    from bertkit.files.atomic import check_new_folder, write_folder
    from bertkit.notify import track
    from bertkit.text.coverage import report
    from bertkit.text.vocabulary import VocabularySettings, learn

    check_new_folder(settings.out)

    sample: list[str] = []  # collected during training: standard input cannot be read twice

    def lines_of_text() -> Iterator[str]:
        room = SAMPLE
        for document in read_documents(list(settings.texts), encoding=settings.encoding):
            for line in document.split("\n"):
                if room > 0:
                    sample.append(line)
                    room -= len(line)
                yield line

    tokenizer = learn(
        track(lines_of_text(), "reading text"),
        VocabularySettings(
            kind=settings.kind,
            size=settings.size,
            cased=settings.cased,
            min_frequency=settings.min_frequency,
            simplify=settings.simplify,
        ),
    )
    write_folder(settings.out, lambda folder: tokenizer.save(folder, settings.max_tokens))
    coverage = report(tokenizer, sample)
    return {"folder": str(settings.out), "kind": settings.kind, "size": tokenizer.size, "report": asdict(coverage),
            "lines": coverage.lines()}  # fmt: skip


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `tokenizer`: the folder, followed by the vocabulary report."""
    return [f"{result['folder']}: {result['kind']}, {result['size']:,} pieces", *result["lines"]]
