"""Write tensors as image files, with what was kept of the input."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import torch
from PIL import Image, JpegPresets, PngImagePlugin
from tifffile import EXTRASAMPLE
from torch import Tensor

from deblur.data.files import colour, metadata, tiff
from deblur.data.files.image_file import ImageFile
from deblur.data.files.kinds import KINDS, NAME_OF, SUFFIXES_OF_16_BITS, WRITTEN_SUFFIXES
from deblur.data.files.search import ImageError
from deblur.storage import replacing

SETTINGS = {  # of Pillow's writers; chroma is not subsampled
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True, "exact": True},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    # As near to four photographs (43.7 dB, 0.56 bytes a pixel) as AVIF at 95 (42.8 dB, 0.59); 95 has 50.7 dB and 0.97.
    "HEIF": {"quality": 75, "chroma": "444"},
}
COARSEST_TABLES = JpegPresets.presets["web_high"]["quantization"]  # of luma and chroma, about quality 86
TELL_CODES = {"AVIF", "HEIF", "PNG"}  # formats that say their colours by code points
METRE_IN_INCHES = 1 / 0.0254
PNG_HEADER = 8 + 4 + 4 + 13 + 4  # bytes: signature, then length, kind, data and checksum of IHDR


def require_tellable(path: Path, like: ImageFile) -> None:
    """ImageError if a format cannot say which colours an image's numbers are, and they cannot be converted."""
    if like.codes and NAME_OF.get(path.suffix.lower()) not in TELL_CODES and _profile(like) is None:
        name = colour.hdr_of(like.codes)
        kind = f"HDR ({name})" if name else "of a kind that is not known"
        raise ImageError(f"{path} cannot say that its colours are {kind}: give --format png or avif.")


def remarks_on(like: ImageFile, suffix: str) -> list[str]:
    """What a format cannot hold of an image, or holds in another form; each follows its name."""
    said, name, called = [], NAME_OF[suffix.lower()], suffix[1:].upper()
    if metadata.too_large(like.exif, name):
        said.append("has more EXIF data than a JPEG can hold, which are left out")
    if like.alpha is not None and not KINDS[name].has_alpha:
        alpha = np.asarray(like.alpha)
        if alpha.min() < np.iinfo(alpha.dtype).max:
            said.append(f"has transparent parts, which {called} cannot hold: they are put on white")
    if like.extra is not None and name != "TIFF":
        said.append("has samples that are neither colours nor transparency, which are left out")
    if hdr := colour.hdr_of(like.codes):
        said.append(f"has HDR colours ({hdr}), which are kept; the networks have learnt ordinary ones")
    if like.has_16_bits and KINDS[name].bits == 8:
        said.append(f"has more than 8 bits, of which {called} is written with 8")
    if name == "BMP" and _profile(like) is not None:
        said.append("has other colours than sRGB, which BMP cannot say: they are converted to sRGB")
    return said


def write(
    path: str | Path,
    image: Tensor,
    like: ImageFile | None = None,
    depth: int | None = None,
    compress_level: int = 6,
    quality: int | None = None,
) -> None:
    """Write a (3, H, W) image of floats in [0, 1] on any device, clipped and rounded; the suffix chooses the format.

    Missing folders are created. The file appears under its name only when complete. Raises ImageError if the suffix is
    not supported, the format cannot say what the colours are, or a pixel is no number; OSError if the disk write fails.

    Args:
        like: the input image: its depth, grey, alpha, density, metadata and colours are kept as far as the format
            supports them (`remarks_on` says what it does not). None: 8-bit RGB.
        depth: 8 or 16 bits instead of the depth of `like`; 16 only if the format supports it.
        compress_level: of PNG, from 0 (fast) to 9 (small).
        quality: of JPEG, AVIF and HEIF, from 1 to 100. None: that of SETTINGS, or of a JPEG `like` its own, but not
            below COARSEST_TABLES, since a restoration has finer detail than its input. WebP is lossless.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in WRITTEN_SUFFIXES:
        raise ImageError(f"{path} cannot be written: its suffix must be one of {' '.join(sorted(WRITTEN_SUFFIXES))}.")
    name, like = NAME_OF[suffix], like or ImageFile(torch.empty(3, 0, 0, dtype=torch.uint8))
    require_tellable(path, like)
    if not image.isfinite().all():
        raise ImageError(f"{path} is not written: it has pixels that are no numbers, the checkpoint may be damaged.")
    has_16_bits = suffix in SUFFIXES_OF_16_BITS and (like.has_16_bits if depth is None else depth == 16)
    array, kinds = _samples(image.detach().cpu().float().numpy(), like, np.uint16 if has_16_bits else np.uint8, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        fitted = metadata.fitting(like, name, array.shape[1], array.shape[0])
        if name == "TIFF":
            exif = metadata.exif_of(fitted)
            metadata.say_density(exif, fitted.density)
            tiff.write(part, array, like.grey, kinds, exif, _profile(fitted), fitted.xmp)
        elif name == "PNG":
            enough = 2 * array.nbytes + 4096  # bytes; imagecodecs itself allows too few for an image one pixel wide
            content = imagecodecs.png_encode(array, level=compress_level, out=enough)
            part.write_bytes(content[:PNG_HEADER] + png_chunks(fitted) + content[PNG_HEADER:])
        else:
            part.write_bytes(_by_pillow(array, fitted, name, quality))


def _samples(image: np.ndarray, like: ImageFile, dtype: type, name: str) -> tuple[np.ndarray, tuple[EXTRASAMPLE, ...]]:
    """The samples (H, W, channels) that a format stores, and the kinds of those after the colours."""
    levels, kinds = np.iinfo(dtype).max, ()
    channels = np.clip(image, 0, 1) * np.float32(levels)
    if like.grey:
        # The median keeps equal channels exactly as they are; a mean would round.
        channels = np.median(channels, axis=0, keepdims=True)
    more = []
    if like.alpha is not None:
        alpha = np.asarray(like.alpha)
        share = alpha.astype(np.float32) / np.iinfo(alpha.dtype).max
        if not KINDS[name].has_alpha:
            channels = channels * share + levels * (1 - share)
        else:
            more.append(np.rint(share * levels))
            kinds += (EXTRASAMPLE.UNASSALPHA,)
        if name == "TIFF" and like.associated:
            channels = np.rint(channels) * share
            kinds = (EXTRASAMPLE.ASSOCALPHA,)
    if like.extra is not None and name == "TIFF":
        extra = np.asarray(like.extra)
        more.append(np.rint(extra * np.float32(levels / np.iinfo(extra.dtype).max)))
        kinds += (EXTRASAMPLE.UNSPECIFIED,) * len(extra)
    whole = np.concatenate([np.rint(channels), *more]).astype(dtype)
    return np.moveaxis(whole, 0, -1).copy(), kinds  # with the strides that imagecodecs wants, for one pixel too


def _profile(like: ImageFile) -> bytes | None:
    """The colour profile, if need be one of the code points."""
    return colour.profile_of_codes(like.codes, like.grey) if like.codes else like.icc


def _by_pillow(array: np.ndarray, like: ImageFile, name: str, quality: int | None) -> bytes:
    """A file of the formats that Pillow and its plugins write."""
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
    codes = like.codes if name in TELL_CODES else None
    profile = None if codes else _profile(like)
    arguments = {"exif": like.exif, "xmp": like.xmp, "icc_profile": profile}
    if name == "HEIF" and codes:
        arguments |= {"color_primaries": codes[0], "transfer_characteristics": codes[1], "matrix_coefficients": 6}
    if name == "BMP":
        arguments["dpi"] = (0, 0)  # unknown; Pillow would write 96
    if name in metadata.TELL_DENSITY and like.density:
        arguments["dpi"] = tuple(map(round, like.density))
    if name == "BMP" and profile is not None:
        image = colour.in_srgb(image, profile)
    settings = SETTINGS.get(name, {})
    if quality is not None and "quality" in settings:
        settings = settings | {"quality": quality}
    elif name == "JPEG" and like.quantisation:
        own = [like.quantisation[number] for number in sorted(like.quantisation)[:2]]
        settings = {"subsampling": 0, "qtables": np.minimum(own, COARSEST_TABLES[: len(own)]).tolist()}
    buffer = io.BytesIO()
    image.save(buffer, name, **settings, **{key: value for key, value in arguments.items() if value})
    content = buffer.getvalue()
    return colour.with_codes(content, codes) if name == "AVIF" and codes else content


def png_chunks(like: ImageFile) -> bytes:
    """What a PNG says besides its pixels, as the chunks that follow its header (PNG specification, chunk layout)."""
    chunks = []
    if like.codes:
        chunks.append((b"cICP", bytes([*like.codes, 0, 1])))
    if like.icc:
        chunks.append((b"iCCP", b"ICC profile\0\0" + zlib.compress(like.icc)))
    if like.density:
        across, down = (round(value * METRE_IN_INCHES) for value in like.density)
        chunks.append((b"pHYs", struct.pack(">2IB", across, down, 1)))
    if like.exif:
        chunks.append((b"eXIf", like.exif.removeprefix(b"Exif\0\0")))
    if like.xmp:
        chunks.append((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + like.xmp))
    buffer = io.BytesIO()
    for kind, data in chunks:
        PngImagePlugin.putchunk(buffer, kind, data)
    return buffer.getvalue()
