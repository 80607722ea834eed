"""Load a pipeline from an exported folder, a hub id or a Lightning .ckpt, without unpickling code."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from base.files import replacing
from models.calibration import ErrorCurve
from models.classes import NETWORKS, Classes, known_networks
from models.devices import choose_device, resolve_precision
from models.diffusion import ScaleKind
from models.engines import Precision, Provider
from models.index import INDEX, CheckpointError, find_folder, is_deployed, read_json
from models.onnx_network import OnnxNetwork
from models.parts import DDPMScheduler, ModelMixin
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings
from models.weights import check_keys, read_folder, read_torch

PARTS = ("predictor", "denoiser")


def load_pipeline(
    source: str,
    device: str | torch.device = "cpu",
    precision: Precision = "auto",
    provider: Provider | None = None,
    classes: Classes = (),
) -> DeblurPipeline:
    """Load a pipeline that is ready to restore: in eval mode, on the device, in the precision, channels last.

    Args:
        source: exported folder, Lightning .ckpt file, hub id "user/name" or "user/name@revision", or the name of a
            checkpoint that comes with the repository, such as lite.
        device: a torch device name, or auto for the first available of cuda, mps and cpu.
        precision: of the networks' layers; the schedule, the residual and normalisation statistics stay float32. auto
            is bf16 where the device supports it natively.
        provider: runs the networks of an ONNX folder: openvino (the default if it is installed), or cpu, cuda or
            tensorrt of ONNX Runtime. The tensors outside these networks stay on the CPU.
        classes: a user's own networks that the checkpoint names, as classes or as paths such as mypred.MyPredictor
            (docs/extend.md). A file alone never makes this program import a class.

    Raises:
        CheckpointError: the checkpoint is missing or incomplete, its weights belong to another architecture, or an
            ONNX file is damaged, was not exported here, or cannot be run on this machine.
    """
    pipeline = read_pipeline(source, provider, precision, classes)
    if isinstance(pipeline.predictor, OnnxNetwork):
        pipeline.precision = pipeline.predictor.engine.precision
        if str(device) not in ("auto", "cpu"):
            raise CheckpointError(
                f"{source} is an ONNX folder, whose tensors stay on the CPU: omit the device {device}; --provider says"
                " what runs the networks"
            )
        return pipeline
    if provider is not None:
        raise CheckpointError(
            f"{source} is no ONNX folder, which the provider {provider} would run: export it with deployment.export, or"
            " omit --provider"
        )
    device = choose_device(str(device))
    pipeline.precision = resolve_precision(precision, device)
    dtype = torch.bfloat16 if pipeline.precision == "bf16" else torch.float32
    for network in networks(pipeline).values():
        network.requires_grad_(False).eval()
        nn.Module.to(network, device, memory_format=torch.channels_last)  # diffusers' own `to` loads the compiler
        if NETWORKS.get(type(network).__name__) is not type(network):
            continue  # a user's own computes in float32, since it may not convert its input
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.to(dtype)
    return pipeline


def read_pipeline(
    source: str, provider: Provider | None = None, precision: Precision = "auto", classes: Classes = ()
) -> DeblurPipeline:
    """The pipeline of a source, as it is stored. Raises CheckpointError as `load_pipeline` does."""
    if source.endswith(".ckpt"):
        return from_ckpt(Path(source), classes)
    return from_folder(find_folder(source), provider, precision, classes)


def from_folder(
    folder: Path, provider: Provider | None = None, precision: Precision = "auto", classes: Classes = ()
) -> DeblurPipeline:
    """Load the pipeline in an exported folder, unchanged. Raises CheckpointError as `load_pipeline` does."""
    index = read_json(folder / INDEX, "an exported checkpoint has one; train.py writes it after fit")
    if index.get("_class_name") != "DeblurPipeline":
        raise CheckpointError(f"{folder} holds a {index.get('_class_name')}, not a DeblurPipeline")
    known = known_networks(classes)
    found: dict[str, nn.Module] = {}
    for part in PARTS:
        if index.get(part, [None, None])[1] is None:
            continue
        if is_deployed(index):
            found[part] = OnnxNetwork(folder / part, part, provider, precision)
            continue
        config = read_json(folder / part / "config.json", "the checkpoint is incomplete, copy it again")
        state = read_folder(folder / part)
        found[part] = _network(known, index[part][1], config, state, f"{folder / part}")
    if "predictor" not in found:
        raise CheckpointError(f"{folder / INDEX} names no predictor")
    scheduler = read_json(folder / "scheduler" / "scheduler_config.json", "the checkpoint is incomplete")
    return _assemble(found, index | {"betas": scheduler.get("trained_betas")}, str(folder))


def from_ckpt(path: Path, classes: Classes = ()) -> DeblurPipeline:
    """Load the pipeline in a Lightning .ckpt, with its averaged weights. Raises CheckpointError."""
    checkpoint = read_torch(path)
    if not isinstance(checkpoint, dict) or "pipeline" not in checkpoint or "state_dict" not in checkpoint:
        raise CheckpointError(f"checkpoint {path} was not written by train.py: it does not say what networks it holds")
    description, state = checkpoint["pipeline"], checkpoint["state_dict"]
    known = known_networks(classes)
    found: dict[str, nn.Module] = {}
    for part in PARTS:
        if part in description:
            own = {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(f"{part}.")}
            config = description[part]["config"]
            found[part] = _network(known, description[part]["class"], config, own, f"the {part} in {path}")
    return _assemble(found, description, str(path))


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
            digest.update(index_text(read_json(file, "") | {"presets": {}}).encode())
            continue
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def index_text(index: dict) -> str:
    """model_index.json in the format that diffusers writes."""
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def save_presets(folder: Path, presets: dict[str, SamplingSettings]) -> None:
    """Write settings under their names into an exported checkpoint; its other presets stay."""
    index = read_json(folder / INDEX, "presets belong into an exported checkpoint")
    new = {name: asdict(settings) for name, settings in presets.items()}
    write_index(folder, index | {"presets": index.get("presets", {}) | new})


def save_error_curve(folder: Path, curve: ErrorCurve) -> None:
    """Write the curve that calibrates the expected error into an exported checkpoint."""
    index = read_json(folder / INDEX, "the curve belongs into an exported checkpoint")
    write_index(folder, index | {"error_curve": asdict(curve)})


def write_index(folder: Path, index: dict) -> None:
    """Replace a checkpoint's model_index.json."""
    with replacing(folder / INDEX) as part:
        part.write_text(index_text(index))


def describe(pipeline: DeblurPipeline) -> dict:
    """Everything in a pipeline except its weights, as plain values."""
    found = {part: {"class": type(n).__name__, "config": _plain(n.config)} for part, n in networks(pipeline).items()}
    return found | {
        "betas": list(pipeline.scheduler.config.trained_betas),
        "residual_scale": pipeline.config.residual_scale,
        "scale_kind": pipeline.config.scale_kind,
        "sigma_max": pipeline.config.get("sigma_max"),
    }


def _assemble(found: dict[str, nn.Module], values: dict, what: str) -> DeblurPipeline:
    betas, residual_scale = values.get("betas"), values.get("residual_scale")
    numbers = residual_scale if isinstance(residual_scale, list) else [residual_scale]
    if not betas or len(numbers) not in (1, 3) or not all(isinstance(number, int | float) for number in numbers):
        raise CheckpointError(f"{what} lacks the training schedule's betas or the residual scale")
    kind = values.get("scale_kind", "global")  # older checkpoints have no kind and one scale for all pixels
    if kind not in get_args(ScaleKind):
        raise CheckpointError(f"{what} has a scale_kind {kind!r}; known are {', '.join(get_args(ScaleKind))}")
    sigma_max = values.get("sigma_max")
    if not (sigma_max is None or (isinstance(sigma_max, int | float) and sigma_max > 0)):
        raise CheckpointError(f"{what} has sigma_max {sigma_max!r}: it is a noise level, a number above 0")
    scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=list(betas))
    c = numbers if len(numbers) > 1 else numbers[0]
    parts = found["predictor"], found.get("denoiser"), scheduler, c
    try:
        return DeblurPipeline(*parts, values.get("presets"), kind, values.get("error_curve"), sigma_max)
    except (TypeError, ValueError):
        raise CheckpointError(f"{what} has an error_curve that is none: fit it again with tools.calibrate") from None


def _network(known: dict[str, type], name: str, config: dict, state: dict[str, Tensor], what: str) -> nn.Module:
    """A network of a class of this name with these arguments and weights; `what` it is in messages."""
    if name not in known:
        raise CheckpointError(
            f"{what} holds a network of unknown class {name!r}; known are {', '.join(known)}; name your own class with"
            f" --classes MODULE.{name} (docs/extend.md)"
        )
    try:
        taken = signature(known[name].__init__).parameters  # diffusers and former versions store others, too
        network = known[name].from_config({key: value for key, value in config.items() if key in taken})
    except (TypeError, ValueError, LookupError) as error:
        raise CheckpointError(f"{what} has a config that {name} does not accept: {error}") from error
    if not state and network.state_dict():
        raise CheckpointError(f"{what} has no weights: the checkpoint is incomplete")
    check_keys(network, state, what)
    network.load_state_dict(state)
    return network


def networks(pipeline: DeblurPipeline) -> dict[str, nn.Module]:
    """The pipeline's predictor and, if it has one, its denoiser, by name."""
    return {part: getattr(pipeline, part) for part in PARTS if getattr(pipeline, part) is not None}


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> None:
    """Start networks from those of another checkpoint: its predictor and, if both sides have one, its denoiser.

    Args:
        source: anything that `load_pipeline` accepts.

    Raises:
        CheckpointError: the checkpoint has another architecture.
    """
    classes = [type(network) for network in (predictor, denoiser) if isinstance(network, ModelMixin)]
    found = networks(load_pipeline(source, precision="fp32", classes=classes))
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in found:
            state = found[part].state_dict()
            # A size head may be added to a predictor that was trained without one.
            state |= {k: v for k, v in network.state_dict().items() if k not in state and "log_size." in k}
            check_keys(network, state, f"the {part} of {source}")
            network.load_state_dict(state)


def _plain(config: Mapping) -> dict:
    """A network's constructor arguments, without the entries that diffusers adds; tuples become lists, as in JSON."""
    return json.loads(json.dumps({k: v for k, v in config.items() if not k.startswith("_")}))
