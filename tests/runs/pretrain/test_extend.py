"""Going on from a model on own text: its numbers are kept, and its vocabulary can grow with the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from bertkit import config
from bertkit.checkpoint.folder import read_folder
from bertkit.commands.pretrain import resolve
from bertkit.data.prepare.run import prepare
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.runs.pretrain.build import build
from bertkit.runs.pretrain.extend import extended, useful_words
from bertkit.runs.pretrain.run import pretrain
from bertkit.settings.pretrain import PretrainSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.training.distributed import World

NUMBERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FAMILIES = {  # the class, its kind of tokenizer, its numbers
    "bert": ("BertForPreTraining", "wordpiece", hf.BertConfig, NUMBERS | {"max_position_embeddings": 64}),
    "roberta": ("RobertaForMaskedLM", "bpe", hf.RobertaConfig, NUMBERS | {"max_position_embeddings": 66}),
    "albert": ("AlbertForPreTraining", "unigram", hf.AlbertConfig, NUMBERS | {"max_position_embeddings": 64}),
    "distilbert": (
        "DistilBertForMaskedLM", "wordpiece", hf.DistilBertConfig,
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64},
    ),
    "modernbert": (
        "ModernBertForMaskedLM", "wordpiece", hf.ModernBertConfig, NUMBERS | {"max_position_embeddings": 64},
    ),
}  # fmt: skip
TERMS = ("hexagon", "Nitrogen", "catalyst", "polymers", "水晶", "café")


def documents(number: int = 60) -> list[str]:
    """Plain sentences, each with a term the plain vocabulary has never seen; some terms go on (hexagonal)."""
    chance = np.random.default_rng(0)
    made = []
    for _ in range(number):
        picks = [(TERMS[chance.integers(len(TERMS))], chance.integers(4)) for _ in range(6)]
        lines = [f"The cat saw {term}{'al' if ending == 3 else ''}, and it was {term}." for term, ending in picks]
        made.append(" ".join([*lines, f"That is number {chance.integers(10**6)}."]))
    return made


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory):
    """family → a transformers folder and a store made with its tokenizer, each made once."""
    root = tmp_path_factory.mktemp("sources")
    plain = [
        "The cat saw it and that was it.",
        "That is the number of it: abcdefghijklmnopqrstuvwxyz, ABN 0123456789.",
    ] * 20
    made: dict[str, tuple[Path, Store]] = {}

    def source(family: str) -> tuple[Path, Store]:
        if family not in made:
            architecture, kind, numbers, own = FAMILIES[family]
            size = 300 if kind == "bpe" else 90
            tokenizer = learn([*plain, "水 晶"], VocabularySettings(kind=kind, size=size, min_frequency=1))
            ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("pad", "cls", "sep")}
            ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
            torch.manual_seed(1)
            theirs = getattr(hf, architecture)(numbers(**own, vocab_size=tokenizer.size, **ids))
            with torch.no_grad():
                for weight in theirs.parameters():
                    weight.add_(torch.randn_like(weight) * 0.05)
            theirs.save_pretrained(root / family)
            tokenizer.save(root / family, 64)
            (root / "text.txt").write_text("\n\n".join(documents()), "utf-8")
            store, _ = prepare([root / "text.txt"], Tokenizer.load(root / family), root / f"{family}-store", workers=1)
            made[family] = root / family, store
        return made[family]

    return source


def settings(family: str, sources, out: Path, **changes) -> PretrainSettings:
    folder, store = sources(family)
    table = {
        "init": str(folder), "data": store.folder, "out": out, "steps": 2, "lengths": [[1.0, 48]], "batch_tokens": 192,
        "micro_tokens": 192, "eval_tokens": 96, "threads": 1, "precision": "fp32", "held_out": 0.1, **changes,
    }  # fmt: skip
    return config.build(PretrainSettings, resolve(table))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_goes_on_with_its_own_vocabulary_and_weights(family, sources, tmp_path):
    given = settings(family, sources, tmp_path / "run")
    source = read_folder(Path(given.init))
    built = build(given, World())
    assert source.tokenizer.size % 64, "the case is a vocabulary that is not padded"
    assert built.model.config.vocabulary == source.model.config.vocabulary == source.tokenizer.size
    ours, theirs = built.model.state_dict(), source.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    pretrain(given)
    theirs = getattr(hf, FAMILIES[family][0]).from_pretrained(tmp_path / "run")
    assert theirs.get_input_embeddings().weight.shape[0] == source.tokenizer.size


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_the_rewritten_store_is_the_one_the_new_tokenizer_makes_of_the_text(family, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.runs.pretrain.extend.CHUNK", 300)  # many chunks, cut inside documents too
    given = settings(family, sources, tmp_path / "run", add_tokens=4)
    store, source = extended(sources(family)[1], read_folder(Path(given.init)), given)
    store.verify()
    text = sources(family)[0].parent / "text.txt"
    wanted, _ = prepare([text], source.tokenizer, tmp_path / "afresh", workers=1)
    for array in ("ids", "sentence_starts", "document_starts", "word_starts"):
        assert getattr(store, array).tolist() == getattr(wanted, array).tolist(), array
    assert store.tokens < sources(family)[1].tokens
    assert store.fingerprint == source.tokenizer.fingerprint() == wanted.fingerprint


def test_the_words_that_are_added_save_the_most_tokens(sources):
    store = sources("bert")[1]
    counts: dict[tuple[int, ...], int] = {}
    bounds = [*np.flatnonzero(store.word_starts).tolist(), store.tokens]
    for a, b in pairwise(bounds):
        word = tuple(store.ids[a:b].tolist())
        counts[word] = counts.get(word, 0) + 1
    saved = {
        store.tokenizer.decode(word): count * (len(word) - 1)
        for word, count in counts.items()
        if count >= 5 and len(word) > 1 and store.tokenizer.decode(word).isalpha()
    }
    found = useful_words(store, 3)
    saved = {word: saving for word, saving in saved.items() if word.isascii() or word == "cafe"}  # 水晶 is two words
    assert [saved[word] for word in found] == sorted(saved.values(), reverse=True)[:3]


def test_asking_for_more_words_than_there_are_is_reported(sources, notes):
    found = useful_words(sources("bert")[1], 1000)
    assert {"hexagon", "hexagonal", "nitrogen", "catalyst", "polymers"} <= set(found)
    assert not any("水" in word for word in found)
    assert any("of 1,000 new words" in note for note in notes)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
def test_a_new_row_is_the_mean_of_its_old_pieces(family, sources, tmp_path):
    given = settings(family, sources, tmp_path / "run", add_tokens=3)
    before = read_folder(Path(given.init))
    _, after = extended(sources(family)[1], read_folder(Path(given.init)), given)
    old, new = before.tokenizer, after.tokenizer
    rows = after.model.config.vocabulary
    assert rows % 64 == 0 and new.size <= rows < new.size + 64
    tables = {
        "words": [m.encoder.embeddings.tokens.weight for m in (before.model, after.model)],
        "bias": [m.head("mlm").bias for m in (before.model, after.model)],
    }
    for name, (was, now) in tables.items():
        assert len(now) == rows and torch.equal(now[: old.size], was), name
        for number in range(old.size, new.size):
            spelling = new.id_to_token(number).replace("Ġ", " ").replace("▁", "")
            if not spelling.isascii():
                continue  # half a character on the way to a byte-level word has no text of its own
            pieces = old.pieces_batch([spelling])[0]
            torch.testing.assert_close(now[number], was[pieces].mean(0), msg=f"{name} of {spelling}")


def test_an_untied_decoder_grows_too(sources, tmp_path):
    folder, store = sources("bert")
    theirs = hf.BertForPreTraining.from_pretrained(folder, tie_word_embeddings=False)
    with torch.no_grad():
        theirs.cls.predictions.decoder.weight = torch.nn.Parameter(torch.randn(theirs.config.vocab_size, 16))
    theirs.save_pretrained(tmp_path / "untied")
    Tokenizer.load(folder).save(tmp_path / "untied", 64)
    given = settings("bert", sources, tmp_path / "run", add_tokens=2, init=str(tmp_path / "untied"))
    _, after = extended(store, read_folder(tmp_path / "untied"), given)
    decoder = after.model.head("mlm").decoder
    word = after.tokenizer.id_to_token(after.tokenizer.size - 1)
    pieces = store.tokenizer.pieces_batch([word])[0]
    torch.testing.assert_close(decoder[after.tokenizer.size - 1], theirs.cls.predictions.decoder.weight[pieces].mean(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_with_new_words_trains_resumes_and_opens_in_transformers(family, sources, tmp_path, notes):
    out = tmp_path / "run"
    pretrain(settings(family, sources, out, add_tokens=3))
    made = (out / "store/tokens.bin").stat().st_mtime_ns
    assert any("were added to the vocabulary" in note for note in notes)
    result = pretrain(settings(family, sources, out, add_tokens=3, resume=True))
    assert result["steps"] == 2 and (out / "store/tokens.bin").stat().st_mtime_ns == made
    theirs = getattr(hf, FAMILIES[family][0]).from_pretrained(out)
    tokenizer = hf.AutoTokenizer.from_pretrained(out)
    ours = read_folder(out)
    assert theirs.get_input_embeddings().weight.shape[0] == ours.model.config.vocabulary
    for text in ("the hexagon saw a catalyst", "polymers of nitrogen"):
        assert tokenizer(text)["input_ids"] == ours.tokenizer.encode(text).ids


def test_a_run_folder_with_the_store_of_another_wish_is_refused(sources, tmp_path):
    given = settings("bert", sources, tmp_path / "run", add_tokens=2)
    extended(sources("bert")[1], read_folder(Path(given.init)), given)
    other = settings("bert", sources, tmp_path / "run", add_tokens=3)
    with pytest.raises(UserError, match="different text, model or --add-tokens"):
        extended(sources("bert")[1], read_folder(Path(given.init)), other)


def test_new_words_without_a_model_are_refused(sources, tmp_path):
    with pytest.raises(UserError, match="--init"):
        build(settings("bert", sources, tmp_path / "run", add_tokens=2, init=""), World())


def test_a_text_without_a_word_to_add_is_reported(sources, tmp_path):
    folder, _ = sources("bert")
    (tmp_path / "plain.txt").write_text("The cat saw it. That was it.\n\nIt was that. The cat was it.", "utf-8")
    store, _ = prepare([tmp_path / "plain.txt"], Tokenizer.load(folder), tmp_path / "store", workers=1)
    with pytest.raises(UserError, match="nothing to add"):
        useful_words(store, 5)
