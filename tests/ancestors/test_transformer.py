"""The encoder-decoder Transformer: the same numbers as torch's, whatever stands beside a pair or is kept in memory."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertkit.ancestors.transformer.data import TextPair, collate, places
from bertkit.ancestors.transformer.model import Seq2Seq, Transformer, sinusoids
from bertkit.ancestors.transformer.train import Rewriting
from bertkit.errors import DamagedFile, UserError
from bertkit.files import tensors as tensor_file
from bertkit.files.manifest import accept
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support.small_transformer import VOCABULARY, outputs, shape, transformer

LENGTHS = [(3, 5), (7, 2), (1, 1), (4, 9), (7, 7)]  # of sources and targets
lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=6)


def pairs_of(sizes, seed: int = 0) -> list[TextPair]:
    chance = np.random.default_rng(seed)
    return [
        TextPair(*(chance.integers(0, VOCABULARY, n).tolist() for n in (source, target, target)))
        for source, target in sizes
    ]


def torch_twin(model: Transformer) -> nn.Transformer:
    """torch's own module with our weights."""
    s = model.shape
    options = {"dim_feedforward": s.inner, "dropout": 0.0, "batch_first": True, "norm_first": s.norm == "pre"}
    options |= {"layer_norm_eps": s.eps, "activation": s.activation}
    final = [nn.LayerNorm(s.width, eps=s.eps) if s.norm == "pre" else None for _ in "ed"]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(s.width, s.heads, **options), s.depth, final[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(s.width, s.heads, **options), s.decoder_depth or s.depth, final[1]
    )
    twin = nn.Transformer(
        s.width, s.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )  # fmt: skip
    names = {"attention.qkv": "self_attn.in_proj_", "attention.out": "self_attn.out_proj."}
    names |= {
        "cross.out": "multihead_attn.out_proj.",
        "feed_forward.wide": "linear1.",
        "feed_forward.narrow": "linear2.",
    }
    norms = {
        "encoder": ("attention_norm", "feed_forward_norm"),
        "decoder": ("attention_norm", "cross_norm", "feed_forward_norm"),
    }
    ours, theirs = dict(model.named_parameters()), dict(twin.named_parameters())
    state = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        renamed = names | {name: f"norm{n}." for n, name in enumerate(norms[side], 1)}
        for number in range(len(stack.layers)):
            here = f"{side}.layers.{number}."
            for kind in ("weight", "bias"):
                for old, new in renamed.items():
                    if here + f"{old}.{kind}" in ours:
                        state[f"{here}{new}{kind}"] = ours[here + f"{old}.{kind}"]
                if side == "decoder":
                    both = [ours[f"{here}cross.{part}.{kind}"] for part in ("query", "kv")]
                    state[f"{here}multihead_attn.in_proj_{kind}"] = torch.cat(both)
        if s.norm == "pre":
            state |= {f"{side}.norm.{kind}": ours[f"{side}.final_norm.{kind}"] for kind in ("weight", "bias")}
    assert state.keys() == theirs.keys()
    twin.load_state_dict(state)
    return twin.eval()


@pytest.mark.parametrize("numbers", [{}, {"norm": "pre"}, {"decoder_depth": 3, "activation": "gelu"}])
def test_the_forward_pass_agrees_with_torchs_transformer(numbers) -> None:
    model = transformer(**numbers)
    twin = torch_twin(model)
    table = model.words.words.weight
    for pair, ours in zip(pairs_of(LENGTHS), outputs(model, pairs_of(LENGTHS), 64)):
        source, target = (
            (table[ids] * math.sqrt(16) + sinusoids(len(ids), 16))[None] for ids in (pair.source, pair.given)
        )
        later = nn.Transformer.generate_square_subsequent_mask(len(pair.given))
        with torch.no_grad():
            theirs = twin(source, target, tgt_mask=later)[0]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_positions_are_the_papers_sines_and_cosines() -> None:
    table = sinusoids(50, 8)
    for place, column in ((0, 0), (3, 2), (49, 7), (20, 5)):
        angle = place / 10000 ** (2 * (column // 2) / 8)
        assert table[place, column] == pytest.approx((math.cos if column % 2 else math.sin)(angle), abs=1e-6)


def test_one_table_serves_sources_targets_and_guesses() -> None:
    model = transformer()
    tables = [name for name, weight in model.named_parameters() if VOCABULARY in weight.shape]
    assert tables == ["encoder.embeddings.words.weight"]


@given(lengths, st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_what_stands_beside_a_pair_never_changes_it(sizes, seed) -> None:
    model, pairs = transformer(), pairs_of(sizes, seed)
    together = outputs(model, pairs, 64)
    for pair, ours in zip(pairs, together):
        torch.testing.assert_close(ours, outputs(model, [pair])[0], atol=2e-5, rtol=1e-4)


@given(st.integers(2, 12), st.data())
@settings(max_examples=20, deadline=None)
def test_no_token_sees_a_later_one(length, data) -> None:
    model = transformer()
    changed_at = data.draw(st.integers(1, length - 1))
    (pair,) = pairs_of([(6, length)])
    other = pair._replace(given=[*pair.given[:changed_at], *((id + 1) % VOCABULARY for id in pair.given[changed_at:])])
    before, after = (outputs(model, [pair, *pairs_of(LENGTHS)])[0] for pair in (pair, other))
    torch.testing.assert_close(before[:changed_at], after[:changed_at], atol=1e-6, rtol=0)
    assert (before[changed_at:] - after[changed_at:]).abs().amax(-1).min() > 1e-3


def test_every_target_token_sees_every_source_token_of_its_own_source() -> None:
    model, pairs = transformer(), pairs_of(LENGTHS)
    before = outputs(model, pairs)
    for place in range(len(pairs[1].source)):
        source = list(pairs[1].source)
        source[place] = (source[place] + 1) % VOCABULARY
        after = outputs(model, [pairs[0], pairs[1]._replace(source=source), *pairs[2:]])
        assert (after[1] - before[1]).abs().amax(-1).min() > 1e-5
        for n in (0, 2, 3, 4):
            torch.testing.assert_close(after[n], before[n], atol=1e-6, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_writing_token_by_token_gives_what_reading_the_whole_target_does(norm) -> None:
    model, pairs = transformer(norm=norm), pairs_of([(3, 6), (7, 6), (1, 6)])
    whole = [model.words.logits(one) for one in outputs(model, pairs)]
    with torch.no_grad():
        memory = model.start([pair.source for pair in pairs])
        for place in range(6):
            logits = model.step(torch.tensor([pair.given[place] for pair in pairs]), place, memory)
            for ours, theirs in zip(logits, whole):
                torch.testing.assert_close(ours, theirs[place], atol=2e-5, rtol=1e-4)


def test_a_memory_goes_on_with_the_rows_that_are_chosen() -> None:
    model = transformer()
    sources, targets = [[1, 2, 3], [4, 5]], [[1, 7, 2], [1, 3, 9], [1, 4, 4], [1, 8, 0]]  # two rows a source
    with torch.no_grad():
        memory = model.start(sources)
        for place in range(2):
            model.step(torch.tensor([target[place] for target in targets]), place, memory)
        memory.select(torch.tensor([3, 3]), torch.tensor([1]))
        logits = model.step(torch.tensor([5, 6]), 2, memory)
        for last, ours in zip((5, 6), logits):
            given = [*targets[3][:2], last]
            wanted = model.words.logits(outputs(model, [TextPair(sources[1], given, given)])[0])[-1]
            torch.testing.assert_close(ours, wanted, atol=2e-5, rtol=1e-4)


def test_losses_of_parts_add_up_to_the_loss_of_the_whole_and_so_do_gradients() -> None:
    model, pairs = transformer(dropout=0.0), pairs_of(LENGTHS)
    objective = Rewriting(model, 0.1).train()
    found = []
    for parts in ([pairs], [pairs[:2], pairs[2:]]):
        model.zero_grad()
        made = [collate(part) for part in parts]
        losses = [objective(batch)["target"] for batch in made]
        torch.stack(losses).sum().backward()
        gradients = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        found.append(
            (float(torch.stack(losses).sum().detach()), sum(objective.counts(b)["target"] for b in made), gradients)
        )
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5) and found[0][1] == found[1][1] == 24
    torch.testing.assert_close(found[0][2], found[1][2], atol=1e-4, rtol=1e-3)


def test_the_smoothed_loss_is_the_papers() -> None:
    model, pairs = transformer(dropout=0.0), pairs_of(LENGTHS)
    logs = [model.words.logits(one).log_softmax(-1).detach() for one in outputs(model, pairs)]
    right = sum(float(-row[torch.arange(len(row)), pair.wanted].sum()) for row, pair in zip(logs, pairs))
    spread = sum(float(-row.mean(-1).sum()) for row in logs)
    objective = Rewriting(model, 0.1)
    smoothed = objective.train()(collate(pairs))["target"].detach()
    assert float(smoothed) == pytest.approx(0.9 * right + 0.1 * spread, rel=1e-5)
    judged = objective.eval().judge(collate(pairs))
    assert judged["target"] == pytest.approx(right, rel=1e-5)
    assert judged["target:right"] == sum(
        int((row.argmax(-1) == torch.tensor(pair.wanted)).sum()) for row, pair in zip(logs, pairs)
    )


def test_bf16_flows_through_both_sides() -> None:
    model, pairs = transformer(), pairs_of(LENGTHS)
    exact = outputs(model, pairs)
    model.encoder.dtype = torch.bfloat16
    near = outputs(model, pairs)
    assert near[0].dtype == torch.bfloat16
    assert max(float((a - b.float()).abs().max()) for a, b in zip(exact, near)) < 0.2


def test_places_find_every_texts_tokens_in_the_callers_order() -> None:
    pairs = pairs_of(LENGTHS)
    batch = collate(pairs)
    at, sizes = places(batch)
    for row, size, pair in zip(at, sizes, pairs):
        assert batch.ids[row[:size]].tolist() == pair.source


@pytest.mark.parametrize(
    "numbers, words",
    [({"width": 15, "heads": 5}, "even"), ({"heads": 3}, "multiple of heads"), ({"norm": "none"}, "post, pre"),
     ({"dropout": 1.5}, "dropout is 1.5")],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(numbers, words) -> None:
    with pytest.raises(UserError, match=words):
        shape(**numbers)


@pytest.fixture(scope="module")
def untrained() -> Seq2Seq:
    tokenizer = learn(["a b c d e f"] * 3, VocabularySettings(kind="wordpiece", size=30, cased=True))
    return Seq2Seq(transformer(vocabulary=tokenizer.size), tokenizer)


def test_a_saved_model_writes_the_same_when_it_is_loaded(untrained, tmp_path: Path) -> None:
    untrained.save(tmp_path / "model")
    loaded = Seq2Seq.load(tmp_path / "model")
    assert loaded.model.shape == untrained.model.shape
    texts = ["a b c", "f", "", "c d"]
    assert loaded.rewrite(texts) == untrained.rewrite(texts) and loaded.rewrite([]) == []
    assert json.loads((tmp_path / "model/bertkit.json").read_text())["ancestor"] == "seq2seq"


def test_what_the_model_does_not_see_of_a_source_is_counted(untrained) -> None:
    short, long = untrained.rewrite(["a b", "a b c d e f a b c d e f a b c"], beam=1)
    assert (short["tokens"], short["cut"]) == (3, 0)
    assert (long["tokens"], long["cut"]) == (12, 4)
    assert long["text"] == untrained.rewrite(["a b c d e f a b c d e"], beam=1)[0]["text"]
    with pytest.raises(UserError, match="beam is 0"):
        untrained.rewrite(["a"], beam=0)


def test_a_folder_that_is_torn_or_of_another_kind_is_reported(untrained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        Seq2Seq.load(tmp_path / "none")
    untrained.save(tmp_path)
    file = tmp_path / "model.safetensors"
    with file.open("rb") as open_file:
        tensors = tensor_file.read(open_file.fileno(), str(file))
    whole = file.read_bytes()
    file.unlink()
    tensor_file.write(file, {k: v for k, v in tensors.items() if k != "decoder.layers.0.cross.kv.weight"})
    accept(tmp_path)
    with pytest.raises(DamagedFile, match=r"1 of \d+ tensors are missing.*cross\.kv"):
        Seq2Seq.load(tmp_path)
    file.write_bytes(whole[:-40])
    with pytest.raises(DamagedFile):
        Seq2Seq.load(tmp_path)
    file.write_bytes(whole)
    about = json.loads((tmp_path / "bertkit.json").read_text())
    for wrong, words in (({"width": 1 << 20}, "do not belong together"), ({"withd": 3}, "no setting 'withd'")):
        (tmp_path / "bertkit.json").write_text(json.dumps(about | {"model": about["model"] | wrong}))
        accept(tmp_path)
        with pytest.raises(UserError, match=words):
            Seq2Seq.load(tmp_path)
    (tmp_path / "bertkit.json").write_text('{"task": "classify"}')
    accept(tmp_path)
    with pytest.raises(UserError, match="another kind of model"):
        Seq2Seq.load(tmp_path)
