"""The border to the tokenizers library: what is let in, and how its failures are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bertkit.errors import UserError


def refuse_bad_text(text: object, where: str) -> None:
    """Raise a UserError that names the place if `text` is no string, or holds a NUL or a lone surrogate."""
    if not isinstance(text, str):
        raise UserError(f"{where} is {type(text).__name__} {text!r:.60}, not text. Convert it to a string first.")
    if "\0" in text:
        raise UserError(f"{where} has a NUL character at position {text.index(chr(0))}. Remove it: text has none.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{where} has half a character (lone surrogate U+{ord(text[error.start]):04X}) at position "
                f"{error.start}. The file was read with the wrong encoding: read it again as UTF-8."
            ) from None


def refuse_bad_rows(texts: Sequence[str], what: str = "Row") -> None:
    """Like `refuse_bad_text` for each of many texts; the message counts rows from 1."""
    for row, text in enumerate(texts, 1):
        refuse_bad_text(text, f"{what} {row}")


@contextmanager
def panics_told(what: str, error_class: type[UserError] = UserError) -> Iterator[None]:
    """Turn a Rust panic into an `error_class` that begins with `what`; every other exception passes."""
    try:
        yield
    except BaseException as error:
        # It reaches Python as PanicException, which is deliberately no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise error_class(f"{what}: the tokenizers library failed ({error}).") from error


@contextmanager
def told(what: str, error_class: type[UserError] = UserError) -> Iterator[None]:
    """Turn any failure of the tokenizers library into an `error_class` that begins with `what`."""
    try:
        with panics_told(what, error_class):
            yield
    except UserError:
        raise
    except Exception as error:
        raise error_class(f"{what}: {error}") from error
