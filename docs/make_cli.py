"""Writes docs/cli.md, the reference of every command, from the settings classes themselves.

`python docs/make_cli.py` writes the file; `--print` shows what it would hold.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from bertkit.cli import _is_nested
from bertkit.commands import COMMANDS
from bertkit.config import Common, hints

HEAD = """# Command line

Written by `docs/make_cli.py` from the settings of each command; do not edit by hand.

Results go to stdout, notes and progress to stderr. Exit code 0: done; 2: a mistake in what was asked, told in one
message; 1: a fault of bertkit. `MODEL` is an embedded name, a folder, or a hub name `org/name`.
"""
EVERYWHERE = (
    ("`--config FILE`", "Settings from a TOML file, e.g. a run's run.toml."),
    ("`--set KEY=VALUE`", "One setting; in a section: SECTION.KEY=VALUE. May be given several times."),
    ("`--json`", "Print one JSON document."),
)


def spelled(f: Field[Any], kind: Any) -> str:
    """The option as it is typed."""
    meta = f.metadata
    if meta["argument"]:
        many = "…" if getattr(kind, "__origin__", None) in (tuple, list) else ""
        return f"`{f.name.upper()}{many}`"
    name = "--" + (meta["name"] or f.name.replace("_", "-"))
    if kind is bool:
        return f"`{name}`" if not f.default else f"`{name}`, `--no-{name[2:]}`"
    short = f", `{meta['short']}`" if meta["short"] else ""
    return f"`{name}`{short}"


def default(f: Field[Any]) -> str:
    """What it is when it is not given."""
    if f.default is MISSING:
        return "must be given" if f.default_factory is MISSING else ""
    if f.default is True:
        return "on"
    return "" if f.default is False or f.default in ("", None, ()) else f"`{f.default}`"


def about(f: Field[Any]) -> str:
    """The help text with the choices."""
    choices = [choice for choice in f.metadata["choices"] if choice]
    listed = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
    return (f.metadata["help"] + listed).replace("|", "\\|")


def table(shown: list[Field[Any]], kinds: dict[str, Any]) -> Iterator[str]:
    """A row an option."""
    yield "| option | meaning | default |"
    yield "|---|---|---|"
    for f in shown:
        yield f"| {spelled(f, kinds[f.name])} | {about(f)} | {default(f)} |"


def chapter(verb: str) -> Iterator[str]:
    """One command."""
    module = import_module(f"bertkit.commands.{verb}")
    settings = module.Settings
    kinds, common = hints(settings), {f.name for f in fields(Common)}
    visible = [f for f in fields(settings) if "help" in f.metadata and not f.metadata["hidden"]]
    shown = [f for f in visible if f.name not in common and not _is_nested(kinds[f.name])]
    shown.sort(key=lambda f: not f.metadata["argument"])
    places = " ".join(spelled(f, kinds[f.name]).strip("`") for f in shown if f.metadata["argument"])
    yield from ("", f"## {verb}", "", f"`bertkit {verb}{' ' + places if places else ''}`", "")
    yield from ((inspect.getdoc(module.run) or COMMANDS[verb]), "", *table(shown, kinds))


def reference() -> str:
    """The whole page."""
    rows = [HEAD, "| command | |", "|---|---|"]
    rows += [f"| [{verb}](#{verb}) | {words} |" for verb, words in COMMANDS.items()]
    rows += ["", "## Options of every command", "", *table(list(fields(Common)), hints(Common))]
    rows += [f"| {name} | {words} | |" for name, words in EVERYWHERE]
    for verb in COMMANDS:
        rows += chapter(verb)
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        print(reference(), end="")
    else:
        (Path(__file__).parent / "cli.md").write_text(reference(), "utf-8")
