"""The density of the pixels, or their aspect, through every format."""

import struct

import pytest
import tifffile
from PIL import ExifTags, Image

from deblur.data.files import images, metadata
from deblur.data.files.kinds import NAME_OF, WRITTEN_SUFFIXES, usual_suffix
from tests.data.files.made import again, chunks_of, pil, remarks, with_chunks


@pytest.mark.parametrize("first", [".jpg", ".png", ".bmp", ".tif"])
@pytest.mark.parametrize("suffix", sorted(set(map(usual_suffix, WRITTEN_SUFFIXES))))
@pytest.mark.parametrize("choice", ["keep", "none"])
def test_the_density_is_kept(tmp_path, colours, first, suffix, choice):
    pil(colours).save(tmp_path / f"a{first}", dpi=(300, 200))
    done = again(tmp_path / f"a{first}", suffix, choice)
    found = images.read_file(done).density
    holds = NAME_OF[suffix] in metadata.TELL_DENSITY or choice == "keep"
    assert (found is not None) == holds
    assert not holds or found.whole(1) == (300, 200)
    if suffix in (".jpg", ".png", ".bmp", ".tif"):
        assert Image.open(done).info["dpi"] == pytest.approx((300, 200), abs=0.02)


def with_aspect(path, pixels, across, down):
    """A file that says the ratio of its density alone."""
    if path.suffix == ".png":
        path.write_bytes(with_chunks(pil(pixels), (b"pHYs", struct.pack(">2IB", across, down, 0))))
    elif path.suffix == ".tif":
        shape = {"resolution": (across, down), "resolutionunit": "none", "photometric": "rgb"}
        tifffile.imwrite(path, pixels.permute(1, 2, 0).numpy(), **shape)
    else:
        pil(pixels).save(path, dpi=(across, down), quality=95)
        content = path.read_bytes()
        assert content[6:11] == b"JFIF\0"
        path.write_bytes(content[:13] + b"\0" + content[14:])


def aspect_told(path):
    """The ratio that a file's own field says, without a unit."""
    with Image.open(path) as image:
        if path.suffix == ".tif":
            assert image.tag_v2[296] == 1
            return float(image.tag_v2[282]) / float(image.tag_v2[283])
        if path.suffix == ".png":
            across, down = image.info["aspect"]
        else:
            assert image.info["jfif_unit"] == 0
            across, down = image.info["jfif_density"]
    return across / down


@pytest.mark.parametrize("first", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("suffix", [".bmp", ".jpg", ".png", ".tif", ".webp"])
@pytest.mark.parametrize("choice", ["keep", "none"])
def test_an_aspect_without_a_density_is_kept_or_said(tmp_path, colours, first, suffix, choice):
    with_aspect(tmp_path / f"a{first}", colours, 3, 2)
    done = again(tmp_path / f"a{first}", suffix, choice)
    said = "pixels that are not square" in remarks(tmp_path / f"a{first}", suffix)
    if suffix in (".bmp", ".webp"):
        assert said
    else:
        assert aspect_told(done) == pytest.approx(1.5)
        assert not said
    found = images.read_file(done).density
    assert found or suffix in (".bmp", ".webp")
    if found:
        assert not found.is_per_inch
        assert found.across / found.down == pytest.approx(1.5)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_square_pixels_without_a_density_get_none(tmp_path, colours, suffix):
    with_aspect(tmp_path / f"a{suffix}", colours, 72, 72)
    assert images.read_file(tmp_path / f"a{suffix}").density is None
    assert not remarks(tmp_path / f"a{suffix}", ".bmp")


def test_an_aspect_turns_with_the_image(tmp_path, colours):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    pil(colours).save(tmp_path / "a.jpg", dpi=(3, 2), exif=exif)
    content = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(content[:13] + b"\0" + content[14:])
    assert aspect_told(again(tmp_path / "a.jpg", ".jpg")) == pytest.approx(2 / 3)


def test_an_aspect_of_large_numbers_is_rounded_to_what_a_jpeg_can_hold(tmp_path, colours):
    with_aspect(tmp_path / "a.png", colours, 3_000_001, 1_500_000)
    assert aspect_told(again(tmp_path / "a.png", ".jpg")) == pytest.approx(2, abs=1e-4)
    assert chunks_of(again(tmp_path / "a.png", ".png"))[b"pHYs"] == struct.pack(">2IB", 3_000_001, 1_500_000, 0)
