"""What of an image is sharp and is kept, and whether a sample is worse than its input."""

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad
from torch.signal.windows import gaussian

from deblur.models.diffusion import to_world

KEPT_UP_TO = 0.35  # the change, relative to the detail, up to which a region is kept
RESTORED_FROM = 0.7  # and from which it is restored in full
SMALLEST_SHARP_SHARE = 0.08  # share of an image that is sharp, from which on the rest may be its background
LEAST_DETAIL = 5.0  # levels: with less detail a region is neither sharp nor blurred
DIRECTION_OF_MOTION = 2.0  # `_direction` of what is moved rather than out of focus
SURROUNDINGS = 24  # pixels, the standard deviation of the region around a pixel
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
SQUARE, UPRIGHT, LYING = (9, 9), (13, 5), (5, 13)  # blocks: a region that looks blurred and holds none of these is none
BRIGHTEST_SURFACE = 2.0  # times the brightness around it: what is brighter is a light, whose streaks are not sharp
EVEN = (5, 5)  # pixels, of an even neighbourhood
LARGEST_ROUNDING = 1e-5  # of values in [0, 1]
EVERYWHERE = torch.ones(1, 1, 1, 1)  # the share of an image that is restored in full


def restored_share(blurry: Tensor, x_init: Tensor, keep_sharp: float, visible: Tensor | None = None) -> Tensor:
    """The weight of each restored pixel over its input (N, 1, H, W): 0 where the image is sharp or even.

    A region is blurred if the predictor changes it by more than the fine detail that it has. The weight rises from 0 to
    1 while change / (detail + keep_sharp), both as root mean squares around a pixel, rises from KEPT_UP_TO to
    RESTORED_FROM. Where all neighbours have one value, as on a page or a screen, nothing is changed. Nothing at all is
    changed where a part of the image is sharp and the rest is blurred in no direction: it is out of focus, as a
    portrait's background is. Lights make no part sharp: in a shaken photograph of a night they are streaks. Where all
    of them draw one trace, all that is uneven is restored.

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
    change = 255 * _root_mean(squares, visible)
    fine_detail = _fine_detail(grey)
    of_surfaces = _fine_detail(_without_lights(grey))
    lights = _share_of_lights(fine_detail, of_surfaces)
    detail = 255 * _root_mean(fine_detail, visible)
    without_lights = 255 * _root_mean(of_surfaces, visible)
    del fine_detail, of_surfaces  # of the photograph's size
    blocks = _without_specks(((change / (detail + keep_sharp) - KEPT_UP_TO) / (RESTORED_FROM - KEPT_UP_TO)).clamp(0, 1))
    share = interpolate(blocks, scale_factor=BLOCK, mode="bilinear")[..., : grey.shape[-2], : grey.shape[-1]]
    is_sharp = (blocks == 0) & (without_lights > LEAST_DETAIL)
    inside = _least(blocks, SQUARE) == 1  # without the edge of what is sharp
    narrow = torch.maximum(_least(blocks, UPRIGHT), _least(blocks, LYING)) == 1
    inside = torch.where(inside.flatten(1).any(1).view(-1, 1, 1, 1), inside, narrow)
    whole = interpolate(inside.float(), scale_factor=BLOCK)[..., : grey.shape[-2], : grey.shape[-1]]
    counted = torch.ones_like(blocks) if visible is None else _in_blocks(visible.float())
    sharp_share = (is_sharp * counted).sum((1, 2, 3)) / counted.sum((1, 2, 3))  # no number where all is hidden
    defocused = (sharp_share > SMALLEST_SHARP_SHARE) & (_direction(grey, whole) < DIRECTION_OF_MOTION)
    defocused &= _direction(mean_change, whole) < DIRECTION_OF_MOTION
    share = torch.where(defocused.view(-1, 1, 1, 1), 0.0, share)
    streaks = [_draws_streaks(*one) for one in zip(grey.split(1), lights, strict=True)]
    streaks = torch.tensor(streaks, device=share.device)
    share = torch.where(streaks.view(-1, 1, 1, 1), 1.0, share) * _is_uneven(grey)
    return share if visible is None else share * visible


def _root_mean(squares: Tensor, visible: Tensor | None) -> Tensor:
    """The root mean square around each block of BLOCK x BLOCK pixels, of squares (N, 1, H, W)."""
    if visible is None:
        return _around(squares).sqrt()
    return (_around(squares * visible) / _around(visible.float()).clamp_min(1e-6)).sqrt()


def _around(values: Tensor) -> Tensor:
    """The Gaussian mean around each block of BLOCK x BLOCK pixels."""
    blocks = _in_blocks(values)
    half = math.ceil(2 * SURROUNDINGS / BLOCK)
    kernel = gaussian(2 * half + 1, std=SURROUNDINGS / BLOCK).to(blocks)
    kernel = kernel / kernel.sum()
    across = conv2d(pad(blocks, (half, half, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    return conv2d(pad(across, (0, 0, half, half), mode="replicate"), kernel.view(1, 1, -1, 1))


def _in_blocks(values: Tensor) -> Tensor:
    """The mean of each block of BLOCK x BLOCK pixels."""
    return avg_pool2d(values, BLOCK, ceil_mode=True, count_include_pad=False)


def _without_specks(blocks: Tensor) -> Tensor:
    """The weights of blocks without regions that hold neither SQUARE nor, as who walks by, UPRIGHT or LYING."""
    held = [_most(_least(blocks, sides), sides) for sides in (SQUARE, UPRIGHT, LYING)]
    return torch.minimum(blocks, torch.stack(held).amax(0))


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


def _direction(values: Tensor, weight: Tensor) -> Tensor:
    """How much stronger differences of values (N, 1, H, W) are in one direction than across it, (N,): 1 in none."""
    # Differences that share no pixel, so that noise has no direction.
    across = values[..., 1:-1, 2:] - values[..., 1:-1, :-2]
    down = values[..., 2:, 1:-1] - values[..., :-2, 1:-1]
    weight = weight[..., 1:-1, 1:-1]
    pairs = ((across, across), (down, down), (across, down))
    xx, yy, xy = ((weight * one * other).mean((1, 2, 3)) for one, other in pairs)
    mean, spread = (xx + yy) / 2, (((xx - yy) / 2).square() + xy.square()).sqrt()
    return (mean + spread) / (mean - spread).clamp_min(1e-12)


def _is_uneven(grey: Tensor) -> Tensor:
    """Whether a pixel has neighbours of another value."""
    return _most(grey, EVEN) - _least(grey, EVEN) > LARGEST_ROUNDING


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
    return bool(_direction(grey, torch.ones_like(grey)) > DIRECTION_OF_MOTION)


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
