from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data import images

SHARED = Path(__file__).parents[3] / "shared"


@pytest.fixture
def picture():
    return torch.randint(0, 256, (3, 13, 17), generator=torch.Generator().manual_seed(0)) / 255


def pil(picture):
    return Image.fromarray((picture * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif", ".tiff", ".bmp", ".PNG"])
def test_lossless_formats_come_back_to_the_bit(tmp_path, picture, suffix):
    images.write(tmp_path / f"a{suffix}", picture)
    back = images.read(tmp_path / f"a{suffix}")
    assert back.dtype == torch.float32 and back.is_contiguous()
    assert torch.equal(back, picture)


def test_jpeg_comes_back_nearly(tmp_path):
    ramp = torch.linspace(0, 1, 64).expand(3, 32, 64)
    images.write(tmp_path / "a.jpg", ramp)
    assert (images.read(tmp_path / "a.jpg") - ramp).abs().max() < 0.02


def test_write_clips_and_rounds(tmp_path):
    images.write(tmp_path / "a.png", torch.tensor([-0.5, 0.5 / 255 + 1e-4, 1.5]).view(3, 1, 1))
    assert torch.equal(images.read(tmp_path / "a.png").flatten() * 255, torch.tensor([0.0, 1.0, 255.0]))


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey_becomes_three_equal_channels(tmp_path, picture, mode):
    grey = pil(picture).convert(mode)
    grey.save(tmp_path / "a.png")
    expected = torch.from_numpy(np.array(grey.convert("L"))) / 255
    assert torch.equal(images.read(tmp_path / "a.png"), expected.expand(3, -1, -1))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_grey_keeps_its_depth(tmp_path, suffix):
    values = np.array([[0, 1, 300], [40000, 65534, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"a{suffix}")
    back = images.read(tmp_path / f"a{suffix}")
    assert torch.equal(back, torch.from_numpy(values.astype(np.float32) / 65535).expand(3, 2, 3))


def test_alpha_is_dropped(tmp_path, picture):
    image = pil(picture)
    image.putalpha(Image.fromarray(np.arange(13 * 17, dtype=np.uint8).reshape(13, 17)))
    image.save(tmp_path / "a.png")
    assert torch.equal(images.read(tmp_path / "a.png"), picture)


def test_palette_and_cmyk_become_rgb(tmp_path):
    red = Image.new("RGB", (5, 4), (255, 0, 0))
    red.convert("P").save(tmp_path / "p.png")
    red.convert("CMYK").save(tmp_path / "c.tif")
    for name in ("p.png", "c.tif"):
        assert torch.equal(
            images.read(tmp_path / name), torch.tensor([1.0, 0, 0]).view(3, 1, 1).expand(3, 4, 5)
        )


def test_orientation_is_applied(tmp_path, picture):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn by a quarter clockwise
    pil(picture).save(tmp_path / "a.png", exif=exif)
    assert torch.equal(images.read(tmp_path / "a.png"), picture.rot90(-1, (1, 2)))


def damaged_files(folder: Path, picture) -> list[Path]:
    files = []
    for suffix in (".png", ".jpg", ".webp", ".tif", ".bmp"):
        whole = folder / f"whole{suffix}"
        images.write(whole, picture.repeat(1, 8, 8))
        files.append(folder / f"truncated{suffix}")
        files[-1].write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    files += [folder / "text.png", folder / "empty.png", folder / "missing.png", folder / "folder.png"]
    files[-4].write_text("This is no picture.")
    files[-3].touch()
    files[-1].mkdir()
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(folder / "float.tif")
    Image.fromarray(np.full((4, 4), 70000, dtype=np.int32)).save(folder / "deep.tif")
    return [*files, folder / "float.tif", folder / "deep.tif"]


def test_what_cannot_be_read_is_named_in_one_sentence(tmp_path, picture):
    for file in damaged_files(tmp_path, picture):
        with pytest.raises(images.ImageError) as caught:
            images.read(file)
        sentence = str(caught.value)
        assert str(file) in sentence and sentence.endswith(".") and "\n" not in sentence, sentence


def test_unwritable_places(tmp_path, picture):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        images.write(tmp_path / "file" / "a.png", picture)
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(OSError, match="taken"):
        images.write(tmp_path / "taken.png", picture)
    with pytest.raises(images.ImageError, match=r"a\.xyz"):
        images.write(tmp_path / "a.xyz", picture)
    assert {file.name for file in tmp_path.iterdir()} == {"file", "taken.png"}  # nothing half-written stays


def test_find(tmp_path, picture):
    for name in ("b.png", "a.JPG", "sub/c.webp", ".hidden.png", ".cache/d.png"):
        images.write(tmp_path / name, picture)
    (tmp_path / "notes.txt").touch()
    assert images.find(tmp_path) == [tmp_path / "a.JPG", tmp_path / "b.png", tmp_path / "sub" / "c.webp"]
    assert images.find(tmp_path / "b.png") == [tmp_path / "b.png"]
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "missing"):
        with pytest.raises(images.ImageError, match=nothing):
            images.find(tmp_path / nothing)


@pytest.mark.skipif(not (SHARED / "photos").is_dir(), reason="needs ../shared")
def test_real_photographs():
    files = images.find(SHARED / "photos")
    assert len(files) == 158
    for file in files[::40]:
        photo = images.read(file)
        assert max(photo.shape) == 1280 and photo.std() > 0.05
