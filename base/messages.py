"""Sentences about wrong flags and config values."""

import ast
import inspect
import re
import sys
from difflib import get_close_matches

WORDS = {
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


def in_words(error: Exception) -> str:
    """An error as a sentence; one of the system is its file and its reason, without a number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def nearest(word: str, words: list[str], otherwise: str = "") -> str:
    """The end of an error message about an unknown word: the closest known word, or else `otherwise`."""
    found = get_close_matches(word, words, 1)
    return f": did you mean {found[0]}?" if found else otherwise


def one_of(name: str, value: str, choices: list[str]) -> str:
    """The error message for a value that is not one of the allowed ones."""
    return f"{name} is one of {', '.join(choices)}, not {value}{nearest(value, choices)}"


def explain(error: BaseException, dashes: str = "") -> str:
    """A parser's error in one sentence: the value's name, from all errors that led to this one, and the first cause.

    jsonargparse repeats in each error what its causes say, so only the beginning of each is new.

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
        return f"{'.'.join([*names, unknown])} is unknown{_nearest_argument(unknown, owner)}"
    name, reason = dashes + ".".join(names), " ".join(str(last).split())
    wanted, _, value = reason.removeprefix("Expected a ").partition(". Got value: ")
    if wanted.startswith("typing.Literal"):
        return one_of(name, value, [str(choice) for choice in ast.literal_eval(wanted.removeprefix("typing.Literal"))])
    if value:
        return f"{name} is {WORDS.get(wanted, f'a {wanted}')}, not {value}"
    reason = reason.replace(
        "Expected a dot import path string:", "not a class with its module, as models.unet.Denoiser:"
    )
    return f"{name}: {reason}" if names else reason


def _quoted(error: BaseException, before: str) -> str:
    """The name that follows these words at the beginning of an error; empty if it begins otherwise."""
    text = str(error)
    return re.split("['\"= ]", text.removeprefix(before), maxsplit=1)[0] if text.startswith(before) else ""


def _nearest_argument(word: str, path: str) -> str:
    """`nearest` among a class's arguments, if the class has been imported."""
    module, _, name = path.rpartition(".")
    owner = getattr(sys.modules.get(module), name, None)
    arguments = list(inspect.signature(owner).parameters) if owner else []
    return nearest(word, arguments, f": {name} has {', '.join(arguments)}" if arguments else "")
