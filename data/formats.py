"""Open image files: which formats, recognised by their content, and how much of a file may be read.

Every file that the program opens as an image goes through `opened`. Formats whose decoders start other programs
(PostScript) or are rarely used are refused, and what a file holds besides its pixels is bounded.
"""

import io
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image
from PIL.JpegImagePlugin import MARKER

from data.search import HEIF, READ, WRITABLE, ImageError

if WRITABLE & HEIF:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)

MOST_PIXELS = 2 * Image.MAX_IMAGE_PIXELS  # Pillow's limit too: 179 million
MOST_METADATA = 1 << 25  # bytes, of all that a file holds besides its pixels
# Bytes read before the size is known: Pillow reads some formats wholly.
MOST_HEADER = {"PPM": 1 << 20} | dict.fromkeys(("WEBP", "AVIF", "HEIF"), 1 << 29)
CALL = 64  # bytes that a call of read counts in addition, so that many empty chunks are bounded, too
VALUE_SIZES = dict(zip(range(1, 19), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8), strict=True))  # of TIFF
SUB_DIRECTORIES = (0x8769, 0x8825, 0xA005)  # of EXIF: camera settings, GPS, interoperability


class TooMuchError(ValueError):
    """A file holds more besides its pixels than is read."""

    def __init__(self):
        super().__init__(f"it holds more than {MOST_METADATA >> 20} MiB besides its pixels")


class _Bounded(io.BufferedReader):
    """A file of which only `left` bytes can be read."""

    left = MOST_METADATA

    def read(self, size: int | None = -1) -> bytes:
        whole, most = size is None or size < 0, min(self.left, os.fstat(self.fileno()).st_size) + 1
        content = super().read(most if whole else min(size, most))
        self.left -= len(content) + (0 if whole else CALL)
        if self.left < 0:
            raise TooMuchError
        return content


def format_of(path: Path) -> str:
    """The format of a file by its content, one of READ. ImageError if it is another."""
    with open(path, "rb") as file:
        head = file.read(16)
    Image.init()
    for name in READ:
        if _accepts(name, head):
            return name
    if head[4:8] == b"ftyp" and head[8:11] in (b"hei", b"hev", b"mif", b"msf"):
        raise ImageError(f"{path} is a HEIF image: to read those, pip install pillow-heif.")
    raise ImageError(f"{path} is not an image of a known format: save it as PNG, JPEG or TIFF.")


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A file as Pillow's image, of which only the header is read yet.

    Raises:
        ImageError: the format is not read, or the image has more than MOST_PIXELS.
        TooMuchError, OSError, SyntaxError and other errors of Pillow's decoders: it cannot be read.
    """
    name = format_of(path)
    with open(path, "rb", buffering=0) as raw, _Bounded(raw) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fault of the file is reported once, by the error
        if name == "TIFF":
            check_tags(file)
        elif name == "JPEG":
            check_tags(io.BytesIO(_exif_of_jpeg(file)))
        elif name == "WEBP":
            _check_chunks(raw)
        file.seek(0)
        file.left = MOST_HEADER.get(name, MOST_METADATA)
        try:
            image = Image.open(file, formats=[name, *({"AVIF": ["HEIF"]}.get(name, []))])
        except Image.DecompressionBombError as error:
            raise ImageError(f"{path} is too large, it may be a decompression bomb: {error}") from None
        with image:
            if sum(len(value) for value in image.info.values() if isinstance(value, bytes)) > MOST_METADATA:
                raise TooMuchError
            file.left = 16 * image.width * image.height + MOST_METADATA  # the most that a plain PPM has
            yield image


def exif_of(image: Image.Image) -> Image.Exif:
    """The EXIF of an opened image; TooMuchError as in `check_tags`."""
    if image.format == "PNG":
        image.load()  # it may follow the pixels
        text = image.info.pop("Raw profile type exif", None)  # of ImageMagick; Pillow would parse it without a limit
        if text and "exif" not in image.info:
            image.info["exif"] = bytes.fromhex("".join(text.split("\n")[3:]))
    check_tags(io.BytesIO((image.info.get("exif") or b"").removeprefix(b"Exif\0\0")))
    return image.getexif()


def check_size(path: Path, size: tuple[int, int]) -> None:
    """Raise ImageError if an image of this width and height is larger than MOST_PIXELS."""
    width, height = size
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"{path} is too large, it may be a decompression bomb: {width} x {height} pixels, more than {MOST_PIXELS}."
        )


def check_tags(file: BinaryIO) -> bool:
    """Whether a TIFF file, or a block of EXIF, has a second image.

    Raises:
        TooMuchError: the values of the first image's tags have more than MOST_METADATA bytes. Values may overlap, so
            that a small block can stand for many.
    """
    file.seek(0)
    head = file.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if order is None or len(head) < 8:
        return False
    big = head[2:4] in (b"+\0", b"\0+")
    counted, entry, pointer = (order + form for form in (("Q", "HHQQ", "Q") if big else ("H", "HHLL", "L")))
    todo = [struct.unpack_from(pointer, head, 8 if big else 4)[0]]
    seen, total, following = set(todo), 0, None
    while todo:
        file.seek(todo.pop())
        for _ in range(_number(file, counted)):
            content = file.read(struct.calcsize(entry))
            if len(content) < struct.calcsize(entry):
                break
            tag, kind, count, value = struct.unpack(entry, content)
            total += CALL + VALUE_SIZES.get(kind, 0) * count
            if total > MOST_METADATA:
                raise TooMuchError
            if tag in SUB_DIRECTORIES and value not in seen:
                seen.add(value)
                todo.append(value)
        following = _number(file, pointer) if following is None else following
    return following > 0


def _accepts(name: str, head: bytes) -> bool:
    accept = Image.OPEN.get(name, (None, None))[1]
    try:
        return accept is not None and accept(head) is True
    except (SyntaxError, IndexError, TypeError, struct.error):  # as in Image.open
        return False


def _number(file: BinaryIO, form: str) -> int:
    content = file.read(struct.calcsize(form))
    return struct.unpack(form, content)[0] if len(content) == struct.calcsize(form) else 0


def _exif_of_jpeg(file: BinaryIO) -> bytes:
    """The EXIF block of a JPEG, found as Pillow finds it, which parses it as soon as it opens the file."""
    exif, code = b"", b"\xff"
    file.seek(3)
    while code:
        if code != b"\xff":
            code = file.read(1)
            continue
        marker = 0xFF00 | int.from_bytes(file.read(1), "big")
        if marker == 0xFFFF:
            continue
        if marker in MARKER and MARKER[marker][2] is not None:
            content = file.read(max(2, _number(file, ">H")) - 2)
            if marker == 0xFFE1 and content.startswith(b"Exif\0\0"):
                exif += content[6:]
        if marker == 0xFFDA:
            break
        code = file.read(1)
    return exif


def _check_chunks(file: BinaryIO) -> None:
    """Raise TooMuchError if a WebP's chunks of a profile, EXIF, XMP or of unknown kinds are too large together."""
    total = 0
    file.seek(12)
    while len(head := file.read(8)) == 8:
        kind, size = struct.unpack("<4sL", head)
        total += CALL + (0 if kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF") else size)
        if total > MOST_METADATA:
            raise TooMuchError
        file.seek(size + size % 2, io.SEEK_CUR)
