"""Lines to tokenize: English, Chinese, mixed scripts, emoji, combining marks, control characters, right-to-left."""

import lzma
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
VOCABS = SHARED / "vocabs"

PROSE = """the river ran past our old mill and nobody minded that it was slow in summer because children could swim
there while grandmothers watched from painted benches talking about weather bread engines trains letters and the
unbelievably long winters they remembered Tomorrow Katherine O'Neill will re-open her café in New York's 3rd district
for $12.50 a plate she's sure it isn't too expensive running runner runs quickly quicker happiness unhappy"""
ENGLISH = PROSE.split()
CHINESE = "今天天气很好我们去公园散步看见许多孩子在湖边放风筝老人坐在树下下棋聊天晚上一起吃饭喝茶读书学习中文和英语"
STRANGE = [
    "é", "e\u0301", "ñ", "n\u0303o", "Å", "ﬁ", "½", "①", "ß", "İ", "ı", "Σίσυφος", "Ǆ",
    "Привет", "Ёлка", "שלום", "مرحبا", "ُ", "हिन्दी", "ไทย", "한국어", "カタカナ", "ひらがな", "🙂",
    "👩‍👩‍👧", "🇨🇳", "❤️", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x01", "\x7f", "\x85",
    "\u2028", "\u3000", "\xa0", "\t", "\ufffd", "𠀀", "㐀", "豈", "𝔘𝔫𝔦", "…", "“", "”", "’", "—",
    "``", "''", "[MASK]", "[mask]", "[UNK]", "##ing", "<s>", "Ġ", "▁", "x" * 101, "1,234.5",
    "1999,", "U.S.A.", "a\u0300\u0316\u0317b", "\U000e0001",
]  # fmt: skip


def written_lines(count: int, seed: int = 0) -> list[str]:
    """`count` lines of all sorts, the same for the same seed."""
    chance = random.Random(seed)
    return [_line(chance) for _ in range(count)]


def _line(chance: random.Random) -> str:
    parts = []
    for _ in range(chance.randint(0, 14)):
        sort = chance.random()
        if sort < 0.45:
            parts.append(chance.choice(ENGLISH))
        elif sort < 0.7:
            at = chance.randrange(len(CHINESE))
            parts.append(CHINESE[at : at + chance.randint(1, 9)])
        elif sort < 0.95:
            parts.append(chance.choice(STRANGE))
        else:
            parts.append("".join(chr(_code(chance)) for _ in range(chance.randint(1, 4))))
    return chance.choice(["", " ", " ", ", "]).join(parts)


def _code(chance: random.Random) -> int:
    code = chance.choice([chance.randint(1, 0x2FF), chance.randint(1, 0xFFFF), chance.randint(1, 0x10FFFF)])
    return code if not 0xD800 <= code <= 0xDFFF else 0x20


def corpus_lines(name: str, count: int) -> Iterator[str]:
    """The first `count` lines with something in them of a shared corpus file."""
    with lzma.open(SHARED / "corpus" / name, "rt", encoding="utf-8") as lines:
        yield from islice((line.rstrip("\n") for line in lines if line.strip()), count)
