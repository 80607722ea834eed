"""Sentences about wrong flags and config values."""

import ast
import re
from difflib import get_close_matches

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list", "list": "a list"}


class UsageError(ValueError):
    """A command line is wrong; the message is one sentence."""


def nearest(word: str, words: list[str], otherwise: str = "") -> str:
    """The end of an error message about an unknown word: the closest known word, or else `otherwise`."""
    found = get_close_matches(word, words, 1)
    return f": did you mean {found[0]}?" if found else otherwise


def one_of(name: str, value: str, choices: list[str]) -> str:
    """The error message for a value that is not one of the allowed ones."""
    return f"{name} is one of {', '.join(choices)}, not {value}{nearest(value, choices)}"


def one_sentence(message: str) -> str:
    """An error message in one line; jsonargparse's nested messages are reduced to what a user can do about them.

    A value that is not allowed is named with the allowed ones, an unknown name with the closest known one.
    """
    if not re.search(r"Parser key|Does not validate|Expected a", message):
        return " ".join(message.split())
    name = ".".join(re.findall(r'Parser key "([^"]+)"', message)) or "the config"
    value = _value(message)
    classes = re.findall(r"class_path '([\w.]+)'", message)
    if unknown := re.search(r"Option '([^']+)' is not accepted", message):
        word = unknown[1].partition(".")[0]
        return f"{name}.{unknown[1]} is unknown{_nearest_argument(word, classes[-1] if classes else '')}"
    if unknown := re.search(r"unrecognized arguments: --([\w.]+)", message):
        return f"{name}.{unknown[1]} is unknown"
    if missing := re.search(r"the following arguments are required: (.+)", message):
        return f"{name}: {classes[-1] if classes else 'this'} needs {missing[1]}"
    if "Expected a dot import path" in message:
        return f"{name}: there is no class {value}; give it with its module, as models.unet.UNetPredictor"
    if wrong := re.search(r"Import path ([\w.]+) does not correspond to a subclass of (\w+)", message):
        return f"{name}: {wrong[1]} is no {wrong[2]}"
    groups = re.findall(r"Expected a typing\.Literal(\[.*\])", message)
    choices = [str(one) for group in groups for one in ast.literal_eval(group)]
    kinds = re.findall(r"Expected a <class '(?!NoneType)([\w.]+)'>", message)
    if choices:
        return one_of(name, value, list(dict.fromkeys(choices)))
    if kinds:
        return f"{name} is {' or '.join(dict.fromkeys(KINDS.get(kind, kind) for kind in kinds))}, not {value}"
    reasons = re.findall(r"Expected a (?!<class)[^<]+? Got value: .*", message)
    reasons += re.findall(r"^\s*- (?!Expected a <class 'NoneType'>|Problem with)(.+)", message, re.MULTILINE)
    return f"{name}: {' '.join((reasons[0] if reasons else message).split())}"


def _value(message: str) -> str:
    """The given value; for a flag of a nested class, the one that its own parser reports."""
    found = re.findall(r"Got value: (.*)", message) or re.findall(r"Given value: (.*)", message)
    inner = re.search(r"NestedArg\(key='[^']*', val='?(.*?)'?\)$", found[0]) if found else None
    return inner[1] if inner else found[0].strip() if found else ""


def _nearest_argument(word: str, path: str) -> str:
    """`nearest` among a class's arguments, if the class has been imported."""
    import inspect
    import sys

    module, _, name = path.rpartition(".")
    known = getattr(sys.modules.get(module), name, None)
    arguments = [one for one in inspect.signature(known).parameters if one != "self"] if known else []
    return nearest(word, arguments, f": {name} has {', '.join(arguments)}" if arguments else "")
