"""The embedded sample data: small files, written for this project, one folder per language."""

from pathlib import Path

from bertkit.errors import UserError, suggest

FOLDER = Path(__file__).parent
LANGUAGES = ("en", "zh")


def path(lang: str, name: str) -> Path:
    """The path of a sample file, e.g. path("en", "messages_train.csv"). An unknown name is a UserError."""
    if lang not in LANGUAGES:
        raise UserError(f"No sample data in language '{lang}'. {suggest(lang, list(LANGUAGES))}")
    file = FOLDER / lang / name
    if not name or not file.is_file():
        known = [entry.name for entry in (FOLDER / lang).iterdir()]
        raise UserError(f"No sample file '{name}' for language '{lang}'. {suggest(name, known)}")
    return file
