"""A restoration between the networks and the image: blended, kept where it is sharp, enlarged, by plain arithmetic.

A `Draft` has all that does not depend on how much of a sample is blended in, so that one run of the networks serves
several strengths (the page's slider) and several settings (evaluate.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from deblur.calibration import ErrorCurve
from deblur.image_processor import restorable, with_hidden_filled
from deblur.keep_sharp import restored_share
from deblur.models.diffusion import add_residual, expected_size, to_world
from deblur.models.networks.mixins import BaseOutput
from deblur.settings import SamplingSettings
from deblur.tiling import Tiled
from deblur.working_size import reduced, resized, with_change


@dataclass(frozen=True)
class Prediction:
    """The predictor's estimates, in the networks' range [-1, 1].

    Args:
        x_init: (N, 3, H, W), float32, not clipped.
        log_size: log of the expected |x - x_init|, (N, 1, H, W); None if the predictor has no size head.
        error_curve: from that to the error that was measured; None: it is not calibrated.
        discarded: (N, 1, H, W) of bool, where the estimate was no image's and x_init is the blurry one; None: nowhere.
    """

    x_init: Tensor
    log_size: Tensor | None = None
    error_curve: ErrorCurve | None = None
    discarded: Tensor | None = None

    @property
    def images(self) -> Tensor:
        """The estimates in [0, 1], clipped."""
        return to_world(self.x_init)

    @property
    def expected_error(self) -> Tensor | None:
        """The expected |x - x_init| (N, 1, H, W) in units of the [0, 1] range, if the predictor has a size head."""
        if self.log_size is None:
            return None
        estimate = expected_size(self.log_size).div_(2)
        return estimate if self.error_curve is None else self.error_curve.expected(estimate)


@dataclass
class DeblurOutput(BaseOutput):
    """The result of a restoration. Tensors are float32 in [0, 1]; images can also be PIL images or arrays.

    Args:
        images: the N * num_samples restored images, with the samples of one image in a row; N if averaged.
        predictions: the predictor's N estimates.
        std: standard deviation over the samples (N, 3, H, W), in units of the [0, 1] range; None for one sample.
        expected_error: the predictor's own estimate of |x - x_init| (N, 1, H, W), in units of the [0, 1] range,
            calibrated if the checkpoint is; None if it has no size head.
        share: weights of the restored images over their inputs (N, 1, H, W), or (N, 1, 1, 1) if all is restored in
            full, by `deblur.keep_sharp.restored_share`.
        tiles: side of each network's tiles, without their halo; None for the whole image.
        scale: at which the images were restored.
        discarded: share of each image (N,) that is kept since its prediction was no image's; None: nothing.
    """

    images: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    predictions: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    std: Tensor | None
    expected_error: Tensor | None = None
    share: Tensor | None = None
    tiles: dict[str, int | None] | None = None
    scale: float = 1.0
    discarded: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Blurry:
    """Images of one size to be restored, as they were given and as the networks see them.

    Args:
        given: (N, 3, H, W) float32 in [0, 1].
        visible: (N, 1, H, W) of bool; hidden pixels stay as they are, and their colours change no other. None: all are
            visible.
        mask: (H, W) in [0, 1], 1 where an image is restored, whatever `keep_sharp` says, and 0 where it is kept. None:
            it is restored where it is not sharp.
        scale: above 0 and at most 1, at which the networks see them.
    """

    given: Tensor
    visible: Tensor | None = None
    mask: Tensor | None = None
    scale: float = 1.0

    @cached_property
    def filled(self) -> Tensor:
        """The images whose hidden pixels continue the colours of the visible ones."""
        return with_hidden_filled(self.given, self.visible)

    @cached_property
    def small(self) -> Tensor:
        """What the networks see: (N, 3, h, w) at the scale."""
        return self.filled if self.scale == 1 else reduced(self.filled, self.scale)

    @cached_property
    def is_grey(self) -> Tensor:
        """Which images have three equal channels, (N, 1, 1, 1) of bool."""
        return (self.small == self.small[:, :1]).flatten(1).all(1).view(-1, 1, 1, 1)

    @property
    def small_visible(self) -> Tensor | None:
        """Where that is visible, (N, 1, h, w) of bool; None: everywhere."""
        if self.visible is None or self.scale == 1:
            return self.visible
        return reduced(self.visible.float(), self.scale) > 0.5


@dataclass(eq=False)
class Draft:
    """What restored images are made of, beside the samples of the residual.

    Args:
        blurry: the images.
        prediction: what the predictor made of `blurry.small`.
        s: the residual's scale (N, 1, h, w), or (N, 3, h, w) for luma and chroma; None if no sample will be drawn.
        tiled: the networks as they were called, by their names.
    """

    blurry: Blurry
    prediction: Prediction
    s: Tensor | None = None
    tiled: dict[str, Tiled] = field(default_factory=dict)
    _shares: dict[float, Tensor] = field(default_factory=dict, repr=False)

    @property
    def tiles(self) -> dict[str, int | None]:
        """Side of each network's tiles, without their halo; None for the whole image."""
        return {name: tiled.side(self.blurry.small) for name, tiled in self.tiled.items()}

    @cached_property
    def predictions(self) -> Tensor:
        """The predictor's estimates (N, 3, H, W) in [0, 1]: the images at blend 0, restored everywhere."""
        predictions = self._in_full(self._blended(None, 0.0, in_place=False))
        if self.blurry.visible is None:
            return predictions
        return kept(predictions, self.blurry.given, self.blurry.visible.float())

    def share(self, keep_sharp: float) -> Tensor:
        """The weight of what is restored, by `deblur.keep_sharp.restored_share`, at the networks' scale.

        Of what keep_sharp 0 or a mask restores in full it is 1, (N, 1, 1, 1); where the prediction is discarded, 0.
        """
        level = keep_sharp if self.blurry.mask is None else 0.0
        if level not in self._shares:
            if level == 0:
                share = self.blurry.given.new_ones((len(self.blurry.given), 1, 1, 1), dtype=torch.float32)
            else:
                share = restored_share(self.blurry.small, self.prediction.x_init, level, self.blurry.small_visible)
            discarded = self.prediction.discarded
            self._shares[level] = share if discarded is None else share * ~discarded
        return self._shares[level]

    @torch.no_grad()
    def restored(self, samples: Iterable[Tensor], settings: Sequence[SamplingSettings]) -> list[DeblurOutput]:
        """The restored images, once for each of several settings, which share the samples.

        Args:
            samples: of the scaled residual r_0, each (N, 3, h, w) and overwritten; as many as the most `num_samples`.
                None is taken where no setting needs one.
            settings: differ only in num_samples, average, blend and keep_sharp; `deblur.settings.sharing_samples` makes
                such groups.

        Returns:
            `DeblurOutput` of tensors for each of the settings.
        """
        results = [Collected(one, self.share(one.keep_sharp)) for one in settings]
        if not any(result.settings.blend > 0 and result.share.any() for result in results):
            samples = repeat(None, max(one.num_samples for one in settings))
        for k, r_0 in enumerate(samples):
            wanted = [result for result in results if k < result.settings.num_samples]
            for result in wanted:
                x = self._blended(r_0, result.settings.blend, in_place=result is wanted[-1])
                result.add(kept(x, self.blurry.small, result.share))
            del r_0
        return [self._output(result) for result in results]

    def _blended(self, r_0: Tensor | None, blend: float, in_place: bool) -> Tensor:
        """x_init + blend s r_0 (N, 3, h, w) in [0, 1], clipped; `in_place` overwrites r_0, which saves a tensor.

        What is grey stays grey: the networks would colour the letters of a scanned page.
        """
        if r_0 is None:
            x = self.prediction.images
        else:
            share = r_0.mul_(blend) if in_place else r_0 * blend
            x = to_world(add_residual(self.prediction.x_init, share, self.s))
        if not self.blurry.is_grey.any():
            return x
        return torch.where(self.blurry.is_grey, x.median(dim=1, keepdim=True).values, x)

    def _output(self, result: "Collected") -> DeblurOutput:
        """The images of one setting in full size, with what is masked or hidden as it was given."""
        blurry, images = self.blurry, self._in_full(result.images())
        maps = result.std(), self.prediction.expected_error, result.share
        std, error, share = (self._enlarged(values) for values in maps)
        weight = restorable(blurry.visible, blurry.mask)
        if weight is not None:
            weight, times = weight.expand(len(blurry.given), 1, -1, -1), len(images) // len(blurry.given)
            given, each = (x.repeat_interleave(times, 0) for x in (blurry.given, weight))
            images = kept(images, given, each)
            std = None if std is None else std * weight
            share = share if blurry.mask is None else share * weight
        discarded = self.prediction.discarded
        part = None if discarded is None else discarded.float().mean((1, 2, 3))
        return DeblurOutput(images, self.predictions, std, error, share, self.tiles, blurry.scale, part)

    def _in_full(self, small: Tensor) -> Tensor:
        """What was made of the reduced images, in the images' size."""
        return small if self.blurry.scale == 1 else with_change(self.blurry.filled, self.blurry.small, small)

    def _enlarged(self, values: Tensor | None) -> Tensor | None:
        """Values for each pixel (N, C, h, w) in the images' size; one value for a whole image stays."""
        if self.blurry.scale == 1 or values is None or values.numel() == len(values):
            return values
        return resized(values, *self.blurry.given.shape[-2:]).clamp_min_(0)


class Collected:
    """Collects the images of one setting from samples added one by one, each (N, 3, h, w) in [0, 1]."""

    def __init__(self, settings: SamplingSettings, share: Tensor):
        self.settings, self.share = settings, share
        self.separate, self.count, self.mean, self.squares = [], 0, None, None

    def add(self, x: Tensor) -> None:
        """Add the next sample. Mean and standard deviation are running ones (Welford 1962)."""
        if self.settings.num_samples == 1 or not self.settings.average:
            self.separate.append(x)
        if self.settings.num_samples > 1:
            if self.mean is None:
                self.mean, self.squares = torch.zeros_like(x), torch.zeros_like(x)
            self.count += 1
            difference = x - self.mean
            self.mean.add_(difference, alpha=1 / self.count)
            self.squares.addcmul_(difference, x - self.mean)

    def images(self) -> Tensor:
        """(N * num_samples, 3, h, w), with the samples of one image in a row; (N, 3, h, w) if averaged."""
        if len(self.separate) > 1:
            return torch.stack(self.separate, dim=1).flatten(0, 1)
        return self.separate[0] if self.separate else self.mean

    def std(self) -> Tensor | None:
        """Standard deviation over the samples (N, 3, h, w); None for one sample."""
        return (self.squares / (self.count - 1)).sqrt() if self.count > 1 else None


def kept(x: Tensor, blurry: Tensor, share: Tensor) -> Tensor:
    """Restored images weighted against their inputs, all (N, 3, H, W) in [0, 1]; overwrites x."""
    return x if (share == 1).all() else torch.lerp(blurry.float(), x, share, out=x)
