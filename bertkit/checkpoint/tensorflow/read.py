"""Google's original checkpoints of BERT, ALBERT and ELECTRA under Hugging Face's names; no TensorFlow needed.

The config comes from its file and from the variables' shapes, which must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.checkpoint.tensorflow.bundle import Bundle, is_bundle_index, read_bundle
from bertkit.checkpoint.tensorflow.names import EMBEDDINGS, FAMILIES, KINDS, TRANSPOSED, GoogleFamily, VariableRow
from bertkit.errors import DamagedFile, UserError, suggest
from bertkit.files.guarded import parse_json, read_text
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
    """Read one of Google's checkpoints: a Hugging Face config, and float32 arrays by Hugging Face name (untied).

    `part` chooses ELECTRA's 'discriminator' (as also '' does) or 'generator'. Hugging Face's own conversions run
    BERT and ALBERT with the erf form of GELU, Google's code with the tanh form: `exact` asks for the latter.
    """
    prefix = _prefix(Path(path))
    bundle = read_bundle(prefix)
    family = _family(bundle, part)
    config_path, given = given_config(prefix.parent, family)
    numbers = ConfigNumbers(family, bundle, config_path, given)
    names, groups = _names(family, bundle, numbers)
    config = hugging_face_config(family, numbers, groups, exact)
    _report_left_out(bundle, set(names), family)
    arrays = {}
    for variable, tensor in names.items():
        array = bundle[variable]
        arrays[tensor] = np.ascontiguousarray(array.T if variable.endswith(TRANSPOSED) else array, dtype=np.float32)
    return config, arrays


def _prefix(path: Path) -> Path:
    """The prefix shared by the files of Google's checkpoint."""
    if not path.is_dir():
        return Path(CHECKPOINT_FILE.sub("", str(path)))
    indexes = sorted(path.glob("*.index"))
    indexes = [index for index in indexes if is_bundle_index(index)] or indexes
    if not indexes:
        raise UserError(f"{path}: this folder contains no TensorFlow checkpoint (a file ending in .index).")
    names = [index.name.removesuffix(".index") for index in indexes]
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


def _family(bundle: Bundle, part: str) -> GoogleFamily:
    """Which of Google's families a TensorFlow checkpoint belongs to, by its variables."""
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


def _names(family: GoogleFamily, bundle: Bundle, numbers: ConfigNumbers) -> tuple[dict[str, str], set[str]]:
    """Variable name -> tensor name for everything in Google's checkpoint, and its groups; fills `numbers`."""
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


def _expand(
    rows: Iterable[VariableRow], variable_scope: str = "", tensor_scope: str = ""
) -> Iterator[tuple[str, str, str]]:
    """(Google's variable, tensor, letters) for each array of each row."""
    for row in rows:
        for variable_end, tensor_end, axes in KINDS[row.kind]:
            letters = "".join(row.sizes[axis] for axis in axes)
            variable = (variable_scope + row.variable + variable_end).removeprefix("/")
            yield variable, tensor_scope + row.tensor + tensor_end, letters


def _places(family: GoogleFamily, bundle: Bundle, numbers: ConfigNumbers) -> Iterator[tuple[int, ...]]:
    """Count the layers in the names of Google's variables."""
    pattern = re.compile(re.escape(family.layer + "/").replace(r"\{\}", "([0-9]+)"))
    places = [tuple(map(int, match.groups())) for name in bundle if (match := pattern.match(name))]
    counts = []
    for axis, key in enumerate(family.counted):
        count = len({place[axis] for place in places})
        numbers.learn(key, count, f"{bundle.prefix}.index (counted in its variables' names)")
        counts.append(count)
    return product(*map(range, counts))


def _report_left_out(bundle: Bundle, taken: set[str], family: GoogleFamily) -> None:
    """Report the variables of a TensorFlow checkpoint that are not read."""
    rest = [name for name in bundle if name not in taken]
    optimiser = [name for name in rest if OPTIMISER.search(name)]
    unknown = sorted(set(rest) - set(optimiser))
    unknown = [name for name in unknown if not name.startswith(family.elsewhere)]
    counts = [f"{len(optimiser)} of the optimizer"] if optimiser else []
    counts += [f"{len(unknown)} unknown ({_first(unknown)})"] if unknown else []
    if counts:
        note(f"{bundle.prefix.name}: {len(taken)} variables read; left out: {' and '.join(counts)}.")


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


OTHER_CONFIGS = ("tokenizer", "generation", "special")
CONFIG_NAMES = ("bert_config.json", "albert_config.json", "electra_config.json", "config.json")


class ConfigNumbers:
    """The numbers of a Google checkpoint's config, each with its source; a second source must agree with the first."""

    def __init__(self, family: GoogleFamily, bundle: Bundle, config_path: Path | None, given: dict[str, Any]) -> None:
        self.family, self.bundle, self.config_path, self.given = family, bundle, config_path, given
        self.known: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        sized = {*family.sizes.values(), *family.counted, "num_hidden_layers", "num_attention_heads"}
        # ELECTRA's one config describes the discriminator; a generator's sizes are then those of its variables.
        own = "generator" not in family.parts or (config_path is not None and "generator" in config_path.name)
        for key in sorted(sized & given.keys()) if own else ():
            self.learn(key, self._whole_number(key), str(config_path))

    def learn(self, key: str, value: int, source: str) -> None:
        """Keep a number of Google's checkpoint, or report which two sources contradict each other."""
        if self.known.setdefault(key, value) != value:
            raise UserError(
                f"{self.sources[key]} says {key} is {self.known[key]}, but {source} says {value}. "
                "Use the checkpoint and the config of the same release."
            )
        self.sources.setdefault(key, source)

    def fit(self, variable: str, letters: str) -> None:
        """Learn numbers from the shape of one of Google's variables. letters: one per axis, as in names.py."""
        shape = self.bundle.shapes[variable]
        source = f"variable '{variable}' of {self.bundle.prefix.name}.index with shape {shape}"
        wrong = [size for letter, size in zip(letters, shape) if letter.isdigit() and int(letter) != size]
        if len(shape) != len(letters) or wrong or 0 in shape:
            raise UserError(
                f"{source}: a shape like ({', '.join(letters)}) is expected for {self.family.model_type}. "
                "Pass an unmodified checkpoint of the original code."
            )
        for letter, size in zip(letters, shape):
            if not letter.isdigit():
                self.learn(self.family.sizes[letter], size, source)

    def heads(self) -> int:
        """The number of attention heads of Google's checkpoint, from its config or the width of one head."""
        width = self.known["hidden_size"]
        heads = self.known.get("num_attention_heads", 0)
        if not heads:
            head_width = self.family.head_width
            if {"hidden_size", "num_attention_heads"} <= self.given.keys():  # a discriminator's: its heads are as wide
                whole, share = (self._whole_number(key) for key in ("hidden_size", "num_attention_heads"))
                head_width = max(1, whole // share)
            self._must_be_given("num_attention_heads", head_width)
            heads = max(1, width // head_width)
        if width % heads:
            raise UserError(
                f"{self.config_path or self.bundle.prefix}: hidden_size {width} is not a multiple of its {heads} "
                "heads. "
                "Correct num_attention_heads in the config."
            )
        return heads

    def depth(self) -> int:
        """The number of layers of Google's checkpoint, from its config or counted in the variables."""
        self._must_be_given("num_hidden_layers", self.known.get("num_hidden_layers", 0))
        return self.known["num_hidden_layers"]

    def _whole_number(self, key: str) -> int:
        value = self.given[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self.config_path}: {key} is {value!r}; a whole number above 0 is expected.")
        return value

    def _must_be_given(self, key: str, value: int) -> None:
        if value < 1:
            where = self.config_path or self.bundle.prefix.parent / f"{self.family.model_type}_config.json"
            raise UserError(
                f"{where}: {key} is missing and cannot be inferred from the variables' shapes. Add it to this file."
            )


def given_config(folder: Path, family: GoogleFamily) -> tuple[Path | None, dict[str, Any]]:
    """The config file next to a Google checkpoint and its content; (None, {}) if there is none, as with ELECTRA."""
    configs = sorted(path for path in folder.glob("*config*.json") if not path.name.startswith(OTHER_CONFIGS))
    if len(configs) > 1:
        by_part = [path for path in configs if any(word and word in path.name for word in family.parts)]
        configs = by_part or [folder / name for name in CONFIG_NAMES if (folder / name) in configs][:1] or configs
    if not configs:
        return None, {}
    if len(configs) > 1:
        raise UserError(
            f"{folder}: several configs ({', '.join(path.name for path in configs)}). Keep only the one that belongs "
            "to the checkpoint."
        )
    try:
        given = parse_json(read_text(configs[0]), str(configs[0]))
    except DamagedFile as error:
        raise UserError(f"{configs[0]}: not valid JSON ({error}). Download it again.") from error
    if not isinstance(given, dict):
        raise UserError(f"{configs[0]}: expected a JSON object of settings, not {type(given).__name__}.")
    return configs[0], {key: value for key, value in given.items() if value is not None}


def hugging_face_config(family: GoogleFamily, numbers: ConfigNumbers, groups: set[str], exact: bool) -> dict[str, Any]:
    """The config.json of a Google checkpoint: the class that fits its tensors, and all its numbers."""
    architecture = next(name for needed, name in family.architectures if groups.issuperset(needed))
    config: dict[str, Any] = {"architectures": [architecture], "model_type": family.model_type}
    for key, default in family.settings.items():
        value = numbers.given.get(key, default)
        fitting = (int, float) if isinstance(default, int | float) else type(default)
        if not isinstance(value, fitting):
            raise UserError(f"{numbers.config_path}: {key} is {value!r}; a value like {default!r} is expected.")
        config[key] = value
    if exact and config["hidden_act"] == "gelu":
        config["hidden_act"] = family.exact_gelu
    config |= {"num_attention_heads": numbers.heads(), "num_hidden_layers": numbers.depth()}
    config |= {key: numbers.known[key] for key in (*family.sizes.values(), *family.counted) if key in numbers.known}
    labels = config.pop("num_labels", 0)
    if "classify" in groups:
        config["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
        config["label2id"] = {f"LABEL_{label}": label for label in range(labels)}
    return config


GELU_FORMS = {
    "gelu": "GELU is computed in its exact (erf) form, as in transformers' own conversions; Google's code computed the "
    "tanh form, which `bertkit convert --exact-google` keeps.",
    "gelu_new": "GELU is computed in its tanh form, as in Google's own code.",
}


def origin(config: dict[str, Any]) -> str:
    """What the card says of a model read from Google's checkpoint, and of its GELU where transformers differs."""
    exact = {family.exact_gelu for family in FAMILIES if family.model_type == config["model_type"]}
    form = "" if exact == {"gelu"} else GELU_FORMS.get(config["hidden_act"], "")
    return f"Converted from one of Google's checkpoints. {form}".rstrip()
