"""Read and write images. All conversion between files and tensors happens here."""

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile
import torch
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, TiffImagePlugin
from torch import Tensor

from deblur.data import metadata
from deblur.data.formats import Bounded, exif_of, format_of, opened
from deblur.data.search import DEEP, READ, SUFFIXES, WRITABLE, ImageError
from deblur.files import replacing

SAVED = {  # how, by Pillow's names of the formats
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True, "exact": True},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": "444"},
}
SEVERAL = "has several frames, the first is restored"  # a remark
TRANSPARENT = WRITABLE - {".jpg", ".jpeg", ".bmp"}


@dataclass(frozen=True)
class ImageFile:
    """An image file's pixels, rotated upright, and what is kept when its restoration is written.

    Args:
        pixels: (3, H, W) uint8 or uint16; a grey image has three equal channels.
        alpha: (1, H, W) of the same type, or None.
        grey: whether the file has one colour channel.
        exif, icc, xmp: the metadata, without the orientation, and the colour profile; None if the file has none.
        remarks: what is unusual about the file, or not restored; each follows its name.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    grey: bool = False
    exif: bytes | None = None
    icc: bytes | None = None
    xmp: bytes | None = None
    remarks: tuple[str, ...] = ()

    @property
    def values(self) -> Tensor:
        """(3, H, W) float32 in [0, 1]."""
        return self.pixels.float().div_(torch.iinfo(self.pixels.dtype).max)


def read(path: str | Path) -> Tensor:
    """Read an image as (3, H, W) float32 in [0, 1]; metadata is not returned."""
    return read_file(path).values


def read_raw(path: str | Path) -> Tensor:
    """As `read`, but in the file's own numbers: uint8 to 255, or int32 to 65535 for 16 bits."""
    pixels = read_file(path).pixels
    return pixels if pixels.dtype == torch.uint8 else pixels.int()  # torch cannot slice or rotate uint16


def to_float(raw: Tensor) -> Tensor:
    """Convert the output of `read_raw`, or a part of it, to float32 in [0, 1]."""
    return raw.float().div_(255 if raw.dtype == torch.uint8 else 65535)


def read_file(path: str | Path) -> ImageFile:
    """Read an image in one of the formats of `data.search.READ`, by its content; its suffix need not match.

    8 and 16 bits keep their depth; floats are refused. The EXIF orientation is applied. Grey becomes three
    equal channels; palette, CMYK and 1-bit images become RGB. If there are several frames, the first is read.

    Raises ImageError, naming the file, if it cannot be read, is truncated or has more than MOST_PIXELS.
    """
    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{path} is not an image file: {'it is a folder' if path.is_dir() else 'no such file'}.")
    with _named_if_damaged(path):
        kind = format_of(path)
        image = (_read_tiff(path) if kind == "TIFF" else None) or _read_pillow(path)
    if path.suffix.lower() in SUFFIXES - set(READ[kind]):
        image = replace(image, remarks=(f"is a {kind} image in spite of its suffix", *image.remarks))
    return image


def header_size(path: str | Path) -> tuple[int, int]:
    """Width and height of an upright image by its file's header. ImageError if that cannot be read."""
    with _named_if_damaged(path), opened(Path(path)) as image:
        # For other formats Pillow would have to decode the image to find the orientation; cameras write JPEG.
        turned = image.format == "JPEG" and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
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
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ImageError(f"{path} cannot be decoded, it may be damaged: {reason}.") from None


def _read_tiff(path: Path) -> ImageFile | None:
    """Read a grey or RGB TIFF of 8 or 16 bits; None for others.

    Pillow reads 16-bit colour with 8 bits, and rotates a TIFF of orientation 5 to 8 twice (13.0).
    """
    with Bounded(io.FileIO(path)) as content, tifffile.TiffFile(content, is_lsm=False) as file:  # lsm reads all pages
        page = file.pages.first
        plain = page.photometric in (tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB)
        kind, bits = None if page.dtype is None else page.dtype.kind, page.bitspersample
        if kind == "f":
            raise ImageError(f"{path} has floats, whose range is unknown: save it with 8 or 16 bits.")
        if bits not in (8, 16) or kind != "u" or (bits == 8 and not plain):
            return None
        if not plain or page.samplesperpixel > 4 or page.imagedepth > 1:
            raise ImageError(f"{path} has a layout of channels that is not known: save it as grey, RGB or RGBA.")
        exif = Image.Exif()
        exif.endian, exif.bigtiff = file.byteorder, file.is_bigtiff
        exif.load_from_fp(content, page.offset)
        icc, xmp = page.iccprofile, page.tags[metadata.XMP].value if metadata.XMP in page.tags else None
        content.allow_pixels(path, page.imagewidth, page.imagelength)
        array = page.asarray()
        if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and array.ndim == 3:
            array = np.moveaxis(array, 0, -1)
        return _image_file(array, exif, icc, xmp, (SEVERAL,) if exif._info.next > 0 else (), tiff=True)


def _read_pillow(path: Path) -> ImageFile:
    with opened(path) as image:
        deep_png = image.format == "PNG" and str(image.tile[0].args).endswith(";16B")
        exif, ink, remarks = exif_of(image), image.mode == "CMYK", ()
        if image.info.get("exif") == b"":
            remarks += ("has EXIF data that cannot be read, which are left out",)
        if getattr(image, "is_animated", False):
            remarks += (SEVERAL,)
        # A colour profile of inks does not apply to the RGB values they are converted to.
        icc, xmp, tiff = None if ink else image.info.get("icc_profile"), image.info.get("xmp"), image.format == "TIFF"
        if deep_png:
            array = imagecodecs.png_decode(path.read_bytes())  # Pillow reads 16-bit colour with 8 bits
            return _image_file(array, exif, icc, xmp, remarks, tiff)
        upright = ImageOps.exif_transpose(image)  # Pillow rotates some formats itself and accounts for that here
        exif.pop(ExifTags.Base.Orientation, None)
        deep = upright.mode[0] in "IF"  # I;16 is 16-bit grey, I and F are 32-bit integers and floats
        grey = deep or upright.mode in ("1", "L", "LA", "La")
        if deep:
            array = np.array(upright)
            if array.dtype.kind == "f" or array.min() < 0 or array.max() > 65535:
                raise ImageError(f"{path} has pixels of 32 bits, whose range is unknown: save it with 8 or 16 bits.")
            array = array.astype(np.uint16)
        else:
            mode = ("LA" if grey else "RGBA") if upright.has_transparency_data else "L" if grey else "RGB"
            array = np.array(upright.convert(mode))
        return _image_file(array, exif, icc, xmp, remarks, tiff)


def _image_file(
    array: np.ndarray, exif: Image.Exif, icc: bytes | None, xmp: bytes | None, remarks: tuple[str, ...], tiff: bool
) -> ImageFile:
    """Make an ImageFile from an array (H, W) or (H, W, 1 to 4): grey, grey and alpha, RGB or RGBA.

    It is turned by the orientation in `exif`. EXIF of a TIFF file also has tags that describe its layout.
    """
    array = array[..., None] if array.ndim == 2 else array
    orientation = exif.pop(ExifTags.Base.Orientation, 1)
    if orientation in (5, 6, 7, 8):  # the camera was held sideways: rows are columns
        array = array.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    if tiff:
        for tag in exif.keys() - metadata.DESCRIPTIVE - {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}:
            del exif[tag]
    channels = torch.from_numpy(np.moveaxis(array, -1, 0).copy())  # a 1-pixel array may have negative strides
    grey, alpha = len(channels) < 3, channels[-1:] if len(channels) in (2, 4) else None
    pixels = channels[:1].expand(3, -1, -1).contiguous() if grey else channels[:3]
    return ImageFile(pixels, alpha, grey, exif.tobytes() if len(exif) else None, icc, xmp, remarks)


def write(
    path: str | Path, image: Tensor, like: ImageFile | None = None, depth: int | None = None, compress_level: int = 6
) -> None:
    """Write a (3, H, W) image in [0, 1], clipped and rounded; the suffix chooses the format.

    WebP is lossless, JPEG and HEIF have quality 95 without chroma subsampling. Missing folders are created. The file
    appears under its name only when complete. Raises ImageError if the suffix is not supported, OSError if the disk
    write fails.

    Args:
        like: the input image: its depth, grey, alpha, EXIF and colour profile are kept as far as the format supports
            them. None: 8-bit RGB.
        depth: 8 or 16 bits instead of the depth of `like`; 16 only if the format supports it.
        compress_level: of PNG with 8 bits, from 0 (fast) to 9 (small).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in WRITABLE:
        raise ImageError(f"{path} cannot be written: its suffix must be one of {' '.join(sorted(WRITABLE))}.")
    like = like or ImageFile(torch.empty(3, 0, 0, dtype=torch.uint8))
    deep = suffix in DEEP and (like.pixels.dtype == torch.uint16 if depth is None else depth == 16)
    levels, dtype = (65535, torch.uint16) if deep else (255, torch.uint8)
    channels = image.detach().cpu().float().clamp(0, 1).mul_(levels).round_()
    if like.grey:
        # The median keeps equal channels exactly as they are; a mean would round.
        channels = channels.median(dim=0, keepdim=True).values
    channels = channels.to(dtype)
    if like.alpha is not None and suffix in TRANSPARENT:
        most = torch.iinfo(like.alpha.dtype).max
        alpha = like.alpha.float().mul_(levels / most).round_().to(dtype)
        channels = torch.cat([channels, alpha])
    array = channels.movedim(0, -1).numpy().copy()  # with the strides that imagecodecs wants, for one pixel too
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        fitted = metadata.fitting(like, suffix)
        if deep and suffix != ".png":
            _write_deep_tiff(part, array, fitted)
            return
        if deep and array.shape[-1] > 1:  # Pillow can write 16-bit grey
            content = imagecodecs.png_encode(array)
        else:
            flat, buffer = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array), io.BytesIO()
            arguments = {"compress_level": compress_level} if suffix == ".png" else metadata.arguments(fitted, suffix)
            kind = Image.registered_extensions()[suffix]
            flat.save(buffer, kind, **SAVED.get(kind, {}), **arguments)
            content = buffer.getvalue()
        part.write_bytes(_with_metadata(content, fitted) if suffix == ".png" else content)


def _with_metadata(png: bytes, like: ImageFile) -> bytes:
    """Insert the EXIF, XMP and colour profile chunks after a PNG file's header (PNG specification, chunk layout)."""
    header = 8 + 4 + 4 + 13 + 4  # signature, then length, kind, data and checksum of IHDR
    file = io.BytesIO()
    file.write(png[:header])
    for kind, data in (
        (b"iCCP", like.icc and b"ICC profile\0\0" + zlib.compress(like.icc)),
        (b"eXIf", like.exif and like.exif.removeprefix(b"Exif\0\0")),
        (b"iTXt", like.xmp and b"XML:com.adobe.xmp\0\0\0\0\0" + like.xmp),
    ):
        if data:
            PngImagePlugin.putchunk(file, kind, data)
    return file.getvalue() + png[header:]


def _write_deep_tiff(path: Path, array: np.ndarray, like: ImageFile) -> None:
    """Write (H, W, 1 to 4) uint16; Pillow writes only grey of 16 bits, and tifffile no directories within tags."""
    height, width, channels = array.shape
    rows = max(1, (1 << 20) // (2 * width * channels))
    strips = [imagecodecs.zlib_encode(array[i : i + rows].astype("<u2").tobytes()) for i in range(0, height, rows)]
    sizes = [len(strip) for strip in strips]
    tags, exif = TiffImagePlugin.ImageFileDirectory_v2(), metadata.exif_of(like)
    for tag in exif:
        tags[tag] = exif.get_ifd(tag) if tag in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo) else exif[tag]
    layout = {"ImageWidth": width, "ImageLength": height, "BitsPerSample": (16,) * channels, "Compression": 8}
    layout |= {"PhotometricInterpretation": 1 if like.grey else 2, "SamplesPerPixel": channels, "RowsPerStrip": rows}
    layout |= {"StripOffsets": tuple(np.cumsum([0, *sizes[:-1]]).tolist()), "StripByteCounts": tuple(sizes)}
    layout |= {"ExtraSamples": 2} if channels in (2, 4) else {}  # alpha that the colours are not multiplied with
    for name, value in layout.items():
        tags[ExifTags.Base[name]] = value
    for tag, content in ((metadata.ICC, like.icc), (metadata.XMP, like.xmp)):
        if content:
            tags[tag] = content
    with open(path, "wb") as file:
        tags.save(file)  # Pillow adds the directory's size to the strips' offsets
        file.writelines(strips)
