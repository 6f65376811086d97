"""The scikit-learn estimators keep scikit-learn's promises."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

import bertkit
from bertkit.errors import UserError
from bertkit.runs.compress.export import export
from bertkit.settings.compress import ExportSettings
from bertkit.sklearn import BertClassifier, BertEmbedder, BertRegressor
from tests.support import toy

SMALL = {"lr": 3e-3, "steps": 80, "batch": 16, "threads": 1, "precision": "fp32", "max_tokens": 64, "dropout": 0.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy.make_model(tmp_path_factory.mktemp("sklearn") / "model"))


def data(number: int = 120, seed: int = 0) -> tuple[list[str], list[str]]:
    rows = toy.messages(number, seed, most=10)
    return [row["text"] for row in rows], [row["label"] for row in rows]


@pytest.fixture(scope="module")
def fitted(model) -> BertClassifier:
    return BertClassifier(model, **SMALL).fit(*data())


def test_a_classifier_learns_and_keeps_the_users_classes(fitted):
    X, y = data(40, 1)
    assert fitted.classes_.tolist() == ["ham", "spam"]
    assert fitted.score(X, y) > 0.9
    table = fitted.predict_proba(X)
    assert table.shape == (40, 2) and np.allclose(table.sum(1), 1)
    assert (fitted.classes_[table.argmax(1)] == fitted.predict(X)).all()
    assert is_classifier(fitted) and fitted.result_["headline"] == "accuracy"


@pytest.mark.parametrize("kinds", [[10, 9], [True, False], ["b, or c", "a"], [2.0, 1.0], ["", "x"]])
def test_classes_of_any_kind_come_back_as_they_were(kinds, model):
    X, y = data(20)
    named = [kinds[label == "spam"] for label in y]
    made = BertClassifier(model, **SMALL | {"steps": 2}).fit(X, named)
    assert made.classes_.tolist() == sorted(kinds)
    assert set(made.predict(X).tolist()) <= set(kinds)
    assert made.predict(X).dtype == np.asarray(named).dtype


def test_a_regressor_learns_numbers_on_the_users_scale(model):
    rows = toy.numbers(80)
    made = BertRegressor(model, **SMALL).fit([row["text"] for row in rows], [row["label"] for row in rows])
    test = toy.numbers(20, 1)
    found = made.predict([row["text"] for row in test])
    assert found.shape == (20,) and is_regressor(made)
    assert made.score([row["text"] for row in test], [row["label"] for row in test]) > 0.8
    assert abs(np.sort(found)[:10].mean() - 10) < 15 and abs(np.sort(found)[10:].mean() - 100) < 15


def test_an_embedder_gives_the_vectors_of_the_model(model):
    X, _ = data(10)
    made = BertEmbedder(model, precision="fp32", pool="max")
    found = made.fit_transform(X)
    assert found.shape == (10, 32) and found.dtype == np.float32
    np.testing.assert_allclose(found, bertkit.load(model, precision="fp32").embed(X, pool="max"), atol=1e-5)
    assert made.get_feature_names_out().tolist() == [f"bertembedder{n}" for n in range(32)]
    with pytest.raises(ValueError, match="one per text"):
        BertEmbedder(model, pool="none").fit(X)


def test_an_embedder_stands_first_in_a_pipeline(model):
    brief = toy.messages(120, least=1, most=2)
    X, y = [row["text"] for row in brief], [row["label"] for row in brief]
    line = make_pipeline(BertEmbedder(model, precision="fp32"), LogisticRegression(max_iter=500))
    assert line.fit(X, y).score(X, y) > 0.8
    again = clone(line).fit(X, y)
    assert (again.predict(X) == line.predict(X)).all()


def test_a_classifier_stands_last_in_a_pipeline(model):
    X, y = data(20)
    line = make_pipeline(FunctionTransformer(lambda texts: [text.upper() for text in texts]), BertClassifier(model))
    line.set_params(bertclassifier__steps=2, bertclassifier__threads=1)
    assert set(line.fit(X, y).predict(X)) <= {"ham", "spam"}


def test_parameters_are_stored_as_given_and_cloned(model):
    given = BertClassifier(model, lr=np.float64(1e-3), steps=np.int64(3), seed=7)
    assert given.get_params()["lr"] is given.lr and given.get_params()["seed"] == 7
    copy = clone(given)
    assert copy.get_params() == given.get_params() and not hasattr(copy, "classes_")
    assert given.set_params(epochs=2).epochs == 2
    X, y = data(20)
    assert given.fit(X, y).get_params() == copy.set_params(epochs=2).get_params()


def test_grid_search_and_cross_validation_work(model):
    rows = toy.messages(60, least=1, most=4)
    X, y = [row["text"] for row in rows], [row["label"] for row in rows]
    search = GridSearchCV(BertClassifier(model, **SMALL | {"steps": 40}), {"lr": [1e-9, 3e-3]}, cv=2)
    search.fit(np.array(X), np.array(y))
    assert search.best_params_ == {"lr": 3e-3}
    scores = cross_val_score(BertClassifier(model, **SMALL | {"steps": 40}), X, y, cv=2)
    assert scores.shape == (2,) and scores.mean() > 0.7


def test_the_same_seed_gives_the_same_model_and_another_seed_another(model):
    X, y = data(30)
    one, two, other = (BertClassifier(model, **SMALL | {"steps": 4, "seed": s}).fit(X, y) for s in (0, 0, 1))
    assert (one.predict_proba(X) == two.predict_proba(X)).all()
    assert (one.predict_proba(X) != other.predict_proba(X)).any()


def test_what_joblib_wrote_needs_no_other_file(fitted, tmp_path):
    X, _ = data(10, 3)
    joblib.dump(fitted, tmp_path / "it.joblib")
    np.save(tmp_path / "wanted.npy", fitted.predict_proba(X))
    code = (
        "import sys, joblib, numpy as np\n"
        "it = joblib.load('it.joblib')\n"
        f"assert np.allclose(it.predict_proba({X!r}), np.load('wanted.npy'), atol=1e-6)\n"
        "assert it.classes_.tolist() == ['ham', 'spam']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_pickled_embedder_keeps_the_files_of_its_folder(model, tmp_path):
    X, _ = data(5)
    folder = toy.make_model(tmp_path / "own")
    made = BertEmbedder(str(folder), precision="fp32").fit(X)
    wanted = made.transform(X)
    file = io.BytesIO()
    joblib.dump(made, file)
    for path in folder.iterdir():
        path.unlink()
    file.seek(0)
    assert (joblib.load(file).transform(X) == wanted).all()


def test_save_writes_a_folder_that_bertkit_opens(fitted, tmp_path):
    X, _ = data(6, 2)
    fitted.save(tmp_path / "saved")
    said = bertkit.load(tmp_path / "saved", precision="fp32").predict(X)
    assert [one["label"] for one in said] == fitted.predict(X).tolist()


def test_nothing_is_left_behind_and_nothing_of_the_user_is_touched(model, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    before = {path.name: path.read_bytes() for path in Path(model).iterdir()}
    X, y = data(20)
    BertClassifier(model, **SMALL | {"steps": 2}).fit(X, y).predict(X)
    assert not list((tmp_path / "temporary").iterdir()) and [p.name for p in tmp_path.iterdir()] == ["temporary"]
    assert {path.name: path.read_bytes() for path in Path(model).iterdir()} == before


def test_without_held_out_rows_every_row_is_trained_on(model):
    X, y = data(30)
    all_, most = (BertClassifier(model, **SMALL | {"steps": 2, "held_out": share}).fit(X, y) for share in (0.0, 0.2))
    assert len(all_.result_["data"]["lengths"]["values"]) == 30
    assert len(most.result_["data"]["lengths"]["values"]) == 24 and most.result_["rows"] == 6


def test_long_texts_are_read_in_windows_cut_or_refused_as_asked(model):
    X, y = data(20)
    long = " ".join(["bread"] * 400 + ["prize", "winner"])
    shares = {}
    for on_long in ("window", "truncate", "error"):
        made = BertClassifier(model, **SMALL | {"steps": 2, "on_long": on_long}).fit(X, y)
        if on_long == "error":
            with pytest.raises(UserError, match="Text 1 has 404 tokens"):
                made.predict([long])
        else:
            shares[on_long] = made.predict_proba([long, "bread"])
    assert abs(shares["window"][0] - shares["truncate"][0]).max() > 1e-6
    # The batches have other shapes, so some CPUs round the short text's sums in another order.
    np.testing.assert_allclose(shares["window"][1], shares["truncate"][1], rtol=0, atol=5e-7)


WRONG = [
    ("one text", ["a"], TypeError, "list"),
    ([], [], ValueError, "0 sample"),
    ([1, 2], ["a", "b"], ValueError, "row 0: 1"),
    (["a", None], ["a", "b"], ValueError, "row 1: None"),
    ([["a", "b"], ["c", "d"]], ["a", "b"], ValueError, r"shape \(2, 2\)"),
    (["a", "b"], ["a"], ValueError, "inconsistent"),
    (["a", "b"], ["a", "a"], ValueError, "one class"),
    (["a", "b"], [0.5, 0.7], ValueError, "continuous"),
    (["a", "b"], None, ValueError, "y is None"),
]


@pytest.mark.parametrize(("X", "y", "kind", "words"), WRONG)
def test_what_is_no_text_or_no_label_is_refused_in_plain_words(X, y, kind, words, model):
    with pytest.raises(kind, match=words):
        BertClassifier(model, steps=1).fit(X, y)


def test_a_column_of_a_table_is_taken(model):
    X, y = data(12)
    made = BertClassifier(model, **SMALL | {"steps": 1}).fit(np.array(X, dtype=object)[:, None], np.array(y))
    assert made.predict(np.array(X)).shape == (12,)


def test_an_unfitted_estimator_says_so(model):
    for made in (BertClassifier(model), BertRegressor(model)):
        with pytest.raises(NotFittedError):
            made.predict(["a"])
    with pytest.raises(NotFittedError):
        BertEmbedder(model).transform(["a"])


def test_a_wrong_parameter_is_named_with_the_nearest_right_one(model):
    X, y = data(8)
    with pytest.raises(UserError, match=r"BertClassifier: on_long is 'windows'.*'window'"):
        BertClassifier(model, on_long="windows").fit(X, y)


# scikit-learn's own checks speak in tables of numbers. Here each row of numbers is written out as a text, so that the
# checks reach our code instead of being skipped for an estimator of texts.


class _Numbers:
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags

    def _texts(self, X):
        """Each number as a word, after the checks every estimator of numbers makes."""
        table = validate_data(self, X, reset=not hasattr(self, "n_features_in_") or self._fitting)
        return [" ".join(toy.FILLER[int(abs(v) * 10) % len(toy.FILLER)] for v in row[:8]) for row in table]

    _fitting = False

    def fit(self, X, y=None):
        self._fitting = True
        try:
            return super().fit(X, y)
        finally:
            del self._fitting


class NumberClassifier(_Numbers, BertClassifier):
    pass


class NumberRegressor(_Numbers, BertRegressor):
    pass


class NumberEmbedder(_Numbers, BertEmbedder):
    pass


TOO_BRIEF = "it is trained for two steps here, to be quick, and the check wants a good score"
EXPECTED = {"check_classifiers_train": TOO_BRIEF, "check_regressors_train": TOO_BRIEF}


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_an_embedder_gives_the_vectors_of_a_sentence_transformers_folder(mode, model, tmp_path):
    """With its pooling and scaling, after pickling without the folder, and as a clone."""
    sentences = pytest.importorskip("sentence_transformers", reason="the judge of these folders")
    from bertkit.checkpoint.folder import read_folder, write_folder
    from bertkit.checkpoint.sentence_modules import Pooling

    folder = read_folder(Path(model))
    folder.pooling = Pooling(mode, normalize=True)
    write_folder(tmp_path / "own", folder)
    wanted = sentences.SentenceTransformer(str(tmp_path / "own"), device="cpu")
    wanted.save(str(tmp_path / "theirs"))
    X, _ = data(12)
    for name in ("own", "theirs"):
        made = BertEmbedder(str(tmp_path / name), precision="fp32").fit(X)
        joblib.dump(made, stored := io.BytesIO())
        stored.seek(0)
        (tmp_path / name).rename(tmp_path / "elsewhere")
        for embedder in (made, joblib.load(stored)):
            np.testing.assert_allclose(embedder.transform(X), wanted.encode(X), atol=1e-5)
        (tmp_path / "elsewhere").rename(tmp_path / name)
        np.testing.assert_allclose(clone(made).fit(X).transform(X), wanted.encode(X), atol=1e-5)
        np.testing.assert_allclose(
            bertkit.load(tmp_path / name, precision="fp32").embed(X), wanted.encode(X), atol=1e-5
        )


def test_an_embedder_opens_the_folder_of_finetune_embed(model, tmp_path):
    rows = [{"text": a, "text_b": b, "label": 1} for a, b in zip(data(8)[0], data(8, 1)[0])]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    bertkit.finetune("embed", train=tmp_path / "pairs.jsonl", model=model, out=tmp_path / "run", steps=1, threads=1)
    X, _ = data(6)
    made = BertEmbedder(str(tmp_path / "run"), precision="fp32").fit(X)
    assert any(name.startswith("1_Pooling/") for name in made.model_files_)
    np.testing.assert_allclose(made.transform(X), bertkit.load(tmp_path / "run", precision="fp32").embed(X), atol=1e-6)
    search = GridSearchCV(make_pipeline(made, LogisticRegression()), {"bertembedder__pool": ["", "cls"]}, cv=2)
    assert search.fit(X, [0, 1] * 3).best_params_["bertembedder__pool"] in ("", "cls")


def test_without_a_model_an_embedder_chooses_by_the_language_of_the_texts():
    assert BertEmbedder().fit(["今天下雨了", "我们在家"]).model_ == "zh"
    assert BertEmbedder().fit(["it rained today", "we stayed at home"]).model_ == "en"


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor, BertEmbedder])
def test_an_estimator_of_texts_passes_the_checks_meant_for_it(kind, model):
    with pytest.warns(Warning, match="Can't test estimator"):
        found = check_estimator(kind(model), on_fail=None)
    assert all(one["status"] == "passed" for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NumberClassifier, NumberRegressor, NumberEmbedder])
def test_every_check_of_scikit_learn_passes_or_fails_for_a_named_reason(kind, model):
    small = {} if kind is NumberEmbedder else SMALL | {"steps": 2}
    found = check_estimator(kind(model, **small), expected_failed_checks=EXPECTED, on_fail=None)
    assert not [(one["check_name"], one["exception"]) for one in found if one["status"] == "failed"]
    assert sum(one["status"] == "passed" for one in found) > 40


@pytest.mark.parametrize("missing", [float("nan"), None])
def test_a_missing_label_is_an_error_that_names_its_row(missing) -> None:
    labels = np.array(["ham", missing, "spam"], dtype=object)
    with pytest.raises(ValueError, match=rf"y contains NaN or None \(row 1: {missing}\)"):
        BertClassifier().fit(["one", "two", "three"], labels)


@pytest.mark.parametrize("kind", ["pytorch_model.bin", "onnx"])
def test_an_embedder_opens_a_folder_whose_weights_are_not_in_safetensors(model, tmp_path, kind):
    folder = tmp_path / "model"
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        export(ExportSettings(model=model, out=folder, weights="fp32"))
    else:
        shutil.copytree(model, folder)
        torch.save(load_file(folder / "model.safetensors"), folder / kind)
        (folder / "model.safetensors").unlink()
        (folder / "MANIFEST.json").unlink(missing_ok=True)
    texts = ["two words", "three more words"]
    made = BertEmbedder(str(folder), precision="fp32").fit(texts)
    wanted = BertEmbedder(model, precision="fp32").fit(texts).transform(texts)
    np.testing.assert_allclose(made.transform(texts), wanted, atol=1e-4)
