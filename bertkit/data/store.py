"""The token store: running text as ids on disk, memory-mapped, that remembers words, sentences and documents.

A store is a folder:
- `tokens.bin`     the piece ids of all text, without special tokens; uint16, or uint32 for 65,536 pieces and more
- `words.bin`      uint8 per token: 1 where a word begins
- `sentences.bin`  int64: where each sentence begins in tokens.bin, and the end of the last
- `documents.bin`  int64: where each document begins in sentences.bin, and the end of the last
- `tokenizer/`     the tokenizer that made the ids
- `report.txt`     what `prepare` found
- `store.json`     format, counts, settings, and size and SHA-256 of every other file
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import open_regular, read_json
from bertkit.files.manifest import Entries, check, read_manifest, read_whole
from bertkit.text.tokenizer import Tokenizer

FORMAT = 1
FACTS = "store.json"
# Files up to this size are hashed at every opening; the large ones by `verify` only.
SMALL = 1 << 20
AGAIN = "Make it again: bertkit prepare TEXT… --tokenizer DIR --out {}"


class Store:
    """An open store. Its arrays are read from the disk as they are used, so a store may be larger than the memory.

    ids: (tokens,) piece ids. word_starts: (tokens,) 1 where a word begins. sentence_starts: (sentences + 1,)
    positions in `ids`. document_starts: (documents + 1,) positions in `sentence_starts`.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """Use `Store.open`, which checks the folder first."""
        self.folder = folder
        self.facts = facts
        self.tokens: int = facts["tokens"]
        self.sentences: int = facts["sentences"]
        self.documents: int = facts["documents"]
        self.fingerprint: str = facts["fingerprint"]
        self.max_tokens: int = facts["max_tokens"]
        self.ids = self._map("tokens.bin", facts["dtype"])
        self.word_starts = self._map("words.bin", "uint8")
        self.sentence_starts = self._map("sentences.bin", "int64")
        self.document_starts = self._map("documents.bin", "int64")

    @classmethod
    def open(cls, folder: str | Path, verify: bool = False) -> Store:
        """Open a store; a missing, unfinished, truncated or foreign folder is an error that says what to do.

        verify: read all of it first, as before a long run; otherwise large files are compared by size alone.
        """
        folder = Path(folder)
        if not (folder / FACTS).is_file():
            raise _missing(folder)
        store = read_whole(folder, lambda: cls._open(folder), verify=False, what="token store")
        if verify:
            store.verify()
        return store

    @classmethod
    def _open(cls, folder: Path) -> Store:
        """Open a token store: check its files' sizes and map its arrays."""
        facts = _facts(folder)
        try:
            entries = _entries(folder, facts)
            check(folder, entries, contents=False)
            check(folder, {name: file for name, file in entries.items() if file["bytes"] <= SMALL})
            store = cls(folder, facts)
            ends = (int(store.document_starts[-1]), int(store.sentence_starts[-1]), len(store.ids))
            sizes = (len(store.document_starts) - 1, len(store.sentence_starts) - 1, len(store.word_starts))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedFile(f"{folder / FACTS} was not written by bertkit. {AGAIN.format(folder)}") from error
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({error.strerror}). Check its permissions.") from error
        if ends != (store.sentences, store.tokens, store.tokens) or sizes != (
            store.documents, store.sentences, store.tokens,
        ):  # fmt: skip
            raise DamagedFile(f"{folder}: its files do not match each other. {AGAIN.format(folder)}")
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would be copied into another process; the folder is opened there instead.
        return Store.open, (self.folder,)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the store's ids."""
        return Tokenizer.load(self.folder / "tokenizer")

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer under which the store's ids would mean other pieces."""
        if tokenizer.fingerprint() != self.fingerprint:
            raise UserError(
                f"{self.folder} was made with a different tokenizer ({self.facts['pieces']:,} pieces) from the one "
                f"given ({tokenizer.size:,} pieces): its ids would mean different words. Use the tokenizer in "
                f"{self.folder / 'tokenizer'}, or prepare the text again with the one you want."
            )

    def split(self, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The store's documents for training and for evaluation, as sorted numbers; the same for a seed and a size.

        held_out: the fraction for evaluation. 0 holds none out; otherwise each side has a document if there are two.
        """
        if not 0 <= held_out < 1:
            raise UserError(
                f"held_out is {held_out}; it must be the fraction of documents to evaluate on: at least 0 and less "
                "than 1."
            )
        order = np.random.default_rng((seed, self.documents)).permutation(self.documents)
        count = min(max(round(held_out * self.documents), 1), self.documents - 1) if held_out else 0
        return np.sort(order[count:]), np.sort(order[:count])

    def verify(self) -> None:
        """Read every file and compare its SHA-256, and check that no number points outside the store.

        DamagedFile names the file that was changed.
        """
        check(self.folder, _entries(self.folder, self.facts))
        pieces = int(self.facts["pieces"])
        for begin in range(0, self.tokens, 1 << 24):
            if int(self.ids[begin : begin + (1 << 24)].max()) >= pieces:
                raise DamagedFile(f"{self.folder / 'tokens.bin'} holds ids beyond the {pieces:,} pieces. {self._again}")
        for name, starts in (("sentences.bin", self.sentence_starts), ("documents.bin", self.document_starts)):
            if starts[0] != 0 or not (np.diff(starts) >= 0).all():
                raise DamagedFile(f"{self.folder / name} holds places out of order. {self._again}")

    @property
    def _again(self) -> str:
        return AGAIN.format(self.folder)

    def _map(self, name: str, dtype: str) -> np.ndarray:
        open_regular(self.folder / name).close()
        return np.memmap(self.folder / name, dtype=dtype, mode="r")


def _missing(folder: Path) -> UserError:
    if partial_of(folder).is_dir():
        return UserError(
            f"{folder} is incomplete: its preparation was interrupted. Run the same `bertkit prepare` command "
            "again to continue where it stopped."
        )
    what = "is not a token store" if folder.exists() else "does not exist"
    return UserError(f"{folder} {what}. Make one: bertkit prepare TEXT… --tokenizer DIR --out {folder}")


def _entries(folder: Path, facts: dict[str, Any]) -> Entries:
    """What a store's manifest lists; a store of an early version lists it in store.json."""
    entries = read_manifest(folder)
    return facts["files"] if entries is None else entries


def _facts(folder: Path) -> dict[str, Any]:
    """A store's facts from store.json, in the format this version reads."""
    facts = read_json(folder / FACTS)
    version = facts.get("format")
    if version != FORMAT:
        raise UserError(
            f"{folder} has format {version}, but this version of bertkit reads {FORMAT}. {AGAIN.format(folder)}"
        )
    return facts


def partial_of(folder: Path) -> Path:
    """Where a token store is while `prepare` writes it."""
    return folder.with_name(folder.name + ".partial")
