"""Runs the course: each page's code gives the page's outputs and figures, and the notebook of the same name.

A page of `docs/course` is the only source. Its ```python blocks share one namespace and one empty folder, as the cells
of a notebook do; what a block prints is the ```output block after it, and a drawing that ends a block is written to the
image named next. `python docs/make_course.py` runs every page, `… 07` those whose name begins so, and `--notebooks`
only writes `examples/*.ipynb` from the pages as they are.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.report.svg.axes import Drawing

COURSE = Path(__file__).resolve().parent / "course"
EXAMPLES = COURSE.parents[1] / "examples"
CODE = re.compile(r"```python\n(.*?)```\n(?:\n```output\n(.*?)```\n)?(?:\n!\[[^\]]*\]\(([^)]+)\)\n)?", re.S)


class Block(NamedTuple):
    """A code block of a page, what it printed, and the image that shows its drawing; both may be empty."""

    code: str
    output: str
    image: str


class Ran(NamedTuple):
    """What running a block gave."""

    printed: str
    figure: Drawing | None


def pages() -> list[Path]:
    """Every chapter, in both languages."""
    return sorted(COURSE.glob("[0-9][0-9]-*.md"))


def blocks(page: str) -> list[Block]:
    """The code of a page, in order."""
    return [Block(code, output or "", image or "") for code, output, image in CODE.findall(page)]


def run(code: list[str]) -> Iterator[Ran]:
    """Run blocks one after another in one namespace and one empty folder, as a notebook would."""
    names: dict[str, Any] = {"__name__": "__main__"}
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in code:
                yield _run(block, names)
        finally:
            os.chdir(back)


def _run(code: str, names: dict[str, Any]) -> Ran:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<page>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<page>", "eval"), names)
        if value is not None and not isinstance(value, Drawing):
            print(repr(value))
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return Ran("".join(f"{line}\n" for line in lines), value if isinstance(value, Drawing) else None)


def written(page: Path) -> str:
    """The page with the outputs of a fresh run; figures are written beside it."""
    text = page.read_text("utf-8")
    results = run([block.code for block in blocks(text)])

    def renewed(match: re.Match[str]) -> str:
        code, _, image = match.groups()
        ran = next(results)
        shown = f"```python\n{code}```\n" + (f"\n```output\n{ran.printed}```\n" if ran.printed else "")
        if ran.figure is None:
            return shown + (f"\n{match[0][match[0].rindex('![') :]}" if image else "")
        if not image:
            raise SystemExit(f"{page.name}: a block draws a figure; write ![…](figures/NAME.svg) after it.\n{code}")
        (page.parent / image).write_text(ran.figure.standalone() + "\n", "utf-8")
        return f"{shown}\n{match[0][match[0].rindex('![') :]}"

    renewed_page = CODE.sub(renewed, text)
    next(results, None)  # leaves the folder
    return renewed_page


def notebook(page: str, name: str) -> str:
    """The page as a notebook without outputs: text cells, code cells, and links that start from examples/."""
    cells: list[dict[str, Any]] = []

    def cell(kind: str, source: str) -> None:
        if source := source.strip():
            extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
            lines = source.splitlines(keepends=True)
            identity = f"{name}-{len(cells)}".replace(".", "-")
            cells.append({"cell_type": kind, "id": identity, "metadata": {}, **extra, "source": lines})

    end = 0
    for match in CODE.finditer(page):
        cell("markdown", _from_examples(page[end : match.start()]))
        cell("code", match[1])
        end = match.end()
    cell("markdown", _from_examples(page[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
             "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _from_examples(text: str) -> str:
    def link(match: re.Match[str]) -> str:
        target = match[1]
        if "://" in target or target.startswith("#"):
            return match[0]
        if re.fullmatch(r"\d\d-[\w-]+(?:\.zh)?\.md", target):
            return f"]({target.removesuffix('.md')}.ipynb)"
        return f"]({os.path.relpath(COURSE / target, EXAMPLES)})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def main(words: list[str]) -> None:
    """Renew pages, figures and notebooks."""
    chosen = [word for word in words if not word.startswith("--")]
    EXAMPLES.mkdir(exist_ok=True)
    for page in pages():
        if chosen and not page.name.startswith(tuple(chosen)):
            continue
        if "--notebooks" not in words:
            page.write_text(written(page), "utf-8")
            print(page.name, file=sys.stderr)
        (EXAMPLES / f"{page.stem}.ipynb").write_text(notebook(page.read_text("utf-8"), page.stem), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
