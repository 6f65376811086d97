"""How a folder's token vectors become one vector per text, in the files of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.errors import DamagedFile, UserError
from bertkit.files.json import read_json, write_json
from bertkit.notify import note

MODULES = "modules.json"
# Our name → the key that versions 2 to 5 of sentence-transformers and TEI read; version 6 reads both spellings.
KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
KNOWN = ("cls", "mean", "max")
# What else its files say, and what ours say where nothing was read: kept as it is, for sentence-transformers alone.
GENERAL, LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
KEPT: dict[str, dict[str, Any]] = {
    GENERAL: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    LIMITS: {"do_lower_case": False},
}


@dataclass(frozen=True)
class Pooling:
    """mode: mean, cls or max. normalize: scale vectors to length 1. refused: what bertkit does not support.
    max_tokens: where sentence-transformers truncates a text; 0 if the folder does not say. kept: see KEPT."""

    mode: str = "mean"
    normalize: bool = False
    refused: str = ""
    max_tokens: int = field(default=0, compare=False)
    kept: dict[str, Any] = field(default_factory=dict, compare=False)

    def check(self) -> None:
        """Refuse to compute vectors that differ from those the folder was made for."""
        if self.refused:
            raise UserError(
                f"This folder's vectors use {self.refused}, which bertkit does not support. Ask for the "
                "encoder's own vectors (--pool mean, cls or max), or use sentence-transformers."
            )


def read_pooling(folder: Path) -> Pooling | None:
    """How a folder's sentence vectors are pooled, by the modules.json of sentence-transformers; None without one."""
    if not (folder / MODULES).is_file():
        return None
    where = folder / MODULES
    mode, normalize, refused = "", False, []
    for module in read_json(where, list):
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise DamagedFile(f"{where}: {module!r} has no type and path. Copy or download it again.")
        kind, place = module["type"].rpartition(".")[2], module["path"]
        if kind == "Pooling":
            # A name from the file must stay inside the folder.
            if Path(place).name != place:
                raise UserError(f"{where}: names {place!r}, which is not a plain folder name, so it was not opened.")
            modes = _modes(read_json(folder / place / "config.json"))
            mode = modes[0] if len(modes) == 1 and modes[0] in KNOWN else ""
            refused += [] if mode else [f"the pooling {' + '.join(modes)}"]
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            refused.append(f"{place or kind} ({kind})")
    if not mode and not refused:
        refused.append("no pooling at all")
    said = {name: read_json(folder / name) for name in KEPT if (folder / name).is_file()}
    kept = {key: said[name][key] for name in said for key in KEPT[name] if key in said[name]}
    _tell(folder, kept)
    limit = said.get(LIMITS, {}).get("max_seq_length")
    return Pooling(mode or "mean", normalize, " and ".join(refused), limit if isinstance(limit, int) else 0, kept)


def _modes(config: dict[str, Any]) -> list[str]:
    """The pooling modes of either spelling, in the order they are joined; mean by default."""
    said = config.get("pooling_mode")
    if said:
        return [str(one) for one in said] if isinstance(said, list) else [str(said)]
    return [mode for mode, key in KEYS.items() if config.get(key)] or ["mean"]


def _tell(folder: Path, kept: dict[str, Any]) -> None:
    """Report what sentence-transformers does to a text before encoding it and bertkit does not."""
    if name := kept.get("default_prompt_name"):
        where = folder / GENERAL
        note(f"{where}: this model expects the prompt '{name}' before each text; bertkit does not add it for you.")
    if kept.get("do_lower_case"):
        note(f"{folder / LIMITS}: this model expects lower-cased text; bertkit does not lower-case it for you.")


def write_pooling(folder: Path, pooling: Pooling, width: int, max_tokens: int) -> None:
    """Write the files with which sentence-transformers and TEI compute the same vectors."""
    parts = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    places = ["", *(f"{n}_{part}" for n, part in enumerate(parts) if n)]
    # Version 6 has other class paths but knows these; older readers know only these.
    write_json(
        folder / MODULES,
        [
            {"idx": n, "name": str(n), "path": place, "type": f"sentence_transformers.models.{part}"}
            for n, (part, place) in enumerate(zip(parts, places))
        ],
    )
    # Old keys alone: versions before 6 stop at a key they do not know.
    modes = {key: mode == pooling.mode for mode, key in KEYS.items()}
    write_json(folder / places[1] / "config.json", {"word_embedding_dimension": width, **modes, "include_prompt": True})
    for place in places[2:]:
        write_json(
            folder / place / "config.json",
            {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"},
        )
    general = {"__version__": {"bertkit": __version__}, "model_type": "SentenceTransformer"}
    for name, first in ((GENERAL, general), (LIMITS, {"max_seq_length": max_tokens})):
        write_json(folder / name, first | {key: pooling.kept.get(key, usual) for key, usual in KEPT[name].items()})
