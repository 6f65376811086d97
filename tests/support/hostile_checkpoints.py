"""Folders that would like to do harm when they are opened, and a watcher that sees whether they do.

Run as a program it opens every folder below its argument under an audit hook, and prints what happened.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

CODE = "from pathlib import Path\nPath(__file__).with_name('RAN').touch()\n"
PAYLOADS: dict[str, Callable[[Path], tuple]] = {
    "system": lambda proof: (os.system, (f"touch {proof}",)),
    "mkdir": lambda proof: (os.mkdir, (str(proof),)),
    "eval": lambda proof: (eval, (f"__import__('os').mkdir({str(proof)!r})",)),
    "exec": lambda proof: (exec, (f"open({str(proof)!r}, 'w').close()",)),
    "import": lambda proof: (__import__, ("antigravity",)),
    "open": lambda proof: (open, (str(proof), "w")),
}
TRAVERSALS = [
    "../model.safetensors", "../../etc/passwd", "/etc/passwd", "..", ".", "./../x", "sub/x.safetensors", "~/x",
    "%2e%2e/x", "\x00x", "..\\x", "C:\\x", "\\\\host\\share", "．．/x", "http://127.0.0.1:9/x",
]  # fmt: skip
AUTO_MAPS: list[dict] = [
    {"auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}},
    {"auto_map": {"AutoTokenizer": ["evil.Tok", None]}, "trust_remote_code": True},
    {"auto_map": "evil--evil.Model"},
    {"trust_remote_code": "yes"},
    {"_attn_implementation_internal": "evil/kernel"},
    {"_attn_implementation": "evil/kernel", "attn_implementation": "evil/kernel"},
    {"custom_pipelines": {"fill-mask": {"impl": "evil.Pipe", "pt": ["AutoModel"]}}},
    {"quantization_config": {"quant_method": "evil", "modules_to_not_convert": ["__import__('os')"]}},
    {"architectures": ["__import__('os').system"]},
    {"architectures": ["../evil.Model"]},
    {"hidden_act": "__import__('os').getcwd()"},
    {"hidden_act": {"evil": "evil.Act"}},
    {"model_type": "../evil"},
    {"_name_or_path": "../../evil", "base_model_name_or_path": "evil/evil"},
    {"torch_dtype": "os.system"},
    {"tokenizer_class": "evil.Tokenizer"},
    {"id2label": {"0": "<script>alert(1)</script>", "1": "../../x"}},
    {"hidden_size": 10**9}, {"vocab_size": 10**9}, {"num_hidden_layers": 10**9}, {"max_position_embeddings": 10**9},
    {"intermediate_size": 10**9}, {"type_vocab_size": 10**9}, {"num_attention_heads": 10**9},
]  # fmt: skip


class Evil:
    """Does what it was made to do when it is unpickled."""

    def __init__(self, what: tuple) -> None:
        self.what = what

    def __reduce__(self) -> tuple:
        return self.what


def variants(good: dict[str, bytes]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Name and maker of every hostile folder; `good` is a healthy folder's files."""

    def start(folder: Path, *without: str) -> None:
        folder.mkdir(parents=True)
        for name, content in good.items():
            if name not in without:
                (folder / name).write_bytes(content)
        for name in ("evil.py", "modeling_evil.py", "conftest.py", "setup.py", "sitecustomize.py", "torch.py"):
            (folder / name).write_text(CODE)

    def config(values: dict) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            start(folder)
            raw = json.loads(good["config.json"]) | values
            (folder / "config.json").write_text(json.dumps(raw))

        return make

    def pickled(file: str, payload: str, container: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            start(folder, "model.safetensors")
            evil = pickle.dumps({"weight": Evil(PAYLOADS[payload](folder / "RAN"))}, protocol=2)
            if container == "zip":
                with zipfile.ZipFile(folder / file, "w") as archive:
                    archive.writestr("archive/data.pkl", evil)
                    archive.writestr("archive/version", "3\n")
            else:
                (folder / file).write_bytes(zlib.compress(evil) if container == "zlib" else evil)

        return make

    def index(name: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            start(folder, "model.safetensors")
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

        return make

    def file(name: str, content: bytes, *without: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            start(folder, *without)
            (folder / name).write_bytes(content)

        return make

    def link(name: str, target: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            start(folder, name)
            (folder / name).symlink_to(target)

        return make

    def bomb(folder: Path) -> None:
        start(folder, "model.safetensors")
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(64 << 20))

    for number, values in enumerate(AUTO_MAPS):
        yield f"config-{number}", config(values)
    for payload in PAYLOADS:
        for container in ("plain", "zip", "zlib"):
            yield f"bin-{payload}-{container}", pickled("pytorch_model.bin", payload, container)
    for name in ("model.pt", "model.ckpt", "model.pkl", "training_args.bin", "model.safetensors", "tokenizer.json"):
        yield f"pickle-as-{name}", pickled(name, "mkdir", "plain")
    for number, name in enumerate(TRAVERSALS):
        yield f"index-{number}", index(name)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "bertkit.json"):
        yield f"link-out-{name}", link(name, "/etc/passwd")
        yield f"link-loop-{name}", link(name, name)
        yield f"link-device-{name}", link(name, "/dev/null")
    giant = struct.pack("<Q", 4 << 30) + b"{}"
    wide = json.dumps({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}).encode()
    yield "giant-header", file("model.safetensors", giant)
    yield "giant-shape", file("model.safetensors", struct.pack("<Q", len(wide)) + wide + b"1234")
    yield "zip-bomb", bomb
    yield "deep-json", file("config.json", b'{"a":' * 100_000)
    yield "deep-bertkit", file("bertkit.json", b"[" * 100_000)
    yield "deep-tokenizer", file("tokenizer.json", b"[" * 100_000)
    yield "yaml-tags", file("config.json", b"!!python/object/apply:os.system ['touch RAN']")
    asks = {"auto_map": {"AutoTokenizer": ["evil.T", None]}, "tokenizer_class": "evil.T"}
    yield "tokenizer-config", file("tokenizer_config.json", json.dumps(asks).encode())
    yield "spiece", file("spiece.model", b"\x0a\xff\xff\xff\xff\x7f", "tokenizer.json")
    yield "vocab", file("vocab.txt", b"\x00" * 1000, "tokenizer.json")
    yield "google", file("bert_model.ckpt.index", os.urandom(64), "model.safetensors")


def watch(folders: list[Path]) -> dict:
    """Open every folder; which events happened meanwhile that must not, and what each opening came to."""
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor

    for folder in folders:
        if folder.name.startswith("a-healthy"):
            Predictor.load(folder, "fp32").embed(["the cat"])  # every lazy import is done now
    seen: list[str] = []
    inside = [os.fspath(Path(path).resolve()) for path in sys.path if path and Path(path).is_dir()]
    loaded = set(sys.modules)
    watched = ("exec", "compile", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
               "socket.connect", "socket.getaddrinfo", "pickle.find_class", "ctypes.dlopen", "os.mkdir", "os.rename",
               "os.remove", "os.symlink", "shutil.rmtree")  # fmt: skip
    current = ""

    def hook(event: str, details: tuple) -> None:
        if not current:
            return
        if event == "open":
            _, mode, flags = details
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            if writes or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                seen.append(f"{current}: open {details}")
        elif event == "exec" and str(details[0].co_filename).startswith((*inside, "<frozen")):
            return
        elif event in watched:
            seen.append(f"{current}: {event} {details!r:.200}")

    sys.addaudithook(hook)
    outcomes = {}
    for folder in folders:
        current = folder.name
        try:
            Predictor.load(folder, "fp32").embed(["the cat"])
            outcomes[folder.name] = "opened"
        except UserError as mistake:
            outcomes[folder.name] = f"refused: {mistake}"
        except BaseException as wrong:
            outcomes[folder.name] = f"CRASH {type(wrong).__name__}: {wrong}"
        current = ""
    for name in set(sys.modules) - loaded:
        origin = str(getattr(sys.modules[name], "__file__", None) or "")
        if not origin.startswith(tuple(inside)):
            seen.append(f"import of {name} from {origin}")
    return {"outcomes": outcomes, "seen": seen}


if __name__ == "__main__":
    roots = sorted(Path(sys.argv[1]).iterdir(), key=lambda path: path.name)
    print(json.dumps(watch(roots)))
