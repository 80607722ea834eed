"""How a file says which colours its numbers are, other than by an ICC profile.

PNG says it by the chunks cICP, gAMA and cHRM, HEIF and AVIF by the box nclx. Its code points are those of ITU-T H.273.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import imagecodecs
import numpy as np
from PIL import PngImagePlugin

# By code point: x and y of white, red, green and blue.
D65 = 0.3127, 0.329
PRIMARIES = {
    1: (*D65, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06),  # BT.709, sRGB
    4: (0.31, 0.316, 0.67, 0.33, 0.21, 0.71, 0.14, 0.08),
    5: (*D65, 0.64, 0.33, 0.29, 0.60, 0.15, 0.06),
    6: (*D65, 0.63, 0.34, 0.31, 0.595, 0.155, 0.07),
    7: (*D65, 0.63, 0.34, 0.31, 0.595, 0.155, 0.07),
    9: (*D65, 0.708, 0.292, 0.17, 0.797, 0.131, 0.046),  # BT.2020
    11: (0.314, 0.351, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06),  # DCI P3
    12: (*D65, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06),  # Display P3
    22: (*D65, 0.63, 0.34, 0.295, 0.605, 0.155, 0.077),
}
GAMMAS = {4: 2.2, 5: 2.8, 8: 1.0}  # transfer functions that are powers
VIDEO = (1, 6, 14, 15)  # those of BT.709 and of BT.2020
SRGB = 13
HDR = {16: "PQ", 18: "HLG"}
PLAIN = 1, SRGB
UNSPECIFIED = 2
CURVE = 1024  # entries of a profile's curve
TOLD = (b"cICP", b"gAMA", b"cHRM", b"sRGB")  # PNG's chunks
MOST_OF_CHUNK = 64  # bytes of one of these
MOST_OF_BOX = 1 << 25  # bytes of HEIF's and AVIF's box meta


@dataclass(frozen=True)
class Colour:
    """What an image's numbers stand for.

    Args:
        codes: code points of the primaries and of the transfer function, or None if none fit.
        primaries: x and y of white, red, green and blue, or None if they are not known.
        gamma: exponent of the transfer function, if it is a power and `codes` do not say it.
        chunks: kinds and contents of the PNG chunks that say it.
    """

    codes: tuple[int, int] | None
    primaries: tuple[float, ...] | None
    gamma: float | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is sRGB, which is what an image has that says nothing."""
        return self.codes == PLAIN

    @property
    def hdr(self) -> str | None:
        """The name of the transfer function, if it is of high dynamic range."""
        return HDR.get(self.codes[1]) if self.codes else None

    def png(self) -> tuple[tuple[bytes, bytes], ...]:
        """The chunks of a PNG that say it."""
        if self.chunks or self.is_plain:
            return self.chunks
        return ((b"cICP", bytes([*self.codes, 0, 1])),)

    def profile(self, grey: bool) -> bytes | None:
        """An ICC profile that says it; None if there is none: of HDR, or of codes that are not known."""
        curve = self._curve()
        if curve is None or self.primaries is None:
            return None
        white, colours = self.primaries[:2], np.reshape(self.primaries[2:], (3, 2))
        given = {"gamma": curve} if isinstance(curve, float) else {"transferfunction": curve}
        if not grey:
            given["primaries"] = [value for x, y in colours.tolist() for value in (x, y, 1.0)]
        return imagecodecs.cms_profile("gray" if grey else "rgb", whitepoint=[*white, 1.0], **given)

    def _curve(self) -> float | np.ndarray | None:
        """The transfer function, from a stored number to light: an exponent, or its values as uint16."""
        if self.codes is None:
            return self.gamma
        transfer, x = self.codes[1], np.linspace(0, 1, CURVE)
        if transfer in GAMMAS:
            return GAMMAS[transfer]
        if transfer == SRGB:
            light = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
        elif transfer in VIDEO:
            light = np.where(x < 0.081, x / 4.5, ((x + 0.099) / 1.099) ** (1 / 0.45))
        else:
            return None
        return np.rint(65535 * light).astype(np.uint16)


def of_codes(primaries: int, transfer: int, chunks: tuple[tuple[bytes, bytes], ...] = ()) -> Colour:
    """The colour of two code points; one that is unspecified is sRGB's."""
    primaries = 1 if primaries == UNSPECIFIED else primaries
    transfer = SRGB if transfer == UNSPECIFIED else transfer
    return Colour((primaries, transfer), PRIMARIES.get(primaries), chunks=chunks)


def of_png(path: Path) -> Colour | None:
    """What the chunks of a PNG say; None: nothing. The profile of one that has both does not count, it has said."""
    chunks = _chunks(path)
    found = tuple((kind, chunks[kind]) for kind in TOLD if kind in chunks)
    if len(chunks.get(b"cICP", b"")) == 4:
        return of_codes(*chunks[b"cICP"][:2], found)
    if b"sRGB" in chunks:
        return Colour(PLAIN, PRIMARIES[1], chunks=found)
    if not found or len(chunks.get(b"gAMA", bytes(4))) != 4 or len(chunks.get(b"cHRM", bytes(32))) != 32:
        return None
    primaries = PRIMARIES[1]
    if b"cHRM" in chunks:
        primaries = tuple(value / 1e5 for value in struct.unpack(">8I", chunks[b"cHRM"]))
    stored = struct.unpack(">I", chunks[b"gAMA"])[0] / 1e5 if b"gAMA" in chunks else 0.0
    return _of_numbers(primaries, 1 / stored if stored else None, found)


def _of_numbers(
    primaries: tuple[float, ...], gamma: float | None, chunks: tuple[tuple[bytes, bytes], ...]
) -> Colour | None:
    """The colour of chromaticities and of an exponent; 2.2 with sRGB's primaries is how PNG files write sRGB."""
    code = next((code for code, known in PRIMARIES.items() if np.allclose(known, primaries, atol=1e-3)), None)
    if code == 1 and (gamma is None or abs(gamma - 2.2) < 0.01):
        return Colour(PLAIN, PRIMARIES[1], chunks=chunks)
    if gamma is None:
        transfer = SRGB
    else:
        transfer = next((transfer for transfer, known in GAMMAS.items() if abs(known - gamma) < 0.01), None)
    if code is not None and transfer is not None:
        return Colour((code, transfer), primaries, chunks=chunks)
    return Colour(None, primaries, 2.2 if gamma is None else gamma, chunks)


def _chunks(path: Path) -> dict[bytes, bytes]:
    """The chunks TOLD before a PNG's pixels."""
    found = {}
    with open(path, "rb") as file:
        file.seek(8)
        stream = PngImagePlugin.ChunkStream(file)
        while True:
            kind, start, length = stream.read()
            if kind in (b"IDAT", b"IEND"):
                return found
            if kind in TOLD and length <= MOST_OF_CHUNK:
                found[kind] = file.read(length)
            file.seek(start + length + 4)  # and its checksum


def of_boxes(path: Path) -> Colour | None:
    """What the first box nclx of a HEIF or AVIF file says; None if it has none. libheif and libavif do not tell it."""
    with open(path, "rb") as file:
        meta = _box(file, b"meta", path.stat().st_size)
    properties = _inner(_inner(meta[4:], b"iprp"), b"ipco")
    for kind, content in _boxes(properties):
        if kind == b"colr" and content[:4] == b"nclx" and len(content) >= 8:
            return of_codes(*struct.unpack_from(">2H", content, 4))
    return None


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
            return file.read(min(size - head, MOST_OF_BOX))
        at += size
    return b""


def _boxes(content: bytes) -> list[tuple[bytes, bytes]]:
    """The kinds and contents of boxes one after another."""
    found, at = [], 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        if size < 8:
            break
        found.append((kind, content[at + 8 : at + size]))
        at += size
    return found


def _inner(content: bytes, wanted: bytes) -> bytes:
    return next((inner for kind, inner in _boxes(content) if kind == wanted), b"")


def with_codes(avif: bytes, colour: Colour) -> bytes:
    """An AVIF file as Pillow writes it, which says sRGB, with other code points in its box nclx."""
    before = b"colrnclx" + struct.pack(">2H", *PLAIN)
    return avif.replace(before, b"colrnclx" + struct.pack(">2H", *colour.codes), 1)
