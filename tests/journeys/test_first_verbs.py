"""From text to vectors with the command line alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import bertkit
from bertkit.data.feed import Phase, PretrainingFeed
from bertkit.settings.training import MaskSettings
from tests.support import folders, synthetic
from tests.support.command_line import CommandLine

GOOGLE = Path(__file__).parents[1] / "fixtures" / "google"
TEXTS = ["the cat sat on the mat", "a dog, running", "北京 is old", 'the money in the bank "quoted"', "ran"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_vocabulary_is_learnt_and_opens_in_transformers(kind: str, run: CommandLine, tmp_path: Path) -> None:
    words = ["the", "cat", "dog", "bird", "sat", "ran", "over", "river", "bank", "house", "北京", "上海", "是", "城市"]
    random = np.random.default_rng(0)
    text = "\n".join(" ".join(random.choice(words, 12)) for _ in range(300))
    (tmp_path / "text.txt").write_text(text, "utf-8")
    said = run("tokenizer", tmp_path / "text.txt", "--kind", kind, "--size", 400, "--out", tmp_path / "t",
               "--max-tokens", 99, "--json")  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["kind"] == kind and 20 < said.json["size"] <= 400
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert theirs.model_max_length == 99
    from bertkit.text.tokenizer import Tokenizer

    ours = Tokenizer.load(tmp_path / "t")
    for line in text.splitlines()[:20]:
        assert ours.encode(line).ids == theirs(line)["input_ids"]
    assert kind in run("tokenizer", tmp_path / "text.txt", "--kind", kind, "--size", 400, "--out", tmp_path / "u").out


@pytest.mark.parametrize("family, name", [("bert", "BertForPreTraining"), ("albert", "AlbertForPreTraining"),
                                          ("electra", "ElectraForPreTraining")])  # fmt: skip
def test_googles_checkpoint_is_converted_and_answers(family: str, name: str, run: CommandLine, tmp_path: Path) -> None:
    said = run("convert", GOOGLE / family, tmp_path / "model", "--json")
    assert said.code == 0, said.err
    assert said.json["class"] == name
    ours, theirs = bertkit.load(tmp_path / "model", precision="fp32"), AutoModel.from_pretrained(tmp_path / "model")
    for text in TEXTS[:3]:
        ids = ours.tokenizer.encode(text).ids
        with torch.no_grad():
            expected = theirs.eval()(torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(ours.embed([text], pool="none")[0], expected, atol=1e-5)
    if family == "electra":
        return
    said = run("fill", tmp_path / "model", "the [MASK]", "--top", 2)
    assert said.code == 0 and len(said.out.splitlines()) == 2
    again = run("convert", tmp_path / "model", tmp_path / "again")
    assert again.code == 0 and "transformers open it" in again.out
    first, second = folders.tensors_of(tmp_path / "model"), folders.tensors_of(tmp_path / "again")
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_a_pickled_checkpoint_is_converted_once_and_for_all(run: CommandLine, tmp_path: Path) -> None:
    folders.write(tmp_path / "old", "bert", "BertForMaskedLM")
    tensors = folders.tensors_of(tmp_path / "old")
    torch.save(tensors, tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    said = run("convert", tmp_path / "old", tmp_path / "new")
    assert said.code == 0 and "is a pickle file" in said.err
    new = folders.tensors_of(tmp_path / "new")
    assert new.keys() == tensors.keys() and all(torch.equal(new[key], tensors[key]) for key in new)


def as_file(folder: Path, ending: str) -> Path:
    import csv

    path = folder / f"rows.{ending}"
    if ending in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            # A tab-separated file has no quoting, as in GLUE and most data sets.
            plain = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
            writer = csv.writer(file, **(plain if ending == "tsv" else {}))
            writer.writerows([["id", "text"], *([n, text] for n, text in enumerate(TEXTS))])
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    else:
        path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    return path


def vectors_of(path: Path) -> tuple[list[str] | None, np.ndarray]:
    if path.suffix == ".npy":
        return None, np.load(path)
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["text"] for row in rows], np.array([row["vector"] for row in rows], np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    folders.write(folder, "bert", "BertModel")
    return folder


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "txt"])
@pytest.mark.parametrize("out", ["npy", "parquet", "jsonl"])
def test_texts_of_any_file_become_vectors_in_any_file(ending: str, out: str, run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / f"vectors.{out}"
    said = run("embed", model, as_file(tmp_path, ending), "--out", target, "--precision", "fp32", "--json")
    assert said.code == 0, said.err
    assert (said.json["rows"], said.json["width"]) == (5, 32)
    texts, vectors = vectors_of(target)
    assert texts in (None, TEXTS)
    np.testing.assert_array_equal(vectors, bertkit.load(model, precision="fp32").embed(TEXTS))


def test_every_choice_of_layers_and_pools_comes_out_of_the_command(run, model: Path, tmp_path: Path) -> None:
    ours = bertkit.load(model, precision="fp32")
    rows = as_file(tmp_path, "txt")
    for layers, pool in (("concat-last-4", "cls"), ("-1,-2", "max"), ("embeddings", "mean"), ("sum-all", "mean")):
        run("embed", model, rows, "--out", tmp_path / "v.npy", "--layers", layers, "--pool", pool, "--normalize",
            "--precision", "fp32")  # fmt: skip
        expected = ours.embed(TEXTS, layers=layers, pool=pool, normalize=True)
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    assert run("embed", model, rows, "--pool", "none", "--out", tmp_path / "v.jsonl", "--precision", "fp32").code == 0
    tokens = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text("utf-8").splitlines()]
    for row, expected in zip(tokens, ours.embed(TEXTS, pool="none"), strict=True):
        np.testing.assert_array_equal(np.array(row["vectors"], np.float32), expected)
        encoding = ours.tokenizer.encode(row["text"])
        assert row["tokens"] == [ours.tokenizer.id_to_token(piece) for piece in encoding.ids]
        assert row["offsets"] == [list(span) for span in encoding.offsets]


def test_tokens_of_a_text_read_in_windows_keep_their_places(model: Path) -> None:
    ours, text = bertkit.load(model, precision="fp32"), " ".join(TEXTS * 8)
    (answer,) = ours.embed_tokens(text)
    encoding = ours.tokenizer.encode(text)
    assert answer["offsets"] == [list(span) for span in encoding.offsets[1:-1]] and len(encoding) > 80
    assert len(answer["tokens"]) == len(answer["vectors"]) == len(encoding) - 2
    np.testing.assert_array_equal(answer["vectors"], ours.embed(text, pool="none")[0])


def test_two_texts_are_joined_scored_and_filled_together(run, tmp_path: Path) -> None:
    folders.write(tmp_path / "m", "bert", "BertForPreTraining")
    model = bertkit.load(tmp_path / "m", precision="fp32")
    said = run("next", tmp_path / "m", "the cat sat .", "the dog ran", "--json", "--precision", "fp32")
    assert said.json["next"] == pytest.approx(model.follows("the cat sat .", "the dog ran")["next"])
    assert "B follows A" in run("next", tmp_path / "m", "the cat sat .", "the dog ran").out
    said = run("score", tmp_path / "m", "the cat sat", "cat the the", "--json", "--precision", "fp32")
    assert [row["score"] for row in said.json["texts"]] == pytest.approx(model.score(["the cat sat", "cat the the"]))
    assert said.json["texts"][0]["pieces"] == 3
    said = run("fill", tmp_path / "m", "the [MASK] [MASK]", "--joint", "beam", "--top", 2, "--json")
    assert [len(filling["tokens"]) for filling in said.json["fillings"]] == [2, 2]


def test_a_store_shows_its_masked_rows_and_pairs(run, tmp_path: Path) -> None:
    store = synthetic.make_store(tmp_path, 40)
    said = run("inspect", store.folder, "--rows", 6, "--length", 32, "--json")
    assert said.code == 0, said.err
    rows = said.json["rows"]
    assert {row["label"] for row in rows} == {0, 1}
    # These are the rows that pretraining reads.
    plan = [Phase(0, 1, 32, 6)]
    feed = PretrainingFeed(
        store, np.arange(store.documents), packing="next-sentence", masking=MaskSettings(), plan=plan, seed=0
    )
    for row, (number, epoch) in zip(rows, feed.numbers(0), strict=True):
        example, ids, places = feed.masked(32, number, epoch, 0.15)
        assert [token["token"] for token in row["tokens"]] == [store.tokenizer.id_to_token(int(n)) for n in example.ids]
        assert [token["shown"] for token in row["tokens"]] == [store.tokenizer.id_to_token(int(n)) for n in ids]
        assert [place for place, token in enumerate(row["tokens"]) if token["fate"]] == places.tolist()
    shown = run("inspect", store.folder, "--rows", 6, "--length", 32).out
    assert "the second text follows" in shown and "from another document" in shown and "(mask)" in shown
    assert run("inspect", store.folder, "a text").code == 2


GROWTH = """
import resource, sys
from bertkit import cli
_, model, out, *files = sys.argv
for file in files:
    sys.argv = ["bertkit", "embed", model, file, "--out", out, "--layers", ",".join("01234" * 6)]
    cli.main()
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_embedding_many_more_rows_takes_no_more_memory(model: Path, tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("peak memory is counted otherwise here")
    sizes = (9_000, 40_000)
    for rows in sizes:
        (tmp_path / f"{rows}.txt").write_text("the cat sat on the old mat .\n" * rows)
    files = [str(tmp_path / f"{rows}.txt") for rows in sizes]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(model), str(tmp_path / "v.npy"), *files],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    small, large = (int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak"))
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert vectors.shape == (40_000, 32 * 30)
    # The further vectors alone would be 119 MB.
    assert large - small < 60_000, (small, large)
