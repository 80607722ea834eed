"""Checkpoints: an exported folder, a hub id, or a Lightning .ckpt -> a pipeline, never by unpickling code; and back.

python -m models.checkpoints export runs/demo DIR --dtype fp16
python -m models.checkpoints push DIR user/name
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn

from base.files import replacing
from models.devices import has_bf16
from models.diffusion import ScaleKind
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings
from models.slim_unet import SlimDenoiser, SlimPredictor
from models.spandrel_predictor import SpandrelPredictor
from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor
from models.untrained import IdentityPredictor, ZeroPredictor
from models.weights import CheckpointError, check_keys, read_folder, read_json, read_torch, read_weights, shapes

NETWORKS = {
    c.__name__: c
    for c in (
        U2NetPredictor,
        UNetPredictor,
        SlimPredictor,
        IdentityPredictor,
        ZeroPredictor,
        SpandrelPredictor,
        Denoiser,
        SlimDenoiser,
    )
}
PARTS = ("predictor", "denoiser")
INDEX = "model_index.json"
PRETRAINED = Path(__file__).parents[1] / "pretrained" / "lite"

Precision = Literal["auto", "fp32", "bf16"]
Weights = Literal["ema", "raw"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


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
        if isinstance(network, SpandrelPredictor):
            network.compute_in(dtype)
            continue
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.to(dtype)
    return pipeline


def pretrained() -> str:
    """The checkpoint that comes with the repository; CheckpointError where it is not there."""
    if not PRETRAINED.is_dir():
        raise CheckpointError(f"no checkpoint is named, and there is no {PRETRAINED}: give one with --checkpoint")
    return str(PRETRAINED)


def checkpoint_hash(source: str) -> str:
    """sha256 over the files of a checkpoint, in order of their names, without presets: what a score belongs to."""
    if source.endswith(".ckpt"):
        files = [Path(source)]
    else:
        folder = _folder(source)
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".json", ".safetensors"))
    digest = hashlib.sha256()
    for file in files:
        if file.name == INDEX:
            digest.update(_index_text(read_json(file, "") | {"presets": {}}).encode())
            continue
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def save_presets(folder: Path, presets: dict[str, SamplingSettings]) -> None:
    """Write settings under their names into an exported checkpoint; others that it has stay."""
    index = read_json(folder / INDEX, "presets belong into an exported checkpoint")
    index["presets"] = index.get("presets", {}) | {name: asdict(settings) for name, settings in presets.items()}
    with replacing(folder / INDEX) as part:
        part.write_text(_index_text(index))


def _index_text(index: dict) -> str:
    """As diffusers writes it."""
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def describe(pipeline: DeblurPipeline) -> dict:
    """All of a pipeline but its weights, in plain values."""
    networks = {
        part: {"class": type(n).__name__, "config": _plain(n.config)} for part, n in _networks(pipeline).items()
    }
    return networks | {
        "betas": list(pipeline.scheduler.config.trained_betas),
        "residual_scale": pipeline.config.residual_scale,
        "scale_kind": pipeline.config.scale_kind,
    }


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> None:
    """Start training from another checkpoint's predictor and, where both sides have one, its denoiser.

    Args:
        source: what `load_pipeline` takes, or a file of bare weights (.pth, .safetensors) with the keys of the official
            U2-Net. Of that encoder and decoder are used; the heads stay as they are, since those of the file make
            one-channel saliency maps.

    Raises:
        CheckpointError: the checkpoint is of another architecture.
    """
    if Path(source).suffix in (".pth", ".pt", ".safetensors"):
        return _copy_official(Path(source), predictor)
    found = _networks(load_pipeline(source, precision="fp32"))
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in found:
            state = found[part].state_dict()
            # A size head can be added to a predictor that was trained without.
            state |= {k: v for k, v in network.state_dict().items() if k not in state and "log_size." in k}
            check_keys(shapes(network.state_dict()), shapes(state), f"the {part} of {source}")
            network.load_state_dict(state)


def _copy_official(path: Path, predictor: nn.Module) -> None:
    """Encoder and decoder of the official u2net.pth or u2netp.pth (Qin et al. 2020)."""
    if not isinstance(predictor, U2NetPredictor) or predictor.config.norm != "batch":
        raise CheckpointError(
            f"{path} holds bare weights: from such a file only a U2NetPredictor of norm batch can start"
        )
    state, variant = read_weights(path), predictor.config.variant
    with torch.device("meta"):  # its shapes alone are wanted
        official = U2NetPredictor(variant, out_channels=1)
    check_keys(shapes(official.state_dict()), shapes(state), f"{path}, read as the official U2-Net ({variant}),")
    body = {key: value for key, value in state.items() if not key.startswith(("side", "outconv"))}
    predictor.load_state_dict(predictor.state_dict() | body)


def _folder(source: str) -> Path:
    if os.path.isdir(source):
        return Path(source)
    name, _, revision = source.partition("@")
    if os.path.exists(source) or source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"checkpoint {source} is neither a folder, a .ckpt file nor a hub id like user/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors", "*.md"])
        )
    except Exception as error:  # whatever the network or the hub says
        raise CheckpointError(
            f"checkpoint {source} is not a folder here, and the hub did not give it: {_reason(error)}"
        ) from None


def _from_folder(folder: Path) -> DeblurPipeline:
    index = read_json(folder / INDEX, "an exported checkpoint has one; train.py writes it after fit")
    if index.get("_class_name") != "DeblurPipeline":
        raise CheckpointError(f"{folder} holds a {index.get('_class_name')}, not a DeblurPipeline")
    networks = {}
    for part in PARTS:
        if index.get(part, [None, None])[1] is None:
            continue
        config = read_json(folder / part / "config.json", "the checkpoint is incomplete, copy it again")
        state = read_folder(folder / part)
        network = _build(index[part][1], config, state, f"{folder / part}")
        if not state and network.state_dict():
            raise CheckpointError(f"{folder / part} has no weights (*.safetensors): the checkpoint is incomplete")
        check_keys(shapes(network.state_dict()), shapes(state), f"{folder / part}")
        network.load_state_dict(state)
        networks[part] = network
    if "predictor" not in networks:
        raise CheckpointError(f"{folder / INDEX} names no predictor")
    scheduler = read_json(folder / "scheduler" / "scheduler_config.json", "the checkpoint is incomplete")
    return _assemble(networks, index | {"betas": scheduler.get("trained_betas")}, str(folder))


def _from_ckpt(path: Path, weights: Weights = "ema") -> DeblurPipeline:
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    checkpoint = read_torch(path)
    if not isinstance(checkpoint, dict) or "pipeline" not in checkpoint or "state_dict" not in checkpoint:
        raise CheckpointError(f"checkpoint {path} was not written by train.py: it does not say what networks it holds")
    description, state = checkpoint["pipeline"], checkpoint["state_dict"]
    if weights == "raw":
        if "current_model_state" not in checkpoint:
            raise CheckpointError(f"checkpoint {path} has no raw weights beside its only ones: leave --weights away")
        state = checkpoint["current_model_state"]
        if state.get("residual_steps", 0) > 0:  # measured while training, as the weights were
            description = description | {"residual_scale": state["residual_square"].sqrt().item()}
    networks = {}
    for part in PARTS:
        if part in description:
            own = {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(f"{part}.")}
            network = _build(description[part]["class"], description[part]["config"], own, f"{path}")
            check_keys(shapes(network.state_dict()), shapes(own), f"the {part} in {path}")
            network.load_state_dict(own)
            networks[part] = network
    return _assemble(networks, description, str(path))


def _assemble(networks: dict, values: dict, what: str) -> DeblurPipeline:
    betas, residual_scale = values.get("betas"), values.get("residual_scale")
    if not betas or not isinstance(residual_scale, int | float):
        raise CheckpointError(f"{what} lacks the training schedule's betas or the residual scale")
    kind = values.get("scale_kind", "global")  # what was saved before there were maps has one number
    if kind not in get_args(ScaleKind):
        raise CheckpointError(f"{what} has a scale_kind {kind!r}; known are {', '.join(get_args(ScaleKind))}")
    scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=list(betas))
    own = residual_scale, values.get("presets"), kind
    return DeblurPipeline(networks["predictor"], networks.get("denoiser"), scheduler, *own)


def _build(name: str, config: dict, state: dict[str, Tensor], what: str) -> nn.Module:
    if name not in NETWORKS:
        raise CheckpointError(f"{what} holds a network of unknown class {name!r}; known are {', '.join(NETWORKS)}")
    try:
        if name == SpandrelPredictor.__name__:
            return SpandrelPredictor(architecture=config.get("architecture"), weights=state)
        return NETWORKS[name].from_config(config)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} has a config that {name} does not accept: {error}") from error


def _networks(pipeline: DeblurPipeline) -> dict[str, nn.Module]:
    return {part: getattr(pipeline, part) for part in PARTS if getattr(pipeline, part) is not None}


def _plain(config) -> dict:
    """A network's constructor arguments, without diffusers' own entries; tuples become lists, as in JSON."""
    return json.loads(json.dumps({k: v for k, v in config.items() if not k.startswith("_")}))


def export(
    source: str,
    output: str,
    weights: Weights = "ema",
    dtype: Literal["fp32", "fp16", "bf16"] = "fp16",
    max_shard_size: str = "10GB",
) -> None:
    """Write a pipeline folder out of a run or a checkpoint.

    Args:
        source: a run's folder, of which checkpoints/last.ckpt is taken, a .ckpt file, or anything else that
            `load_pipeline` takes.
        output: folder to write to; must be new or empty.
        weights: ema, the averaged weights, or raw, those that the optimizer moves; only a .ckpt has both.
        dtype: type of the weights on disk; they compute in float32 wherever they are loaded, or in what is asked for.
        max_shard_size: largest weight file, such as 15MB; larger networks are split into several.

    Raises:
        CheckpointError: one sentence on what cannot be read or stored; no folder is left behind.
    """
    last = Path(source) / "checkpoints" / "last.ckpt"
    source = str(last) if last.is_file() else source
    if weights == "raw" and not source.endswith(".ckpt"):
        raise CheckpointError(
            f"{source} has only one kind of weights: give a run's folder or a .ckpt for --weights raw"
        )
    pipeline = _from_ckpt(Path(source), weights) if source.endswith(".ckpt") else _from_folder(_folder(source))
    for part, network in _networks(pipeline).items():
        nn.Module.to(network, DTYPES[dtype])  # diffusers' own warns of layers that none of these has
        for key, value in network.state_dict().items():
            if not value.isfinite().all():
                raise CheckpointError(
                    f"the {part}'s {key} has values that are not finite in {dtype}: choose another dtype"
                )
    folder = Path(output)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"{folder} is not an empty folder: give a new one")
    with replacing(folder) as part:
        pipeline.save_pretrained(part, max_shard_size=max_shard_size)
        _from_folder(part)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    print(f"wrote {folder}: the {weights} weights of {source} in {dtype}, {size:.1f} MiB")


def push(folder: str, repo: str, private: bool = False, revision: str | None = None) -> None:
    """Upload a pipeline folder to the hub, its card (README.md and pictures) included.

    The token is the one of `hf auth login`, or of the environment's HF_TOKEN.

    Args:
        folder: an exported pipeline folder.
        repo: hub id, user/name; made where there is none.
        private: make it private, if it is made.
        revision: branch to commit to; none: main.

    Raises:
        CheckpointError: one sentence: the folder is no whole checkpoint, or the hub refused it.
    """
    _from_folder(Path(folder))
    from huggingface_hub import create_repo, upload_folder

    kinds = ["*.json", "*.safetensors", "*.md", "*.png", "*.jpg"]
    try:
        create_repo(repo, private=private, exist_ok=True)
        commit = upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=kinds,
            revision=revision,
            commit_message="Upload a deblurring checkpoint",
        )
    except Exception as error:  # whatever the network or the hub says
        raise CheckpointError(f"{folder} was not pushed to {repo}: {_reason(error)}") from None
    card = "" if (Path(folder) / "README.md").is_file() else ", without a card: it has no README.md"
    print(f"pushed {folder} to {repo} (commit {commit.oid}){card}")


def _reason(error: Exception) -> str:
    """The first line of an error of huggingface_hub; never with the token, which a server may have sent back."""
    from huggingface_hub import get_token

    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    token = get_token()
    return reason.replace(token, "***") if token else reason


def main(args: list[str] | None = None) -> None:
    """The command line."""
    from jsonargparse import auto_cli

    auto_cli([export, push], args=args, as_positional=True, description=__doc__, prog="models.checkpoints")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        print(f"models.checkpoints: error: {error}", file=sys.stderr)
        sys.exit(2)
