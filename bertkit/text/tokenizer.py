"""From characters to ids and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import normalizers, processors

from bertkit.errors import UserError
from bertkit.text import encoding as encodings
from bertkit.text.checks import UnknownPieces, refuse_bad_rows, refuse_bad_text, tokenizer_errors
from bertkit.text.encoding import Encoding, Window
from bertkit.text.load import load_backend, lowers
from bertkit.text.template import BERT_PAIR, roles_of, set_template

Result = TypeVar("Result")
KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
LONGEST_SANE = 1_000_000  # transformers writes 1e30 for "no limit known"
AT_ONCE = 4096  # texts per call: bounds the memory that encodings take


class Tokenizer:
    """A vocabulary with its rules. It never truncates a text unless asked to, and never runs code from a file."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        """`config`: the special tokens and `model_max_length` of tokenizer_config.json."""
        self.backend = backend
        self.config = dict(config or {})
        model = self.shape["model"]
        if model["type"] not in KINDS:
            raise UserError(f"Tokenizers of type {model['type']} are not supported. Choose from: {', '.join(KINDS)}.")
        self.kind: str = KINDS[model["type"]]
        unknown = model.get("unk_token")
        if self.kind == "unigram" and model.get("unk_id") is not None:
            unknown = backend.id_to_token(model["unk_id"])
        self.roles = roles_of(backend, self.config, unknown)
        self.unk_id, self.cls_id, self.sep_id, self.pad_id, self.mask_id = (
            backend.token_to_id(self.roles[role]) if role in self.roles else None
            for role in ("unk", "cls", "sep", "pad", "mask")
        )
        self.unknown = UnknownPieces()  # in the texts encoded so far

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Open a tokenizer's folder or one file: tokenizer.json, vocab.txt, vocab.json + merges.txt, spiece.model."""
        backend, config = load_backend(Path(path))
        return cls(backend, config)

    def with_borders(self) -> Tokenizer:
        """The same vocabulary for a GPT that is fine-tuned: start, text, delimiter, text, extract.

        GPT-2's tokenizer puts nothing around a text; its end-of-text token serves as all three.
        """
        specials = [token.content for token in self.backend.get_added_tokens_decoder().values() if token.special]
        if self.sep_id is not None or not specials:
            return self
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        before = backend.post_processor
        set_template(backend, BERT_PAIR, specials[0], specials[0])
        if before is not None:
            backend.post_processor = processors.Sequence([before, backend.post_processor])
        return Tokenizer(backend, {**self.config, "cls_token": specials[0], "sep_token": specials[0]})

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """Tokenize one text, or two, in full and with special tokens."""
        refuse_bad_text(text, "The text")
        if pair is not None:
            refuse_bad_text(pair, "The second text")
        with tokenizer_errors("The text cannot be encoded"):
            encoding = _encoding(self.backend.encode(text, pair))
        self._count(text if pair is None else f"{text}\n{pair}", encoding.ids, encoding.special.count(True))
        return encoding

    def encode_batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoding]:
        """Tokenize many texts like `encode`, on all cores."""
        return self._each(self.backend.encode_batch, _encoding, texts, pairs)

    def ids_batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[list[int]]:
        """Tokenize to ids alone, with special tokens: the fastest way."""
        return self._each(self.backend.encode_batch_fast, _ids, texts, pairs)

    def pieces_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize to ids alone, without special tokens: for preparing a corpus."""
        return self._each(self.backend.encode_batch_fast, _ids, texts, None, add_special_tokens=False)

    def encode_words(self, words: Sequence[str]) -> Encoding:
        """Tokenize pre-split words. `words` counts them, offsets are within each word.

        A word of only invisible characters has no piece at all.
        """
        refuse_bad_rows(words, "Word")
        # A byte-level piece that begins a word starts with 'Ġ', so words after the first get their space back.
        spaced = self._is_byte_level and not self._has_prefix_space
        spaced_words = [" " + word if spaced and number else word for number, word in enumerate(words)]
        with tokenizer_errors("The words cannot be encoded"):
            raw = self.backend.encode(spaced_words, is_pretokenized=True)
        encoding = _encoding(raw)
        self._count(" ".join(words), encoding.ids, encoding.special.count(True))
        if not spaced:
            return encoding
        shifts = [int(word > 0) for word in encoding.words]
        offsets = [(max(a - n, 0), max(b - n, 0)) for (a, b), n in zip(encoding.offsets, shifts)]
        return replace(encoding, offsets=offsets)

    def windows(self, text: str, pair: str | None = None, *, limit: int, overlap: int) -> list[Window]:
        """Tokenize a text in windows of at most `limit` tokens; see `windows_of`."""
        return self.windows_of(self.encode(text, pair), limit=limit, overlap=overlap)

    def windows_of(self, encoding: Encoding, *, limit: int, overlap: int, side: int = 1) -> list[Window]:
        """Windows over text `side` (0 or 1) of a pair, else over the only text; each token is owned by one of them."""
        return encodings.windows_of(encoding, limit=limit, overlap=overlap, side=side)

    def truncated(self, encoding: Encoding, limit: int, from_start: bool = False) -> tuple[Encoding, int]:
        """Truncate a tokenized text to `limit` tokens, the longer of a pair first; also returns how many went."""
        return encodings.truncated(encoding, limit, from_start)

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Decode ids to text, as closely as the pieces allow."""
        with tokenizer_errors("The ids cannot be decoded"):
            return self.backend.decode(list(ids), skip_special_tokens=not keep_special)

    def id_to_token(self, number: int) -> str | None:
        """The tokenizer's piece with this id, or None."""
        return self.backend.id_to_token(number) if 0 <= number < self.size else None

    def token_to_id(self, token: str) -> int | None:
        """The tokenizer's id of this piece, or None."""
        return self.backend.token_to_id(token)

    def save(self, folder: str | Path, max_tokens: int, segments: int = 2) -> None:
        """Write the files transformers.AutoTokenizer opens, with `max_tokens` as model_max_length.

        segments: how many the model has; below two, transformers passes none to it.
        """
        from bertkit.text.save import save

        save(self, Path(folder), max_tokens, segments)

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens a prompt takes at the beginning of a text, as sentence-transformers counts them."""
        ids = self.backend.encode(prompt).ids if prompt else []
        return len(ids) - (bool(ids) and ids[-1] in self.special_ids)

    def lowered(self) -> Tokenizer:
        """A tokenizer that lower-cases texts before its own rules apply; itself if these do so already."""
        if self.lower:
            return self
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        rules = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer is not None else [])]
        backend.normalizer = normalizers.Sequence(rules)
        return Tokenizer(backend, self.config | {"do_lower_case": True})

    def extended(self, new_tokens: Sequence[str]) -> Tokenizer:
        """A tokenizer with these words as whole pieces, numbered after the old ones."""
        from bertkit.text.vocabulary import extended

        return extended(self, new_tokens)

    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's canonical JSON: equal when all ids are equal by construction."""
        canonical = json.dumps(self.shape, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def shape(self) -> dict[str, Any]:
        """The content of the tokenizer's tokenizer.json."""
        return json.loads(self.backend.to_str())

    @cached_property
    def size(self) -> int:
        """How many rows an embedding table needs for this tokenizer: the largest id plus one."""
        return max(self.backend.get_vocab().values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokenizer's ids that represent no text, such as [CLS] and [MASK]."""
        added = self.backend.get_added_tokens_decoder()
        vocabulary = self.backend.get_vocab()
        named = {vocabulary[name] for name in self.roles.values()}
        return frozenset(named | {number for number, token in added.items() if token.special})

    @cached_property
    def continuation(self) -> list[bool]:
        """Per id of the tokenizer: whether the piece continues a word rather than begins one."""
        pieces = [self.backend.id_to_token(number) or "" for number in range(self.size)]
        if self.kind == "wordpiece":
            mark = self.shape["model"]["continuing_subword_prefix"]
            return [piece.startswith(mark) and n not in self.special_ids for n, piece in enumerate(pieces)]
        mark = "Ġ" if self._is_byte_level else "▁"
        return [bool(p) and not p.startswith(mark) and n not in self.special_ids for n, p in enumerate(pieces)]

    @cached_property
    def lower(self) -> bool | None:
        """Whether the tokenizer lower-cases text; None if the rules do something else."""
        return lowers(self.backend)

    @property
    def max_tokens(self) -> int | None:
        """The tokenizer's model_max_length of tokenizer_config.json, or None if missing or absurd."""
        length = self.config.get("model_max_length")
        if not isinstance(length, int | float) or not 0 < length <= LONGEST_SANE:
            return None
        return int(length)

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in json.dumps(self.shape["pre_tokenizer"])

    @cached_property
    def _has_prefix_space(self) -> bool:
        return '"add_prefix_space": true' in json.dumps(self.shape["pre_tokenizer"])

    def _each(
        self,
        encode: Callable[..., list[tokenizers.Encoding]],
        pick: Callable[[tokenizers.Encoding], Result],
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        **options: bool,
    ) -> list[Result]:
        """Encode texts or pairs with the tokenizers library and pick what is needed of each."""
        refuse_bad_rows(texts)
        inputs: list[Any] = list(texts)
        if pairs is not None:
            refuse_bad_rows(pairs, "Second text")
            if len(pairs) != len(texts):
                raise UserError(
                    f"There are {len(texts)} texts but {len(pairs)} second texts. Pass one second text per text."
                )
            inputs = list(zip(texts, pairs))
        added = (
            self.backend.num_special_tokens_to_add(pairs is not None) if options.get("add_special_tokens", True) else 0
        )
        results: list[Result] = []
        with tokenizer_errors("The texts cannot be encoded"):
            for start in range(0, len(inputs), AT_ONCE):
                results += map(pick, encode(inputs[start : start + AT_ONCE], **options))
        for number, result in enumerate(results):
            self._count(inputs[number], result.ids if isinstance(result, Encoding) else result, added)
        return results

    def _count(self, text: Any, ids: Any, added: int) -> None:
        """Count the tokenizer's unknown pieces; `added` of the ids are special tokens."""
        unknown = 0 if self.unk_id is None else ids.count(self.unk_id)
        self.unknown.add(text if isinstance(text, str) else "\n".join(text), unknown, len(ids) - added)


def _ids(raw: tokenizers.Encoding) -> list[int]:
    return raw.ids


def _encoding(raw: tokenizers.Encoding) -> Encoding:
    """A raw encoding of the tokenizers library as ours."""
    sides = [-1 if side is None else side for side in raw.sequence_ids]
    return Encoding(
        ids=raw.ids,
        segments=raw.type_ids,
        offsets=raw.offsets,
        special=[side < 0 for side in sides],
        sides=sides,
        words=_numbers(raw.word_ids),
    )


def _numbers(words: Iterable[int | None]) -> list[int]:
    return [-1 if word is None else word for word in words]
