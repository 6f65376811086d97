"""The columns of a table, wherever a command reads one."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class TextSettings(Common):
    """Tables with one column of texts."""

    text: str = option("text", "Name (or number) of the text column.")
    encoding: str = option("utf-8", "Encoding of the files.")


@dataclass(frozen=True, kw_only=True)
class PairSettings(TextSettings):
    """Tables whose rows may have two texts."""

    text_b: str = option("text_b", "Name (or number) of the second text's column.")


@dataclass(frozen=True, kw_only=True)
class TableSettings(PairSettings):
    """Tables of labelled rows."""

    label: str = option("label", "Name (or number) of the label column.")
    label_separator: str = option(
        "", "Separator of the labels in one cell of a multi-label file; by default , ; | and lists are recognised."
    )
