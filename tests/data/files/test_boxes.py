"""What the boxes of AVIF and HEIF files say about the primary image."""

import struct

import imagecodecs
import numpy as np
import pillow_heif
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deblur.data.files import boxes, colour, images
from tests.data.files.made import again, remarks

LINEAR, SRGB, PQ, HLG = 8, 13, 16, 18


@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_avif_and_heif_of_more_than_8_bits_keep_them(tmp_path, bits, channels, suffix):
    most = 2**bits - 1
    ramp = np.broadcast_to(np.linspace(0, most, 64).astype(np.uint16), (16, 64))
    array = np.stack([ramp] * channels, axis=-1)
    if suffix == ".avif":
        content = imagecodecs.avif_encode(array.squeeze(-1) if channels == 1 else array, level=100, bitspersample=bits)
        (tmp_path / "a.avif").write_bytes(content)
    else:
        mode, pillow_heif.options.SAVE_HDR_TO_12_BIT = {1: "L;16", 3: "RGB;16", 4: "RGBA;16"}[channels], bits == 12
        image = pillow_heif.from_bytes(mode, (64, 16), np.ascontiguousarray(array << (16 - bits)).tobytes())
        image.save(tmp_path / "a.heic", quality=-1, chroma=444)
    found = images.read_file(tmp_path / f"a{suffix}")
    assert found.pixels.dtype == torch.uint16
    assert (found.alpha is not None) == (channels == 4)
    assert np.abs(found.values.numpy() * most - ramp).max() < 3
    assert found.values.max() == 1
    assert torch.equal(images.read_file(again(tmp_path / f"a{suffix}", ".png")).pixels, found.pixels)
    assert "has more than 8 bits" in remarks(tmp_path / f"a{suffix}", suffix)
    assert not remarks(tmp_path / f"a{suffix}", ".png")


def box(kind, content):
    return struct.pack(">I4s", 8 + len(content), kind) + content


def described(path, properties, own, wide, primary=2):
    """A file of the boxes that describe images: image 1 has the first property, the primary image its `own`."""
    number = "H" if wide else "B"
    item = "I" if wide else "H"
    lists = [(1, [1]), (primary, own)]
    ipma = struct.pack(">4BI", int(wide), 0, 0, int(wide), len(lists))
    for image, numbers in lists:
        flag = 1 << (15 if wide else 7)
        ipma += struct.pack(f">{item}B{len(numbers)}{number}", image, len(numbers), *(flag | at for at in numbers))
    pitm = struct.pack(f">4B{item}", int(wide), 0, 0, 0, primary)
    container = box(b"iprp", box(b"ipco", b"".join(properties)) + box(b"ipma", ipma))
    path.write_bytes(box(b"ftyp", b"avif\0\0\0\0") + box(b"meta", bytes(4) + box(b"pitm", pitm) + container))


def nclx(*codes):
    return box(b"colr", b"nclx" + struct.pack(">3HB", *codes, 6, 128))


@pytest.mark.parametrize("wide", [False, True])
def test_of_several_nclx_and_depths_those_of_the_primary_image_count(tmp_path, wide):
    """As of a photo with a gain map, or with transparency, whose properties may come first."""
    pixi = [box(b"pixi", bytes([0, 0, 0, 0, 3, bits, bits, bits])) for bits in (8, 10)]
    every = [nclx(12, PQ), pixi[0], pixi[1], nclx(9, HLG), nclx(1, SRGB)]
    for own, codes, bits in (([3, 4], (9, HLG), 10), ([5, 2], (1, SRGB), 8), ([4, 5], (9, HLG), 8)):
        described(tmp_path / "a.avif", every, own, wide)
        assert colour.of_boxes(tmp_path / "a.avif").codes == codes
        assert boxes.bits_of(tmp_path / "a.avif") == bits
    described(tmp_path / "a.avif", every, [3], wide)
    assert colour.of_boxes(tmp_path / "a.avif") is None, "another image's"
    described(tmp_path / "a.avif", [box(b"av1C", bytes([0x81, 0, 0x60, 0])), nclx(9, PQ)], [1, 2], wide)
    assert boxes.bits_of(tmp_path / "a.avif") == 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An AVIF with a description of its colours and its bits."""
    path = tmp_path_factory.mktemp("whole") / "whole.avif"
    described(path, [nclx(12, PQ), box(b"pixi", b"\0\0\0\0\3\x0a\x0a\x0a")], [1, 2], False)
    return path


@settings(max_examples=200)
@given(st.binary(max_size=80), st.integers(0, 300), st.integers(0, 300))
def test_damaged_descriptions_of_images_are_no_fault_of_the_program(whole, noise, cut, at):
    path, content = whole.with_name("damaged.avif"), whole.read_bytes()
    path.write_bytes((content[:at] + noise + content[at + len(noise) :])[: len(content) - cut % 40])
    colour.of_boxes(path)
    boxes.bits_of(path)
