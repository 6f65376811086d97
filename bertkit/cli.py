"""The command line: one command a verb, each made from the verb's settings class. No logic here.

Results go to stdout, notes and progress to stderr. Exit code 0 done, 2 the user's mistake
(one message), 1 our fault.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from bertkit import config, notify
from bertkit.commands import COMMANDS
from bertkit.errors import Stopped, UserError

Item = TypeVar("Item")
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, which newer typer carries inside itself
app = typer.Typer(
    name="bertkit",
    help="BERT whole, on the machine you have: vocabularies, pretraining, fine-tuning, prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Terminal:
    """Notes and progress on stderr: a live bar on a terminal, a line now and then elsewhere."""

    last_status = 0.0

    def __init__(self) -> None:
        self.is_main = os.environ.get("RANK", "0") == "0"  # under torchrun only the first process does

    def note(self, message: str) -> None:
        """One line, set apart from results."""
        if not self.is_main:
            return
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{clear}· {message}", file=sys.stderr, flush=True)

    def status(self, message: str) -> None:
        """A line that replaces itself on a terminal; elsewhere one line in half a minute."""
        now = time.monotonic()
        if not self.is_main:
            return
        if sys.stderr.isatty():
            print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
        elif now - self.last_status > 30:
            self.last_status = now
            print(message, file=sys.stderr, flush=True)

    def track(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        """Pass items on, showing how far it is."""
        if not sys.stderr.isatty():
            yield from _lines(items, label, total)
            return
        from rich.console import Console
        from rich.progress import track

        yield from track(items, label, total, console=Console(stderr=True), transient=True)


def _lines(items: Iterable[Item], label: str, total: int | None, seconds: float = 10.0) -> Iterator[Item]:
    last = start = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last > seconds:
            last = now
            left = f", about {(now - start) / count * (total - count):.0f} s to go" if total else ""
            print(f"· {label}: {count:,}{f' of {total:,}' if total else ''}{left}", file=sys.stderr, flush=True)


def _parameter(f: Field[Any], kind: Any, alias: str = "") -> inspect.Parameter:
    """A settings field as a typer parameter. Default None: "not given", so that --config and presets show through.

    alias: another name of it, which help does not show.
    """
    meta = f.metadata
    many = get_origin(kind) in (tuple, list)
    plain: Any = list[kind.__args__[0]] if many else kind
    if meta.get("argument"):
        info: Any = typer.Argument(help=meta["help"], show_default=False)
        return inspect.Parameter(
            f.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[plain | None, info]
        )
    spelled = "--" + (alias or meta.get("name") or f.name).replace("_", "-")
    if kind is bool:
        names = [f"{spelled}/--no-{spelled[2:]}"] if f.default else [spelled]
    else:
        names = [spelled] + ([meta["short"]] if meta.get("short") and not alias else [])
    shown = meta.get("help", "")
    if meta.get("choices"):
        shown += f" [{'|'.join(meta['choices'])}]"
    if f.default not in (MISSING, None, "", False) and kind is not bool:
        shown += f" (default: {f.default})"
    info = typer.Option(*names, help=shown, show_default=False, hidden=bool(alias) or meta.get("hidden", False))
    return inspect.Parameter(
        alias or f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[plain | None, info]
    )


def _is_nested(kind: Any) -> bool:
    """Sections and tables: given by --config and --set only."""
    return is_dataclass(kind) or any(get_origin(inner) for inner in get_args(kind))


def _print_rows(rows: Iterator[Any], as_json: bool) -> None:
    """Rows while they come: JSON lines, or the one array that they make."""
    before = "["
    for row in rows:
        words = json.dumps(row, ensure_ascii=False)
        print(f"{before}{words}" if as_json else words, end="" if as_json else "\n")
        before = ",\n"
    if as_json:
        print("[]" if before == "[" else "]")


def _command(verb: str, module: ModuleType) -> Callable[..., None]:
    """The function typer calls: values → settings → run → print."""
    settings = module.Settings
    kinds = config.hints(settings)
    shown = [f for f in fields(settings) if "help" in f.metadata and not _is_nested(kinds[f.name])]
    shown.sort(key=lambda f: not f.metadata["argument"])
    parameters = [_parameter(f, kinds[f.name]) for f in shown]
    names = {f.name for f in fields(settings)}
    parameters += [
        _parameter(f, kinds[f.name], alias)
        for f in shown
        for alias in config.aliases_of(f)
        if alias not in names and not f.metadata["argument"]
    ]
    extra = {
        "config_file": (Path, typer.Option("--config", help="Settings from a TOML file, e.g. a run's run.toml.")),
        "sets": (list[str], typer.Option("--set", help="One setting: KEY=VALUE; in a section: SECTION.KEY=VALUE.")),
        "as_json": (bool, typer.Option("--json", help="Print one JSON document.")),
    }
    parameters += [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[k | None, o])
        for n, (k, o) in extra.items()
    ]

    def command(**given: Any) -> None:
        config_file, sets, as_json = (given.pop(key, None) for key in extra)
        values = {k: v for k, v in given.items() if v is not None and v != []}
        layers = [config.read_toml(config_file)] if config_file else []
        layers += [values, *(config.parse_set(s) for s in sets or [])]
        table: dict[str, Any] = {}
        for layer in layers:
            table = config.merged(table, config.current_names(settings, layer))
        table = module.resolve(table) if hasattr(module, "resolve") else table
        built = config.build(settings, table, f"bertkit {verb}")
        result = module.run(built)
        if os.environ.get("RANK", "0") != "0":
            return
        config.remember(built)
        if isinstance(result, Iterator):
            _print_rows(result, bool(as_json))
        elif as_json and result is not None:
            print(json.dumps(result.plain() if hasattr(result, "plain") else result, ensure_ascii=False))
        elif result is not None:
            print("\n".join(module.lines(result)) if hasattr(module, "lines") else result)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = inspect.getdoc(module.run)
    return command


def main() -> None:
    """Run the command line and leave with the right code."""
    notify.listen(Terminal())
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    # Only the verb that is asked for is imported in full; the others appear in the list of commands.
    for verb, about in COMMANDS.items():
        if verb == asked:
            module = import_module(f"bertkit.commands.{verb}")
            app.command(verb)(_command(verb, module))
        else:
            app.command(verb, help=about)(lambda: None)
    if asked is None:
        app.callback(invoke_without_command=True)(_version)
    try:
        if app(standalone_mode=False) == 130:  # typer turns an interrupt into a number
            raise KeyboardInterrupt
    except UserError as mistake:
        print(f"bertkit: {mistake}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stopped:
        print(f"bertkit: {stopped}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except (KeyboardInterrupt, typer.Abort):
        print("bertkit: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except UsageError as mistake:
        words = mistake.format_message() if hasattr(mistake, "format_message") else str(mistake)
        print(f"bertkit: {words} See: bertkit {asked + ' ' if asked in COMMANDS else ''}--help", file=sys.stderr)
        sys.exit(2)


def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from bertkit import __version__

        print(__version__)
        raise typer.Exit
