"""The density of the pixels through every format."""

import struct

import pytest
from PIL import ExifTags, Image

from deblur.data.files import images, metadata
from deblur.data.files.kinds import NAME_OF, WRITTEN_SUFFIXES, usual_suffix
from tests.data.files.made import again, pil, remarks, with_chunks


@pytest.mark.parametrize("first", [".jpg", ".png", ".bmp", ".tif"])
@pytest.mark.parametrize("suffix", sorted(set(map(usual_suffix, WRITTEN_SUFFIXES))))
@pytest.mark.parametrize("choice", ["keep", "none"])
def test_the_density_is_kept(tmp_path, colours, first, suffix, choice):
    pil(colours).save(tmp_path / f"a{first}", dpi=(300, 200))
    done = again(tmp_path / f"a{first}", suffix, choice)
    found = images.read_file(done).density
    holds = NAME_OF[suffix] in metadata.TELL_DENSITY or choice == "keep"
    assert (found is not None) == holds
    assert not holds or found == pytest.approx((300, 200), abs=0.02)
    if suffix in (".jpg", ".png", ".bmp", ".tif"):
        assert Image.open(done).info["dpi"] == pytest.approx((300, 200), abs=0.02)


@pytest.mark.parametrize("aspect", [(3, 2), (72, 72)])
def test_pixels_that_are_not_square_are_said(tmp_path, colours, aspect):
    """A PNG and a JPEG whose density has no unit."""
    (tmp_path / "a.png").write_bytes(with_chunks(pil(colours), (b"pHYs", struct.pack(">2IB", *aspect, 0))))
    pil(colours).save(tmp_path / "a.jpg", dpi=aspect)
    content = (tmp_path / "a.jpg").read_bytes()
    assert content[6:11] == b"JFIF\0"
    (tmp_path / "a.jpg").write_bytes(content[:13] + b"\0" + content[14:])
    for file in (tmp_path / "a.png", tmp_path / "a.jpg"):
        assert ("pixels that are not square" in remarks(file, ".png")) == (aspect == (3, 2))
        assert images.read_file(file).density is None


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_a_density_turns_with_the_image(tmp_path, colours, suffix):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    pil(colours).save(tmp_path / f"a{suffix}", dpi=(300, 200), exif=exif)
    assert Image.open(again(tmp_path / f"a{suffix}", suffix)).info["dpi"] == (200, 300)


def test_a_file_s_own_density_counts_before_that_of_exif(tmp_path, colours):
    exif = Image.Exif()
    exif[ExifTags.Base.XResolution] = exif[ExifTags.Base.YResolution] = 72
    pil(colours).save(tmp_path / "a.jpg", dpi=(300, 200), exif=exif)
    assert images.read_file(tmp_path / "a.jpg").density == (300, 200)
