"""An exported folder answers as the model it was made from, in a process that cannot import torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.checkpoint.locate import STARTING, locate
from bertkit.commands.compress import export_lines
from bertkit.config import build
from bertkit.errors import UserError
from bertkit.files.tensors import read, read_arrays
from bertkit.inference.predictor import Predictor
from bertkit.model.engine import FILES, GRAPH, needed_part
from bertkit.model.heads import Crf, Model
from bertkit.runs.compress import export as exporting
from bertkit.settings.compress import ExportSettings
from bertkit.settings.model import Config
from tests.support import toy

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'bertkit[export]'")

pytestmark = pytest.mark.slow  # nine models are exported

TEXTS = ["the old house in the garden", "bread", "anna and peter in london " * 40, ""]
PAIRS = [("the old house", "a garden"), ("the meeting of people", "water and bread " * 50)]
CASES: dict[str, tuple[dict[str, Any], dict[str, int], list[Any]]] = {  # bertkit.json, heads, inputs
    "classify": ({"options": {"abstain": 0.5, "temperature": 2.5}, "labels": ["no", "yes"]}, {"text": 2}, TEXTS),
    "multi-label": (
        {"task": "classify", "options": {"multi_label": True, "thresholds": {"a": 0.4, "b": 0.6, "c": 0.5}},
         "labels": ["a", "b", "c"]}, {"text": 3}, TEXTS,
    ),
    "pair": ({"labels": ["no", "yes"]}, {"text": 2}, PAIRS),
    "regress": ({"options": {"mean": 3.0, "spread": 2.0}}, {"text": 1}, TEXTS),
    "tag": (
        {"options": {"crf": True, "rules": True, "word": "mean"}, "labels": ["B-A", "I-A", "O"]},
        {"token": 3}, TEXTS[:3],
    ),
    "answer": ({"options": {"impossible": True, "threshold": 0.1}}, {"span": 2}, PAIRS),
    "choose": ({}, {"choice": 1}, [{"text": "the old", "choices": ["house", "water of the river", "a"]}]),
    "embed": ({"options": {"pool": "max"}}, {}, PAIRS),
    "words": ({"task": "pretraining"}, {"mlm": 0}, []),
}  # fmt: skip
BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "sklearn", "jinja2", "onnx", "onnxscript"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""
# What both processes run: every answer of an opened model, as plain lists.
ANSWERS = """
def answers(model, inputs):
    found = {"embed": model.embed(["the old house", "a " * 700]).tolist()}
    if inputs:
        for on_long in ("window", "truncate"):
            found[on_long] = [
                {k: v.tolist() if hasattr(v, "tolist") else v for k, v in row.items()}
                for row in model.predict(inputs, on_long)
            ]
    else:
        found["fill"] = model.fill("the [MASK] of the [MASK]", top=3)
        found["score"] = model.score(["the old house", "bread and water"])
    return found
"""
exec(ANSWERS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Case → a model with random weights, and its export."""
    place = tmp_path_factory.mktemp("engines")
    tokenizer = read_folder(toy.make_model(place / "model")).tokenizer
    made = {}
    for case, (about, heads, _) in CASES.items():
        torch.manual_seed(len(case))
        depth = 2 if case in ("classify", "words") else 1  # heads differ, layers do not, and each is seconds to trace
        config = Config(vocabulary=tokenizer.size, width=32, depth=depth, heads=2, inner=64, init_std=0.4)
        model = Model(config, heads, pooler="text" in heads or "choice" in heads)
        if case == "tag":
            model.crf = Crf(3)
            torch.nn.init.normal_(model.crf.step)
        about = {"task": case, "windows": {"limit": 64, "on_long": "window", "overlap": 16}} | about
        labels = tuple(about.get("labels", ("LABEL_0",)))
        source, out = place / case, place / f"{case}-out"
        write_folder(source, Folder(model, tokenizer, "bert", labels=labels, about=about, name=case))
        weights = "" if case == "classify" else "fp32"
        exporting.export(build(ExportSettings, {"model": str(source), "out": out, "weights": weights, "threads": 1}))
        made[case] = (source, out)
    return made


@pytest.fixture(scope="module")
def without_torch(exported) -> dict[str, Any]:
    """The answers of every export and of the embedded models, from a process in which torch cannot be imported."""
    folders = {case: str(out) for case, (_, out) in exported.items()} | {name: name for name in STARTING}
    inputs = {case: CASES[case][2] if case in CASES else [] for case in folders}
    script = f"""{BLOCKED}{ANSWERS}
import json, bertkit
folders, inputs = json.loads(sys.stdin.read())
found = {{}}
for case, folder in folders.items():
    model = bertkit.load(folder)
    given = [tuple(one) if isinstance(one, list) else one for one in inputs[case]]
    found[case] = answers(model, given) | {{"engine": model.engine.name, "shown": repr(model)}}
found["modules"] = [name for name in ("torch", "scipy", "sklearn") if name in sys.modules]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps([folders, inputs]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def same(ours: Any, theirs: Any) -> None:
    """Equal, numbers within 1e-4."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same(one, other)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-4)
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", [*CASES, *STARTING])
def test_without_torch_a_model_answers_as_with_it(case, exported, without_torch):
    source, inputs = (exported[case][0], CASES[case][2]) if case in CASES else (case, [])
    wanted = answers(bertkit.load(str(source), precision="fp32"), inputs)  # type: ignore[name-defined]  # noqa: F821
    found = dict(without_torch[case])
    assert found.pop("engine") == "onnx" and "onnx" in found.pop("shown")
    same(json.loads(json.dumps(wanted)), found)


def test_nothing_of_the_training_side_was_imported(without_torch):
    assert without_torch["modules"] == []


def test_what_a_tables_long_texts_lose_is_counted(without_torch):
    assert [row["cut"] > 0 for row in without_torch["classify"]["truncate"]] == [False, False, True, False]
    assert [row["cut"] for row in without_torch["classify"]["window"]] == [0, 0, 0, 0]


def test_an_engine_is_chosen_by_what_there_is(exported, monkeypatch):
    source, out = exported["classify"]
    assert Predictor.load(source).engine.name == "torch" and Predictor.load(out).engine.name == "onnx"
    assert Predictor.load("en", engine="onnx").engine.name == "onnx"
    with pytest.raises(UserError, match=r"has no ONNX file, so --engine onnx cannot open it.*bertkit export"):
        Predictor.load(source, engine="onnx")
    with pytest.raises(UserError, match=r"engine is 'tensorflow'"):
        Predictor.load(source, engine="tensorflow")
    monkeypatch.setattr("bertkit.machine.has_torch", lambda: False)
    assert Predictor.load("en").engine.name == "onnx"
    with pytest.raises(UserError, match=r"needs PyTorch.*--torch-backend cpu.*bertkit\[train\].*bertkit export"):
        Predictor.load(source)


def test_the_int8_file_is_smaller_and_answers_nearly_the_same(exported):
    _, out = exported["classify"]
    exact, small = Predictor.load(out), Predictor.load(out, "int8")
    assert (exact.precision, small.precision) == ("fp32", "int8")
    assert (out / FILES["int8"]).stat().st_size < 0.6 * (out / FILES["fp32"]).stat().st_size
    vectors, rounded = (np.asarray(side.embed(TEXTS[:3])) for side in (exact, small))
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(rounded, axis=1)
    assert ((vectors * rounded).sum(1) / lengths).min() > 0.98 and not np.array_equal(vectors, rounded)


def test_an_int8_file_can_be_calibrated_on_rows_and_is_compared_with_one_that_is_not(exported, tmp_path):
    onnx = pytest.importorskip("onnx")
    source, plain = exported["classify"]
    rows = tmp_path / "rows.csv"
    rows.write_text("text\n" + "\n".join(text or "a" for text in TEXTS * 3), "utf-8")
    table = {"model": str(source), "out": tmp_path / "out", "weights": "int8", "threads": 1, "calibrate": rows}
    result = exporting.export(build(ExportSettings, table))
    off = list(result["calibrations"].values())
    assert off == sorted(off) and set(result["calibrations"]) == {"extremes", "averaged extremes"}
    assert list(result["others"]) == [exporting.DYNAMIC]  # the same comparison of the file it would be without rows
    assert {"int8", "extremes"} <= {word.rstrip(":") for line in export_lines(result) for word in line.split()}
    kinds = [{node.op_type for node in onnx.load(out / FILES["int8"]).graph.node} for out in (tmp_path / "out", plain)]
    assert "QuantizeLinear" in kinds[0] and "DynamicQuantizeLinear" in kinds[1] - kinds[0]
    assert sorted(path.name for path in (tmp_path / "out/onnx").iterdir()) == ["model_quantized.onnx"]
    exact, small = Predictor.load(plain), Predictor.load(tmp_path / "out")
    vectors, rounded = (np.asarray(side.embed(TEXTS[:3])) for side in (exact, small))
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(rounded, axis=1)
    assert ((vectors * rounded).sum(1) / lengths).min() > 0.9


@pytest.mark.parametrize(("more", "message"), [
    ({"format": "hf"}, "--calibrate is for the int8 file"), ({"weights": "fp32"}, "--calibrate is for the int8 file"),
])  # fmt: skip
def test_rows_to_calibrate_without_an_int8_file_are_refused(more, message, tmp_path):
    table = {"model": "en", "out": tmp_path / "out", "calibrate": tmp_path / "rows.csv", **more}
    with pytest.raises(UserError, match=message):
        build(ExportSettings, table).check()


def test_openvino_runs_the_same_file(exported):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'bertkit[openvino]'")
    _, out = exported["pair"]
    one, other = (Predictor.load(out, engine=engine) for engine in ("onnx", "openvino"))
    assert other.engine.name == "openvino"
    same(one.predict(PAIRS), other.predict(PAIRS))


def test_other_layers_than_the_last_are_in_the_embedded_models_alone(exported):
    one, other = (bertkit.load("en", precision="fp32", engine=engine) for engine in ("torch", "onnx"))
    for layers in ("concat-last-4", "sum-last-4", "embeddings", "2,3"):
        np.testing.assert_allclose(
            one.embed(["the cat sat"], layers=layers), other.embed(["the cat sat"], layers=layers), atol=1e-4
        )
    with pytest.raises(UserError, match=r"gives only the last layer\..*--engine torch"):
        bertkit.load(str(exported["classify"][1])).embed(["a"], layers="second-to-last")


def test_vectors_of_a_masked_word_model_are_computed_without_its_words(exported):
    onnx = pytest.importorskip("onnx")
    content = (exported["words"][1] / FILES["fp32"]).read_bytes()
    whole, part = (onnx.load_from_string(file) for file in (content, needed_part(content, ["last_hidden_state"])))
    onnx.checker.check_model(part)
    assert [output.name for output in part.graph.output] == ["last_hidden_state"]
    assert len(part.graph.node) < len(whole.graph.node) and len(part.graph.initializer) < len(whole.graph.initializer)
    assert needed_part(content, []) == content
    model = bertkit.load(str(exported["words"][1]))
    wanted = bertkit.load(str(exported["words"][0]), "fp32").embed(TEXTS[:3])
    model.engine._opened.clear()
    np.testing.assert_allclose(model.embed(TEXTS[:3]), wanted, atol=1e-5)
    opened = [list(runtime.outputs) for runtime in model.engine._opened.values()]
    assert opened == [["last_hidden_state"]]


def test_many_texts_are_computed_by_one_core_each_and_few_by_all(exported, monkeypatch):
    monkeypatch.setattr("bertkit.machine._threads", 2)
    model = bertkit.load(str(exported["classify"][1]))
    cores = lambda: sorted(count for count, _ in model.engine._opened)  # noqa: E731
    few = model.embed(TEXTS[:2])
    assert cores() == [2]
    many = model.embed([*TEXTS[:2], *["the old house in the garden of the river " * 5] * 60])
    assert cores() == [1, 2]
    np.testing.assert_allclose(few, many[:2], atol=1e-5)


def test_what_looks_inside_a_model_needs_torch(exported):
    model = bertkit.load(str(exported["classify"][1]))
    with pytest.raises(UserError, match="looks inside the model"):
        _ = model.model


def damaged(name: str, change: Any):
    def make(folder: Path) -> None:
        change(folder / name)

    return make


BAD = {
    "a file cut in half": (damaged(FILES["fp32"], lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2])),
                           r"model\.onnx cannot be opened by onnxruntime.*bertkit export"),
    "no bytes at all": (damaged(FILES["fp32"], lambda f: f.write_bytes(b"")), r"model\.onnx cannot be opened"),
    "no tokenizer": (damaged("tokenizer.json", lambda f: (f.unlink(), (f.parent / "vocab.txt").unlink())),
                     r"no tokenizer\. One of these is needed: tokenizer\.json.*Copy it too"),
    "no config": (damaged("config.json", lambda f: f.unlink()), r"config\.json"),
    "no file": (damaged(FILES["fp32"], lambda f: f.unlink()), r"no model\.safetensors.*its onnx folder"),
    "a family of its own": (damaged("config.json", lambda f: f.write_text(f.read_text().replace('"bert"', '"xlnet"'))),
                            r"model_type is 'xlnet'.*It implements bert, .*most like bert's.*Use a model of one of"),
    "a config cut in half": (damaged("config.json", lambda f: f.write_text(f.read_text()[:100])),
                             r"config\.json, line \d+: not JSON.*Copy or download it again"),
    "a tokenizer cut in half": (damaged("tokenizer.json", lambda f: f.write_text(f.read_text()[:400])),
                                r"tokenizer\.json: not a readable tokenizer\.json\. Download it again, or delete it"),
    "a bertkit.json cut in half": (damaged("bertkit.json", lambda f: f.write_text('{"task": ')),
                                   r"bertkit\.json, line 1: not JSON.*Copy or download it again"),
    "no CRF": (damaged("crf.safetensors", lambda f: f.unlink()), r"crf\.safetensors is missing.*Copy it too"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused_in_one_message_with_the_way_out(case, exported, tmp_path):
    harm, message = BAD[case]
    folder = tmp_path / "bad"
    shutil.copytree(exported["tag"][1], folder)
    (folder / "MANIFEST.json").unlink(missing_ok=True)
    harm(folder)
    with pytest.raises(UserError, match=message):
        bertkit.load(str(folder))


def test_an_export_of_which_only_a_part_was_copied_names_the_first_file_that_is_missing(exported, tmp_path):
    folder = tmp_path / "part"
    shutil.copytree(exported["classify"][1], folder)
    (folder / FILES["int8"]).unlink()
    with pytest.raises(UserError, match=r"model_quantized\.onnx is missing, but MANIFEST\.json lists it.*--accept"):
        bertkit.load(str(folder))


@pytest.mark.parametrize("which", ["Opset 99", "IR version: 99"])
def test_a_file_of_another_onnx_version_says_so(which, exported, tmp_path):
    onnx = pytest.importorskip("onnx")
    folder = tmp_path / "newer"
    shutil.copytree(exported["regress"][1], folder)
    model = onnx.load(folder / FILES["fp32"])
    if which == "Opset 99":
        model.opset_import[0].version = 99
    else:
        model.ir_version = 99
    (folder / FILES["fp32"]).write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"uses another ONNX version: update onnxruntime|MANIFEST"):
        bertkit.load(str(folder))
    (folder / "MANIFEST.json").unlink(missing_ok=True)
    with pytest.raises(UserError, match=rf"\({which}\)\. It uses another ONNX version: update onnxruntime"):
        bertkit.load(str(folder))


def test_a_verb_that_needs_torch_says_so_in_one_line(tmp_path):
    words = ["bertkit", "pretrain", "--data", "x", "--out", "y"]
    script = f"{BLOCKED}\nsys.argv = {words!r}\nfrom bertkit.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("bertkit: This needs PyTorch") and "--torch-backend cpu" in line


def test_the_verbs_of_prediction_run_without_torch(exported, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\nthe old house,yes\nbread,no\n", "utf-8")
    model = str(exported["classify"][1])
    for words in (
        ["predict", model, str(rows), "--out", str(tmp_path / "out.csv")],
        ["evaluate", model, str(rows), "--json"],
        ["embed", model, str(rows), "--out", str(tmp_path / "out.npy")],
        ["fill", "en", "the [MASK] is open", "--json"],
        ["doctor", str(rows)],
        ["doctor", model],
    ):
        script = f"{BLOCKED}\nsys.argv = ['bertkit', *{words!r}]\nfrom bertkit.cli import main\nmain()\n"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)["engine"] == "onnx"
        if words[0] == "doctor":
            assert "all sound" in done.stdout or "not used without PyTorch" in done.stdout
    assert np.load(tmp_path / "out.npy").shape == (2, 32)


def test_a_server_answers_without_torch(exported):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'bertkit[serve]'")
    pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'bertkit[serve]'")
    script = f"""{BLOCKED}
import json, threading, time, urllib.request, uvicorn
from bertkit.server.app import bind, make_app
from bertkit.server.errors import Limits
from bertkit.server.models import load
from bertkit.server.service import InferenceService

app = make_app(InferenceService(load([{str(exported["classify"][1])!r}]), Limits(), threads=1))
bound = bind("127.0.0.1", 0)
server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
threading.Thread(target=server.run, args=([bound],), daemon=True).start()
while not server.started:
    time.sleep(0.05)
for route in ("predict", "embed"):
    body = json.dumps({{"inputs": "the old house"}}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{{bound.getsockname()[1]}}/{{route}}", body, {{"content-type": "application/json"}}
    )
    print(urllib.request.urlopen(request).read().decode())
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    predicted, embedded = (json.loads(line) for line in done.stdout.splitlines())
    model = bertkit.load(str(exported["classify"][0]), precision="fp32")
    best = max(predicted, key=lambda row: row["score"])
    assert best["label"] == model.predict(["the old house"])[0]["label"]
    assert len(embedded[0]) == model.width


@pytest.mark.parametrize("name", STARTING)
def test_an_embedded_models_graph_fits_its_weights(name):
    """If this fails after the weights were replaced by others of a different shape: python docs/make_graphs.py."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(locate(name) / GRAPH, load_external_data=False).graph
    with (locate(name) / "model.safetensors").open("rb") as file:
        stored, tensors = read_arrays(file.fileno(), name), read(file.fileno(), name)
    outside = {one.name: tuple(one.dims) for one in graph.initializer if one.external_data}
    assert outside == {weight: array.shape for weight, array in stored.items()}
    assert all(np.array_equal(stored[weight], tensors[weight].float().numpy()) for weight in stored)
    assert (locate(name) / GRAPH).stat().st_size < 150_000
