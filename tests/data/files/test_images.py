import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from deblur.data.files import decoding, images


@pytest.fixture
def image():
    return torch.randint(0, 256, (3, 13, 17), generator=torch.Generator().manual_seed(0)) / 255


def pil(image):
    return Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("suffix", [".jpg", ".avif", ".heic"])
def test_the_colours_of_single_pixels_are_kept(tmp_path, suffix):
    """Red and blue columns: subsampling of their chroma would make both purple."""
    red, blue = torch.tensor([0.8, 0.2, 0.2]), torch.tensor([0.2, 0.2, 0.8])
    stripes = torch.stack([red, blue] * 16, dim=1)[:, None].expand(3, 32, 32)
    images.write(tmp_path / f"a{suffix}", stripes)
    assert (images.read(tmp_path / f"a{suffix}") - stripes).abs().mean() < 0.05


def test_write_clips_and_rounds(tmp_path):
    images.write(tmp_path / "a.png", torch.tensor([-0.5, 0.5 / 255 + 1e-4, 1.5]).view(3, 1, 1))
    assert torch.equal(images.read(tmp_path / "a.png").flatten() * 255, torch.tensor([0.0, 1.0, 255.0]))


def damaged_files(folder: Path, image) -> list[Path]:
    files = []
    for suffix in (".png", ".jpg", ".webp", ".tif", ".bmp"):
        whole = folder / f"whole{suffix}"
        images.write(whole, image.repeat(1, 8, 8))
        files.append(folder / f"truncated{suffix}")
        files[-1].write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    files += [folder / "text.png", folder / "empty.png", folder / "missing.png", folder / "folder.png"]
    files[-4].write_text("This is no image.")
    files[-3].touch()
    files[-1].mkdir()
    for name, value in {"float.tif": np.float32(0.5), "half.tif": np.float16(0.5), "deep.tif": np.int32(70000)}.items():
        tifffile.imwrite(folder / name, np.full((4, 4, 3) if name == "half.tif" else (4, 4), value))
        files.append(folder / name)
    return files


def test_what_cannot_be_read_is_named_in_one_sentence(tmp_path, image):
    for file in damaged_files(tmp_path, image):
        with pytest.raises(images.ImageError) as caught:
            images.read(file)
        sentence = str(caught.value)
        assert str(file) in sentence and sentence.endswith(".") and "\n" not in sentence, sentence


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(image, suffix):
    with TemporaryDirectory() as folder:
        file = Path(folder, f"Grüße{suffix}")
        images.write(file, image)
        file.chmod(0)
        Path(folder).chmod(0o755)
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may read everything
        try:
            for function in (images.read_file, images.header_size, images.require_end):
                with pytest.raises(images.ImageError, match=rf"Grüße\{suffix} cannot be read: Permission denied\.$"):
                    function(file)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("trailer", [b"", bytes(1000)], ids=["alone", "trailer"])
def test_a_missing_end_is_noticed_and_a_trailer_is_none(tmp_path, image, suffix, trailer):
    file = tmp_path / f"a{suffix}"
    images.write(file, image.repeat(1, 8, 8))
    whole = file.read_bytes()
    file.write_bytes(whole + trailer)
    images.require_end(file)
    file.write_bytes(whole[: len(whole) * 2 // 3] + trailer)
    with pytest.raises(images.ImageError, match=rf"a\{suffix} cannot be decoded, it may be damaged"):
        images.require_end(file)


def test_unwritable_places(tmp_path, image):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        images.write(tmp_path / "file" / "a.png", image)
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(OSError, match="taken"):
        images.write(tmp_path / "taken.png", image)
    with pytest.raises(images.ImageError, match=r"a\.xyz"):
        images.write(tmp_path / "a.xyz", image)
    assert {file.name for file in tmp_path.iterdir()} == {"file", "taken.png"}  # nothing half-written stays


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16", "P", "RGB", "RGBA"])
def test_an_image_of_one_colour_channel_is_grey_and_has_three_equal_ones(tmp_path, image, mode):
    before = pil(image).convert("L").convert(mode)
    before.save(tmp_path / "a.png")
    found = images.read_file(tmp_path / "a.png")
    assert found.grey is (mode in ("1", "L", "LA", "I;16"))
    assert (found.pixels == found.pixels[:1]).all()
    assert np.array_equal(found.pixels[0], np.array(before if mode == "I;16" else before.convert("L")))


@pytest.mark.parametrize("name", ["a.webp", "a.tif", "cmyk.tif", "deep.tif", "a.png", "a.avif", "mpo.jpg"])
def test_the_first_of_several_frames_is_read_and_said(tmp_path, image, name):
    frames = [Image.new("RGB", (17, 13), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    frames = [frame.convert("CMYK") for frame in frames] if name == "cmyk.tif" else frames
    for several in (False, True):
        more = {"save_all": True, "append_images": frames[1:]} if several else {}
        if name == "deep.tif":
            tifffile.imwrite(tmp_path / name, np.zeros((1 + several, 5, 6, 3), np.uint16), photometric="rgb")
        else:
            frames[0].save(tmp_path / name, "MPO" if name == "mpo.jpg" else None, **more)
        found = images.read_file(tmp_path / name)
        remarks = [remark for remark in found.remarks if remark != decoding.INKS]
        assert remarks == (["has several frames, the first is restored"] if several else [])
        assert name == "deep.tif" or (found.values.mean((1, 2)) - torch.tensor([1.0, 0, 0])).abs().max() < 0.02


@pytest.mark.parametrize("given", [torch.uint8, torch.uint16])
@pytest.mark.parametrize(
    ("suffix", "depth", "expected"),
    [("png", 16, 16), ("tif", 16, 16), ("jpg", 16, 8), ("bmp", 16, 8), ("tif", 8, 8), ("webp", None, 8)],
)
def test_another_depth_or_format_when_told(tmp_path, suffix, depth, expected, given):
    values, share, most = torch.rand(3, 5, 4), 200 / 255, torch.iinfo(given).max
    like = images.ImageFile((values * most).round().to(given), torch.full((1, 5, 4), round(share * most), dtype=given))
    images.write(tmp_path / f"a.{suffix}", values, like, depth)
    again = images.read_file(tmp_path / f"a.{suffix}")
    assert again.pixels.dtype == (torch.uint16 if expected == 16 else torch.uint8)
    assert (again.alpha is None) == (suffix in ("jpg", "bmp"))
    wanted = values if again.alpha is not None else values * share + 1 - share  # on white
    if suffix != "jpg":
        assert (again.values - wanted).abs().max() < 0.51 / (2**expected - 1)
    if again.alpha is not None:
        assert (again.alpha.float() * 255 / torch.iinfo(again.alpha.dtype).max == 200).all()


@pytest.mark.parametrize(
    ("mode", "colour", "counts"),
    [
        ("1", 1, 1.0),
        ("I;16", 13107, 0.2),
        ("RGB", (51, 51, 51), 0.2),
        ("LA", (51, 102), 0.08),
        ("RGBA", (255,) * 3 + (0,), 0.0),
    ],
)
def test_a_mask_counts_by_its_brightness_times_its_alpha(tmp_path, mode, colour, counts):
    """White on a transparent layer is how painting programs export one: its hidden part is white, too."""
    Image.new(mode, (4, 3), colour).save(tmp_path / "mask.png")
    assert torch.allclose(images.read_mask(tmp_path / "mask.png"), torch.full((3, 4), counts))
