"""Folders made for vectors open in sentence-transformers, and its folders open here, with the same vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import bertkit
from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.checkpoint.sentence_modules import KEYS, read_pooling, write_pooling
from bertkit.commands import convert
from bertkit.data.windows import Windows
from bertkit.errors import DamagedFile, UserError
from bertkit.files import tensors as tensor_file
from bertkit.files.manifest import accept
from bertkit.model.inference import TorchEngine
from bertkit.model.pooling import Pooling, Step
from bertkit.tasks.batches import outputs_of
from bertkit.tasks.embed import Embed
from tests.support import toy

TEXTS = ["the old house in paris", "bread", "a letter from anna and peter with a book", ""]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return read_folder(toy.make_model(tmp_path_factory.mktemp("plain") / "model"), heads={})


def written(folder: Folder, path: Path, pooling: Pooling) -> Path:
    folder.pooling = pooling
    write_folder(path, folder)
    folder.pooling = None
    return path


def ours(path: Path) -> np.ndarray:
    """Vectors as the task `embed` makes them, which are always of length one."""
    folder = read_folder(path)
    task = Embed(options=folder.about["options"])
    items = task.encode(task.from_inputs([(text, text) for text in TEXTS]), folder.tokenizer, Windows(64))
    return np.stack(outputs_of(TorchEngine(folder.model.eval()), task, items))[:, 0]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@torch.no_grad()
def by_hand(path: Path, mode: str) -> np.ndarray:
    model, tokenizer = hf.AutoModel.from_pretrained(path).eval(), hf.AutoTokenizer.from_pretrained(path)
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    tokens, there = model(**given).last_hidden_state, given["attention_mask"][:, :, None].bool()
    if mode == "cls":
        return tokens[:, 0].numpy()
    if mode == "max":
        return tokens.masked_fill(~there, -1e9).amax(1).numpy()
    return ((tokens * there).sum(1) / there.sum(1)).numpy()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_a_written_folder_gives_the_same_vectors_everywhere(mode, normalize, plain, tmp_path):
    plain.about = {"task": "embed", "options": {"pool": mode}}
    path = written(plain, tmp_path / "ours", Pooling(mode, normalize))
    assert read_folder(path).pooling == Pooling(mode, normalize)
    mine = ours(path)
    assert cosines(mine, by_hand(path, mode)).min() > 0.9999
    sentences = pytest.importorskip("sentence_transformers", reason="the other reader of these files")
    theirs = sentences.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    assert cosines(mine, theirs).min() > 0.9999
    lengths = np.linalg.norm(theirs, axis=-1)
    assert np.allclose(lengths, 1, atol=1e-5) == normalize


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_a_folder_that_sentence_transformers_wrote_is_read_with_its_pooling(mode, plain, tmp_path):
    sentences = pytest.importorskip("sentence_transformers", reason="the other writer of these files")
    plain.about = {}
    source = written(plain, tmp_path / "source", Pooling(mode, mode == "cls"))
    model = sentences.SentenceTransformer(str(source), device="cpu")
    model.save(str(tmp_path / "theirs"))
    folder = read_folder(tmp_path / "theirs")
    assert folder.pooling == Pooling(mode, mode == "cls")
    assert folder.about == {"task": "embed", "options": {"pool": mode}}
    assert cosines(ours(tmp_path / "theirs"), model.encode(TEXTS)).min() > 0.9999


def test_where_texts_are_cut_is_kept_when_a_folder_is_written_again(plain, tmp_path):
    plain.about = {}
    first = written(plain, tmp_path / "first", Pooling("mean", max_tokens=100))
    again = written(read_folder(first), tmp_path / "again", read_folder(first).pooling)
    assert json.loads((again / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"] == 100


def test_the_files_have_the_form_that_old_and_new_readers_take(tmp_path):
    write_pooling(tmp_path, Pooling("cls", True), 32, 128)
    read = {str(p.relative_to(tmp_path)): json.loads(p.read_text("utf-8")) for p in tmp_path.rglob("*.json")}
    assert [(m["idx"], m["name"], m["path"], m["type"]) for m in read["modules.json"]] == [
        (0, "0", "", "sentence_transformers.models.Transformer"),
        (1, "1", "1_Pooling", "sentence_transformers.models.Pooling"),
        (2, "2", "2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    pooling = read["1_Pooling/config.json"]
    assert pooling.pop("word_embedding_dimension") == 32 and pooling.pop("include_prompt") is True
    assert pooling == {key: key == "pooling_mode_cls_token" for key in KEYS.values()}
    assert read["sentence_bert_config.json"] == {"max_seq_length": 128, "do_lower_case": False}
    general = read["config_sentence_transformers.json"]
    assert general["similarity_fn_name"] == "cosine" and general["default_prompt_name"] is None
    assert set(read) == {
        "modules.json", "1_Pooling/config.json", "2_Normalize/config.json", "sentence_bert_config.json",
        "config_sentence_transformers.json",
    }  # fmt: skip


def changed(path: Path, name: str, change) -> None:
    value = json.loads((path / name).read_text("utf-8"))
    (path / name).write_text(json.dumps(change(value)), "utf-8")


@pytest.fixture
def pooled(plain, tmp_path) -> Path:
    plain.about = {}
    path = written(plain, tmp_path / "pooled", Pooling())
    (path / "bertkit.json").unlink()
    return path


def module(kind: str) -> dict:
    return {"idx": 2, "name": "2", "path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"}


STRANGE = {
    "a convolution": ("modules.json", lambda m: [*m, module("CNN")], r"2_CNN \(CNN\)"),
    "words weighted": ("modules.json", lambda m: [*m, module("WordWeights")], r"2_WordWeights \(WordWeights\)"),
    "a layer of tokens": (
        "modules.json", lambda m: [m[0], module("LayerNorm"), m[1]], r"2_LayerNorm \(LayerNorm before the pooling\)"
    ),
    "another pooling": ("1_Pooling/config.json", lambda c: {"pooling_mode": "median"}, "the pooling median"),
    "a joined list": ("1_Pooling/config.json", lambda c: {"pooling_mode": ["mean", "min"]}, r"mean \+ min"),
    "no pooling": ("modules.json", lambda m: m[:1], "no pooling at all"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_vectors_that_would_not_be_the_folders_own_are_refused(name, pooled):
    file, change, words = STRANGE[name]
    changed(pooled, file, change)
    (pooled / "2_LayerNorm").mkdir()
    tensor_file.write(pooled / "2_LayerNorm/model.safetensors", {"norm.weight": torch.ones(32)})
    pooling = read_folder(pooled).pooling
    with pytest.raises(UserError, match=words) as error:
        pooling.check()
    assert "--pool" in str(error.value)
    told = f"{words}, which bertkit does not write.*modules.json from a copy"
    with pytest.raises(UserError, match=told):
        convert.run(convert.Settings(source=str(pooled), target=pooled.parent / "again"))
    with pytest.raises(UserError, match=told):
        write_folder(pooled.parent / "again", read_folder(pooled))
    assert not (pooled.parent / "again").exists(), "half of it would be wrong"
    with pytest.raises(UserError, match="has not been fine-tuned"):
        bertkit.load(str(pooled), "fp32").predict([("a", "b")])


def test_a_pooling_without_any_word_is_the_mean_as_sentence_transformers_takes_it(pooled):
    changed(pooled, "1_Pooling/config.json", lambda c: {"word_embedding_dimension": 32})
    assert read_pooling(pooled) == Pooling("mean")


def test_prompts_small_letters_and_the_similarity_stay_as_the_folder_says(pooled):
    general = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    changed(pooled, "config_sentence_transformers.json", lambda c: c | general)
    changed(pooled, "sentence_bert_config.json", lambda c: c | {"do_lower_case": True, "max_seq_length": 50})
    again = pooled.parent / "again"
    convert.run(convert.Settings(source=str(pooled), target=again))
    assert json.loads((again / "config_sentence_transformers.json").read_text("utf-8")).items() >= general.items()
    limits = json.loads((again / "sentence_bert_config.json").read_text("utf-8"))
    assert limits == {"max_seq_length": 50, "do_lower_case": True}


def test_small_letters_and_the_default_prompt_are_reported(pooled, notes):
    changed(pooled, "sentence_bert_config.json", lambda c: c | {"do_lower_case": True})
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    changed(pooled, "config_sentence_transformers.json", lambda c: c | prompts)
    read_folder(pooled)
    assert any("texts are lower-cased" in note for note in notes)
    assert any("'query'" in note and "'query: '" in note for note in notes)


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("modules.json", "{}", DamagedFile),
        ("modules.json", "[3]", DamagedFile),
        ("modules.json", '[{"type": "x.Pooling", "path": "../../etc"}]', UserError),
        ("modules.json", '[{"type": "x.Pooling", "path": "nowhere"}]', UserError),
        ("1_Pooling/config.json", "[]", DamagedFile),
        ("config_sentence_transformers.json", "nonsense", DamagedFile),
        ("config_sentence_transformers.json", '{"prompts": {"query": 3}}', DamagedFile),
        ("config_sentence_transformers.json", '{"default_prompt_name": "missing"}', DamagedFile),
        ("modules.json", '[{"type": "x.Dense", "path": "gone"}]', UserError),
    ],
)
def test_damaged_or_hostile_files_are_named(file, content, error, pooled):
    (pooled / file).write_text(content, "utf-8")
    with pytest.raises(error):
        read_folder(pooled)


def test_a_folder_of_another_task_ignores_what_an_earlier_one_left(plain, tmp_path):
    plain.about = {"task": "classify", "labels": ["a", "b"]}
    path = written(plain, tmp_path / "left", Pooling("cls"))
    assert read_folder(path).pooling is None


def test_a_model_tuned_for_vectors_is_a_sentence_transformers_folder(tmp_path):
    runs = toy.Runs(tmp_path)
    run = runs("embed")
    out = Path(run.result["out"])
    assert read_folder(out).pooling == Pooling("mean")
    limit = json.loads((out / "sentence_bert_config.json").read_text("utf-8"))
    assert limit == {"max_seq_length": 64, "do_lower_case": False}
    card = (out / "README.md").read_text("utf-8")
    assert "library_name: sentence-transformers" in card and "mean pooling" in card
    pairs = [(row["text"], row["text_b"]) for row in toy.alike(6, 3)]
    said = [one["similarity"] for one in run.predict(pairs)]
    sentences = pytest.importorskip("sentence_transformers", reason="the other reader of these files")
    theirs = sentences.SentenceTransformer(str(out), device="cpu")
    left, right = (theirs.encode([pair[side] for pair in pairs]) for side in (0, 1))
    assert said == pytest.approx(cosines(left, right).tolist(), abs=1e-4)

    # Tuned further it keeps the pooling it has; for another task it is no longer a folder for vectors.
    changed(out, "1_Pooling/config.json", lambda c: {"pooling_mode": "cls"})
    accept(out)
    files = toy.files(tmp_path, "embed")
    further = bertkit.finetune("embed", model=str(out), out=tmp_path / "further", **toy.SMALL | {"steps": 3}, **files)
    assert further.task.options["pool"] == "cls" and read_folder(tmp_path / "further").pooling == Pooling("cls")
    files = toy.files(tmp_path, "classify")
    bertkit.finetune("classify", model=str(out), out=tmp_path / "other", **toy.SMALL | {"steps": 3}, **files)
    assert not (tmp_path / "other/modules.json").exists()


def test_learning_vectors_does_not_pass_a_pooler_off_as_trained(plain, tmp_path):
    plain.about, plain.model.untrained = {}, ("pooler",)
    write_folder(tmp_path / "model", plain)
    plain.model.untrained = ()
    files = toy.files(tmp_path, "embed")
    bertkit.finetune("embed", model=str(tmp_path / "model"), out=tmp_path / "out", **toy.SMALL | {"steps": 2}, **files)
    assert read_folder(tmp_path / "out").model.untrained == ("pooler",)


def test_layers_and_prompts_are_left_out_of_further_tuning_and_reported(plain, tmp_path, notes):
    plain.about = {}
    step = Step(
        "Dense", {"activation_function": "torch.nn.modules.activation.Tanh"}, {"linear.weight": np.ones((8, 64), "f4")}
    )
    pooling = Pooling("cls+weightedmean", True, kept={"prompts": {"query": "query: "}}, steps=(step,))
    path = written(plain, tmp_path / "whole", pooling)
    files = toy.files(tmp_path, "embed")
    bertkit.finetune("embed", model=str(path), out=tmp_path / "tuned", **toy.SMALL | {"steps": 2}, **files)
    told = "Dense (Tanh) and the pooling cls+weightedmean; the new model does not"
    assert any(told in note for note in notes) and any("has prompts (query)" in note for note in notes)
    assert read_folder(tmp_path / "tuned").pooling == Pooling("mean", True)
