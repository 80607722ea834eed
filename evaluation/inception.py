"""FID (Heusel et al. 2017) and KID (Binkowski et al. 2018) between patches of restored and of sharp images.

Both compare two sets. Network and distances are torch-fidelity's, whose own program reads whole sets from the disk.
Here an image's features are computed on its device, and are plain tensors that can be stored, sent and combined in any
order, so a stopped run is resumed and processes share the images. The distance is computed last. A test set has only a
few hundred images, too few for whole frames, so patches are used as in DvSR: 256 x 240 pixels without overlap, 15 per
frame of 1280 x 720 (Whang et al. 2022).
"""

import importlib.metadata
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from evaluation.backbones import read_backbone, sha256
from evaluation.fidelity import MetricError, full_precision, require_finite, whole_numbers

PATCH_HEIGHT, PATCH_WIDTH = 240, 256
_BATCH = 32
_KID_SUBSETS, _KID_SIZE = 100, 1000

FID_RECIPE = "FID, the Fréchet distance of Gaussians with sample covariance in float64"
KID_RECIPE = (
    "KID, not multiplied by 1000, the unbiased squared discrepancy under the kernel (x y / 2048 + 1)^3, mean of "
    f"{_KID_SUBSETS} subsets of {_KID_SIZE} patches with seed 0, or of all patches at once where there are no more"
)


class InceptionPatches:
    """The 2048 pooled features of Inception v3 (2015-12-05, the weights of the FID paper) of each patch.

    `reason` and `recipe` (with the sha256 of the weights as one safetensors file) are those of
    `evaluation.metrics.Metric`.

    Args:
        backbone: the weights of torch-fidelity's release (weights-inception-2015-12-05-6726825d.pth), or the same
            tensors as safetensors. None: from torch's cache or a download; if both fail the metrics are missing.

    Raises:
        MetricError: `backbone` does not hold these weights.
    """

    def __init__(self, backbone: str | Path | None = None):
        self.reason, self.recipe = None, None

        from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3, FeatureExtractorInceptionV3

        if backbone is None:
            try:
                state = torch.hub.load_state_dict_from_url(
                    URL_INCEPTION_V3, map_location="cpu", check_hash=True, weights_only=True
                )
            except Exception as error:  # a download raises many types, and torch.load any type on an incomplete file
                said = " ".join(str(error).split()) or type(error).__name__
                self.reason = (
                    f"FID and KID are missing: Inception's weights could not be loaded ({said}); give them with "
                    "--inception_backbone FILE."
                )
                return
        else:
            state = read_backbone(backbone, "Inception", "torch-fidelity's .pth")
        with tempfile.TemporaryDirectory() as folder:
            # torch-fidelity unpickles the file it is given, so it gets one that was written here.
            torch.save(state, Path(folder) / "weights.pth")
            try:
                self.network = FeatureExtractorInceptionV3(
                    "inception-v3-compat", ["2048"], feature_extractor_weights_path=Path(folder) / "weights.pth"
                )
            except RuntimeError as error:
                first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
                raise MetricError(
                    f"Inception backbone {backbone or 'of torch-fidelity'} does not fit: {first}"
                ) from error
        weights = {name: weight.contiguous() for name, weight in self.network.state_dict().items()}
        self.recipe = (
            f"RGB, clipped to [0, 1], rounded to 8 bits, patches of {PATCH_WIDTH} x {PATCH_HEIGHT} without overlap "
            "from the top left, the rest of a frame left out; Inception v3 of 2015-12-05, 2048 pooled features, "
            f"resized as in TensorFlow 1, weights sha256 {sha256(weights)}; "
            f"torch-fidelity {importlib.metadata.version('torch-fidelity')}"
        )

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The features of each patch.

        Args:
            images: (N, 3, H, W), about [0, 1].

        Returns:
            (N, P, 2048) for the P whole patches that fit, row by row.

        Raises:
            MetricError: an image is smaller than a patch, a value is not finite, or the weights are missing.
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        require_finite(images)
        height, width = images.shape[-2:]
        if height < PATCH_HEIGHT or width < PATCH_WIDTH:
            raise MetricError(
                f"FID and KID need patches of {PATCH_WIDTH}x{PATCH_HEIGHT} pixels and the image is {width}x{height}"
            )
        patches = cut_patches(whole_numbers(images).byte())
        network = self.network.to(images.device)
        with full_precision():
            parts = [network(part)[0].float() for part in patches.flatten(0, 1).split(_BATCH)]
        return torch.cat(parts).unflatten(0, patches.shape[:2])


def cut_patches(images: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, P, C, 240, 256), row by row."""
    cut = images.unfold(2, PATCH_HEIGHT, PATCH_HEIGHT).unfold(3, PATCH_WIDTH, PATCH_WIDTH)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)


def fid(restored: Tensor, sharp: Tensor) -> float:
    """Fréchet distance between Gaussians with the means and covariances of two (M, D) sets of features.

    Raises:
        MetricError: a set has fewer than two features.
    """
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric

    statistics = [fid_features_to_statistics(features) for features in _checked(restored, sharp)]
    return fid_statistics_to_metric(*statistics, verbose=False)[KEY_METRIC_FID]


def kid(restored: Tensor, sharp: Tensor) -> float:
    """Unbiased squared maximum mean discrepancy of two (M, D) sets of features under a cubic kernel.

    The mean over 100 subsets of 1000 (seed 0), or computed once if a set has no more than 1000 features.

    Raises:
        MetricError: a set has fewer than two features.
    """
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, kid_features_to_metric

    restored, sharp = _checked(restored, sharp)
    size = min(_KID_SIZE, len(restored), len(sharp))
    subsets = 1 if len(restored) == len(sharp) == size else _KID_SUBSETS
    return kid_features_to_metric(
        restored, sharp, kid_subsets=subsets, kid_subset_size=size, rng_seed=0, verbose=False
    )[KEY_METRIC_KID_MEAN]


def _checked(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    if min(len(restored), len(sharp)) < 2:
        raise MetricError("FID and KID need two patches or more of each set")
    return restored.double().cpu(), sharp.double().cpu()
