"""What Pillow reads with fewer bits or wrongly, or does not tell."""

import struct
import zlib

import imagecodecs
import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image

from deblur.data.files import images
from tests.data.files.made import again, chunk, remarks


@pytest.mark.parametrize(("most", "said"), [(255, ()), (1023, ("has more than 8 bits, of which 8 are read",))])
@pytest.mark.parametrize("plain", [False, True])
def test_of_colour_ppm_8_bits_are_read_and_it_is_said_if_there_are_more(tmp_path, most, said, plain):
    array = np.arange(18) * most // 17
    numbers = array.astype(">u2" if most > 255 else np.uint8).tobytes()
    content = " ".join(map(str, array)).encode() if plain else numbers
    (tmp_path / "a.ppm").write_bytes(b"P%d\n3 2\n%d\n" % (3 if plain else 6, most) + content)
    found = images.read_file(tmp_path / "a.ppm")
    assert found.pixels.dtype == torch.uint8
    assert np.abs(found.values.movedim(0, -1).flatten().numpy() - array / most).max() < 0.51 / 255
    assert found.remarks == said


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_the_transparent_grey_of_a_png_is_transparent(tmp_path, bits):
    values = np.arange(16) % 2**bits * (3000 if bits == 16 else 1)
    row = ((values[:, None] >> np.arange(bits)[::-1]) & 1).astype(np.uint8).reshape(-1)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 1, bits, 0, 0, 0, 0))
    clear = chunk(b"tRNS", struct.pack(">H", int(values[1])))
    data = chunk(b"IDAT", zlib.compress(b"\0" + np.packbits(row).tobytes())) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + clear + data)
    wanted = np.where(values == values[1], 0, 1)
    for path in (tmp_path / "a.png", again(tmp_path / "a.png", ".png"), again(tmp_path / "a.png", ".tif")):
        found = images.read_file(path)
        most = torch.iinfo(found.pixels.dtype).max
        assert np.array_equal(found.alpha[0, 0].numpy() / most, wanted)
        assert found.grey
        assert np.allclose(found.values[0, 0], values / (2**bits - 1), atol=1e-6)


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


@pytest.mark.parametrize("primary", [0, 1])
def test_of_several_images_in_a_file_the_colours_and_the_depth_of_the_primary_one_count(tmp_path, primary):
    """As of a photo with a gain map, which may come first: one of Display P3 and 8 bits, one of PQ and 10."""
    file = pillow_heif.from_pillow(Image.new("RGB", (64, 64), (200, 40, 90)))
    file.add_frombytes("RGB;16", (64, 64), np.full((64, 64, 3), 30_000, np.uint16).tobytes())
    for image, codes in zip(file, ((12, 13, 6, 1), (9, 16, 6, 1)), strict=True):
        names = "color_primaries", "transfer_characteristics", "matrix_coefficients", "full_range_flag"
        image.info["nclx_profile"] = dict(zip(names, codes, strict=True))
    file.save(tmp_path / "a.heic", primary_index=primary, save_nclx_profile=True)
    found = images.read_file(tmp_path / "a.heic")
    assert found.codes == [(12, 13), (9, 16)][primary]
    assert found.has_16_bits == (primary == 1)
