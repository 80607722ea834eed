"""What an exported folder, a hub id or a Lightning .ckpt holds of a pipeline, read without unpickling code."""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deblur.architectures import Classes, is_of_this_program, known_networks, network_of
from deblur.calibration import ErrorCurve
from deblur.hub import INDEX, ONNX_CLASS, CheckpointError, find_folder, read_index, read_json
from deblur.models.diffusion import ScaleKind
from deblur.models.networks.base import CASCADE, Cascade
from deblur.models.networks.mixins import DDPMScheduler
from deblur.onnx.network import OnnxNetwork, Precision, Provider
from deblur.settings import SCHEDULES, SamplingSettings
from deblur.storage import replacing
from deblur.working_size import OF_AN_EARLIER_RULE, WorkingSize

PARTS = ("predictor", "denoiser")


def convert_layers(network: nn.Module, dtype: torch.dtype) -> None:
    """Give the layers of a network a type, in place. A user's own network, also in a cascade, computes in float32,
    since it may not convert its input."""
    if isinstance(network, Cascade):
        for part in network.children():
            convert_layers(part, dtype)
    elif is_of_this_program(network):
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                layer.to(dtype)


def read_arguments(source: str, provider: Provider | None, precision: Precision, classes: Classes) -> dict[str, Any]:
    """The arguments of a `DeblurPipeline`, as a source stores them; of a .ckpt with its averaged weights.

    The parameters are those of `deblur.pipeline.load_pipeline`, and so is what it raises.
    """
    by_name = known_networks(classes)
    if source.endswith(".ckpt"):
        return _from_run(source, by_name)
    return _from_folder(find_folder(source), by_name, provider, precision)


def _from_run(source: str, by_name: dict[str, type]) -> dict[str, Any]:
    checkpoint, parts = read_torch(Path(source)), {}
    if not isinstance(checkpoint, dict) or not {"pipeline", "state_dict"} <= checkpoint.keys():
        raise CheckpointError(
            f"checkpoint {source} was not written by train.py: it does not say what networks it holds"
        )
    values, state = checkpoint["pipeline"], checkpoint["state_dict"]
    for part in [part for part in PARTS if part in values]:
        weights = {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(f"{part}.")}
        name, config = values[part]["class"], values[part]["config"]
        parts[part] = network_of(by_name, name, config, weights, f"the {part} in {source}")
    return _arguments(parts, values, source)


def _from_folder(
    folder: Path, by_name: dict[str, type], provider: Provider | None, precision: Precision
) -> dict[str, Any]:
    index, parts = read_index(folder), {}
    if index.get("_class_name") != "DeblurPipeline":
        raise CheckpointError(f"{folder} holds a {index.get('_class_name')}, not a DeblurPipeline")
    for part in PARTS:
        named = index.get(part, [None, None])
        if not isinstance(named, list) or len(named) != 2 or not isinstance(named[1], str | None):
            raise CheckpointError(f"{folder / INDEX} has a {part} that is no pair of a module and a class: {named!r}")
        if named[1] == ONNX_CLASS:
            parts[part] = OnnxNetwork(folder / part, part, provider, precision)
        elif named[1] is not None:
            config, state = read_json(folder / part / "config.json"), read_folder(folder / part)
            parts[part] = network_of(by_name, named[1], config, state, f"{folder / part}")
    if "predictor" not in parts:
        raise CheckpointError(f"{folder / INDEX} names no predictor")
    betas = read_json(folder / "scheduler" / "scheduler_config.json").get("trained_betas")
    return _arguments(parts, index | {"betas": betas}, str(folder))


def read_torch(path: Path, checksums: bool = False) -> Any:
    """Load what torch.save wrote: tensors and plain values. A file that would run code is refused.

    `checksums`: verify the archive's checksums, which reads the whole file; otherwise tensors are read on first use.
    Raises CheckpointError, or OSError if the file may not be read.
    """
    if not path.is_file():
        told = "is a folder: give a .ckpt file" if path.is_dir() else "does not exist"
        raise CheckpointError(f"checkpoint {path} {told}")
    path.open("rb").close()  # a file that may not be read is not damaged
    try:
        if checksums:
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise zipfile.BadZipFile(damaged)
        lazy = not checksums and zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=lazy)
    except Exception as error:  # a damaged file, or a pickle that holds more than tensors and plain values
        raise CheckpointError(
            f"checkpoint {path} is damaged, or holds more than tensors and plain values, and was not loaded"
        ) from error


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of the .safetensors file in a folder; none if there is no such file.

    Those of a cascade's networks, which have folders of their own in it, have the names of these before theirs.
    """
    parts = [part for part in CASCADE if (folder / part).is_dir()]
    if parts:
        return {f"{part}.{key}": value for part in parts for key, value in read_folder(folder / part).items()}
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        names = " and ".join(file.name for file in files[:2])
        raise CheckpointError(f"{folder} has several weight files, {names}: remove all but one")
    for file in files:
        file.open("rb").close()  # safetensors calls a file that may not be read one that does not exist
    try:
        return load_file(files[0]) if files else {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{files[0]} is damaged: {error}") from error


def checkpoint_hash(source: str) -> str:
    """The sha256 of a checkpoint's files in order of their names, without presets; scores are stored with it."""
    if source.endswith(".ckpt"):
        files = [Path(source)]
    else:
        folder = find_folder(source)
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".json", ".safetensors", ".onnx"))
    digest = hashlib.sha256()
    for file in files:
        if file.name == INDEX:
            digest.update(_index_text(read_json(file) | {"presets": {}}).encode())
            continue
        with open(file, "rb") as stream:  # a .ckpt may be larger than the memory
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def network_hash(network: nn.Module) -> str:
    """The sha256 of a network's class, arguments and weights as float32, wherever and in whatever type they lie."""
    digest = hashlib.sha256(json.dumps([type(network).__name__, arguments_of(network.config)], sort_keys=True).encode())
    for name, weight in sorted(network.state_dict().items()):
        digest.update(name.encode())
        values = weight.detach().cpu().float() + 0.0  # averages of weights turn -0 into 0
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def save_presets(folder: Path, presets: dict[str, SamplingSettings]) -> None:
    """Write settings under their names into an exported checkpoint; its other presets stay.

    ValueError if one has a schedule of the user's own code, which no checkpoint may name.
    """
    for name, settings in presets.items():
        if settings.schedule not in SCHEDULES:
            raise ValueError(
                f"the settings of {name} have the schedule {settings.schedule}, which is your own code: no preset of a"
                " checkpoint may name it, and none was written; give them by flag"
            )
    new = {name: asdict(settings) for name, settings in presets.items()}
    update_index(folder, presets=read_index(folder).get("presets", {}) | new)


def update_index(folder: Path, **values: Any) -> None:
    """Replace values of an exported checkpoint's model_index.json."""
    index = read_index(folder) | values
    with replacing(folder / INDEX) as part:
        part.write_text(_index_text(index))


def _index_text(index: dict) -> str:
    """model_index.json in the format that diffusers writes."""
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def _arguments(parts: dict[str, nn.Module], values: dict, what: str) -> dict[str, Any]:
    """A pipeline's arguments, from its networks and what is stored beside them."""
    if isinstance(rule := values.get("working_size"), dict):
        known = {name: value for name, value in rule.items() if name not in OF_AN_EARLIER_RULE}
        values = values | {"working_size": known}
    if fault := _fault(values):
        raise CheckpointError(f"{what} {fault}")
    betas, c = values["betas"], values["residual_scale"]
    scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=list(betas))
    arguments = {"predictor": parts["predictor"], "denoiser": parts.get("denoiser"), "scheduler": scheduler}
    arguments["residual_scale"] = c[0] if isinstance(c, list) and len(c) == 1 else c
    arguments["scale_kind"] = values.get("scale_kind", "global")  # older checkpoints have one scale for all pixels
    optional = ("presets", "error_curve", "sigma_min", "sigma_max", "working_size")
    return arguments | {name: values.get(name) for name in optional}


def _fault(values: dict) -> str | None:
    """What is wrong with the values beside the networks, as the end of a sentence; None if nothing is."""
    betas, c, kind = values.get("betas"), values.get("residual_scale"), values.get("scale_kind", "global")
    if not isinstance(betas, list) or not betas or not all(isinstance(beta, float) and 0 < beta < 1 for beta in betas):
        return "lacks the training schedule's betas: numbers between 0 and 1"
    numbers = c if isinstance(c, list) else [c]
    if len(numbers) not in (1, 3) or not all(isinstance(number, int | float) for number in numbers):
        return "lacks the residual scale: a number, or one for each of three channels"
    if kind not in get_args(ScaleKind):
        return f"has a scale_kind {kind!r}; known are {', '.join(get_args(ScaleKind))}"
    least, most = values.get("sigma_min"), values.get("sigma_max")
    for name, sigma in (("sigma_min", least), ("sigma_max", most)):
        if sigma is not None and not (isinstance(sigma, int | float) and sigma > 0):
            return f"has {name} {sigma!r}: it is a noise level, a number above 0"
    if least is not None and most is not None and least >= most:
        return f"has sigma_min {least}, which is not below its sigma_max {most}"
    for name, kind in {"error_curve": ErrorCurve, "working_size": WorkingSize}.items():
        try:
            if values.get(name):
                kind(**values[name])
        except (TypeError, ValueError) as error:
            return f"has a value of {name} that is none: {error}"
    return None


def arguments_of(config: Mapping) -> dict:
    """A network's constructor arguments, as JSON has them, without the entries that diffusers adds to a config.

    Those of a cascade's networks are among its own.
    """

    def cleaned(entries: list[tuple[str, Any]]) -> dict:
        return {key: value for key, value in entries if not key.startswith("_")}

    return json.loads(json.dumps(dict(config)), object_pairs_hook=cleaned)
