"""What of an image is sharp and is kept, and whether a sample is worse than its input."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad
from torch.signal.windows import gaussian

from deblur.models.diffusion import to_world

KEPT_UP_TO = 0.35  # the change, relative to the detail, up to which a region is kept
RESTORED_FROM = 0.7  # and from which it is restored in full
SMALLEST_SHARP_SHARE = 0.08  # share of an image that is sharp, from which on the rest may be its background
LEAST_DETAIL = 5.0  # levels: with less detail a region is neither sharp nor blurred
SURROUNDINGS = 24  # pixels, the standard deviation of the region around a pixel
NEAR = 16  # the same around a pixel of who walks by
LEAST_MOVED = 0.5  # the least weight of what moved, near a pixel
DIRECTION_OF_MOTION = 2.2  # `_direction` of the change, beside the image, to what moved rather than is out of focus
FAINT_GRADIENTS = (5 / 255) ** 2  # the mean square that is added to an image's gradients in all directions
FAINT_CHANGE = 0.2 * FAINT_GRADIENTS  # and to those of its change
DIRECTION_OF_STREAKS = 2.0  # `_direction` of a shaken image, beside
EVEN_GRADIENTS = 1.0, 1.0, 0.0  # those that are equal in all directions
BLOCK = 8  # pixels a side, in which regions are averaged first
LEAST_FINE_DETAIL = 0.05  # the least detail of a sharp image, relative to its contrast around a pixel
LEAST_SHAKEN_DETAIL = 0.1  # where its edges lie in one direction, as the streaks of a shake do
LARGEST_DOUBT = 0.85  # change times expected error over contrast times fine detail, of what is not blurred any more
LEAST_LIGHTS = 0.1  # the share of lights in the fine detail of a night
LEAST_DETAIL_OF_LIGHTS = 0.09  # the least detail of a sharp night after a mean of 3 x 3 pixels, relative as above
LEAST_LIKENESS = 0.39  # of the traces in the parts of a night whose lights are streaks
PART_SIDE = 128  # pixels, of the parts that are compared
FEWEST_PARTS, MOST_PARTS = 4, 64  # that are compared, of those with the strongest edges
LEAST_ENERGY = 0.05  # of a part's edges, relative to the strongest part's
NEAREST, FARTHEST = 3, 20  # pixels, the distances of a trace that are compared
SQUARE = (9, 9)  # blocks: a region that looks blurred and holds no such square is none
UPRIGHT, LYING = (7, 5), (5, 7)  # one that moved and holds neither is none
BESIDE = (7, 7)  # what is blurred in these around a block that moved did, too
EDGE = (3, 3)  # those around it that are restored in full, where its blur ends
BRIGHTEST_SURFACE = 2.0  # times the brightness around it: what is brighter is a light, whose streaks are not sharp
EVEN = (5, 5)  # pixels, of an even neighbourhood
LARGEST_ROUNDING = 1e-5  # of values in [0, 1]
WIDE = 7  # pixels a side, in which a photograph's white is averaged
WHITE_UP_TO = 1.0  # levels below full white, up to which it is not darkened
DARKENED_FROM = 6.0  # and from which it may be in full
EVERYWHERE = torch.ones(1, 1, 1, 1)  # the share of an image that is restored in full


def restored_share(blurry: Tensor, x_init: Tensor, keep_sharp: float, visible: Tensor | None = None) -> Tensor:
    """The weight of each restored pixel over its input (N, 1, H, W): 0 where the image is sharp or even.

    A region is blurred if the predictor changes it by more than the fine detail that it has. The weight rises from 0 to
    1 while change / (detail + keep_sharp), both as root mean squares around a pixel, rises from KEPT_UP_TO to
    RESTORED_FROM. Where all neighbours have one value, as on a page or a screen, nothing is changed.

    Where a part of the image is sharp, only what moved is restored, and what is out of focus is kept, as a portrait's
    background is. Motion takes away the gradients along its path and leaves those across it: beside the gradients that
    are left, the change is DIRECTION_OF_MOTION times as strong in one direction as in another.

    A clipped highlight is not darkened, as networks do that know brighter light than files hold: a dull one looks worse
    than a blurred one.

    Lights make no part sharp: in a shaken photograph of a night they are streaks. Where all of them draw one trace, all
    that is uneven is restored.

    Args:
        blurry: (N, 3, H, W) in [0, 1].
        x_init: the prediction in [-1, 1].
        keep_sharp: in 8-bit levels, above 0.
        visible: (N, 1, H, W) of bool; what is hidden, as under alpha 0, neither counts nor changes. None: all is.
    """
    grey = blurry.float().mean(1, keepdim=True)
    mean_change, squares = torch.zeros_like(grey), torch.zeros_like(grey)
    for c in range(3):  # which saves memory on large photographs
        difference = to_world(x_init[:, c : c + 1]) - blurry[:, c : c + 1]
        mean_change += difference / 3
        squares += difference.square_() / 3
    fine_detail = _fine_detail(grey)
    of_surfaces = _fine_detail(_without_lights(grey))
    lights = _share_of_lights(fine_detail, of_surfaces)
    without_lights = 255 * _root_mean(of_surfaces, visible)
    weights, near = (_weight(squares, fine_detail, keep_sharp, visible, spread) for spread in (SURROUNDINGS, NEAR))
    del squares, fine_detail, of_surfaces  # of the photograph's size
    blocks = _opened(weights, SQUARE)
    is_sharp = (blocks == 0) & (without_lights > LEAST_DETAIL)
    counted = torch.ones_like(blocks) if visible is None else _in_blocks(visible.float())
    sharp_share = (is_sharp * counted).sum((1, 2, 3)) / counted.sum((1, 2, 3))  # no number where all is hidden
    moved = _moved(near >= LEAST_MOVED, _direction_of_change(mean_change, grey, visible))
    blocks = torch.where((sharp_share > SMALLEST_SHARP_SHARE).view(-1, 1, 1, 1), moved, blocks)
    share = interpolate(blocks, scale_factor=BLOCK, mode="bilinear")[..., : grey.shape[-2], : grey.shape[-1]]
    streaks = [_draws_streaks(*one) for one in zip(grey.split(1), lights, strict=True)]
    streaks = torch.tensor(streaks, device=share.device)
    share = share * torch.where(mean_change < 0, _darkened_share(grey), 1.0)
    share = torch.where(streaks.view(-1, 1, 1, 1), 1.0, share) * _is_uneven(grey)
    return share if visible is None else share * visible


def _weight(squares: Tensor, fine_detail: Tensor, keep_sharp: float, visible: Tensor | None, spread: int) -> Tensor:
    """The weight of each block by the change and the fine detail around it, both given as squares (N, 1, H, W)."""
    change, detail = (255 * _root_mean(one, visible, spread) for one in (squares, fine_detail))
    return ((change / (detail + keep_sharp) - KEPT_UP_TO) / (RESTORED_FROM - KEPT_UP_TO)).clamp(0, 1)


def _root_mean(squares: Tensor, visible: Tensor | None, spread: int = SURROUNDINGS) -> Tensor:
    """The root mean square around each block of BLOCK x BLOCK pixels, of squares (N, 1, H, W)."""
    return _mean_around(squares, visible, spread).sqrt()


def _mean_around(values: Tensor, visible: Tensor | None, spread: int) -> Tensor:
    """The mean of the visible values (N, 1, H, W) around each block."""
    if visible is None:
        return _around(values, spread)
    return _around(values * visible, spread) / _around(visible.float(), spread).clamp_min(1e-6)


def _around(values: Tensor, spread: int = SURROUNDINGS) -> Tensor:
    """The Gaussian mean around each block of BLOCK x BLOCK pixels."""
    blocks = _in_blocks(values)
    half = math.ceil(2 * spread / BLOCK)
    kernel = gaussian(2 * half + 1, std=spread / BLOCK).to(blocks)
    kernel = kernel / kernel.sum()
    across = conv2d(pad(blocks, (half, half, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    return conv2d(pad(across, (0, 0, half, half), mode="replicate"), kernel.view(1, 1, -1, 1))


def _in_blocks(values: Tensor) -> Tensor:
    """The mean of each block of BLOCK x BLOCK pixels."""
    return avg_pool2d(values, BLOCK, ceil_mode=True, count_include_pad=False)


def _moved(is_blurred: Tensor, direction: Tensor) -> Tensor:
    """The weights of the blurred blocks (N, 1, h, w) that moved, by the `_direction_of_change` of each."""
    moved = (is_blurred & (direction >= DIRECTION_OF_MOTION)).float()
    moved = torch.maximum(_opened(moved, UPRIGHT), _opened(moved, LYING))
    moved = _most(moved, BESIDE) * is_blurred
    return _mean(_most(moved, EDGE))


def _opened(values: Tensor, sides: tuple[int, int]) -> Tensor:
    """Values (N, 1, h, w) without what is narrower than the rectangle."""
    return _most(_least(values, sides), sides)


def _least(values: Tensor, sides: tuple[int, int]) -> Tensor:
    """The least value in the rectangle around each."""
    return -_most(-values, sides)


def _most(values: Tensor, sides: tuple[int, int]) -> Tensor:
    """The largest value in the rectangle around each."""
    rows, columns = sides
    return max_pool2d(values, sides, 1, (rows // 2, columns // 2))


def _without_lights(grey: Tensor) -> Tensor:
    """An image (N, 1, H, W) in which nothing is brighter than BRIGHTEST_SURFACE times what is around it."""
    height, width = grey.shape[-2:]
    around = interpolate(_around(grey), scale_factor=BLOCK, mode="bilinear")[..., :height, :width]
    return torch.minimum(grey, around.mul_(BRIGHTEST_SURFACE))


def _fine_detail(grey: Tensor) -> Tensor:
    """The mean square of both second differences over neighbouring pixels."""
    wide = pad(grey, (1, 1, 1, 1), mode="replicate")
    across = grey - (wide[..., 1:-1, :-2] + wide[..., 1:-1, 2:]) / 2
    down = grey - (wide[..., :-2, 1:-1] + wide[..., 2:, 1:-1]) / 2
    return across.square_().add_(down.square_()).div_(2)


def _direction_of_change(change: Tensor, image: Tensor, visible: Tensor | None) -> Tensor:
    """The `_direction` of the gradients of a change (N, 1, H, W), beside those of its image, near each block."""
    change_xx, change_yy, change_xy = (_mean_around(one, visible, NEAR) for one in _squared_gradients(change))
    xx, yy, xy = (_mean_around(one, visible, NEAR) for one in _squared_gradients(image))
    # Where an image has hardly any gradients in a direction, noise decides how much of them changed.
    of_change = change_xx + FAINT_CHANGE, change_yy + FAINT_CHANGE, change_xy
    return _direction(of_change, (xx + FAINT_GRADIENTS, yy + FAINT_GRADIENTS, xy))


def _squared_gradients(values: Tensor) -> Iterator[Tensor]:
    """The squares of differences of values (N, 1, H, W) across and down, and their product."""
    # Differences that share no pixel, so that noise has no direction.
    wide = pad(values, (1, 1, 1, 1), mode="replicate")
    across = wide[..., 1:-1, 2:] - wide[..., 1:-1, :-2]
    down = wide[..., 2:, 1:-1] - wide[..., :-2, 1:-1]
    yield across.square()
    yield down.square()
    yield across.mul_(down)


def _direction(gradients: Sequence[Tensor], beside: Sequence[Tensor | float]) -> Tensor:
    """How much stronger means of `_squared_gradients`, beside others, are in one direction than in another: 1 in none.

    This is the ratio of the generalised eigenvalues of two structure tensors.
    """
    xx, yy, xy = gradients
    other_xx, other_yy, other_xy = beside
    determinant = other_xx * other_yy - other_xy**2
    mean = (other_yy * xx + other_xx * yy - 2 * other_xy * xy) / (2 * determinant)
    spread = (mean.square() - (xx * yy - xy.square()) / determinant).clamp_min(0).sqrt()
    return (mean + spread) / (mean - spread).clamp_min(1e-12)


def _is_uneven(grey: Tensor) -> Tensor:
    """Whether a pixel has neighbours of another value."""
    return _most(grey, EVEN) - _least(grey, EVEN) > LARGEST_ROUNDING


def _darkened_share(grey: Tensor) -> Tensor:
    """The share of a darkening that is taken: 0 in clipped highlights, and 1 where nothing is white."""
    levels_below_white = 255 * (1 - avg_pool2d(grey, WIDE, 1, WIDE // 2, count_include_pad=False))
    return ((levels_below_white - WHITE_UP_TO) / (DARKENED_FROM - WHITE_UP_TO)).clamp(0, 1)


def restored_amount(share: Tensor, visible: Tensor | None = None) -> float:
    """How much of the visible part of an image is restored, by its `restored_share` (1, 1, H, W)."""
    if visible is None or share.numel() == 1:
        return share.mean().item()
    return ((share * visible).sum() / visible.sum().clamp_min(1)).item()


def lacks_detail(image: Tensor, share: Tensor = EVERYWHERE) -> bool:
    """Whether an image (3, H, W) in [0, 1] has hardly any fine detail for its contrast, where this share is."""
    return _relative_detail(image.mean(0, keepdim=True)[None], share) < LEAST_FINE_DETAIL


def stays_blurred(blurry: Tensor, prediction: Tensor, expected_error: Tensor, share: Tensor = EVERYWHERE) -> bool:
    """Whether the predictor changed much for the contrast, and expects a large error for the detail that it made.

    So it is after a long curved shake, whose streaks have detail of their own.

    Args:
        blurry, prediction: (3, H, W) in [0, 1].
        expected_error: (1, 1, H, W), as in `DeblurOutput`.
        share: (1, 1, H, W) or (1, 1, 1, 1), what is looked at.
    """
    detail, contrast = _detail_and_contrast(prediction.mean(0, keepdim=True)[None], share)
    change = _mean_where((prediction - blurry).abs().mean(0, keepdim=True)[None], share)
    return bool(change * _mean_where(expected_error, share) > LARGEST_DOUBT * contrast * detail)


def is_shaken(blurry: Tensor) -> bool:
    """Whether an image (3, H, W) in [0, 1] has little fine detail, and edges in one direction, as of streaks."""
    grey = blurry.mean(0, keepdim=True)[None]
    if _relative_detail(grey) >= LEAST_SHAKEN_DETAIL:
        return False
    gradients = [one.mean() for one in _squared_gradients(grey)]
    return bool(_direction(gradients, EVEN_GRADIENTS) > DIRECTION_OF_STREAKS)


def has_streaks(image: Tensor) -> bool:
    """Whether the lights of an image (3, H, W) in [0, 1] are streaks: soft, and of one trace in all its parts."""
    grey = image.float().mean(0, keepdim=True)[None]
    return _draws_streaks(grey, _share_of_lights(_fine_detail(grey), _fine_detail(_without_lights(grey))))


def _share_of_lights(fine_detail: Tensor, of_surfaces: Tensor) -> Tensor:
    """The share of lights (N,) in the fine detail of images, which is given with and without them."""
    return 1 - of_surfaces.mean((1, 2, 3)) / fine_detail.mean((1, 2, 3))


def _draws_streaks(grey: Tensor, lights: Tensor) -> bool:
    """`has_streaks` of a grey image (1, 1, H, W) with this share of lights."""
    if not lights > LEAST_LIGHTS:  # also of an even image, whose share is no number
        return False
    smooth = _mean(grey)
    return _relative_detail(smooth) < LEAST_DETAIL_OF_LIGHTS and _likeness(_mean(smooth)) > LEAST_LIKENESS


def _likeness(grey: Tensor) -> float:
    """How alike the traces in the parts of an image (1, 1, H, W) are: their mean cosine, 1 if they are the same.

    The trace of a part is the autocorrelation of its edges, without its mean at each distance. Blurred by one path, all
    parts have that of the path (Goldstein and Fattal, "Blur-kernel estimation from spectral irregularities", 2012).
    """
    if min(grey.shape[-2:]) < PART_SIDE:
        return 0.0
    edges = grey - _mean(grey)
    parts = edges[0, 0].unfold(0, PART_SIDE, PART_SIDE).unfold(1, PART_SIDE, PART_SIDE).flatten(0, 1)
    window = torch.hann_window(PART_SIDE, device=grey.device)
    parts = parts * window * window[:, None]
    energies, strongest = parts.square().sum((1, 2)).topk(min(len(parts), MOST_PARTS))
    strongest = strongest[energies > LEAST_ENERGY * energies[0]]
    if len(strongest) < FEWEST_PARTS:
        return 0.0
    spectra = torch.fft.rfft2(parts[strongest], (2 * PART_SIDE, 2 * PART_SIDE))
    correlations = torch.fft.fftshift(torch.fft.irfft2(spectra.abs().square()), (1, 2))
    middle = slice(PART_SIDE - FARTHEST, PART_SIDE + FARTHEST + 1)
    offsets = torch.arange(-FARTHEST, FARTHEST + 1.0, device=grey.device)
    distances = torch.hypot(offsets[:, None], offsets)
    traces = correlations[:, middle, middle]
    for distance in range(FARTHEST + 1):
        ring = distances.round() == distance
        traces[:, ring] -= traces[:, ring].mean(1, keepdim=True)
    compared = traces[:, (distances >= NEAREST) & (distances <= FARTHEST)]
    directions = compared / compared.norm(dim=1, keepdim=True).clamp_min(1e-12)
    count = len(directions)
    return ((directions.sum(0).square().sum() - count) / (count * (count - 1))).item()


def _mean(values: Tensor) -> Tensor:
    """The mean of 3 x 3 pixels around each."""
    return avg_pool2d(values, 3, 1, 1, count_include_pad=False)


def _relative_detail(grey: Tensor, share: Tensor = EVERYWHERE) -> float:
    """The fine detail of an image (1, 1, H, W), relative to its contrast around a pixel, where this share is."""
    detail, contrast = _detail_and_contrast(grey, share)
    return (detail / contrast).item()  # no number for an even image


def _detail_and_contrast(grey: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The fine detail of an image (1, 1, H, W) and its contrast around a pixel, as root means where this share is."""
    contrast = (_around(grey.square()) - _around(grey).square()).clamp_min(0)
    in_blocks = _in_blocks(share.expand_as(grey))
    return _mean_where(_fine_detail(grey), share).sqrt(), _mean_where(contrast, in_blocks).sqrt()


def _mean_where(values: Tensor, share: Tensor) -> Tensor:
    """The mean of values (1, 1, H, W), weighted by this share."""
    share = share.expand_as(values)
    return (values * share).mean() / share.mean()
