"""Command lines of all programs: flags from signatures, errors in one sentence, and an end by a signal."""

import ast
import io
import json
import os
import re
import signal
import sys
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from inspect import signature
from shutil import get_terminal_size
from typing import Any, TextIO, get_args

from docstring_parser import parse
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

TYPES_IN_WORDS = {
    "<class 'str'>": "text",
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
}


class UsageError(ValueError):
    """A command line is wrong; the message is one sentence."""


def escaped(name: str) -> str:
    r"""A file's name as it is recorded: one that is not UTF-8 with its other bytes as \xe9."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def error_in_words(error: Exception) -> str:
    """An error as a sentence; one of the system is its file and its reason, without a number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def nearest(word: str, words: list[str], otherwise: str = "") -> str:
    """The end of an error message about an unknown word: the closest known word, or else `otherwise`."""
    matches = get_close_matches(word, words, 1)
    return f": did you mean {matches[0]}?" if matches else otherwise


def one_of(name: str, value: str, choices: list[str]) -> str:
    """The error message for a value that is not one of the allowed ones."""
    return f"{name} is one of {', '.join(choices)}, not {value}{nearest(value, choices)}"


def number_of(number: int, word: str) -> str:
    """A number and what it counts: 1 step, 2 steps."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def explain(error: BaseException, dashes: str = "") -> str:
    """A parser's error in one sentence: the value's name, from all errors that led to this one, and the first cause.

    The errors of jsonargparse (4.53) hold nothing but texts, so it is told from their first words what they are about.
    Each repeats what its causes say, so only its beginning is new.

    Args:
        error: of jsonargparse.
        dashes: what precedes the names of values.
    """
    names, owner, cause = [], "", error
    while cause is not None:
        if (name := _quoted(cause, 'Parser key "')) and names[-1:] != [name]:
            names.append(name)
        owner = _quoted(cause, "Problem with given class_path '") or owner
        last, cause = cause, cause.__cause__ or cause.__context__
    if unknown := _quoted(last, "Option '") or _quoted(last, "unrecognized arguments: --"):
        module, _, kind = owner.rpartition(".")
        known = getattr(sys.modules.get(module), kind, None)  # the class, if it has been imported
        arguments = list(signature(known).parameters) if known else []
        hint = nearest(unknown, arguments, f": {kind} has {', '.join(arguments)}" if arguments else "")
        return f"{'.'.join([*names, unknown])} is unknown{hint}"
    name, reason = dashes + ".".join(names), " ".join(str(last).split())
    wanted, _, value = reason.removeprefix("Expected a ").partition(". Got value: ")
    if wanted.startswith("typing.Literal"):
        return one_of(name, value, [str(choice) for choice in ast.literal_eval(wanted.removeprefix("typing.Literal"))])
    if value:
        return f"{name} is {TYPES_IN_WORDS.get(wanted, f'a {wanted}')}, not {value}"
    reason = reason.replace(
        "Expected a dot import path string:", "not a class with its module, as deblur.models.networks.unet.Denoiser:"
    )
    return f"{name}: {reason}" if names else reason


def _quoted(error: BaseException, before: str) -> str:
    """The name that follows these words at the beginning of an error; empty if it begins otherwise."""
    text = str(error)
    return re.split("['\"= ]", text.removeprefix(before), maxsplit=1)[0] if text.startswith(before) else ""


class Stopped(BaseException):
    """A signal ended the command. It is not an error, so code that catches only errors must not catch it.

    Attributes:
        signal: the signal's number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message)
        self.signal = number


class _Outlet(io.FileIO):
    """A file that takes all that is written, and drops it once its reader has gone."""

    def write(self, content: bytes) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(content)


def _lasting(stream: TextIO | None, of_process: TextIO | None) -> TextIO:
    """A stream for a command's lines, whoever reads them: one that is closed, or whose reader goes, is no error.

    Args:
        stream: sys.stdout or sys.stderr.
        of_process: what Python started with, if it has not been replaced.
    """
    if stream is None:  # closed; its number must not go to a file that the command opens
        return open(os.devnull, "w", encoding="utf-8")
    if stream is of_process and not stream.isatty():
        stream.flush()
        lines = stream.line_buffering or stream.write_through
        buffer = io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False))
        stream = io.TextIOWrapper(buffer, stream.encoding, line_buffering=lines)
    if isinstance(stream, io.TextIOWrapper):  # a notebook has its own kind
        stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    return stream


def run_command(
    name: str, command: Callable[[], int | None], stopped: str, describe: Callable[[Exception], str] = error_in_words
) -> int:
    """Run a command and return its exit code; wrong input or a stop is reported in one sentence on stderr.

    Args:
        name: the script's name, for its messages.
        command: returns its exit code; None is 0.
        stopped: the message for Ctrl-C.
        describe: puts an error into a sentence.
    """

    def stop(number: int, frame) -> None:
        raise Stopped(number, stopped)

    sys.stdout = _lasting(sys.stdout, sys.__stdout__)
    sys.stderr = _lasting(sys.stderr, sys.__stderr__)
    before = signal.signal(signal.SIGINT, stop)
    try:
        return command() or 0
    except SystemExit as end:  # after --help
        return end.code or 0
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"{name}: error: {describe(error)}", file=sys.stderr)
        return 2
    except Stopped as end:
        if str(end):  # otherwise the command has said it itself
            print(f"{name}: {end}", file=sys.stderr)
        return 128 + end.signal
    finally:
        signal.signal(signal.SIGINT, before)


PARSER_OPTIONS = {"allow_abbrev": False, "exit_on_error": False}  # no abbreviated flags, and errors are raised
# Which a boolean flag takes as its value, not as an image's name, and what they mean.
TRUTH_VALUES = dict.fromkeys(("true", "yes", "on", "1"), "true") | dict.fromkeys(("false", "no", "off", "0"), "false")


class Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Types and defaults of all flags; the description keeps its lines. A class's subclasses, which may be all of
    PyTorch's modules, are left out."""

    def _expand_help(self, action: Action) -> str:
        return re.sub(r", known subclasses: [^)]*", "", super()._expand_help(action))


def make_parser(script: str, about: str, usage: str = "[--FLAG VALUE ...]") -> "Parser":
    """A parser without arguments.

    Args:
        script: the command as it follows `python`, such as sample.py.
        about: the description in --help.
        usage: the arguments in the first line of --help.
    """
    formatter = partial(Formatter, width=min(120, get_terminal_size().columns))
    name = f"python {script}"
    return Parser(
        prog=name, usage=f"{name} {usage}", description=about.strip(), formatter_class=formatter, **PARSER_OPTIONS
    )


class Parser(ArgumentParser):
    """A parser that takes flags and other words in any order, and a boolean flag with or without its value."""

    def given(self, args: Sequence[str]) -> dict[str, Any]:
        """The values that a command line gives, without defaults.

        Raises:
            UsageError: an unknown flag, a missing value, or a wrong one.
        """
        try:
            return self.parse_args(self.in_order(args), defaults=False).as_dict()
        except ArgumentError as error:
            missing = str(error).partition("arguments are required: ")[2].partition(",")[0]
            flag = f"--{missing}" if f"--{missing}" in self._option_string_actions else missing
            raise UsageError(f"{flag} is missing: {self.usage}" if missing else explain(error, "--")) from None

    def in_order(self, args: Sequence[str]) -> list[str]:
        """The flags, as --name=value, and then all other words, which argparse takes only together.

        Raises:
            UsageError: an unknown flag, or a flag without its value.
        """
        flags, words, rest = [], [], list(args)
        while rest:
            word = rest.pop(0)
            name, joined, _ = word.partition("=")
            if word == "--":
                words, rest = words + rest, []
                continue
            if not word.startswith("-") or word == "-":
                words.append(word)
                continue
            action = self._option_string_actions.get(name)
            if action is None and os.path.exists(word):
                raise UsageError(f"{word} is taken for a flag: write ./{word}")
            if action is None:
                there = [flag for flag in self._option_string_actions if flag.startswith("--")]
                raise UsageError(f"{name} is unknown{nearest(name, there, f': {self.prog} --help lists the flags')}")
            if joined or action.nargs == 0:
                flags.append(word)
            elif getattr(action, "_typehint", None) is bool:
                is_given = bool(rest) and rest[0].lower() in TRUTH_VALUES
                flags.append(f"{name}={TRUTH_VALUES[rest.pop(0).lower()] if is_given else 'true'}")
            else:
                pair = tuple[str, str] in get_args(getattr(action, "_typehint", None))
                count = 2 if pair else 1
                values = rest[:count]
                rest = rest[count:]
                if len(values) < count or any(value.startswith("--") for value in values):
                    raise UsageError(f"{name} needs {f'two values: {name} A B' if pair else 'a value'}")
                flags.append(f"{name}={json.dumps(values) if pair else values[0]}")
        if words and all(action.option_strings for action in self._actions):
            raise UsageError(f"{words[0]} belongs to no flag (--help lists the flags)")
        return [*flags, "--", *words] if words else flags


def call(
    function: Callable,
    args: Sequence[str] | None,
    script: str,
    about: str | None = None,
    positional: int = 1,
    nargs: str | None = None,
) -> Any:
    """Call a function with arguments from a command line, and return what it returns.

    Args:
        function: its docstring describes its arguments.
        args: the command line; None: that of this process.
        script: the command as it follows `python`.
        about: the description in --help; default: the docstring of the function's module.
        positional: how many arguments have no flag; these come first.
        nargs: number of values of the first argument, as in argparse.

    Raises:
        UsageError: the command line is wrong.
    """
    first = list(signature(function).parameters)[:positional]
    usage = " ".join(name.upper() + (" ..." if nargs else "") for name in first)
    about = about or sys.modules[function.__module__].__doc__
    parser = make_parser(script, about, f"{usage} [--FLAG VALUE ...]".lstrip())
    texts = {parameter.arg_name: parameter.description for parameter in parse(function.__doc__).params}
    for at, name in enumerate(first):
        parser.add_argument(name, nargs=None if at else nargs, type=str, help=" ".join(texts[name].split()))
    parser.add_function_arguments(function, skip=set(first))
    return function(**parser.given(sys.argv[1:] if args is None else args))
