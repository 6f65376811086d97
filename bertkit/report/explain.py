"""The page of `inspect`: tokens by weight, what the heads do, and every head's map."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from bertkit.report.format import escape
from bertkit.report.html import Block, Facts, Figure, Section, Table, Text, page
from bertkit.report.svg import bar_plot
from bertkit.report.words import name_of, words

HABITS = ("layer", "head", "itself", "before", "after", "special", "spread")
DARK = (24, 74, 140)  # the colour of full attention


def explain_report(found: Mapping[str, Any], *, model: str, lang: str = "en") -> str:
    """The page of what `looking.look` found."""
    said = words(lang)
    tokens = found["tokens"]
    ordinary = [one for one in tokens if not one["special"]]
    first: list[Block] = [Text(found["text"] + (f"\n\n{found['text_b']}" if found.get("text_b") else ""))]
    if found["said"]:
        first.append(Facts({said["label"]: found["said"]["label"], name_of("score", lang): found["said"]["score"]}))
    weights = [max(0.0, one["importance"]) for one in ordinary]
    names = [f"{n}  {one['token']}" for n, one in enumerate(ordinary, 1)]
    first.append(Figure(said["look_importance"], bar_plot(names, weights, lang=lang)))
    rows = [[n, one["token"], one["importance"], one["looked_at"]] for n, one in enumerate(tokens, 1)]
    head = [said["look_number"], said["look_token"], said["look_weight"], said["look_seen"]]
    habits = [[habit[name] for name in HABITS] for habit in found["heads"]]
    shares = dict.fromkeys(range(2, 6), (0.0, 1.0))
    columns = [said[f"look_{name}"] for name in HABITS]
    maps: list[Block] = [Text(said["look_maps_note"])]
    pieces = [one["token"] for one in tokens]
    for number, layer in enumerate(found["attention"], 1):
        maps.append(Figure(said["look_of_layer"].format(layer=number), _maps(layer, pieces), wide=True))
    table = Table(said["look_table"], head, rows, heat={3: (0.0, max(row[3] for row in rows))})
    heads = Table(said["look_habits"], columns, habits, heat=shares, digits=2, row_names=False)
    return page(
        said["look_title"].format(model=model),
        [
            Section(said["look_tokens"], [*first, table]),
            Section(said["look_heads"], [heads]),
            Section(said["look_maps"], maps),
        ],
        lang=lang,
        facts={
            said["look_tokens"]: len(tokens), said["look_layers"]: len(found["attention"]),
            said["look_heads_each"]: len(found["attention"][0]),
        },
    )  # fmt: skip


def _maps(layer: Any, tokens: list[str]) -> str:
    """All heads of a layer side by side, each a picture with its number, and tokens down the left."""
    heads, size = len(layer), len(tokens)
    tall = max(100.0, min(310.0, 12.0 * size))
    left, gap = 78.0, 14.0
    across = max(1, min(heads, int((760 - left) // (tall + gap))))
    lines = -(-heads // across)
    parts = []
    for number, head in enumerate(layer):
        x, y = left + (number % across) * (tall + gap), 16 + (number // across) * (tall + 26)
        parts.append(f'<text x="{x:.0f}" y="{y - 4:.0f}">{number + 1}</text>')
        parts.append(
            f'<image x="{x:.0f}" y="{y:.0f}" width="{tall:.0f}" height="{tall:.0f}" preserveAspectRatio="none" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{_png(head)}"/>'
        )
        if number % across == 0 and tall / size >= 11:
            parts += [
                f'<text x="{left - 6:.0f}" y="{y + (n + 0.75) * tall / size:.1f}" text-anchor="end" font-size="8">'
                f"{escape(token[:14])}</text>"
                for n, token in enumerate(tokens)
            ]
    height = 16 + lines * (tall + 26)
    return (
        f'<svg class="plot" viewBox="0 0 760 {height:.0f}" role="img" font-size="10" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def _png(head: Any) -> str:
    """A square of shares as a picture: white where nothing is looked at, dark where all is. Base64."""
    rows = b""
    for row in head:
        rows += b"\0" + bytes(
            round(255 - (255 - tone) * min(1.0, max(0.0, float(share))) ** 0.5) for share in row for tone in DARK
        )
    size = len(head)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    packed = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(packed).decode()
