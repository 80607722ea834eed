"""Every tag of a photograph through every format that is written, by each choice of --metadata."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import IFDRational

from deblur.data.files import encoding, images, metadata
from deblur.data.files.kinds import SUFFIXES_OF_16_BITS, WRITTEN_SUFFIXES, usual_suffix
from tests.data.files.made import PROFILE, again, pil, with_chunks

EXIF, GPS = ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo
# Of the first directory; Software is set anew.
FIRST = {"Make": "Camera", "Model": "One", "DateTime": "2026:11:01 10:00:00", "ResolutionUnit": 2}
FIRST |= {"XResolution": IFDRational(300), "YResolution": IFDRational(300), "ImageDescription": "Anna at home"}
FIRST |= {"Artist": "Anna", "Copyright": "(c) Anna", "HostComputer": "Anna's"}
NUMBERS = "ExposureProgram SensitivityType MeteringMode LightSource Flash FocalLengthIn35mmFilm ExposureMode "
NUMBERS += "WhiteBalance SceneCaptureType ColorSpace"
FRACTIONS = "ShutterSpeedValue ApertureValue BrightnessValue MaxApertureValue FocalLength DigitalZoomRatio Gamma"
TEXTS = "OffsetTime OffsetTimeOriginal OffsetTimeDigitized SubsecTime SubsecTimeOriginal SubsecTimeDigitized "
TEXTS += "LensMake LensModel"
LENS = IFDRational(24), IFDRational(70), IFDRational(28, 10), IFDRational(4)
SETTINGS = {
    **{name: f"{at} mm" for at, name in enumerate(TEXTS.split())},
    **{name: at for at, name in enumerate(NUMBERS.split(), start=1)},
    **{name: IFDRational(at, 7) for at, name in enumerate(FRACTIONS.split(), start=1)},
    **{"ExposureTime": IFDRational(1, 60), "FNumber": IFDRational(28, 10), "ISOSpeedRatings": 400},
    **{"DateTimeOriginal": "2026:11:01 10:00:00", "DateTimeDigitized": "2026:11:01 10:00:01", "ExifVersion": b"0232"},
    **{"LensSpecification": LENS, "ExposureBiasValue": IFDRational(-1, 3), "SubjectLocation": (3, 4)},
    **{"MakerNote": b"serial 123" * 9, "UserComment": b"ASCII\0\0\0for Anna", "CameraOwnerName": "Anna"},
    **{"BodySerialNumber": "123", "LensSerialNumber": "456", "ImageUniqueID": "f00"},
}
PLACE = {1: "N", 2: (52.0, 30.0, 12.5), 3: "E", 4: (13.0, 24.0, 1.25), 29: "2026:11:01"}
XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"'
    b' xmp:Rating="5" xmp:Label="Anna" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)
USUAL = sorted({usual_suffix(suffix) for suffix in WRITTEN_SUFFIXES} - {".bmp"})
XMP_HEAD = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
XMP_END = "</rdf:RDF></x:xmpmeta>"
FORMATS = [(suffix, deep) for suffix in USUAL for deep in {False, suffix in SUFFIXES_OF_16_BITS}]


def exif():
    block = Image.Exif()
    for name, value in FIRST.items():
        block[ExifTags.Base[name]] = value
    block[ExifTags.Base.Software], block[ExifTags.Base.Orientation] = "Editor", 6
    for name, value in SETTINGS.items():
        block.get_ifd(EXIF)[ExifTags.Base[name]] = value
    block.get_ifd(GPS).update(PLACE)
    return block


@pytest.fixture(params=["photo.jpg", "photo.png", "photo.tif", "photo.webp", "photo.avif"])
def photo(request, tmp_path):
    """A photograph with all tags in one of the formats that are read."""
    flat, block = Image.fromarray(np.full((16, 20, 3), 90, np.uint8)), exif()
    path = tmp_path / "in" / request.param
    path.parent.mkdir()
    more = {"xmp": XMP}
    if path.suffix == ".tif":
        block.load(block.tobytes())  # as Pillow wants it for TIFF
        block[ExifTags.Base.XMLPacket], more = XMP, {}
    if path.suffix == ".png":
        flat.save(path)
        whole = images.ImageFile(torch.zeros(3, 1, 1, dtype=torch.uint8), exif=block.tobytes(), icc=PROFILE, xmp=XMP)
        content = path.read_bytes()
        path.write_bytes(content[: encoding.PNG_HEADER] + encoding.png_chunks(whole) + content[encoding.PNG_HEADER :])
    else:
        flat.save(path, exif=block, icc_profile=PROFILE, **more)
    return path


def written(photo: Path, suffix: str, deep: bool, choice: str) -> images.ImageFile:
    image, target = images.read_file(photo), photo.parent.parent / f"out{suffix}"
    images.write(target, image.values, metadata.of_restoration(image, choice), depth=16 if deep else 8)
    return images.read_file(target)


def test_the_tags_here_are_all_that_the_program_knows():
    assert {ExifTags.Base[name] for name in FIRST} | {ExifTags.Base.Software} == metadata.DESCRIPTIVE


@pytest.mark.parametrize("name", ["tiff:Orientation", "Iptc4xmpExt:DigitalSourceType", "other:DigitalSourceType"])
@pytest.mark.parametrize("form", [' {0}="6"', " {0} = '6'", "/><x/><{0}>6</{0}><rdf:Description"])
def test_what_a_restoration_changes_is_taken_out_of_xmp_in_every_form(name, form):
    said = form.format(name).encode()
    packet = XMP.replace(b' tiff:Orientation="6"', said)
    assert said in packet
    image = images.ImageFile(torch.zeros(3, 4, 5, dtype=torch.uint8), xmp=packet)
    kept = metadata.of_restoration(image, "keep").xmp.decode()
    assert kept.count("DigitalSourceType") == 1
    assert metadata.SOURCE in kept
    assert "Orientation" not in kept
    assert 'xmp:Rating="5"' in kept
    assert "6" not in kept.replace("2008-02-29", "")


def close(one, other):
    if isinstance(other, (tuple, list, float, int, IFDRational)):
        return np.allclose(np.float64(one), np.float64(other))
    return (one.encode() if isinstance(other, bytes) and isinstance(one, str) else one) == other


@pytest.mark.parametrize(("suffix", "deep"), FORMATS)
@pytest.mark.parametrize("choice", ["keep", "none"])
def test_tag_by_tag(photo, suffix, deep, choice):
    found = written(photo, suffix, deep, choice)
    assert found.icc == PROFILE
    assert found.pixels.dtype == (torch.uint16 if deep else torch.uint8)
    block = metadata.exif_of(found)
    for tags, directory in ((FIRST, block), (SETTINGS, block.get_ifd(EXIF))):
        for name, value in tags.items():
            there = directory.get(ExifTags.Base[name])
            # A TIFF has its density nowhere else.
            stays = choice == "keep" or ("Resolution" in name and suffix in (".tif", ".tiff"))
            assert close(there, value) if stays else there is None, name
    for tag, value in PLACE.items():
        there = block.get_ifd(GPS).get(tag)
        assert close(there, value) if choice == "keep" else there is None, tag
    assert block.get(ExifTags.Base.Software) == (None if choice == "none" else metadata.SOFTWARE)
    assert block.get(ExifTags.Base.Orientation, 1) == 1
    packet = (found.xmp or b"").decode()
    assert (f'DigitalSourceType="{metadata.SOURCE}"' in packet) == (choice != "none")
    assert ('xmp:Rating="5"' in packet and "Anna" in packet) == (choice == "keep")
    assert "Orientation" not in packet
    if choice != "keep":
        assert not re.search(rb"Anna|serial|Editor", (photo.parent.parent / f"out{suffix}").read_bytes())


def test_a_second_restoration_says_it_once(photo):
    image = metadata.of_restoration(images.read_file(photo), "keep")
    assert metadata.of_restoration(image, "keep").xmp == image.xmp


def test_what_a_jpeg_cannot_hold_is_left_out(tmp_path):
    block = exif()
    block.get_ifd(EXIF)[ExifTags.Base.MakerNote] = bytes(70_000)
    large = XMP.replace(b"Anna", b"a" * 70_000)
    like = images.ImageFile(torch.zeros(3, 4, 5, dtype=torch.uint8), exif=block.tobytes(), xmp=large)
    for suffix, holds in ((".jpg", False), (".png", True)):
        images.write(tmp_path / f"a{suffix}", like.values, metadata.of_restoration(like, "keep"))
        found = images.read_file(tmp_path / f"a{suffix}")
        assert metadata.SOURCE.encode() in found.xmp
        assert (b"a" * 70_000 in found.xmp) == holds
        assert (found.exif is not None) == holds
        assert (ExifTags.Base.MakerNote in metadata.exif_of(found).get_ifd(EXIF)) == holds


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize(
    "block",
    [b"no EXIF", b"MM\0*\0\0", b"II*\0\10\0\0\0\1\0\32\1\1\0\1\0\0\0H\0\0\0\0\0\0\0"],
    ids=["no EXIF", "too short", "a resolution in bytes"],
)
def test_exif_that_cannot_be_read_is_left_out_and_the_image_restored(tmp_path, suffix, block):
    Image.new("RGB", (40, 30), (200, 30, 40)).save(tmp_path / f"photo{suffix}", exif=b"Exif\0\0" + block)
    image = images.read_file(tmp_path / f"photo{suffix}")
    assert image.exif is None
    assert image.remarks == ("has EXIF data that cannot be read, which are left out",)
    assert (image.values.mean((1, 2)) * 255 - torch.tensor([200, 30, 40])).abs().max() < 4


@pytest.mark.parametrize(
    ("text", "read"), [(exif().tobytes().hex(), True), ("no EXIF", False)], ids=["read", "left out"]
)
def test_imagemagick_s_text_form_of_exif_is_read_or_left_out(tmp_path, text, read):
    lines = PngInfo()
    lines.add_text("Raw profile type exif", f"\nexif\n{len(text) // 2:8}\n{text}", zip=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "photo.png", pnginfo=lines)
    image = images.read_file(tmp_path / "photo.png")
    assert (image.exif is not None) == read == (not image.remarks)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_the_values_of_the_axes_turn_with_the_image(tmp_path, colours, suffix):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.XResolution], exif[ExifTags.Base.YResolution] = 6, 300, 200
    exif[ExifTags.Base.ImageWidth], exif[ExifTags.Base.ImageLength] = 16, 12
    exif.get_ifd(ExifTags.IFD.Exif).update({0xA002: 16, 0xA003: 12, 0xA20E: 5.0, 0xA20F: 7.0})
    xmp = f'{XMP_HEAD}<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:ImageWidth="16"'
    xmp += f' tiff:ImageLength="12" tiff:XResolution="9"><exif:PixelXDimension>16</exif:PixelXDimension>{XMP_END}'
    pil(colours).save(tmp_path / f"a{suffix}", exif=exif, dpi=(300, 200), xmp=xmp.encode())
    if suffix == ".png":
        packet = b"XML:com.adobe.xmp\0\0\0\0\0" + xmp.encode()
        content = with_chunks(pil(colours), (b"eXIf", exif.tobytes()[6:]), (b"iTXt", packet))
        (tmp_path / "a.png").write_bytes(content)
    found = images.read_file(again(tmp_path / f"a{suffix}", suffix))
    block = metadata.exif_of(found)
    sizes = block.get_ifd(ExifTags.IFD.Exif)
    assert found.pixels.shape == (3, 16, 12)
    assert (block[ExifTags.Base.XResolution], block[ExifTags.Base.YResolution]) == (200, 300)
    assert (block[ExifTags.Base.ImageWidth], block[ExifTags.Base.ImageLength]) == (12, 16)
    assert [sizes[tag] for tag in (0xA002, 0xA003, 0xA20E, 0xA20F)] == [12, 16, 7, 5]
    assert b'tiff:ImageWidth="12"' in found.xmp
    assert b'tiff:ImageLength="16"' in found.xmp
    assert b"<exif:PixelXDimension>12<" in found.xmp
    assert b'tiff:XResolution="9"' in found.xmp


CAMERA, ITEMS = "http://ns.google.com/photos/1.0/camera/", "http://ns.google.com/photos/1.0/container/"
VIDEO, GAIN = "the video of a motion photo is left out", "the gain map of an HDR photo is left out"
CLAIMS = {
    f'xmlns:G="{CAMERA}" G:MotionPhoto="1" G:MicroVideoOffset="5"/>': VIDEO,
    f'xmlns:G="{CAMERA}"><G:MotionPhoto>1</G:MotionPhoto></rdf:Description>': VIDEO,
    f'xmlns:C="{ITEMS}" xmlns:I="{ITEMS}item/"><C:Directory><rdf:Seq><rdf:li rdf:parseType="Resource"><C:Item'
    ' I:Semantic="MotionPhoto" I:Length="5"/></rdf:li></rdf:Seq></C:Directory></rdf:Description>': (
        "the further parts of its file are left out"
    ),
    'xmlns:hdrgm="http://ns.adobe.com/hdr-gain-map/1.0/" hdrgm:Version="1.0"/>': GAIN,
    'xmlns:H="http://ns.apple.com/HDRGainMap/1.0/"><H:HDRGainMapVersion>6</H:HDRGainMapVersion></rdf:Description>': (
        GAIN
    ),
    'xmlns:N="http://ns.adobe.com/xmp/note/" N:HasExtendedXMP="0123"/>': "the second part of its XMP is left out",
}


@pytest.mark.parametrize(("claim", "remark"), CLAIMS.items())
@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".webp"])
def test_xmp_claims_no_part_that_is_not_written(tmp_path, colours, claim, remark, suffix):
    rating = '<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="5" '
    xmp = XMP_HEAD + rating + claim + XMP_END
    image = images.ImageFile(colours, xmp=xmp.encode())
    images.write(tmp_path / f"a{suffix}", image.values, image)
    found = images.read_file(tmp_path / f"a{suffix}")
    assert found.remarks == (remark,)
    left = images.read_file(again(tmp_path / f"a{suffix}", suffix)).xmp
    assert b'xmp:Rating="5"' in left
    assert metadata.SOURCE.encode() in left
    for word in (b"Motion", b"MicroVideo", b"Directory", b"Version", b"HasExtendedXMP"):
        assert word not in left


@pytest.mark.parametrize(
    "xmp", [b"no XML", b'<!DOCTYPE x [<!ENTITY a "b">]><x/>', b"<x>" * 100_000], ids=["text", "entity", "deep"]
)
def test_xmp_that_cannot_be_read_is_left_out(tmp_path, colours, xmp):
    image = images.ImageFile(colours, xmp=xmp + b" http://ns.adobe.com/hdr-gain-map/1.0/")
    images.write(tmp_path / "a.png", image.values, image)
    found = images.read_file(tmp_path / "a.png")
    assert found.xmp is None
    assert found.remarks == ("has XMP that cannot be read, which is left out",)
