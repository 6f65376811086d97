"""`bertkit doctor`: check this machine, inspect data files, and verify folders that bertkit wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option
from bertkit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit doctor`."""

    files: tuple[Path, ...] = option(
        (), "Data files to inspect (the first is compared with the others), or folders to verify.", argument=True
    )
    accept: bool = option(False, "Accept the files of a folder as they are now, after you changed one on purpose.")
    model: str = option(
        "", "Count tokens with this model's tokenizer (default: the embedded model of the texts' language)."
    )
    text: str = option("text", "Name (or number) of the text column.")
    label: str = option("label", "Name (or number) of the label column.")
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Report what this machine can do, what is in your data files, and whether every file of a folder is intact."""
    from bertkit import machine

    folders = [path for path in settings.files if path.is_dir()]
    files = [path for path in settings.files if path not in folders]
    if settings.accept and not folders:
        raise UserError("--accept needs a folder. Pass the folder whose files you changed.")
    checked = [_check_folder(folder, settings.accept) for folder in folders]
    if folders and not files:
        return {"folders": checked}
    threads = (machine.set_up if machine.has_torch() else machine.set_threads)(settings.threads)
    result: dict[str, Any] = {"machine": machine.describe(threads), "files": [], "lines": []}
    result["folders"] = checked
    if files:
        from bertkit.checkpoint.locate import locate
        from bertkit.checkpoint.vocabulary_fit import report_unknown
        from bertkit.data.inspect import inspect_file
        from bertkit.text.tokenizer import Tokenizer

        columns = {k: v for k, v in (("text", settings.text), ("label", settings.label)) if v != k}
        for file in files:
            model = settings.model or _model_for(file, settings.encoding, columns)
            tokenizer = Tokenizer.load(locate(model)) if model else None
            others = [other for other in files if other != file]
            report = inspect_file(file, tokenizer=tokenizer, others=others, encoding=settings.encoding, **columns)
            report.counted_by, report.unknown_share = model, report_unknown(tokenizer, model)
            result["files"].append(asdict(report))
            result["lines"] += ["", *report.lines()]
    return result


def _check_folder(folder: Path, accept: bool) -> dict[str, Any]:
    """`doctor FOLDER`: compare every file with the manifest, then open it. All damage is reported in one message."""
    from bertkit.files import manifest
    from bertkit.files.atomic import mend_folder

    if accept and not manifest.accept(folder):
        raise UserError(f"{folder} has no {manifest.MANIFEST}, so there is nothing to accept: it opens as it is.")
    mend_folder(folder)
    entries = manifest.read_manifest(folder) or {}
    damage = []
    for name, facts in entries.items():
        try:
            manifest.check(folder, {name: facts})
        except UserError as error:
            damage.append(str(error))
    if damage:
        raise UserError("\n".join(damage))
    kind, open_folder = next((kind, how) for mark, kind, how in KINDS if (folder / mark).exists())
    open_folder(folder)
    return {"folder": str(folder), "kind": kind, "files": len(entries)}


def _open_store(folder: Path) -> None:
    from bertkit.data.store import Store

    Store.open(folder, verify=True)


def _open_index(folder: Path) -> None:
    from bertkit.retrieval.index import Index

    Index.open(folder)


def _open_model(folder: Path) -> None:
    from bertkit.loading import open_model

    open_model(folder)
    _open_run(folder)


def _open_run(folder: Path) -> None:
    """Check the checkpoints of a run's folder, if it has any."""
    if not (folder / "checkpoints").exists():
        return
    from bertkit.training.checkpoints import damage_in

    if damage := damage_in(folder / "checkpoints"):
        raise UserError("\n".join(damage))


def _open_tokenizer(folder: Path) -> None:
    from bertkit.text.tokenizer import Tokenizer

    Tokenizer.load(folder)


def _not_ours(folder: Path) -> None:
    raise UserError(f"{folder} is not a folder of bertkit or transformers. Pass a model, run, index or store folder.")


# A file that marks a kind of folder, what it is called, and how it is opened; the first that is there decides.
KINDS: list[tuple[str, str, Callable[[Path], None]]] = [
    ("store.json", "token store", _open_store),
    ("index.json", "index", _open_index),
    ("model.onnx", "exported model", _open_tokenizer),
    ("onnx/model.onnx", "exported model", _open_model),
    ("bertkit.json", "model", _open_model),
    ("config.json", "model", _open_model),
    ("checkpoints", "run", _open_run),
    ("tokenizer.json", "tokenizer", _open_tokenizer),
    ("", "folder", _not_ours),
]


def _model_for(file: Path, encoding: str, columns: dict[str, str]) -> str:
    """The embedded model that the doctor counts tokens with: its vocabulary fits the file's first texts; or ""."""
    from bertkit.checkpoint.locate import embedded
    from bertkit.checkpoint.vocabulary_fit import AUTO, LOOKED_AT, starting_model
    from bertkit.data.inspect import first_texts
    from bertkit.tasks import make

    task = make("classify")
    texts = first_texts(file, LOOKED_AT, encoding, **columns)
    return starting_model(AUTO, task, task.from_inputs(texts)) if embedded() else ""


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `doctor`: the machine as a table, followed by each file; or what is in each folder."""
    facts = [
        f"{folder['folder']}: {folder['kind']}, "
        + (
            f"{folder['files']} files checked, all sound"
            if folder["files"]
            else "opens; it has no manifest to check it by"
        )
        for folder in result["folders"]
    ]
    if "machine" not in result:
        return facts
    m = result["machine"]
    speed = m["matmul_gflops"]
    at = f"{m['instructions']}{', AMX' if m['amx'] else ''}"
    if not speed["bf16"]:
        bf16, speeds = f"not used without PyTorch ({at})", f"fp32 {speed['fp32']:.0f} GFLOP/s (numpy)"
    else:
        bf16 = f"fast ({at})" if m["fast_bf16"] else f"slow: fp32 will be used ({at})"
        speeds = f"fp32 {speed['fp32']:.0f}, bf16 {speed['bf16']:.0f} GFLOP/s"
    rows = [
        f"processor      {m['processor']}, {m['cores']} cores, {m['memory_gb']} GB",
        f"threads        {m['threads']} (change with --threads)",
        f"bf16           {bf16}",
        f"matrix speed   {speeds}",
        f"GPU            {m['gpu'] or 'none (not needed)'}",
        f"versions       {', '.join(f'{name} {number}' for name, number in m['versions'].items())}",
    ]
    return rows + result["lines"] + facts
