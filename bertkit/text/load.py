"""Tokenizer files of every layout turned into one `tokenizers.Tokenizer`. Nothing in a file is ever executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import read_json, read_text
from bertkit.files.manifest import read_whole, reading
from bertkit.notify import note
from bertkit.text import sentencepiece
from bertkit.text.checks import refuse_harmful, tokenizer_errors
from bertkit.text.template import (
    BERT_PAIR,
    ROBERTA_PAIR,
    USUAL_NAMES,
    add_specials,
    set_roberta_template,
    set_template,
)

Config = Mapping[str, Any]
MPNET_NAMES = {"unk": "[UNK]", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}


def load_backend(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer in a folder or file, and the content of its tokenizer_config.json ({} if there is none)."""
    if not path.exists():
        raise UserError(f"{path}: no such tokenizer file or folder. Check the name.")
    folder = path if path.is_dir() else path.parent

    def load() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
        config = _config_of(folder)
        build, files = _layout(path, folder)
        _refuse_other_classes(folder, config, files[0].name)
        backend = build(files, config)
        refuse_harmful(backend, files[0])
        return backend, config

    if path.is_dir():
        return read_whole(folder, load, what="tokenizer")
    with reading(folder / path.name, what="tokenizer"):  # one file of a folder that need not be a tokenizer's
        return load()


def _layout(path: Path, folder: Path) -> tuple[Builder, list[Path]]:
    """How the tokenizer in a folder, or in one file of it, is built, and from which files."""
    for names, build in LAYOUTS.items():
        present = [folder / name for name in names if (folder / name).is_file()]
        if len(present) == len(names) and (path.is_dir() or path in present):
            return build, present
    if path.is_dir():
        wanted = ", ".join(" + ".join(names) for names in LAYOUTS)
        raise UserError(f"{path}: this folder contains no tokenizer. One of these is needed: {wanted}. Copy it too.")
    if path.suffix not in BY_ENDING:
        raise UserError(f"{path}: not a tokenizer file. Known endings: {', '.join(BY_ENDING)}.")
    return BY_ENDING[path.suffix], [path]


def _refuse_other_classes(folder: Path, config: Config, file: str) -> None:
    """Refuse a tokenizer class whose rules are neither in its files nor known here: other pieces would come out."""
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    whole = file == "tokenizer.json"  # which holds every rule, whatever the class is called
    if not name or (whole and name not in OWN_SPLITTING) or name in KNOWN_CLASSES.get(file, ()):
        return
    splits = config.get("word_tokenizer_type")
    means = f" (words by {splits!r:.40})" if splits else ""
    raise UserError(
        f"{folder / 'tokenizer_config.json'}: the tokenizer class {name!r:.60}{means} is not implemented in bertkit, "
        "and reading its vocabulary with other rules would give other pieces. Use a model with a tokenizer.json, or "
        f"one of the classes {', '.join(sorted({known for row in KNOWN_CLASSES.values() for known in row}))}."
    )


def _from_json(paths: list[Path], config: Config) -> tokenizers.Tokenizer:
    """A tokenizer from tokenizer.json."""
    path = paths[0]
    content = read_text(path)
    if capacity := re.search(r'"cache_capacity"\s*:\s*(\d{8,})', content):
        raise DamagedFile(f"{path}: asks for a cache of {capacity[1]:.20} words. Remove 'cache_capacity' from it.")
    with tokenizer_errors(
        f"{path}: not a readable tokenizer.json. Download it again, or delete it to use vocab.txt", DamagedFile
    ):
        backend = tokenizers.Tokenizer.from_str(content)
    if backend.truncation is not None:
        note(f"{path.name} would truncate texts at {backend.truncation['max_length']} tokens; this is switched off.")
        backend.no_truncation()
    if backend.padding is not None:
        note(f"{path.name} would pad texts; this is switched off.")
        backend.no_padding()
    lower = config.get("do_lower_case")
    if isinstance(lower, bool) and lowers(backend) not in (None, lower):
        note(f"{path.name} and tokenizer_config.json disagree about lower-casing; using {path.name}.")
    return backend


def _from_vocab_txt(paths: list[Path], config: Config) -> tokenizers.Tokenizer:
    """BERT's tokenizer from vocab.txt."""
    path = paths[0]
    pieces = [line.strip() for line in read_text(path).split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    is_mpnet = pieces[:1] == [MPNET_NAMES["cls"]]  # its vocabulary is BERT's, between specials of its own
    usual = MPNET_NAMES if is_mpnet else {role: names[0] for role, names in USUAL_NAMES.items()}
    names = {role: _name(config, role, usual) for role in USUAL_NAMES}
    missing = [names[role] for role in ("unk", "cls", "sep") if names[role] not in vocabulary]
    if missing:
        raise DamagedFile(
            f"{path}: there is no line {' or '.join(missing)}, so it is not a complete BERT vocabulary "
            f"({len(pieces)} lines, one piece each). Download it again, or name the tokens in tokenizer_config.json."
        )
    if len(vocabulary) < len(pieces):
        note(
            f"{path.name}: {len(pieces) - len(vocabulary)} of {len(pieces)} lines repeat a piece; the last one is used."
        )
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=_lower(path, pieces, config),
    )
    configure_bert(backend)
    add_specials(backend, [name for name in names.values() if name in vocabulary], eats_space=[MPNET_NAMES["mask"]])
    set_template(backend, ROBERTA_PAIR if is_mpnet else BERT_PAIR, names["cls"], names["sep"])
    return _with_added(backend, path.parent)


def _from_merges(paths: list[Path], config: Config) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer from vocab.json and merges.txt."""
    vocabulary = read_json(paths[0])
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise DamagedFile(f"{paths[0]}: not a mapping of pieces to numbers. Download it again.")
    merges = []
    for number, line in enumerate(read_text(paths[1]).split("\n"), start=1):
        parts = line.split()
        if parts and not (number == 1 and line.startswith("#version")):
            if len(parts) != 2:
                raise DamagedFile(
                    f"{paths[1]}, line {number}: {line!r:.60} is not two pieces. Download the file again."
                )
            merges.append((parts[0], parts[1]))
    with tokenizer_errors(
        f"{paths[1]} does not belong to {paths[0].name}. Download both again from the same place", DamagedFile
    ):
        backend = tokenizers.Tokenizer(
            models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
        )
    dress_as_bytes(backend, add_prefix_space=bool(config.get("add_prefix_space", False)))
    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
    # RoBERTa's mask takes the space before it, so that "the <mask>" guesses a whole word.
    add_specials(backend, [name for name in specials if name in vocabulary], eats_space=["<mask>"])
    if all(name in vocabulary for name in ("<s>", "</s>", "<mask>")):
        set_roberta_template(backend, add_prefix_space=bool(config.get("add_prefix_space", False)))
    return _with_added(backend, paths[0].parent)


def _from_spiece(paths: list[Path], config: Config) -> tokenizers.Tokenizer:
    return _with_added(sentencepiece.build(paths[0], config), paths[0].parent)


def _from_lone_json(paths: list[Path], config: Config) -> tokenizers.Tokenizer:
    """A tokenizer from one JSON file, which must be a whole tokenizer.json."""
    if "model" not in read_json(paths[0]):
        raise UserError(
            f"{paths[0]}: contains pieces but no merges. A vocab.json needs merges.txt next to it; pass the folder."
        )
    return _from_json(paths, config)


Builder = Callable[[list[Path], Config], tokenizers.Tokenizer]

# Tried in this order; all files of a layout must be there.
LAYOUTS: dict[tuple[str, ...], Builder] = {
    ("tokenizer.json",): _from_json,
    ("spiece.model",): _from_spiece,
    ("sentencepiece.bpe.model",): _from_spiece,
    ("spm.model",): _from_spiece,
    ("vocab.txt",): _from_vocab_txt,
    ("vocab.json", "merges.txt"): _from_merges,
    ("encoder.json", "vocab.bpe"): _from_merges,
}
BY_ENDING: dict[str, Builder] = {".json": _from_lone_json, ".txt": _from_vocab_txt, ".model": _from_spiece}


_WORDPIECE = (
    "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer",
    "RetriBertTokenizer", "LayoutLMTokenizer", "SqueezeBertTokenizer", "MPNetTokenizer",
    "PreTrainedTokenizer", "TokenizersBackend",
)  # fmt: skip
_BYTES = (
    "RobertaTokenizer", "GPT2Tokenizer", "LongformerTokenizer", "BartTokenizer", "PreTrainedTokenizer",
    "TokenizersBackend",
)  # fmt: skip
_ANY = ("PreTrainedTokenizer", "TokenizersBackend")
# By the file that a tokenizer is built from: the classes of transformers that make the same of it.
KNOWN_CLASSES = {
    "vocab.txt": _WORDPIECE, "vocab.json": _BYTES, "encoder.json": _BYTES, "spiece.model": ("AlbertTokenizer", *_ANY),
    "sentencepiece.bpe.model": ("XLMRobertaTokenizer", "CamembertTokenizer", *_ANY),
    "spm.model": ("DebertaV2Tokenizer", *_ANY),
}  # fmt: skip
# Classes that find words by a program outside their files, so that a tokenizer.json beside them is not theirs.
OWN_SPLITTING = (
    "BertJapaneseTokenizer", "JapaneseTokenizer", "PhobertTokenizer", "BertweetTokenizer", "XLMTokenizer",
    "FlaubertTokenizer", "CpmTokenizer", "RoFormerTokenizer", "TransfoXLTokenizer",
)  # fmt: skip


def configure_bert(backend: tokenizers.Tokenizer) -> None:
    """When a vocab.txt is loaded: BERT's rules.

    Words end at spaces and punctuation; pieces inside a word begin with '##'.
    """
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")


def dress_as_bytes(backend: tokenizers.Tokenizer, add_prefix_space: bool = False) -> None:
    """When a vocab.json is loaded: byte-level rules. Nothing is unknown; 'Ġ' stands for the space before a word."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)


def lowers(backend: tokenizers.Tokenizer) -> bool | None:
    """Whether a loaded tokenizer lower-cases, judged by its effect on a letter; None if it does something else."""
    if backend.normalizer is None:
        return False
    return {"a": True, "A": False}.get(backend.normalizer.normalize_str("A").strip(" ▁"))


def _config_of(folder: Path) -> dict[str, Any]:
    """A tokenizer folder's settings from tokenizer_config.json and special_tokens_map.json."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    if "auto_map" in config:
        note(f"{folder / 'tokenizer_config.json'} asks to run its own code (auto_map); this is ignored.")
    return config


def _name(config: Config, role: str, usual: Mapping[str, str]) -> str:
    name = config.get(f"{role}_token", usual[role])
    return str(name.get("content") if isinstance(name, dict) else name)


def _lower(path: Path, pieces: list[str], config: Config) -> bool:
    """Whether a vocabulary is lower-cased: as its config says, or as its pieces show."""
    if isinstance(config.get("do_lower_case"), bool):
        return bool(config["do_lower_case"])
    # Markers such as [CLS] and the <S> of Google's Chinese vocabulary say nothing about the words.
    cased = any(piece != piece.lower() for piece in pieces if piece[:1] + piece[-1:] not in ("[]", "<>"))
    note(
        f"{path.name}: no tokenizer_config.json says whether to lower-case; the vocabulary has "
        f"{'upper-case pieces, so case is kept' if cased else 'no upper-case piece, so text is lower-cased'}."
    )
    return not cased


def _with_added(backend: tokenizers.Tokenizer, folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer with the pieces of added_tokens.json."""
    path = folder / "added_tokens.json"
    if not path.is_file():
        return backend
    added = read_json(path)
    backend.add_tokens(sorted(added, key=lambda token: added[token]))
    for token, number in added.items():
        if backend.token_to_id(token) != number:
            raise DamagedFile(
                f"{path}: '{token}' should have id {number} but has {backend.token_to_id(token)}. "
                "The file belongs to a different vocabulary: download both again."
            )
    return backend
