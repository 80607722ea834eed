"""Small images that are the same everywhere, for comparisons with other implementations and with stored values."""

import numpy as np
import torch
from skimage import data

SHARP = data.astronaut()[0:200, 150:350]  # 200 x 200
RESTORED = {
    "few levels": SHARP // 32 * 32 + 16,
    "dark and shifted": np.roll(SHARP, (1, 2), (0, 1)) // 8 * 7,
    "every second row": SHARP[::2].repeat(2, axis=0),
}


def tensor(image: np.ndarray) -> torch.Tensor:
    """(H, W, 3) uint8 -> (1, 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255
