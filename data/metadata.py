"""Which metadata a restored image keeps, and what it says about how it was made."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from PIL import ExifTags, Image

if TYPE_CHECKING:
    from data.images import ImageFile

Choice = Literal["keep", "private", "none"]
SOFTWARE = "Predict and refine (image deblurring)"
ICC, XMP = 34675, 700  # TIFF's tags
MOST_OF_JPEG = 65_000  # bytes of EXIF or XMP in a JPEG: a segment has 65,533

# All that `private` keeps of EXIF: camera, lens, date and exposure, but no place, person, serial number or comment.
CAMERA = {ExifTags.Base[name] for name in ("Make", "Model", "DateTime", "XResolution", "YResolution", "ResolutionUnit")}
# TIFF tags that describe the photograph, not the layout of the file.
DESCRIPTIVE = CAMERA | {
    ExifTags.Base[name] for name in ("ImageDescription", "Software", "Artist", "Copyright", "HostComputer")
}
SETTINGS = """
ExifVersion DateTimeOriginal DateTimeDigitized OffsetTime OffsetTimeOriginal OffsetTimeDigitized SubsecTime
SubsecTimeOriginal SubsecTimeDigitized ExposureTime FNumber ExposureProgram ISOSpeedRatings SensitivityType
ShutterSpeedValue ApertureValue BrightnessValue ExposureBiasValue MaxApertureValue MeteringMode LightSource Flash
FocalLength FocalLengthIn35mmFilm ExposureMode WhiteBalance DigitalZoomRatio SceneCaptureType ColorSpace Gamma
LensSpecification LensMake LensModel
"""
EXPOSURE = {ExifTags.Base[name] for name in SETTINGS.split()}
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

    keep: all EXIF and XMP; private: of EXIF the camera, lens, date and exposure, and no XMP; none: neither. The colour
    profile always stays, since the colours depend on it. Except for none, EXIF names this program as the software, and
    XMP has IPTC's digital source type "algorithmically enhanced".
    """
    if choice == "none":
        return replace(like, exif=None, xmp=None)
    exif = exif_of(like)
    if choice == "private":
        exif = _private(exif)
    exif[ExifTags.Base.Software] = SOFTWARE
    return replace(like, exif=exif.tobytes(), xmp=_xmp_of_output(like.xmp if choice == "keep" else None))


def fitting(like: ImageFile, suffix: str) -> ImageFile:
    """The metadata as far as a format can hold it: that of a JPEG is limited."""
    if suffix not in (".jpg", ".jpeg"):
        return like
    if like.exif and len(like.exif) > MOST_OF_JPEG:
        like = replace(like, exif=_private(exif_of(like)).tobytes())
    return replace(like, xmp=PACKET.encode()) if like.xmp and len(like.xmp) > MOST_OF_JPEG else like


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


def _private(exif: Image.Exif) -> Image.Exif:
    private = Image.Exif()
    for tag in CAMERA & exif.keys():
        private[tag] = exif[tag]
    directory = exif.get_ifd(ExifTags.IFD.Exif)
    if exposure := {tag: directory[tag] for tag in EXPOSURE & directory.keys()}:
        private[ExifTags.IFD.Exif] = exposure
    return private


def _xmp_of_output(xmp: bytes | None) -> bytes:
    """An XMP packet that says that the image was enhanced, without an orientation: images are written upright."""
    text = (xmp or b"").decode(errors="ignore").rstrip("\0 ").replace(ENHANCED, "")
    for name in (r"\w+:DigitalSourceType", "tiff:Orientation"):
        text = re.sub(rf'\s{name}\s*=\s*("[^"]*"|\'[^\']*\')|<{name}>[^<]*</{name}>', "", text)
    before, end, after = text.rpartition("</rdf:RDF>")
    return (before + ENHANCED + end + after if end else PACKET).encode()
