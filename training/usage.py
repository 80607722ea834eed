"""train.py's help and its checks of flags, choices and paths, before any library is loaded.

PyTorch and Lightning take seconds to load, and the flags are the arguments of their classes and of ours. So these are
parsed from the source files without running them. Anything not understood here is left to the real parser.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from base.command_line import descriptions, flag_help
from base.messages import UsageError, nearest, one_of

LISTED = "; python train.py fit --help lists the flags"
MARKUP = re.compile(r"(?::\w+:)?`+~?(?:[\w.]+\.)?([^`]*)`+")  # of Sphinx
ROOT = Path(__file__).parents[1]
COMMANDS = {
    "fit": "train, or resume the run in trainer.default_root_dir",
    "validate": "score a checkpoint on data.val",
    "test": "score a checkpoint on data.test, whole images",
    "replay": "repeat a step whose batch a run saved: train.py replay FILE --config ...",
}
COMMON = {
    "config FILE": "the run; more than one are merged, and flags override them",
    "data.train PATH": "pairs in any layout, or sharp photographs where data.blur is set",
    "data.val PATH": "the same for validation",
    "data.batch_size N": "crops per batch and device",
    "data.num_workers N": "processes that read files",
    "trainer.default_root_dir DIR": "the run's folder; the same command resumes the run in it",
    "trainer.max_steps N": "length of the run",
    "trainer.val_check_interval N": "batches between validations, each with a checkpoint",
    "model.lr RATE": "peak learning rate",
    "model.init_from CHECKPOINT": "exported folder, hub id or .ckpt whose weights to start from",
}
GENERAL = {
    "seed_everything": "seed of the run",
    "ckpt_path": "checkpoint to resume from, or to score",
    "auto_resume": "false: start anew and overwrite the run in its folder",
    "print_config": "print the config that all this makes, and exit",
}
# Defaults that differ from Lightning's. The training stream has no epochs: its length is max_steps.
DEFAULTS = {
    "default_root_dir": "runs/latest",
    "max_epochs": -1,
    "check_val_every_n_epoch": None,
    "val_check_interval": 1000,
    "use_distributed_sampler": False,  # the data module splits the data between processes
    "enable_model_summary": False,  # train.py prints its own summary
}
CLASSES = {
    "data": ("data/datamodule.py", "DeblurDataModule"),
    "model": ("models/lightning_module.py", "PredictAndRefine", "Predict"),
    "ema": ("training/averages.py", "Averages"),
    "scores": ("training/scores.py", "Scores"),
    "guard": ("training/guards.py", "Guard"),
    "scale": ("training/scale.py", "Scale"),
    "gates": ("training/gates.py", "Gates"),
    "trainer": ("lightning/pytorch/trainer/trainer.py", "Trainer"),
}


class Argument(NamedTuple):
    """An argument of a class as written in its source: annotation, default (both may be empty) and description."""

    kind: str
    default: str
    text: str

    @property
    def choices(self) -> list[str] | None:
        """The accepted values if the annotation lists them."""
        tree = ast.parse(self.kind, mode="eval").body if self.kind else None
        if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Literal":
            values = ast.literal_eval(tree.slice)
            return [str(value) for value in (values if isinstance(values, tuple) else [values])]
        return None


def help_text(command: str | None) -> str:
    """The help of train.py, or of one of its commands with all its flags."""
    lines = ["usage: python train.py COMMAND --config FILE [--FLAG VALUE ...]", "", "flags that most runs need:"]
    lines += [f"  --{name:<32} {text}" for name, text in COMMON.items()]
    lines += ["", "commands:", *(f"  {name:<34} {text}" for name, text in COMMANDS.items()), ""]
    if command is None:
        lines.append("Every value of a config is a flag, too: python train.py fit --help lists them.")
        return "\n".join(lines)
    lines += ["all flags:", *(f"  --{name:<32} {text}" for name, text in GENERAL.items())]
    for group in CLASSES:
        for name, argument in arguments(group).items():
            value = repr(DEFAULTS[name]) if group == "trainer" and name in DEFAULTS else argument.default
            lines += flag_help(f"{group}.{name}", argument.kind, value, argument.text)
    lines += ["", "Some are classes, whose own arguments follow a dot (python train.py fit --model.help CLASS):"]
    lines.append("  --model.denoiser models.unet.Denoiser --model.denoiser.channels 32")
    return "\n".join(lines)


def check(command: str, args: list[str]) -> None:
    """Raise UsageError for the first wrong flag, choice or path.

    Args:
        command: fit, validate, test or replay.
        args: the arguments after the command; for replay, after the file.

    Raises:
        UsageError: describes the first fault.
    """
    given = [(f"--{key}", key, value) for key, value in _flags(args)]
    files = [Path(value) for _, key, value in given if key in ("config", "c") and value]
    inside = [(f"{file}: {key}", key, value) for file in files for key, value in _leaves(_read(file))]
    known = all(_is_ours(value) for _, key, value in inside + given if key in ("model", "model.class_path"))
    for where, key, value in given:
        if value is None and not key.startswith("print_config"):
            raise UsageError(f"{where} needs a value")
    for where, key, value in inside + given:
        if known or not key.startswith("model."):
            _check_name(where, key, value)
    merged = {key: value for _, key, value in inside + given}
    plain = {key.replace("init_args.", "").partition(".predictor.")[0] for key in merged}
    if known and not plain & {"model.predictor", "model", "print_config"}:
        more = f": give a config, as python train.py {command} --config configs/demo.yaml" if not files else ""
        raise UsageError(f"model.predictor is missing{more}")
    for split in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(command, ()):
        for path in _paths(merged.get(f"data.{split}")):
            if not Path(path).exists():
                raise UsageError(f"data.{split}: {path} does not exist")
    checkpoint = merged.get("ckpt_path")
    if checkpoint and str(checkpoint).endswith(".ckpt") and not Path(checkpoint).is_file():
        raise UsageError(f"ckpt_path: {checkpoint} does not exist")


@cache
def arguments(group: str) -> dict[str, Argument]:
    """The arguments of the class or classes whose flags begin with this name of `CLASSES`."""
    file, *names = CLASSES[group]
    # find_spec does not import a top-level package.
    root = ROOT if (ROOT / file).is_file() else Path(find_spec(file.partition("/")[0]).origin).parents[1]
    found = {}
    for node in ast.parse((root / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            found = _signature(node) | found
    return found


def _signature(node: ast.ClassDef) -> dict[str, Argument]:
    init = next(part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
    texts = _texts(ast.get_docstring(node) or "") | _texts(ast.get_docstring(init) or "")
    plain = init.args.args[1:]
    defaults = [None] * (len(plain) - len(init.args.defaults)) + init.args.defaults
    pairs = [*zip(plain, defaults, strict=True), *zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)]
    return {
        one.arg: Argument(
            _kind(one.annotation) if one.annotation else "",
            ast.unparse(default) if default else "",
            texts.get(one.arg, ""),
        )
        for one, default in pairs
    }


def _kind(node: ast.expr) -> str:
    """An annotation as text, with Union and Optional written as X | Y."""
    name = ast.unparse(node.value) if isinstance(node, ast.Subscript) else ""
    if name == "Optional":
        return f"{_kind(node.slice)} | None"
    return " | ".join(map(_kind, node.slice.elts)) if name == "Union" else ast.unparse(node)


def _texts(docstring: str) -> dict[str, str]:
    """The descriptions under "Args:", without Sphinx's markup."""
    return {name: MARKUP.sub(r"\1", text) for name, text in descriptions(docstring).items()}


def _flags(args: list[str]) -> Iterator[tuple[str, str | None]]:
    """The flags' names without dashes, and their values."""
    rest = list(args)
    while rest:
        flag, joined, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            hint = f"did you mean --config {flag}?" if Path(flag).suffix in (".yaml", ".yml") else "flags begin with --"
            raise UsageError(f"{flag} belongs to no flag: {hint}")
        if not joined:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else None
        yield flag.lstrip("-").removesuffix("+"), value


def _leaves(content: dict) -> Iterator[tuple[str, Any]]:
    """A config's values by the names that flags use."""
    for group, values in content.items():
        if not isinstance(values, dict) or group not in CLASSES:
            yield str(group), values
            continue
        for name, value in values.items():
            if group == "model" and name == "init_args" and isinstance(value, dict):
                yield from ((f"model.{key}", own) for key, own in value.items())
            else:
                yield f"{group}.{name}", value


def _read(file: Path) -> dict:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {file} holds no config: it begins with {str(content)[:40]!r}")
    return content


def _is_ours(value: Any) -> bool:
    """Whether a model given by class name is one of the classes that are parsed here."""
    name = value.get("class_path", "") if isinstance(value, dict) else str(value)
    return not name or name.rpartition(".")[2] in CLASSES["model"]


def _check_name(where: str, key: str, value: Any) -> None:
    group, _, rest = key.partition(".")
    if group not in CLASSES:
        if group not in (*GENERAL, "config", "c"):
            raise UsageError(f"{where} is unknown{nearest(group, [*CLASSES, *GENERAL, 'config'], LISTED)}")
        return
    names = arguments(group)
    path = [part for part in rest.split(".") if not (group == "model" and part == "init_args")]
    if not rest or not path or path[0] in ("class_path", "dict_kwargs", "help"):
        return
    if path[0] not in names:
        raise UsageError(
            f"{where} is unknown{nearest(f'{group}.{path[0]}', [f'{group}.{name}' for name in names], LISTED)}"
        )
    choices = names[path[0]].choices
    if choices and len(path) == 1 and value is not None and str(value) not in choices:
        raise UsageError(one_of(where, str(value), choices))


def _paths(value: Any) -> list[str]:
    """The paths in the value of data.train, data.val or data.test."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        with suppress(yaml.YAMLError):  # a path may begin like a list
            value = yaml.safe_load(value)
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str) and one not in ("", "null")]
