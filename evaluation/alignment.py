"""RealBlur's aligned scores (Rim et al. 2020): PSNR and SSIM after the restored picture was laid onto the truth.

The truth of RealBlur comes from a second camera, so a good result may lie beside it. The authors' script
(rimchang/RealBlur, evaluation_RealBlur_ecc.py) scales the result's intensity, finds the homography that maximises the
enhanced correlation coefficient (Evangelidis and Psarakis 2008), warps the result, and scores what both pictures show.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.fidelity import MetricError, check_pair, full_precision, require_side, ssim_map

_ITERATIONS = 100
_STILL = 1e-4  # pixels at the corners: a smaller step changes no score

_RECIPE = (
    "RGB, clipped to [0, 1], rounded to 8 bits; the restored picture scaled by one factor to the truth's intensity, "
    "homography by maximising the enhanced correlation coefficient on greys smoothed by a 5 x 5 Gaussian (at most "
    f"{_ITERATIONS} steps), warped bicubically with the mirrored edge, not rounded again; over the pixels that both "
    f"show, as evaluation_RealBlur_ecc.py of RealBlur's authors; own code on torch {torch.__version__} in place of "
    "OpenCV"
)
PSNR_ALIGNED_RECIPE = f"Aligned PSNR in dB: {_RECIPE}; range 1"
SSIM_ALIGNED_RECIPE = (
    f"Aligned SSIM: {_RECIPE}; Gaussian window 11 with sigma 1.5, population covariance, range 1, mean over the pixels "
    "whose window lies inside the frame and whose middle both pictures show, then over the channels"
)


def align(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    """Lay a restored picture onto the truth.

    Args:
        restored: (3, H, W) in [0, 1].
        sharp: (3, H, W) in [0, 1].

    Returns:
        The aligned picture, (3, H, W), and the mask of the pixels that it shows, (H, W) of ones and zeros.

    Raises:
        MetricError: the pictures are uncorrelated, so that no homography can be found.
    """
    power = restored.square().sum()
    if power == 0:
        raise MetricError("the restored picture is black and cannot be aligned with the truth")
    scaled = (restored * sharp).sum() / power * restored
    homography = find_homography(_grey(scaled), _grey(sharp))
    # grid_sample's bicubic kernel is OpenCV's, and its reflection between pixels is OpenCV's BORDER_REFLECT.
    grid = _places(homography.to(restored), *sharp.shape[-2:])
    aligned = _sample(scaled, grid, "bicubic", "reflection")
    return aligned, _sample(torch.ones_like(scaled[:1]), grid, "nearest", "zeros")[0]


def find_homography(moving: Tensor, fixed: Tensor) -> Tensor:
    """The homography from pixels (x, y, 1) of `fixed` to those of `moving` by forward additive ECC.

    Args:
        moving: (H, W).
        fixed: (H, W).

    Returns:
        (3, 3) in float64, its last number 1.

    Raises:
        MetricError: the pictures are uncorrelated.
    """
    moving, fixed = _smooth(moving), _smooth(fixed)
    height, width = fixed.shape
    # Central differences; at the border the picture is mirrored, so that its slope is zero.
    slope_x = F.pad((moving[:, 2:] - moving[:, :-2]) / 2, (1, 1))
    slope_y = F.pad((moving[2:] - moving[:-2]) / 2, (0, 0, 1, 1))
    layers = torch.stack([moving, slope_x, slope_y])
    y, x = torch.meshgrid(*(torch.arange(n, device=fixed.device).to(fixed) for n in (height, width)), indexing="ij")
    shown = torch.ones_like(layers[:1])

    homography = torch.eye(3, dtype=torch.float64, device=fixed.device)
    corners = homography.new_tensor([[0, 0, 1], [width - 1, 0, 1], [0, height - 1, 1], [width - 1, height - 1, 1]])
    for _ in range(_ITERATIONS):
        grid = _places(homography.to(fixed), height, width)
        warped, slope_x, slope_y = _sample(layers, grid, "bilinear", "zeros")
        mask = _sample(shown, grid, "nearest", "zeros")[0].bool()
        if mask.sum() < 9:
            raise MetricError("the restored picture could not be aligned with the truth")
        u, v = ((side + 1) * n / 2 - 0.5 for side, n in zip(grid.unbind(-1), (width, height), strict=True))
        h = homography.to(fixed)
        depth = h[2, 0] * x + h[2, 1] * y + 1
        gx, gy = slope_x / depth, slope_y / depth
        g = -(u * gx + v * gy)
        # Slopes of the warped picture along the eight numbers of the homography, row by row.
        jacobian = torch.stack([gx * x, gx * y, gx, gy * x, gy * y, gy, g * x, g * y], dim=-1).flatten(0, 1).double()
        # As in OpenCV, what the moving picture does not show still counts, with the values that fade out there.
        image = torch.where(mask, warped - warped[mask].mean(), warped).flatten().double()
        template = torch.where(mask, fixed - fixed[mask].mean(), 0).flatten().double()
        power = (warped[mask].double() - warped[mask].double().mean()).square().sum()

        hessian = jacobian.T @ jacobian
        image_part, template_part = jacobian.T @ image, jacobian.T @ template
        try:
            solved = torch.linalg.solve(hessian, torch.stack([image_part, template_part], dim=1))
        except RuntimeError as error:  # singular: there is nothing to hold on to
            raise MetricError("the restored picture is too flat to be aligned with the truth") from error
        away = image @ template - template_part @ solved[:, 0]
        if not away > 0:
            raise MetricError("the restored picture could not be aligned with the truth")
        scale = (power - image_part @ solved[:, 0]) / away  # eq. 20 of Evangelidis and Psarakis
        step = scale * solved[:, 1] - solved[:, 0]

        before = _project(homography, corners)
        homography = homography + torch.cat([step, step.new_zeros(1)]).view(3, 3)
        if (_project(homography, corners) - before).abs().max() < _STILL:
            break
    return homography


@torch.no_grad()
def psnr_aligned(restored: Tensor, sharp: Tensor) -> Tensor:
    """PSNR of each picture by PSNR_ALIGNED_RECIPE.

    Args:
        restored: (N, 3, H, W), about [0, 1].
        sharp: the truth, (N, 3, H, W) in [0, 1].

    Returns:
        (N,) in dB.

    Raises:
        MetricError: the shapes differ, a value is not finite, or the pictures cannot be aligned.
    """
    values = []
    for picture, truth in zip(*_unit_pair(restored, sharp), strict=True):
        aligned, mask = align(picture, truth)
        error = ((aligned - truth).square() * mask).sum() / (3 * mask.sum())
        values.append(-10 * torch.log10(error))
    return torch.stack(values)


@torch.no_grad()
def ssim_aligned(restored: Tensor, sharp: Tensor) -> Tensor:
    """SSIM of each picture by SSIM_ALIGNED_RECIPE; arguments and errors as for `psnr_aligned`."""
    values = []
    require_side(sharp, 11, "SSIM")
    for picture, truth in zip(*_unit_pair(restored, sharp), strict=True):
        aligned, mask = align(picture, truth)
        similarity = ssim_map((aligned * mask)[None], (truth * mask)[None], levels=1.0)[0]
        inside = mask[5:-5, 5:-5]
        values.append(((similarity * inside).sum((1, 2)) / inside.sum()).mean())
    return torch.stack(values)


def _unit_pair(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    restored, sharp = check_pair(restored, sharp)
    return restored / 255, sharp / 255


def _grey(picture: Tensor) -> Tensor:
    """(3, H, W) -> (H, W) by OpenCV's weights."""
    return torch.einsum("chw,c->hw", picture, picture.new_tensor([0.299, 0.587, 0.114]))


def _smooth(grey: Tensor) -> Tensor:
    """OpenCV's 5 x 5 Gaussian, 1 4 6 4 1 a side, mirrored at the edge's pixels."""
    window = grey.new_tensor([1, 4, 6, 4, 1]) / 16
    padded = F.pad(grey[None, None], (2, 2, 2, 2), mode="reflect")
    with full_precision():
        return F.conv2d(padded, (window[:, None] * window)[None, None])[0, 0]


def _project(homography: Tensor, points: Tensor) -> Tensor:
    projected = points @ homography.T
    return projected[:, :2] / projected[:, 2:]


def _places(homography: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel comes from, (H, W, 2), in grid_sample's units."""
    y, x = torch.meshgrid(
        torch.arange(height, device=homography.device).to(homography),
        torch.arange(width, device=homography.device).to(homography),
        indexing="ij",
    )
    u, v, depth = torch.einsum("ij,jhw->ihw", homography, torch.stack([x, y, torch.ones_like(x)]))
    return torch.stack([(2 * u / depth + 1) / width - 1, (2 * v / depth + 1) / height - 1], dim=-1)


def _sample(picture: Tensor, grid: Tensor, mode: str, padding: str) -> Tensor:
    return F.grid_sample(picture[None], grid[None], mode, padding, align_corners=False)[0]
