"""A report is made from other people's texts, labels and file names: none of them may become part of the page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.report import svg as plots
from bertkit.report.comparison import comparison_report
from bertkit.report.explain import explain_report
from bertkit.report.finetuning import finetuning_report
from bertkit.report.html import POLICY, Code, Facts, Figure, Good, Section, Table, Text, Warning_, page
from bertkit.report.pretraining import pretraining_report
from tests.support.hostile_reports import HOSTILE, RUN, Reader, with_texts
from tests.support.made_up_results import comparison_result, finetuning_result, pretraining_run
from tests.support.made_up_tasks import inspection

ELEMENTS = set(
    re.findall(
        r"\w+",
        """html head meta title style body header main footer nav ul li a section h1 h2 p dl dt dd div b figure
        figcaption svg g path line circle rect text table caption span thead tbody tr th td small pre""",
    )
)
ATTRIBUTES = set(
    re.findall(
        r"[\w-]+",
        """lang charset http-equiv content name class id href aria-label tabindex role scope viewbox x y x1 y1 x2 y2
        cx cy r rx width height d transform text-anchor fill-opacity""",
    )
)
PLAIN = re.compile(r"[A-Za-z0-9 .,;:#'=()%/_\u4e00-\u9fff-]*")


def check_is_inert(html: str) -> Reader:
    """Only our elements and attributes, no value that data could have made, no address but our own sections."""
    found = Reader(html)
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    assert not found.oddities and not found.unbalanced and not found.open
    for tag, attributes in found.elements:
        assert set(attributes) <= ATTRIBUTES, (tag, attributes)
        for name, value in attributes.items():
            assert PLAIN.fullmatch(value or ""), (tag, name, value)
            assert "owned" not in (value or "") and "evil" not in (value or ""), (tag, name, value)
        if "href" in attributes:
            assert re.fullmatch(r"#s\d+", attributes["href"] or "")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert html.count("<style>") == 1 and "://" not in style
    html.encode("utf-8")
    return found


def everywhere(text: str, lang: str = "en", sections: int = 3) -> str:
    """A page with `text` in every place that takes one."""
    curve = {text: ([1, 2], [1, 2]), text + "2": ([1, 2], [2, 1])}
    row = {"confidence": 0.5, "accuracy": 0.5, "count": 1}
    drawn = [
        plots.line_plot(curve, x_label=text, y_label=text, marks={text: 1.5}, levels={text: 1.5}),
        plots.bar_plot([text], [1.0], [(0.5, 1.5)]),
        plots.heat_map([[1, 2], [3, 4]], [text, text], [text, text], row_label=text, column_label=text),
        plots.reliability_plot([row], before=[row], lang=lang),
        plots.coverage_plot(
            [{"coverage": 0.5, "accuracy": 0.9}], chosen={"threshold": text, "coverage": 0.5, "accuracy": 0.9}
        ),
        plots.scatter_plot([plots.Dot(1, 1, text), plots.Dot(2, 0.5, text, 0.4, 0.6)], x_label=text, y_label=text),
        plots.histogram([1, 2, 3], x_label=text, y_label=text, marks={text: 2}),
    ]
    body = [Text(text), Table(text, [text], [[text], [[text, text]]]), Table(text, [text], [[text]], row_names=False)]
    body += [Facts({text: text}), Warning_(text), Good(text), Code(text), *(Figure(text, svg) for svg in drawn)]
    return page(text, [Section(text, body)] * sections, lang=lang, subtitle=text, facts={text: text})


def test_there_are_two_hundred_hostile_strings() -> None:
    assert len(set(HOSTILE)) >= 200


def test_a_page_that_does_not_escape_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_is_inert(everywhere("harmless").replace("harmless", HOSTILE[0]))


@pytest.mark.parametrize("lang, texts, sections", [("en", HOSTILE, 1), ("zh", HOSTILE[::7], 3)])
def test_no_hostile_string_becomes_markup_wherever_it_stands(lang: str, texts: list[str], sections: int) -> None:
    harmless = Reader(everywhere("harmless", lang, sections))
    counted = ("a", "b", "p", "section", "table", "td", "th", "figure", "svg", "pre", "dd", "meta", "style")
    for text in texts:
        found = check_is_inert(everywhere(text, lang, sections))
        assert [found.count(tag) for tag in counted] == [harmless.count(tag) for tag in counted], text


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_any_text_at_all_is_inert(text: str) -> None:
    check_is_inert(everywhere(text))


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_the_three_reports_are_inert_with_hostile_texts_labels_and_names(start: int) -> None:
    texts = HOSTILE[start:] + HOSTILE[:start]
    run, rows = pretraining_run(200)
    fine, compared = with_texts(finetuning_result(), texts), with_texts(comparison_result(), texts)
    assert isinstance(fine, dict) and isinstance(compared, dict)
    fine["baselines"] = {text: {"macro_f1": 0.5} for text in texts[:4]}
    fine["data"]["labels"] = {"train": dict.fromkeys(texts[:60], 3), texts[0]: {texts[1]: 4}}
    fine["metrics"][texts[2]] = 0.5
    fine["environment"][texts[3]] = {texts[4]: texts[5]}
    fine["errors"][0][texts[6]] = texts[7]
    compared["curve"] = {text: [(1, 0.5), (2, 0.6)] for text in texts[:3]}
    hostile_run = with_texts(run, texts)
    assert isinstance(hostile_run, dict)
    hostile_rows = [{**row, texts[0]: 1.0 + n, texts[1] + "_loss": 2.0} for n, row in enumerate(rows)]
    for lang in ("en", "zh"):
        check_is_inert(finetuning_report(fine, lang=lang))
        check_is_inert(comparison_report(compared, lang=lang))
        check_is_inert(pretraining_report(hostile_run, hostile_rows, lang=lang))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_of_inspect_is_inert_with_hostile_tokens_and_texts(lang: str) -> None:
    harmless = Reader(explain_report(inspection(), model="m", lang=lang))
    for start in range(0, len(HOSTILE), 12):
        found = inspection()
        for n, token in enumerate(found["tokens"]):
            token["token"] = HOSTILE[(start + n) % len(HOSTILE)]
        found |= {"text": HOSTILE[start], "said": {"label": HOSTILE[start + 1], "score": 0.5, "baseline": 0.1}}
        read = Reader(explain_report(found, model=HOSTILE[start + 2], lang=lang))
        assert not read.oddities and not read.unbalanced and not read.open
        # A long name is turned and takes the whole width: a group more, or a box less.
        same = [[tag for tag, _ in each.elements if tag not in ("g", "div")] for each in (read, harmless)]
        assert same[0] == same[1]
        for tag, attributes in read.elements:
            assert tag in ELEMENTS | {"image"} and set(attributes) <= ATTRIBUTES | {"preserveaspectratio"}
            assert re.fullmatch(r"#s\d+|data:image/png;base64,[A-Za-z0-9+/=]+", attributes.get("href") or "#s1")
            assert not any("owned" in (value or "") for value in attributes.values())


def test_a_hostile_text_is_still_readable_as_text() -> None:
    for text in ("<script>alert(1)</script>", "a & b", "&lt;", "\"quoted\" 'twice'"):
        assert text in Reader(page("t", [Section("s", [Text(text)])], facts={})).text


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
@pytest.mark.slow
def test_a_browser_runs_none_of_two_hundred_scripts(tmp_path: Path) -> None:
    """Without our policy, so that the escaping alone is judged; and once with a page that must be owned."""
    pages = "".join(everywhere(text, sections=1) for text in HOSTILE)
    unguarded = re.sub(r"<meta http-equiv=[^>]*>", "", pages)
    assert POLICY in pages and POLICY not in unguarded
    assert 'data-owned="1"' not in _opened(tmp_path, unguarded)
    for control in (f"<script>{RUN}</script>", f'<img src=x onerror="{RUN}">'):
        assert 'data-owned="1"' in _opened(tmp_path, f"<!doctype html><html><body>{control}</body></html>")


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
@pytest.mark.slow
def test_the_policy_alone_stops_a_script_in_a_browser(tmp_path: Path) -> None:
    owned = page("t", [Section("s", [Text("here")])], facts={}).replace("here", f"<script>{RUN}</script>")
    assert 'data-owned="1"' not in _opened(tmp_path, owned)


def _opened(folder: Path, html: str) -> str:
    """The page after a browser has opened it."""
    (folder / "page.html").write_text(html, encoding="utf-8")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-sync", "--disable-component-update"]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", *quiet]
    command = ["chromium", *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (folder / "page.html").as_uri()], capture_output=True, timeout=600, check=True, encoding="utf-8"
    )
    assert "<html" in done.stdout
    return done.stdout.split("<head", 1)[0]
