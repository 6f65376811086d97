"""BERT's tokenization in plain Python, slow and readable: a judge for the fast one."""

import unicodedata

CJK = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
CJK += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def words_of(text: str, lower: bool) -> list[str]:
    """Clean, set Chinese characters apart, lower and strip accents, split at punctuation."""
    cleaned = []
    for char in text:
        kind = unicodedata.category(char)
        if char in "\t\n\r" or kind == "Zs":
            cleaned.append(" ")
        elif char == "\ufffd" or kind.startswith("C"):
            continue
        elif any(first <= ord(char) <= last for first, last in CJK):
            cleaned.append(f" {char} ")
        else:
            cleaned.append(char)
    words = []
    for word in "".join(cleaned).split():
        if lower:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        words += split_at_punctuation(word)
    return words


def split_at_punctuation(word: str) -> list[str]:
    parts, fresh = [], True
    for char in word:
        is_symbol = char.isascii() and not char.isalnum() and char.isprintable() and char != " "
        if is_symbol or unicodedata.category(char).startswith("P"):
            parts.append(char)
            fresh = True
        elif fresh:
            parts.append(char)
            fresh = False
        else:
            parts[-1] += char
    return parts


def pieces_of(word: str, vocabulary: dict[str, int]) -> list[str]:
    """The longest piece first, again and again; [UNK] when that fails or the word is over 100 characters."""
    pieces, start = [], 0
    while start < len(word) <= 100:
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces if word and len(word) <= 100 else ["[UNK]"]


def plain_ids(text: str, vocabulary: dict[str, int], lower: bool) -> list[int]:
    """Ids without special tokens. The text must not spell out special tokens."""
    return [vocabulary[piece] for word in words_of(text, lower) for piece in pieces_of(word, vocabulary)]
