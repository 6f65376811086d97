"""The page of `inspect`: the same numbers everywhere, signs that show, and maps with names, also in the dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from bertkit.report.explain import MOST_NAMED, explain_report
from bertkit.report.html import FOLDER
from tests.support.made_up_tasks import inspection


def drawings(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, flags=re.S)]


def texts(drawing: ET.Element) -> list[str]:
    return [" ".join((element.text or "").split()) for element in drawing.iter("text")]


def rows_of_table(html: str, number: int) -> list[list[str]]:
    body = html.split("<tbody>")[number].split("</tbody>")[0]
    return [re.findall(r"<t[dh][^>]*>(?:<span.*?</span>)?(.*?)</t[dh]>", row) for row in body.split("</tr>")[:-1]]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_chart_and_table_number_the_tokens_alike(lang: str) -> None:
    found = inspection()
    html = explain_report(found, model="m", lang=lang)
    table = {f"{row[0]} {row[1]}" for row in rows_of_table(html.replace("&lt;", "<").replace("&gt;", ">"), 1)}
    chart = [text for text in texts(drawings(html)[0]) if re.match(r"\d+ \S", text)]
    assert len(chart) == sum(not token["special"] for token in found["tokens"]) and set(chart) <= table


def test_a_token_that_speaks_against_the_label_is_drawn_to_the_other_side() -> None:
    chart = drawings(explain_report(inspection(), model="m"))[0]
    bars = {(bar[0].text or "").split(":")[0].split()[-1]: bar for bar in chart.iter("rect")}
    assert float(bars["not"].attrib["x"]) < float(bars["par"].attrib["x"]) and "-0.220" in texts(chart)


def test_what_is_almost_nothing_is_zero() -> None:
    html = explain_report(inspection(), model="m")
    assert "e-44" not in html and "e-9" not in html
    first = rows_of_table(html, 2)[0]
    assert first == ["1", "1", "1.0", "0", "0.12", "0", "3.4"]


@pytest.mark.parametrize("size, named", [(11, "##cel"), (MOST_NAMED, "##cel"), (60, "55"), (256, "240")])
def test_a_map_names_its_rows_and_its_columns(size: int, named: str) -> None:
    maps = drawings(explain_report(inspection(size, 1, 3), model="m"))[1:]
    assert len(maps) == 3
    for number, drawing in enumerate(maps, 1):
        told = texts(drawing)
        assert f"Head {number}" in told and told.count(named) >= 2 and told.count(named) % 2 == 0
        assert drawing[0].text == f"Layer 1, head {number}" and len(list(drawing.iter("image"))) == 1
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for picture in drawing.iter("image"):
            assert float(picture.attrib["x"]) + float(picture.attrib["width"]) <= width
            assert float(picture.attrib["y"]) + float(picture.attrib["height"]) <= height


def test_maps_are_turned_light_on_a_dark_page() -> None:
    style = (FOLDER / "report.css").read_text("utf-8")
    dark = re.findall(r"@media screen and \(prefers-color-scheme:dark\) \{(.*?)\n\}", style, re.S)
    assert any(".plot .map" in rules and "invert(1)" in rules for rules in dark)


def test_the_caption_says_what_importance_is_of() -> None:
    labelled = explain_report(inspection(), model="m")
    assert "adds to the score, which is 0.310 for a text of [MASK] and 0.931 for this one" in labelled
    assert "vector turns" in explain_report(inspection(is_tuned=False), model="m")
