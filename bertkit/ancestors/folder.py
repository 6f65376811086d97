"""An ancestor's folder: a JSON file of numbers, a safetensors file, and the tokenizer's files where there is one.

Every ancestor is written whole or not at all, and opened with the same messages: missing, of another kind, damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.files.atomic import write_folder
from bertkit.files.guarded import open_regular, read_json
from bertkit.files.manifest import reading

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.files.tensors import Tensors
    from bertkit.text.tokenizer import Tokenizer

NO_LIMIT = 1_000_000  # the maximum length in the tokenizer's files: most ancestors have no limit


@dataclass(frozen=True)
class Layout:
    """Which files the folder of a kind of ancestor has.

    name: what messages call it. numbers, tensors: its JSON and safetensors files; empty: it has none. kinds: what its
    JSON may say under "ancestor"; empty: that file does not say.
    """

    name: str
    numbers: str = ""
    tensors: str = ""
    kinds: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that an ancestor's folder cannot do without."""
        return [file for file in (self.numbers, self.tensors) if file]


def save(
    folder: str | Path, layout: Layout, numbers: Any = None, tensors: Tensors | None = None,
    tokenizer: Tokenizer | None = None, *, limit: int = NO_LIMIT, also: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    """Write the files of an ancestor's folder: all of them or none.

    Other files of the folder stay, those of its parts too.

    limit: the longest text, for the tokenizer's files. also: writes what further files there are.
    """

    def fill(path: Path) -> None:
        write(path, layout, numbers, tensors, tokenizer, limit=limit)
        if also:
            also(path)

    write_folder(Path(folder), fill, add=True)


def write(
    folder: Path, layout: Layout, numbers: Any = None, tensors: Tensors | None = None,
    tokenizer: Tokenizer | None = None, *, limit: int = NO_LIMIT,
) -> None:  # fmt: skip
    """The files of an ancestor's folder, into a folder that the caller makes whole."""
    folder.mkdir(parents=True, exist_ok=True)
    if layout.tensors:
        from bertkit.files import tensors as tensor_file

        tensor_file.write(folder / layout.tensors, tensors or {})
    if layout.numbers:
        indent = 2 if layout.numbers == "bertkit.json" else None  # this one is read by people
        text = json.dumps(numbers, ensure_ascii=False, indent=indent)
        (folder / layout.numbers).write_text(text + "\n", "utf-8")
    if tokenizer is not None:
        tokenizer.save(folder, limit)


def load(folder: str | Path, layout: Layout) -> tuple[Any, dict[str, Tensor]]:
    """Read an ancestor's folder: its numbers and tensors; one that lacks them, or holds another kind, is refused."""
    folder = Path(folder)
    with opened(folder, layout):
        for file in layout.files:
            (folder / file).stat()  # a missing one is reported by `opened`
        numbers = read_json(folder / layout.numbers, object) if layout.numbers else {}
        if layout.kinds:
            _check_kind(folder, layout, numbers)
        return numbers, _tensors(folder / layout.tensors) if layout.tensors else {}


@contextmanager
def opened(folder: str | Path, layout: Layout) -> Iterator[None]:
    """Turn any error while an ancestor's folder is read and rebuilt into one of a few messages."""
    folder = Path(folder)
    if not folder.is_dir():
        files = " and ".join(layout.files)
        raise UserError(f"{folder}: there is no such folder. The folder of a saved {layout.name} holds {files}.")
    with reading(folder, what=layout.name):
        yield


def _check_kind(folder: Path, layout: Layout, numbers: Any) -> None:
    kind = numbers.get("ancestor") if isinstance(numbers, Mapping) else None
    if kind not in layout.kinds:
        raise UserError(
            f"{folder} holds no {layout.name} but another kind of model: {layout.numbers} says ancestor {kind!r}, "
            f"not {' or '.join(layout.kinds)}."
        )


def _tensors(path: Path) -> dict[str, Tensor]:
    from bertkit.files import tensors as tensor_file

    with open_regular(path) as file:
        return tensor_file.read(file.fileno(), str(path))


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors of an ancestor's folder as numpy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}
