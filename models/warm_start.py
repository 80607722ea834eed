"""Start training from the weights of another checkpoint."""

from pathlib import Path

from torch import nn

from models.checkpoints import load_pipeline, networks
from models.parts import ModelMixin
from models.u2net import U2NetPredictor
from models.weights import CheckpointError, check_keys, read_weights


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> None:
    """Copy the predictor of another checkpoint and, if both sides have one, its denoiser.

    Args:
        source: anything that `load_pipeline` accepts, or a file of bare weights (.pth, .safetensors) with the keys of
            the official U2-Net. Only its encoder and decoder are copied, since its heads make one-channel saliency
            maps; the heads here keep their initial weights.

    Raises:
        CheckpointError: the checkpoint has another architecture.
    """
    if Path(source).suffix in (".pth", ".pt", ".safetensors"):
        return _copy_official(Path(source), predictor)
    classes = [type(network) for network in (predictor, denoiser) if isinstance(network, ModelMixin)]
    found = networks(load_pipeline(source, precision="fp32", classes=classes))
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in found:
            state = found[part].state_dict()
            # A size head may be added to a predictor that was trained without one.
            state |= {k: v for k, v in network.state_dict().items() if k not in state and "log_size." in k}
            check_keys(network, state, f"the {part} of {source}")
            network.load_state_dict(state)


def _copy_official(path: Path, predictor: nn.Module) -> None:
    """Copy the encoder and decoder of the official u2net.pth or u2netp.pth (Qin et al. 2020)."""
    if not isinstance(predictor, U2NetPredictor) or predictor.config.norm != "batch":
        raise CheckpointError(
            f"{path} holds bare weights: from such a file only a U2NetPredictor of norm batch can start"
        )
    heads = ("side", "outconv")
    state = {key: value for key, value in read_weights(path).items() if not key.startswith(heads)}
    state |= {key: value for key, value in predictor.state_dict().items() if key.startswith((*heads, "log_size."))}
    check_keys(predictor, state, f"{path}, read as the official U2-Net ({predictor.config.variant}),")
    predictor.load_state_dict(state)
