"""What Pillow reads with fewer bits or wrongly."""

import struct
import zlib

import numpy as np
import pytest
import torch

from deblur.data.files import images
from tests.data.files.made import again, chunk


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
