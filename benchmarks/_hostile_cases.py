"""Healthy folders of every kind that bertkit opens, and the changes that make them hostile or damaged."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = "the cat sat on the mat.\n\na dog ran home to the green house.\n\nthe old bank by the river is red.\n"


@dataclass(frozen=True)
class Case:
    """A folder of a kind, changed by `change`; `file` is what was changed, where that is one file."""

    name: str
    kind: str
    change: Callable[[Path], None]
    file: str = ""


# ---- Healthy folders, one of each kind, and the command that reads it


def healthy(root: Path) -> dict[str, list[str]]:
    """Write a small folder of every kind into `root`. Returns the command for each; FOLDER stands for its path."""
    import numpy as np
    import torch

    from bertkit.ancestors.ngram.model import NgramModel
    from bertkit.ancestors.vectors.vectors import WordVectors
    from bertkit.checkpoint.folder import Folder, write_folder
    from bertkit.checkpoint.sentence_modules import Pooling
    from bertkit.data.prepare.run import prepare
    from bertkit.files import atomic
    from bertkit.inference.predictor import Predictor
    from bertkit.model.crf import Crf
    from bertkit.model.heads import Model
    from bertkit.retrieval.index import build
    from bertkit.retrieval.passages import Passage
    from bertkit.runs.compare.contenders import Resources, saved
    from bertkit.settings.model import Config
    from bertkit.tasks import make
    from bertkit.tasks.base import Reading
    from bertkit.text.vocabulary import VocabularySettings, learn
    from bertkit.training.checkpoints import save_generation

    texts = [text for text in TEXTS.split("\n") if text]
    tokenizer = learn(texts * 4, VocabularySettings(size=120, min_frequency=1))
    rows = root / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(texts * 4)))
    words = root / "text.txt"
    words.write_text(TEXTS * 3)

    def model(name: str, heads: dict[str, int], about: dict[str, Any], **more: Any) -> Path:
        torch.manual_seed(0)
        shape = Config(vocabulary=tokenizer.size, width=16, depth=1, heads=2, inner=32, max_tokens=32)
        about = about | {"windows": {"limit": 32, "overlap": 4, "on_long": "window"}, "facts": {}} if about else about
        folder = Folder(
            Model(shape, heads), tokenizer, "bert", tuple(about.get("labels", ())), about, name=name, **more
        )
        if about.get("options", {}).get("crf"):
            folder.model.crf = Crf(heads["token"])
        atomic.write_folder(root / name, lambda path: write_folder(path, folder))
        return root / name

    options = {"temperature": 1.5}
    model("classifier", {"text": 2}, {"task": "classify", "labels": ["0", "1"], "options": options})
    model("tagger", {"token": 3}, {"task": "tag", "labels": ["B-X", "I-X", "O"], "options": {"crf": True}})
    encoder = model("encoder", {"mlm": 0}, {})
    model("embedder", {}, {"task": "embed", "options": {"pool": "mean"}}, pooling=Pooling("mean", True))
    predictor = Predictor.load(encoder, "fp32")
    passages = [Passage(text, "a.txt", n, f"a.txt#{n}") for n, text in enumerate(texts)]
    build(predictor, str(encoder), iter(passages), root / "index")
    prepare([words], tokenizer, root / "store", workers=1)
    for key in ("majority", "tfidf", "bayes"):
        row = saved(key)
        assert row is not None
        task = make("classify", labels=("0", "1"), options={})
        examples = task.read(rows, Reading())
        row.make(Resources()).fit(task, examples, examples, seed=0, minutes=0).save(root / key)
    row = saved("hmm")
    assert row is not None
    task = make("tag", labels=("B-X", "O"), options={})
    tagged = root / "tagged.txt"
    tagged.write_text("".join(f"{word} {'B-X' if word == 'cat' else 'O'}\n" for word in texts[0].split()) + "\n")
    examples = task.read(tagged, Reading())
    row.make(Resources()).fit(task, examples, examples, seed=0, minutes=0).save(root / "hmm")

    def ancestor(name: str, kind: str, save: Callable[[Path], None]) -> None:
        def write(path: Path) -> None:
            save(path)
            (path / "bertkit.json").write_text(json.dumps({"ancestor": kind, "units": "words", "cased": False}))

        atomic.write_folder(root / name, write)

    ancestor("ngram", "ngram", NgramModel().fit(texts * 3).write)
    vectors = WordVectors(["cat", "dog", "bank"], np.eye(3, 4, dtype=np.float32))
    ancestor("vectors", "word2vec", lambda path: vectors.save(path / "vectors.bin"))
    for step in (1, 2):
        save_generation(root / "run" / "checkpoints", step, {"model": {"w": torch.ones(64)}}, {"n": step})
    atomic.write_folder(root / "tokenizer", lambda path: tokenizer.save(path, 32))
    out = root.parent / "cases" / "out"
    predict = ["predict", "FOLDER", str(rows), "--precision", "fp32"]
    tag = ["predict", "FOLDER", str(tagged), "--precision", "fp32"]
    return {
        "classifier": predict, "tagger": tag, "majority": predict, "tfidf": predict, "bayes": predict,
        "hmm": tag, "encoder": ["fill", "FOLDER", "the [MASK] sat", "--precision", "fp32"],
        "embedder": ["embed", "FOLDER", str(rows), "--out", str(out / "v.npy"), "--precision", "fp32"],
        "index": ["search", "FOLDER", "the cat", "--precision", "fp32"],
        "store": ["doctor", "FOLDER"], "run": ["doctor", "FOLDER"],
        "tokenizer": ["prepare", str(words), "--tokenizer", "FOLDER", "--out", str(out / "store")],
        "ngram": ["suggest", "FOLDER", "the cat"], "vectors": ["neighbours", "FOLDER", "cat"],
    }  # fmt: skip


# ---- Changes


def _write(file: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    return change


def _special(file: str, what: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.unlink()
        {
            "pipe": lambda: os.mkfifo(path), "folder": lambda: path.mkdir(), "loop": lambda: path.symlink_to(path),
            "zero": lambda: path.symlink_to("/dev/zero"), "outside": lambda: path.symlink_to("/etc/passwd"),
            "null": lambda: path.symlink_to("/dev/null"), "missing": lambda: None,
        }[what]()  # fmt: skip

    return change


VALUES: list[Any] = [
    None, True, -1, 0, 2, 10**9, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "abc", "0",
    "\x1b]0;gone\x07\x9b2J", "\u202egnp", "../../../etc/passwd", "/dev/zero", "org/evil",
    "http://127.0.0.1:9/x", "a" * 100_000, [], {}, [[]],
    [None], [1, "a"], {"a": 1}, ["\x1b[31m"] * 3, {"0": "x", "x": "y"}, [10**9] * 3, "\ud800", "\x00",
]  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(inside)[:40]:
        yield (*at, key)
        yield from _places(child, (*at, key))


def _altered(content: bytes, rng: random.Random) -> bytes:
    """A JSON file with one to three values replaced or removed."""
    value = json.loads(content)
    for _ in range(rng.choice([1, 1, 2, 3])):
        places = list(_places(value))
        if not places:
            return json.dumps(rng.choice(VALUES)).encode()
        # Keys near the root decide most.
        place = min(rng.sample(places, min(2, len(places))), key=len)
        parent = value
        for key in place[:-1]:
            parent = parent[key]
        if rng.random() < 0.15:
            del parent[place[-1]]
        else:
            parent[place[-1]] = rng.choice(VALUES)
    return json.dumps(value).encode()


HARD_JSON = {
    "deep list": b"[" * 100_000, "deep object": b'{"a":' * 100_000, "deep and closed": b"[" * 900 + b"]" * 900,
    "many digits": b'{"a": ' + b"9" * 5000 + b"}", "many lists": b"[" + b"[]," * 6_000_000 + b"[]]",
    "empty": b"", "not text": bytes(range(256)), "utf-16": '{"a": 1}'.encode("utf-16"), "null": b"null", "number": b"3",
    "list": b"[]", "object": b"{}", "yaml": b"!!python/object/apply:os.system ['touch RAN']",
}  # fmt: skip


def _tokenizers(content: bytes) -> dict[str, bytes]:
    """tokenizer.json files that multiply texts, name ids that do not exist, or look for patterns for ever."""

    def change(**parts: Any) -> bytes:
        return json.dumps(json.loads(content) | parts).encode()

    def replace(pattern: dict[str, str], by: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": pattern, "content": by}

    raw = json.loads(content)
    double = {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 40}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [text] * 100_000, "pair": [text] * 2, "special_tokens": {}}
    far = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, text],
           "pair": [text] * 2, "special_tokens": {"x": {"id": "x", "ids": [10**9], "tokens": ["x"]}}}  # fmt: skip
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    ids = dict(raw["model"]["vocab"])
    ids |= {next(reversed(ids)): 4_000_000_000}
    return {
        "one to a million": change(normalizer=replace({"String": "t"}, "t" * 1_000_000)),
        "between all": change(normalizer=replace({"Regex": ""}, "x" * 1000)), "doubling": change(normalizer=double),
        "prepend": change(normalizer={"type": "Prepend", "prepend": "a" * 10_000_000}),
        "template": change(post_processor=template), "far special": change(post_processor=far),
        "slow pattern": change(pre_tokenizer=slow), "many patterns": change(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [slow] * 2000}),
        "far id": change(model=raw["model"] | {"vocab": ids}),
        "cache": change(model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "cache_capacity": 10**15}),
        "cut": change(truncation={"max_length": 0, "strategy": "LongestFirst", "stride": 10**9, "direction": "Right"}),
        "pad": change(padding={"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None,
                               "pad_id": 10**9, "pad_type_id": 0, "pad_token": "x"}),
    }  # fmt: skip


class _Runs:
    def __init__(self, proof: str) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.proof,)


def _npy(shape: Any, descr: str = "<f4", body: bytes = b"1234") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def _npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def _safetensors(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


ARRAYS = {
    ".npy": {
        "huge": _npy((10**12,)), "wide": _npy((10**6, 10**6)), "negative": _npy((-5,)), "object": _npy((1,), "|O"),
        "scalar": _npy(()), "cube": _npy((1, 1, 1)), "empty": _npy((0,), body=b""), "nothing": b"",
        "code": b"\x93NUMPY\x01\x00v\x00" + b"__import__('os').mkdir('RAN')".ljust(117) + b"\n",
        "text": _npy((1,), "<U1"),
    },
    ".npz": {
        "empty": b"", "no members": _npz(), "huge": _npz(places=_npy((3, 10**9), "<i8"), counts=_npy((10**9,), "<i8")),
        "bomb": _npz(places=_npy((3, 12_500_000), "<i8", bytes(300_000_000)), counts=b""),
        "outside": _npz(places=_npy((3, 1), "<i8", struct.pack("<3q", 10**6, 10**6, 10**6)),
                        counts=_npy((1,), "<i8", struct.pack("<q", 1))),
        "object": _npz(places=_npy((1,), "|O"), counts=_npy((1,), "|O")),
    },
    ".safetensors": {
        "empty": b"", "long header": struct.pack("<Q", 4 << 30) + b"{}", "deep": _safetensors(b"[" * 50_000),
        "huge": _safetensors({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}, b"1234"),
        "overlap": _safetensors({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, b"1234"),
        "digits": _safetensors(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', b"1234"),
        "nothing": _safetensors({}),
        "bool": _safetensors({"a": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}, b"\xff\xfe\xfd\xfc"),
        "strange": _safetensors({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    },
}  # fmt: skip
BINARY = {
    "ones": lambda size: b"\xff" * size, "zeros": lambda size: bytes(size), "short": lambda size: b"\x01" * (size // 2),
    "words": lambda size: b"9999999999 9999999999\n" + b"a" * size, "none": lambda size: b"",
}  # fmt: skip


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": _Runs(str(folder / "RAN"))}))


def _swapped(folder: Path) -> None:
    """A write left half done that would move a file out of the folder, and remove one."""
    from bertkit.files.manifest import MANIFEST, of_files

    victim = folder.parent / "victim"
    victim.mkdir(exist_ok=True)
    (victim / "mine").write_text("mine")
    (folder / "sub").symlink_to(victim)
    (folder / ".swap-model" / "sub").mkdir(parents=True)
    (folder / ".swap-model" / "sub" / "mine").write_text("theirs")
    (folder / MANIFEST).write_bytes(of_files({"../victim/mine": {"bytes": 4, "sha256": "0" * 64}}))
    (folder / ".swap-model" / MANIFEST).write_bytes(of_files({}))


def hostile_folders(count: int, seed: int, specimens: Path) -> Iterator[Case]:
    """`count` cases: every hand-made one, then files with values replaced at random."""
    rng = random.Random(seed)
    made: list[Case] = []
    kinds = sorted(path.name for path in specimens.iterdir() if path.is_dir())
    alterable: list[tuple[str, str]] = []
    for kind in kinds:
        files = sorted(path.relative_to(specimens / kind).as_posix() for path in (specimens / kind).rglob("*")
                       if path.is_file() and path.name not in ("README.md", "report.txt", "run.toml"))  # fmt: skip
        for file in files:
            content = (specimens / kind / file).read_bytes()
            for what in ("pipe", "folder", "loop", "zero", "outside", "null", "missing"):
                made.append(Case(f"{what} {file}", kind, _special(file, what), file))
            if file.endswith(".json"):
                made += [Case(f"{name} {file}", kind, _write(file, hard), file) for name, hard in HARD_JSON.items()]
                alterable.append((kind, file))
            for ending, contents in ARRAYS.items():
                if file.endswith(ending):
                    made += [Case(f"{name} {file}", kind, _write(file, hard), file) for name, hard in contents.items()]
            if file.endswith((".bin", ".f16", ".txt", ".jsonl", ".safetensors")):
                made += [
                    Case(f"{name} {file}", kind, _write(file, how(len(content))), file) for name, how in BINARY.items()
                ]
            if file.endswith("tokenizer.json"):
                made += [
                    Case(f"{n} {file}", kind, _write(file, hard), file) for n, hard in _tokenizers(content).items()
                ]
        made += [Case("pickle", kind, _pickled), Case("swap", kind, _swapped)]
    rng.shuffle(made)
    made = made[: max(count * 2 // 3, count - 1000)]
    while len(made) < count:
        kind, file = rng.choice(alterable)
        content = _altered((specimens / kind / file).read_bytes(), rng)
        made.append(Case(f"altered {file} {len(made)}", kind, _write(file, content), file))
    yield from made


def flips(count: int, truncations: int, seed: int, specimens: Path) -> Iterator[Case]:
    """Folders in which one byte of a file that decides an answer is another one, or a file ends early."""
    from bertkit.files.manifest import MANIFEST, is_listed

    rng = random.Random(seed)
    files = [(path.relative_to(specimens).parts[0], path) for path in sorted(specimens.rglob("*"))
             if path.is_file() and path.parent != specimens and path.stat().st_size
             and (path.name == MANIFEST or is_listed(path.relative_to(specimens)))]  # fmt: skip
    # The manifest of a folder inside another is not read there: the outer one lists the same files.
    files = [(kind, path) for kind, path in files if path.name != MANIFEST
             or path.parent == specimens / kind or "checkpoints" in path.parts]  # fmt: skip
    for number in range(count + truncations):
        kind, path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        if number < count:
            content[at] ^= rng.randrange(1, 256)
        else:
            del content[at:]
        name = path.relative_to(specimens / kind).as_posix()
        what = "flip" if number < count else "truncate"
        yield Case(f"{what} {name} at {at}", kind, _write(name, bytes(content)), name)
