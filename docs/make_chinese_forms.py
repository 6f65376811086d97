"""Make bertkit/text/chinese_forms.bin, the table by which Chinese text forms are read as simplified ones.

    pip install opencc-python-reimplemented sentencepiece
    python docs/make_chinese_forms.py

Traditional characters come from OpenCC's table (Apache-2.0); compatibility forms (full-width letters and digits,
circled numbers, squared units, radicals …) from Unicode's NFKC. Punctuation stays as it is: Chinese vocabularies have
pieces for it.
"""

from __future__ import annotations

import tempfile
import unicodedata
from pathlib import Path

import opencc
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

OUT = Path(__file__).parents[1] / "bertkit" / "text" / "chinese_forms.bin"
FULL_WIDTH = range(0xFF00, 0xFFF0)


def table() -> dict[str, str]:
    """Character → what it is read as."""
    characters = Path(opencc.__file__).parent / "dictionary" / "TSCharacters.txt"
    pairs = (line.split("\t") for line in characters.read_text("utf-8").splitlines())
    simplified = {old: new.split()[0] for old, new in pairs}
    forms = {}
    for code in range(0x80, 0x110000):
        char = chr(code)
        kind = unicodedata.category(char)
        if kind[0] in "PZ" or kind in ("Cn", "Co", "Cs", "Mn") or char in "～｜＋＝＜＞＾｀":
            continue
        # Only compatibility forms: a letter with an accent stays one, ½ does not become three characters with a slash.
        plain = unicodedata.normalize("NFKC", char) if "<" in unicodedata.decomposition(char) else char
        if code not in FULL_WIDTH and any(unicodedata.category(c)[0] in "PZM" or c == "⁄" for c in plain):
            plain = char
        form = "".join(simplified.get(c, c) for c in plain)
        if form != char:
            forms[char] = form
    return forms


def main() -> None:
    """Write the table as the character map that tokenizers' Precompiled normalizer reads."""
    rules = [f"{ord(old):X}\t{' '.join(f'{ord(c):X}' for c in new)}" for old, new in table().items()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.tsv").write_text("\n".join(rules) + "\n", "utf-8")
        (Path(folder) / "text.txt").write_text("abc def ghi jkl\n" * 50, "utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/text.txt", model_prefix=f"{folder}/made", vocab_size=40, hard_vocab_limit=False,
            normalization_rule_tsv=f"{folder}/rules.tsv", minloglevel=2,
        )  # fmt: skip
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((Path(folder) / "made.model").read_bytes())
    OUT.write_bytes(model.normalizer_spec.precompiled_charsmap)
    print(f"{OUT.name}: {len(rules):,} forms, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
