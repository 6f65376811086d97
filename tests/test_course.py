"""The course and the site: pages run, notebooks follow them, both languages say the same, the site builds."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and named tuples look their module up
    spec.loader.exec_module(module)
    return module


make_course = script("make_course")
PAGES = make_course.pages()
CHAPTERS = [page for page in PAGES if not page.name.endswith(".zh.md")]


def headings(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", text, flags=re.S), re.M)]


def test_the_course_has_ten_chapters_in_two_languages() -> None:
    assert [int(page.name[:2]) for page in CHAPTERS] == list(range(1, 11))
    assert {page.stem for page in PAGES} == {name for page in CHAPTERS for name in (page.stem, f"{page.stem}.zh")}


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_has_the_same_parts_in_both_languages(page: Path) -> None:
    english, chinese = page.read_text("utf-8"), page.with_suffix(".zh.md").read_text("utf-8")
    assert headings(english) == headings(chinese)
    assert english.count("$$") == chinese.count("$$")
    for text in (english, chinese):
        found = make_course.blocks(text)
        assert len(found) >= 3 and any(block.image for block in found) and any(block.output for block in found)
        assert all((page.parent / block.image).is_file() for block in found if block.image)
        assert re.search(r"\]\(\.\./\.\./bertkit/", text)  # what to read
    assert re.search("[一-鿿]{4}", chinese) and not re.search("[一-鿿]{8}", english)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_its_page(page: Path) -> None:
    stored = (ROOT / "examples" / f"{page.stem}.ipynb").read_text("utf-8")
    assert stored == make_course.notebook(page.read_text("utf-8"), page.stem), "run docs/make_course.py --notebooks"
    cells = json.loads(stored)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.code.strip() for block in make_course.blocks(page.read_text("utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_chapter_runs_and_prints_what_its_page_shows(page: Path) -> None:
    if page.name.startswith("02"):
        pytest.importorskip("numba", reason="word vectors need numba")
    found = make_course.blocks(page.read_text("utf-8"))
    for block, ran in zip(found, make_course.run([block.code for block in found]), strict=True):
        # Numbers differ between machines in their last digits; how much is printed, and whether it draws, do not.
        assert ran.printed.count("\n") == block.output.count("\n"), block.code
        assert (ran.figure is not None) == bool(block.image), block.code


def test_the_api_page_is_what_the_code_says() -> None:
    assert script("make_api").reference() == (ROOT / "docs/api.md").read_text("utf-8"), "run python docs/make_api.py"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install 'bertkit[docs]'")
    pytest.importorskip("mkdocs_static_i18n", reason="the site needs the extra docs")
    pytest.importorskip("material", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    english, chinese = tmp_path / "site/course/07-pretraining", tmp_path / "site/zh/course/07-pretraining"
    assert "<math" in (english / "index.html").read_text("utf-8")
    assert "下一句" in (chinese / "index.html").read_text("utf-8")
    index = json.loads((tmp_path / "site/search/search_index.json").read_text("utf-8"))
    assert {"en", "zh"} <= set(index["config"]["lang"])
    assert any("\u200b" in entry["text"] for entry in index["docs"])  # Chinese is cut into words
