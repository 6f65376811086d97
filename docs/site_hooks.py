"""What the docs site needs beyond mkdocs: links to the code, formulas without JavaScript, and Chinese search.

The pages are written to be read in the repository too, so they link to source files and write formulas as `$…$`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.S | re.M)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w\\$])\$([^$\n]+?)\$(?![\w$])", re.S)


def on_config(config: Any) -> Any:
    """Chinese text is cut into words for the search index by rjieba, which bertkit needs anyway, instead of jieba."""
    import rjieba
    from material.plugins.search import plugin

    plugin.jieba = SimpleNamespace(cut=lambda value: rjieba.cut(value.decode("utf-8")))
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Outside code, point links that leave docs/ to the repository, and turn formulas into MathML."""
    folder = posixpath.dirname(page.file.src_uri)
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = CODE.sub(keep, markdown)
    text = LINK.sub(lambda match: f"{match[1]}{_target(match[2], folder, config['repo_url'])}{match[3]}", text)
    if posixpath.dirname(page.file.src_uri) == "course":
        text = FORMULA.sub(_mathml, text)
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], text)


def _target(link: str, folder: str, repository: str) -> str:
    path = posixpath.normpath(posixpath.join("docs", folder, link))
    if "://" in link or link.startswith("mailto:") or (path.startswith("docs/") and _is_page(path)):
        return link
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository}/{kind}/main/{path}"


def _is_page(path: str) -> bool:
    """Whether the site has this file: everything in docs/ but scripts, recipes and folders."""
    return not path.endswith(".py") and not path.startswith("docs/recipes") and not (ROOT / path).is_dir()


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    return convert(match[1] or match[2], display="block" if match[1] else "inline")
