"""SentencePiece files of every family, and MPNet's vocabulary, give the ids of transformers and their own library."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import transformers as hf

from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer

ENGLISH = [
    "the",
    "of",
    "house",
    "river",
    "don't",
    "it's",
    "running",
    "cafés",
    "naïve",
    "Über",
    "straße",
    "1999,",
    "3.14",
    "e-mail",
    "London",
    "Paris",
    "hello",
]
CHINESE = "今天天气很好我们去公园散步吧中国北京上海大学学习语言模型"
OTHERS = [
    "привет",
    "こんにちは",
    "한국어",
    "नमस्ते",
    "ＦＵＬＬ",
    "①",
    "ﬁne",
    "½",
    "…",
    "“quote”",
    "😀",
    "e\u0301",
    "\u200b",
    "\u00a0",
]
MARKS = [".", ",", "!", "，", "。", "  ", "\t", "45,678"]
SPECIALS = ("pad", "bos", "eos", "unk")
FILES = {"XLMRobertaTokenizer": "sentencepiece.bpe.model", "CamembertTokenizer": "sentencepiece.bpe.model",
         "DebertaV2Tokenizer": "spm.model"}  # fmt: skip
FAMILIES = {"XLMRobertaTokenizer": "xlm-roberta", "CamembertTokenizer": "camembert", "DebertaV2Tokenizer": "deberta-v2"}
OFFSETS = {"XLMRobertaTokenizer": 1, "CamembertTokenizer": 4, "DebertaV2Tokenizer": 0}


def lines(count: int, seed: int) -> list[str]:
    """English, Chinese and mixed scripts, with and without spaces."""
    chance = random.Random(seed)

    def word() -> str:
        kind = chance.random()
        if kind < 0.5:
            return chance.choice((str, str.upper, str.capitalize))(chance.choice(ENGLISH))
        if kind < 0.75:
            return "".join(chance.choices(CHINESE, k=chance.randint(1, 8)))
        return chance.choice(OTHERS if kind < 0.9 else MARKS)

    return [chance.choice((" ", " ", "")).join(word() for _ in range(chance.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module", params=FILES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SentencePiece file of this class, trained on such lines."""
    place = tmp_path_factory.mktemp(request.param)
    bert = request.param == "DebertaV2Tokenizer"
    ids = dict(zip(("pad_id", "bos_id", "eos_id", "unk_id"), range(4))) if bert else {}
    names = zip((f"{role}_piece" for role in SPECIALS), ("[PAD]", "[CLS]", "[SEP]", "[UNK]"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.replace("\t", " ") for line in lines(1500, 0)), model_prefix=str(place / "trained"),
        vocab_size=300, hard_vocab_limit=False, minloglevel=2, **ids, **(dict(names) if bert else {}),
    )  # fmt: skip
    (place / "trained.model").rename(place / FILES[request.param])
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": request.param}))
    (place / "config.json").write_text(json.dumps({"model_type": FAMILIES[request.param]}))
    return place


def test_sentencepiece_files_give_the_ids_of_transformers(folder: Path):
    theirs, ours = hf.AutoTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    texts = lines(300, 1)
    if folder.name.startswith("DebertaV2Tokenizer"):  # transformers 5 leaves the file's own character map out
        texts = [text for text in texts if unicodedata.normalize("NFKC", text) == text and text.isprintable()]
    assert len(texts) > 100
    assert ours.ids_batch(texts) == theirs(texts)["input_ids"]
    assert ours.ids_batch(texts, texts[::-1]) == theirs(texts, texts[::-1])["input_ids"]
    masked = f"the {theirs.mask_token} of London"
    assert ours.encode(masked).ids == theirs(masked)["input_ids"]
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id")


def test_sentencepiece_files_give_the_pieces_of_their_own_library(folder: Path):
    name = folder.name.rstrip("0123456789")
    judge = sentencepiece.SentencePieceProcessor(model_file=str(folder / FILES[name]))
    ours, texts, offset = Tokenizer.load(folder), lines(300, 2), OFFSETS[name]
    unknown = judge.unk_id() if name == "DebertaV2Tokenizer" else 3
    for text in texts:
        expected = [unknown if n == judge.unk_id() else n + offset for n in judge.encode(text)]
        assert ours.encode(text).ids[1:-1] == expected, text


def test_a_saved_tokenizer_keeps_its_ids_in_both_libraries(folder: Path, tmp_path: Path):
    ours, texts = Tokenizer.load(folder), lines(100, 3)
    ours.save(tmp_path, 128, 1)
    expected = ours.ids_batch(texts)
    assert Tokenizer.load(tmp_path).ids_batch(texts) == expected
    assert hf.AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"] == expected


@pytest.mark.parametrize("folder", ["CamembertTokenizer"], indirect=True)
def test_camemberts_file_is_known_by_config_json_alone(folder: Path):
    expected = Tokenizer.load(folder).ids_batch(lines(20, 4))
    (folder / "tokenizer_config.json").write_text("{}")
    assert Tokenizer.load(folder).ids_batch(lines(20, 4)) == expected


def test_a_file_that_is_not_the_familys_is_refused_with_the_fix(folder: Path, tmp_path: Path):
    if folder.name.startswith("Deberta"):
        wrong = tmp_path / "sentencepiece.bpe.model"
    else:
        wrong = tmp_path / "spm.model"
    source = next(folder.glob("*.model"))
    wrong.write_bytes(source.read_bytes())
    with pytest.raises(UserError, match=r"contains no .*save its tokenizer.json next to it"):
        Tokenizer.load(wrong)


@pytest.mark.parametrize("named", [True, False])
def test_mpnets_vocabulary_gives_the_ids_of_transformers(named: bool, tmp_path: Path):
    words = sorted(
        {word.lower() for word in ENGLISH} | set(CHINESE) | set("abcdefghijklmnopqrstuvwxyz.,!，。0123456789")
    )
    words += ["##" + char for char in "abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    about = {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True}
    names = {
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unk_token": "[UNK]",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about | (names if named else {})))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mpnet"}))
    theirs, ours = hf.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    texts = [*lines(300, 5), "the <mask> of London", ""]
    assert ours.ids_batch(texts) == theirs(texts)["input_ids"]
    assert ours.ids_batch(texts, texts[::-1]) == theirs(texts, texts[::-1])["input_ids"]
    assert (ours.mask_id, ours.cls_id, ours.pad_id) == (len(pieces) - 1, 0, 1)
