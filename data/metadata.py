"""Which metadata a restored image keeps, and what it says about how it was made."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from PIL import ExifTags, Image

if TYPE_CHECKING:
    from deblur.data.images import ImageFile

Choice = Literal["keep", "none"]
SOFTWARE = "Predict and refine (image deblurring)"
ICC, XMP = 34675, 700  # TIFF's tags
MOST_OF_JPEG = 65_000  # bytes of EXIF or XMP in a JPEG: a segment has 65,533

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


def kept(like: ImageFile, choice: Choice) -> ImageFile:
    """The input with the metadata of its restoration.

    keep: all EXIF and XMP; none: neither. The colour profile always stays, since the colours depend on it. With keep,
    EXIF names this program as the software, and XMP has IPTC's digital source type "algorithmically enhanced".
    """
    if choice == "none":
        return replace(like, exif=None, xmp=None)
    exif = exif_of(like)
    exif[ExifTags.Base.Software] = SOFTWARE
    return replace(like, exif=exif.tobytes(), xmp=_xmp_of_output(like.xmp))


def too_large(block: bytes | None, suffix: str) -> bool:
    """Whether a format cannot hold EXIF or XMP of this size: that of a JPEG is limited."""
    return suffix.lower() in (".jpg", ".jpeg") and len(block or b"") > MOST_OF_JPEG


def fitting(like: ImageFile, suffix: str) -> ImageFile:
    """The metadata as far as a format can hold it: EXIF that is too large is left out, XMP says the least."""
    if too_large(like.exif, suffix):
        like = replace(like, exif=None)
    return replace(like, xmp=PACKET.encode()) if too_large(like.xmp, suffix) else like


def arguments(like: ImageFile, suffix: str) -> dict[str, Any]:
    """The metadata as arguments of Pillow's save."""
    given: dict[str, Any] = {"exif": like.exif, "icc_profile": like.icc, "xmp": like.xmp}
    if suffix in (".tif", ".tiff") and like.xmp:
        given["exif"] = exif_of(like)
        given["exif"][XMP] = given.pop("xmp")
    return {name: value for name, value in given.items() if value}


def exif_of(like: ImageFile) -> Image.Exif:
    """The EXIF of an image that was read."""
    exif = Image.Exif()
    exif.load(like.exif or b"")
    return exif


def _xmp_of_output(xmp: bytes | None) -> bytes:
    """An XMP packet that says that the image was enhanced, without an orientation: images are written upright."""
    text = (xmp or b"").decode(errors="ignore").rstrip("\0 ").replace(ENHANCED, "")
    for name in (r"\w+:DigitalSourceType", "tiff:Orientation"):
        text = re.sub(rf'\s{name}\s*=\s*("[^"]*"|\'[^\']*\')|<{name}>[^<]*</{name}>', "", text)
    before, end, after = text.rpartition("</rdf:RDF>")
    return (before + ENHANCED + end + after if end else PACKET).encode()
