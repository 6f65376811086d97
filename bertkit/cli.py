"""The command line: every command is made from its settings class. No logic here.

Results go to stdout, notes and progress to stderr. Exit code 0: done; 2: a user error, in one message;
1: an internal error; 128 + N: stopped by signal N.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar

from bertkit import config, notify
from bertkit.commands import COMMANDS
from bertkit.commands.parser import Command, Invocation, Parser, did_you_mean
from bertkit.errors import Stopped, UserError, suggest
from bertkit.machine import needs_package
from bertkit.notify import visible

Item = TypeVar("Item")
ABOUT = "BERT from end to end, on the machine you have: tokenizers, pretraining, fine-tuning and prediction."


class Terminal:
    """Notes and progress on stderr: a live bar on a terminal, an occasional line elsewhere."""

    last_status = 0.0

    def __init__(self, quiet: bool = False) -> None:
        self.is_main = not quiet and os.environ.get("RANK", "0") == "0"  # under torchrun only the first process does

    def note(self, message: str) -> None:
        """The command line prints a note as one line on stderr."""
        if self.is_main:
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            print(f"{clear}· {visible(notify.translated(message))}", file=sys.stderr, flush=True)

    def status(self, message: str) -> None:
        """The command line shows progress: a line that replaces itself on a terminal, else one every half minute."""
        now = time.monotonic()
        if not self.is_main:
            return
        message = visible(notify.translated(message))
        if sys.stderr.isatty():
            print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
        elif now - self.last_status > 30:
            self.last_status = now
            print(message, file=sys.stderr, flush=True)

    def track(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        """Yield the items while the command line shows progress."""
        if self.is_main and sys.stderr.isatty():
            from tqdm import tqdm

            yield from tqdm(items, notify.translated(label), total, leave=False, dynamic_ncols=True)
        else:
            yield from _lines(items, label, total) if self.is_main else items


def _lines(items: Iterable[Item], label: str, total: int | None, seconds: float = 10.0) -> Iterator[Item]:
    """Progress as lines, where the terminal cannot redraw one."""
    last = start = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last > seconds:
            last = now
            left = f", about {(now - start) / count * (total - count):.0f} s to go" if total else ""
            done = f"{count:,} / {total:,}" if total else f"{count:,}"
            words = f"· {notify.translated(label)}: {done}{notify.translated(left)}"
            print(words, file=sys.stderr, flush=True)


def _choose_language(argv: list[str], own: bool = True) -> None:
    """Set the language by --lang (unless it is a command's `own` setting with another meaning), else by BERTKIT_LANG,
    else by the locale."""
    notify.speak("en")
    lang = os.environ.get("BERTKIT_LANG", "")
    if lang and lang not in notify.LANGUAGES:
        raise UserError(f"BERTKIT_LANG is '{lang}'. {suggest(lang, list(notify.LANGUAGES))}")
    lang = lang or _language_of_locale()
    for word, following in zip(argv, [*argv[1:], ""]):
        name, _, value = word.partition("=")
        if name == "--lang" and own and (value or following) in notify.LANGUAGES:
            lang = value or following
    notify.speak(lang or "en")


def _language_of_locale() -> str:
    """The language of the terminal's messages (zh_CN.UTF-8: zh), if it is one of ours; the first one set counts."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    spelled = next((value for name in names if (value := os.environ.get(name, ""))), "")
    lang = spelled.replace("-", "_").split("_")[0].split(".")[0].lower()
    return lang if lang in notify.LANGUAGES else ""


def _has_language(settings: type) -> bool:
    """Whether a command's own --lang is the language of its report; elsewhere it may be that of the texts."""
    own = {f.name: f.metadata.get("choices") for f in fields(settings)}
    return own.get("lang") == notify.LANGUAGES


def _print_rows(rows: Iterator[Any], as_json: bool) -> None:
    """Print a command's rows as they arrive: as JSON lines, or as one JSON array."""
    before = "["
    for row in rows:
        words = visible(json.dumps(row, ensure_ascii=False))
        print(f"{before}{words}" if as_json else words, end="" if as_json else "\n")
        before = ",\n"
    if as_json:
        print("[]" if before == "[" else "]")


def _print(result: Any, module: Any, as_json: bool) -> None:
    """Print a command's result: as rows, as JSON, or as the command's own lines."""
    if isinstance(result, Iterator):
        _print_rows(result, as_json)
    elif as_json and result is not None:
        print(visible(json.dumps(result.plain() if hasattr(result, "plain") else result, ensure_ascii=False)))
    elif result is not None:
        lines = map(notify.translated, module.lines(result)) if hasattr(module, "lines") else [str(result)]
        print(visible("\n".join(lines)))


def _run(command: Command, argv: list[str]) -> None:
    """Build a command's settings from its arguments, run it and print its result."""
    module: Any = command.module
    has_language = _has_language(module.Settings)
    _choose_language(argv, has_language or not hasattr(module.Settings, "lang"))
    given = command.parse(argv)
    others = {f.name for f in fields(module.Settings)}
    common = {f.name: given.pop(f.name) for f in fields(Invocation) if f.name in given and f.name not in others}
    how = config.build(Invocation, common)
    notify.listen(Terminal(how.quiet))
    if how.quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    table: dict[str, Any] = {"lang": notify.language()} if has_language else {}
    files = [config.read_toml(how.config_file)] if how.config_file else []
    for layer in [*files, given, *map(config.parse_set, how.sets)]:
        table = config.merged(table, config.current_names(module.Settings, layer))
    table = module.resolve(table) if hasattr(module, "resolve") else table
    built = config.build(module.Settings, table, command.verb)
    result = module.run(built)
    if os.environ.get("RANK", "0") == "0":
        config.remember(built)
        _print(result, module, how.as_json)


def _overview() -> Parser:
    """The parser of `bertkit --help`, with the list of commands."""
    parser = Parser("bertkit", notify.translated("bertkit COMMAND [options]"), ABOUT)
    parser.epilog = notify.translated("bertkit COMMAND --help shows the arguments and options of a command.")
    commands = parser.add_argument_group(notify.translated("Commands"))
    for verb, about in COMMANDS.items():
        commands.add_argument(verb, help=notify.translated(about).replace("%", "%%"))
    others = parser.add_argument_group(notify.translated("Options"))
    others.add_argument("--version", action="store_true", help=notify.translated("Print the version."))
    others.add_argument("-h", "--help", action="help", help=notify.translated("Show this help."))
    return parser


def _start(argv: list[str]) -> None:
    """Run one command; only its module is imported."""
    first = argv[0] if argv else ""
    if first not in COMMANDS:
        _choose_language(argv)
    if first in COMMANDS:
        _run(Command(first), argv[1:])
    elif first == "--version":
        from bertkit import __version__

        print(__version__)
    elif first in ("-h", "--help"):
        _overview().print_help()
    elif not first:
        _overview().print_help(sys.stderr)
        sys.exit(2)
    elif first.startswith("-"):
        verb = next((word for word in argv if word in COMMANDS), "")
        hint = f"Options come after the command: bertkit {verb} … {first}" if verb else "See: bertkit --help"
        raise UserError(f"There is no option '{first}' before the command. {hint}")
    else:
        hint = did_you_mean(first, {verb: verb for verb in COMMANDS})
        raise UserError(f"There is no command '{first}'.{hint} See: bertkit --help")


def main() -> None:
    """Run the command line and exit with the right code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        _start(sys.argv[1:])
        sys.stdout.flush()
    except UserError as mistake:
        print(f"bertkit: {visible(notify.translated(str(mistake)))}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as missing:
        print(f"bertkit: {visible(notify.translated(needs_package(missing)))}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stopped:
        print(f"bertkit: {visible(notify.translated(str(stopped)))}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except KeyboardInterrupt:
        print(f"bertkit: {notify.translated('stopped.')}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the results has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        sys.exit(0)
