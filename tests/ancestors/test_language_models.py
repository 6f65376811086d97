"""Left-to-right networks: the arithmetic, what they may see, and the folder they live in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.language_model import gpt
from bertkit.ancestors.language_model.model import LanguageModel, network_of
from bertkit.ancestors.language_model.networks import KINDS, LanguageModelObjective, LanguageModelShape, Nnlm, unpacked
from bertkit.data.batch import pack
from bertkit.errors import DamagedFile, UserError
from bertkit.files.manifest import accept
from bertkit.inference.scoring import score
from bertkit.model.heads import Model
from bertkit.model.inference import TorchEngine
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support import synthetic

VOCABULARY = 30


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn(synthetic.text(40), VocabularySettings(kind="wordpiece", size=400))


def make(kind: str, vocabulary: int = VOCABULARY, **numbers: float) -> torch.nn.Module:
    torch.manual_seed(1)
    return network_of(
        LanguageModelShape(kind, vocabulary, **({"width": 12, "context": 3, "dropout": 0.0} | numbers))
    ).eval()  # type: ignore[arg-type]


def model_of(kind: str, tokenizer: Tokenizer, **numbers: float) -> LanguageModel:
    return LanguageModel(make(kind, -(-tokenizer.size // 64) * 64, **numbers), tokenizer)


def by_hand(network: Nnlm, text: list[int]) -> np.ndarray:
    """Bengio's formula, one place at a time: log-probabilities of text[1:]."""
    shape = network.shape
    words, decoder = (t.detach().double().numpy() for t in (network.words.weight, network.decoder.weight))
    big_h, d = (t.detach().double().numpy() for t in (network.hidden.weight, network.hidden.bias))
    b = network.decoder.bias.detach().double().numpy()
    logs = []
    for place in range(1, len(text)):
        before = [shape.vocabulary] * shape.context + text[:place]
        x = np.concatenate([words[piece] for piece in before[-shape.context :]])
        y = b + decoder[:, : shape.inner] @ np.tanh(d + big_h @ x)
        if shape.direct:
            y = y + decoder[:, shape.inner :] @ x
        logs.append(y[text[place]] - np.log(np.exp(y).sum()))
    return np.array(logs)


@pytest.mark.parametrize("direct", [0, 1])
def test_the_nnlm_is_the_formula_of_its_paper(direct: int) -> None:
    network = make("nnlm", direct=direct, hidden=7)
    rows = [[4, 5, 6, 7, 8, 9, 4], [3, 3], [1, 2, 29]]
    assert isinstance(network, Nnlm)
    loss = LanguageModelObjective(network)(pack(rows))["next"].detach()
    assert float(loss) == pytest.approx(-sum(by_hand(network, row).sum() for row in rows), rel=1e-5)


@pytest.mark.parametrize("direct", [0, 1])
def test_the_gradient_of_the_nnlm_is_the_slope_of_the_formula(direct: int) -> None:
    network = make("nnlm", direct=direct)
    assert isinstance(network, Nnlm)
    row = [4, 5, 6, 7, 5]
    LanguageModelObjective(network)(pack([row]))["next"].backward()
    for parameter, place in (
        (network.words.weight, (5, 3)), (network.words.weight, (VOCABULARY, 1)), (network.hidden.weight, (2, 20)),
        (network.hidden.bias, (4,)), (network.decoder.weight, (6, 5)), (network.decoder.bias, (7,)),
    ):  # fmt: skip
        slope, values = float(parameter.grad[place]), []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                parameter[place] += step
                values.append(-by_hand(network, row).sum())
                parameter[place] -= step
        assert slope == pytest.approx((values[0] - values[1]) / 2e-3, abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_texts_are_scored_as_each_by_itself(kind: str) -> None:
    objective = LanguageModelObjective(make(kind))
    rows = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [5], [7, 7, 7], [9, 8]]
    batch = pack(rows, multiple=64)
    alone = [float(objective(pack([row]))["next"].detach()) for row in rows]
    assert float(objective(batch)["next"].detach()) == pytest.approx(sum(alone), rel=1e-5)
    assert objective.counts(batch) == {"next": 9 + 0 + 2 + 1}
    judged = objective.judge(batch)
    assert judged["next"] == pytest.approx(sum(alone), rel=1e-5)
    assert 0 <= judged["next:right"] <= 12


def test_unpacking_gives_every_text_its_own_pieces() -> None:
    ids, lengths = unpacked(pack([[1, 2], [3, 4, 5, 6]], multiple=16))
    assert lengths.tolist() == [4, 2]
    assert [row[:size] for row, size in zip(ids.tolist(), lengths.tolist())] == [[3, 4, 5, 6], [1, 2]]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_model_ever_looks_to_the_right(kind: str, data: st.DataObject) -> None:
    piece = st.integers(0, VOCABULARY - 1)
    left = data.draw(st.lists(piece, min_size=1, max_size=8))
    one, two = (data.draw(st.lists(piece, min_size=1, max_size=6)) for _ in range(2))
    network = make(kind)
    with torch.no_grad():
        seen = [network.vectors(torch.tensor([left + right]))[0][0, : len(left)] for right in (one, two)]
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_read_in_parts_is_the_text_read_whole(kind: str) -> None:
    network = make(kind)
    ids = torch.randint(0, VOCABULARY, (2, 23), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, _ = network.vectors(ids)
        parts = torch.cat([vectors for _, vectors in network.stretches(ids, size=4)], dim=1)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_locked_dropout_has_one_mask_a_text_and_follows_its_seed(kind: str) -> None:
    objective = LanguageModelObjective(make(kind, dropout=0.5)).train()
    (masks,) = objective.dropout_masks()
    mask = objective.network.drop(torch.ones(3, 5, 40))
    assert (mask == mask[:, :1]).all() and not (mask[0] == mask[1]).all()
    losses = []
    for step in (3, 4, 3):
        masks.seed(0, step)
        losses.append(float(objective(pack([[1, 2, 3, 4, 5]]))["next"].detach()))
    assert losses[0] == losses[2] != losses[1]


def test_the_output_is_tied_where_the_widths_agree() -> None:
    tied, loose = make("lstm"), make("lstm", hidden=13)
    assert tied.output()[0] is tied.words.weight
    assert loose.output()[0].shape == (VOCABULARY, 13)
    assert "decoder.weight" in dict(loose.named_parameters()) and "decoder.weight" not in dict(tied.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_next_pieces_sum_to_one_and_suggestions_are_ordinary_pieces(kind: str, tokenizer: Tokenizer) -> None:
    model = model_of(kind, tokenizer)
    chances = model.probability("Today the cat")
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    found = model.suggest("Today the cat", top=4)
    assert len(found) == 4
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    assert all(one["text"].startswith("today the cat") and "[" not in one["token"] for one in found)


def test_a_score_is_the_sum_of_what_each_piece_was_given(tokenizer: Tokenizer) -> None:
    model = model_of("gru", tokenizer)
    text = "the cat sees a fish"
    pieces = tokenizer.encode(text)
    words = text.split()
    assert len(pieces) == len(words) + 2
    total = sum(
        math.log(model.probability(" ".join(words[:place]))[piece]) for place, piece in enumerate(pieces.ids[1:])
    )
    assert model.score([text]) == [pytest.approx(total, rel=1e-5)]
    assert model.score([text, "", text])[::2] == pytest.approx([total, total], rel=1e-5)


def test_bits_per_byte_follow_from_the_likelihood_and_the_bytes(tokenizer: Tokenizer) -> None:
    model = model_of("rnn", tokenizer)
    texts = ["the cat sees a fish.", "the dog likes the moon.", "the é"]
    found = model.perplexity(texts)
    nats = -sum(model.score(texts))
    assert found["bytes"] == sum(len(text.encode()) for text in texts) == 20 + 23 + 6
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 49)
    assert found["pieces"] == sum(len(tokenizer.encode(text)) - 1 for text in texts)
    assert found["perplexity"] == pytest.approx(math.exp(nats / found["pieces"]))
    assert found["unknown"] == sum(tokenizer.encode(text).ids.count(tokenizer.unk_id) for text in texts)
    with pytest.raises(UserError, match="no text to measure"):
        model.perplexity([])


def test_texts_longer_than_a_stretch_are_scored_whole(tokenizer: Tokenizer) -> None:
    model = model_of("lstm", tokenizer)
    text = " ".join(synthetic.text(30, seed=5))
    ids = torch.tensor([tokenizer.encode(text).ids])
    assert ids.shape[1] > 1100
    with torch.no_grad():
        logits = model.network.logits(model.network.vectors(ids[:, :-1])[0]).log_softmax(-1)
    assert model.score([text])[0] == pytest.approx(float(logits[0].gather(1, ids[0, 1:, None]).sum()), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_comes_back_the_same(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = model_of(kind, tokenizer, hidden=9, layers=2)
    model.save(tmp_path / "model")
    again = LanguageModel.load(tmp_path / "model")
    texts = synthetic.text(5, seed=3)
    assert again.score(texts) == model.score(texts)
    assert again.network.shape == model.network.shape and again.parameters == model.parameters
    about = json.loads((tmp_path / "model" / "bertkit.json").read_text())
    assert about["kind"] == kind and about["ancestor"] == ("nnlm" if kind == "nnlm" else "rnnlm")
    assert again.generate("Today", 8, seed=2) == model.generate("Today", 8, seed=2)


def test_generating_depends_on_the_seed_and_not_at_temperature_zero(tokenizer: Tokenizer) -> None:
    model = model_of("lstm", tokenizer)
    assert len({model.generate("The", 12, seed=seed) for seed in range(4)}) > 1
    assert len({model.generate("The", 12, temperature=0, seed=seed) for seed in range(4)}) == 1
    assert model.generate("The", 0) == "the"
    with pytest.raises(UserError, match="temperature is -1"):
        model.generate("The", 1, temperature=-1)


def test_a_folder_that_does_not_fit_together_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model_of("lstm", tokenizer).save(tmp_path / "model")
    file = tmp_path / "model" / "bertkit.json"
    about = json.loads(file.read_text())
    for change, kind, words in (
        ({"numbers": about["numbers"] | {"width": 10**9}}, DamagedFile, "fit no network"),
        ({"numbers": about["numbers"] | {"width": 10**5}}, DamagedFile, "the tensor .* bertkit.json asks for"),
        ({"numbers": about["numbers"] | {"vocabulary": 64}}, DamagedFile, "pieces"),
        ({"numbers": about["numbers"] | {"strange": 1}}, DamagedFile, "strange"),
        ({"numbers": about["numbers"] | {"layers": 0}}, UserError, "layers is 0"),
        ({"ancestor": "elmo"}, UserError, "ancestor 'elmo'"),
    ):
        file.write_text(json.dumps(about | change))
        accept(tmp_path / "model")
        with pytest.raises(kind, match=words):
            LanguageModel.load(tmp_path / "model")
    with pytest.raises(UserError, match="no such folder"):
        LanguageModel.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"kind": "lstn"}, "one of nnlm"), ({"context": 0}, "context is 0"), ({"dropout": 1.0}, "dropout is 1"),
     ({"direct": 2}, "direct is 2")],
)  # fmt: skip
def test_numbers_that_mean_nothing_are_refused(change: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        LanguageModelShape(**({"kind": "lstm", "vocabulary": 10} | change))


# ---- GPT, measured with the same arithmetic


class Answering:
    def __init__(self, tokenizer: Tokenizer, causal: bool = True) -> None:
        torch.manual_seed(0)
        self.config = Config(
            vocabulary=tokenizer.size, width=16, depth=1, heads=2, inner=16, positions=24, max_tokens=24, segments=0,
            causal=causal, embedding_width=0, unique_layers=0,
        )  # fmt: skip
        self.model = Model(self.config, {"mlm": 0}, pooler=False).eval()
        self.tokenizer, self.device = tokenizer, "cpu"
        self.engine = TorchEngine(self.model, "cpu")


def test_gpt_is_scored_here_as_everywhere(tokenizer: Tokenizer) -> None:
    model = Answering(tokenizer)
    texts = ["the cat sees a fish.", "", "today my sister finds a red stone."]
    assert gpt.score(model, texts) == pytest.approx(score(model, texts), rel=1e-5)  # type: ignore[arg-type]
    found = gpt.perplexity(model, texts)
    assert math.log(found["perplexity"]) * found["pieces"] == pytest.approx(-sum(gpt.score(model, texts)), rel=1e-6)
    with pytest.raises(UserError, match="left to right"):
        gpt.perplexity(Answering(tokenizer, causal=False), texts)


@given(size=st.integers(0, 70), limit=st.integers(4, 24))
def test_gpts_windows_guess_every_piece_but_the_first_once(size: int, limit: int) -> None:
    ids = list(range(size))
    runs = gpt.windows(ids, limit)
    assert [piece for run, guessed in runs for piece in run[-guessed:]] == ids[1:]
    assert all(len(run) <= limit and run[0] == 0 and 0 < guessed < len(run) for run, guessed in runs)


def test_gpt_reads_long_texts_whole(tokenizer: Tokenizer) -> None:
    text = " ".join(synthetic.text(3, seed=5))
    found = gpt.perplexity(Answering(tokenizer), [text])
    assert found["pieces"] == len(tokenizer.encode(text)) - 1 > 100
    assert 1 < found["perplexity"] < tokenizer.size * 3
