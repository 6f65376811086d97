"""The page of `inspect`: tokens by weight, what the heads do, and every head's map."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report.format import clip, plain
from bertkit.report.html import Block, Facts, Figure, Section, Table, Text, page
from bertkit.report.svg import bar_plot
from bertkit.report.svg.axes import drawing, text_width, write
from bertkit.report.words import name_of, words

HABITS = ("layer", "head", "itself", "before", "after", "special", "spread")
DARK = (24, 74, 140)  # the colour of full attention; report.css turns it light on a dark page
MOST_NAMED = 24  # a map with more tokens shows numbers
SMALL = 11.0  # the letters beside a map


def explain_report(result: Mapping[str, Any], *, model: str, lang: str = "en") -> str:
    """The report page for a result of `explain`. Chart, table and maps number the tokens alike."""
    strings = words(lang)
    tokens, attention = result["tokens"], result["attention"]
    sections = [
        Section(strings["look_tokens"], _tokens(result, lang)),
        Section(strings["look_heads"], [_heads(result["heads"], lang)]),
        Section(strings["look_maps"], [Text(strings["look_maps_note"]), *_maps(attention, tokens, lang)]),
    ]
    facts = {
        strings["look_tokens"]: len(tokens),
        strings["look_layers"]: len(attention),
        strings["look_heads_each"]: len(attention[0]),
    }
    return page(strings["look_title"].format(model=model), sections, lang=lang, facts=facts)


def _tokens(result: Mapping[str, Any], lang: str) -> list[Block]:
    """The part of `inspect`'s page with the tokens by weight."""
    strings = words(lang)
    blocks: list[Block] = [Text(result["text"] + (f"\n\n{result['text_b']}" if result.get("text_b") else ""))]
    if result["said"]:
        prediction = result["said"]
        blocks.append(Facts({strings["label"]: prediction["label"], name_of("score", lang): prediction["score"]}))
    numbered = list(enumerate(result["tokens"], 1))
    ordinary = [(n, token) for n, token in numbered if not token["special"]]
    if result["said"]:
        ends = {name: plain(result["said"][name], 3) for name in ("baseline", "score")}
        caption = strings["look_importance_label"].format(**ends)
    else:
        caption = strings["look_importance_vector"]
    names = [f"{n}  {token['token']}" for n, token in ordinary]
    weights = [_rounded(token["importance"]) for _, token in ordinary]
    blocks.append(Figure(caption, bar_plot(names, weights, lang=lang)))
    rows = [[n, t["token"], _rounded(t["importance"]), _rounded(t["looked_at"])] for n, t in numbered]
    columns = [strings[key] for key in ("look_number", "look_token", "look_weight", "look_seen")]
    return [*blocks, Table(strings["look_table"], columns, rows, heat={3: (0.0, max(row[3] for row in rows))})]


def _heads(habits: Sequence[Mapping[str, Any]], lang: str) -> Table:
    """The part of `inspect`'s page with the habits of the heads."""
    strings = words(lang)
    rows = [[_rounded(habit[name], 2) for name in HABITS] for habit in habits]
    columns = [strings[f"look_{name}"] for name in HABITS]
    shares = dict.fromkeys(range(2, 6), (0.0, 1.0))
    return Table(strings["look_habits"], columns, rows, heat=shares, digits=2, row_names=False)


def _rounded(value: Any, places: int = 4) -> Any:
    """Numbers of `explain`'s page, rounded, so that a tiny one is shown as 0, not as 1e-44."""
    return round(value, places) if isinstance(value, float) else value


def _maps(attention: Any, tokens: Sequence[Mapping[str, Any]], lang: str) -> list[Block]:
    """The attention maps of a report: one figure per layer, with one drawing per head."""
    strings = words(lang)
    labels = _labels([token["token"] for token in tokens])
    blocks: list[Block] = []
    for number, layer in enumerate(attention, 1):
        drawings = [
            _map(head, labels, f"{strings['look_head']} {n}", strings["look_of_head"].format(layer=number, head=n))
            for n, head in enumerate(layer, 1)
        ]
        blocks.append(Figure(strings["look_of_layer"].format(layer=number), "".join(drawings), wide=True, is_grid=True))
    return blocks


def _labels(tokens: Sequence[str]) -> list[str]:
    """The labels of an attention map's rows and columns: the tokens or, if too many, some of their numbers."""
    if len(tokens) <= MOST_NAMED:
        return [clip(token, 10) for token in tokens]
    step = next(step for step in (5, 10, 20, 50, 100, 10**9) if len(tokens) / step <= 16)
    return [str(n) if n % step == 0 else "" for n in range(1, len(tokens) + 1)]


def _map(head: Any, labels: Sequence[str], name: str, title: str) -> str:
    """One head's attention map: a picture with its tokens at the left and above."""
    side = max(220.0, 14.0 * len(labels)) if len(labels) <= MOST_NAMED else 300.0
    cell = side / len(labels)
    widths = [text_width(label, SMALL) for label in labels]
    fits = [width <= max(cell - 3, 26.0 if len(labels) > MOST_NAMED else 0.0) for width in widths]
    left = 8 + max(widths)
    top = 24 + max([SMALL, *(width for width, is_flat in zip(widths, fits) if not is_flat)])
    parts = [write(left, 12, name, kind="strong")]
    for n, label in enumerate(labels):
        if not label:
            continue
        x, y = left + (n + 0.5) * cell, top + (n + 0.5) * cell
        parts.append(write(left - 5, y + SMALL * 0.36, label, "end", "small"))
        if fits[n]:
            parts.append(write(x, top - 5, label, "middle", "small"))
        else:
            turned = write(0, SMALL * 0.36, label, kind="small")
            parts.append(f'<g transform="translate({x:.1f} {top - 5:.1f}) rotate(-90)">{turned}</g>')
    place = f'x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}"'
    parts.append(
        f'<image class="map" {place} preserveAspectRatio="none" href="data:image/png;base64,{_png(head)}"/>'
        f'<rect class="edge" {place}/>'
    )
    return drawing(title, parts, top + side + 4, left + side + 4)


def _png(head: Any) -> str:
    """Attention weights as a picture, white for 0 and dark for 1, in base64."""
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
