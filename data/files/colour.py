"""How a file says which colours its numbers are, other than by an ICC profile.

PNG says it by the chunks cICP, gAMA and cHRM, HEIF and AVIF by the box nclx, BMP by its header, TIFF by tags. Code
points are those of ITU-T H.273.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image, ImageCms, PngImagePlugin

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
EXPONENTS = {4: 2.2, 5: 2.8, 8: 1.0}  # transfer functions that are powers
VIDEO_TRANSFERS = (1, 6, 14, 15)  # those of BT.709 and of BT.2020
SRGB_TRANSFER = 13
HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
SRGB_CODES = 1, SRGB_TRANSFER
UNSPECIFIED = 2
CURVE_ENTRIES = 1024  # entries of a profile's curve
COLOUR_CHUNKS = (b"cICP", b"gAMA", b"cHRM", b"sRGB")  # PNG's chunks
MOST_CHUNK_BYTES = 64  # bytes of one of these
MOST_PROFILE_BYTES = 1 << 25  # bytes of a BMP's
BMP_HEADER = 14  # bytes of a BMP before the header that says its colours
LINKED_PROFILE = "names another file for its colour profile, which is not read"  # a remark


@dataclass(frozen=True)
class Colour:
    """What an image's numbers stand for.

    Args:
        codes: code points of the primaries and of the transfer function, or None if none fit.
        primaries: x and y of white, red, green and blue, or None if they are not known.
        gamma: exponent of the transfer function, if it is a power and `codes` do not say it.
        chunks: kinds and contents of the PNG chunks that say it.
        table: CURVE_ENTRIES values of the transfer function, up to 65535, if neither `codes` nor an exponent say it.
    """

    codes: tuple[int, int] | None
    primaries: tuple[float, ...] | None
    gamma: float | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    table: tuple[int, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is sRGB, which is what an image has that says nothing."""
        return self.codes == SRGB_CODES

    @property
    def hdr(self) -> str | None:
        """The name of the transfer function, if it is of high dynamic range."""
        return HDR_TRANSFERS.get(self.codes[1]) if self.codes else None

    def png(self) -> tuple[tuple[bytes, bytes], ...]:
        """The chunks of a PNG that say it; none if a profile must."""
        if self.chunks or self.is_plain or self.codes is None:
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
            return self.gamma if self.table is None else np.array(self.table, np.uint16)
        if self.codes[1] in EXPONENTS:
            return EXPONENTS[self.codes[1]]
        light = self._light(np.linspace(0, 1, CURVE_ENTRIES))
        return None if light is None else np.rint(65535 * light).astype(np.uint16)

    def _light(self, x: np.ndarray) -> np.ndarray | None:
        """The light of stored numbers in [0, 1], by the code point; None if it is not known."""
        transfer = self.codes[1]
        if transfer in EXPONENTS:
            return x ** EXPONENTS[transfer]
        if transfer == SRGB_TRANSFER:
            return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
        if transfer in VIDEO_TRANSFERS:
            return np.where(x < 0.081, x / 4.5, ((x + 0.099) / 1.099) ** (1 / 0.45))
        return None


def of_codes(primaries: int, transfer: int, chunks: tuple[tuple[bytes, bytes], ...] = ()) -> Colour:
    """The colour of two code points; one that is unspecified is sRGB's."""
    primaries = 1 if primaries == UNSPECIFIED else primaries
    transfer = SRGB_TRANSFER if transfer == UNSPECIFIED else transfer
    return Colour((primaries, transfer), PRIMARIES.get(primaries), chunks=chunks)


def of_png(path: Path) -> Colour | None:
    """What the chunks of a PNG say; None: nothing. The profile of one that has both does not count, it has said."""
    chunks = _chunks(path)
    colour_chunks = tuple((kind, chunks[kind]) for kind in COLOUR_CHUNKS if kind in chunks)
    if len(chunks.get(b"cICP", b"")) == 4:
        return of_codes(*chunks[b"cICP"][:2], colour_chunks)
    if b"sRGB" in chunks:
        return Colour(SRGB_CODES, PRIMARIES[1], chunks=colour_chunks)
    if not colour_chunks or len(chunks.get(b"gAMA", bytes(4))) != 4 or len(chunks.get(b"cHRM", bytes(32))) != 32:
        return None
    primaries = PRIMARIES[1]
    if b"cHRM" in chunks:
        primaries = tuple(value / 1e5 for value in struct.unpack(">8I", chunks[b"cHRM"]))
    stored = struct.unpack(">I", chunks[b"gAMA"])[0] / 1e5 if b"gAMA" in chunks else 0.0
    return _of_numbers(primaries, 1 / stored if stored else None, colour_chunks)


def _of_numbers(
    primaries: tuple[float, ...], gamma: float | None, chunks: tuple[tuple[bytes, bytes], ...]
) -> Colour | None:
    """The colour of chromaticities and of an exponent; 2.2 with sRGB's primaries is how PNG files write sRGB."""
    code = _code_of(primaries)
    if code == 1 and (gamma is None or abs(gamma - 2.2) < 0.01):
        return Colour(SRGB_CODES, PRIMARIES[1], chunks=chunks)
    if gamma is None:
        transfer = SRGB_TRANSFER
    else:
        transfer = next((transfer for transfer, exponent in EXPONENTS.items() if abs(exponent - gamma) < 0.01), None)
    if code is not None and transfer is not None:
        return Colour((code, transfer), primaries, chunks=chunks)
    return Colour(None, primaries, 2.2 if gamma is None else gamma, chunks)


def _code_of(primaries: tuple[float, ...]) -> int | None:
    """The code point of chromaticities, if they have one."""
    return next(
        (code for code, chromaticities in PRIMARIES.items() if np.allclose(chromaticities, primaries, atol=1e-3)), None
    )


def _chunks(path: Path) -> dict[bytes, bytes]:
    """The chunks COLOUR_CHUNKS before a PNG's pixels."""
    chunks = {}
    with open(path, "rb") as file:
        file.seek(8)
        stream = PngImagePlugin.ChunkStream(file)
        while True:
            kind, start, length = stream.read()
            if kind in (b"IDAT", b"IEND"):
                return chunks
            if kind in COLOUR_CHUNKS and length <= MOST_CHUNK_BYTES:
                chunks[kind] = file.read(length)
            file.seek(start + length + 4)  # and its checksum


def of_bmp(path: Path) -> tuple[Colour | None, bytes | None, tuple[str, ...]]:
    """The colour, or else the profile, of a BMP's header (BITMAPV4HEADER, BITMAPV5HEADER); and remarks."""
    with open(path, "rb") as file:
        file.seek(BMP_HEADER)
        head = file.read(124)
        size = int.from_bytes(head[:4], "little")
        if size < 108 or len(head) < size:
            return None, None, ()
        kind = head[56:60][::-1]
        if kind == b"MBED" and size == 124:
            start, length = struct.unpack_from("<2I", head, 112)
            file.seek(BMP_HEADER + start)
            return None, file.read(min(length, MOST_PROFILE_BYTES)) or None, ()
    if kind == b"LINK":
        return None, None, (LINKED_PROFILE,)
    if kind != bytes(4):  # sRGB, or the system's colours, which are sRGB
        return None, None, ()
    ends = np.frombuffer(head, "<i4", 9, 60).reshape(3, 3) / 2**30  # X, Y and Z of red, green and blue
    gammas = np.frombuffer(head, "<u4", 3, 96) / 2**16
    points = np.array([ends.sum(0), *ends])  # white, and these
    sums = points.sum(1, keepdims=True)
    if (sums <= 0).any() or (gammas <= 0).any():
        return None, None, ()
    gamma = float(gammas.mean())
    gamma = 1 / gamma if gamma < 1 else gamma  # some programs write that of the other direction
    return _of_numbers(tuple((points / sums)[:, :2].ravel().tolist()), gamma, ()), None, ()


def of_tiff(white: Sequence[float] | None, colours: Sequence[float] | None, table: np.ndarray | None) -> Colour | None:
    """What a TIFF's tags WhitePoint, PrimaryChromaticities and TransferFunction say; None if it has none of them.

    Of three tables green's is taken. Without a table the exponent is 2.2 (TIFF 6.0, section 20).
    """
    if white is None and colours is None and table is None:
        return None
    plain = PRIMARIES[1]
    primaries = (*(white or plain[:2]), *(colours or plain[2:]))
    if len(primaries) != 8 or not 0 < min(primaries) <= max(primaries) < 1:
        return None
    if table is None:
        return _of_numbers(primaries, 2.2, ())
    size, is_triple = (len(table) // 3, True) if len(table) % 3 == 0 else (len(table), False)
    if size < 2:
        return None
    light = np.asarray(table[size : 2 * size] if is_triple else table, np.float64) / 65535
    return _of_table(primaries, np.interp(np.linspace(0, 1, CURVE_ENTRIES), np.linspace(0, 1, size), light))


def _of_table(primaries: tuple[float, ...], light: np.ndarray) -> Colour:
    """The colour of chromaticities and of a transfer function by its values."""
    code = _code_of(primaries)
    for transfer in (SRGB_TRANSFER, *EXPONENTS, 1):
        curve = Colour((1, transfer), PRIMARIES[1])._light(np.linspace(0, 1, CURVE_ENTRIES))
        if code is not None and np.abs(curve - light).max() < 0.003:
            return Colour((code, transfer), primaries)
    return Colour(None, primaries, table=tuple(np.rint(65535 * light).astype(int).tolist()))


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An image whose colours are those of a profile, in sRGB."""
    try:
        return ImageCms.profileToProfile(image, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB")
    except ImageCms.PyCMSError:  # of a profile that does not fit, for which there is no conversion
        return image


def with_codes(avif: bytes, colour: Colour) -> bytes:
    """An AVIF file as Pillow writes it, which says sRGB, with other code points in its box nclx."""
    before = b"colrnclx" + struct.pack(">2H", *SRGB_CODES)
    return avif.replace(before, b"colrnclx" + struct.pack(">2H", *colour.codes), 1)
