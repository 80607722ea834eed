"""PSNR, SSIM and LPIPS between restored and sharp pictures, each with the recipe behind its numbers.

All of them look at the picture that a file would hold: RGB, clipped to [0, 1], rounded to 8 bits, whole.
"""

import hashlib
import importlib.metadata
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from skimage.metrics import structural_similarity
from torch import Tensor

_PICTURE = "RGB, clipped to [0, 1], rounded to 8 bits, full frame without a crop"
_SSIM_WINDOW = 11
_LPIPS_MIN_SIDE = 31  # the smallest side that leaves AlexNet's last pooling one pixel

PSNR_RECIPE = (
    f"PSNR in dB: {_PICTURE}; range 255, one mean squared error over pixels and channels; torch {torch.__version__}"
)
SSIM_RECIPE = (
    f"SSIM: {_PICTURE}; range 255, Gaussian window {_SSIM_WINDOW} with sigma 1.5, population covariance, "
    "K1 0.01, K2 0.03, mean over the pixels whose window lies inside the frame, then over the channels; "
    f"scikit-image {importlib.metadata.version('scikit-image')}"
)


class MetricError(ValueError):
    """A metric cannot be computed; the text is one sentence that says why."""


def _whole_numbers(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 3, H, W) pairs in [0, 1] as float32 whole numbers 0..255."""
    if restored.shape != sharp.shape or sharp.ndim != 4:
        raise MetricError(f"the restored picture is {tuple(restored.shape)} and the sharp one {tuple(sharp.shape)}")
    if not restored.isfinite().all():
        raise MetricError("the restored picture holds values that are not finite")
    return tuple(picture.float().clamp(0, 1).mul(255).round() for picture in (restored, sharp))


@torch.no_grad()
def psnr(restored: Tensor, sharp: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each picture by PSNR_RECIPE.

    Args:
        restored: (N, 3, H, W), about [0, 1].
        sharp: the truth, (N, 3, H, W) in [0, 1].

    Returns:
        (N,) in dB; infinite where the rounded pictures are equal.

    Raises:
        MetricError: the shapes differ or a value is not finite.
    """
    restored, sharp = _whole_numbers(restored, sharp)
    return 10 * torch.log10(255**2 / (restored - sharp).square().mean((1, 2, 3)))


@torch.no_grad()
def ssim(restored: Tensor, sharp: Tensor) -> Tensor:
    """Structural similarity of each picture (Wang et al. 2004) by SSIM_RECIPE; arguments as for `psnr`.

    Returns:
        (N,), at most 1.

    Raises:
        MetricError: as for `psnr`, or a side is shorter than the window.
    """
    restored, sharp = _whole_numbers(restored, sharp)
    _require_side(sharp, _SSIM_WINDOW, "SSIM")
    values = [
        structural_similarity(
            truth,
            picture,
            channel_axis=0,
            data_range=255,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for truth, picture in zip(sharp.byte().cpu().numpy(), restored.byte().cpu().numpy(), strict=True)
    ]
    return torch.tensor(values, dtype=torch.float32, device=sharp.device)


class Lpips:
    """LPIPS (Zhang et al. 2018) with AlexNet, version 0.1, from the `lpips` package.

    Args:
        backbone: AlexNet's feature layers on disk: torchvision's own .pth, or safetensors with the same
            names. None takes torchvision's weights from its cache or the network; where neither has them the
            metric is missing and `reason` says why.

    Attributes:
        reason: None, or one sentence that says why there are no values.
        recipe: how the number is made, with the sha256 over the feature layers (as one safetensors file);
            None where the metric is missing.

    Raises:
        MetricError: `backbone` does not hold AlexNet's feature layers; the text names the first key that
            differs.
    """

    def __init__(self, backbone: str | Path | None = None):
        self.reason, self.recipe = None, None
        try:
            state = _downloaded_alexnet() if backbone is None else _read_state(Path(backbone))
        except _Missing as error:
            self.reason = str(error)
            return

        import lpips  # takes seconds, and only this metric needs it

        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore", UserWarning)  # lpips asks torchvision in words of before 0.13
            network = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
        # lpips keeps feature layer 3 of torchvision as `slice2.3`.
        slices = {"features." + key.split(".", 1)[1]: key for key in network.net.state_dict()}
        features = _match(state, {name: network.net.state_dict()[key] for name, key in slices.items()}, backbone)
        network.net.load_state_dict({slices[name]: weight for name, weight in features.items()})
        self.network = network.requires_grad_(False).eval()
        self.recipe = (
            f"LPIPS: {_PICTURE}, then scaled to [-1, 1]; AlexNet, version 0.1, backbone sha256 "
            f"{hashlib.sha256(save(features)).hexdigest()}; lpips {importlib.metadata.version('lpips')}"
        )

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Distance of each picture, arguments as for `psnr`: (N,), 0 for equal pictures, lower is better.

        Runs on the device of the pictures.

        Raises:
            MetricError: as for `psnr`, a side is too short for AlexNet, or the metric is missing (the text is
                `reason`).
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        restored, sharp = _whole_numbers(restored, sharp)
        _require_side(sharp, _LPIPS_MIN_SIDE, "LPIPS")
        return self.network.to(sharp.device)(restored / 127.5 - 1, sharp / 127.5 - 1).flatten()


class _Missing(Exception):
    """torchvision's weights cannot be had here."""


def _require_side(picture: Tensor, side: int, metric: str) -> None:
    if min(picture.shape[-2:]) < side:
        raise MetricError(
            f"{metric} needs {side} pixels a side and the picture is {picture.shape[-1]}x{picture.shape[-2]}"
        )


def _downloaded_alexnet() -> dict[str, Tensor]:
    from torchvision.models import AlexNet_Weights

    try:
        return AlexNet_Weights.IMAGENET1K_V1.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:  # the network raises many kinds, and torch.load any kind on half a file
        said = " ".join(str(error).split())
        raise _Missing(
            f"LPIPS is missing: AlexNet's weights could not be loaded ({said or type(error).__name__}); "
            "give them with --lpips_backbone FILE."
        ) from error


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except OSError as error:
        raise MetricError(f"LPIPS backbone {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # torch.load raises any kind on what is no weights file
        raise MetricError(
            f"LPIPS backbone {path} is not a weights file: give torchvision's AlexNet .pth "
            "or safetensors of its features."
        ) from error


def _match(state: dict[str, Tensor], expected: dict[str, Tensor], source: str | Path | None) -> dict[str, Tensor]:
    """The tensors of `state` under the names of `expected`; MetricError names the first key that differs."""
    found = {key: value for key, value in state.items() if not key.startswith("classifier.")}
    for key in [*expected, *found]:
        if key not in found:
            difference = f"has no {key}"
        elif key not in expected:
            difference = f"holds {key}, which AlexNet does not have"
        elif found[key].shape != expected[key].shape:
            shapes = tuple(found[key].shape), tuple(expected[key].shape)
            difference = f"holds {key} of shape {shapes[0]} where AlexNet has {shapes[1]}"
        else:
            continue
        raise MetricError(f"LPIPS backbone {source or 'of torchvision'} {difference}.")
    return {key: found[key].float().contiguous() for key in expected}
