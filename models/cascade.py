"""Two predictors in a row: the second sees the blurry image and the first one's estimate, and corrects it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deblur.models.base import Predictor

PARTS = ("first", "second")


class Cascade(Predictor):
    """x_init = second(y, first(y)).

    The first is a strong network, often with the weights of others. The second is a small one that learns what those
    lack, such as noise that they never saw. It adds to the first one's estimate, and starts as that.

    Args:
        first: a predictor of one image. Its size head, if it has one, is not used.
        second: a predictor of two images, such as `models.nafnet.SlimPredictor(images=2)`.
        frozen: the first keeps its weights, in evaluation mode; otherwise both learn.
    """

    receptive_field = None

    def __init__(self, first: Predictor, second: Predictor, frozen: bool = True):
        super().__init__()
        self.first, self.second, self.frozen = first, second, frozen
        self.stride = max(first.stride, second.stride)
        parts = {part: {"class": type(net).__name__, "config": dict(net.config)} for part, net in self.named_children()}
        self.register_to_config(parts=parts, frozen=frozen)  # as {part: {class, config}}
        if frozen:
            first.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Cascade":
        super().train(mode)
        if self.frozen:
            self.first.eval()
        return self

    def forward(self, blurry: Tensor, **options: Any) -> Tensor:
        """As `models.base.LocalPredictor.forward`; the options, such as `stages`, are the first one's."""
        return self.second(blurry, self.first_estimate(blurry, **options))

    def estimates(self, blurry: Tensor) -> list[Tensor]:
        """The outputs to supervise: the second one's and, unless it is frozen, the first one's."""
        if self.frozen:
            return self.second.estimates(blurry, self.first_estimate(blurry))
        outputs = [output[:, :3] for output in self.first.estimates(blurry)]
        return [*self.second.estimates(blurry, outputs[0].clamp(-1, 1)), *outputs]

    def first_estimate(self, blurry: Tensor, **options: Any) -> Tensor:
        """What the second network sees beside the blurry image: (N, 3, H, W) in [-1, 1], clipped."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.first(blurry, **options)[:, :3].clamp(-1, 1)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write each network into a folder of its own, so that a new second one does not store the first again."""
        self.save_config(folder)
        for part, network in self.named_children():
            network.save_pretrained(Path(folder) / part, **options)
