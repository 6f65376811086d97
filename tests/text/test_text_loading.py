"""Tokenizer files of every layout open; damaged ones are named with the fix."""

import json
import random

import pytest

from bertkit.errors import DamagedFile, UserError
from bertkit.text import sentencepiece as spiece
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support.written_lines import ENGLISH, VOCABS, written_lines

SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "mill", "##s", "é", "e", "公", "园", "公园"]
needs_vocabs = pytest.mark.skipif(
    not VOCABS.is_dir(), reason="the shared data with the official vocabularies is absent"
)


@pytest.fixture
def vocab(tmp_path):
    def write(pieces=SMALL, **config):
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        if config:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def pieces(tokenizer, text):
    return [tokenizer.id_to_token(number) for number in tokenizer.pieces_batch([text])[0]]


def test_a_bare_vocabulary_without_capitals_lowers_and_says_so(vocab, notes):
    assert pieces(Tokenizer.load(vocab()), "The MILLS é") == ["the", "mill", "##s", "e"]
    assert "lower-cased" in notes[0]


def test_a_bare_vocabulary_with_capitals_keeps_case_and_says_so(vocab, notes):
    tokenizer = Tokenizer.load(vocab([*SMALL, "The"]))
    assert pieces(tokenizer, "The the é") == ["The", "the", "é"] and tokenizer.lower is False
    assert "case is kept" in notes[0]


def test_capitals_in_markers_say_nothing_about_case(vocab):
    assert Tokenizer.load(vocab([*SMALL, "<S>", "[unused1]"])).lower is True


@pytest.mark.parametrize(
    ("config", "text", "wanted"),
    [
        ({"do_lower_case": False}, "The é", ["[UNK]", "é"]),
        ({"do_lower_case": True, "strip_accents": False}, "The é", ["the", "é"]),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, "公园", ["公园"]),
        ({"do_lower_case": True}, "公园", ["公", "园"]),
    ],
)
def test_settings_beside_the_vocabulary_are_followed(vocab, notes, config, text, wanted):
    from transformers import BertTokenizer

    folder = vocab(**config)
    assert pieces(Tokenizer.load(folder), text) == wanted == BertTokenizer.from_pretrained(folder).tokenize(text)
    assert not notes


def test_a_vocabulary_from_windows_opens_like_any_other(vocab):
    folder = vocab()
    plain = Tokenizer.load(folder).fingerprint()
    content = (folder / "vocab.txt").read_bytes()
    (folder / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert Tokenizer.load(folder / "vocab.txt").fingerprint() == plain


def test_code_in_a_config_is_ignored_and_reported(vocab, notes):
    folder = vocab(do_lower_case=True, auto_map={"AutoTokenizer": ["evil.py", None]})
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    Tokenizer.load(folder)
    assert any("auto_map" in message and "ignored" in message for message in notes)


def test_cutting_and_padding_of_a_file_are_switched_off_and_reported(learnt, tmp_path, notes):
    backend = type(learnt["wordpiece"].backend).from_str(learnt["wordpiece"].backend.to_str())
    backend.enable_truncation(5)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.ids_batch(written_lines(50)) == learnt["wordpiece"].ids_batch(written_lines(50))
    assert "truncate texts at 5 tokens" in notes[0] and "pad" in notes[1]
    assert tokenizer.fingerprint() == learnt["wordpiece"].fingerprint()


def test_lower_casing_that_two_files_disagree_about_is_reported(learnt, tmp_path, notes):
    learnt["wordpiece"].save(tmp_path, 64)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": False}))
    assert Tokenizer.load(tmp_path).lower is True
    assert "disagree about lower-casing" in notes[0]


@pytest.mark.parametrize("length", [1e30, -1, None, "512", 10**12])
def test_an_absurd_length_counts_as_unknown(vocab, length):
    assert Tokenizer.load(vocab(do_lower_case=True, model_max_length=length)).max_tokens is None


def test_added_tokens_beside_a_vocabulary_keep_their_numbers(vocab):
    folder = vocab(do_lower_case=True)
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": 14, "<a>": 13}))
    tokenizer = Tokenizer.load(folder)
    assert pieces(tokenizer, "the<b>mill") == ["the", "<b>", "mill"] and tokenizer.size == 15
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": 99}))
    with pytest.raises(DamagedFile, match="'<b>' should have id 99"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.txt", b"the\nmill\n", r"no line \[UNK\]"),
        ("vocab.txt", b"[UNK]\n\xff\n", "not UTF-8 at byte 6"),
        ("vocab.txt", b"", "0 lines"),
        ("tokenizer.json", b"{}", "not a readable tokenizer.json"),
        ("tokenizer.json", b'{"model": ', "not a readable tokenizer.json"),
        ("tokenizer_config.json", b"[1]", "holds a list, not an object"),
        ("tokenizer_config.json", b"{", "not JSON"),
        ("spiece.model", b"hello", "not a complete SentencePiece file"),
        ("spiece.model", b"", "not a complete SentencePiece file"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=said) as caught:
        Tokenizer.load(tmp_path)
    assert name in str(caught.value)


def test_merges_that_do_not_fit_their_vocabulary_are_refused(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(DamagedFile, match=r"merges.txt does not belong to vocab.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    with pytest.raises(DamagedFile, match=r"merges.txt, line 2"):
        Tokenizer.load(tmp_path)


def test_what_is_no_tokenizer_is_refused_with_what_would_be(tmp_path):
    with pytest.raises(UserError, match="no such tokenizer"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"One of these is needed: tokenizer.json, spiece.model"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(UserError, match=r"needs merges.txt"):
        Tokenizer.load(tmp_path / "vocab.json")


@needs_vocabs
def test_a_sentencepiece_file_reads_as_its_own_library_reads_it():
    import sentencepiece

    path = VOCABS / "albert-v2" / "spiece.model"
    judge = sentencepiece.SentencePieceProcessor(model_file=str(path))
    found = spiece.read(path)
    assert [piece for piece, _, _ in found.pieces] == [judge.id_to_piece(i) for i in range(judge.get_piece_size())]
    assert [score for _, score, _ in found.pieces] == [judge.get_score(i) for i in range(judge.get_piece_size())]
    assert found.unk_id == judge.unk_id()
    assert all((kind == spiece.CONTROL) == judge.is_control(i) for i, (_, _, kind) in enumerate(found.pieces))


@needs_vocabs
def test_a_cut_or_altered_sentencepiece_file_never_fails_badly(tmp_path):
    whole = (VOCABS / "albert-v2" / "spiece.model").read_bytes()[:4000]
    chance, path = random.Random(0), tmp_path / "spiece.model"
    for _ in range(300):
        damaged = bytearray(whole[: chance.randrange(len(whole))])
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            Tokenizer.load(path)
        except UserError:
            continue


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_sentencepiece_files_that_are_not_alberts_are_refused_with_the_fix(tmp_path, algorithm):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(ENGLISH)] * 20), model_prefix=str(tmp_path / "spiece"), vocab_size=90,
        model_type=algorithm, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"save its tokenizer.json next to it"):
        Tokenizer.load(tmp_path / "spiece.model")


@pytest.mark.parametrize("with_json", [False, True])
def test_a_japanese_folder_that_needs_mecab_is_refused_instead_of_split_otherwise(tmp_path, with_json):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "東京", "##都"]), "utf-8"
    )
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if with_json:
        learn(["a b c"] * 3, VocabularySettings(size=30, min_frequency=1)).backend.save(
            str(tmp_path / "tokenizer.json")
        )
    with pytest.raises(
        UserError, match=r"tokenizer_config\.json: .*'BertJapaneseTokenizer' \(words by 'mecab'\) is not"
    ):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "BertTokenizerFast"}))
    Tokenizer.load(tmp_path)


def template(**parts):
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"x": {"id": "x", "ids": [10**9], "tokens": ["x"]}}
    return {"type": "TemplateProcessing", "single": [text], "pair": [text, text], "special_tokens": special} | parts


TEXT_A, SPECIAL_X = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
HARMFUL = {
    "times as long": {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}},
    "1,099,511,627,776 times": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
        }
    },
    "template repeats": {"post_processor": template(single=[TEXT_A] * 50)},
    "adds the id 1,000,000,000": {"post_processor": template(single=[SPECIAL_X, TEXT_A])},
    "has the id 4,000,000,000": {
        "model": {
            "type": "WordPiece", "vocab": {"[UNK]": 0, "a": 4 * 10**9}, "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        }
    },
    "cache of 1000000000000000": {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "cache_capacity": 10**15}
    },
}  # fmt: skip


@pytest.mark.parametrize("reason", HARMFUL)
def test_a_tokenizer_that_multiplies_texts_or_ids_is_refused(tmp_path, reason):
    backend = learn(["a b c"] * 3, VocabularySettings(size=30, min_frequency=1)).backend
    content = json.loads(backend.to_str()) | HARMFUL[reason]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match=rf"tokenizer\.json: .*{reason}"):
        Tokenizer.load(tmp_path)
