"""Objectives give sums and counts, computed at the places that matter and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertkit.data.feed import collate
from bertkit.data.masking import MaskVocabulary, mask_tokens
from bertkit.data.packing import Example
from bertkit.model.heads import Model
from bertkit.objectives.causal import NextToken
from bertkit.objectives.electra import Electra, generator_config
from bertkit.objectives.masked import Masked
from bertkit.settings.model import Config
from bertkit.settings.training import MaskSettings
from bertkit.training.loop import Objective

SMALL = {"vocabulary": 64, "width": 16, "depth": 2, "heads": 2, "inner": 24, "positions": 40, "max_tokens": 40}
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
LENGTHS = (9, 30, 5, 17, 30, 12)


def batch(lengths=LENGTHS, seed: int = 0, masking: MaskSettings | None = None):
    chance = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        special = np.zeros(length, bool)
        special[[0, length // 2, -1]] = True
        ids = np.where(special, 2, chance.integers(5, 64, length))
        example = Example(ids, (np.arange(length) > length // 2).astype(int), special, ~special, number % 2)
        rows.append(
            (
                example,
                *mask_tokens(example, masking or MaskSettings(), 0.3, MaskVocabulary(4, np.arange(5, 64)), chance),
            )
        )
    return collate(rows)


def make(kind: str, **changes) -> Objective:
    torch.manual_seed(0)
    config = Config(**{**SMALL, **STILL, **changes})
    if kind == "masked":
        return Masked(Model(config, {"mlm": 0}))
    if kind in ("next_sentence", "order"):
        return Masked(Model(config, {"mlm": 0, kind: 2}))
    if kind == "next":
        return NextToken(Model(Config(**{**SMALL, **STILL, **changes, "causal": True}), {"mlm": 0}))
    generator = Model(generator_config(config, 0.5), {"mlm": 0}, pooler=False)
    return Electra(Model(config, {"replaced": 1}, pooler=False), generator)


KINDS = ("masked", "next_sentence", "order", "next", "replaced")


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_parts_are_the_sum_of_the_whole(kind):
    objective = make(kind).eval()
    whole = batch()
    counted = objective.counts(whole)
    losses = {name: float(loss.detach()) for name, loss in objective(whole).items()}
    assert losses.keys() == counted.keys()
    if kind == "replaced":
        return  # the generator's guesses depend on where in a batch a text stands
    parts = [_only(whole, n) for n in range(whole.texts)]
    for name in losses:
        assert losses[name] == pytest.approx(sum(float(objective(part)[name].detach()) for part in parts), rel=1e-5)
        assert counted[name] == sum(objective.counts(part)[name] for part in parts)


def _only(whole, number: int):
    """One text of a batch as a batch."""
    start, length = int(whole.starts[number]), whole.lengths[number]
    here = slice(start, start + length)
    inside = (whole.extra["places"] >= start) & (whole.extra["places"] < start + length)
    places = (whole.extra["places"][inside] - start).numpy()
    ids = whole.ids[here].numpy().copy()
    before = ids.copy()
    before[places] = whole.extra["targets"][inside].numpy()
    example = Example(
        before, whole.segments[here].numpy(), whole.extra["special"][here].numpy(), np.ones(length, bool),
        int(whole.extra["labels"][number]),
    )  # fmt: skip
    return collate([(example, ids, places)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_filler_at_the_end_of_a_run_changes_no_loss(kind, monkeypatch):
    objective = make(kind).eval()
    found = []
    for multiple in (64, 1):
        monkeypatch.setattr("bertkit.data.feed.ROUND", multiple)
        given = batch()
        assert (given.filler > 0) == (multiple > 1)
        for masks in objective.dropout_masks():
            masks.seed(1, 0)
        found.append({name: float(loss.detach()) for name, loss in objective(given).items()})
        assert objective.counts(given) == objective.counts(batch())
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_judging_gives_the_same_losses_and_counts_correct_predictions(kind):
    objective = make(kind).eval()
    given = batch()
    for masks in objective.dropout_masks():
        masks.seed(1, 0)
    losses = objective(given)
    for masks in objective.dropout_masks():
        masks.seed(1, 0)
    judged = objective.judge(given)
    for name, loss in losses.items():
        assert judged[name] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert 0 <= judged[f"{name}:right"] <= objective.counts(given)[name]


def test_masked_words_are_judged_at_hidden_places_by_cross_entropy():
    objective = make("next_sentence").eval()
    given = batch()
    model = objective.model
    encoded = model.encoder(given)
    everywhere = model.ask("mlm", encoded)[given.extra["places"]]
    losses = objective(given)
    words = F.cross_entropy(everywhere, given.extra["targets"], reduction="sum")
    pairs = F.cross_entropy(model.ask("next_sentence", encoded), given.extra["labels"], reduction="sum")
    torch.testing.assert_close(losses["words"], words)
    torch.testing.assert_close(losses["next_sentence"], pairs)
    assert objective.counts(given) == {"words": len(given.extra["places"]), "next_sentence": len(LENGTHS)}


def test_the_next_token_is_guessed_within_a_text_and_never_across():
    objective = make("next").eval()
    given = batch(masking=MaskSettings(mask=0, random=0))
    logits = objective.model.ask("mlm", objective.model.encoder(given))
    wanted = torch.zeros(())
    for start, length in zip(given.starts.tolist(), given.lengths):
        inside = slice(start, start + length)
        wanted = wanted + F.cross_entropy(logits[inside][:-1], given.ids[inside][1:], reduction="sum")
    torch.testing.assert_close(objective(given)["next"], wanted)
    assert objective.counts(given) == {"next": sum(LENGTHS) - len(LENGTHS)}


def test_the_generators_embeddings_are_the_discriminators():
    objective = make("replaced", embedding_width=12)
    ours, theirs = objective.model.encoder.embeddings, objective.generator.encoder.embeddings
    for table in ("tokens", "positions", "segments"):
        assert getattr(ours, table) is getattr(theirs, table)
    assert objective.generator.config.width == 8 and objective.model.config.width == 16
    names = [name for name, _ in objective.named_parameters()]
    assert sum("embeddings.tokens" in name for name in names) == 1, "a shared table is trained once"
    objective(batch())["words"].backward()
    assert ours.tokens.weight.grad.abs().sum() > 0, "the generator's loss reaches the shared table"


def test_no_gradient_flows_from_the_discriminator_into_the_generator():
    objective = make("replaced")
    objective(batch())["replaced"].backward()
    own = [p for name, p in objective.generator.named_parameters() if "embeddings" not in name]
    assert own and all(p.grad is None for p in own)


def test_the_discriminator_sees_guesses_at_hidden_places_and_answers_everywhere():
    objective = make("replaced").eval()
    given = batch()
    _, filled, wrong = objective._filled(given)
    places = given.extra["places"]
    elsewhere = torch.ones_like(given.ids, dtype=torch.bool)
    elsewhere[places] = False
    assert torch.equal(filled.ids[elsewhere], given.ids[elsewhere])
    assert torch.equal(wrong[places].bool(), filled.ids[places] != given.extra["targets"])
    assert wrong[elsewhere].sum() == 0
    assert objective.counts(given)["replaced"] == int((~given.extra["special"]).sum()) > len(places)
    assert objective.weights == {"replaced": 50.0}


def test_the_generators_guesses_follow_its_own_probabilities():
    objective = make("replaced").eval()
    with torch.no_grad():  # three pieces with known odds, whatever the text
        objective.generator.head("mlm").bias.fill_(-40.0)
        objective.generator.head("mlm").bias[[10, 20, 30]] = torch.tensor([0.5, 0.3, 0.2]).log() + 20
        objective.generator.head("mlm").transform.norm.weight.zero_()
    guesses = []
    for step in range(150):
        for masks in objective.dropout_masks():
            masks.seed(0, step)
        given = batch()
        guesses += objective._filled(given)[1].ids[given.extra["places"]].tolist()
    shares = [guesses.count(piece) / len(guesses) for piece in (10, 20, 30)]
    assert sum(shares) == 1
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=5 * 0.5 / len(guesses) ** 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_a_function_of_seed_step_rank_and_part(kind):
    objective = make(kind, dropout=0.2, attention_dropout=0.2).train()
    given = batch()

    def loss(*numbers: int) -> float:
        for masks in objective.dropout_masks():
            masks.seed(*numbers)
        return sum(float(term.detach()) for term in objective(given).values())

    assert loss(1, 2, 0, 0) == loss(1, 2, 0, 0)
    assert (
        len({loss(*numbers) for numbers in [(1, 2, 0, 0), (2, 2, 0, 0), (1, 3, 0, 0), (1, 2, 1, 0), (1, 2, 0, 1)]}) == 5
    )


def test_a_batch_read_from_left_to_right_is_what_a_causal_model_makes_of_it():
    both, causal = make("masked").eval(), make("next").eval()
    causal.load_state_dict(both.state_dict())
    given = replace(batch(), causal=True)
    assert both.counts(given) == causal.counts(given)
    assert float(both(given)["next"].detach()) == pytest.approx(float(causal(given)["next"].detach()), rel=1e-6)
