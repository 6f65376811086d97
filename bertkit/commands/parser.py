"""Turns a settings class into a command: its options, their spelling, and an argparse parser."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from bertkit.commands import COMMANDS, find
from bertkit.config import KIND_NAMES, InferenceOptions, aliases_of, hints, option
from bertkit.errors import UserError
from bertkit.notify import LANGUAGES, language, translated, wrapped

WIDEST = 100
LONG = 13  # a command with more options than this shows them under headings
GROUPS = {  # heading → settings
    "Data": "train dev test data tokenizer kind size cased units min_count text text_b label label_separator labels "
    "multi_label symmetric encoding max_tokens on_long overlap merge held_out split_seed rows teacher_texts negatives",
    "Model": "model models contenders vectors lm elmo gpt preset init add_tokens layers width order window vocabulary "
    "architecture dropout reinit freeze word crf rerank rank matryoshka",
    "Training": "epochs steps minutes tokens batch batch_tokens micro_tokens lr warmup schedule decay clip layer_decay "
    "loss smoothing class_weights language teacher teacher_batch temperature alpha seeds search plan compile shard",
    "Evaluation": "evals eval_every eval_tokens minimal_pairs patience folds baseline abstain max_test_rows curve beam",
    "Output": "out arpa lang resume allow_changed_settings overwrite save_minutes save_every log_every tensorboard",
}
HEADINGS = {name: heading for heading, names in GROUPS.items() for name in names.split()}


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """Options of the command line itself, which commands do not see."""

    config_file: Path | None = option(
        None, "Read settings from a TOML file, e.g. the run.toml of an earlier run.", name="config", metavar="FILE"
    )
    sets: tuple[str, ...] = option(
        (), "Set one value; inside a section: SECTION.KEY=VALUE. May be repeated.", name="set", metavar="KEY=VALUE"
    )
    as_json: bool = option(False, "Print the result as one JSON document.", name="json")
    quiet: bool = option(False, "Hide notes and progress; errors are still shown.")
    lang: str = option("", "Language of help, messages and reports (default: BERTKIT_LANG, locale).", choices=LANGUAGES)


@dataclass(frozen=True)
class Option:
    """A settings field as the command line sees it."""

    field: Field[Any]
    kind: Any  # of one value
    many: bool

    @property
    def meta(self) -> Mapping[str, Any]:
        """What `config.option` says of a command-line option."""
        return self.field.metadata

    @property
    def spelled(self) -> str:
        """A command-line option as typed: --text-b, or TEXT_B for an argument."""
        if self.meta["argument"]:
            return self.field.name.upper()
        return "--" + (self.meta["name"] or self.field.name.replace("_", "-"))

    @property
    def spellings(self) -> list[str]:
        """Every spelling of a command-line option that help shows."""
        negated = [f"--no-{self.spelled[2:]}"] if not self.takes_value and self.field.default is not False else []
        return [self.spelled, *negated, *([self.meta["short"]] if self.meta["short"] else [])]

    @property
    def takes_value(self) -> bool:
        """Whether a command-line option takes a value; flags do not."""
        return self.kind is not bool

    @property
    def required(self) -> bool:
        """Whether a command-line option has no default."""
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def choices(self) -> list[str]:
        """The allowed values of a command-line option; empty: any."""
        return [choice for choice in self.meta["choices"] if choice]

    @property
    def default(self) -> str:
        """The default of a command-line option as text; empty if there is none worth showing."""
        value = self.field.default
        if value is MISSING or value is None or value is False or value in ("", ()):
            return ""
        return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)

    @property
    def placeholder(self) -> str:
        """The placeholder of a command-line option's value in help."""
        kinds = {int: "N", float: "X", Path: "PATH"}
        return self.meta["metavar"] or "|".join(self.choices) or kinds.get(self.kind, "TEXT")

    def read(self, text: str) -> Any:
        """A command-line option's text converted to a value, or an error that names the option and the text."""
        try:
            return self.kind(text)
        except ValueError:
            raise UserError(f"{self.spelled} must be {KIND_NAMES[self.kind]}, not '{text}'.") from None


def options(settings: type) -> list[Option]:
    """The command-line options of a settings class, arguments first; tables are set only with --config and --set."""
    every_option = []
    kinds = hints(settings)
    for f in fields(settings):
        kind = kinds[f.name]
        inner = [k for k in get_args(kind) if k not in (type(None), Ellipsis)]
        if "help" in f.metadata and not is_dataclass(kind) and not any(get_origin(k) for k in inner):
            every_option.append(Option(f, inner[0] if inner else kind, get_origin(kind) in (tuple, list)))
    return sorted(every_option, key=lambda o: not o.meta["argument"])


class Command:
    """One command of the command line."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.module = find(verb)
        everywhere = {f.name for f in fields(InferenceOptions)}
        every = options(self.module.Settings)
        self.own = [o for o in every if o.field.name not in everywhere]
        self.common = [o for o in every if o.field.name in everywhere]
        self.common += [o for o in options(Invocation) if o.field.name not in {own.field.name for own in self.own}]
        self.arguments = [o for o in every if o.meta["argument"]]
        named = [o for o in [*self.own, *self.common] if not o.meta["argument"]]
        self.spellings = {spelling: (spelling, o) for o in named for spelling in o.spellings}
        for o in named:
            for alias in aliases_of(o.field):
                self.spellings.setdefault("--" + alias.replace("_", "-"), (o.spelled, o))

    @property
    def about(self) -> str:
        """What a command does, in one sentence for its help."""
        return inspect.getdoc(self.module.run) or COMMANDS[self.verb]

    @property
    def usage(self) -> str:
        """The usage line of a command's help: what is required."""
        words = [f"{o.spelled}{'…' * o.many}" for o in self.arguments]
        words = [word if o.required else f"[{word}]" for word, o in zip(words, self.arguments)]
        needed = [f"{o.spelled} {o.placeholder}" for o in self.own if o.required and not o.meta["argument"]]
        return " ".join([f"bertkit {self.verb}", *words, *needed, translated("[options]")])

    def groups(self) -> dict[str, list[Option]]:
        """A command's own options in its help, without hidden ones, by heading."""
        visible = [o for o in self.own if not o.meta["hidden"]]
        is_long = len(visible) - len(self.arguments) > LONG
        groups: dict[str, list[Option]] = {"Arguments": [], **{heading: [] for heading in GROUPS}}
        for o in visible:
            heading = HEADINGS.get(o.field.name, "Options") if is_long else "Options"
            groups.setdefault("Arguments" if o.meta["argument"] else heading, []).append(o)
        return {heading: members for heading, members in groups.items() if members}

    def parser(self) -> Parser:
        """A command's argument parser. Every default is None, "not given", so that --config and presets apply."""
        parser = Parser(f"bertkit {self.verb}", self.usage, self.about)
        for heading, members in self.groups().items():
            _add(parser.add_argument_group(translated(heading)), members)
        _add(parser, [o for o in self.own if o.meta["hidden"]])
        common = parser.add_argument_group(translated("Common options"))
        _add(common, self.common)
        common.add_argument("-h", "--help", action="help", help=translated("Show this help."))
        return parser

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """The values given on the command line, by settings name."""
        flags, words = self._arrange(argv)
        most = len(self.arguments)
        if len(words) > most and not any(o.many for o in self.arguments):
            takes = " ".join(o.spelled for o in self.arguments) or "options only"
            raise UserError(
                f"{self.verb} takes {takes}; '{words[most]}' is one argument too many. "
                f"Put quotes around a text with spaces. See: bertkit {self.verb} --help"
            )
        given = vars(self.parser().parse_args([*flags, *(["--", *words] if words else [])]))
        return {name: value for name, value in given.items() if value is not None and value != []}

    def _arrange(self, argv: list[str]) -> tuple[list[str], list[str]]:
        """Separate options (joined with their values) from arguments, so they can mix and a value can be -1,-2."""
        flags: list[str] = []
        words: list[str] = []
        rest = argv[::-1]
        while rest:
            word = rest.pop()
            if word == "--":
                return flags, [*words, *rest[::-1]]
            if not _is_option(word):
                words.append(word)
                continue
            name, equals, value = word.partition("=")
            if name in ("-h", "--help"):
                return ["--help"], []
            if name not in self.spellings and name[1] != "-" and name[:2] in self.spellings:  # -k5
                name, equals, value = name[:2], "=", word[2:]
            if name not in self.spellings:
                raise self._unknown(name)
            real, o = self.spellings[name]
            if equals and not o.takes_value:
                raise UserError(f"{name} takes no value. See: bertkit {self.verb} --help")
            if o.takes_value and not equals:
                if not rest or rest[-1].startswith("--") or rest[-1] in self.spellings:
                    raise UserError(f"{name} needs a value. See: bertkit {self.verb} --help")
                value = rest.pop()
            flags.append(f"{real}={value}" if o.takes_value else real)
        return flags, words

    def _unknown(self, name: str) -> UserError:
        known = {spelling: real for spelling, (real, o) in self.spellings.items() if not o.meta["hidden"]}
        hint = did_you_mean(name, known)
        if not hint and not name.startswith("--"):
            hint = " Put a text that starts with a dash after `--`."
        return UserError(f"{self.verb}: there is no option '{name}'.{hint} See: bertkit {self.verb} --help")


class Layout(argparse.HelpFormatter):
    """argparse's layout of a help page, which counts two columns for a Chinese character."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width) if language() == "zh" else super()._split_lines(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if language() != "zh":
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in wrapped(text, width))


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors as UserError and lines of moderate width."""

    def __init__(self, prog: str, usage: str, about: str) -> None:
        width = min(shutil.get_terminal_size().columns, WIDEST)
        layout = partial(Layout, max_help_position=26, width=width)
        usage, about = usage.replace("%", "%%"), translated(about).replace("%", "%%")
        super().__init__(prog, usage, about, formatter_class=layout, add_help=False, allow_abbrev=False)

    def format_help(self) -> str:
        """A command's help page; argparse writes its first word and the colons of headings itself."""
        page = super().format_help().replace("usage: ", translated("usage: "), 1)
        return re.sub(r"^([一-鿿]+):$", r"\1：", page, flags=re.MULTILINE)

    def error(self, message: str) -> NoReturn:
        """The argument parser raises a UserError instead of exiting."""
        raise UserError(f"{message}. See: {self.prog} --help")


def _add(group: argparse._ActionsContainer, members: Iterable[Option]) -> None:
    """Add options to an argparse group, with their help texts and defaults."""
    for o in members:
        facts = "(required)" if o.required and not o.meta["argument"] else ""
        own = language() if o.choices == list(LANGUAGES) else o.default  # the report's language: the program's
        facts = f"(default: {own})" if o.default else facts
        facts = translated(facts)
        gap = "" if facts.startswith("（") else " "  # Chinese brackets bring their own space
        text = f"{translated(o.meta['help'])}{gap}{facts}".rstrip().replace("%", "%%")
        how: dict[str, Any] = {"help": argparse.SUPPRESS if o.meta["hidden"] else text, "default": None}
        if o.meta["argument"]:
            group.add_argument(o.field.name, nargs="*" if o.many else "?", type=o.read, metavar=o.spelled, **how)
        elif o.takes_value:
            how |= {"action": "append" if o.many else "store", "type": o.read, "metavar": o.placeholder}
            group.add_argument(*o.spellings, dest=o.field.name, **how)
        else:
            action: Any = argparse.BooleanOptionalAction if o.field.default is not False else "store_true"
            group.add_argument(o.spelled, dest=o.field.name, action=action, **how)


def _is_option(word: str) -> bool:
    """Whether a word of the command line is an option: not -, not a number, not a text that starts with a dash."""
    name = word.partition("=")[0]
    if not name.startswith("-") or name == "-" or any(character.isspace() for character in name):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def did_you_mean(word: str, known: Mapping[str, str]) -> str:
    """The nearest known spelling of a command-line option, as a "did you mean"; empty if none is near."""
    from difflib import get_close_matches

    bare = {spelling.lstrip("-"): name for spelling, name in known.items()}  # dashes would make all options alike
    return "".join(f" Did you mean '{bare[close]}'?" for close in get_close_matches(word.lstrip("-"), bare, n=1))
