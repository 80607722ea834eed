"""Reading checkpoints: an exported folder, a hub id, or a Lightning .ckpt -> a pipeline. Never by unpickling code."""

import hashlib
import json
import os
from pathlib import Path
from typing import Literal

import torch
from diffusers import DDPMScheduler
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from models.pipeline import DeblurPipeline
from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor
from models.untrained import IdentityPredictor, ZeroPredictor

NETWORKS = {c.__name__: c for c in (U2NetPredictor, UNetPredictor, IdentityPredictor, ZeroPredictor, Denoiser)}
PARTS = ("predictor", "denoiser")

Precision = Literal["auto", "fp32", "bf16"]


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message is one sentence that says which, why and what to do."""


def load_pipeline(source: str, device: str | torch.device = "cpu", precision: Precision = "auto") -> DeblurPipeline:
    """A pipeline ready to restore: in eval mode, on the device, in the precision, channels last.

    Args:
        source: exported folder, Lightning .ckpt file, or hub id "user/name" or "user/name@revision".
        device: as torch names it.
        precision: of the networks' layers; schedule, residual and normalisation statistics stay float32. auto: bf16
            where the device computes in it.

    Raises:
        CheckpointError: nothing there, part of it missing, or weights of another architecture.
    """
    pipeline = _from_ckpt(Path(source)) if source.endswith(".ckpt") else _from_folder(_folder(source))
    pipeline.set_progress_bar_config(disable=True)
    dtype = torch.bfloat16 if precision == "bf16" or (precision == "auto" and has_bf16(device)) else torch.float32
    for network in _networks(pipeline).values():
        network.requires_grad_(False).eval().to(device, memory_format=torch.channels_last)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.to(dtype)
    return pipeline


def has_bf16(device: str | torch.device) -> bool:
    """Whether the device has units for bfloat16, so that it is the faster choice."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))
    return False


def choose_device(name: str) -> torch.device:
    """The torch device of that name; "auto": the first of cuda, mps and cpu that is there. ValueError if it is not."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used here: {reason}") from error
    return torch.device(name)


def checkpoint_hash(source: str) -> str:
    """sha256 over the files of a checkpoint, in order of their names: what a score belongs to."""
    if source.endswith(".ckpt"):
        files = [Path(source)]
    else:
        folder = _folder(source)
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".json", ".safetensors"))
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def describe(pipeline: DeblurPipeline) -> dict:
    """All of a pipeline but its weights, in plain values."""
    networks = {
        part: {"class": type(n).__name__, "config": _plain(n.config)} for part, n in _networks(pipeline).items()
    }
    return networks | {
        "betas": list(pipeline.scheduler.config.trained_betas),
        "residual_scale": pipeline.config.residual_scale,
    }


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> None:
    """Start training from another checkpoint's predictor and, where both sides have one, its denoiser.

    Raises:
        CheckpointError: the checkpoint is of another architecture.
    """
    found = _networks(load_pipeline(source, precision="fp32"))
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in found:
            state = found[part].state_dict()
            check_keys(_shapes(network.state_dict()), _shapes(state), f"the {part} of {source}")
            network.load_state_dict(state)


def check_keys(expected: dict[str, tuple], found: dict[str, tuple], what: str) -> None:
    """CheckpointError naming the first differing key unless both have the same keys and shapes."""
    for key in sorted(expected.keys() | found.keys()):
        if key not in found:
            raise CheckpointError(f"{what} is of another architecture: it lacks {key} {expected[key]}")
        if key not in expected:
            raise CheckpointError(
                f"{what} is of another architecture: it has {key} {found[key]}, which is not expected"
            )
        if expected[key] != found[key]:
            raise CheckpointError(
                f"{what} is of another architecture: {key} has shape {found[key]}, expected {expected[key]}"
            )


def _folder(source: str) -> Path:
    if os.path.isdir(source):
        return Path(source)
    name, _, revision = source.partition("@")
    if os.path.exists(source) or source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"checkpoint {source} is neither a folder, a .ckpt file nor a hub id like user/name")
    from huggingface_hub import snapshot_download

    try:
        allowed = ["*.json", "*.safetensors", "*.md"]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=allowed))
    except Exception as error:  # whatever the network or the hub says
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"checkpoint {source} is not a folder here, and the hub did not give it: {reason}"
        ) from error


def _from_folder(folder: Path) -> DeblurPipeline:
    index = _read_json(folder / "model_index.json", "an exported checkpoint has one; train.py writes it after fit")
    if index.get("_class_name") != "DeblurPipeline":
        raise CheckpointError(f"{folder} holds a {index.get('_class_name')}, not a DeblurPipeline")
    networks = {}
    for part in PARTS:
        if index.get(part, [None, None])[1] is None:
            continue
        config = _read_json(folder / part / "config.json", "the checkpoint is incomplete, copy it again")
        network = _build(index[part][1], config, f"{folder / part}")
        files = sorted((folder / part).glob("*.safetensors"))
        if not files and network.state_dict():
            raise CheckpointError(f"{folder / part} has no weights (*.safetensors): the checkpoint is incomplete")
        state = {}
        for file in files:
            state |= _read_safetensors(file)
        check_keys(_shapes(network.state_dict()), _shapes(state), f"{folder / part}")
        network.load_state_dict(state)
        networks[part] = network
    if "predictor" not in networks:
        raise CheckpointError(f"{folder / 'model_index.json'} names no predictor")
    scheduler = _read_json(folder / "scheduler" / "scheduler_config.json", "the checkpoint is incomplete")
    return _assemble(
        networks, scheduler.get("trained_betas"), index.get("residual_scale"), str(folder), index.get("presets")
    )


def _from_ckpt(path: Path) -> DeblurPipeline:
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file, or a pickle that holds more than tensors and plain values
        raise CheckpointError(
            f"checkpoint {path} is damaged, or holds more than weights and plain values, and was not loaded"
        ) from error
    if not isinstance(checkpoint, dict) or "pipeline" not in checkpoint or "state_dict" not in checkpoint:
        raise CheckpointError(f"checkpoint {path} was not written by train.py: it does not say what networks it holds")
    description, state = checkpoint["pipeline"], checkpoint["state_dict"]
    networks = {}
    for part in PARTS:
        if part in description:
            network = _build(description[part]["class"], description[part]["config"], f"{path}")
            own = {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(f"{part}.")}
            check_keys(_shapes(network.state_dict()), _shapes(own), f"the {part} in {path}")
            network.load_state_dict(own)
            networks[part] = network
    return _assemble(networks, description["betas"], description["residual_scale"], str(path))


def _assemble(networks: dict, betas: list[float], residual_scale: float, what: str, presets=None) -> DeblurPipeline:
    if not betas or not isinstance(residual_scale, int | float):
        raise CheckpointError(f"{what} lacks the training schedule's betas or the residual scale")
    scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=list(betas))
    return DeblurPipeline(networks["predictor"], networks.get("denoiser"), scheduler, residual_scale, presets)


def _build(name: str, config: dict, what: str) -> nn.Module:
    if name not in NETWORKS:
        raise CheckpointError(f"{what} holds a network of unknown class {name!r}; known are {', '.join(NETWORKS)}")
    try:
        return NETWORKS[name].from_config(config)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} has a config that {name} does not accept: {error}") from error


def _networks(pipeline: DeblurPipeline) -> dict[str, nn.Module]:
    return {part: getattr(pipeline, part) for part in PARTS if getattr(pipeline, part) is not None}


def _plain(config) -> dict:
    """A network's constructor arguments, without diffusers' own entries; tuples become lists, as in JSON."""
    return json.loads(json.dumps({k: v for k, v in config.items() if not k.startswith("_")}))


def _shapes(state: dict[str, Tensor]) -> dict[str, tuple]:
    return {key: tuple(value.shape) for key, value in state.items()}


def _read_json(path: Path, hint: str) -> dict:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: {hint}")
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
