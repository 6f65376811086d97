"""How a folder's token vectors become one vector per text, in the files of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertkit import __version__
from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import read_json, write_json
from bertkit.model.pooling import ACTIVATIONS, JOIN, MODES, STEPS, Pooling, Step, activation_of
from bertkit.notify import note

MODULES = "modules.json"
# Our name → the key that versions 2 to 5 of sentence-transformers and TEI read; version 6 reads both spellings.
KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# What else its files say, and what ours say where nothing was read.
GENERAL, LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
KEPT: dict[str, dict[str, Any]] = {
    GENERAL: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    LIMITS: {"do_lower_case": False},
}
OLD_LIMITS = tuple(  # what the second file was called while every family had its own
    f"sentence_{family}_config.json"
    for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE = "sentence_embedding"  # what a module takes and gives: one vector per text


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, place) of every module of modules.json, in order; [] without one. Places are names inside the folder."""
    where = folder / MODULES
    if not where.is_file():
        return []
    modules = []
    for module in read_json(where, list):
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise DamagedFile(f"{where}: {module!r} has no type and path. Copy or download it again.")
        place = module["path"]
        if place and Path(place).name != place:
            raise UserError(f"{where}: names {place!r}, which is not a plain folder name, so it was not opened.")
        modules.append((module["type"].rpartition(".")[2], place))
    return modules


def encoder_place(folder: Path) -> Path:
    """Where the encoder's own files are: the folder, or the one inside it that old modules.json files name."""
    if (folder / "config.json").is_file():
        return folder
    kinds = dict(reversed(read_modules(folder)))
    if place := kinds.get("Transformer"):
        return folder / place
    if kinds and "Transformer" not in kinds:
        raise UserError(
            f"{folder / MODULES}: this folder has no Transformer, but {', '.join(reversed(kinds))}; bertkit opens "
            "encoders. Use sentence-transformers for it, or a model with a Transformer."
        )
    return folder


def read_pooling(folder: Path) -> Pooling | None:
    """The content of modules.json and of the folders it names, or None without one."""
    modules = read_modules(folder)
    if not modules:
        return None
    mode, include_prompt, steps, refused = "", True, [], []
    for kind, place in modules:
        if kind == "Pooling":
            config = read_json(folder / place / "config.json")
            names = _modes(config)
            mode = JOIN.join(names)
            include_prompt = config.get("include_prompt") is not False
            refused += [] if all(name in MODES for name in names) else [f"the pooling {' + '.join(names)}"]
        elif kind in STEPS:
            step, problem = _read_step(folder / place, kind)
            steps.append(step)
            problem = problem or ("" if mode else " before the pooling")
            refused += [f"{place or kind} ({kind}{problem})"] if problem else []
        elif kind != "Transformer":
            refused.append(f"{place or kind} ({kind})")
    if not mode and not refused:
        refused.append("no pooling at all")
    contents = _contents(folder, encoder_place(folder))
    settings = {key: contents[name][key] for name in contents for key in KEPT[name] if key in contents[name]}
    _check_prompts(folder / GENERAL, settings)
    limit = contents.get(LIMITS, {}).get("max_seq_length")
    normalize = bool(steps) and steps[-1].kind == "Normalize"
    pooling = Pooling(
        mode if not refused else "mean", normalize, " and ".join(refused), limit if isinstance(limit, int) else 0,
        settings, tuple(steps[:-1] if normalize else steps) if not refused else (), include_prompt,
    )  # fmt: skip
    _report(folder, pooling)
    return pooling


def _contents(folder: Path, encoder: Path) -> dict[str, dict[str, Any]]:
    """What the files of sentence-transformers' folder say, those of KEPT, by their present names."""
    contents = {GENERAL: read_json(folder / GENERAL)} if (folder / GENERAL).is_file() else {}
    limits = next((encoder / name for name in (LIMITS, *OLD_LIMITS) if (encoder / name).is_file()), None)
    return contents | ({LIMITS: read_json(limits)} if limits else {})


def _modes(config: dict[str, Any]) -> list[str]:
    """The pooling modes of either spelling, in the order they are joined; mean by default."""
    named = config.get("pooling_mode")
    if named:
        return [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    return [mode for mode, key in KEYS.items() if config.get(key)] or ["mean"]


def _read_step(place: Path, kind: str) -> tuple[Step, str]:
    """A sentence-transformers module after the pooling, and what of it bertkit does not support."""
    config = read_json(place / "config.json") if (place / "config.json").is_file() else {}
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, SENTENCE):
            return Step(kind), f" of {config[key]!r:.40}"
    if kind == "Dense" and activation_of(config) not in ACTIVATIONS:
        return Step(kind), f" with the activation {activation_of(config)!r:.40}"
    if kind not in ("Dense", "LayerNorm"):
        return Step(kind, config), ""
    tensors = _tensors(place)
    needed = "linear.weight" if kind == "Dense" else "norm.weight"
    if needed not in tensors or tensors[needed].ndim != (2 if kind == "Dense" else 1):
        raise DamagedFile(f"{place}: its weights have no {needed}. Copy or download the folder again.")
    return Step(kind, config, tensors), ""


def _tensors(place: Path) -> dict[str, np.ndarray]:
    """The tensors of a sentence-transformers module as float32, without torch, unless pickled or bfloat16."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(place / "model.safetensors")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        from bertkit.checkpoint.weights import read_weights

        tensors = {name: tensor.float().numpy() for name, tensor in read_weights(place)[0].items()}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _check_prompts(where: Path, settings: dict[str, Any]) -> None:
    """Refuse prompts of a sentence-transformers folder that are not texts with names."""
    prompts, default = settings.get("prompts", {}), settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise DamagedFile(f"{where}: 'prompts' is not a table of names and texts. Copy or download it again.")
    if default is not None and default not in (*prompts, "query", "document"):  # those two exist, empty, in any folder
        raise DamagedFile(
            f"{where}: default_prompt_name is {default!r:.60}, but the prompts are {', '.join(prompts) or 'none'}. "
            "Correct it, or set it to null."
        )


def _report(folder: Path, pooling: Pooling) -> None:
    """Report what a sentence-transformers folder does to a text before it is encoded."""
    if prompt := pooling.prompt():
        name = pooling.kept["default_prompt_name"]
        where = folder / GENERAL
        note(f"{where}: the prompt '{name}' ({prompt!r}) is put before each text to embed unless you choose another.")
    if pooling.kept.get("do_lower_case"):
        note(f"{folder / LIMITS}: texts are lower-cased, as this model expects.")


def write_pooling(folder: Path, pooling: Pooling, width: int, max_tokens: int) -> None:
    """Write the files with which sentence-transformers and TEI pool as bertkit does. width: of a token's vector."""
    steps = [*pooling.steps, *([Step("Normalize")] if pooling.normalize else [])]
    parts = ["Transformer", "Pooling", *(step.kind for step in steps)]
    places = ["", *(f"{n}_{part}" for n, part in enumerate(parts) if n)]
    # Version 6 has other class paths but knows these; older readers know only these.
    write_json(
        folder / MODULES,
        [
            {"idx": n, "name": str(n), "path": place, "type": f"sentence_transformers.models.{part}"}
            for n, (part, place) in enumerate(zip(parts, places))
        ],
    )
    modes = pooling.mode.split(JOIN)
    # Old keys alone: versions before 6 stop at a key they do not know. They cannot say another order.
    named = {key: mode in modes for mode, key in KEYS.items()}
    spelled = named if modes == [mode for mode in KEYS if mode in modes] else {"pooling_mode": modes}
    about = {"word_embedding_dimension": width, **spelled, "include_prompt": pooling.include_prompt}
    write_json(folder / places[1] / "config.json", about)
    for place, step in zip(places[2:], steps):
        named_io = {"module_input_name": SENTENCE, "module_output_name": SENTENCE}
        write_json(folder / place / "config.json", dict(step.config) or (named_io if step.kind == "Normalize" else {}))
        if step.tensors:
            from bertkit.files import tensors as tensor_file

            tensor_file.write(folder / place / "model.safetensors", step.tensors)
    general = {"__version__": {"bertkit": __version__}, "model_type": "SentenceTransformer"}
    for name, first in ((GENERAL, general), (LIMITS, {"max_seq_length": max_tokens})):
        write_json(folder / name, first | {key: pooling.kept.get(key, usual) for key, usual in KEPT[name].items()})
