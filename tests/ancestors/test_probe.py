"""`--layers auto`: the probe finds the layer that carries the label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertkit.ancestors.bert_features import MOST_ROWS, best_layers, probe, table
from bertkit.commands import embed
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.layer_choice import CHOICES
from tests.support import folders

DEPTH, WIDTH = 6, 4


def carrier(layer: int, seed: int = 0):
    """An embedder whose layers are all noise, but for one in which the text's label stands: `embed` of a model."""

    def embed_(texts, layers, pool):
        assert pool == "mean" and list(layers) == list(range(DEPTH + 1))
        found = np.random.default_rng(seed).normal(size=(len(texts), DEPTH + 1, WIDTH))
        found[:, layer, 0] += [8 * (text == "yes") for text in texts]
        return found.reshape(len(texts), -1).astype(np.float32)

    return embed_


def rows(count: int) -> tuple[list[str], list[str]]:
    labels = [("yes", "no")[n % 2] for n in range(count)]
    return labels, labels


@pytest.mark.parametrize("layer, wanted", [(0, "embeddings"), (6, "last"), (5, "second-to-last"), (1, "sum-all")])
def test_the_choice_whose_layer_carries_the_label_is_picked(layer: int, wanted: str) -> None:
    found = probe(carrier(layer), DEPTH, *rows(200))
    scores = {row["choice"]: row["accuracy"] for row in found}
    assert list(scores) == list(CHOICES) and scores[wanted] > 0.85
    without = {"embeddings": ("last", "sum-all"), "last": ("embeddings", "second-to-last")}
    assert all(scores[other] < 0.7 for other in without.get(wanted, ("embeddings", "last")))
    assert best_layers(found) == wanted


def test_of_equals_the_last_layer_is_taken() -> None:
    equal = [{"choice": name, "accuracy": 0.5, "spread": 0.0} for name in CHOICES]
    assert best_layers(equal) == "last"
    assert best_layers([row | {"accuracy": 0.6} if row["choice"] == "sum-all" else row for row in equal]) == "sum-all"
    assert table(equal).endswith("sum-all 50.0% ± 0.0%. last is used.")


def test_many_rows_are_sampled_with_a_note(notes) -> None:
    seen = []

    def counting(texts, layers, pool):
        seen.append(len(texts))
        return carrier(6)(texts, layers, pool)

    probe(counting, DEPTH, *rows(MOST_ROWS + 10))
    assert seen == [MOST_ROWS] and "2,000 of 2,010" in notes[0]


@pytest.mark.parametrize(
    "labels, told", [(["a"] * 4, "1 different labels"), (["a", "a", "b"], "one --probe row is labelled 'b'")]
)
def test_too_few_labels_are_reported(labels: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        probe(carrier(0), DEPTH, labels, labels)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    folders.write(folder, "bert", "BertModel")
    return folder


def test_auto_embeds_with_the_layers_the_probe_chose_and_reports_the_table(model: Path, tmp_path: Path, notes) -> None:
    texts = [
        f"{first} {second}" for first in ("cat", "dog", "paris", "london") for second in ("the", "a", "old", "new")
    ]
    labelled = "".join(f"{text},{'animal' if text[0] in 'cd' else 'place'}\n" for text in texts)
    (tmp_path / "probe.csv").write_text("text,label\n" + labelled)
    (tmp_path / "texts.txt").write_text("the cat\nparis\n")
    said = embed.run(
        embed.Settings(
            model=str(model), file=tmp_path / "texts.txt", out=tmp_path / "v.npy", layers="auto", precision="fp32",
            probe=tmp_path / "probe.csv", threads=1, device="cpu",
        )
    )  # fmt: skip
    (told,) = [note for note in notes if "linear probe" in note]
    assert said["layers"] in CHOICES and told.endswith(f"{said['layers']} is used.")
    assert all(choice in told for choice in CHOICES)
    wanted = Predictor.load(model, "fp32").embed(["the cat", "paris"], layers=said["layers"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"layers": "auto"}, "--probe FILE"),
        ({"layers": "last", "probe": Path("p.csv")}, "--probe is only used with --layers auto"),
    ],
)
def test_auto_and_a_probe_belong_together(given: dict, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        embed.run(embed.Settings(model="none", file=tmp_path / "t.txt", **given))


@pytest.mark.parametrize("pool, asked", [("mean", "mean"), ("cls", "cls"), ("max", "mean"), ("none", "mean")])
def test_vectors_are_probed_as_they_will_be_pooled_where_that_can_be(pool: str, asked: str) -> None:
    seen = []

    def hear(texts, layers, pool):
        seen.append(pool)
        return carrier(6)(texts, layers, "mean")

    probe(hear, DEPTH, *rows(40), pool=pool)
    assert seen == [asked]
