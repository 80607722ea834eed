"""Which formats of image files are read and written, by their suffixes, and what each can hold."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A format that is read.

    Args:
        suffixes: of its files, the usual one first.
        is_written: whether images are written in it, too.
        has_alpha: whether what is written may be transparent.
        bits: the most that a sample is written with.
    """

    suffixes: tuple[str, ...]
    is_written: bool = True
    has_alpha: bool = True
    bits: int = 8


KINDS = {  # by Pillow's names
    "PNG": Kind((".png",), bits=16),
    "JPEG": Kind((".jpg", ".jpeg", ".jpe", ".jfif", ".jif"), has_alpha=False),
    "TIFF": Kind((".tif", ".tiff"), bits=16),
    "WEBP": Kind((".webp",)),
    "BMP": Kind((".bmp", ".dib"), has_alpha=False),
    "PPM": Kind((".ppm", ".pgm", ".pbm", ".pnm"), is_written=False),
    "AVIF": Kind((".avif",)),
    "HEIF": Kind((".heic", ".heif", ".hif")),
}
NAME_OF = {suffix: name for name, kind in KINDS.items() for suffix in kind.suffixes}
READ_SUFFIXES = set(NAME_OF)
WRITTEN_SUFFIXES = {suffix for suffix, name in NAME_OF.items() if KINDS[name].is_written}
SUFFIXES_OF_16_BITS = {suffix for suffix, name in NAME_OF.items() if KINDS[name].bits == 16}

RAW_SUFFIXES = {".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".kdc", ".mef", ".mos"}
RAW_SUFFIXES |= {".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"}
# Formats that are not read, and named as such.
REFUSED_SUFFIXES = RAW_SUFFIXES | {".apng", ".avifs", ".eps", ".exr", ".gif", ".hdr", ".heics", ".ico", ".j2k", ".jp2"}
REFUSED_SUFFIXES |= {".jxl", ".jxr", ".mpo", ".pcx", ".psd", ".qoi", ".svg", ".tga", ".wdp", ".xcf"}
NO_SUFFIX = "without the suffix of an image"
ADVICE = dict.fromkeys(RAW_SUFFIXES, "RAW is not read: export it as TIFF or 16-bit PNG") | {
    ".gif": "GIF is not read: save its first frame as PNG",
    ".jxl": "JPEG XL is not read: convert it to PNG",
    ".mpo": "in folders MPO is not read: give its name, and its first image is restored",
    NO_SUFFIX: "in folders files are found by their suffix: name each, or rename it as photo.jpg",
}


def usual_suffix(suffix: str) -> str:
    """The first suffix of the format: .jpg for .jfif. One that is not known is returned itself."""
    return KINDS[NAME_OF[suffix]].suffixes[0] if suffix in NAME_OF else suffix


def skipped_in_words(counts: Mapping[str, int]) -> list[str]:
    """A line for each kind of image that is passed over, of their numbers by suffix or NO_SUFFIX."""
    return [
        f"skipped {count} {kind}, {ADVICE.get(kind, 'a format that is not read')}"
        for kind, count in sorted(counts.items())
    ]
