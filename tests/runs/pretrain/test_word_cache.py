"""A teacher's states of every word, computed once and kept beside the store."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from bertkit.checkpoint.folder import read_folder
from bertkit.data.packing import FullSentences, MixedSentences
from bertkit.data.store import Store
from bertkit.errors import DamagedFile, UserError
from bertkit.inference import word_cache
from bertkit.inference.teacher import WordTeacher
from bertkit.inference.word_cache import open_cache
from bertkit.runs.pretrain.run import pretrain
from tests.support.toy import make_model

LENGTH = 32


@pytest.fixture
def corpus(store, tmp_path) -> Store:
    """A copy of the store: what is kept stands beside it."""
    shutil.copytree(store, tmp_path / "store")
    return Store.open(tmp_path / "store")


@pytest.fixture
def teacher(corpus, tmp_path) -> WordTeacher:
    return WordTeacher(read_folder(make_model(tmp_path / "teacher", width=64)), [1, 2], corpus.tokenizer, "fp32")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(word_cache, "BATCH", 256)
    monkeypatch.setattr(word_cache, "FLUSH", 2)


def rows(store: Store, packing: type[FullSentences] = FullSentences, count: int = 12) -> list:
    examples = packing(store, np.arange(store.documents), LENGTH)
    return [examples.example(n, np.random.default_rng(n)) for n in range(count)]


def test_cached_states_are_the_teachers_own(corpus, teacher):
    cache = open_cache(corpus, teacher, 64, LENGTH)
    word, states = teacher(rows(corpus))
    again, kept = cache(rows(corpus))
    assert np.array_equal(word, again)
    cosine = torch.nn.functional.cosine_similarity(states.float(), kept.float(), dim=-1)
    assert cosine.min() > 0.999  # int8, and all directions kept


def test_fewer_numbers_keep_most_of_it(corpus, teacher, notes):
    cache = open_cache(corpus, teacher, 32, LENGTH)
    _, states = teacher(rows(corpus))
    _, kept = cache(rows(corpus))
    assert torch.nn.functional.cosine_similarity(states.float(), kept.float(), dim=-1).mean() > 0.9
    assert any("of the variance" in line for line in notes)
    assert any(line.endswith(" MB on the disk.") and " 0.0 " not in line for line in notes)


def test_a_single_sentence_finds_its_own_words(corpus, teacher):
    cache = open_cache(corpus, teacher, 64, LENGTH)
    for example in rows(corpus, MixedSentences):
        word, states = cache([example])
        live, own = teacher([example])
        assert np.array_equal(word, live)
        assert len(states) == len(own)


def test_a_row_that_is_cut_inside_a_word_keeps_the_count(corpus, teacher):
    cache = open_cache(corpus, teacher, 64, 6)  # rows of four pieces: many words are cut
    assert len(cache.scales) == int(cache.first[-1])


def test_killed_it_continues_after_the_last_batch_that_was_written_to_the_same_bytes(corpus, teacher, monkeypatch):
    folder = word_cache.cache_folder(corpus, teacher, 16, LENGTH)
    open_cache(corpus, teacher, 16, LENGTH)
    names = ("cache.json", "basis.safetensors", "words.bin", "states.bin", "scales.bin")
    uninterrupted = {name: (folder / name).read_bytes() for name in names}
    shutil.rmtree(folder)
    write = word_cache.atomic_write

    def dies(path, data):
        write(path, data)
        if path.name == "progress.json":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(word_cache, "atomic_write", dies)
        with pytest.raises(KeyboardInterrupt):
            open_cache(corpus, teacher, 16, LENGTH)
    (folder / "states.bin").open("ab").write(b"half a batch")
    batch, calls = word_cache._CacheWriter._batch, []
    monkeypatch.setattr(word_cache._CacheWriter, "_batch", lambda self, n: calls.append(n) or batch(self, n))
    open_cache(corpus, teacher, 16, LENGTH)
    assert calls[0].start > 0  # the first two batches were not read again
    assert {name: (folder / name).read_bytes() for name in names} == uninterrupted


def test_an_altered_file_is_found(corpus, teacher):
    open_cache(corpus, teacher, 16, LENGTH)
    path = word_cache.cache_folder(corpus, teacher, 16, LENGTH) / "states.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"states\.bin"):
        open_cache(corpus, teacher, 16, LENGTH)


def test_a_run_reads_the_teachers_states_from_the_disk(make, corpus, tmp_path, monkeypatch):
    teacher = str(make_model(tmp_path / "teacher", width=64))
    settings = {"data": corpus.folder, "teacher": teacher, "teaching": {"cache": 64}, "steps": 40, "loop": {"lr": 3e-3}}
    first = pretrain(make("modern-tiny", tmp_path / "a", **settings))
    live = pretrain(make("modern-tiny", tmp_path / "c", **(settings | {"teaching": {}})))
    assert first["match_loss"] == pytest.approx(live["match_loss"], rel=0.1)
    monkeypatch.setattr(WordTeacher, "__call__", lambda *_: pytest.fail("the teacher was asked again"))
    second = pretrain(make("modern-tiny", tmp_path / "b", **settings))
    assert second["match_loss"] == first["match_loss"]


def test_states_of_another_precision_are_not_taken_for_these(corpus, teacher, tmp_path):
    coarse = WordTeacher(read_folder(tmp_path / "teacher"), [1, 2], corpus.tokenizer, "bf16")
    folders = {word_cache.cache_folder(corpus, each, 64, LENGTH) for each in (teacher, coarse)}
    assert len(folders) == 2


def test_more_numbers_than_the_teacher_has_are_refused(corpus, teacher):
    with pytest.raises(UserError, match="64 numbers"):
        open_cache(corpus, teacher, 65, LENGTH)
