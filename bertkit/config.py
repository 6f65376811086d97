"""Settings: frozen dataclasses to and from TOML, strictly.

Fields of a settings class carry their help text (`option`), so that the command line, the TOML reader and `run.toml`
all come from one place.
Sections are nested dataclasses; a key in a section is spelled `section.key` with `--set`.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from bertkit.errors import UserError, suggest

T = TypeVar("T")
# Names known from other tools: a setting accepts the others of its row, unless another setting has that name.
SYNONYMS = (
    ("lr", "learning_rate"),
    ("batch", "batch_size"),
    ("max_tokens", "max_length"),
    ("out", "output_dir"),
    ("epochs", "passes", "num_epochs"),
    ("warmup", "warmup_ratio"),
    ("decay", "weight_decay"),
)
KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes", Path: "a path"}


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    argument: bool = False,
    choices: Collection[str] = (),
    short: str = "",
    name: str = "",
    factory: Any = MISSING,
    aliases: tuple[str, ...] = (),
    metavar: str = "",
    hidden: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A field of a settings class with its help. `argument`: positional, not named.

    aliases: other spellings ("--old"), accepted on the command line and in TOML but shown nowhere.
    metavar: the placeholder of its value in `--help`.
    at_least, at_most: the smallest and the largest valid number; `build` refuses others.
    """
    metadata = {
        "help": help, "argument": argument, "choices": choices, "short": short, "name": name, "aliases": aliases,
        "metavar": metavar, "hidden": hidden, "at_least": at_least, "at_most": at_most,
    }  # fmt: skip
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    seed: int = option(0, "Random seed.", at_least=0, at_most=2**32 - 1)
    threads: int = option(0, "CPU threads; 0: all available to this process.", at_least=0)
    device: str = option("auto", "Device to compute on.", choices=("auto", "cpu", "cuda", "mps"))
    precision: str = option(
        "auto", "Precision to compute in; auto: bf16 where the CPU handles it fast.", choices=("auto", "fp32", "bf16")
    )


ENGINES = ("auto", "torch", "onnx", "openvino")


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(Common):
    """Options of every command that answers with a model."""

    precision: str = option(
        "auto", "Precision to compute in; auto: bf16 where the CPU handles it fast; int8: the int8 file of an export.",
        choices=("auto", "fp32", "bf16", "int8"),
    )  # fmt: skip
    engine: str = option(
        "auto", "Inference engine: PyTorch, onnxruntime or OpenVINO; auto: torch, or onnx if torch is not installed or "
        "the folder has only an ONNX file.", choices=ENGINES,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RowsOptions(InferenceOptions):
    """Options of commands whose rows may be computed elsewhere."""

    engine: str = option(
        "auto", "Inference engine: PyTorch, onnxruntime or OpenVINO; auto: torch, or onnx if torch is not installed or "
        "the folder has only an ONNX file; ray: --on ray.", choices=(*ENGINES, "ray"),
    )  # fmt: skip
    on: str = option(
        "", "Where rows are computed: here, or by Ray's workers (RAY_ADDRESS names a cluster), as a job that can be "
        "killed and continued. Needs --out.", choices=("", "ray"),
    )  # fmt: skip
    workers: int = option(0, "Workers of Ray, each with --threads threads (default: 1); 0: one per core.", at_least=0)


def hints(cls: type) -> dict[str, Any]:
    """The types of a settings class: field name → type, resolved."""
    return get_type_hints(cls)


def aliases_of(f: dataclasses.Field[Any]) -> tuple[str, ...]:
    """All other names of a setting: earlier ones, and those of other tools."""
    earlier = (alias.lstrip("-").replace("-", "_") for alias in f.metadata.get("aliases", ()))
    row = next((row for row in SYNONYMS if f.name in row), ())
    return (*earlier, *(name for name in row if name != f.name))


def current_names(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The same values under the settings' current names; a setting given twice is an error."""
    known = {f.name for f in fields(cls)}
    renamed = {alias: f.name for f in fields(cls) for alias in aliases_of(f) if alias not in known}
    current: dict[str, Any] = {}
    for key, value in values.items():
        name = renamed.get(key.replace("-", "_"), key)
        if name != key and name in {other.replace("-", "_") for other in values}:
            raise UserError(f"{key} and {name} are the same setting. Pass only one of them.")
        current[name] = value
    return current


def build(cls: type[T], values: dict[str, Any], where: str = "settings", base: T | None = None) -> T:
    """A settings object from plain values; an unknown key or a wrong type is an error with the fix."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    types_ = hints(cls)
    fitted: dict[str, Any] = {}
    for key, value in current_names(cls, values).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UserError(f"{where}: there is no setting '{key}'. {suggest(name, list(known))}")
        current = getattr(base, name) if base is not None else None
        fitted[name] = _fit(types_[name], value, f"{where}: {key}", current)
        choices = known[name].metadata.get("choices")
        if choices and fitted[name] not in choices:
            raise UserError(f"{where}: {key} is {value!r}. {suggest(str(value), list(filter(None, choices)))}")
        if allowed := _range_missed(known[name], fitted[name]):
            spelled = _spelled(known[name]) if issubclass(cls, Common) else name
            raise UserError(f"{where}: {spelled} is {value!r}; it must be {allowed}.")
    if base is not None:
        return replace(base, **fitted)  # type: ignore[type-var]
    missing = [
        _spelled(f) for f in known.values()
        if f.name not in fitted and f.default is MISSING and f.default_factory is MISSING
    ]  # fmt: skip
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} must be set.")
    return cls(**fitted)


def _range_missed(f: dataclasses.Field[Any], value: Any) -> str:
    """The required range of a setting in words, if the number is outside it; otherwise empty."""
    least, most = f.metadata.get("at_least"), f.metadata.get("at_most")
    if (least is None and most is None) or type(value) not in (int, float):
        return ""
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if math.isfinite(value) and low <= value <= high:
        return ""
    if not math.isfinite(value) and most is None:
        return "a finite number"
    if least is None or most is None:
        return f"at least {least}" if most is None else f"at most {most}"
    return f"from {least} to {most}"


def _spelled(f: dataclasses.Field[Any]) -> str:
    """A setting as the command line shows it."""
    if "help" not in f.metadata:
        return f.name
    return f.name.upper() if f.metadata["argument"] else "--" + (f.metadata["name"] or f.name.replace("_", "-"))


def _fit(kind: Any, value: Any, where: str, base: Any = None) -> Any:
    """A setting's value converted to the field's type."""
    if isinstance(kind, type) and is_dataclass(kind):
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise UserError(f"{where} is a section with its own keys, not {value!r}.")
        return build(kind, value, where, base)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _fit(next(k for k in inner if k is not type(None)), value, where)
    if origin in (tuple, list):
        if isinstance(value, (str, Path)) and inner[0] is Path:
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where} must be a list, not {value!r}.")
        return tuple(_fit(inner[0], item, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    if kind is Any or kind is dict or origin is dict or (type(value) is kind):
        return value
    shown = f"a {type(value).__name__}" if "\n" in repr(value) else repr(value)
    raise UserError(f"{where} must be {KIND_NAMES.get(kind, kind)}, not {shown}.")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values, or a message with file and line."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise UserError(
            f"{path}: not valid TOML ({reason}). Write numbers without quotes and text in quotes."
        ) from None


def parse_set(assignment: str) -> dict[str, Any]:
    """`a.b=3` → {"a": {"b": 3}}. The value is TOML; a bare word is read as text."""
    key, equals, raw = assignment.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {assignment}: write KEY=VALUE, e.g. --set model.depth=6.")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return typing.cast(dict[str, Any], value)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two nested tables of settings as one; `above` wins."""
    out = dict(below)
    for key, value in above.items():
        key = key.replace("-", "_")
        are_tables = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if are_tables else value
    return out


def to_plain(settings: Any) -> dict[str, Any]:
    """Settings as nested plain values that TOML and JSON can hold; None is left out."""
    plain: dict[str, Any] = {}
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        if value is None:
            continue
        if is_dataclass(value):
            value = to_plain(value)
        elif isinstance(value, Path):
            value = str(value)
        elif isinstance(value, tuple):
            value = [str(item) if isinstance(item, Path) else item for item in value]
        plain[f.name] = value
    return plain


def remember(settings: Any) -> None:
    """Write `run.toml` into a command's output folder, unless the command wrote one itself."""
    out = getattr(settings, "out", None)
    elsewhere = getattr(settings, "store", "")  # a database, and its URL may hold a password
    if isinstance(out, Path) and out.is_dir() and not elsewhere and not (out / "run.toml").exists():
        (out / "run.toml").write_text(to_toml(to_plain(settings)), "utf-8")


def to_toml(values: dict[str, Any], _at: str = "") -> str:
    """Nested plain values of settings as TOML text."""
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in values.items():
        if isinstance(value, dict):
            text += f"\n[{_at}{key}]\n" + to_toml(value, f"{_at}{key}.")
    return text


def _toml(value: Any) -> str:
    """A settings value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # a file name may contain bytes that are not text
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


PRESETS = Path(__file__).parent / "presets"


def preset(name: str) -> dict[str, Any]:
    """A preset's values by name, e.g. bert-mini."""
    path = PRESETS / f"{name}.toml"
    if not path.is_file():
        raise UserError(f"There is no preset '{name}'. {suggest(name, [p.stem for p in PRESETS.glob('*.toml')])}")
    return read_toml(path)
