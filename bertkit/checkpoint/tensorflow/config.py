"""The config of a Google checkpoint, from its file and from the variables' shapes, which must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.checkpoint.tensorflow.bundle import Bundle
from bertkit.checkpoint.tensorflow.names import FAMILIES, Family
from bertkit.errors import DamagedFile, UserError
from bertkit.files.json import parse_json, read_text

OTHER_CONFIGS = ("tokenizer", "generation", "special")
CONFIG_NAMES = ("bert_config.json", "albert_config.json", "electra_config.json", "config.json")


class Numbers:
    """The config's numbers as they become known, each with its source; a second source must agree with the first."""

    def __init__(self, family: Family, bundle: Bundle, config_path: Path | None, given: dict[str, Any]) -> None:
        self.family, self.bundle, self.config_path, self.given = family, bundle, config_path, given
        self.known: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        sized = {*family.sizes.values(), *family.counted, "num_hidden_layers", "num_attention_heads"}
        # ELECTRA's one config describes the discriminator; a generator's sizes are then those of its variables.
        own = "generator" not in family.parts or (config_path is not None and "generator" in config_path.name)
        for key in sorted(sized & given.keys()) if own else ():
            self.learn(key, self._whole_number(key), str(config_path))

    def learn(self, key: str, value: int, source: str) -> None:
        """Keep `value`, or report which two sources contradict each other."""
        if self.known.setdefault(key, value) != value:
            raise UserError(
                f"{self.sources[key]} says {key} is {self.known[key]}, but {source} says {value}. "
                "Use the checkpoint and the config of the same release."
            )
        self.sources.setdefault(key, source)

    def fit(self, variable: str, letters: str) -> None:
        """Learn numbers from a variable's shape. letters: one per axis, as in names.py."""
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
        """The number of attention heads, from the config or from the width of one head."""
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
        """The number of layers, from the config or counted in the variables."""
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


def given_config(folder: Path, family: Family) -> tuple[Path | None, dict[str, Any]]:
    """The config file next to the checkpoint and its content; (None, {}) if there is none, as with ELECTRA."""
    found = sorted(path for path in folder.glob("*config*.json") if not path.name.startswith(OTHER_CONFIGS))
    if len(found) > 1:
        by_part = [path for path in found if any(word and word in path.name for word in family.parts)]
        found = by_part or [folder / name for name in CONFIG_NAMES if (folder / name) in found][:1] or found
    if not found:
        return None, {}
    if len(found) > 1:
        raise UserError(
            f"{folder}: several configs ({', '.join(path.name for path in found)}). Keep only the one that belongs to "
            "the checkpoint."
        )
    try:
        given = parse_json(read_text(found[0]), str(found[0]))
    except DamagedFile as error:
        raise UserError(f"{found[0]}: not valid JSON ({error}). Download it again.") from error
    if not isinstance(given, dict):
        raise UserError(f"{found[0]}: expected a JSON object of settings, not {type(given).__name__}.")
    return found[0], {key: value for key, value in given.items() if value is not None}


def hugging_face_config(family: Family, numbers: Numbers, groups: set[str], exact: bool) -> dict[str, Any]:
    """The config.json of the checkpoint: the class that fits its tensors, and all its numbers."""
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
    """The card's sentence on the model's origin, and on its GELU if Google's code and transformers differ."""
    exact = {family.exact_gelu for family in FAMILIES if family.model_type == config["model_type"]}
    form = "" if exact == {"gelu"} else GELU_FORMS.get(config["hidden_act"], "")
    return f"Converted from one of Google's checkpoints. {form}".rstrip()
