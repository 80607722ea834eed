"""Every form of every format is written and comes back."""

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from deblur.data.files import encoding, images
from deblur.data.files.kinds import KINDS, NAME_OF, SUFFIXES_OF_16_BITS, WRITTEN_SUFFIXES, usual_suffix
from tests.data.files.made import again, pil, remarks, upright


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_an_image_of_no_numbers_is_not_written(tmp_path, suffix, value):
    image = torch.rand(3, 6, 8)
    image[0, 2, 3] = value
    with pytest.raises(images.ImageError, match="pixels that are no numbers"):
        images.write(tmp_path / f"a{suffix}", image)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".jpg", ".bmp"])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_was_transparent_is_white_where_there_is_no_alpha(tmp_path, suffix, mode):
    clear = Image.new(mode, (16, 16), (200, 0, 0, 0) if mode == "RGBA" else (40, 0))
    clear.paste((10, 20, 30, 255) if mode == "RGBA" else (20, 255), (0, 0, 8, 16))
    clear.save(tmp_path / "a.png")
    done = images.read(again(tmp_path / "a.png", suffix)) * 255
    wanted = torch.tensor([10.0, 20, 30] if mode == "RGBA" else [20.0] * 3)
    assert (done[..., :8].mean((1, 2)) - wanted).abs().max() < 2
    assert (done[..., 8:] > 252).all()
    assert "put on white" in remarks(tmp_path / "a.png", suffix)
    assert "white" not in remarks(tmp_path / "a.png", ".png")


FORMS = [
    (suffix, dtype, channels)
    for suffix in sorted(set(map(usual_suffix, WRITTEN_SUFFIXES)))
    for dtype in ((np.uint8, np.uint16) if suffix in SUFFIXES_OF_16_BITS else (np.uint8,))
    for channels in (1, 2, 3, 4)
    if KINDS[NAME_OF[suffix]].has_alpha or channels in (1, 3)
]


@pytest.mark.parametrize(("suffix", "dtype", "channels"), FORMS)
def test_every_form_of_every_format_comes_back(tmp_path, suffix, dtype, channels):
    """In eight orientations: the pixels are upright, and equal when written again."""
    most = {".jpg": 10, ".avif": 10, ".heic": 14}.get(suffix, 0)
    cases = [((9, 14), orientation) for orientation in (range(1, 9) if suffix != ".heic" else (1, 6))]  # it is slow
    cases += [(shape, 1) for shape in ((1, 1), (300, 1), (1, 300))] if most == 0 else []
    for shape, orientation in cases:
        if most:
            levels = np.stack(np.mgrid[: shape[0], : shape[1]], axis=-1) @ np.array([[7, 3, 11, 9], [5, 13, 2, 6]])
        else:
            levels = np.random.default_rng(0).integers(0, 256, (*shape, 4))
        array = (levels[..., :channels] * (np.iinfo(dtype).max // 255)).astype(dtype)
        colours, alpha = (array[..., :-1], array[..., -1:]) if channels in (2, 4) else (array, None)
        parts = [np.repeat(colours, 3 // colours.shape[-1], axis=-1), alpha]
        pixels, alpha = (None if part is None else torch.from_numpy(np.moveaxis(part, -1, 0).copy()) for part in parts)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        image = images.ImageFile(pixels, alpha, colours.shape[-1] == 1, exif.tobytes())
        images.write(tmp_path / f"a{suffix}", image.values, image)
        first = images.read_file(tmp_path / f"a{suffix}")
        second = images.read_file(again(tmp_path / f"a{suffix}", suffix))
        turned = 1 if suffix == ".bmp" else orientation  # it has no EXIF
        if suffix in (".bmp", ".jpg", ".png", ".tif"):  # the others have no grey, but three equal channels
            assert first.grey == second.grey == (colours.shape[-1] == 1)
        if suffix in (".jpg", ".tif", ".heic") or orientation < 5:  # cameras write no others that are to be turned
            assert images.header_size(tmp_path / f"a{suffix}") == tuple(first.pixels.shape[:0:-1])
        for part, one, other in zip(parts, *((found.pixels, found.alpha) for found in (first, second)), strict=True):
            assert (part is None) == (one is None) == (other is None)
            if part is not None:
                assert one.dtype == other.dtype == pixels.dtype
                wanted = np.moveaxis(np.int64(upright(part, turned)), -1, 0)
                assert max(np.abs(wanted - np.int64(found)).max() for found in (one, other)) <= most


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize(("given", "kept"), [(98, True), (94, True), (40, False)])
def test_a_jpeg_has_the_quality_of_its_input_or_a_better_one(tmp_path, colours, grey, given, kept):
    pil(colours).convert("L" if grey else "RGB").save(tmp_path / "a.jpg", quality=given)
    before, after = (Image.open(path).quantization for path in (tmp_path / "a.jpg", again(tmp_path / "a.jpg", ".jpg")))
    assert (after == before) == kept
    assert len(after) == (1 if grey else 2)
    assert np.mean(list(after.values())) < 22
    of_png = again(again(tmp_path / "a.jpg", ".png"), ".jpg")
    Image.open(of_png).convert("RGB").save(tmp_path / "b.jpg", quality=encoding.SETTINGS["JPEG"]["quality"])
    assert Image.open(of_png).quantization[0] == Image.open(tmp_path / "b.jpg").quantization[0]


@pytest.mark.parametrize("suffix", [".jpg", ".jfif", ".avif", ".heic"])
def test_a_quality_that_is_given_counts_for_every_format_that_loses_detail(tmp_path, colours, suffix):
    pil(colours).resize((160, 120)).save(tmp_path / "a.jpg", quality=80)
    image, sizes = images.read_file(tmp_path / "a.jpg"), []
    for quality in (20, 60, 95):
        images.write(tmp_path / f"b{suffix}", image.values, image, quality=quality)
        sizes.append((tmp_path / f"b{suffix}").stat().st_size)
    assert sizes == sorted(set(sizes))


def test_webp_is_lossless_whatever_the_quality(tmp_path, colours):
    images.write(tmp_path / "a.webp", colours / 255, quality=20)
    assert torch.equal(images.read_file(tmp_path / "a.webp").pixels, colours)
