"""Special tokens: their roles, their usual names, and where they go around the text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

ROLES = ("unk", "cls", "sep", "pad", "mask")

# A role that no file assigns goes to the first of these that is a special token of the vocabulary.
USUAL_NAMES = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}

# {cls} and {sep} around $A and $B; the number is the segment.
BERT_PAIR = "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"
ROBERTA_PAIR = "{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0"


def add_specials(backend: tokenizers.Tokenizer, names: Iterable[str], *, eats_space: Iterable[str] = ()) -> None:
    """Mark these tokens as special. Those in `eats_space` absorb the space before them."""
    eaters = set(eats_space)
    backend.add_special_tokens([AddedToken(n, lstrip=n in eaters, normalized=False, special=True) for n in names])


def set_template(backend: tokenizers.Tokenizer, pair: str, cls: str, sep: str) -> None:
    """Set the template of special tokens: `cls` and `sep` around one text and around two, as `pair` says."""
    single = pair[: pair.index("{sep}:0") + len("{sep}:0")]
    backend.post_processor = processors.TemplateProcessing(
        single=single.format(cls=cls, sep=sep),
        pair=pair.format(cls=cls, sep=sep),
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )


def set_roberta_template(backend: tokenizers.Tokenizer, add_prefix_space: bool) -> None:
    """RoBERTa's template: <s> A </s>, and <s> A </s></s> B </s>, all of segment 0.

    Offsets leave the space before a word out.
    """
    number = backend.get_vocab()
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", number["</s>"]),
        ("<s>", number["<s>"]),
        trim_offsets=True,
        add_prefix_space=add_prefix_space,
    )


def roles_of(backend: tokenizers.Tokenizer, config: Mapping[str, Any], unknown: str | None) -> dict[str, str]:
    """Which special token has which role in the template: as named in `config`, else by its usual name."""
    specials = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    roles = {}
    for role in ROLES:
        configured = config.get(f"{role}_token")
        configured = configured.get("content") if isinstance(configured, dict) else configured
        usual = [name for name in USUAL_NAMES[role] if name in specials]
        is_known = isinstance(configured, str) and backend.token_to_id(configured) is not None
        name = configured if is_known else next(iter(usual), None)
        if role == "unk" and unknown is not None:
            name = unknown
        if name is not None:
            roles[role] = name
    return roles
