"""Preparing text: the store is what plain Python makes of it, whatever interrupts the work."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from bertkit.commands import prepare as verb
from bertkit.data.prepare.pieces import PieceEncoder, arrays_of, has_bert_rules
from bertkit.data.prepare.run import Digests, Reading, digest_of, prepare
from bertkit.data.prepare.workers import _Worker
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import is_cjk, segment, sentences_of, suspicious_lines
from tests.support.prepared_texts import (
    CHINESE,
    ENGLISH,
    MIXED,
    contents,
    made_up,
    plainly,
    read_back,
    small_tokenizers,
    written,
)

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
documents = st.lists(
    st.lists(st.lists(st.sampled_from(ENGLISH + CHINESE + MIXED), min_size=1, max_size=4), min_size=1, max_size=3).map(
        lambda lines: "\n".join(" ".join(line) for line in lines)
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return small_tokenizers()


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("prepare")


@quick
@given(texts=documents, name=st.sampled_from(["cased", "uncased"]))
def test_a_store_is_what_plain_python_makes_of_the_text(
    texts: list[str], name: str, tokenizers: dict[str, Tokenizer], fresh: Callable[[], Path]
) -> None:
    wanted = plainly(texts, tokenizers[name])
    assume(sum(map(len, wanted)) > 1)
    folder = fresh()
    store, report = prepare([written(folder, texts)], tokenizers[name], folder / "store")
    assert read_back(store) == wanted
    assert report["duplicates"] == len(texts) - len(wanted)
    assert (report["documents_read"], report["documents"]) == (len(texts), len(wanted))
    lengths = [len(ids) for document in wanted for ids, _ in document]
    shares = {share: int(np.percentile(lengths, int(share), method="inverted_cdf")) for share in ("5", "50", "99")}
    assert shares.items() <= report["lengths"]["tokens per sentence"].items()
    unknown = sum(ids.count(store.tokenizer.unk_id) for document in wanted for ids, _ in document)
    assert report["unknown_rate"] == pytest.approx(unknown / sum(lengths))


@settings(quick, max_examples=300)
@given(sentences=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
@example(
    sentences=[
        "a [MASK] b",
        "[CLS]中[SEP]国",
        "豈更車",
        "각ᄀ",
        "e\u0301\u0323 x",
        "İstanbul ΑΣ",
        "x\u200by\x07z\ufeff",
    ]
)
@example(sentences=["", "\u302e가", "\u0378", "\U0002f800\U0002f801"])
def test_words_looked_up_in_the_table_are_the_librarys(sentences: list[str], tokenizers: dict[str, Tokenizer]) -> None:
    for name in ("cased", "uncased"):
        assert has_bert_rules(tokenizers[name])
        table = PieceEncoder(tokenizers[name])
        library = PieceEncoder(tokenizers[name])
        library.table = None
        ours, theirs = table.cut(sentences, [True] * len(sentences)), library.cut(sentences, [True] * len(sentences))
        assert table.table is not None, "the table was given up"
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.lengths.tolist() == theirs.lengths.tolist()
        assert ours.starts.tolist() == theirs.starts.tolist()


def test_the_table_of_words_stays_small_and_right_when_it_begins_anew(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertkit.data.prepare import pieces as prepare_pieces

    monkeypatch.setattr(prepare_pieces, "TABLE_BYTES", 2000)
    cutter = PieceEncoder(tokenizers["uncased"])
    for text in made_up(0.02):
        found = cutter.cut([text], [True])
        assert found.ids.tolist() == tokenizers["uncased"].pieces_batch([text])[0]
        assert cutter.table is not None and cutter.table._bytes < 2000 + 400 * len(text)


@quick
@given(texts=documents, name=st.sampled_from(["bytes", "unigram"]))
def test_other_tokenizers_keep_every_piece_and_begin_words_at_spaces(
    texts: list[str], name: str, tokenizers: dict[str, Tokenizer]
) -> None:
    cutter = PieceEncoder(tokenizers[name])
    sentences = [sentence for text in texts for sentence in sentences_of(text)]
    found = cutter.cut(sentences, [True] + [False] * (len(sentences) - 1))
    given_texts = sentences if name == "unigram" else [sentences[0], *(" " + text for text in sentences[1:])]
    wanted = [tokenizers[name].backend.encode(text, add_special_tokens=False) for text in given_texts]
    assert found.ids.tolist() == [number for encoding in wanted for number in encoding.ids]
    assert found.lengths.tolist() == [len(encoding) for encoding in wanted]
    starts = iter(found.starts.tolist())
    for text, encoding in zip(given_texts, wanted):
        words = {start for start, end in segment(text)}
        mine = [next(starts) for _ in encoding.ids]
        assert mine[0] == 1
        for (a, b), piece, begins in zip(encoding.offsets, encoding.tokens, mine):
            if piece[0] in "Ġ▁" and len(piece) > 1 and not is_cjk(text[b - 1]):
                assert begins, (text, piece)
            if begins and is_cjk(text[a]) and a:
                assert a in words or text[a].isspace()


def test_a_chinese_word_is_one_word_and_punctuation_its_own(tokenizers: dict[str, Tokenizer]) -> None:
    found = PieceEncoder(tokenizers["uncased"]).cut(["我来到北京清华大学。ok!"], [True])
    pieces = [tokenizers["uncased"].id_to_token(number) for number in found.ids]
    assert "".join(pieces[:10]) == "我来到北京清华大学。"
    assert found.starts.tolist()[:10] == [1, 1, 0, 1, 0, 1, 0, 0, 0, 1]
    alone = PieceEncoder(tokenizers["uncased"], segmenting=False).cut(["我来到北京清华大学。"], [True])
    assert alone.starts.tolist() == [1] * 10


def test_wrapped_lines_are_joined_and_paragraphs_are_not() -> None:
    wrapped = "It was the best\nof times. It was\nthe worst of\ntimes."
    assert sentences_of(wrapped) == ["It was the best\nof times.", "It was\nthe worst of\ntimes."]
    assert sentences_of("A title\nFirst sentence. Second one.") == ["A title", "First sentence.", "Second one."]


def test_suspicious_lines_are_counted_by_kind() -> None:
    text = "fine line\n<b>bold</b> &amp; so\n----------\n| a | b |\nbroken \ufffd\nbell \x07\ncafÃ© it's 3 < 4 & 5 > 2"
    assert list(suspicious_lines(text).values()) == [1, 1, 1, 2, 1]
    assert suspicious_lines("Nothing odd - at all. 3 < 4 & so on.\nAt all…") == {}


@quick
@given(texts=documents)
def test_duplicates_are_kept_when_asked(texts: list[str], tokenizers: dict[str, Tokenizer], fresh: Callable) -> None:
    folder = fresh()
    path = written(folder, [texts[0], *texts])
    store, report = prepare([path], tokenizers["cased"], folder / "store", Reading(keep_duplicates=True))
    assert store.documents == len(texts) + 1 and report["duplicates"] == 0


@given(st.lists(st.binary(min_size=16, max_size=16).filter(any), max_size=3000))
def test_digests_behave_like_a_set(digests: list[bytes]) -> None:
    ours, theirs = Digests(), set()
    for digest in digests:
        assert ours.add(digest) == (digest not in theirs)
        theirs.add(digest)
    assert len(ours) == len(theirs)


def test_many_digests_take_little_memory() -> None:
    digests = Digests()
    for number in range(40_000):
        assert digests.add(digest_of(str(number)))
    assert not any(digests.add(digest_of(str(number))) for number in range(40_000))
    assert len(digests._slots) <= 48 * 40_000


def test_files_folders_and_packed_tables_give_one_store(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    (tmp_path / "in").mkdir()
    texts = list(made_up(0.01))
    written(tmp_path / "in", texts[:2], "a.txt")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in [*texts[2:], texts[0]])
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    store, report = prepare([tmp_path / "in"], tokenizers["cased"], tmp_path / "store")
    assert read_back(store) == plainly(texts, tokenizers["cased"])
    assert report["duplicates"] == 1


def test_workers_give_the_same_store_as_one_process(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    path = written(tmp_path, [*made_up(2.5), *CHINESE])
    prepare([path], tokenizers["uncased"], tmp_path / "one", workers=1)
    prepare([path], tokenizers["uncased"], tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_worker_that_is_killed_is_reported(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizers["cased"].save(tmp_path, 512)
    worker = _Worker(tmp_path, True)
    try:
        assert len(worker.arrays_of(["The cat sat."]).documents) == 1
        cutter = PieceEncoder(tokenizers["cased"], True)
        for documents in ([], [""], ["", "The cat sat.", ""]):  # of a chunk of duplicates nothing is left
            assert worker.arrays_of(documents).to_bytes() == arrays_of(documents, cutter).to_bytes()
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(UserError, match=r"worker process ended early.*--workers 1"):
            worker.arrays_of(["The cat sat."])
    finally:
        worker.stop()


@pytest.mark.parametrize("text", ["One sentence alone.", "\u200b\n\n\u00ad", "\x07"])
def test_a_text_of_one_sentence_or_none_is_refused(tmp_path: Path, text: str, tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(UserError, match=r"contains [01] sentences?.*at least 2"):
        prepare([written(tmp_path, [text])], tokenizers["cased"], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_empty_and_missing_files_are_reported_before_anything_is_made(tmp_path: Path, tokenizers) -> None:
    (tmp_path / "empty.txt").touch()
    for path in (tmp_path / "empty.txt", tmp_path / "none.txt"):
        with pytest.raises(UserError, match=path.name):
            prepare([path], tokenizers["cased"], tmp_path / "out")
    for wrong in ({"workers": -1}, {"reading": Reading(lang="xx")}):
        with pytest.raises(UserError):
            prepare([written(tmp_path, ENGLISH)], tokenizers["cased"], tmp_path / "out", **wrong)
    assert not list(tmp_path.glob("out*"))


def test_the_command_prints_the_report_and_leaves_it_in_the_store(tmp_path: Path, tokenizers) -> None:
    tokenizers["uncased"].save(tmp_path / "tokenizer", 128)
    written(tmp_path, [*ENGLISH, "\u200b", "<p>Look. At it.</p>", ENGLISH[0]])
    options = {"texts": (tmp_path / "text.txt",), "tokenizer": str(tmp_path / "tokenizer"), "out": tmp_path / "store"}
    result = verb.run(verb.Settings(**options))
    told = "\n".join(verb.lines(result))
    assert (tmp_path / "store" / "report.txt").read_text() in told + "\n"
    assert (result["duplicates"], result["empty_documents"], result["documents"]) == (1, 1, 6)
    assert "markup" in told and "MB/s" in told
    assert Store.open(tmp_path / "store").max_tokens == 128
    json.dumps(result)
