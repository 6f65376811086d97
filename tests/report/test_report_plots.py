"""Drawings stay inside their frame, whatever they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections import namedtuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertkit.report import svg as plots
from bertkit.report.svg import Dot
from bertkit.report.svg.axes import LETTER, WIDTH, log_ticks, round_ticks, span, text_width, tick_labels
from bertkit.report.svg.lines import running_mean, thinned

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**9), 10**9),
    st.none(),
    st.just("NaN"),
)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def check_stays_inside(svg: str) -> ET.Element:
    """Every dot, bar and point of a line is a finite place within the drawing."""
    root = parsed(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert root[0].tag == "title" and root.attrib["role"] == "img"
    for element in root.iter():
        for name, limit in (("cx", width), ("cy", height), ("x1", width), ("y2", height)):
            if name in element.attrib:
                assert -0.6 <= float(element.attrib[name]) <= limit + 0.6
        for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?|nan|inf", element.attrib.get("d", "")):
            assert -0.6 <= float(number) <= max(width, height) + 0.6
    return root


def said(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


@given(st.lists(NUMBERS, max_size=30), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_line_plot_draws_any_numbers(ys: list, log_y: bool, smooth: bool) -> None:
    series = {"a": (list(range(len(ys))), ys), "b": (ys, ys)}
    check_stays_inside(plots.line_plot(series, x_label="x", y_label="y", log_y=log_y, smooth=smooth))


@given(st.lists(NUMBERS, max_size=30))
@settings(max_examples=60, deadline=None)
def test_bars_histograms_and_grids_draw_any_numbers(values: list) -> None:
    check_stays_inside(plots.bar_plot([str(v) for v in values], values, [(v, v) for v in values]))
    check_stays_inside(plots.histogram(values, x_label="x"))
    check_stays_inside(plots.heat_map([values, values[:2]], ["a", "b"], [str(v) for v in values]))


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=25), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_scatter_plot_draws_any_numbers(places: list, log_x: bool) -> None:
    dots = [Dot(x, y, f"point {n}", low, y) for n, (x, y, low) in enumerate(places)]
    check_stays_inside(plots.scatter_plot(dots, x_label="x", y_label="y", log_x=log_x))


@pytest.mark.parametrize("lang, words", [("en", "Nothing to show"), ("zh", "没有可显示的数据")])
def test_a_plot_of_nothing_says_so(lang: str, words: str) -> None:
    empty = {"loss": ([], []), "other": ([1], [math.nan])}
    for svg in (
        plots.line_plot(empty, x_label="x", y_label="y", lang=lang),
        plots.bar_plot([], [], lang=lang),
        plots.heat_map([], [], [], lang=lang),
        plots.reliability_plot([], lang=lang),
        plots.coverage_plot([], lang=lang),
        plots.scatter_plot([], x_label="x", y_label="y", lang=lang),
        plots.histogram([], x_label="x", lang=lang),
    ):
        assert words in said(check_stays_inside(svg))


def test_one_point_is_a_dot() -> None:
    root = check_stays_inside(plots.line_plot({"a": ([5], [2.0])}, x_label="x", y_label="y"))
    assert len(list(root.iter("circle"))) == 1


def test_a_constant_curve_is_a_level_line_inside_the_frame() -> None:
    root = check_stays_inside(plots.line_plot({"a": (range(50), [3.0] * 50)}, x_label="x", y_label="y"))
    (path,) = root.iter("path")
    heights = {point.split()[1] for point in path.attrib["d"][1:].split("L")}
    assert len(heights) == 1


def test_values_that_are_not_numbers_are_skipped() -> None:
    ys = [1.0, math.nan, 2.0, math.inf, None, "NaN", 3.0]
    root = check_stays_inside(plots.line_plot({"a": (range(7), ys)}, x_label="x", y_label="y"))
    assert len(list(root.iter("circle"))) == 3


def test_a_log_axis_skips_what_it_cannot_show() -> None:
    root = check_stays_inside(plots.line_plot({"a": ([1, 2, 3], [0, -5, 10])}, x_label="x", y_label="y", log_y=True))
    assert len(list(root.iter("circle"))) == 1


def test_a_hundred_thousand_points_are_thinned_and_the_spike_stays() -> None:
    ys = [1.0 + 0.1 * math.sin(n / 7) for n in range(100_000)]
    ys[51_234] = 99.0
    points = list(zip(range(100_000), ys))
    few = thinned(points)
    assert len(few) < 1500 and (51_234, 99.0) in few and few[0] == points[0] and few[-1] == points[-1]
    assert len(plots.line_plot({"a": (range(100_000), ys)}, x_label="x", y_label="y", smooth=True)) < 60_000


def test_the_running_mean_starts_at_the_first_value_and_stays_within_the_curve() -> None:
    points = [(float(n), 10.0 / (1 + n)) for n in range(400)]
    mean = running_mean(points)
    assert mean[0][1] == pytest.approx(10.0)
    assert all(points[-1][1] - 1e-9 <= y <= 10.0 + 1e-9 for _, y in mean)
    straight = [(float(n), 3.0 - n / 100) for n in range(300)]
    assert [y for _, y in running_mean(straight)] == pytest.approx([y for _, y in straight])


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, wide: float) -> None:
    assume(abs(low) < 1e5 * wide)
    ticks = round_ticks(low, low + wide)
    assert 0 < len(ticks) <= 7
    assert all(low - wide * 1e-6 <= tick <= low + wide * 1.000001 for tick in ticks)
    if len(ticks) > 2:
        step = f"{ticks[1] - ticks[0]:.3e}"
        assert step[0] in "125" and step[2:5] in {"000", "500"}


@given(st.floats(1e-12, 1e9), st.floats(1.01, 1e12))
def test_log_ticks_are_few_and_inside(low: float, times: float) -> None:
    ticks = log_ticks(low, low * times)
    assert 1 <= len(ticks) <= 7 and all(low * 0.99 <= tick <= low * times * 1.01 for tick in ticks)


@pytest.mark.parametrize(
    "ticks, labels",
    [
        ([0.0, 0.25, 0.5], ["0.00", "0.25", "0.50"]),
        ([0, 500, 1000], ["0", "500", "1,000"]),
        ([0, 5e6, 1e7], ["0", "5M", "10M"]),
        ([0, 2e-5, 4e-5], ["0", "2e-5", "4e-5"]),
        ([0.1, 1.0, 10.0], ["0.1", "1", "10"]),
    ],
)
def test_tick_labels_are_short(ticks: list[float], labels: list[str]) -> None:
    assert tick_labels(ticks) == labels


@given(st.lists(st.floats(-1e12, 1e12), max_size=20))
def test_a_span_holds_every_value_and_is_never_empty(values: list[float]) -> None:
    low, high = span(values)
    air = 1e-6 * (high - low)
    assert low < high and all(low - air <= value <= high + air for value in values)


def _boxes(root: ET.Element) -> list[tuple[float, float, float, float, str]]:
    boxes = []
    for element in root.iter("text"):
        if element.attrib.get("class") == "strong":
            wide, x, y = text_width(element.text or ""), float(element.attrib["x"]), float(element.attrib["y"]) - 4.5
            left = x - {"end": wide, "middle": wide / 2}.get(element.attrib.get("text-anchor", "start"), 0.0)
            boxes.append((left, y - LETTER * 0.5, left + wide, y + LETTER * 0.5, element.text or ""))
    return boxes


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 40.0])
def test_names_in_a_scatter_plot_do_not_overlap(spread: float, wide: bool) -> None:
    names = [
        "majority",
        "naive Bayes",
        "TF-IDF + 逻辑回归",
        "word2vec",
        "GloVe",
        "BiLSTM",
        "ELMo",
        "ULMFiT",
        "GPT",
        "BERT",
    ]
    dots = [Dot(1 + spread * (n * 7 % 10), 0.8 + n * 0.01 * min(1, spread), name) for n, name in enumerate(names)]
    root = check_stays_inside(plots.scatter_plot(dots, x_label="x", y_label="y", wide=wide))
    boxes = _boxes(root)
    assert {box[4] for box in boxes} == set(names)
    for n, a in enumerate(boxes):
        assert a[0] >= 0 and a[2] <= (720 if wide else WIDTH) + 0.6
        for b in boxes[n + 1 :]:
            apart = a[2] <= b[0] + 0.2 or b[2] <= a[0] + 0.2 or a[3] <= b[1] + 0.2 or b[3] <= a[1] + 0.2
            assert apart, (a, b)


def test_the_front_holds_those_that_none_beats_on_both_sides() -> None:
    dots = [
        Dot(1, 0.5, "cheap"),
        Dot(2, 0.4, "worse"),
        Dot(3, 0.7, "good"),
        Dot(3, 0.6, "beaten"),
        Dot(None, 0.9, "no cost"),
    ]
    assert [d.label for d in plots.pareto_front(dots)] == ["cheap", "good"]


def test_a_dot_far_below_stands_at_the_foot_with_its_value() -> None:
    dots = [Dot(n + 1, 0.90 + n / 100, f"model {n}") for n in range(4)] + [Dot(0.1, 0.2, "majority")]
    words = said(check_stays_inside(plots.scatter_plot(dots, x_label="x", y_label="y")))
    assert "majority ↓ 0.200" in words and "0.90" in words


def test_a_confusion_grid_shows_every_count_and_its_names() -> None:
    words = said(check_stays_inside(plots.heat_map([[50, 3], [7, 1140]], ["ham", "spam"], ["ham", "spam"])))
    assert {"50", "3", "7", "1,140"} <= set(words) and words.count("spam") == 2


def test_a_grid_of_a_hundred_labels_draws_forty_and_counts_the_others() -> None:
    names = [f"label {n}" for n in range(100)]
    root = check_stays_inside(plots.heat_map([[1] * 100] * 100, names, names))
    assert len(list(root.iter("rect"))) == 1600 and "and 60 more, not shown" in said(root)


def test_more_than_forty_bars_are_counted() -> None:
    assert "and 5 more, not shown" in said(parsed(plots.bar_plot([str(n) for n in range(45)], range(45))))


def test_a_bar_is_as_long_as_its_value() -> None:
    root = parsed(plots.bar_plot(["a", "b"], [1.0, 0.25]))
    first, second = (float(bar.attrib["width"]) for bar in root.iter("rect"))
    assert first == pytest.approx(4 * second, rel=0.01)


def test_a_bar_below_zero_reaches_to_the_other_side_and_keeps_its_sign() -> None:
    root = check_stays_inside(plots.bar_plot(["up", "down"], [0.4, -0.2]))
    up, down = root.iter("rect")
    zero = float(up.attrib["x"])
    assert float(down.attrib["x"]) + float(down.attrib["width"]) == pytest.approx(zero, abs=0.2)
    assert float(up.attrib["width"]) == pytest.approx(2 * float(down.attrib["width"]), rel=0.01)
    assert up.attrib["class"] != down.attrib["class"] and "-0.200" in said(root)


def test_a_histogram_counts_every_value_once() -> None:
    root = parsed(plots.histogram([1, 1, 2, 8, 8, 8, 20], x_label="x"))
    told = [re.search(r": (\d+)$", bar[0].text or "") for bar in root.iter("rect")]
    assert sum(int(match.group(1)) for match in told if match) == 7


def test_bins_may_be_dicts_or_named_tuples() -> None:
    Bin = namedtuple("Bin", "low high rows confidence accuracy")
    Point = namedtuple("Point", "threshold coverage accuracy")
    one, two = Bin(0.4, 0.5, 10, 0.45, 0.5), {"confidence": 0.45, "accuracy": 0.5, "count": 10}
    assert plots.reliability_plot([one]) == plots.reliability_plot([two])
    assert plots.coverage_plot([Point(0.9, 0.5, 0.99)]) == plots.coverage_plot([{"coverage": 0.5, "accuracy": 0.99}])
