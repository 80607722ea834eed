"""Command lines of all scripts: check flags and choices before any parser runs, and format --help.

Values are parsed by jsonargparse, whose own error messages are long.
"""

import json
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import cleandoc, signature
from textwrap import fill
from typing import Any, Literal, get_args, get_origin, get_type_hints

from base.messages import UsageError, nearest, one_of, one_sentence

STRICT = {"allow_abbrev": False, "exit_on_error": False}  # parser options: no abbreviated flags, raise errors
WORDS = {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT", tuple[str, str]: "TEXT TEXT"}
TRUTHS = ("true", "false", "yes", "no", "on", "off")  # a boolean flag takes these as its value, not as an image's name


def split(args: Sequence[str], kinds: dict[str, Any], script: str) -> tuple[list[str], dict[str, str]]:
    """Split a command line into its positional words and its flags' values.

    A boolean flag without a value is true; a flag that takes two strings has them as JSON.

    Args:
        args: the command line.
        kinds: the flags' names, without dashes, and their annotations.
        script: the script that --help is recommended for, such as sample.py.

    Raises:
        UsageError: an unknown flag, a flag without its value, or a value that is not an allowed choice.
    """
    rest, others, flags = list(args), [], {}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            others.append(word)
            continue
        flag, joined, value = word.partition("=")
        name = flag.removeprefix("--")
        if name not in kinds or flag == name:
            known = [f"--{known}" for known in kinds]
            raise UsageError(f"{flag} is unknown{nearest(flag, known, f': python {script} --help lists the flags')}")
        if not joined and kinds[name] is bool:
            value = rest.pop(0) if rest and rest[0].lower() in TRUTHS else "true"
        elif tuple[str, str] in (kinds[name], *get_args(kinds[name])):
            pair, rest = rest[:2], rest[2:]
            if joined or len(pair) < 2 or any(one.startswith("--") for one in pair):
                raise UsageError(f"{flag} needs two values: {flag} A B")
            value = json.dumps(pair)
        elif not joined:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{flag} needs a value")
            value = rest.pop(0)
        allowed = choices(kinds[name])
        if allowed and value not in allowed:
            raise UsageError(one_of(flag, value, allowed))
        flags[name] = value
    return others, flags


def values(owners: Sequence[type], flags: Mapping[str, str]) -> dict[str, Any]:
    """The values of dataclass fields, with defaults for flags that are not given.

    Args:
        owners: dataclasses whose fields are the flags.
        flags: from `split`.

    Raises:
        UsageError: a value has the wrong type.
    """
    from jsonargparse import ArgumentParser  # not at the top: help and most errors do not need it

    parser = ArgumentParser(**STRICT)
    for owner in owners:
        parser.add_class_arguments(owner)
    try:
        given = parser.parse_args([f"--{name}={value}" for name, value in flags.items()])
    except ArgumentError as error:
        raise UsageError(f"--{one_sentence(str(error))}") from None
    return {field.name: given[field.name] for owner in owners for field in fields(owner)}


def call(function: Callable, args: Sequence[str] | None, script: str, about: str, nargs: str | None = None) -> None:
    """Call a function with arguments from a command line: the first is positional, all others are flags.

    Args:
        function: its docstring describes its arguments.
        args: the command line; None: that of this process.
        script: the command's name in --help.
        about: the command's description in --help.
        nargs: the number of values of the first argument, as in argparse.
    """
    from jsonargparse import ArgumentParser

    first = next(iter(signature(function).parameters))
    parser = ArgumentParser(description=about, prog=script, allow_abbrev=False)
    parser.add_argument(first, nargs=nargs, help=descriptions(function.__doc__)[first].rstrip("."))
    parser.add_function_arguments(function, skip={first})
    function(**parser.parse_args(args).as_dict())


def class_help(owner: type, texts: Mapping[str, str] | None = None) -> list[str]:
    """The --help lines of a dataclass whose fields are flags; `texts` replaces the descriptions in its docstring."""
    kinds, texts, lines = get_type_hints(owner), texts or descriptions(owner.__doc__), []
    for field in fields(owner):
        default = field.default if isinstance(field.default, str | int | float) and field.default is not False else ""
        lines += flag_help(field.name, word_for(kinds[field.name]), default, texts[field.name])
    return lines


def choices(kind: Any) -> list[str]:
    """The values that an annotation lists, as a user types them; empty if it lists none."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [value for part in get_args(kind) for value in choices(part)]


def word_for(kind: Any) -> str:
    """The placeholder of a flag's value in --help."""
    known = [WORDS[part] for part in (kind, *get_args(kind)) if part in WORDS]
    return "|".join(choices(kind)) or known[0]


def flag_help(name: str, value: str, default: Any, text: str) -> list[str]:
    """The --help lines of a flag."""
    lines = [f"  --{name} {value}{f' = {default}' if default not in ('', None) else ''}"]
    return lines + ([fill(text, 116, initial_indent=" " * 6, subsequent_indent=" " * 6)] if text else [])


def descriptions(docstring: str) -> dict[str, str]:
    """The descriptions under "Args:", by name."""
    texts, name, indent = {}, "", None
    for line in cleandoc(docstring).partition("Args:\n")[2].splitlines():
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        if line.strip() and depth < indent:
            break
        if line.strip() and depth == indent:
            name, _, line = line.partition(":")
            for one in name.split(","):
                texts[one.strip()] = ""
        for one in name.split(","):
            texts[one.strip()] = f"{texts[one.strip()]} {line.strip()}".strip()
    return texts
