"""Google's original checkpoints of BERT, ALBERT and ELECTRA under Hugging Face's names; no TensorFlow needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.checkpoint.tensorflow.bundle import Bundle, is_bundle_index, read_bundle
from bertkit.checkpoint.tensorflow.config import Numbers, given_config, hugging_face_config
from bertkit.checkpoint.tensorflow.names import EMBEDDINGS, FAMILIES, KINDS, TRANSPOSED, Family, Row
from bertkit.errors import UserError, suggest
from bertkit.notify import note

OPTIMISER = re.compile(r"(^|/)(adam_[mv]|lamb_[mv]|Adam(_1)?|beta[12]_power|global_step|(good|bad)_steps|loss_scale)$")
CHECKPOINT_FILE = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
KERAS_MARK = "/.ATTRIBUTES/VARIABLE_VALUE"


def is_google(path: str | Path) -> bool:
    """Whether `path` is a folder with a TensorFlow checkpoint, its prefix (`…/bert_model.ckpt`) or one of its files."""
    try:
        path = Path(path)
        if path.is_dir():
            return any(".ckpt" in index.name or is_bundle_index(index) for index in path.glob("*.index"))
        return is_bundle_index(Path(CHECKPOINT_FILE.sub("", str(path)) + ".index"))
    except (OSError, ValueError):
        return False


def read_google(
    path: str | Path, *, exact: bool = False, part: str = ""
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read one checkpoint. Returns a Hugging Face config and float32 arrays by Hugging Face name, without tied copies.

    `part` chooses ELECTRA's 'discriminator' (as also '' does) or 'generator'. Hugging Face's own conversions run
    BERT and ALBERT with the erf form of GELU, Google's code with the tanh form: `exact` asks for the latter.
    """
    prefix = _prefix(Path(path))
    bundle = read_bundle(prefix)
    family = _family(bundle, part)
    config_path, given = given_config(prefix.parent, family)
    numbers = Numbers(family, bundle, config_path, given)
    names, groups = _names(family, bundle, numbers)
    config = hugging_face_config(family, numbers, groups, exact)
    _tell_left_out(bundle, set(names), family)
    arrays = {}
    for variable, tensor in names.items():
        array = bundle[variable]
        arrays[tensor] = np.ascontiguousarray(array.T if variable.endswith(TRANSPOSED) else array, dtype=np.float32)
    return config, arrays


def _prefix(path: Path) -> Path:
    """The prefix shared by a checkpoint's files."""
    if not path.is_dir():
        return Path(CHECKPOINT_FILE.sub("", str(path)))
    found = sorted(path.glob("*.index"))
    found = [index for index in found if is_bundle_index(index)] or found
    if not found:
        raise UserError(f"{path}: this folder contains no TensorFlow checkpoint (a file ending in .index).")
    names = [index.name.removesuffix(".index") for index in found]
    if len(names) == 1:
        return path / names[0]
    state = path / "checkpoint"  # TensorFlow's own note of the latest one; its folder is that of another machine
    text = state.read_text(encoding="utf-8", errors="replace") if state.is_file() else ""
    latest = re.search(r'^model_checkpoint_path: "(?:[^"]*[/\\])?([^"/\\]+)"', text, re.MULTILINE)
    if latest and latest[1] in names:
        return path / latest[1]
    raise UserError(
        f"{path}: this folder contains {len(names)} checkpoints. Pass one of them: {path / names[0]}, … "
        f"({', '.join(names)})."
    )


def _family(bundle: Bundle, part: str) -> Family:
    known = sorted({word for family in FAMILIES for word in family.parts if word})
    if part not in ("", *known):
        raise UserError(f"part '{part}' is unknown. {suggest(part, known)}")
    fitting = [family for family in FAMILIES if family.mark in bundle]
    for family in fitting:
        if part in family.parts:
            return family
    if fitting:
        raise UserError(
            f"{bundle.prefix}: this {fitting[0].model_type} checkpoint contains no {part or 'discriminator'}."
        )
    if any(name.endswith(KERAS_MARK) for name in bundle):
        raise UserError(
            f"{bundle.prefix} is a TensorFlow 2 (Keras) checkpoint. Only the layout of Google's original code is "
            "supported: use the model's original release."
        )
    raise UserError(
        f"{bundle.prefix} is not a BERT, ALBERT or ELECTRA checkpoint with the names of Google's code. "
        f"Its {len(bundle)} variables are {_first(sorted(bundle))}."
    )


def _names(family: Family, bundle: Bundle, numbers: Numbers) -> tuple[dict[str, str], set[str]]:
    """Variable name -> tensor name for everything in the checkpoint, and its groups; fills `numbers`."""
    names: dict[str, str] = {}

    def take(found: Iterable[tuple[str, str, str]]) -> None:
        for variable, tensor, letters in found:
            if variable not in bundle:
                raise UserError(
                    f"{bundle.prefix}.index: variable '{variable}' is missing: this {family.model_type} is incomplete. "
                    "Save all variables, or use the original release."
                )
            numbers.fit(variable, letters)
            names[variable] = tensor

    scope = next((scope for scope in family.embeddings if f"{scope}/word_embeddings" in bundle), family.embeddings[-1])
    take(_expand(EMBEDDINGS, f"{scope}/", f"{family.tensor_scope}."))
    take(_expand(family.body))
    for place in _places(family, bundle, numbers):
        take(_expand(family.layer_rows, family.layer.format(*place) + "/", family.layer_tensor.format(*place) + "."))
    groups = {
        group for group, rows in family.groups.items() if any(variable in bundle for variable, _, _ in _expand(rows))
    }
    if numbers.known.get("embedding_size", numbers.known["hidden_size"]) != numbers.known["hidden_size"]:
        groups |= family.groups.keys() & {"project"}
    for group in sorted(groups):
        take(_expand(family.groups[group]))
    return names, groups


def _expand(rows: Iterable[Row], variable_scope: str = "", tensor_scope: str = "") -> Iterator[tuple[str, str, str]]:
    """(variable, tensor, letters) for each array of each row."""
    for row in rows:
        for variable_end, tensor_end, axes in KINDS[row.kind]:
            letters = "".join(row.sizes[axis] for axis in axes)
            variable = (variable_scope + row.variable + variable_end).removeprefix("/")
            yield variable, tensor_scope + row.tensor + tensor_end, letters


def _places(family: Family, bundle: Bundle, numbers: Numbers) -> Iterator[tuple[int, ...]]:
    """Count the layers in the variables' names."""
    pattern = re.compile(re.escape(family.layer + "/").replace(r"\{\}", "([0-9]+)"))
    found = [tuple(map(int, match.groups())) for name in bundle if (match := pattern.match(name))]
    counts = []
    for axis, key in enumerate(family.counted):
        count = len({place[axis] for place in found})
        numbers.learn(key, count, f"{bundle.prefix}.index (counted in its variables' names)")
        counts.append(count)
    return product(*map(range, counts))


def _tell_left_out(bundle: Bundle, taken: set[str], family: Family) -> None:
    rest = [name for name in bundle if name not in taken]
    optimiser = [name for name in rest if OPTIMISER.search(name)]
    unknown = sorted(set(rest) - set(optimiser))
    unknown = [name for name in unknown if not name.startswith(family.elsewhere)]
    told = [f"{len(optimiser)} of the optimizer"] if optimiser else []
    told += [f"{len(unknown)} unknown ({_first(unknown)})"] if unknown else []
    if told:
        note(f"{bundle.prefix.name}: {len(taken)} variables read; left out: {' and '.join(told)}.")


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
