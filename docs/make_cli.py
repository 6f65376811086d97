"""Writes docs/cli.md, the reference of every command, from the settings classes themselves.

`python docs/make_cli.py` writes the file; `--print` shows what it would contain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bertkit.commands import COMMANDS
from bertkit.commands.parser import Command, Invocation, Option, options
from bertkit.config import Common

HEAD = """# Command line

Written by `docs/make_cli.py` from the settings of each command; do not edit by hand.

Results go to stdout, notes and progress to stderr. Exit code 0: done; 2: a mistake in the command or its input, in one
message; 1: a fault of bertkit; 128 + N: stopped by signal N. `MODEL` is an embedded name, a folder, or a hub name
`org/name`.

Options may stand before, between or after arguments; an argument that begins with a dash goes after `--`.
`BERTKIT_LANG=zh` is the default of `--lang` where that is the language of a report or of the demo.
`source <(bertkit completion bash)` completes commands, options and values in the shell.
"""


def spelled(o: Option) -> str:
    """The option as it is typed."""
    if o.meta["argument"]:
        return f"`{o.spelled}{'…' * o.many}`"
    if o.meta["metavar"]:
        return f"`{o.spelled} {o.meta['metavar']}`"
    return ", ".join(f"`{spelling}`" for spelling in o.spellings)


def about(o: Option) -> str:
    """The help text with the choices, unless it lists them itself."""
    text = o.meta["help"]
    if not all(choice in text for choice in o.choices):
        text += f" One of {', '.join(f'`{choice}`' for choice in o.choices)}."
    return text.replace("|", "\\|")


def default(o: Option) -> str:
    """What holds when it is not given."""
    if o.required:
        return "required"
    return o.default if o.default in ("", "on") else f"`{o.default}`"


def table(shown: list[Option]) -> Iterator[str]:
    """One row per option."""
    yield "| option | meaning | default |"
    yield "|---|---|---|"
    for o in shown:
        yield f"| {spelled(o)} | {about(o)} | {default(o)} |"


def chapter(verb: str) -> Iterator[str]:
    """One command; the options of a long one under headings, as in its help."""
    command = Command(verb)
    yield from ("", f"## {verb}", "", f"`{command.usage}`", "", command.about)
    groups = command.groups()
    if groups.keys() <= {"Arguments", "Options"}:
        yield from ("", *table([o for members in groups.values() for o in members]))
        return
    for heading, members in groups.items():
        yield from ("", f"**{heading}**", "", *table(members))


def reference() -> str:
    """The whole page."""
    rows = [HEAD, "| command | |", "|---|---|"]
    rows += [f"| [{verb}](#{verb}) | {words} |" for verb, words in COMMANDS.items()]
    rows += ["", "## Options of every command", "", *table([*options(Common), *options(Invocation)])]
    for verb in COMMANDS:
        rows += chapter(verb)
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        print(reference(), end="")
    else:
        (Path(__file__).parent / "cli.md").write_text(reference(), "utf-8")
