"""Sentences on a restored image: what of it was kept, at which scale, and whether a sample is worse than its input."""

import torch
from torch import Tensor

from deblur.data.files import images
from deblur.draft import DeblurOutput
from deblur.image_processor import with_hidden_filled
from deblur.keep_sharp import has_streaks, is_shaken, lacks_detail, stays_blurred
from deblur.restoration.photograph import Restoration

COLOUR_DRIFT = 2 / 255  # largest accepted difference between a channel's mean in the sample and in the prediction
RESTORED_WHOLLY = 0.95  # share of an image from which on nothing is said of the rest


def notes(made: Restoration, is_masked: bool) -> list[str]:
    """What is notable in one restored image, apart from what is wrong with it.

    Args:
        made: the restoration, as yet without notes.
        is_masked: whether a mask says what is restored.
    """
    image, out = made.photograph.image, made.out
    height, width = image.pixels.shape[-2:]
    filled = with_hidden_filled(image.values[None], made.photograph.visible)[0]
    found = [*image.remarks, *images.remarks_on(image, made.photograph.names.target.suffix)]
    if out.scale < 1 and made.amount > 0:
        found.append(
            f"restored at scale {out.scale:g}, {round(width * out.scale)} x {round(height * out.scale)} pixels"
        )
    found += kept_remarks(made.amount, filled, out.discarded, is_masked)
    return found + still_blurred_remarks(out, made.restored[0], filled)


def kept_remarks(amount: float, blurry: Tensor, discarded: Tensor | None = None, is_masked: bool = False) -> list[str]:
    """A sentence that says how much of one image is kept, by its `restored_amount`, if that is much.

    Args:
        amount: how much is restored.
        blurry: (3, H, W) in [0, 1], which decides whether an image that is kept as it is was sharp or too blurred.
        discarded: the share (1,) on which the prediction was no image's, as in `DeblurOutput`; only that is said then.
        is_masked: whether a mask says what is kept; then nothing else is said.
    """
    if discarded is not None and discarded > 0:
        share = _percent(discarded.item())
        return [f"is unlike what this checkpoint knows on {share} of its area, which is kept as it is"]
    if is_masked or amount > RESTORED_WHOLLY:
        return []
    if amount == 0 and (lacks_detail(blurry) or is_shaken(blurry)):
        return ["looks too blurred for this checkpoint, and is kept as it is: try a smaller --scale"]
    if amount == 0:
        return ["looks sharp to this checkpoint and is kept; --restore all restores it"]
    return [f"looks blurred on {_percent(amount)} of its area, which is restored; the rest is kept (keep_sharp)"]


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.005 else f"{share:.0%}"


def still_blurred_remarks(out: DeblurOutput, restored: Tensor, blurry: Tensor) -> list[str]:
    """A sentence that says that what is restored of one image is blurred still.

    Args:
        out: of that image alone.
        restored, blurry: (3, H, W) in [0, 1], what is written of it, and what it was.
    """
    share, error, restored = out.share.cpu(), out.expected_error, restored.cpu()
    if not share.any():
        return []
    is_known = error is not None and out.scale == 1  # an enlarged change has little fine detail
    if not (
        lacks_detail(restored, share)
        or has_streaks(restored)
        or (is_known and stays_blurred(blurry, out.predictions[0].cpu(), error.cpu(), share))
    ):
        return []
    where = " where it is restored" if share.mean() <= RESTORED_WHOLLY else ""
    return [f"is still blurred{where}: its blur is larger than this checkpoint knows, try a smaller --scale"]


def faults(sample: Tensor, prediction: Tensor, blurry: Tensor, visible: Tensor | None = None) -> list[str]:
    """Sentences that say if the sample is less sharp than the input, its colours drifted, or it is no image.

    Args:
        sample, prediction: (3, H, W) in [0, 1].
        blurry: (3, H, W), uint8 or uint16.
        visible: (1, 1, H, W) of bool, the pixels that count; None: all.
    """
    if not sample.isfinite().all():
        return ["the sample has pixels that are no numbers"]
    sentences = []
    if _sharpness(sample, visible) < _sharpness(blurry, visible, torch.iinfo(blurry.dtype).max):
        sentences.append("the sample is less sharp than the input")
    drift = (_mean_colour(sample, visible) - _mean_colour(prediction, visible)).abs().max().item()
    if drift > COLOUR_DRIFT:
        sentences.append(f"the sample's mean colour is {255 * drift:.1f} levels away from the prediction's")
    return sentences


def _mean_colour(x: Tensor, visible: Tensor | None) -> Tensor:
    return x.mean(dim=(1, 2)) if visible is None else x[:, visible[0, 0].to(x.device)].mean(dim=1)


def _sharpness(x: Tensor, visible: Tensor | None, levels: float = 1.0) -> float:
    """Mean absolute gradient between visible pixels, channel by channel to save memory on large photographs."""
    total = 0.0
    for channel in x:
        for dim in (0, 1):
            steps = channel.float().diff(dim=dim).abs_()
            if visible is not None:
                plane, size = visible[0, 0], visible.shape[dim - 2] - 1
                steps *= (plane.narrow(dim, 0, size) & plane.narrow(dim, 1, size)).to(steps.device)
            total += steps.sum().item()
    return total / levels / x.numel()
