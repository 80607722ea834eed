"""Open image files: which formats, recognised by their content, and how much of a file may be read.

Every file that the program opens as an image goes through `opened` or is `Bounded`. Formats whose decoders start other
programs (PostScript) or are rarely used are refused, and what a file holds besides its pixels is bounded.
"""

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pillow_heif
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from deblur.data.files.kinds import ADVICE, KINDS, RAW_SUFFIXES
from deblur.data.files.search import ImageError

pillow_heif.register_heif_opener(thumbnails=False)

MOST_PIXELS = 2 * Image.MAX_IMAGE_PIXELS  # Pillow's limit too: 179 million
MOST_METADATA = 1 << 25  # bytes, of all that a file holds besides its pixels
# Bytes read before the size is known: Pillow reads some formats wholly.
MOST_HEADER = {"PPM": 1 << 20} | dict.fromkeys(("WEBP", "AVIF", "HEIF"), 1 << 29)
COUNTED_PER_READ = 64  # bytes that a call of read counts in addition, so that many empty chunks are bounded, too


class TooMuchError(ValueError):
    """A file holds more besides its pixels than is read."""

    def __init__(self):
        super().__init__(f"it holds more than {MOST_METADATA >> 20} MiB besides its pixels")


class _Jpeg(JpegImageFile):
    """A JPEG whose EXIF is not parsed, for its resolution alone, before its size can be bounded."""

    def _read_dpi_from_exif(self) -> None:
        pass


class Bounded(io.BufferedReader):
    """A file of which only `left` bytes can be read, however often; TooMuchError then."""

    left = MOST_METADATA

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            here = self.tell()
            size = self.seek(0, io.SEEK_END) - here
            self.seek(here)
        content = super().read(min(size, self.left + 1))
        self.left -= len(content) + COUNTED_PER_READ
        if self.left < 0:
            raise TooMuchError
        return content

    def allow_pixels(self, path: Path, width: int, height: int) -> None:
        """Let the pixels of an image of this size be read. ImageError if there are none or more than MOST_PIXELS."""
        if width < 1 or height < 1:
            raise ImageError(f"{path} has no pixels, it may be damaged: its header says {width}x{height}.")
        if width * height > MOST_PIXELS:
            raise ImageError(f"{path} is too large, it may be a decompression bomb: {width * height} pixels.")
        self.left = 16 * width * height + MOST_METADATA  # the most that a plain PPM has


def format_of(path: Path) -> str:
    """The format of a file by its content, one of KINDS. ImageError if it is another.

    RAW files are told by their suffix: most are TIFF files, whose first image is a thumbnail.
    """
    suffix = path.suffix.lower()
    if suffix in RAW_SUFFIXES:
        raise ImageError(f"{path}: {ADVICE[suffix]}.")
    with open(path, "rb") as file:
        head = file.read(16).ljust(16, b"\0")
    Image.init()
    for name in KINDS:
        accepts = Image.OPEN.get(name, (None, None))[1]
        if accepts is not None and accepts(head) is True:
            return name
    if suffix in ADVICE:
        raise ImageError(f"{path}: {ADVICE[suffix]}.")
    raise ImageError(f"{path} is not an image of a known format: save it as PNG, JPEG or TIFF.")


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A file as Pillow's image, of which only the header is read yet.

    Raises:
        ImageError: the format is not read, or the image has more than MOST_PIXELS.
        TooMuchError, OSError, SyntaxError and other errors of Pillow's decoders: it cannot be read.
    """
    name = format_of(path)
    with Bounded(io.FileIO(path)) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fault of the file is reported once, by the error
        if name == "WEBP":
            _check_chunks(file.raw)
            file.seek(0)
        file.left = MOST_HEADER.get(name, MOST_METADATA)
        try:
            if name == "JPEG":
                image = _Jpeg(file)
            else:  # a HEIF file may begin as an AVIF does
                image = Image.open(file, formats=["AVIF", "HEIF"] if name == "AVIF" else [name])
        except Image.DecompressionBombError as error:
            raise ImageError(f"{path} is too large, it may be a decompression bomb: {error}") from None
        with image:
            if sum(len(value) for value in image.info.values() if isinstance(value, bytes)) > MOST_METADATA:
                raise TooMuchError
            _check_exif(image)
            file.allow_pixels(path, image.width, image.height)
            yield image


def primary_image(path: Path) -> pillow_heif.HeifImage:
    """The primary image of a HEIF or AVIF, upright, of which Pillow tells neither the depth nor the code points.

    The samples of a HEIF are uint16, fewer bits are the upper ones; those of an AVIF cannot be read from it.
    """
    file = pillow_heif.open_heif(path, convert_hdr_to_8bit=False)
    return file[file.primary_index]


def bounded_exif(image: Image.Image) -> Image.Exif:
    """The EXIF of an opened image; TooMuchError if its values are too long together."""
    if image.format == "PNG":
        image.load()  # it may follow the pixels
        _check_exif(image)
    return image.getexif()


def _check_exif(image: Image.Image) -> None:
    """Read and write all values once within bounds: they may overlap, so that a small block can stand for many.

    A block with which Pillow cannot do that becomes empty, since damaged EXIF is no damaged image.
    """
    text = image.info.pop("Raw profile type exif", None)  # of ImageMagick; Pillow would parse it without a limit
    try:
        if text and "exif" not in image.info:
            image.info["exif"] = bytes.fromhex("".join(text.split("\n")[3:]))
        block = image.info.get("exif") or b""
        while block.startswith(b"Exif\0\0"):
            block = block[6:]
        if block:
            exif = Image.Exif()
            exif.load_from_fp(Bounded(io.BytesIO(block)))
            exif.tobytes()
    except TooMuchError:
        raise
    except Exception:  # Pillow raises what its parser and writer happen to raise
        image.info["exif"] = b""


def _check_chunks(file: BinaryIO) -> None:
    """Raise TooMuchError if a WebP's chunks of a profile, EXIF, XMP or of unknown kinds are too large together."""
    total = 0
    file.seek(12)
    while len(head := file.read(8)) == 8:
        kind, size = struct.unpack("<4sL", head)
        total += COUNTED_PER_READ + (0 if kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF") else size)
        if total > MOST_METADATA:
            raise TooMuchError
        file.seek(size + size % 2, io.SEEK_CUR)
