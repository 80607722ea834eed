"""Load a pipeline from an exported folder, a hub id or a Lightning .ckpt, without unpickling code.

The classes that checkpoints may name are those of this program, and a user's own, which the user names.
"""

import hashlib
import json
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deblur.devices import choose_device, resolve_precision
from deblur.hub import INDEX, ONNX, CheckpointError, find_folder, read_index, read_json
from deblur.models.diffusion import PREDICTION_TYPES, ScaleKind
from deblur.models.networks.base import CASCADE, Cascade, IdentityPredictor, Predictor, ZeroPredictor
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.mixins import ConfigMixin, DDPMScheduler, ModelMixin
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.onnx.engines import Precision, Provider
from deblur.onnx.network import OnnxNetwork
from deblur.pipeline import DeblurPipeline
from deblur.settings import SCHEDULES, SamplingSettings
from deblur.storage import replacing
from deblur.working_size import WorkingSize

PREDICTORS = (U2NetPredictor, UNetPredictor, SlimPredictor, Maxim, Cascade, IdentityPredictor, ZeroPredictor)
NETWORKS = {network.__name__: network for network in (*PREDICTORS, Denoiser, SlimDenoiser)}
SIDE = 64  # of the image that a user's network is tried on, in pixels, before its stride is known to be larger

Classes = str | Sequence[str | type]


def known_networks(classes: Classes = ()) -> dict[str, type]:
    """The classes that a checkpoint may name, by name: those of this program, and these of a user.

    Args:
        classes: classes, or their paths such as mypred.MyPredictor; a string holds paths separated by commas.

    Raises:
        CheckpointError: there is no such class, or it is no network.
    """
    by_name = dict(NETWORKS)
    for given in classes.split(",") if isinstance(classes, str) else classes:
        try:
            network_class = resolve_name(given.strip()) if isinstance(given, str) else given
        except (ImportError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"class {given} cannot be imported ({error}): its folder must be on PYTHONPATH"
            ) from None
        if not (
            isinstance(network_class, type)
            and issubclass(network_class, ModelMixin)
            and issubclass(network_class, ConfigMixin)
        ):
            raise CheckpointError(f"class {given} is neither a Predictor nor a denoiser (docs/extend.md)")
        by_name[network_class.__name__] = network_class
    return by_name


def require_network(network: nn.Module, part: str) -> None:
    """Check that a user's own network can be trained, stored and loaded again; those of this program are not looked at.

    Args:
        network: a predictor or a denoiser.
        part: which of them, as its flag is called.

    Raises:
        ValueError: says what the class lacks.
    """
    kind = type(network)
    if NETWORKS.get(kind.__name__) is kind:
        return
    path = f"model.{part}: {kind.__module__}.{kind.__name__}"
    if part == "predictor" and not isinstance(network, Predictor):
        raise ValueError(
            f"{path} is no deblur.models.networks.base.Predictor, which a predictor is derived from (docs/extend.md)"
        )
    if not isinstance(network, ModelMixin) or not isinstance(network, ConfigMixin):
        raise ValueError(
            f"{path} is not derived from deblur.models.networks.base.ModelMixin and ConfigMixin (docs/extend.md)"
        )
    if kind.__name__ in NETWORKS:
        raise ValueError(f"{path} has the name of a class of this program, so its checkpoint would not load: rename it")
    config = getattr(network, "_internal_dict", None)
    if config is None or not signature(kind.__init__).parameters.keys() - {"self"} <= config.keys():
        raise ValueError(f"{path}.__init__ lacks @register_to_config, so its checkpoint would not load")
    try:
        json.dumps(dict(config))
    except TypeError as error:
        raise ValueError(f"{path} has an argument that a checkpoint cannot store: {error}") from None
    needed = {"receptive_field", "stride"} | ({"prediction_type"} if part == "denoiser" else set())
    if lacking := sorted(name for name in needed if not hasattr(network, name)):
        raise ValueError(f"{path} lacks the attribute {lacking[0]} (docs/extend.md)")
    if part == "denoiser" and network.prediction_type not in PREDICTION_TYPES:
        raise ValueError(f"{path} has a prediction_type that is none of {', '.join(PREDICTION_TYPES)}")
    _try(network, part, path)


@torch.no_grad()
def _try(network: nn.Module, part: str, path: str) -> None:
    """Call a network on one black image, in evaluation mode and without advancing the random generators."""
    side, training = max(SIDE, 2 * network.stride), network.training
    image, level = torch.zeros(1, 3, side, side), torch.full((1,), 0.5)
    inputs = (image,) if part == "predictor" else (image, image, level, image, torch.ones(1, 1, side, side))
    try:
        with torch.random.fork_rng():
            output = network.eval()(*inputs)
    except Exception as error:
        raise ValueError(f"{path} cannot be called as a {part} is: {' '.join(str(error).split())}") from error
    finally:
        network.train(training)
    outputs = [output] if isinstance(output, Tensor) or part == "denoiser" else list(output)
    shapes = [tuple(one.shape) for one in outputs]
    if shapes not in ([(1, 3, side, side)], [(1, 3, side, side), (1, 1, side, side)]):
        made = " and ".join(map(str, shapes))
        raise ValueError(
            f"{path} makes {made} of an image (1, 3, {side}, {side}): a {part} keeps the size (docs/extend.md)"
        )


PARTS = ("predictor", "denoiser")


def load_pipeline(
    source: str | Path,
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
    source = str(source)
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
            f"{source} is no ONNX folder, which the provider {provider} would run: export it with tools.export_onnx, or"
            " omit --provider"
        )
    device = choose_device(str(device))
    pipeline.precision = resolve_precision(precision, device)
    dtype = torch.bfloat16 if pipeline.precision == "bf16" else torch.float32
    for network in networks(pipeline).values():
        network.requires_grad_(False).eval()
        nn.Module.to(network, device, memory_format=torch.channels_last)  # diffusers' own `to` loads the compiler
        convert_layers(network, dtype)
    return pipeline


def convert_layers(network: nn.Module, dtype: torch.dtype) -> None:
    """Give the layers of a network a type, in place. A user's own network, also in a cascade, computes in float32,
    since it may not convert its input."""
    if isinstance(network, Cascade):
        for part in network.children():
            convert_layers(part, dtype)
    elif NETWORKS.get(type(network).__name__) is type(network):
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                layer.to(dtype)


def read_pipeline(
    source: str, provider: Provider | None = None, precision: Precision = "auto", classes: Classes = ()
) -> DeblurPipeline:
    """The pipeline of a source, as it is stored; of a .ckpt with its averaged weights.

    Raises CheckpointError as `load_pipeline` does.
    """
    by_name, parts = known_networks(classes), {}
    if source.endswith(".ckpt"):
        checkpoint = read_torch(Path(source))
        if not isinstance(checkpoint, dict) or not {"pipeline", "state_dict"} <= checkpoint.keys():
            raise CheckpointError(
                f"checkpoint {source} was not written by train.py: it does not say what networks it holds"
            )
        values, state = checkpoint["pipeline"], checkpoint["state_dict"]
        for part in [part for part in PARTS if part in values]:
            weights = {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(f"{part}.")}
            name, config = values[part]["class"], values[part]["config"]
            parts[part] = _network(by_name, name, config, weights, f"the {part} in {source}")
        return _assemble(parts, values, source)
    folder = find_folder(source)
    index = read_index(folder)
    if index.get("_class_name") != "DeblurPipeline":
        raise CheckpointError(f"{folder} holds a {index.get('_class_name')}, not a DeblurPipeline")
    for part in PARTS:
        name = _class_in(index, part, folder)
        if name == ONNX:
            parts[part] = OnnxNetwork(folder / part, part, provider, precision)
        elif name is not None:
            config, state = read_json(folder / part / "config.json"), read_folder(folder / part)
            parts[part] = _network(by_name, name, config, state, f"{folder / part}")
    if "predictor" not in parts:
        raise CheckpointError(f"{folder / INDEX} names no predictor")
    betas = read_json(folder / "scheduler" / "scheduler_config.json").get("trained_betas")
    return _assemble(parts, index | {"betas": betas}, str(folder))


def _class_in(index: dict, part: str, folder: Path) -> str | None:
    """The name of a part's class in an index, which has a pair of its module and its class; None if there is none."""
    named = index.get(part, [None, None])
    if not isinstance(named, list) or len(named) != 2 or not isinstance(named[1], str | None):
        raise CheckpointError(f"{folder / INDEX} has a {part} that is no pair of a module and a class: {named!r}")
    return named[1]


def read_torch(path: Path, checksums: bool = False) -> Any:
    """Load what torch.save wrote: tensors and plain values. A file that would run code is refused.

    `checksums`: verify the archive's checksums, which reads the whole file; otherwise tensors are read on first use.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
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
    try:
        return load_file(files[0]) if files else {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{files[0]} is damaged: {error}") from error


def load_weights(network: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Load weights. Raises CheckpointError, naming the first differing keys, if they are not those of the network."""
    try:
        network.load_state_dict(state)
    except RuntimeError as error:  # of several lines, the first of which names the class
        difference = textwrap.shorten(str(error).splitlines()[1], 200)
        raise CheckpointError(f"{what} is of another architecture: {difference}") from None


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


def describe(pipeline: DeblurPipeline) -> dict:
    """Everything in a pipeline except its weights, as plain values."""
    parts = {
        part: {"class": type(n).__name__, "config": arguments_of(n.config)} for part, n in networks(pipeline).items()
    }
    return parts | {
        "betas": list(pipeline.scheduler.config.trained_betas),
        "residual_scale": pipeline.config.residual_scale,
        "scale_kind": pipeline.config.scale_kind,
        "sigma_min": pipeline.config.get("sigma_min"),
        "sigma_max": pipeline.config.get("sigma_max"),
    }


def _assemble(parts: dict[str, nn.Module], values: dict, what: str) -> DeblurPipeline:
    betas, residual_scale = values.get("betas"), values.get("residual_scale")
    if not isinstance(betas, list) or not betas or not all(isinstance(beta, float) and 0 < beta < 1 for beta in betas):
        raise CheckpointError(f"{what} lacks the training schedule's betas: numbers between 0 and 1")
    numbers = residual_scale if isinstance(residual_scale, list) else [residual_scale]
    if len(numbers) not in (1, 3) or not all(isinstance(number, int | float) for number in numbers):
        raise CheckpointError(f"{what} lacks the residual scale: a number, or one for each of three channels")
    kind = values.get("scale_kind", "global")  # older checkpoints have no kind and one scale for all pixels
    if kind not in get_args(ScaleKind):
        raise CheckpointError(f"{what} has a scale_kind {kind!r}; known are {', '.join(get_args(ScaleKind))}")
    bounds = {name: values.get(name) for name in ("sigma_min", "sigma_max")}
    for name, sigma in bounds.items():
        if not (sigma is None or (isinstance(sigma, int | float) and sigma > 0)):
            raise CheckpointError(f"{what} has {name} {sigma!r}: it is a noise level, a number above 0")
    if None not in bounds.values() and bounds["sigma_min"] >= bounds["sigma_max"]:
        least, most = bounds.values()
        raise CheckpointError(f"{what} has sigma_min {least}, which is not below its sigma_max {most}")
    rule = values.get("working_size")
    try:
        WorkingSize(**rule or {})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} has a working_size that is none ({error})") from None
    scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=list(betas))
    c = numbers if len(numbers) > 1 else numbers[0]
    arguments = parts["predictor"], parts.get("denoiser"), scheduler, c
    try:
        return DeblurPipeline(
            *arguments, values.get("presets"), kind, values.get("error_curve"), **bounds, working_size=rule
        )
    except (TypeError, ValueError):
        raise CheckpointError(f"{what} has an error_curve that is none: fit it again with tools.calibrate") from None


def _network(by_name: dict[str, type], name: str, config: dict, state: dict[str, Tensor], what: str) -> nn.Module:
    """A network of a class of this name with these arguments and weights; `what` it is in messages."""
    if name not in by_name:
        raise CheckpointError(
            f"{what} holds a network of unknown class {name!r}; known are {', '.join(by_name)}; name your own"
            f" class with --classes MODULE.{name} (docs/extend.md)"
        )
    try:
        network = _build(by_name, name, config)
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise CheckpointError(f"{what} has a config that {name} does not accept: {reason}") from error
    if not state and network.state_dict():
        raise CheckpointError(f"{what} has no weights: the checkpoint is incomplete")
    load_weights(network, state, what)
    return network


def _build(by_name: dict[str, type], name: str, config: dict) -> nn.Module:
    """A network of a class of this name with these arguments; a cascade's networks are described as one is."""
    if by_name[name] is Cascade:
        described = config["parts"]
        parts = [_build(by_name, described[part]["class"], described[part]["config"]) for part in CASCADE]
        return Cascade(*parts, config["frozen"])
    taken = signature(by_name[name].__init__).parameters  # diffusers and former versions store others, too
    return by_name[name].from_config({key: value for key, value in config.items() if key in taken})


def networks(pipeline: DeblurPipeline) -> dict[str, nn.Module]:
    """The pipeline's predictor and, if it has one, its denoiser, by name."""
    return {part: getattr(pipeline, part) for part in PARTS if getattr(pipeline, part) is not None}


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> DeblurPipeline:
    """Start networks from those of another checkpoint: its predictor and, if both sides have one, its denoiser.

    Args:
        source: anything that `load_pipeline` accepts.

    Returns:
        The other checkpoint's pipeline.

    Raises:
        CheckpointError: the checkpoint has another architecture.
    """
    classes = [type(network) for network in (predictor, denoiser) if isinstance(network, ModelMixin)]
    pipeline = load_pipeline(source, precision="fp32", classes=classes)
    stored = networks(pipeline)
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in stored:
            state = stored[part].state_dict()
            # A size head may be added to a predictor that was trained without one.
            state |= {k: v for k, v in network.state_dict().items() if k not in state and "log_size." in k}
            load_weights(network, state, f"the {part} of {source}")
    return pipeline


def arguments_of(config: Mapping) -> dict:
    """A network's constructor arguments, as JSON has them, without the entries that diffusers adds to a config.

    Those of a cascade's networks are among its own.
    """
    plain = json.loads(json.dumps(dict(config)))

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(inner) for key, inner in value.items() if not key.startswith("_")}
        return value

    return cleaned(plain)
