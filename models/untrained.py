"""Predictors without weights, for ablation: refinement without a prediction (zero), or of the input itself."""

import torch
from torch import Tensor

from models.heads import Predictor
from models.parts import register_to_config


class IdentityPredictor(Predictor):
    """x_init = y: the denoiser samples the difference between the sharp and the blurry image."""

    receptive_field, stride = 0, 1

    @register_to_config
    def __init__(self):
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)  # lets diffusers find the device

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> the same."""
        return blurry.float()


class ZeroPredictor(IdentityPredictor):
    """x_init = 0 (mid grey): the denoiser samples the whole image, the one-network conditional DDPM of SR3."""

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> zeros of that shape."""
        return torch.zeros_like(blurry, dtype=torch.float32)
