"""`bertkit completion SHELL`: a script that lets the shell complete commands, options and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.config import Common, option

if TYPE_CHECKING:
    from bertkit.commands.parser import Command, Option

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit completion`."""

    shell: str = option(help=f"One of {', '.join(SHELLS)}.", argument=True, choices=SHELLS)


def run(settings: Settings) -> str:
    """Print a completion script: source it, or save it where your shell looks for completions."""
    from bertkit.commands import COMMANDS
    from bertkit.commands.parser import Command

    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[settings.shell]
    return "\n".join(write([Command(verb) for verb in COMMANDS]))


def _options(command: Command) -> list[Option]:
    """The options the shell completes, in the order of `--help`."""
    specific = [o for members in command.groups().values() for o in members if not o.meta["argument"]]
    return [*specific, *command.common]


def _bash(commands: list[Command]) -> Iterator[str]:
    """The completion script for bash, line by line."""
    yield "# bash completion for bertkit. To use it: source <(bertkit completion bash)"
    yield "_bertkit() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}"
    yield "    local options= values="
    yield "    case $COMP_CWORD:$command in"
    yield f'        1:*) values="{" ".join(c.verb for c in commands)} --help --version" ;;'
    for c in commands:
        named = " ".join(spelling for o in _options(c) for spelling in o.spellings)
        yield f'        *:{c.verb}) options="{named} --help" ;;'
    yield "    esac"
    yield '    case "$COMP_CWORD $command $before" in'
    for c in commands:
        if c.arguments and c.arguments[0].choices:
            yield f'        "2 {c.verb} "*) values="{" ".join(c.arguments[0].choices)}" ;;'
        for o in _options(c):
            if o.choices:
                yield f'        *" {c.verb} {o.spelled}") values="{" ".join(o.choices)}" ;;'
    yield "    esac"
    yield "    if [[ $word == -* && $COMP_CWORD -gt 1 ]]; then values=$options; fi"
    yield '    COMPREPLY=($(compgen -W "$values" -- "$word"))'
    yield "}"
    yield "complete -o default -F _bertkit bertkit"  # file names where nothing else fits


def _zsh(commands: list[Command]) -> Iterator[str]:
    """The completion script for zsh, line by line."""
    from bertkit.commands import COMMANDS

    yield "#compdef bertkit"
    yield "# zsh completion for bertkit. To use it: source <(bertkit completion zsh)"
    yield "_bertkit() {"
    yield "    if (( CURRENT == 2 )); then"
    yield "        local -a commands=("
    for c in commands:
        yield f"            {_quoted(c.verb + ':' + COMMANDS[c.verb])}"
    yield "        )"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    shift words"
    yield "    (( CURRENT-- ))"
    yield "    case $words[1] in"
    for c in commands:
        yield f"        {c.verb})"
        yield "            _arguments \\"
        for o in _options(c):
            about = "".join("\\" + sign if sign in "[]:\\" else sign for sign in o.meta["help"])
            value = f":{o.field.name}:{_zsh_values(o)}" if o.takes_value else ""
            again = "*" if o.many else ""
            for spelling in o.spellings:
                yield f"                {_quoted(f'{again}{spelling}[{about}]{value}')} \\"
        first = c.arguments[0] if c.arguments else None
        if first and first.choices:
            yield f"                {_quoted(f'1:{first.field.name}:{_zsh_values(first)}')} \\"
        yield "                '--help[Show this help.]' '*:file:_files' ;;"
    yield "    esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _bertkit ]]; then _bertkit "$@"; else compdef _bertkit bertkit; fi'


def _zsh_values(o: Option) -> str:
    return f"({' '.join(o.choices)})" if o.choices else "_files" if o.kind in (Path, str) else ""


def _fish(commands: list[Command]) -> Iterator[str]:
    """The completion script for fish, line by line."""
    from bertkit.commands import COMMANDS

    yield "# fish completion for bertkit. To use it: bertkit completion fish | source"
    yield "function __bertkit_command"
    yield "    set -l words (commandline -opc)"
    yield '    test "$words[2]" = "$argv[1]"'
    yield "end"
    for c in commands:
        about = _quoted(COMMANDS[c.verb], fish=True)
        yield f"complete -c bertkit -n '__bertkit_command \"\"' -f -a {c.verb} -d {about}"
    for c in commands:
        condition = f"complete -c bertkit -n '__bertkit_command {c.verb}'"
        if c.arguments and c.arguments[0].choices:
            yield f"{condition} -a '{' '.join(c.arguments[0].choices)}'"
        for o in _options(c):
            about = _quoted(o.meta["help"], fish=True)
            value = f" -x -a '{' '.join(o.choices)}'" if o.choices else " -r" if o.takes_value else ""
            for spelling in o.spellings:
                name = f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}"
                yield f"{condition} {name}{value} -d {about}"
        yield f"{condition} -l help -d 'Show this help.'"


def _quoted(text: str, fish: bool = False) -> str:
    """Text in single quotes, as the shell reads it."""
    if fish:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return "'" + text.replace("'", "'\\''") + "'"
