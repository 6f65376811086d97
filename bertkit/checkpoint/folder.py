"""Model folders in and out: bertkit writes what transformers opens, and vice versa."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint import card
from bertkit.checkpoint.families import FAMILIES, Architecture, Family
from bertkit.checkpoint.sentence_modules import encoder_place, read_pooling, write_pooling
from bertkit.checkpoint.tensorflow.read import is_google, origin, read_google
from bertkit.checkpoint.translate import (
    architecture_for,
    check_expressible,
    config_from,
    config_to,
    family_of,
    heads_of,
    names,
    tensors_from,
    tensors_to,
)
from bertkit.checkpoint.weights import INSIDE, read_weights, unwrapped
from bertkit.errors import DamagedFile, UserError
from bertkit.files import tensors as tensor_file
from bertkit.files.guarded import open_regular, read_json, write_json
from bertkit.files.manifest import read_whole
from bertkit.machine import torch
from bertkit.model.crf import Chain
from bertkit.model.engine import AGAIN, FILES, GRAPH, OnnxEngine
from bertkit.model.pooling import Pooling
from bertkit.notify import note
from bertkit.settings.model import HEADS, Config, is_trained
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.heads import Crf, Model

LAYER = re.compile(r"(^|\.)(layer|layers|h|albert_layer_groups)\.\d+\.")
CRF = "crf.safetensors"
HOSTILE = ("auto_map", "trust_remote_code", "_attn_implementation_internal", "custom_pipelines")


@dataclass
class Folder:
    """A model with everything that belongs to it: the content of a folder."""

    model: Model
    tokenizer: Tokenizer
    family: str
    labels: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)  # bertkit.json: task, calibration, data hashes …
    raw_config: dict[str, Any] = field(default_factory=dict)  # config.json as it was, to keep what is not ours
    name: str = ""
    pooling: Pooling | None = None  # how its vectors are made, where it was made for vectors

    @property
    def architecture(self) -> Architecture:
        """The transformers class of a model folder."""
        return architecture_for(FAMILIES[self.family], frozenset(self.model.heads))


@dataclass
class OnnxFolder:
    """The content of a folder whose model is an ONNX file: the same, without weights."""

    engine: OnnxEngine
    tokenizer: Tokenizer
    family: str
    labels: tuple[str, ...]
    about: dict[str, Any]
    raw_config: dict[str, Any]
    name: str
    pooling: Pooling | None


UNNAMED = ("LABEL_0", "LABEL_1")


def read_folder(
    path: Path,
    *,
    heads: dict[str, int] | None = None,
    labels: tuple[str, ...] = (),
    task: str = "",
    numbers: dict[str, Any] | None = None,
    google: dict[str, Any] | None = None,
    verify: bool = True,
) -> Folder:
    """Open a model folder (Hugging Face's, Google's or ours), as it was before or after a write to it.

    Without `heads` the model gets the heads its file has. With them (kind → number of labels) it
    gets exactly those; what the file does not hold is new, reported once, and listed in
    `model.untrained`. A head of another task is new too; of one with other labels, the rows of those in `labels` are
    kept. `numbers` replace those of config.json (such as dropout, not shapes). verify: compare the SHA-256 of every
    file with the folder's manifest, if it has one.
    """
    folder = path if path.is_dir() else path.parent
    return read_whole(folder, lambda: _read(path, heads, labels, task, numbers, google), verify=verify, what="model")


def _read(
    path: Path,
    heads: dict[str, int] | None,
    labels: tuple[str, ...],
    task: str,
    numbers: dict[str, Any] | None,
    google: dict[str, Any] | None,
) -> Folder:
    """Read a model folder of any layout: config, weights, tokenizer, and what bertkit.json adds."""
    if is_google(path):
        raw, arrays = read_google(path, **(google or {}))
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        source = path
    else:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder.")
        inner = encoder_place(path)
        raw = read_json(inner / "config.json")
        tensors, source = read_weights(inner)
    where = str(path / "config.json")
    family, config, about, pooling = _described(path, raw)
    if family.base != INSIDE:
        tensors = unwrapped(tensors, (INSIDE,))
    config = replace(config, **(numbers or {}))
    stored = _stored_labels(raw)
    as_stored = heads is None
    if heads is None:
        kinds = _heads_in(family, raw, tensors)
        choices = family.architectures.get(frozenset({"choice"}))
        if about.get("task") == "choose" and choices and raw.get("architectures") == [choices.name]:
            kinds = frozenset({"choice"})  # transformers calls it a classifier with one output
        heads = {kind: HEADS[kind].outputs or len(stored) for kind in kinds}
    architecture = architecture_for(family, frozenset(heads))
    _fits(config, tensors, where, source)
    from bertkit.model.heads import Model

    model = Model(config, heads, pooler=architecture.pooler is not None)
    _untie_check(tensors, family, config.tied, str(source))
    if not as_stored:
        before = str(about.get("task") or task)
        tensors = _known_rows(tensors, model, family, architecture, (before, stored), (task, labels), str(path))
    state, missing, left = tensors_from(tensors, model, family, architecture, str(source))
    _accept(model, state, missing, str(source))
    if layers := [name for name in left if LAYER.search(name)]:
        note(
            f"{source}: {len(layers)} tensors belong to layers that config.json does not mention "
            f"(first: {layers[0]}); they were left out."
        )
    tokenizer = _fitting_tokenizer(path, config, pooling)
    options = about.get("options")
    if as_stored and "token" in heads and isinstance(options, dict) and options.get("crf"):
        model.crf = _read_crf(path / CRF, heads["token"])
    return Folder(model, tokenizer, family.model_type, labels or stored, about, raw, path.name, pooling)


def _described(path: Path, raw: dict[str, Any]) -> tuple[Family, Config, dict[str, Any], Pooling | None]:
    """What a folder's small files say of its model: family, numbers, bertkit.json and pooling."""
    where = str(path / "config.json")
    for key in sorted(set(HOSTILE) & set(raw)):
        note(f"{where}: '{key}' asks to run code from the folder. bertkit never does; the key is ignored.")
        raw.pop(key)
    family = family_of(raw, where)
    config = config_from(raw, where)
    about = read_json(path / "bertkit.json") if (path / "bertkit.json").is_file() else {}
    if is_google(path):
        about = {"notes": [origin(raw)]}
    pooling = read_pooling(path) if about.get("task", "embed") == "embed" else None
    if pooling and not pooling.refused and not about:
        about = {"task": "embed", "options": {"pool": pooling.mode}}
    return family, config, about, pooling


# ---- Folders whose model is an ONNX file: what `bertkit export`, optimum and transformers.js know, without torch.

ANSWERING = ("text", "token", "span", "choice", "mlm")  # heads whose outputs a file calls logits


def onnx_file(folder: Path, precision: str = "auto") -> Path | None:
    """The ONNX file of a model folder that is opened, if it has one."""
    wanted = [FILES[precision]] if precision in FILES else list(FILES.values())
    names = wanted if precision == "int8" else [*wanted, GRAPH]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_onnx(path: Path, *, runtime: str = "onnx", precision: str = "auto", verify: bool = True) -> OnnxFolder:
    """Open a model folder with an ONNX file, without torch. precision: fp32 or int8 names the file."""
    return read_whole(path, lambda: _read_onnx(path, runtime, precision), verify=verify, what="model")


def _read_onnx(path: Path, runtime: str, precision: str) -> OnnxFolder:
    """Read an exported folder: its ONNX file, config and tokenizer."""
    file = onnx_file(path, precision)
    if file is None:
        has = ", ".join(name for name in (*FILES.values(), GRAPH) if (path / name).is_file()) or "none"
        raise UserError(f"{path} has no ONNX file in {precision} (it has: {has}). {AGAIN}")
    raw = read_json(path / "config.json")
    family, config, about, pooling = _described(path, raw)
    stored = _stored_labels(raw)
    listed = raw.get("architectures")
    heads = heads_of(family, str(listed[0]) if isinstance(listed, list) and listed else None) or frozenset()
    kind = next((head for head in ANSWERING if head in heads), "")
    options = about.get("options")
    chained = kind == "token" and isinstance(options, dict) and options.get("crf")
    weights = None
    if file.name == Path(GRAPH).name:
        with open_regular(path / "model.safetensors") as weights_file:
            weights = tensor_file.read_arrays(weights_file.fileno(), str(path / "model.safetensors"))
    engine = OnnxEngine(
        file, config, kind, runtime=runtime, precision="int8" if file.name == Path(FILES["int8"]).name else "fp32",
        weights=weights, crf=_read_chain(path / CRF, len(stored)) if chained else None,
        transformed=config.token_transform,
    )  # fmt: skip
    tokenizer = _fitting_tokenizer(path, config, pooling)
    return OnnxFolder(engine, tokenizer, family.model_type, stored, about, raw, path.name, pooling)


def _fitting_tokenizer(path: Path, config: Config, pooling: Pooling | None) -> Tokenizer:
    """The folder's tokenizer, which must fit its model, as must the modules of sentence-transformers."""
    tokenizer = Tokenizer.load(encoder_place(path) if path.is_dir() else path.parent)
    if pooling:
        _fit_modules(pooling, config.width, path)
        tokenizer = tokenizer.lowered() if pooling.kept.get("do_lower_case") else tokenizer
    if tokenizer.size > config.vocabulary:
        raise UserError(
            f"{path}: the tokenizer has {tokenizer.size} pieces but the model only {config.vocabulary} word vectors. "
            "Tokenizer and weights do not belong together."
        )
    return tokenizer


def _fit_modules(pooling: Pooling, width: int, path: Path) -> None:
    """Refuse a model folder whose sentence-transformers modules do not fit each other."""
    for step, given, expected in pooling.widths(width):
        if given != expected:
            raise DamagedFile(
                f"{path}: the module {step} expects vectors of width {expected}, but is given {given}. Its files do "
                "not belong together."
            )


def _known_rows(
    tensors: dict[str, Tensor],
    model: Model,
    family: Family,
    architecture: Architecture,
    before: tuple[str, tuple[str, ...]],
    now: tuple[str, tuple[str, ...]],
    where: str,
) -> dict[str, Tensor]:
    """The file's tensors with the rows of its text or token head as this model needs them, by label name.

    before, now: task and labels. Of another task, or without a label in common, the head is left out: it will be new.
    """
    (old_task, old), (task, labels) = before, now
    base = family.base if any(key.startswith(family.base) for key in tensors) else ""
    table = names(model, family, architecture, base)
    fresh = model.state_dict()
    for kind in {"text", "token"} & set(model.heads):
        own = {ours: theirs[0] for ours, theirs in table.items() if ours.startswith(f"heads.{kind}.")}
        rows = {ours: name for ours, name in own.items() if f"heads.{kind}.out." in ours and name in tensors}
        if not rows:
            continue
        first = next(iter(rows))
        count, wanted = len(tensors[rows[first]]), len(fresh[first])
        # Without names, or with fewer names than rows, only places can be compared.
        named = len(old) == count and not all(re.fullmatch(r"LABEL_\d+", label) for label in old)
        if old_task == task and count == wanted and (not named or not labels or old == labels):
            continue
        known = [label for label in labels if label in old] if named and old_task == task else []
        if not known:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in own.values()}
            why = f"was fine-tuned for {old_task}" if old_task != task else f"has the labels {_some(old)}"
            purpose = f"{task} with the labels {_some(labels)}" if labels else task
            note(f"{where} {why}, these rows are for {purpose}: its head is replaced by a new one.")
            continue
        for ours, name in rows.items():
            tensor = fresh[ours].to(tensors[name].dtype)
            for label in known:
                tensor[labels.index(label)] = tensors[name][old.index(label)]
            tensors = tensors | {name: tensor}
        new = [label for label in labels if label not in old]
        note(
            f"{where} has the labels {_some(old)}: its head keeps {_some(known)}"
            + (f", and learns {_some(new)} from the start." if new else ".")
        )
    return tensors


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:8]) + (f" … ({len(labels)})" if len(labels) > 8 else "")


def _read_chain(path: Path, labels: int) -> Chain:
    """A tagger's CRF scores, in a file next to model.safetensors that transformers ignores."""
    if not path.is_file():
        raise DamagedFile(f"{path} is missing, but bertkit.json says that it is used to choose tags. Copy it too.")
    with open_regular(path) as file:
        state = tensor_file.read_arrays(file.fileno(), str(path))
    wanted = {"start": (labels,), "step": (labels, labels), "end": (labels,)}
    if {name: array.shape for name, array in state.items()} != wanted:
        raise DamagedFile(f"{path} does not hold the scores of {labels} tags. It belongs to a different model.")
    return Chain(**state)


def _read_crf(path: Path, labels: int) -> Crf:
    from bertkit.model.heads import Crf

    crf = Crf(labels)
    chain = _read_chain(path, labels)._asdict()
    crf.load_state_dict({name: torch.from_numpy(scores) for name, scores in chain.items()})
    return crf


def _heads_in(family: Family, raw: dict[str, Any], tensors: dict[str, Tensor]) -> frozenset[str]:
    """The heads of a model folder: of the class that config.json names; for an unknown class, those with tensors."""
    listed = raw.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else None
    heads = heads_of(family, named)
    if heads is not None:
        return heads
    names = frozenset(
        kind
        for kind in HEADS
        if any(k.startswith(f"heads.{kind}.") for k in family.rows)
        and all(
            any(name.startswith(str(theirs).format(base=family.base, n="")) for name in tensors)
            for ours, theirs in family.rows.items()
            if ours.startswith(f"heads.{kind}.") and not ours.endswith("decoder")
        )
    )
    known = names if names in family.architectures else frozenset()
    note(f"config.json names the class {named!r}, which bertkit does not know; reading it as {family.model_type} with "
         f"{', '.join(sorted(known)) or 'no'} head.")  # fmt: skip
    return known


def _fits(config: Config, tensors: dict[str, Tensor], where: str, source: Path) -> None:
    """Refuse a model folder with numbers far beyond its file before allocating memory; less is reported per tensor."""
    rows = config.vocabulary + config.positions + config.segments
    layer = 4 * config.width**2 + (3 if config.gated else 2) * config.width * config.inner
    asked = rows * config.embedding_width + config.unique_layers * layer
    held = sum(tensor.numel() for tensor in tensors.values())
    if asked > 2 * held:
        raise UserError(
            f"{where} describes an encoder of {asked:,} parameters, but {source.name} holds {held:,}. "
            "The two files do not belong together."
        )


def _stored_labels(raw: dict[str, Any]) -> tuple[str, ...]:
    """The label names of config.json."""
    table = raw.get("id2label")
    if not isinstance(table, dict) or not table:
        return UNNAMED  # what transformers assumes of a config without labels
    try:
        return tuple(str(table[key]) for key in sorted(table, key=int))
    except (ValueError, TypeError):
        raise DamagedFile(f"config.json: the keys of id2label are not numbers: {list(table)[:3]}.") from None


def _untie_check(tensors: dict[str, Tensor], family: Family, tied: bool, where: str) -> None:
    """Check that a tied decoder that a model folder stores as a copy equals the embeddings."""
    decoder = tensors.get(str(family.rows["heads.mlm.decoder"]))
    base = family.base if any(k.startswith(family.base) for k in tensors) else ""
    words = tensors.get(str(family.rows["encoder.embeddings.tokens"]).format(base=base) + ".weight")
    if tied and decoder is not None and words is not None and not torch.equal(decoder, words):
        raise UserError(
            f"{where}: config.json says the MLM head is tied to the token embeddings, but the file holds two different "
            'tables. Set "tie_word_embeddings": false in config.json to use both.'
        )


def _accept(model: Model, state: dict[str, Tensor], missing: list[str], where: str) -> None:
    """Load what a model folder has; refuse an incomplete encoder; report which heads are new."""
    torn = [name for name in missing if name.startswith("encoder.")]
    total = len(model.state_dict())
    if torn:
        encoder = sum(1 for name in model.state_dict() if name.startswith("encoder."))
        raise DamagedFile(
            f"{where}: {len(torn)} of {encoder} encoder tensors are missing (first: {torn[0]}). "
            "The weights are incomplete, or belong to a different kind of model than config.json describes."
        )
    model.load_state_dict(state, strict=False)
    heads = sorted({name.split(".")[1] if name.startswith("heads.") else "pooler" for name in missing})
    model.untrained = tuple(heads)
    if heads:
        plural = "are" if len(heads) > 1 else "is"
        note(
            f"{' and '.join(heads)} {plural} new and untrained: {len(missing)} of {total} tensors; "
            "fine-tune before predicting."
        )


def check_writable(folder: Folder) -> None:
    """Refuse, before hours of training, a model that no model folder of its family can hold."""
    architecture_for(FAMILIES[folder.family], frozenset(folder.model.heads))
    check_expressible(folder.model.config, FAMILIES[folder.family])


def check_whole(folder: Folder) -> None:
    """Refuse to write a model folder that would give different answers from the one that was read."""
    from bertkit.model.inference import is_prepared

    model = folder.model
    if is_prepared(model):
        raise UserError(
            f"{folder.name or 'The model'} is already prepared for inference; to save it, load its folder again."
        )
    if new := [kind for kind in model.heads if not is_trained(kind, model.untrained)]:
        bare = architecture_for(FAMILIES[folder.family], frozenset()).name
        raise UserError(
            f"{folder.name or 'The model'}: its weights have no trained {' and no trained '.join(new)} head; saved as "
            "it is, "
            "it would predict at random. Fine-tune it first; or, to save only the encoder, put "
            f'"architectures": ["{bare}"] into its config.json.'
        )
    if folder.pooling and folder.pooling.refused:
        raise UserError(
            f"{folder.name or 'The model'}: its vectors use {folder.pooling.refused}, which bertkit does not "
            "write; a folder without it would give different vectors. Use sentence-transformers; or, for the encoder "
            "alone, remove modules.json from a copy of the folder."
        )


def write_folder(path: Path, folder: Folder, *, dtype: torch.dtype | None = None, weights: str = "floats") -> None:
    """Write a model folder that transformers opens. The caller makes it atomic (files.atomic.write_folder).

    weights: what the caller will put in their place (int8, onnx), for the card.
    """
    check_whole(folder)
    dtype = dtype or torch.float32
    path.mkdir(parents=True, exist_ok=True)
    family = FAMILIES[folder.family]
    architecture = folder.architecture
    tensors = {name: tensor.to(dtype) for name, tensor in tensors_to(folder.model, family, architecture).items()}
    tensor_file.write(path / "model.safetensors", tensors)
    if folder.model.crf is not None:
        tensor_file.write(path / CRF, folder.model.crf.state_dict())
    raw = config_to(folder.model.config, family, architecture.name, folder.raw_config)
    raw["dtype"] = str(dtype).removeprefix("torch.")
    ours = folder.tokenizer
    special = {"pad": ours.pad_id, "cls": ours.cls_id, "sep": ours.sep_id, "bos": ours.cls_id, "eos": ours.sep_id}
    if folder.model.config.first_position:
        special.pop("pad")  # positions are counted from this key, whatever the tokenizer pads with
    raw |= {f"{k}_token_id": n for k, n in special.items() if n is not None and f"{k}_token_id" in raw}
    if ours.pad_id is None and folder.raw_config.get("pad_token_id", family.defaults["pad_token_id"]) is None:
        raw["pad_token_id"] = None  # any number is a real token's, which transformers would then take for padding
    if "problem_type" in raw:  # what transformers calls the task; it speaks of text heads alone
        problem = raw.pop("problem_type")
        raw |= {"problem_type": problem} if "text" in folder.model.heads else {}
    if {"text", "token"} & set(folder.model.heads):
        raw["id2label"] = {str(i): label for i, label in enumerate(folder.labels)}
        raw["label2id"] = {label: i for i, label in enumerate(folder.labels)}
    if "choice" in folder.model.heads and architecture.name.endswith("ForSequenceClassification"):
        raw |= {"id2label": {"0": "choice"}, "label2id": {"choice": 0}}
    folder.tokenizer.save(path, folder.model.config.max_tokens, folder.model.config.segments)
    about = {key: value for key, value in folder.about.items() if key != "weights"}  # these are floats now
    for name, value in (("config.json", raw), ("bertkit.json", about)):
        write_json(path / name, value)
    if folder.pooling is not None:
        limit = folder.about.get("windows", {}).get("limit") or folder.pooling.max_tokens
        limit = limit or folder.model.config.max_tokens
        write_pooling(path, folder.pooling, folder.model.config.width, limit)
    if not (path / "README.md").exists():
        pooled = folder.pooling.mode if folder.pooling else ""
        (path / "README.md").write_text(card.write(folder.about, raw, len(tensors), pooled, weights), "utf-8")
