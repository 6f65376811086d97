"""The exceptions that users see."""


class UserError(Exception):
    """An error the user can fix. The message says what, where, which value, and what to do.

    The command line prints it alone and exits with code 2; the server answers 4xx with it.
    """


class DamagedFile(UserError):
    """A file that cannot be trusted: truncated, changed, or not in the format its name says."""


class Stopped(Exception):
    """A run stopped by a signal, after it saved. The exit code is 128 + the signal."""

    def __init__(self, signal: int, message: str = "stopped") -> None:
        super().__init__(message)
        self.signal = signal


def suggest(word: str, known: list[str]) -> str:
    """A "did you mean" clause for a mistyped word, or the list of choices."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Choose from: {', '.join(sorted(known))}."
