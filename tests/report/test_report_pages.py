"""What the pages and the three reports hold, in both languages."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from string import Formatter

import numpy as np
import pytest

from bertkit.errors import UserError
from bertkit.report import html as html_of_report
from bertkit.report.comparison import comparison_report, verdict
from bertkit.report.finetuning import FinetuneResult, finetuning_report
from bertkit.report.format import Between, duration, large, percent, plain, settings_text, shorten
from bertkit.report.html import Code, Facts, Good, Section, Table, Text, Warning_, page
from bertkit.report.pretraining import pretraining_report
from bertkit.report.svg import line_plot
from bertkit.report.words import name_of, tables
from tests.support.hostile_reports import Reader
from tests.support.made_up_results import LABELS, comparison_result, finetuning_result, pretraining_run
from tests.support.made_up_tasks import task_result

FOLDER = Path(html_of_report.__file__).parent


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def headings(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def spaced(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_both_languages_have_the_same_keys_and_the_same_blanks_to_fill() -> None:
    english, chinese = tables("en"), tables("zh")
    assert list(english) == list(chinese)
    for table, told in english.items():
        assert list(told) == list(chinese[table])
        for key, text in told.items():
            assert text and chinese[table][key]
            assert fields(text) == fields(chinese[table][key]), key


def test_every_row_task_and_role_is_named_in_both_languages() -> None:
    assert set(tables("en")["rows"]) >= {"train", "dev", "test", "held_out", "documents"}
    assert set(tables("en")["tasks"]) == {"classify", "pair", "regress", "tag", "answer", "choose", "embed"}
    assert set(tables("en")["roles"]) >= {"train", "dev", "test", "choose", "score"}


def test_every_word_is_used_somewhere() -> None:
    source = "".join(file.read_text("utf-8") for file in FOLDER.rglob("*.py"))
    templates = "".join(file.read_text("utf-8") for file in FOLDER.glob("templates/*.html"))
    made = {"cost_", "axis_", "front_", "look_"}
    unused = [
        key
        for key in tables("en")["text"]
        if not re.search(f"[\"']{key}[\"']", source)
        and not re.search(rf"words\.{key}\b", templates)
        and not any(key.startswith(m) for m in made)
    ]
    assert unused == []


def test_every_word_asked_for_is_there() -> None:
    source = "".join(file.read_text("utf-8") for file in FOLDER.rglob("*.py"))
    templates = "".join(file.read_text("utf-8") for file in FOLDER.glob("templates/*.html"))
    asked = re.findall(r"(?:said|strings|words\(lang\))\[\"(\w+)\"\]", source) + re.findall(r"words\.(\w+)", templates)
    assert len(asked) > 80 and set(asked) <= set(tables("en")["text"])


def test_templates_escape_all_but_our_own_policy_style_and_drawings() -> None:
    for file in FOLDER.glob("templates/*.html"):
        text = file.read_text("utf-8")
        assert set(re.findall(r"\{\{\s*([\w.]+)\s*\|\s*safe", text)) <= {"policy", "css", "each.svg"}
        assert text.count("safe") == len(re.findall(r"\|safe \}\}", text)) and "autoescape" not in text
    environment = html_of_report._template("page.html").environment
    assert environment.autoescape is True
    assert environment.from_string("{{ a }}").render(a="<b>\x00") == "&lt;b&gt;\N{SYMBOL FOR NULL}"


def test_no_markup_is_written_in_python_but_drawings() -> None:
    for file in FOLDER.glob("*.py"):
        code = re.sub(r'""".*?"""', "", file.read_text("utf-8"), flags=re.S)
        tags = set(re.findall(r"</?([a-z][a-z0-9]*)[ >/]", code))
        assert tags <= {"g", "image", "rect"}, file


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="en or zh"):
        page("t", [], lang="fr", facts={})


def test_a_page_is_one_file_with_a_strict_policy_and_one_heading() -> None:
    html = page("Title", [Section("One", [Text("a\n\nb")]), Section("Two", [])], subtitle="under", facts={"rows": "7"})
    found = Reader(html)
    assert html.startswith("<!doctype html>") and found.count("h1") == 1 and headings(html) == ["One"]
    policy = next(a["content"] for tag, a in found.elements if tag == "meta" and a.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert html.index("Content-Security-Policy") < html.index("<style>")
    assert "prefers-color-scheme:dark" in html and "@media print" in html and 'name="viewport"' in html
    assert found.count("p") == 3 and found.text.count("Title") == 2


def test_every_table_and_figure_has_a_caption_and_every_column_a_scope() -> None:
    for html in all_reports("en") + all_reports("zh"):
        found = Reader(html)
        assert found.count("table") == found.count("caption") and found.count("figure") == found.count("figcaption")
        assert found.count("svg") >= found.count("figure") > 0
        assert all("scope" in attributes for tag, attributes in found.elements if tag == "th")
        ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
        links = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
        assert links == [f"#{name}" for name in ids] and len(set(ids)) == len(ids)


def all_reports(lang: str) -> list[str]:
    return [
        pretraining_report(*pretraining_run(), lang=lang),
        finetuning_report(finetuning_result(), lang=lang),
        comparison_report(comparison_result(), lang=lang),
    ]


def test_a_long_text_is_shortened_and_its_length_is_reported() -> None:
    assert shorten("x" * 1000, 10) == "x" * 10 + "… (1,000 characters in total)"
    assert shorten("字" * 1000, 10, "zh") == "字" * 10 + "…（共 1,000 个字符）".replace("…", "… ")
    assert shorten("short", 10) == "short"
    html = page("t", [Section("s", [Table("c", ["text"], [["word " * 900]])])], facts={})
    assert "(4,500 characters in total)" in Reader(html).text and html.count("word") < 80


def test_cells_show_numbers_intervals_lists_and_nothing() -> None:
    row = [0.91234, 12345, Between(0.9, 0.85, 0.95), ["a", "b"], None, float("nan"), True, np.float32(0.5), np.int64(7)]
    html = page("t", [Section("s", [Table("c", list("abcdefghi"), [row])])], facts={})
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", html.split("<tbody>")[1])
    assert cells[0] == "0.9123" and cells[1] == "12,345" and cells[3] == "a, b"
    assert cells[2] == "0.9000<small>0.850 – 0.950</small>"
    assert cells[4] == cells[5] == "–" and cells[6] == "yes" and cells[7] == "0.5000" and cells[8] == "7"


@pytest.mark.parametrize(
    "told, wanted",
    [
        (plain(0.5), "0.5000"),
        (plain(3.2e-5), "3.2e-5"),
        (plain(4.5e-4), "0.00045"),
        (plain(4.5e-4, 3), "0.00045"),
        (plain(-4e-4), "-0.0004"),
        (plain(0.08, 2), "0.08"),
        (plain(0.0996, 2), "0.10"),
        (plain(1234.56), "1,235"),
        (plain(12.3456), "12.35"),
        (plain("text"), "text"),
        (plain(0.0), "0"),
        (percent(0.1234), "12.3 %"),
        (large(11_171_074), "11.2 M"),
        (large(950), "950"),
        (duration(0.42), "0.42 s"),
        (duration(59.4), "59 s"),
        (duration(59.6), "1 min 0 s"),
        (duration(65), "1 min 5 s"),
        (duration(7384), "2 h 3 min"),
        (duration(65, "zh"), "1 分钟 5 秒"),
        (duration(None), "–"),
    ],
)
def test_numbers_are_written_for_people(told: str, wanted: str) -> None:
    assert spaced(told) == wanted


def test_settings_are_written_as_toml_that_reads_back() -> None:
    import tomllib

    settings = {"seed": 4, "flag": True, "model": {"width": 8, "inner": {"deep": [1, 2.5]}}, "data": {"path": "a/b"}}
    assert tomllib.loads(settings_text(settings)) == settings


def test_settings_stay_toml_with_quotes_backslashes_and_line_breaks_in_a_path() -> None:
    import tomllib

    for path in ('say "hi".csv', "C:\\data\\new.csv", "two\nlines", "\x07bell", "'single'", 'end\\"'):
        settings = {"train": path, "unset": None, "nested": {"files": [path, "b"], "unset": None}, "empty": {}}
        wanted = {"train": path, "nested": {"files": [path, "b"]}}
        assert tomllib.loads(settings_text(settings)) == wanted
        html = finetuning_report({"run": {"settings": settings}})
        assert settings_text(settings) in Reader(html).text
    assert settings_text({"out": Path("a/b")}) == 'out = "a/b"'


def test_a_pretraining_report_draws_what_the_metrics_hold() -> None:
    html = pretraining_report(*pretraining_run(), lang="en")
    assert headings(html)[:3] == ["Summary", "Training curves", "Evaluations during training"]
    text = spaced(Reader(html).text)
    for words_ in (
        "Pretraining: bert-mini",
        "Masking rate",
        "Gradient norm, log scale",
        "11.2 M",
        "word frequencies alone",
    ):
        assert words_ in text
    assert "width = 256" in text and "[model]" in text


def test_a_pretraining_report_warns_of_problems() -> None:
    rows = [{"step": n, "loss": float("nan") if n == 3 else 2.0} for n in range(5)]
    rows += [{"step": n, "eval": True, "mlm_loss": loss} for n, loss in enumerate((3.0, 2.0, 2.5))]
    text = Reader(pretraining_report({"interrupted": "SIGTERM"}, rows)).text
    assert (
        "can be resumed. SIGTERM" in text
        and "loss was NaN or infinite: 1." in text
        and "lowest at step 1 (2.00)" in text
    )


def test_a_pretraining_report_of_nothing_is_still_a_page() -> None:
    assert "No step was recorded." in Reader(pretraining_report({}, [])).text


def test_curves_of_a_report_come_from_unknown_keys_too() -> None:
    rows = [{"step": n, "novelty_index": n * n, "label": "x", "flag": True} for n in range(4)]
    rows.append({"step": 3, "eval": True, "minimal_pairs": {"agreement": 0.5, "all": 0.6}})
    text = Reader(pretraining_report({}, rows)).text
    assert "novelty index" in text and "Minimal pairs · agreement" in text and "flag" not in text


def test_a_fine_tuning_report_has_every_part_it_is_given() -> None:
    html = finetuning_report(finetuning_result())
    wanted = ["Result", "Results by label", "Calibration", "Worst errors", "Suspicious labels"]
    wanted += ["Predictions on new texts", "Data", "Training", "Speed and size", "Notes", "Environment"]
    assert headings(html) == [*wanted, "How to reproduce this run"]
    text = spaced(Reader(html).text)
    assert "between 0.8680 and 0.9270" in text and "Nothing was truncated" in text
    assert "answers 74.0 % of the development rows" in text
    assert all(text.count(label) > 4 for label in LABELS)
    assert "(456 characters in total)" in text


@pytest.mark.parametrize("part", sorted(finetuning_result()))
def test_every_part_of_a_fine_tuning_result_is_optional(part: str) -> None:
    whole = finetuning_result()
    alone = Reader(finetuning_report({part: whole[part]}))
    del whole[part]
    without = Reader(finetuning_report(whole))
    assert alone.count("h1") == without.count("h1") == 1


def test_results_as_the_library_computes_them_are_taken_as_they_are() -> None:
    from bertkit.metrics import bootstrap, classification, confusion, per_class
    from bertkit.metrics.calibration import coverage_accuracy, reliability

    draw = np.random.default_rng(0)
    chances = draw.dirichlet([1, 1, 1], size=80)
    labels, gold = ["a", "b", "c"], draw.integers(0, 3, 80)
    truth, guess = [labels[n] for n in gold], [labels[n] for n in chances.argmax(1)]
    scores = classification(truth, guess, labels)
    result = {
        "metrics": scores,
        "intervals": bootstrap(classification, truth, guess, labels=labels, resamples=50),
        "confusion": {"labels": labels, "counts": confusion(truth, guess, labels)},
        "per_class": per_class(truth, guess, labels),
        "calibration": {"after": reliability(chances, gold)},
        "coverage": coverage_accuracy(chances, gold),
        "abstain": coverage_accuracy(chances, gold)[3],
    }
    found = Reader(finetuning_report(result))
    assert found.count("svg") == 3 and plain(next(iter(scores.values()))) in found.text
    assert "Nothing to show" not in found.text


def test_what_was_cut_is_a_warning_with_its_share() -> None:
    cut = {"train": {"rows": 200, "rows_cut": 5, "tokens": 10_000, "tokens_cut": 1_000}}
    text = spaced(Reader(finetuning_report({"data": {"cut": cut}})).text)
    assert "Some texts were truncated" in text and "2.5 %" in text and "10.0 %" in text


def test_a_confusion_of_many_labels_shows_the_largest_and_counts_the_others() -> None:
    names = [f"label-{n}" for n in range(60)]
    counts = [[n if n == c else 0 for c in range(60)] for n in range(60)]
    text = Reader(finetuning_report({"confusion": {"labels": names, "counts": counts}})).text
    assert "The 40 largest of 60 are shown." in text and "label-59" in text and "label-19" not in text


def test_a_comparison_ranks_the_contenders_and_draws_their_cost() -> None:
    html = comparison_report(comparison_result())
    names = re.findall(r'<th scope="row">(.*?)</th>', html)
    assert names[0] == "BERT mini, fine-tuned" and names.index("majority") == 10
    assert headings(html)[:3] == ["Verdict", "Contenders", "Would more labels help?"]
    assert "&lt; 0.001" in html and "would not have fitted" in html


def test_a_comparison_of_nobody_is_still_a_page() -> None:
    text = Reader(comparison_report({"contenders": []})).text
    assert "No contender has a score." in text and "Nothing to show" in text


CHEAP = {"name": "TF-IDF", "score": 0.90, "p_value": 0.4, "ms_per_text": 0.01}
DEAR = {"name": "BERT", "score": 0.91, "ms_per_text": 2.0}


def test_the_verdict_takes_the_cheap_one_that_is_within_noise() -> None:
    assert verdict([CHEAP, DEAR]) == (
        "TF-IDF is within noise of BERT (0.9000 against 0.9100, p = 0.4) at 1/200 of the time per text: use it."
    )
    chinese = verdict([CHEAP, DEAR], lang="zh")
    assert chinese.startswith("TF-IDF 与 BERT 的差距在误差之内") and "0.9100，p = 0.4）" in chinese


def test_the_verdict_takes_the_best_when_it_is_truly_better() -> None:
    said = verdict([{**CHEAP, "p_value": 0.0002}, DEAR])
    assert said.startswith("BERT is worth it: 0.9100 against 0.9000 for TF-IDF") and "p < 0.001" in said
    assert said.endswith("The price is 200 times the time per text.")


def test_a_saving_too_small_to_matter_does_not_win() -> None:
    assert verdict([{**CHEAP, "ms_per_text": 1.9}, DEAR]).startswith("BERT is the best")


def test_without_p_values_the_intervals_decide() -> None:
    cheap = {"name": "TF-IDF", "score": 0.90, "interval": (0.88, 0.92), "train_seconds": 1.0}
    dear = {"name": "BERT", "score": 0.91, "train_seconds": 50.0}
    assert "1/50 of the training time" in verdict([cheap, dear])
    assert "worth it" in verdict([{**cheap, "interval": (0.88, 0.905)}, dear])


def test_blocks_of_every_kind_are_drawn() -> None:
    body = [Text("one"), Facts({"a": 1, "b": [1, 2]}), Warning_("two"), Good("three"), Code("x = 1\n  y = 2")]
    found = Reader(page("t", [Section("s", body)], facts={}))
    assert all(word in found.text for word in ("one", "two", "three", "x = 1\n  y = 2", "1, 2"))
    assert sum(attributes.get("role") == "note" for _, attributes in found.elements) == 2


def captions(html: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", html) + re.findall(r"<caption><span>(.*?)</span>", html)


@pytest.mark.parametrize("scored, rows", [("test", "the test rows"), ("dev", "the development rows"), ("", "held-out")])
def test_every_caption_about_rows_names_them(scored: str, rows: str) -> None:
    html = finetuning_report(finetuning_result() | {"scored_on": scored})
    told = captions(html)
    for start in ("Scores on ", "Precision, recall", "Confusion matrix", "Labels most often", "5 of 59 errors"):
        assert [rows in caption for caption in told if caption.startswith(start)] == [True], start
    for start in ("Calibration on ", "Accuracy on ", "Macro F1 on the development rows"):
        assert {"the development rows" in caption for caption in told if caption.startswith(start)} == {True}, start
    assert f"on {rows}" in Reader(html).text and "Loss (development)" in html
    for settings, wanted in (({"test": "t.csv", "dev": "d.csv"}, "the test rows"), ({"dev": "d.csv"}, "development")):
        told = captions(comparison_report(comparison_result() | {"settings": settings}))
        assert sum(wanted in caption for caption in told) == 4
    told = captions(finetuning_report(task_result("tag")))
    assert "Loss on the training data" in told and "Scores on the development rows" in told


def test_a_report_of_answers_says_why_there_is_no_baseline() -> None:
    assert "no cheap baseline" in Reader(finetuning_report(task_result("answer"))).text
    assert "no cheap baseline" not in Reader(finetuning_report(task_result("tag"))).text


def test_errors_are_counted_before_the_list_is_cut() -> None:
    result = task_result("answer")
    assert len(result["errors"]) == 40
    text = Reader(finetuning_report(result)).text
    assert "The 40 worst errors on the test rows." in text and "40 of 40" not in text, (
        "how many there were is not known"
    )
    text = Reader(finetuning_report(result | {"error_count": 1140})).text
    assert "40 of 1,140 errors on the test rows shown" in text
    text = Reader(finetuning_report(result | {"confusion": {"labels": ["a", "b"], "counts": [[9, 100], [14, 9]]}})).text
    assert "40 of 114 errors on the test rows shown" in text
    text = Reader(finetuning_report(result | {"errors": result["errors"][:7]})).text
    assert "7 of 7 errors" in text, "a list shorter than the limit was never cut"
    text = Reader(finetuning_report(result | {"suspects": result["errors"], "suspect_count": 77})).text
    assert "40 of 77 suspicious training rows" in text


def test_a_learning_rate_is_shown_as_it_was() -> None:
    text = spaced(Reader(finetuning_report(task_result("regress"))).text)
    assert re.search(r"Learning rate\s*0\.00045\s", text)


def test_one_chinese_word_stands_for_one_thing() -> None:
    page_ = spaced(Reader(finetuning_report(task_result("tag"), lang="zh")).text)
    assert "数值精度" in page_ and "各标签的精确率、召回率" in page_ and "验证集" in page_ and "多项选择" not in page_
    page_ = Reader(finetuning_report({"run": {"precision": "bf16"}}, lang="zh")).text
    assert "数值精度" in page_ and "精确率" not in page_
    data = {"train": {"rows": 90}, "choose": {"rows": 10}, "score": {"file": "t.csv", "rows": 40}}
    page_ = Reader(comparison_report(comparison_result() | {"data": data}, lang="zh")).text
    assert "验证集 · 样本数" in page_ and "多项选择" not in page_
    assert "微调：多项选择" in Reader(finetuning_report({"task": "choose"}, lang="zh")).text


def test_a_chinese_pretraining_report_is_chinese_and_no_name_in_a_legend_is_cut() -> None:
    run, rows = pretraining_run()
    rows = [row | ({"next_sentence_loss": 0.6, "words_loss": 2.0} if "loss" in row else {}) for row in rows]
    rows += [{"step": 2400, "eval": True, "next_sentence_loss": 0.6, "sentence_order_loss": 0.5}]
    english, chinese = (pretraining_report(run, rows, lang=lang) for lang in ("en", "zh"))
    for html in (english, chinese):
        assert not [name for name in re.findall(r'<text[^>]*class="strong">(.*?)</text>', html) if "…" in name]
    assert "Next-sentence loss (training)" in english and "下一句预测损失 (训练集)" in chinese
    told = [*headings(chinese), *captions(chinese), *re.findall(r'class="strong">(.*?)</text>', chinese)]
    assert [text for text in told if not re.search("[\u4e00-\u9fff]", text)] == []


def test_a_tall_legend_makes_the_drawing_taller() -> None:
    few, many = (
        line_plot({f"a rather long name of curve {n}": ([1, 2], [1, 2]) for n in range(count)}, x_label="x", y_label="")
        for count in (2, 9)
    )
    heights = [float(re.findall(r'viewBox="0 0 \S+ (\S+)"', drawn)[0]) for drawn in (few, many)]
    assert heights == [280, 280 + 7 * 19]


def test_a_key_without_a_name_is_made_readable() -> None:
    assert name_of("my_own_score", "en") == "my own score" and name_of("macro_f1", "zh") == "宏平均 F1"


def test_the_same_result_always_gives_the_same_page() -> None:
    assert all_reports("en") == all_reports("en")
    Point = namedtuple("Point", "coverage accuracy threshold")
    assert finetuning_report({"coverage": [Point(1, 0.5, 0)]}) == finetuning_report({"coverage": [Point(1, 0.5, 0)]})


def test_a_large_gap_on_few_rows_neither_excuses_the_cheap_one_nor_proves_the_dear_one_worth_it() -> None:
    worse = CHEAP | {"score": 0.82, "p_value": 0.62}
    said = verdict([worse, DEAR])
    assert said.startswith("BERT scores best, 0.9100 against 0.8200 for TF-IDF") and "worth it" not in said
    assert "may be due to chance, p = 0.62" in said and "use it" not in said
    assert said.endswith("The price is 200 times the time per text.")
    said = verdict([worse, DEAR], lang="zh")
    assert "值得" not in said and "无法断定差距不是偶然，p = 0.62" in said
    assert "。 " not in said
    assert "worth it" in verdict([worse | {"p_value": 0.04}, DEAR])


def test_a_result_comes_back_from_its_file_as_it_was_without_lists_and_counts():
    table = finetuning_result()
    result = FinetuneResult.from_dict(table | {"error_count": 1140, "suspect_count": 77, "of another version": 1})
    assert result.error_count == 1140 and not {"error_count", "suspect_count"} & set(result.to_dict())
    assert result.to_dict() == {key: value for key, value in table.items() if value is not None}
    again = FinetuneResult.from_dict(result.stored())
    assert (again.errors, again.suspects, again.error_count) == (None, None, None)
    assert again == replace(result, errors=None, suspects=None, error_count=None, suspect_count=None)


def test_a_report_in_chinese_has_its_notes_reasons_and_sentences_in_chinese():
    files = [{"role": "dev", "name": "held out of a.csv", "rows": 15}]
    told = "accuracy was measured on only 15 dev rows: its 95 % interval is 0.80 to 1.00. Use more --dev rows "
    told += "(or a larger --held-out, or --folds) before relying on it."
    tuned = finetuning_result() | {"notes": [told], "data": {"files": files}, "headline": "accuracy"}
    page_ = spaced(Reader(finetuning_report(tuned, lang="zh")).text)
    assert "从 a.csv 留出" in page_ and "只在 15 行 dev 数据上测得" in page_
    assert "准确率为 " in page_ and "准确率 为" not in page_
    left_out = [{"name": "gpt", "reason": "no time was left of 2 min"}]
    assert (
        "2 分钟的预算已用完" in Reader(comparison_report(comparison_result() | {"skipped": left_out}, lang="zh")).text
    )
