"""What a notebook shows of results, and that they are still the lists and dicts they were."""

from __future__ import annotations

import json
from pathlib import Path

import bertkit
from bertkit.inference import Answers, Guesses, Report, WordUses
from bertkit.report.svg import bar_plot

LABELS = [
    {"label": "spam", "score": 0.9, "scores": {"spam": 0.9, "<b>ham</b>": 0.1}, "tokens": 3, "cut": 0},
    {"label": "<b>ham</b>", "score": 0.8, "scores": {"spam": 0.2, "<b>ham</b>": 0.8}, "tokens": 3, "cut": 0},
]


def test_answers_are_a_list_that_shows_itself_as_a_table() -> None:
    answers = Answers(LABELS)
    assert answers == LABELS and json.loads(json.dumps(answers)) == LABELS
    shown = answers._repr_html_()
    assert shown.count("<tr>") == 3 and "0.90 spam" in shown
    assert "<b>" not in shown and "&lt;b&gt;ham" in shown  # a label is text, never markup
    assert "cut" not in shown  # it says nothing where nothing was cut
    assert "cut" in Answers([LABELS[0] | {"cut": 7}])._repr_html_()


def test_tags_answers_and_many_rows_are_shown_too() -> None:
    tagged = Answers([{"tokens": ["Ada"], "tags": ["B-PER"], "entities": [{"text": "Ada", "label": "PER"}]}])
    assert "<mark>Ada <small>PER</small></mark>" in tagged._repr_html_()
    assert "42" in Answers([{"answer": "42", "start": 0, "end": 2, "score": 0.5}])._repr_html_()
    many = Answers([{"value": 0.5}] * 1000)._repr_html_()
    assert many.count("<tr>") == 61 and "940" in many
    assert Answers([])._repr_html_()


def test_choices_are_shown_with_the_score_of_each() -> None:
    html = Answers([{"choice": 1, "scores": [0.25, 0.75], "tokens": 9, "cut": 0}])._repr_html_()
    assert html.index("0.75 1") < html.index("0.25 0")


def test_a_word_in_several_texts_is_shown_with_its_cosines_by_layer() -> None:
    layers = [{"layer": n, "cosines": [[1.0, 0.5 + 0.1 * n], [0.5 + 0.1 * n, 1.0]]} for n in range(2)]
    uses = WordUses(
        word="bank", texts=["A <b>bank</b>.", "The bank."], spans=[[5, 9], [4, 8]],
        models=[{"model": "en", "kind": "bert", "units": [], "layers": layers}],
    )  # fmt: skip
    html = uses._repr_html_()
    assert "&lt;b&gt;<b>bank</b>&lt;/b&gt;" in html and "1–2" in html and ">0.50<" in html and ">0.60<" in html


def test_guesses_have_a_column_per_mask() -> None:
    guess = {"token": "door", "score": 0.74, "id": 5, "text": "the door"}
    shown = Guesses([[guess], [guess]])._repr_html_()
    assert "[MASK] 1" in shown and "[MASK] 2" in shown and shown.count("0.74 door") == 2


def test_a_report_is_a_dict_that_shows_its_page_without_scripts() -> None:
    report = Report({"a": 1}, lambda: '<p title="x">page</p>')
    assert report == {"a": 1} and json.dumps(report) == '{"a": 1}'
    assert 'srcdoc="&lt;p title=&quot;x&quot;&gt;page&lt;/p&gt;"' in report._repr_html_()
    assert "sandbox" in report._repr_html_()


def test_a_drawing_is_text_and_stands_alone_in_a_notebook() -> None:
    drawing = bar_plot(["a", "b"], [1.0, 2.0])
    assert isinstance(drawing, str) and drawing.startswith("<svg")
    alone = drawing._repr_html_()
    assert "xmlns=" in alone and "<style>" in alone and "var(--" not in alone


def test_the_embedded_model_shows_guesses_attention_and_what_it_is(tmp_path: Path) -> None:
    model = bertkit.load("en")
    assert "[MASK] 1" in model.fill("The [MASK] is open.")._repr_html_()
    seen = bertkit.inspect(model="en", text="The door is open.", out=tmp_path / "page.html")
    assert "attention" in seen and "iframe" in seen._repr_html_()
    assert "7.2M parameters" in repr(model)


def test_repr_says_what_an_ancestor_is(tmp_path: Path) -> None:
    from bertkit.ancestors.ngram.model import NgramModel, NgramSettings

    model = NgramModel(NgramSettings(order=2, min_count=1)).fit(["a b c", "a b d"])
    assert repr(model).startswith("<bertkit 2-gram model: ") and "n-grams" in repr(model)
