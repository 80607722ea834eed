"""Read and write images. All conversion between files and tensors happens here."""

import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from base.files import replacing
from data.search import DEEP, HEIF, WRITABLE, ImageError

FORMATS = {
    ".png": {"format": "PNG"},
    ".jpg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".jpeg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".webp": {"format": "WEBP", "lossless": True, "exact": True},
    ".tif": {"format": "TIFF"},
    ".tiff": {"format": "TIFF"},
    ".bmp": {"format": "BMP"},
}
TRANSPARENT = {".png", ".webp", ".tif", ".tiff"}
if WRITABLE & HEIF:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)
    FORMATS |= {suffix: {"format": "HEIF", "quality": 95, "chroma": "444"} for suffix in HEIF}
    TRANSPARENT |= HEIF

MOST_PIXELS = 2 * Image.MAX_IMAGE_PIXELS  # Pillow's limit too: 179 million

# TIFF tags that describe the photograph, not the layout of the file.
DESCRIPTIVE = {"ImageDescription", "Make", "Model", "Software", "DateTime", "Artist", "Copyright"}


@dataclass(frozen=True)
class ImageFile:
    """An image file's pixels, rotated upright, and what is kept when its restoration is written.

    Args:
        pixels: (3, H, W) uint8 or uint16; a grey image has three equal channels.
        alpha: (1, H, W) of the same type, or None.
        grey: whether the file has one colour channel.
        exif, icc: the metadata without the orientation, and the colour profile; None if the file has none.
        frames: number of frames in the file; the first was read.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    grey: bool = False
    exif: bytes | None = None
    icc: bytes | None = None
    frames: int = 1

    @property
    def remarks(self) -> list[str]:
        """Notes on what is not restored; each follows the file's name."""
        return [f"has {self.frames} frames, the first is restored"] if self.frames > 1 else []

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
    """Read an image.

    8 and 16 bits keep their depth. The EXIF orientation is applied. Grey becomes three equal channels; palette, CMYK
    and 1-bit images become RGB. If there are several frames, the first is read.

    Raises ImageError, naming the file, if it cannot be read, is truncated or has more than MOST_PIXELS.
    """
    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{path} is not an image file: {'it is a folder' if path.is_dir() else 'no such file'}.")
    if path.suffix.lower() in HEIF - WRITABLE:
        raise ImageError(f"{path} is a HEIF image: to read those, pip install pillow-heif.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fault of the file is reported once, by the error
            image = _read_unlike_pillow(path) or _read_pillow(path)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{path} is not an image of a known format.") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and many more
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ImageError(f"{path} cannot be decoded, it may be damaged: {reason}.") from None
    return image


def _read_unlike_pillow(path: Path) -> ImageFile | None:
    """Read a 16-bit PNG or a grey or RGB TIFF; None for other files.

    Pillow reads 16-bit colour with 8 bits, and Pillow 13.0 rotates a TIFF of orientation 5 to 8 twice.
    """
    with open(path, "rb") as file:
        head = file.read(26)
    if head[:8] == b"\x89PNG\r\n\x1a\n" and head[24:25] == b"\x10":
        with Image.open(path) as opened:  # the header; the size is checked before anything is decoded
            _check_size(path, opened.size)
            opened.load()  # Pillow verifies the checksums and reads metadata that follows the pixels
            exif, icc = opened.getexif(), opened.info.get("icc_profile")
        array, frames = imagecodecs.png_decode(path.read_bytes()), 1
    elif head[:4] in (b"II*\0", b"MM\0*"):
        with tifffile.TiffFile(path) as file:
            page, frames = file.pages.first, len(file.pages)
            _check_size(path, (page.imagewidth, page.imagelength))
            plain = page.photometric in (tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB)
            if page.bitspersample not in (8, 16) or page.dtype.kind != "u" or (page.bitspersample == 8 and not plain):
                return None
            if not plain:
                raise ImageError(f"{path} has 16 bits of {page.photometric.name}: save it as grey or RGB.")
            array, icc = page.asarray(), page.iccprofile
            if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and array.ndim == 3:
                array = np.moveaxis(array, 0, -1)
            exif = Image.Exif()
            for name in DESCRIPTIVE & {tag.name for tag in page.tags}:
                exif[ExifTags.Base[name]] = page.tags[name].value
            orientation = page.tags.get("Orientation")
            exif[ExifTags.Base.Orientation] = int(orientation.value) if orientation else 1
    else:
        return None
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype not in (np.uint8, np.uint16) or array.ndim != 3 or array.shape[2] > 4:
        raise ImageError(f"{path} has a layout of channels that is not known: save it as grey, RGB or RGBA.")
    return _image_file(array, exif, icc, frames)


def _read_pillow(path: Path) -> ImageFile:
    try:
        opened = Image.open(path)
    except Image.DecompressionBombError as error:
        raise ImageError(f"{path} is too large, it may be a decompression bomb: {error}") from None
    with opened:
        _check_size(path, opened.size)
        frames = getattr(opened, "n_frames", 1)
        image = ImageOps.exif_transpose(opened)  # Pillow rotates some formats itself and accounts for that here
        deep = image.mode[0] in "IF"  # I;16 is 16-bit grey, I and F are 32-bit integers and floats
        grey = deep or image.mode in ("1", "L", "LA", "La")
        if deep:
            array = np.array(image)
            if array.dtype.kind == "f" or array.min() < 0 or array.max() > 65535:
                raise ImageError(f"{path} has pixels of 32 bits, whose range is unknown: save it with 8 or 16 bits.")
            array = array.astype(np.uint16)[..., None]
        else:
            mode = ("LA" if grey else "RGBA") if image.has_transparency_data else "L" if grey else "RGB"
            array = np.array(image.convert(mode))
            array = array[..., None] if array.ndim == 2 else array
        exif = opened.getexif()
        if opened.format == "TIFF":
            for tag in set(exif) - {ExifTags.Base[name] for name in DESCRIPTIVE}:
                del exif[tag]
        exif.pop(ExifTags.Base.Orientation, None)
        # A colour profile of inks does not apply to the RGB values they were converted to.
        icc = None if opened.mode == "CMYK" else opened.info.get("icc_profile")
        return _image_file(array, exif, icc, frames)


def _check_size(path: Path, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"{path} is too large, it may be a decompression bomb: {width} x {height} pixels, more than {MOST_PIXELS}."
        )


def _image_file(array: np.ndarray, exif: Image.Exif, icc: bytes | None, frames: int) -> ImageFile:
    """Make an ImageFile from an array (H, W, 1 to 4): grey, grey and alpha, RGB or RGBA."""
    orientation = exif.pop(ExifTags.Base.Orientation, 1)
    if orientation in (5, 6, 7, 8):  # the camera was held sideways: rows are columns
        array = array.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    channels = torch.from_numpy(np.moveaxis(array, -1, 0).copy())  # a 1-pixel array may have negative strides
    grey, alpha = len(channels) < 3, channels[-1:] if len(channels) in (2, 4) else None
    pixels = channels[:1].expand(3, -1, -1).contiguous() if grey else channels[:3]
    return ImageFile(pixels, alpha, grey, exif.tobytes() if len(exif) else None, icc, frames)


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
    if suffix not in FORMATS:
        raise ImageError(f"{path} cannot be written: its suffix must be one of {' '.join(sorted(FORMATS))}.")
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
        if not deep or (suffix == ".png" and array.shape[-1] == 1):  # Pillow can write 16-bit grey
            metadata = {"exif": like.exif, "icc_profile": like.icc}
            given = {name: value for name, value in metadata.items() if value} if suffix != ".bmp" else {}
            given |= {"compress_level": compress_level} if suffix == ".png" else {}
            Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(part, **FORMATS[suffix], **given)
        elif suffix == ".png":
            part.write_bytes(_with_metadata(imagecodecs.png_encode(array), like))
        else:
            _write_deep_tiff(part, array, like)


def _with_metadata(png: bytes, like: ImageFile) -> bytes:
    """Insert the EXIF and colour profile chunks after a PNG file's header (PNG specification, chunk layout)."""
    chunks = b""
    for kind, data in (
        (b"iCCP", like.icc and b"ICC profile\0\0" + zlib.compress(like.icc)),
        (b"eXIf", like.exif and like.exif.removeprefix(b"Exif\0\0")),
    ):
        if data:
            chunks += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = 8 + 4 + 4 + 13 + 4  # signature, then length, kind, data and checksum of IHDR
    return png[:header] + chunks + png[header:]


def _write_deep_tiff(path: Path, array: np.ndarray, like: ImageFile) -> None:
    exif = Image.Exif()
    exif.load(like.exif or b"")
    texts = {ExifTags.Base[name]: exif.get(ExifTags.Base[name]) for name in DESCRIPTIVE}
    tifffile.imwrite(
        path,
        array.squeeze(-1) if array.shape[-1] == 1 else array,
        photometric="minisblack" if like.grey else "rgb",
        planarconfig="contig" if array.shape[-1] > 1 else None,
        extrasamples=["unassalpha"] if array.shape[-1] in (2, 4) else None,
        compression="zlib",
        iccprofile=like.icc,
        metadata=None,
        description=texts.pop(ExifTags.Base.ImageDescription),
        software=texts.pop(ExifTags.Base.Software) or False,
        extratags=[(int(tag), "s", 0, text, True) for tag, text in texts.items() if text],
    )


def header_size(path: str | Path) -> tuple[int, int] | None:
    """Width and height in a file's header, before any rotation; None if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as opened:
                return opened.size
    except Exception:  # of any decoder; read_file reports what is wrong
        return None
