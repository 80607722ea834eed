"""TIFF files of every kind of samples and pages."""

import struct

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, TiffImagePlugin

from deblur.data.files import images
from tests.data.files.made import again, remarks


def packed(path, array, bits, extra=()):
    """A TIFF (H, W, C) whose samples have any number of bits, row by row without gaps; `extra` are more tags."""
    height, width, channels = array.shape
    rows = (((array.reshape(height, -1, 1) >> np.arange(bits)[::-1]) & 1).astype(np.uint8)).reshape(height, -1)
    content = b"".join(np.packbits(row).tobytes() for row in rows)
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    layout = {256: width, 257: height, 258: (bits,) * channels, 259: 1, 262: 1 if channels == 1 else 2, 277: channels}
    for tag, value in (layout | {278: height, 273: (0,), 279: (len(content),)} | dict(extra)).items():
        tags[tag] = value
    with open(path, "wb") as file:
        tags.save(file)
        file.write(content)


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("channels", [1, 3])
def test_tiffs_of_10_to_14_bits_keep_their_values(tmp_path, bits, channels):
    array = np.random.default_rng(0).integers(0, 2**bits, (6, 8, channels), np.uint16)
    packed(tmp_path / "a.tif", array, bits)
    for path in (tmp_path / "a.tif", again(tmp_path / "a.tif", ".tif"), again(tmp_path / "a.tif", ".png")):
        found = images.read_file(path)
        wanted = np.moveaxis(array, -1, 0) / (2**bits - 1)
        assert found.pixels.dtype == torch.uint16
        assert found.grey == (channels == 1)
        assert np.abs(found.values.numpy() - wanted).max() < 1 / 65535


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_colours_multiplied_with_alpha_are_divided_and_multiplied_again(tmp_path, dtype, planar):
    most = np.iinfo(dtype).max
    alpha = np.linspace(0, most, 12 * 16).reshape(12, 16).astype(dtype)
    straight = np.full((12, 16, 3), most // 3, np.float64)
    array = np.dstack([np.rint(straight * alpha[..., None] / most), alpha]).astype(dtype)
    array[0, 0, :3] = 7  # light where nothing is to be seen
    array[0, 1, :3] = alpha[0, 1] + 1  # a soft edge that another program rounded up
    stored = np.moveaxis(array, -1, 0) if planar == "separate" else array
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", planarconfig=planar, extrasamples=["assocalpha"])
    found = images.read_file(tmp_path / "a.tif").pixels.numpy()
    visible = alpha > most // 4
    assert np.abs(found[:, visible] / most - 1 / 3).max() < 0.01
    assert found[0, 0, :2].tolist() == [0, most]
    for suffix in (".tif", ".png"):
        done = again(tmp_path / "a.tif", suffix)
        assert np.array_equal(images.read_file(done).pixels, found)
        if suffix == ".tif":
            page = tifffile.TiffFile(done).pages.first
            assert page.extrasamples == (tifffile.EXTRASAMPLE.ASSOCALPHA,)
            assert np.array_equal(page.asarray(), np.minimum(array, alpha[..., None]))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("kinds", [["unspecified"], ["unassalpha", "unspecified"], ["unspecified", "unspecified"]])
def test_samples_that_are_no_alpha_stay_what_they_are(tmp_path, dtype, kinds):
    array = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (6, 8, 3 + len(kinds)), dtype)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", planarconfig="contig", extrasamples=kinds)
    found = images.read_file(tmp_path / "a.tif")
    assert (found.alpha is not None) == ("unassalpha" in kinds)
    page = tifffile.TiffFile(again(tmp_path / "a.tif", ".tif")).pages.first
    assert [kind.name.lower() for kind in page.extrasamples] == kinds
    assert np.array_equal(page.asarray(), array)
    most = 255 if dtype is np.uint16 else 65535  # of the other depth
    other = tifffile.imread(again(tmp_path / "a.tif", ".tif", depth=most.bit_length()))
    assert np.abs(other - array * (most / np.iinfo(dtype).max)).max() < 0.51
    assert not remarks(tmp_path / "a.tif", ".tif")
    assert "neither colours nor transparency" in remarks(tmp_path / "a.tif", ".png")


def test_white_may_be_zero(tmp_path):
    array = np.random.default_rng(0).integers(0, 65535, (6, 8), np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite")
    assert np.array_equal(images.read_file(tmp_path / "a.tif").pixels[0], 65535 - array)


@pytest.mark.parametrize("place", ["after", "below"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_of_a_thumbnail_and_the_page_the_page_is_read(tmp_path, place, mode):
    page = np.random.default_rng(0).integers(0, 255, (24, 32, 3) if mode == "RGB" else (24, 32), np.uint8)
    kind = {"photometric": "rgb" if mode == "RGB" else "minisblack"}
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(page[::4, ::4], subfiletype=1, **kind, **({"subifds": 1} if place == "below" else {}))
        file.write(page, subfiletype=0, extratags=[(274, "H", 1, 6, True)], **kind)
    found = images.read_file(tmp_path / "a.tif")
    assert np.array_equal(found.pixels[0], np.rot90(page if mode == "L" else page[..., 0], -1))
    assert found.remarks == ("begins with a thumbnail, the full-size page is restored",)
    assert images.header_size(tmp_path / "a.tif") == (24, 32)


def test_a_page_that_pillow_reads_may_follow_a_thumbnail_too(tmp_path):
    palette = Image.new("P", (8, 6), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    small = Image.new("RGB", (2, 2))
    small.save(tmp_path / "a.tif", save_all=True, append_images=[palette])
    # Its first directory once more at the end, with the tag NewSubfileType.
    content = bytearray((tmp_path / "a.tif").read_bytes())
    first = struct.unpack_from("<L", content, 4)[0]
    count = struct.unpack_from("<H", content, first)[0]
    entries = [bytes(content[first + 2 + 12 * k : first + 14 + 12 * k]) for k in range(count)]
    following = bytes(content[first + 2 + 12 * count : first + 6 + 12 * count])
    entries.insert(0, struct.pack("<HHLL", 254, 4, 1, 1))
    at = len(content)
    content += struct.pack("<H", count + 1) + b"".join(entries) + following
    struct.pack_into("<L", content, 4, at)
    (tmp_path / "a.tif").write_bytes(content)
    assert images.read_file(tmp_path / "a.tif").pixels[:, 0, 0].tolist() == [200, 100, 50]


def test_no_class_name_stands_in_a_sentence(tmp_path):
    packed(tmp_path / "lab.tif", np.zeros((4, 4, 3), np.uint16), 16, [(262, 8)])
    packed(tmp_path / "signed.tif", np.zeros((4, 4, 1), np.uint16), 16, [(339, 2)])
    packed(tmp_path / "filter.tif", np.zeros((4, 4, 1), np.uint16), 8, [(262, 32803)])
    packed(tmp_path / "squeezed.tif", np.zeros((4, 4, 1), np.uint16), 8, [(259, 60_000)])
    packed(tmp_path / "short.tif", np.zeros((40, 40, 3), np.uint16), 12)
    (tmp_path / "short.tif").write_bytes((tmp_path / "short.tif").read_bytes()[:900])
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(images.ImageError) as caught:
            images.read(file)
        sentence = str(caught.value)
        assert str(file) in sentence
        assert sentence.endswith(".")
        assert not any(word in sentence for word in ("<", "Error", "Path(", "None")), sentence
