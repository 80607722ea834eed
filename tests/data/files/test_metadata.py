"""Every tag of a photograph through every format that is written, by each choice of --metadata."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import IFDRational

from deblur.data.files import codecs, images, metadata
from deblur.data.files.search import HEIF, WRITABLE
from tests.data.files.test_images import PROFILE

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
FORMATS = [(suffix, deep) for suffix in sorted(WRITABLE - {".bmp"}) for deep in {False, suffix in images.DEEP}]


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
        path.write_bytes(codecs._with_chunks(path.read_bytes(), whole))
    else:
        flat.save(path, exif=block, icc_profile=PROFILE, **more)
    return path


def written(photo: Path, suffix: str, deep: bool, choice: str) -> images.ImageFile:
    image, target = images.read_file(photo), photo.parent.parent / f"out{suffix}"
    images.write(target, image.values, metadata.kept(image, choice), depth=16 if deep else 8)
    return images.read_file(target)


def test_the_tags_here_are_all_that_the_program_knows():
    assert {ExifTags.Base[name] for name in FIRST} | {ExifTags.Base.Software} == metadata.DESCRIPTIVE


@pytest.mark.parametrize("name", ["tiff:Orientation", "Iptc4xmpExt:DigitalSourceType", "other:DigitalSourceType"])
@pytest.mark.parametrize("form", [' {0}="6"', " {0} = '6'", "/><x/><{0}>6</{0}><rdf:Description"])
def test_what_a_restoration_changes_is_taken_out_of_xmp_in_every_form(name, form):
    said = form.format(name).encode()
    packet = XMP.replace(b' tiff:Orientation="6"', said)
    assert said in packet
    kept = metadata.kept(images.ImageFile(torch.zeros(3, 4, 5, dtype=torch.uint8), xmp=packet), "keep").xmp.decode()
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
    if suffix in HEIF:
        pytest.importorskip("pillow_heif")
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
    image = metadata.kept(images.read_file(photo), "keep")
    assert metadata.kept(image, "keep").xmp == image.xmp


def test_what_a_jpeg_cannot_hold_is_left_out(tmp_path):
    block = exif()
    block.get_ifd(EXIF)[ExifTags.Base.MakerNote] = bytes(70_000)
    large = XMP.replace(b"Anna", b"a" * 70_000)
    like = images.ImageFile(torch.zeros(3, 4, 5, dtype=torch.uint8), exif=block.tobytes(), xmp=large)
    for suffix, holds in ((".jpg", False), (".png", True)):
        images.write(tmp_path / f"a{suffix}", like.values, metadata.kept(like, "keep"))
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
