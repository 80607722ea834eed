"""Read image files as tensors: all formats, and what they say besides their pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import imagecodecs
import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from pillow_heif import HeifImage

from deblur.data.files import colour, metadata, tiff
from deblur.data.files.colour import Codes
from deblur.data.files.formats import bounded_exif, format_of, opened, primary_image
from deblur.data.files.image_file import ImageFile
from deblur.data.files.kinds import KINDS, READ_SUFFIXES
from deblur.data.files.search import ImageError

INKS = "has the colours of inks (CMYK), which are converted to sRGB"  # a remark
NOT_UNDERSTOOD = "its content is not as its format demands"


def read_file(path: str | Path) -> ImageFile:
    """Read an image in one of the formats of `data.files.kinds`, by its content; its suffix need not match.

    8 and 16 bits keep their depth, 9 to 15 become 16; floats are refused. The EXIF orientation is applied. Grey
    becomes three equal channels; palette, CMYK and 1-bit images become RGB, CMYK by its profile. If there are several
    frames, the first is read; of a thumbnail and a full-size page the latter.

    Raises ImageError, naming the file, if it cannot be read, is truncated or has more than MOST_PIXELS.
    """
    path = Path(path)
    with _named_errors(path):
        if not path.is_file():
            raise ImageError(f"{path} is not an image file: {'it is a folder' if path.is_dir() else 'no such file'}.")
        name = format_of(path)
        raster = _read_tiff(path) if name == "TIFF" else _read_pillow(path)
    if path.suffix.lower() in READ_SUFFIXES - set(KINDS[name].suffixes):
        raster = replace(raster, remarks=(f"is a {name} image in spite of its suffix", *raster.remarks))
    return raster


def header_size(path: str | Path) -> tuple[int, int]:
    """Width and height of an upright image by its file's header. ImageError if that cannot be read."""
    path = Path(path)
    with _named_errors(path):
        if format_of(path) == "TIFF":
            return tiff.header_size(path)
        with opened(path) as image:
            # For other formats Pillow would have to decode the image to find the orientation; cameras write JPEG.
            is_turned = image.format == "JPEG" and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
            return image.size[::-1] if is_turned else image.size


def require_end(path: Path) -> None:
    """ImageError if the end of a PNG or JPEG file is missing; one with a trailer, as a phone writes, is decoded."""
    with _named_errors(path), open(path, "rb") as file:
        head = file.read(1)
        file.seek(-min(64, os.path.getsize(path)), os.SEEK_END)
        end = file.read()
    if {b"\x89": b"IEND", b"\xff": b"\xff\xd9"}.get(head, b"") not in end:
        read_file(path)


@contextmanager
def _named_errors(path: str | Path) -> Iterator[None]:
    """Put the errors of the system and of decoders into a sentence about the file."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and many more
        if isinstance(error, OSError) and error.errno is not None:
            raise ImageError(f"{path} cannot be read: {error.strerror}.") from None
        reason = " ".join(str(error).split()).rstrip(".")
        if isinstance(error, UnidentifiedImageError) or re.search("<[^>]*>", reason) or not reason:
            reason = "it takes more memory than there is" if isinstance(error, MemoryError) else NOT_UNDERSTOOD
        raise ImageError(f"{path} cannot be decoded, it may be damaged: {reason}.") from None


def _read_tiff(path: Path) -> ImageFile:
    page = tiff.read(path)
    if page.colours is None:
        raster = _read_pillow(path, page.number, page.remarks)
        return raster if INKS in raster.remarks else replace(raster, icc=page.icc)
    raster = _raster((page.colours, page.alpha, page.extra), page.exif, page.xmp, page.remarks, is_tiff=True)
    return replace(raster, icc=page.icc, associated=page.associated)


def _read_pillow(path: Path, page: int = 0, remarks: tuple[str, ...] = ()) -> ImageFile:
    with opened(path) as image:
        if page > 0:
            image.seek(page)
        name, has_inks, told = image.format, image.mode == "CMYK", image.info
        has_16_bits = name == "PNG" and str(image.tile[0].args).endswith(";16B")  # not known once it is loaded
        exif = bounded_exif(image)
        remarks += _remarks_on(image, page)
        profile, xmp, density = told.get("icc_profile"), told.get("xmp"), told.get("dpi")
        primary = primary_image(path) if name in ("AVIF", "HEIF") else None
        tables = image.quantization if name == "JPEG" else None
        array = _by_other_decoders(path, image, has_16_bits, primary)
        if array is None:
            # Pillow turns it: some formats it rotates itself and accounts for that.
            orientation = exif.get(ExifTags.Base.Orientation, 1)
            array = _upright(path, image, profile if has_inks else None)
            exif.pop(ExifTags.Base.Orientation, None)
            if orientation >= 5:
                metadata.turn(exif)
                density = density and density[::-1]
        planes = array[..., None] if array.ndim == 2 else array
        codes, icc, more = _colour(path, name, None if has_inks else profile, primary, planes.shape[-1] < 3)
        parts = (planes[..., :-1], planes[..., -1:], None) if planes.shape[-1] in (2, 4) else (planes, None, None)
        raster = _raster(parts, exif, xmp, remarks + more, name == "TIFF", density)
        if name == "JPEG" and "mp" in told and not raster.remarks:
            raster = replace(raster, remarks=(tiff.SEVERAL_FRAMES,))
        return replace(raster, icc=icc, codes=codes, quantisation=tables)


def _remarks_on(image: Image.Image, page: int) -> tuple[str, ...]:
    """What is unusual about an opened image whose pixels are not loaded; each follows its name."""
    ratio = image.info.get("jfif_density") if image.info.get("jfif_unit") == 0 else image.info.get("aspect")
    layout = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" else None
    unusual = {
        "has EXIF data that cannot be read, which are left out": image.info.get("exif") == b"",
        tiff.SEVERAL_FRAMES: page == 0 and getattr(image, "is_animated", False),
        "has pixels that are not square, which is left out": ratio is not None and ratio[0] != ratio[1],
        INKS: image.mode == "CMYK",
        "has more than 8 bits, of which 8 are read": isinstance(layout, tuple) and layout[-1] > 255,
    }
    return tuple(remark for remark, is_so in unusual.items() if is_so)


def _by_other_decoders(
    path: Path, image: Image.Image, has_16_bits: bool, primary: HeifImage | None
) -> np.ndarray | None:
    """The samples of what Pillow would read with fewer bits or wrongly, not turned by EXIF; None of all else."""
    # Pillow compares the transparent grey of fewer than 8 bits with scaled values.
    if has_16_bits or (image.format == "PNG" and image.mode == "L" and "transparency" in image.info):
        return imagecodecs.png_decode(path.read_bytes())
    bits = 8 if primary is None else primary.info["bit_depth"]
    if bits == 8:
        return None
    if image.format == "AVIF":
        array = imagecodecs.avif_decode(path.read_bytes(), index=0)
    else:
        array = np.asarray(primary) >> (16 - bits)
    return np.rint(array * np.float32(65535 / (2**bits - 1))).astype(np.uint16)


def _colour(
    path: Path, name: str, icc: bytes | None, primary: HeifImage | None, grey: bool
) -> tuple[Codes | None, bytes | None, tuple[str, ...]]:
    """The code points or the profile of a file's colours, and remarks. A profile counts first, but in a PNG."""
    if name == "PNG":
        return *colour.of_png(path, icc, grey), ()
    if name == "BMP":
        return None, *colour.of_bmp(path, grey)
    nclx = primary.info.get("nclx_profile") if primary is not None and icc is None else None
    codes = colour.codes_of(nclx["color_primaries"], nclx["transfer_characteristics"]) if nclx else None
    return codes, icc, ()


def _upright(path: Path, image: Image.Image, inks: bytes | None) -> np.ndarray:
    """The pixels (H, W) or (H, W, channels).

    Inks with a profile become the sRGB values that it says, without one each is taken from white.
    """
    upright = ImageOps.exif_transpose(image)
    if inks:
        upright = colour.in_srgb(upright, inks)
    if upright.mode[0] in "IF":  # I;16 is 16-bit grey, I and F are 32-bit integers and floats
        array = np.array(upright)
        if array.dtype.kind == "f" or array.min() < 0 or array.max() > 65535:
            raise ImageError(f"{path} has pixels of 32 bits, whose range is unknown: save it with 8 or 16 bits.")
        return array.astype(np.uint16)
    grey = upright.mode in ("1", "L", "LA", "La")
    mode = ("LA" if grey else "RGBA") if upright.has_transparency_data else "L" if grey else "RGB"
    return np.array(upright.convert(mode))


def _raster(
    parts: tuple[np.ndarray, np.ndarray | None, np.ndarray | None],
    exif: Image.Exif,
    xmp: bytes | None,
    remarks: tuple[str, ...],
    is_tiff: bool,
    density: tuple[float, float] | None = None,
) -> ImageFile:
    """Make a ImageFile from colours, alpha and other samples (H, W, channels), turned by the orientation in `exif`.

    EXIF of a TIFF file also has tags that describe its layout.
    """
    orientation = exif.pop(ExifTags.Base.Orientation, 1)
    colours, alpha, extra = (None if part is None else torch.from_numpy(_turned(part, orientation)) for part in parts)
    if orientation in (5, 6, 7, 8):
        metadata.turn(exif)
        density = density and density[::-1]
    density = metadata.density_of(density, exif)
    if is_tiff:
        for tag in exif.keys() - metadata.DESCRIPTIVE - {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}:
            del exif[tag]
    grey = len(colours) == 1
    pixels = torch.cat([colours] * 3) if grey else colours
    xmp, absent = metadata.present(xmp)
    exif_bytes = exif.tobytes() if len(exif) else None
    return ImageFile(pixels, alpha, grey, exif_bytes, None, xmp, remarks + absent, density=density, extra=extra)


def _turned(part: np.ndarray, orientation: int) -> np.ndarray:
    """Samples (H, W, channels) upright, as (channels, H, W)."""
    if orientation in (5, 6, 7, 8):  # the camera was held sideways: rows are columns
        part = part.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        part = part[:, ::-1]
    if orientation in (3, 4, 7, 8):
        part = part[::-1]
    return np.moveaxis(part, -1, 0).copy()  # a 1-pixel array may have negative strides
