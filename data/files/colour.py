"""Which colours a file's numbers are: two code points of ITU-T H.273, or an ICC profile; neither is sRGB.

HEIF and AVIF say code points by the box nclx, PNG by the chunk cICP. What PNG says by gAMA and cHRM, BMP by its header
and TIFF by tags becomes a profile.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image, ImageCms, PngImagePlugin

Codes = tuple[int, int]  # of the primaries and of the transfer function
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


def codes_of(primaries: int, transfer: int) -> Codes | None:
    """Code points, of which one that is unspecified is sRGB's; None for those of sRGB."""
    codes = 1 if primaries == UNSPECIFIED else primaries, SRGB_TRANSFER if transfer == UNSPECIFIED else transfer
    return None if codes == SRGB_CODES else codes


def hdr_of(codes: Codes | None) -> str | None:
    """The name of the transfer function, if it is of high dynamic range."""
    return HDR_TRANSFERS.get(codes[1]) if codes else None


def profile_of_codes(codes: Codes, grey: bool) -> bytes | None:
    """An ICC profile that says the same; None if there is none: of HDR, or of codes that are not known."""
    primaries, transfer = codes
    x = np.linspace(0, 1, CURVE_ENTRIES)
    if transfer in EXPONENTS:
        curve = EXPONENTS[transfer]
    elif transfer == SRGB_TRANSFER:
        curve = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    elif transfer in VIDEO_TRANSFERS:
        curve = np.where(x < 0.081, x / 4.5, ((x + 0.099) / 1.099) ** (1 / 0.45))
    else:
        return None
    return _profile(PRIMARIES[primaries], curve, grey) if primaries in PRIMARIES else None


def _profile(primaries: Sequence[float], curve: float | np.ndarray, grey: bool) -> bytes | None:
    """An ICC profile of chromaticities and of light by stored numbers: an exponent, or values in [0, 1].

    None for chromaticities that are no colours, and for sRGB's with the exponent 2.2, by which files write sRGB.
    """
    if len(primaries) != 8 or not 0 < min(primaries) <= max(primaries) < 1:
        return None
    is_power = isinstance(curve, float)
    if is_power and abs(curve - 2.2) < 0.01 and np.allclose(primaries, PRIMARIES[1], atol=1e-3):
        return None
    given = {"gamma": curve} if is_power else {"transferfunction": np.rint(65535 * curve).astype(np.uint16)}
    if not grey:
        given["primaries"] = [value for x, y in np.reshape(primaries[2:], (3, 2)).tolist() for value in (x, y, 1.0)]
    try:
        return imagecodecs.cms_profile("gray" if grey else "rgb", whitepoint=[*primaries[:2], 1.0], **given)
    except imagecodecs.CmsError:  # of primaries that span no colours
        return None


def of_png(path: Path, icc: bytes | None, grey: bool) -> tuple[Codes | None, bytes | None]:
    """What the chunks of a PNG say: code points first, then its own profile, then one of its other chunks."""
    chunks = _chunks(path)
    if len(chunks.get(b"cICP", b"")) == 4:
        return codes_of(*chunks[b"cICP"][:2]), None
    if icc is not None or b"sRGB" in chunks or not chunks:
        return None, icc
    if len(chunks.get(b"gAMA", bytes(4))) != 4 or len(chunks.get(b"cHRM", bytes(32))) != 32:
        return None, None
    primaries = PRIMARIES[1]
    if b"cHRM" in chunks:
        primaries = tuple(value / 1e5 for value in struct.unpack(">8I", chunks[b"cHRM"]))
    exponent = int.from_bytes(chunks.get(b"gAMA", b""), "big") / 1e5
    return None, _profile(primaries, 1 / exponent if exponent else 2.2, grey)


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


def of_bmp(path: Path, grey: bool) -> tuple[bytes | None, tuple[str, ...]]:
    """The profile of a BMP's header (BITMAPV4HEADER, BITMAPV5HEADER), or one of its colours there; and remarks."""
    with open(path, "rb") as file:
        file.seek(BMP_HEADER)
        head = file.read(124)
        size = int.from_bytes(head[:4], "little")
        if size < 108 or len(head) < size:
            return None, ()
        kind = head[56:60][::-1]
        if kind == b"MBED" and size == 124:
            start, length = struct.unpack_from("<2I", head, 112)
            file.seek(BMP_HEADER + start)
            return file.read(min(length, MOST_PROFILE_BYTES)) or None, ()
    if kind == b"LINK":
        return None, (LINKED_PROFILE,)
    if kind != bytes(4):  # sRGB, or the system's colours, which are sRGB
        return None, ()
    ends = np.frombuffer(head, "<i4", 9, 60).reshape(3, 3) / 2**30  # X, Y and Z of red, green and blue
    gammas = np.frombuffer(head, "<u4", 3, 96) / 2**16
    points = np.array([ends.sum(0), *ends])  # white, and these
    sums = points.sum(1, keepdims=True)
    if (sums <= 0).any() or (gammas <= 0).any():
        return None, ()
    gamma = float(gammas.mean())
    gamma = 1 / gamma if gamma < 1 else gamma  # some programs write that of the other direction
    return _profile((points / sums)[:, :2].ravel().tolist(), gamma, grey), ()


def of_tiff(
    white: Sequence[float] | None, colours: Sequence[float] | None, table: np.ndarray | None, grey: bool
) -> bytes | None:
    """A profile of a TIFF's tags WhitePoint, PrimaryChromaticities and TransferFunction; None if it has none of them.

    Of three tables green's is taken. Without a table the exponent is 2.2 (TIFF 6.0, section 20).
    """
    if white is None and colours is None and table is None:
        return None
    curve = 2.2
    if table is not None:
        curve = (np.split(table, 3)[1] if len(table) % 3 == 0 else table) / 65535
    return _profile((*(white or D65), *(colours or PRIMARIES[1][2:])), curve, grey)


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An image whose colours are those of a profile, in sRGB."""
    try:
        return ImageCms.profileToProfile(image, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB")
    except ImageCms.PyCMSError:  # of a profile that does not fit, for which there is no conversion
        return image


def with_codes(avif: bytes, codes: Codes) -> bytes:
    """An AVIF file as Pillow writes it, which says sRGB, with other code points in its box nclx."""
    before = b"colrnclx" + struct.pack(">2H", *SRGB_CODES)
    return avif.replace(before, b"colrnclx" + struct.pack(">2H", *codes), 1)
