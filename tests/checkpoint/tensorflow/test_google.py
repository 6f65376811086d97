"""Google's checkpoints mean the same under Hugging Face's names: transformers and plain numpy give one answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.checkpoint.tensorflow.bundle import read_bundle
from bertkit.checkpoint.tensorflow.read import is_google, read_google
from bertkit.errors import DamagedFile, UserError
from tests.support import make_google
from tests.support.bundle_writer import write_bundle
from tests.support.make_google import numbers
from tests.support.plain_google import IDS, SEGMENTS, Plain

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOOGLE = FIXTURES / "google"
PREFIX = {"bert": "bert_model.ckpt", "albert": "model.ckpt-best", "electra": "electra_tiny"}
PARTS = [("bert", ""), ("albert", ""), ("electra", "discriminator"), ("electra", "generator")]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the BERT release that a test may change."""
    return Path(shutil.copytree(GOOGLE / "bert", tmp_path / "bert"))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "bert_config.json"
    changed = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not ...}))


def transformers_model(config: dict, arrays: dict[str, np.ndarray]):
    """The class the config names, with these weights; nothing but tied copies may be missing."""
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    model = cls(cls.config_class(**config)).eval()
    tied = set(model.state_dict()) - set(arrays)
    result = model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=False)
    assert all(
        name.startswith("bert.pooler.") for name in result.unexpected_keys
    )  # transformers drops it for questions
    assert all(name.split(".")[-2] in ("decoder", "generator_lm_head") for name in tied), tied
    model.tie_weights()
    return model


def transformers_outputs(config: dict, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    import torch

    with torch.no_grad():
        ids, segments = torch.from_numpy(IDS)[None], torch.from_numpy(SEGMENTS)[None]
        outputs = transformers_model(config, arrays).double()(input_ids=ids, token_type_ids=segments)
    return [tensor[0].numpy() for tensor in outputs.to_tuple()]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("family", "part"), PARTS)
def test_transformers_answers_as_plain_numpy_on_googles_variables(family: str, part: str, exact: bool) -> None:
    config, arrays = read_google(GOOGLE / family, part=part, exact=exact)
    tanh_form = exact and family != "electra"
    assert config["hidden_act"] == ("gelu_new" if tanh_form else "gelu")
    plain = Plain(GOOGLE / family / PREFIX[family], config["hidden_act"], config["num_attention_heads"])
    expected = getattr(plain, part or family)()
    outputs = transformers_outputs(config, arrays)
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected):
        np.testing.assert_allclose(output, wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("family", "exact", "told"),
    [
        ("bert", False, "erf"), ("bert", True, "tanh form, as in Google's own code"),
        ("albert", False, "--exact-google"), ("electra", False, ""), ("electra", True, ""),
    ],
)  # fmt: skip
def test_the_card_tells_which_gelu_is_computed_where_the_two_codes_differ(
    family: str, exact: bool, told: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "out", read_folder(GOOGLE / family, google={"exact": exact}))
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "Converted from one of Google's checkpoints." in card
    assert told in card and ("GELU" in card) == bool(told)


@pytest.mark.parametrize(
    ("family", "part", "architecture"),
    [
        ("bert", "", "BertForPreTraining"),
        ("albert", "", "AlbertForPreTraining"),
        ("electra", "", "ElectraForPreTraining"),
        ("electra", "generator", "ElectraForMaskedLM"),
    ],
)
def test_the_config_names_the_class_that_holds_every_tensor(family: str, part: str, architecture: str) -> None:
    config, arrays = read_google(GOOGLE / family, part=part)
    assert config["architectures"] == [architecture] and config["model_type"] == family
    transformers_model(config, arrays)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays.values())


def test_kernels_are_transposed_and_nothing_else_is() -> None:
    raw = read_bundle(GOOGLE / "bert" / "bert_model.ckpt")
    _, arrays = read_google(GOOGLE / "bert")
    for variable, tensor in (
        ("bert/encoder/layer_1/intermediate/dense/kernel", "bert.encoder.layer.1.intermediate.dense.weight"),
        ("bert/encoder/layer_0/attention/self/key/kernel", "bert.encoder.layer.0.attention.self.key.weight"),
    ):
        assert np.array_equal(raw[variable].T, arrays[tensor]) and not np.array_equal(raw[variable], arrays[tensor])
    assert np.array_equal(raw["bert/embeddings/word_embeddings"], arrays["bert.embeddings.word_embeddings.weight"])
    assert np.array_equal(raw["cls/seq_relationship/output_weights"], arrays["cls.seq_relationship.weight"])


@pytest.mark.parametrize(
    "name", ["", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
)
def test_folder_prefix_and_files_all_name_the_checkpoint(name: str) -> None:
    path = GOOGLE / "bert" / name
    assert is_google(path) and is_google(str(path))
    assert read_google(path)[0] == read_google(GOOGLE / "bert")[0]


def test_what_is_no_google_checkpoint_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "search.index").write_bytes(b"some other kind of index")
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "search.index", tmp_path / "absent", "org/name", "a\0b", FIXTURES):
        assert not is_google(path)
    with pytest.raises(UserError, match="no TensorFlow checkpoint"):
        read_google(FIXTURES)


def test_electra_without_a_config_is_measured(notes: list[str]) -> None:
    config, _ = read_google(GOOGLE / "electra", part="generator")
    wanted = {"hidden_size": 4, "embedding_size": 6, "intermediate_size": 6, "num_hidden_layers": 2, "vocab_size": 20}
    wanted |= {"max_position_embeddings": 10, "type_vocab_size": 2, "num_attention_heads": 1}
    assert wanted.items() <= config.items()
    assert notes == ["electra_tiny: 44 variables read; left out: 3 of the optimizer."]


def test_a_generator_has_heads_as_wide_as_its_discriminator(tmp_path: Path) -> None:
    folder = shutil.copytree(GOOGLE / "electra", tmp_path / "electra")
    (folder / "electra_config.json").write_text('{"hidden_size": 8, "num_attention_heads": 4}')
    assert read_google(folder)[0]["num_attention_heads"] == 4
    assert read_google(folder, part="generator")[0]["num_attention_heads"] == 2


def test_numbers_missing_in_a_config_are_measured(release: Path) -> None:
    expected, _ = read_google(release)
    change_config(release, vocab_size=..., hidden_size=..., num_hidden_layers=..., type_vocab_size=None)
    assert read_google(release)[0] == expected


@pytest.mark.parametrize(
    ("key", "said", "found"),
    [("hidden_size", 16, 8), ("vocab_size", 21, 20), ("num_hidden_layers", 3, 2), ("type_vocab_size", 16, 2)],
)
def test_a_config_that_contradicts_the_shapes_is_reported_with_both_numbers(
    release: Path, key: str, said: int, found: int
) -> None:
    change_config(release, **{key: said})
    with pytest.raises(UserError, match=rf"bert_config\.json says {key} is {said}, but .* says {found}\."):
        read_google(release)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 3}, "not a multiple of its 3 heads"),
        ({"hidden_size": "8"}, "hidden_size is '8'; a whole number"),
        ({"num_hidden_layers": True}, "whole number"),
        ({"hidden_act": 7}, "hidden_act is 7; a value like 'gelu'"),
    ],
)
def test_a_wrong_value_in_a_config_is_reported(release: Path, changes: dict, message: str) -> None:
    change_config(release, **changes)
    with pytest.raises(UserError, match=f"bert_config.json: .*{message}"):
        read_google(release)


@pytest.mark.parametrize("text", ["{", "[1]", "", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_reported(release: Path, text: str) -> None:
    (release / "bert_config.json").write_text(text)
    with pytest.raises(UserError, match=r"bert_config\.json"):
        read_google(release)


def test_albert_cannot_be_measured_without_its_depth(tmp_path: Path) -> None:
    folder = shutil.copytree(GOOGLE / "albert", tmp_path / "albert")
    (folder / "albert_config.json").write_text('{"num_attention_heads": 2}')
    with pytest.raises(UserError, match=r"albert_config\.json: num_hidden_layers is missing"):
        read_google(folder)


@pytest.mark.parametrize(
    ("head", "architecture", "tensor"),
    [
        ({"output_weights": (3, 8), "output_bias": (3,)}, "BertForSequenceClassification", "classifier.weight"),
        (
            {"cls/squad/output_weights": (2, 8), "cls/squad/output_bias": (2,)},
            "BertForQuestionAnswering",
            "qa_outputs.weight",
        ),
        ({}, "BertModel", "bert.pooler.dense.weight"),
    ],
)
def test_fine_tuned_checkpoints_keep_their_head(release: Path, head: dict, architecture: str, tensor: str) -> None:
    raw = numbers(make_google.bert_body() | head)
    write_bundle(release / "bert_model.ckpt", raw)
    config, arrays = read_google(release)
    assert config["architectures"] == [architecture] and tensor in arrays
    assert len(config.get("id2label", {})) == (3 if "output_weights" in head else 0)
    if head:
        transformers_model(config, arrays)
        assert np.array_equal(arrays[tensor], raw[next(iter(head))])


def test_unknown_variables_are_counted_and_named_once(release: Path, notes: list[str]) -> None:
    extra = {f"task/extra_{number}": np.zeros(1, dtype=np.float32) for number in range(5)}
    write_bundle(release / "bert_model.ckpt", numbers(make_google.bert()) | extra)
    read_google(release)
    assert notes == [
        "bert_model.ckpt: 46 variables read; left out: 1 of the optimizer and 5 unknown "
        "(task/extra_0, task/extra_1, task/extra_2, …)."
    ]


@pytest.mark.parametrize(
    "lost", ["bert/encoder/layer_1/output/dense/bias", "bert/embeddings/LayerNorm/beta", "cls/predictions/output_bias"]
)
def test_a_checkpoint_with_a_hole_is_refused(release: Path, lost: str) -> None:
    raw = numbers(make_google.bert())
    del raw[lost]
    write_bundle(release / "bert_model.ckpt", raw)
    with pytest.raises(UserError, match=f"'{lost}' is missing"):
        read_google(release)


def test_a_checkpoint_that_contradicts_itself_is_refused(release: Path) -> None:
    raw = numbers(make_google.bert() | {"bert/encoder/layer_1/output/dense/kernel": (12, 9)})
    write_bundle(release / "bert_model.ckpt", raw)
    with pytest.raises(
        UserError, match=r"hidden_size is 8, but variable 'bert/encoder/layer_1/output/dense/kernel'.* 9\."
    ):
        read_google(release)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (["resnet/conv"], "not a BERT, ALBERT or ELECTRA.*resnet/conv"),
        (["model/layer/.ATTRIBUTES/VARIABLE_VALUE"], "TensorFlow 2"),
    ],
)
def test_other_models_are_refused_with_their_names(tmp_path: Path, variables: list[str], message: str) -> None:
    write_bundle(tmp_path / "m.ckpt", {name: np.zeros(2, dtype=np.float32) for name in variables})
    with pytest.raises(UserError, match=message):
        read_google(tmp_path)


def test_a_part_that_is_not_there_is_reported() -> None:
    with pytest.raises(UserError, match="bert checkpoint contains no generator"):
        read_google(GOOGLE / "bert", part="generator")
    with pytest.raises(UserError, match="Did you mean 'generator'"):
        read_google(GOOGLE / "electra", part="genrator")


def test_of_several_checkpoints_the_latest_is_read_or_the_choice_is_reported(release: Path) -> None:
    raw = numbers(make_google.bert_body())
    write_bundle(release / "model.ckpt-20", raw)
    with pytest.raises(UserError, match=r"2 checkpoints.*bert_model\.ckpt.*model\.ckpt-20"):
        read_google(release)
    (release / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/run/model.ckpt-20"\n')
    assert read_google(release)[0]["architectures"] == ["BertModel"]
    (release / "checkpoint").write_text('model_checkpoint_path: "../../secret"\n')
    with pytest.raises(UserError, match="2 checkpoints"):
        read_google(release)


def test_damage_in_any_weight_is_found_but_not_in_what_is_never_read(release: Path) -> None:
    data = release / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    entries = read_bundle(release / "bert_model.ckpt").entries
    _, expected = read_google(release)
    for name, entry in entries.items():
        damaged = bytearray(whole)
        damaged[entry.offset] ^= 1
        data.write_bytes(damaged)
        if "adam" in name or name == "global_step":
            _, arrays = read_google(release)
            assert all(np.array_equal(expected[tensor], arrays[tensor]) for tensor in expected)
        else:
            with pytest.raises(DamagedFile, match=f"'{name}' is damaged"):
                read_google(release)
    (release / "bert_model.ckpt.index").write_bytes(b"")
    assert is_google(release)
    with pytest.raises(DamagedFile, match="truncated"):
        read_google(release)


def test_reading_needs_neither_torch_nor_tensorflow() -> None:
    code = "import sys; from bertkit.checkpoint.tensorflow.read import read_google; read_google(sys.argv[1]); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(GOOGLE / "bert")], cwd=FIXTURES.parents[1]).returncode == 0
