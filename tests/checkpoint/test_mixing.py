"""Two models of one shape averaged into a third."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.commands import convert
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support import folders


def test_two_models_alike_are_averaged_where_both_have_weights(tmp_path):
    config = Config(vocabulary=60, width=16, depth=2, heads=2, inner=24)
    words = learn(["one two three four five"] * 9, VocabularySettings(size=60))
    models = [Model(config, {"mlm": 0}), Model(config, {"text": 2})]
    for name, model in zip("ab", models):
        write_folder(
            tmp_path / name, Folder(model, words, "bert", labels=("no", "yes") if "text" in model.heads else ())
        )
    found = convert.run(
        convert.Settings(source=str(tmp_path / "a"), target=tmp_path / "c", mix=str(tmp_path / "b"), share=0.25)
    )
    mixed = read_folder(tmp_path / "c").model
    for name, weight in mixed.named_parameters():
        first, second = (dict(model.named_parameters()).get(name) for model in models)
        wanted = first if second is None else 0.75 * first + 0.25 * second
        assert torch.allclose(weight, wanted, atol=1e-6), name
    assert found["mixed"] > 0 and found["heads"] == ["mlm"]
    shallow = Config(vocabulary=60, width=16, depth=1, heads=2, inner=24)
    write_folder(tmp_path / "d", Folder(Model(shallow), words, "bert"))
    with pytest.raises(UserError, match="different shape"):
        convert.run(convert.Settings(source=str(tmp_path / "a"), target=tmp_path / "e", mix=str(tmp_path / "d")))


def test_what_the_second_model_never_learnt_is_not_mixed_in(tmp_path):
    for name in "ab":
        folders.write(tmp_path / name, "bert", "BertModel")
    own = folders.tensors_of(tmp_path / "a")
    save_file({k: v for k, v in own.items() if "pooler" not in k}, tmp_path / "b/model.safetensors")
    convert.run(convert.Settings(source=str(tmp_path / "a"), target=tmp_path / "c", mix=str(tmp_path / "b")))
    mixed = folders.tensors_of(tmp_path / "c")
    assert torch.equal(mixed["pooler.dense.weight"], own["pooler.dense.weight"])
