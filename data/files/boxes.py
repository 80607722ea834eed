"""The properties of a HEIF or AVIF file's primary image, of which Pillow tells few (ISO/IEC 14496-12 and 23008-12)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

MOST_BOX_BYTES = 1 << 25  # bytes of the box meta
VERSION_AND_FLAGS = 4  # bytes of version and flags, with which some boxes begin


def properties(path: Path) -> list[tuple[bytes, bytes]]:
    """Kinds and contents of the properties of the primary image, in their order; all of the file if it names none.

    A file may hold more images, such as a gain map or transparency, whose properties are their own.
    """
    with open(path, "rb") as file:
        meta = _box(file, b"meta", path.stat().st_size)[VERSION_AND_FLAGS:]
    container = _inner(meta, b"iprp")
    every = _boxes(_inner(container, b"ipco"))
    numbers = _associated(_inner(container, b"ipma"), _primary(_inner(meta, b"pitm")))
    return [every[at - 1] for at in numbers if 0 < at <= len(every)] or every


def bits_of(path: Path) -> int:
    """Bits of a sample of the primary image; 8 if the file does not say."""
    told = dict(reversed(properties(path)))  # of several properties of a kind the first counts
    if len(pixels := told.get(b"pixi", b"")) > VERSION_AND_FLAGS + 1:
        return pixels[VERSION_AND_FLAGS + 1]
    if len(coding := told.get(b"av1C", b"")) > 2:
        return 8 + 2 * (coding[2] >> 6 & 1) * (1 + (coding[2] >> 5 & 1))  # its flags high_bitdepth and twelve_bit
    return 8


def _primary(pitm: bytes) -> int | None:
    """The number of the primary image."""
    wide = pitm[:1] > b"\0"
    return (
        int.from_bytes(pitm[VERSION_AND_FLAGS : VERSION_AND_FLAGS + (4 if wide else 2)], "big")
        if len(pitm) >= VERSION_AND_FLAGS + 2
        else None
    )


def _associated(ipma: bytes, image: int | None) -> list[int]:
    """The numbers of an image's properties, from 1."""
    if image is None or len(ipma) < VERSION_AND_FLAGS + 4:
        return []
    item, number = ("I" if ipma[0] else "H"), ("H" if ipma[3] & 1 else "B")
    essential = 1 << (8 * struct.calcsize(number) - 1)  # a flag beside the number
    count, at = struct.unpack_from(">I", ipma, VERSION_AND_FLAGS)[0], VERSION_AND_FLAGS + 4
    head = struct.Struct(f">{item}B")
    for _ in range(count):
        if at + head.size > len(ipma):
            break
        owner, length = head.unpack_from(ipma, at)
        at += head.size
        content = ipma[at : at + length * struct.calcsize(number)]
        at += length * struct.calcsize(number)
        if owner == image:
            return [value[0] & ~essential for value in struct.iter_unpack(f">{number}", content[: len(content)])]
    return []


def _box(file: BinaryIO, wanted: bytes, end: int) -> bytes:
    """The content of a file's box; empty if there is none."""
    at = 0
    while at + 8 <= end:
        file.seek(at)
        size, kind = struct.unpack(">I4s", file.read(8))
        head = 8
        if size == 1:
            size = int.from_bytes(file.read(8), "big")
            head = 16
        if size == 0:
            size = end - at
        if size < head:
            break
        if kind == wanted:
            return file.read(min(size - head, MOST_BOX_BYTES))
        at += size
    return b""


def _boxes(content: bytes) -> list[tuple[bytes, bytes]]:
    """The kinds and contents of boxes one after another."""
    boxes, at = [], 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        if size < 8:
            break
        boxes.append((kind, content[at + 8 : at + size]))
        at += size
    return boxes


def _inner(content: bytes, wanted: bytes) -> bytes:
    return next((inner for kind, inner in _boxes(content) if kind == wanted), b"")
