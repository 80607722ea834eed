"""Read and write image files as arrays: all formats, and what they say besides their pixels. It needs no torch."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps, PngImagePlugin, UnidentifiedImageError
from tifffile import EXTRASAMPLE

from deblur.data.files import boxes, colour, metadata, tiff
from deblur.data.files.colour import Colour
from deblur.data.files.formats import exif_of, format_of, heif_samples, opened
from deblur.data.files.raster import Raster
from deblur.data.files.search import DEEP, READ, SUFFIXES, WRITABLE, ImageError
from deblur.storage import replacing

SAVED = {  # how, by Pillow's names of the formats
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True, "exact": True},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": "444"},
}
TRANSPARENT = WRITABLE - {".jpg", ".jpeg", ".bmp"}
TIFF = {".tif", ".tiff"}
CODED = {".avif", ".heic", ".heif"}  # formats that say their colours by code points
INCH = 0.0254  # metres
JFIF_UNIT = 13  # the byte of a JPEG that says the unit of its density
JFIF_MOST, PHYS_MOST = (1 << 16) - 1, (1 << 31) - 1  # of the numbers of JPEG's and PNG's density
INKS = "has the colours of inks (CMYK), which are converted to sRGB"  # a remark
NOT_UNDERSTOOD = "its content is not as its format demands"


def read_file(path: str | Path) -> Raster:
    """Read an image in one of the formats of `data.files.search.READ`, by its content; its suffix need not match.

    8 and 16 bits keep their depth, 9 to 15 become 16; floats are refused. The EXIF orientation is applied. Grey
    becomes three equal channels; palette, CMYK and 1-bit images become RGB, CMYK by its profile. If there are several
    frames, the first is read; of a thumbnail and a full-size page the latter.

    Raises ImageError, naming the file, if it cannot be read, is truncated or has more than MOST_PIXELS.
    """
    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{path} is not an image file: {'it is a folder' if path.is_dir() else 'no such file'}.")
    with _named_if_damaged(path):
        kind = format_of(path)
        raster = _read_tiff(path) if kind == "TIFF" else _read_pillow(path)
    if path.suffix.lower() in SUFFIXES - set(READ[kind]):
        raster = replace(raster, remarks=(f"is a {kind} image in spite of its suffix", *raster.remarks))
    return raster


def header_size(path: str | Path) -> tuple[int, int]:
    """Width and height of an upright image by its file's header. ImageError if that cannot be read."""
    path = Path(path)
    with _named_if_damaged(path):
        if format_of(path) == "TIFF":
            return tiff.header_size(path)
        with opened(path) as image:
            # For other formats Pillow would have to decode the image to find the orientation; cameras write JPEG.
            is_jpeg = image.format in ("JPEG", "MPO")
            turned = is_jpeg and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
            return image.size[::-1] if turned else image.size


def require_end(path: Path) -> None:
    """ImageError if the end of a PNG or JPEG file is missing; one with a trailer, as a phone writes, is decoded."""
    with open(path, "rb") as file:
        head = file.read(1)
        file.seek(-min(64, os.path.getsize(path)), os.SEEK_END)
        end = file.read()
    if {b"\x89": b"IEND", b"\xff": b"\xff\xd9"}.get(head, b"") not in end:
        read_file(path)


@contextmanager
def _named_if_damaged(path: str | Path) -> Iterator[None]:
    """Put the errors of decoders into a sentence about the file."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and many more
        reason = " ".join(str(error).split()).rstrip(".")
        if isinstance(error, UnidentifiedImageError) or re.search("<[^>]*>", reason) or not reason:
            reason = "it takes more memory than there is" if isinstance(error, MemoryError) else NOT_UNDERSTOOD
        raise ImageError(f"{path} cannot be decoded, it may be damaged: {reason}.") from None


def _read_tiff(path: Path) -> Raster:
    contents = tiff.read(path)
    samples = contents.samples
    if samples is None:
        raster = _read_pillow(path, contents.page, contents.remarks)
        return replace(raster, colour=None if raster.icc else contents.colour)
    parts = [samples.colours, samples.alpha, samples.extra]
    raster = _raster(parts, samples.exif, samples.icc, samples.xmp, contents.remarks, True)
    return replace(raster, associated=samples.associated, colour=None if samples.icc else contents.colour)


def _read_pillow(path: Path, page: int = 0, remarks: tuple[str, ...] = ()) -> Raster:
    with opened(path) as image:
        if page > 0:
            image.seek(page)
        deep_png = image.format == "PNG" and str(image.tile[0].args).endswith(";16B")  # known until it is loaded
        exif, profile, has_inks = exif_of(image), image.info.get("icc_profile"), image.mode == "CMYK"
        if image.info.get("exif") == b"":
            remarks += ("has EXIF data that cannot be read, which are left out",)
        if getattr(image, "is_animated", False) and not remarks:
            remarks += (tiff.SEVERAL,)
        if has_inks:
            remarks += (INKS,)
        if _has_deep_colours(image):
            remarks += ("has more than 8 bits, of which 8 are read",)
        xmp, is_tiff = image.info.get("xmp"), image.format == "TIFF"
        told, icc, more = _colour(path, image, None if has_inks else profile)
        density, aspect = metadata.usable(image.info.get("dpi")), _aspect(image)
        array = _deep(path, image, deep_png)
        if array is None:
            orientation = exif.get(ExifTags.Base.Orientation, 1)
            array = _upright(path, image, profile if has_inks else None)
            exif.pop(ExifTags.Base.Orientation, None)
            if orientation >= 5:
                metadata.turn(exif)
                density, aspect = density and density[::-1], aspect and aspect[::-1]
        raster = _raster(_parts(array), exif, icc, xmp, remarks + more, is_tiff, density, aspect)
        return replace(raster, colour=told)


def _has_deep_colours(image: Image.Image) -> bool:
    """Whether it is a colour PPM, not yet loaded, with more than the 8 bits that Pillow reads."""
    args = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" else None
    return isinstance(args, tuple) and args[-1] > 255


def _deep(path: Path, image: Image.Image, deep_png: bool) -> np.ndarray | None:
    """The samples of what Pillow would read with fewer bits or wrongly, not turned by EXIF; None of all else."""
    # Pillow compares the transparent grey of fewer than 8 bits with scaled values.
    if deep_png or (image.format == "PNG" and image.mode == "L" and "transparency" in image.info):
        return imagecodecs.png_decode(path.read_bytes())
    bits = boxes.bits_of(path) if image.format in ("AVIF", "HEIF") else 8
    if bits == 8:
        return None
    if image.format == "AVIF":
        array = imagecodecs.avif_decode(path.read_bytes(), index=0)
    else:
        array = heif_samples(path) >> (16 - bits)
    return np.rint(array * np.float32(65535 / (2**bits - 1))).astype(np.uint16)


def _colour(path: Path, image: Image.Image, icc: bytes | None) -> tuple[Colour | None, bytes | None, tuple[str, ...]]:
    """What a file says about its colours other than by its profile, or else the profile; and remarks.

    A profile counts first, but for code points beside it in a PNG.
    """
    if image.format == "PNG":
        told = colour.of_png(path)
        is_first = told is not None and any(kind == b"cICP" for kind, _ in told.chunks)
        told = told if is_first or icc is None else None
        return told, None if told and told.codes else icc, ()
    if image.format == "BMP":
        return colour.of_bmp(path)
    if image.format in ("AVIF", "HEIF") and icc is None:
        return colour.of_boxes(path), None, ()
    return None, icc, ()


def _aspect(image: Image.Image) -> tuple[float, float] | None:
    """The aspect that a PNG or a JPEG has in place of a density."""
    told = image.info.get("aspect")
    if image.info.get("jfif_unit") == 0:
        told = image.info.get("jfif_density")
    return metadata.usable_aspect(told)


def _upright(path: Path, image: Image.Image, inks: bytes | None) -> np.ndarray:
    """The pixels (H, W) or (H, W, channels), turned by Pillow: some formats it rotates itself and accounts for that.

    Inks with a profile become the sRGB values that it says, without one each is taken from white.
    """
    upright = ImageOps.exif_transpose(image)
    if inks:
        upright = _in_srgb(upright, inks)
    if upright.mode[0] in "IF":  # I;16 is 16-bit grey, I and F are 32-bit integers and floats
        array = np.array(upright)
        if array.dtype.kind == "f" or array.min() < 0 or array.max() > 65535:
            raise ImageError(f"{path} has pixels of 32 bits, whose range is unknown: save it with 8 or 16 bits.")
        return array.astype(np.uint16)
    grey = upright.mode in ("1", "L", "LA", "La")
    mode = ("LA" if grey else "RGBA") if upright.has_transparency_data else "L" if grey else "RGB"
    return np.array(upright.convert(mode))


def _parts(array: np.ndarray) -> list[np.ndarray | None]:
    """The colours and alpha of (H, W) or (H, W, 1 to 4): grey, grey and alpha, RGB or RGBA; no other samples."""
    array = array[..., None] if array.ndim == 2 else array
    if array.shape[-1] in (2, 4):
        return [array[..., :-1], array[..., -1:], None]
    return [array, None, None]


def _raster(
    parts: list[np.ndarray | None],
    exif: Image.Exif,
    icc: bytes | None,
    xmp: bytes | None,
    remarks: tuple[str, ...],
    is_tiff: bool,
    density: tuple[float, float] | None = None,
    aspect: tuple[float, float] | None = None,
) -> Raster:
    """Make a Raster from colours, alpha and other samples (H, W, channels), turned by the orientation in `exif`.

    EXIF of a TIFF file also has tags that describe its layout.
    """
    orientation = exif.pop(ExifTags.Base.Orientation, 1)
    colours, alpha, extra = (None if part is None else _turned(part, orientation) for part in parts)
    if orientation in (5, 6, 7, 8):
        metadata.turn(exif)
        density, aspect = density and density[::-1], aspect and aspect[::-1]
    density = density or metadata.density_of(exif)
    aspect = None if density else aspect or metadata.aspect_of(exif)
    if is_tiff:
        for tag in exif.keys() - metadata.DESCRIPTIVE - {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}:
            del exif[tag]
    grey = len(colours) == 1
    pixels = np.repeat(colours, 3, axis=0) if grey else colours
    xmp, absent = metadata.present(xmp)
    exif_bytes = exif.tobytes() if len(exif) else None
    told = {"density": density, "aspect": aspect, "extra": extra}
    return Raster(pixels, alpha, grey, exif_bytes, icc, xmp, remarks + absent, **told)


def _turned(part: np.ndarray, orientation: int) -> np.ndarray:
    """Samples (H, W, channels) upright, as (channels, H, W)."""
    if orientation in (5, 6, 7, 8):  # the camera was held sideways: rows are columns
        part = part.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        part = part[:, ::-1]
    if orientation in (3, 4, 7, 8):
        part = part[::-1]
    return np.moveaxis(part, -1, 0).copy()  # a 1-pixel array may have negative strides


def require_tellable(path: Path, like: Raster) -> None:
    """ImageError if a format cannot say which colours an image's numbers are, and they cannot be converted."""
    told, suffix = like.colour, path.suffix.lower()
    if told is None or suffix == ".png" or (suffix in CODED and told.codes):
        return
    if told.profile(like.grey) is None:
        kind = f"HDR ({told.hdr})" if told.hdr else "of a kind that is not known"
        raise ImageError(f"{path} cannot say that its colours are {kind}: give --format png or avif.")


def remarks_on(like: Raster, suffix: str) -> list[str]:
    """What a format cannot hold of an image, or holds in another form; each follows its name."""
    said, suffix = [], suffix.lower()
    if metadata.too_large(like.exif, suffix):
        said.append("has more EXIF data than a JPEG can hold, which are left out")
    if suffix not in TRANSPARENT and _is_seen_through(like):
        said.append(f"has transparent parts, which {suffix[1:].upper()} cannot hold: they are put on white")
    if like.extra is not None and suffix not in TIFF:
        said.append("has samples that are neither colours nor transparency, which are left out")
    if like.colour and like.colour.hdr:
        said.append(f"has HDR colours ({like.colour.hdr}), which are kept; the networks have learnt ordinary ones")
    if like.is_deep and suffix not in DEEP:
        said.append(f"has more than 8 bits, of which {suffix[1:].upper()} is written with 8")
    if like.aspect and suffix not in metadata.OWN_ASPECT:
        said.append(f"has pixels that are not square, which {suffix[1:].upper()} cannot say")
    if suffix == ".bmp" and _profile(like) is not None:
        said.append("has other colours than sRGB, which BMP cannot say: they are converted to sRGB")
    return said


def _is_seen_through(like: Raster) -> bool:
    if like.alpha is None:
        return False
    alpha = np.asarray(like.alpha)
    return bool((alpha < np.iinfo(alpha.dtype).max).any())


def _profile(like: Raster) -> bytes | None:
    """The colour profile, if need be one made of what the file says otherwise."""
    if like.icc is not None or like.colour is None or like.colour.is_plain:
        return like.icc
    return like.colour.profile(like.grey)


def write(
    path: str | Path,
    image: np.ndarray,
    like: Raster | None = None,
    depth: int | None = None,
    compress_level: int = 6,
) -> None:
    """Write a (3, H, W) image of floats in [0, 1], clipped and rounded; the suffix chooses the format.

    WebP is lossless, JPEG and HEIF have quality 95 without chroma subsampling. Missing folders are created. The file
    appears under its name only when complete. Raises ImageError if the suffix is not supported, the format cannot say
    what the colours are, or a pixel is no number; OSError if the disk write fails.

    Args:
        like: the input image: its depth, grey, alpha, density, metadata and colours are kept as far as the format
            supports them (`remarks_on` says what it does not). None: 8-bit RGB.
        depth: 8 or 16 bits instead of the depth of `like`; 16 only if the format supports it.
        compress_level: of PNG with 8 bits, from 0 (fast) to 9 (small).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in WRITABLE:
        raise ImageError(f"{path} cannot be written: its suffix must be one of {' '.join(sorted(WRITABLE))}.")
    like = like or Raster(np.empty((3, 0, 0), np.uint8))
    require_tellable(path, like)
    if not np.isfinite(image).all():
        raise ImageError(f"{path} is not written: it has pixels that are no numbers, the checkpoint may be damaged.")
    deep = suffix in DEEP and (like.is_deep if depth is None else depth == 16)
    array, kinds = _samples(image, like, np.uint16 if deep else np.uint8, suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        fitted = metadata.fitting(like, suffix, array.shape[1], array.shape[0])
        if suffix in TIFF:
            exif = metadata.exif_of(fitted)
            metadata.set_density(exif, fitted.density, metadata.INCH)
            metadata.set_density(exif, fitted.aspect, metadata.NO_UNIT)
            tiff.write(part, array, like.grey, kinds, exif, _profile(fitted), fitted.xmp)
        elif suffix == ".png":
            part.write_bytes(_with_chunks(_png(array, compress_level), fitted))
        else:
            part.write_bytes(_by_pillow(array, fitted, suffix))


def _samples(image: np.ndarray, like: Raster, dtype: type, suffix: str) -> tuple[np.ndarray, tuple[EXTRASAMPLE, ...]]:
    """The samples (H, W, channels) that a format stores, and the kinds of those after the colours."""
    levels, kinds = np.iinfo(dtype).max, ()
    channels = np.clip(np.asarray(image, np.float32), 0, 1) * np.float32(levels)
    if like.grey:
        # The median keeps equal channels exactly as they are; a mean would round.
        channels = np.median(channels, axis=0, keepdims=True)
    more = []
    if like.alpha is not None:
        alpha = np.asarray(like.alpha)
        share = alpha.astype(np.float32) / np.iinfo(alpha.dtype).max
        if suffix not in TRANSPARENT:
            channels = channels * share + levels * (1 - share)
        else:
            more.append(np.rint(share * levels))
            kinds += (EXTRASAMPLE.UNASSALPHA,)
        if suffix in TIFF and like.associated:
            channels = np.rint(channels) * share
            kinds = (EXTRASAMPLE.ASSOCALPHA,)
    if like.extra is not None and suffix in TIFF:
        extra = np.asarray(like.extra)
        more.append(np.rint(extra * np.float32(levels / np.iinfo(extra.dtype).max)))
        kinds += (EXTRASAMPLE.UNSPECIFIED,) * len(extra)
    whole = np.concatenate([np.rint(channels), *more]).astype(dtype)
    return np.moveaxis(whole, 0, -1).copy(), kinds  # with the strides that imagecodecs wants, for one pixel too


def _png(array: np.ndarray, compress_level: int) -> bytes:
    if array.dtype == np.uint16 and array.shape[-1] > 1:  # Pillow can write 16-bit grey
        return imagecodecs.png_encode(array)
    buffer = io.BytesIO()
    _pillow(array).save(buffer, "PNG", compress_level=compress_level)
    return buffer.getvalue()


def _pillow(array: np.ndarray) -> Image.Image:
    return Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)


def _by_pillow(array: np.ndarray, like: Raster, suffix: str) -> bytes:
    """A file of the formats that Pillow and its plugins write."""
    image, kind, profile = _pillow(array), Image.registered_extensions()[suffix], _profile(like)
    arguments = {"exif": like.exif, "xmp": like.xmp, "icc_profile": profile}
    codes = like.colour.codes if suffix in CODED and like.icc is None and like.colour else None
    if codes is not None:
        del arguments["icc_profile"]
    if kind == "HEIF" and codes is not None:
        arguments |= {"color_primaries": codes[0], "transfer_characteristics": codes[1], "matrix_coefficients": 6}
    if kind == "BMP":
        arguments["dpi"] = (0, 0)  # unknown; Pillow would write 96
    if kind in ("JPEG", "BMP") and like.density:
        arguments["dpi"] = tuple(round(value) for value in like.density)
    elif kind == "JPEG" and like.aspect:
        arguments["dpi"] = _whole_ratio(like.aspect, JFIF_MOST)
    if kind == "BMP" and profile is not None:
        image = _in_srgb(image, profile)
    buffer = io.BytesIO()
    image.save(buffer, kind, **SAVED.get(kind, {}), **{name: value for name, value in arguments.items() if value})
    content = buffer.getvalue()
    if kind == "JPEG" and like.aspect and not like.density:
        content = content[:JFIF_UNIT] + b"\0" + content[JFIF_UNIT + 1 :]
    return colour.with_codes(content, like.colour) if kind == "AVIF" and codes is not None else content


def _whole_ratio(aspect: tuple[float, float], most: int) -> tuple[int, int]:
    """Two whole numbers up to `most` whose ratio is as near as possible to that of the aspect."""
    ratio = Fraction(aspect[0]) / Fraction(aspect[1])
    if ratio > 1:
        down, across = _whole_ratio(aspect[::-1], most)
        return across, down
    ratio = ratio.limit_denominator(most)
    return max(1, ratio.numerator), ratio.denominator


def _in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An image whose colours are those of a profile, in sRGB."""
    try:
        return ImageCms.profileToProfile(image, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB")
    except ImageCms.PyCMSError:  # of a profile that does not fit, for which there is no conversion
        return image


def _with_chunks(png: bytes, like: Raster) -> bytes:
    """Insert what a file says besides its pixels after a PNG file's header (PNG specification, chunk layout)."""
    header = 8 + 4 + 4 + 13 + 4  # signature, then length, kind, data and checksum of IHDR
    chunks = [*(like.colour.png() if like.colour else ())]
    profile = like.icc if chunks else _profile(like)
    if profile:
        chunks.append((b"iCCP", b"ICC profile\0\0" + zlib.compress(profile)))
    if like.density:
        across, down = (round(value / INCH) for value in like.density)
        chunks.append((b"pHYs", across.to_bytes(4, "big") + down.to_bytes(4, "big") + b"\1"))
    elif like.aspect:
        across, down = _whole_ratio(like.aspect, PHYS_MOST)
        chunks.append((b"pHYs", across.to_bytes(4, "big") + down.to_bytes(4, "big") + b"\0"))
    if like.exif:
        chunks.append((b"eXIf", like.exif.removeprefix(b"Exif\0\0")))
    if like.xmp:
        chunks.append((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + like.xmp))
    file = io.BytesIO()
    file.write(png[:header])
    for kind, data in chunks:
        PngImagePlugin.putchunk(file, kind, data)
    return file.getvalue() + png[header:]
