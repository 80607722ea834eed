"""Which metadata a restored image keeps, and what it says about how it was made."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from xml.dom import minidom
from xml.parsers.expat import ExpatError

from PIL import ExifTags, Image

from deblur.data.files.image_file import ImageFile

SOFTWARE = "Predict and refine (image deblurring)"
TELL_DENSITY = {"JPEG", "PNG", "TIFF", "BMP"}  # formats with a field for the density
UNITS_IN_INCHES = {2: 1.0, 3: 2.54}  # units in an inch, of EXIF's ResolutionUnit: inch and centimetre
MOST_PER_INCH = (1 << 16) - 1  # pixels: JPEG's number has 16 bits
MOST_XMP_PARSED = 1 << 20  # bytes of which the parts are taken apart
MOST_JPEG_METADATA = 65_000  # bytes of EXIF or XMP in a JPEG: a segment has 65,533

# Tags of the two axes, which change places when an image is turned.
AXES = {
    None: (("XResolution", "YResolution"), ("ImageWidth", "ImageLength")),
    ExifTags.IFD.Exif: (("FocalPlaneXResolution", "FocalPlaneYResolution"), ("ExifImageWidth", "ExifImageHeight")),
}
XMP_SIZES = ("tiff:ImageWidth", "exif:PixelXDimension"), ("tiff:ImageLength", "exif:PixelYDimension")  # in XMP
# What XMP says about parts of a file that are not written, by the ends of namespaces and the beginnings of names.
ABSENT_PARTS = (
    ("/camera/", ("MotionPhoto", "MicroVideo", "VideoLength", "OLivePhoto"), "the video of a motion photo is left out"),
    ("/hdr-gain-map/1.0/", ("",), "the gain map of an HDR photo is left out"),
    ("/HDRGainMap/1.0/", ("",), "the gain map of an HDR photo is left out"),
    ("/photos/dd/1.0/device/", ("",), "the depth map of a photo is left out"),
    ("/xmp/note/", ("HasExtendedXMP",), "the second part of its XMP is left out"),
    ("/photos/1.0/container/", ("",), "the further parts of its file are left out"),
)
NO_XMP = "has XMP that cannot be read, which is left out"  # a remark

# TIFF tags that describe the photograph, not the layout of the file.
DESCRIBING = """
Make Model DateTime XResolution YResolution ResolutionUnit ImageDescription Software Artist Copyright HostComputer
"""
DESCRIPTIVE = {ExifTags.Base[name] for name in DESCRIBING.split()}
SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/algorithmicallyEnhanced"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
ENHANCED = (
    '<rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"'
    f' Iptc4xmpExt:DigitalSourceType="{SOURCE}"/>'
)
PACKET = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
    f'<rdf:RDF xmlns:rdf="{RDF}">{ENHANCED}</rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
)


def of_restoration(like: ImageFile, policy: Literal["keep", "none"]) -> ImageFile:
    """The input with the metadata of its restoration.

    keep: all EXIF and XMP; none: neither. The colour profile always stays, since the colours depend on it. With keep,
    EXIF names this program as the software, and XMP has IPTC's digital source type "algorithmically enhanced".
    """
    if policy == "none":
        return replace(like, exif=None, xmp=None)
    exif = exif_of(like)
    exif[ExifTags.Base.Software] = SOFTWARE
    return replace(like, exif=exif.tobytes(), xmp=_xmp_of_output(like.xmp))


def too_large(block: bytes | None, name: str) -> bool:
    """Whether a format cannot hold EXIF or XMP of this size: that of a JPEG is limited."""
    return name == "JPEG" and len(block or b"") > MOST_JPEG_METADATA


def fitting(like: ImageFile, name: str, width: int, height: int) -> ImageFile:
    """The metadata as far as a format can hold it, of an image of this size.

    EXIF that is too large is left out, XMP says the least then. The density goes into EXIF where a format has no field
    for it.
    """
    if too_large(like.exif, name):
        like = replace(like, exif=None)
    if too_large(like.xmp, name):
        like = replace(like, xmp=PACKET.encode())
    if like.exif:
        exif = exif_of(like)
        _size(exif, width, height)
        if name not in TELL_DENSITY:
            say_density(exif, like.density)
        like = replace(like, exif=exif.tobytes())
    return replace(like, xmp=like.xmp and _sized_xmp(like.xmp, width, height))


def _axes(exif: Image.Exif) -> Iterator[tuple[MutableMapping[int, Any], tuple[tuple[str, str], ...]]]:
    """Each directory of EXIF that is there, and the names of AXES in it."""
    for directory, pairs in AXES.items():
        if directory is None:
            yield exif, pairs
        elif directory in exif:
            yield exif.get_ifd(directory), pairs


def turn(exif: Image.Exif) -> None:
    """Let EXIF describe the image turned by a quarter: the values of the axes change places."""
    for tags, pairs in _axes(exif):
        for names in pairs:
            one, other = (ExifTags.Base[name] for name in names)
            if one in tags and other in tags:
                tags[one], tags[other] = tags[other], tags[one]


def density_of(told: tuple[float, float] | None, exif: Image.Exif) -> tuple[float, float] | None:
    """Pixels across and down in an inch as a file's own field says or, without one, EXIF or a TIFF's tags."""
    densities = [told] if told else []
    unit = UNITS_IN_INCHES.get(exif.get(ExifTags.Base.ResolutionUnit, 2))
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
        densities.append(tuple(unit * float(exif[ExifTags.Base[name]]) for name in ("XResolution", "YResolution")))
    usable = (density for density in densities if all(0.5 <= value < MOST_PER_INCH for value in density))
    return next(usable, None)


def say_density(exif: Image.Exif, density: tuple[float, float] | None) -> None:
    """Let EXIF, or a TIFF's tags, say a density, if they say none."""
    if density and ExifTags.Base.XResolution not in exif:
        exif[ExifTags.Base.XResolution], exif[ExifTags.Base.YResolution] = density
        exif[ExifTags.Base.ResolutionUnit] = 2


def _size(exif: Image.Exif, width: int, height: int) -> None:
    """Let the tags of the size, where there are any, say it."""
    for tags, pairs in _axes(exif):
        for name, value in zip(pairs[1], (width, height), strict=True):
            if ExifTags.Base[name] in tags:
                tags[ExifTags.Base[name]] = value


def exif_of(like: ImageFile) -> Image.Exif:
    """The EXIF of an image that was read."""
    exif = Image.Exif()
    exif.load(like.exif or b"")
    return exif


def present(xmp: bytes | None) -> tuple[bytes | None, tuple[str, ...]]:
    """XMP without what it says about parts of the file that are not read, and a remark for each kind of these."""
    if not xmp or not any(end.encode() in xmp for end, _, _ in ABSENT_PARTS):
        return xmp, ()
    if len(xmp) > MOST_XMP_PARSED or b"<!" in xmp:  # entities may be without end
        return None, (NO_XMP,)
    remarks: dict[str, None] = {}
    try:
        document = minidom.parseString(xmp.rstrip(b"\0 "))
        for element in document.getElementsByTagName("*"):
            if remark := _absent(element):
                remarks[remark] = None
                element.parentNode.removeChild(element)
            for attribute in list(element.attributes.values()):
                if remark := _absent(attribute):
                    remarks[remark] = None
                    element.removeAttributeNode(attribute)
        text = "".join(node.toxml() for node in document.childNodes)
    except (ExpatError, RecursionError):
        return None, (NO_XMP,)
    return (text.encode(), tuple(remarks)) if remarks else (xmp, ())


def _absent(node: minidom.Node) -> str | None:
    """The remark on an element or an attribute that speaks of an absent part; None for others."""
    for end, beginnings, remark in ABSENT_PARTS:
        if (node.namespaceURI or "").endswith(end) and node.localName.startswith(beginnings):
            return remark
    return None


def _sized_xmp(xmp: bytes, width: int, height: int) -> bytes:
    """XMP whose size of the image, where there is one, is this."""
    text = xmp.decode(errors="ignore")
    for value, names in zip((width, height), XMP_SIZES, strict=True):
        for name in names:
            text = re.sub(rf"(\s{name}\s*=\s*[\"']|<{name}>)[^<\"']*", rf"\g<1>{value}", text)
    return text.encode()


def _xmp_of_output(xmp: bytes | None) -> bytes:
    """An XMP packet that says that the image was enhanced, without an orientation: images are written upright."""
    text = (xmp or b"").decode(errors="ignore").rstrip("\0 ").replace(ENHANCED, "")
    for name in (r"\w+:DigitalSourceType", "tiff:Orientation"):
        text = re.sub(rf'\s{name}\s*=\s*("[^"]*"|\'[^\']*\')|<{name}>[^<]*</{name}>', "", text)
    before, end, after = text.rpartition("</rdf:RDF>")
    return (before + ENHANCED + end + after if end else PACKET).encode()
