"""Read and write TIFF files: every kind of samples, of which Pillow knows only the commonest."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile
from PIL import ExifTags, Image, TiffImagePlugin
from tifffile import EXTRASAMPLE, PHOTOMETRIC

from deblur.data.files import colour
from deblur.data.files.formats import Bounded
from deblur.data.files.search import ImageError

ICC, XMP = ExifTags.Base.InterColorProfile, ExifTags.Base.XMLPacket
SEVERAL_FRAMES = "has several frames, the first is restored"  # a remark
THUMBNAIL = "begins with a thumbnail, the full-size page is restored"  # a remark
MOST_PAGES = 16  # that are looked at for the full-size one
COLOUR_SAMPLES = {PHOTOMETRIC.MINISWHITE: 1, PHOTOMETRIC.MINISBLACK: 1, PHOTOMETRIC.RGB: 3}  # samples of colours
ALPHA = (EXTRASAMPLE.ASSOCALPHA, EXTRASAMPLE.UNASSALPHA)
REDUCED_IMAGE = 2  # in the old tag SubfileType
SAVE_IT = "save it as grey, RGB or RGBA of 8 or 16 bits"


@dataclass(frozen=True)
class Page:
    """A TIFF file's full-size page, not yet turned.

    Args:
        number: its place among the pages.
        remarks: what is remarkable.
        icc: its profile, or one of what its tags say about its colours.
        colours: (H, W, 1 or 3) uint8 or uint16; other depths are scaled to the next of these. None, as all that
            follows, if Pillow reads the page: palettes, CMYK, YCbCr, fewer than 8 bits.
        alpha: (H, W, 1) of the same type, or None.
        associated: whether the colours are multiplied with alpha.
        extra: (H, W, N) of the same type, the samples that are neither; or None.
    """

    number: int
    remarks: tuple[str, ...]
    icc: bytes | None
    colours: np.ndarray | None = None
    alpha: np.ndarray | None = None
    associated: bool = False
    extra: np.ndarray | None = None
    exif: Image.Exif | None = None
    xmp: bytes | None = None


def read(path: Path) -> Page:
    """Read the full-size page.

    Raises:
        ImageError: its samples are of no known kind.
        Other errors of tifffile and imagecodecs: it cannot be decoded.
    """
    with Bounded(io.FileIO(path)) as content, tifffile.TiffFile(content, is_lsm=False) as file:  # lsm reads all pages
        number, page, remarks = _full_size(file)
        _require_readable(path, page)
        icc = page.iccprofile or _colour(page)
        if page.photometric not in COLOUR_SAMPLES or page.bitspersample < 8 or page.dtype is None:
            if number is None:
                raise ImageError(f"{path} has its full-size page where it is not read from: {SAVE_IT}.")
            return Page(number, remarks, icc)
        exif = Image.Exif()
        exif.endian, exif.bigtiff = file.byteorder, file.is_bigtiff
        exif.load_from_fp(content, page.offset)
        for directory in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            if directory in exif:
                exif.get_ifd(directory)  # otherwise read when the file is closed
        xmp = page.tags[XMP].value if XMP in page.tags else None
        content.allow_pixels(path, page.imagewidth, page.imagelength)
        if number == 0 and exif._info.next > 0:
            remarks = (SEVERAL_FRAMES,)
        return Page(number or 0, remarks, icc, *_channels(page), exif, xmp)


def header_size(path: Path) -> tuple[int, int]:
    """Width and height of the full-size page, upright. ImageError if it has no pixels or too many."""
    with Bounded(io.FileIO(path)) as content, tifffile.TiffFile(content, is_lsm=False) as file:
        page = _full_size(file)[1]
        content.allow_pixels(path, page.imagewidth, page.imagelength)
        turned = 274 in page.tags and page.tags[274].value >= 5
        return (page.imagelength, page.imagewidth) if turned else (page.imagewidth, page.imagelength)


def _full_size(file: tifffile.TiffFile) -> tuple[int | None, tifffile.TiffPage, tuple[str, ...]]:
    """The first page that is not reduced, its number among the pages (None: below another page), and a remark.

    Scanners and cameras write a thumbnail before the image, or the image below the thumbnail's page.
    """
    first = file.pages.first
    if not _is_reduced(first):
        return 0, first, ()
    for number, page in _pages(file):
        if not _is_reduced(page):
            return number, page, (THUMBNAIL,)
    return 0, first, ()


def _pages(file: tifffile.TiffFile) -> Iterator[tuple[int | None, tifffile.TiffPage]]:
    """At most MOST_PAGES pages after the first, and those below the first; a chain may be endless."""
    for number in range(1, MOST_PAGES):
        try:
            yield number, file.pages[number]
        except IndexError:
            break
    below = file.pages.first.pages if 330 in file.pages.first.tags else None
    for number in range(min(len(below), MOST_PAGES) if below is not None else 0):
        yield None, below[number]


def _is_reduced(page: tifffile.TiffPage) -> bool:
    older = page.tags[255].value if 255 in page.tags else 0
    return bool(int(page.subfiletype) & 1) or older == REDUCED_IMAGE


def _require_readable(path: Path, page: tifffile.TiffPage) -> None:
    """ImageError if the samples are of no kind that is read."""
    kind, bits = page.dtype and page.dtype.kind, page.bitspersample
    unknown = {"f": "floats", "i": "numbers with a sign"}.get(kind)
    if isinstance(bits, tuple) or (kind == "u" and bits > 16):
        unknown = f"pixels of {bits} bits"
    if unknown:
        raise ImageError(f"{path} has {unknown}, whose range is unknown: save it with 8 or 16 bits.")
    usual = COLOUR_SAMPLES.get(page.photometric)
    if (bits > 8 and usual is None) or page.samplesperpixel < (usual or 1) or page.imagedepth > 1:
        raise ImageError(f"{path} has a layout of channels that is not known: {SAVE_IT}.")


def _colour(page: tifffile.TiffPage) -> bytes | None:
    """A profile of what the page's tags say about its colours."""
    if page.photometric not in (*COLOUR_SAMPLES, PHOTOMETRIC.PALETTE):
        return None
    white, colours = (_ratios(page, name) for name in ("WhitePoint", "PrimaryChromaticities"))
    table = np.ravel(page.tags["TransferFunction"].value) if "TransferFunction" in page.tags else None
    return colour.of_tiff(white, colours, table, COLOUR_SAMPLES.get(page.photometric) == 1)


def _ratios(page: tifffile.TiffPage, name: str) -> tuple[float, ...] | None:
    """A tag's fractions as numbers; None without the tag."""
    if name not in page.tags:
        return None
    parts = page.tags[name].value
    return tuple(above / max(below, 1) for above, below in zip(parts[::2], parts[1::2], strict=True))


def _channels(page: tifffile.TiffPage) -> tuple[np.ndarray, np.ndarray | None, bool, np.ndarray | None]:
    """The colours, alpha, whether the colours are multiplied with it, and the other samples."""
    array, bits = page.asarray(), page.bitspersample
    if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and array.ndim == 3:
        array = np.moveaxis(array, 0, -1)
    array = array.reshape(page.imagelength, page.imagewidth, page.samplesperpixel)
    if bits not in (8, 16):
        array = np.rint(array * np.float32(65535 / (2**bits - 1))).astype(np.uint16)
    count = COLOUR_SAMPLES[page.photometric]
    colours, rest, kinds = array[..., :count], array[..., count:], list(page.extrasamples)
    if page.photometric == PHOTOMETRIC.MINISWHITE:
        colours = np.iinfo(array.dtype).max - colours
    at = next((at for at in range(rest.shape[-1]) if at < len(kinds) and kinds[at] in ALPHA), None)
    if at is None:
        return colours, None, False, rest if rest.shape[-1] else None
    alpha, extra = rest[..., at : at + 1], np.delete(rest, at, axis=-1)
    associated = kinds[at] == EXTRASAMPLE.ASSOCALPHA
    if associated:
        colours = _divided(colours, alpha)
    return colours, alpha, associated, extra if extra.shape[-1] else None


def _divided(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Colours that were multiplied with alpha, as they were before; black where nothing is to be seen."""
    most = np.iinfo(colours.dtype).max
    straight = colours.astype(np.float32) * most / np.maximum(alpha, 1)
    return np.rint(np.where(alpha > 0, straight, 0)).clip(0, most).astype(colours.dtype)


def write(
    path: Path,
    array: np.ndarray,
    grey: bool,
    kinds: tuple[EXTRASAMPLE, ...],
    exif: Image.Exif,
    icc: bytes | None,
    xmp: bytes | None,
) -> None:
    """Write samples (H, W, C) uint8 or uint16; Pillow writes no 16-bit colour, tifffile no directories within tags.

    Args:
        grey: whether the first sample is grey; otherwise the first three are red, green and blue.
        kinds: of the samples that follow.
        exif, icc, xmp: the metadata.
    """
    height, width, channels = array.shape
    bits = 8 * array.itemsize
    rows = max(1, (1 << 20) // (array.itemsize * width * channels))
    stored = array.astype(array.dtype.newbyteorder("<"))
    strips = [imagecodecs.zlib_encode(stored[i : i + rows].tobytes()) for i in range(0, height, rows)]
    sizes = [len(strip) for strip in strips]
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for tag in exif:
        tags[tag] = exif.get_ifd(tag) if tag in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo) else exif[tag]
    layout = {"ImageWidth": width, "ImageLength": height, "BitsPerSample": (bits,) * channels, "Compression": 8}
    layout |= {"PhotometricInterpretation": 1 if grey else 2, "SamplesPerPixel": channels, "RowsPerStrip": rows}
    layout |= {"StripOffsets": tuple(np.cumsum([0, *sizes[:-1]]).tolist()), "StripByteCounts": tuple(sizes)}
    layout |= {"ExtraSamples": tuple(int(kind) for kind in kinds)} if kinds else {}
    for name, value in layout.items():
        tags[ExifTags.Base[name]] = value
    for tag, content in ((ICC, icc), (XMP, xmp)):
        if content:
            tags[tag] = content
    with open(path, "wb") as file:
        tags.save(file)  # Pillow adds the directory's size to the strips' offsets
        file.writelines(strips)
