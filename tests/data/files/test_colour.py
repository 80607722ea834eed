"""Which colours a file says that its numbers are, in every form, is kept, told otherwise or converted."""

import io
import struct

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch
from PIL import ExifTags, Image, ImageCms

from deblur.data.files import decoding, images
from tests.data.files.made import PROFILE, again, chunks_of, nclx_of, pil, remarks, with_chunks

P3 = 0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06
LINEAR_P3 = [0.68, 0.32, 1, 0.265, 0.69, 1, 0.15, 0.06, 1]  # x, y and Y of its primaries
CHRM = struct.pack(">8I", *(round(value * 1e5) for value in P3))
SRGB, PQ, HLG = 13, 16, 18
LOSSY = (".jpg", ".avif", ".heic")


@pytest.fixture
def gradient():
    y, x = np.mgrid[:12, :16]
    return torch.from_numpy(np.stack([90 + 8 * x, 60 + 10 * y, 200 - 4 * x]).astype(np.uint8))


def to_srgb(pixels, linear):
    """P3 numbers (3, H, W) in sRGB by the formulas of the standards."""
    x = pixels.double().numpy() / 255
    light = x if linear else np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    matrix = [[1.2249, -0.2247, 0.0], [-0.0420, 1.0419, 0.0], [-0.0197, -0.0786, 1.0979]]
    light = np.clip(np.einsum("ij,jhw->ihw", np.array(matrix), light), 0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def shown(path):
    """The file's colours as a program that knows profiles shows them, in sRGB (3, H, W)."""
    with Image.open(path) as image:
        profile = image.info.get("icc_profile")
        if profile is not None:
            wanted = ImageCms.createProfile("sRGB"), ImageCms.Intent.RELATIVE_COLORIMETRIC
            image = ImageCms.profileToProfile(image, io.BytesIO(profile), *wanted, outputMode="RGB")
        return np.moveaxis(np.float64(image.convert("RGB")), -1, 0)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("suffix", [".avif", ".bmp", ".heic", ".jpg", ".png", ".tif", ".webp"])
def test_colours_told_by_png_chunks_are_told_by_every_format(tmp_path, gradient, suffix, linear):
    told = [(b"gAMA", struct.pack(">I", 100_000)), (b"cHRM", CHRM)] if linear else [(b"cICP", bytes([12, 13, 0, 1]))]
    (tmp_path / "a.png").write_bytes(with_chunks(pil(gradient), *told))
    done = again(tmp_path / "a.png", suffix)
    assert ("converted to sRGB" in remarks(tmp_path / "a.png", suffix)) == (suffix == ".bmp")
    if suffix == ".png" and not linear:
        assert chunks_of(done)[b"cICP"] == told[0][1]
    elif suffix in (".avif", ".heic") and not linear:
        assert nclx_of(done) == (12, SRGB)
    else:
        assert np.abs(shown(done) - to_srgb(gradient, linear)).max() < (12 if suffix in LOSSY else 4)
    if suffix != ".bmp":
        assert np.abs(images.read(done).numpy() * 255 - gradient.numpy()).max() < 12


@pytest.mark.parametrize("suffix", [".bmp", ".jpg", ".png", ".tif"])
def test_the_curve_of_a_grey_image_is_told_or_converted(tmp_path, suffix):
    (tmp_path / "a.png").write_bytes(with_chunks(Image.new("L", (5, 4), 55), (b"gAMA", struct.pack(">I", 100_000))))
    assert np.abs(shown(again(tmp_path / "a.png", suffix)) - 127).max() < 3


@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_colours_told_by_nclx_are_kept_or_told_by_other_formats(tmp_path, colours, suffix):
    pil(colours).save(tmp_path / f"plain{suffix}", quality=100)
    content = (tmp_path / f"plain{suffix}").read_bytes()
    plain, p3 = (b"colrnclx" + struct.pack(">2H", *codes) for codes in ((1, SRGB), (12, SRGB)))
    assert content.count(plain) == 1
    (tmp_path / f"a{suffix}").write_bytes(content.replace(plain, p3))
    for name, codes in (("plain", (1, SRGB)), ("a", (12, SRGB))):
        assert nclx_of(again(tmp_path / f"{name}{suffix}", suffix)) == codes
        assert chunks_of(again(tmp_path / f"{name}{suffix}", ".png")).get(b"cICP") == (
            None if name == "plain" else bytes([*codes, 0, 1])
        )
        assert ("icc_profile" in Image.open(again(tmp_path / f"{name}{suffix}", ".jpg")).info) == (name == "a")


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_hdr_is_kept_with_a_remark_or_refused(tmp_path, colours, transfer):
    (tmp_path / "a.png").write_bytes(with_chunks(pil(colours), (b"cICP", bytes([9, transfer, 0, 1]))))
    assert chunks_of(again(tmp_path / "a.png", ".png"))[b"cICP"] == bytes([9, transfer, 0, 1])
    for suffix in (".avif", ".heic"):
        assert nclx_of(again(tmp_path / "a.png", suffix)) == (9, transfer)
    assert "HDR" in remarks(tmp_path / "a.png", ".png")
    for suffix in (".jpg", ".tif", ".webp", ".bmp"):
        with pytest.raises(images.ImageError, match="cannot say that its colours are HDR"):
            again(tmp_path / "a.png", suffix)
        assert not (tmp_path / f"again{suffix}").exists()


@pytest.mark.parametrize("chunks", [[], [(b"sRGB", b"\0")], [(b"gAMA", struct.pack(">I", 45455))]])
def test_srgb_told_or_untold_needs_no_profile(tmp_path, colours, chunks):
    (tmp_path / "a.png").write_bytes(with_chunks(pil(colours), *chunks))
    assert "icc_profile" not in Image.open(again(tmp_path / "a.png", ".jpg")).info
    assert not remarks(tmp_path / "a.png", ".bmp")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_profile_is_applied_where_it_cannot_be_written(tmp_path, mode):
    given = {"primaries": LINEAR_P3} if mode == "RGB" else {}
    profile = imagecodecs.cms_profile("rgb" if mode == "RGB" else "gray", whitepoint=[*P3[:2], 1], gamma=1.0, **given)
    Image.new(mode, (5, 4), 55 if mode == "L" else (55, 55, 55)).save(tmp_path / "a.png", icc_profile=profile)
    assert np.abs(shown(again(tmp_path / "a.png", ".bmp")) - 127).max() < 3
    assert "converted to sRGB" in remarks(tmp_path / "a.png", ".bmp")


CHUNKS = {"sRGB": [(b"sRGB", b"\0")], "gAMA": [(b"gAMA", struct.pack(">I", 45455))]}
CHUNKS |= {"cHRM": [*CHUNKS["gAMA"], (b"cHRM", CHRM)]}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_of_a_profile_and_other_chunks_the_profile_counts(tmp_path, chunks):
    profile = imagecodecs.cms_profile("rgb", whitepoint=[*P3[:2], 1], gamma=1.0, primaries=LINEAR_P3)
    grey = Image.new("RGB", (5, 4), (55, 55, 55))
    grey.info["icc_profile"] = profile
    (tmp_path / "a.png").write_bytes(with_chunks(grey, *chunks))
    for suffix in (".png", ".jpg", ".tif"):
        assert Image.open(again(tmp_path / "a.png", suffix)).info["icc_profile"] == profile
    assert np.abs(images.read(again(tmp_path / "a.png", ".bmp")).numpy() * 255 - 55).max() > 20


def test_of_a_profile_and_code_points_the_code_points_count(tmp_path, colours):
    image = pil(colours)
    image.info["icc_profile"] = PROFILE
    (tmp_path / "a.png").write_bytes(with_chunks(image, (b"cICP", bytes([12, SRGB, 0, 1]))))
    assert chunks_of(again(tmp_path / "a.png", ".png"))[b"cICP"] == bytes([12, SRGB, 0, 1])
    assert nclx_of(again(tmp_path / "a.png", ".avif")) == (12, SRGB)


# X, Y and Z of the primaries of P3 with white as bright as 1, as a BMP has them.
XYZ_OF_P3 = [(0.4866, 0.2290, 0.0), (0.2657, 0.6917, 0.0451), (0.1982, 0.0793, 1.0439)]


PAPER, CYAN, MAGENTA = (100, 0, 0), (60, -20, -25), (50, 60, -10)  # CIELAB, relative to white paper


def lab_to_srgb(lab):
    """8-bit sRGB of CIELAB relative to D50 (CIE 15; XYZ to sRGB with Bradford's adaptation)."""
    lightness = (lab[0] + 16) / 116
    cubed = np.array([lightness + lab[1] / 500, lightness, lightness - lab[2] / 200])
    xyz = np.where(cubed > 6 / 29, cubed**3, 3 * (6 / 29) ** 2 * (cubed - 4 / 29)) * (0.9642, 1, 0.8249)
    matrix = [[3.13386, -1.61687, -0.49061], [-0.97877, 1.91614, 0.03345], [0.07195, -0.22899, 1.40524]]
    linear = np.clip(matrix @ xyz, 0, 1)
    return 255 * np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def profile_of_inks():
    """An ICC profile of CMYK (version 2, one table, two points a channel): cyan and magenta as above, else black."""
    colours = np.zeros((2, 2, 2, 2, 3))
    colours[0, 0, 0, 0], colours[1, 0, 0, 0], colours[0, 1, 0, 0] = PAPER, CYAN, MAGENTA
    table = np.rint(colours * (2.55, 1, 1) + (0, 128, 128)).astype(np.uint8).tobytes()
    ramp = bytes(range(256))
    matrix = struct.pack(">9i", *(65536 * np.eye(3, dtype=int)).ravel())
    contents = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", 5) + b"inks\0" + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0",
        b"wtpt": b"XYZ " + bytes(4) + struct.pack(">3i", *(round(65536 * value) for value in (0.9642, 1, 0.8249))),
        b"A2B0": b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + 4 * ramp + table + 3 * ramp,
    }
    start, directory, body = 128 + 4 + 12 * len(contents), struct.pack(">I", len(contents)), b""
    for name, content in contents.items():
        directory += name + struct.pack(">2I", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = bytes(8) + b"\x02\x40\0\0prtrCMYKLab " + bytes(12) + b"acsp" + bytes(28)
    head += struct.pack(">3i", 63190, 65536, 54061)
    profile = head + bytes(128 - len(head)) + directory + body
    return struct.pack(">I", len(profile)) + profile[4:]


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_inks_become_the_colours_of_their_profile(tmp_path, suffix, orientation):
    inks = np.zeros((16, 48, 4), np.uint8)
    inks[:, 16:32, 0] = 255
    inks[:, 32:, 1] = 255
    block = Image.Exif()
    block[ExifTags.Base.Orientation] = orientation
    Image.fromarray(inks, "CMYK").save(tmp_path / f"a{suffix}", icc_profile=profile_of_inks(), exif=block, quality=100)
    raster = images.read_file(tmp_path / f"a{suffix}")
    row = raster.pixels[:, 8] if orientation == 1 else raster.pixels[:, :, 8]
    for at, lab in ((8, PAPER), (24, CYAN), (40, MAGENTA)):
        assert np.abs(row[:, at].numpy() - lab_to_srgb(lab)).max() < 3
    assert raster.icc is None
    assert decoding.INKS in raster.remarks


@pytest.mark.parametrize("profile", [None, b"no profile", PROFILE], ids=["none", "no profile", "of light"])
def test_inks_without_a_profile_of_inks_are_taken_from_white(tmp_path, profile):
    Image.new("CMYK", (8, 8), (0, 255, 0, 0)).save(tmp_path / "a.tif", icc_profile=profile)
    raster = images.read_file(tmp_path / "a.tif")
    assert raster.pixels[:, 4, 4].tolist() == [255, 0, 255]
    assert decoding.INKS in raster.remarks


def bmp_with_colours(path, pixels, kind, ends=((0, 0, 0),) * 3, gamma=0.0, profile=b""):
    """A BMP with a BITMAPV5HEADER."""
    height, width = pixels.shape[1:]
    rows = b"".join(
        row.tobytes().ljust(-(-3 * width // 4) * 4, b"\0") for row in pixels.permute(1, 2, 0).numpy()[::-1, :, ::-1]
    )
    header = struct.pack("<I2i2H6I4I", 124, width, height, 1, 24, 0, len(rows), 2835, 2835, 0, 0, 0, 0, 0, 0)
    header += kind[::-1] + b"".join(struct.pack("<i", round(value * 2**30)) for end in ends for value in end)
    header += struct.pack("<3I", *[round(gamma * 2**16)] * 3) + struct.pack("<4I", 4, 124 + len(rows), len(profile), 0)
    size = 14 + len(header) + len(rows) + len(profile)
    path.write_bytes(struct.pack("<2sIHHI", b"BM", size, 0, 0, 14 + len(header)) + header + rows + profile)


@pytest.mark.parametrize("gamma", [1.0, 2.2, 1 / 2.2])
@pytest.mark.parametrize("suffix", [".bmp", ".png", ".tif"])
def test_the_calibrated_colours_of_a_bmp_are_told_or_converted(tmp_path, gradient, suffix, gamma):
    bmp_with_colours(tmp_path / "a.bmp", gradient, b"\0\0\0\0", XYZ_OF_P3, gamma)
    done = again(tmp_path / "a.bmp", suffix)
    assert ("converted to sRGB" in remarks(tmp_path / "a.bmp", suffix)) == (suffix == ".bmp")
    # Of P3, sRGB's curve is nearly the exponent 2.2 but in the dark.
    assert np.abs(shown(done) - to_srgb(gradient, gamma == 1)).max() < (4 if gamma == 1 else 8)


@pytest.mark.parametrize("suffix", [".bmp", ".png", ".jpg"])
def test_the_profile_in_a_bmp_is_kept_or_applied(tmp_path, gradient, suffix):
    profile = imagecodecs.cms_profile("rgb", whitepoint=[*P3[:2], 1], gamma=1.0, primaries=LINEAR_P3)
    bmp_with_colours(tmp_path / "a.bmp", gradient, b"MBED", profile=profile)
    assert images.read_file(tmp_path / "a.bmp").icc == profile
    assert np.abs(shown(again(tmp_path / "a.bmp", suffix)) - to_srgb(gradient, True)).max() < 12


@pytest.mark.parametrize(
    ("kind", "said"), [(b"sRGB", ""), (b"Win ", ""), (b"\0\0\0\0", ""), (b"LINK", "which is not read")]
)
def test_a_bmp_of_plain_colours_says_nothing_and_one_of_a_linked_profile_does(tmp_path, gradient, kind, said):
    bmp_with_colours(tmp_path / "a.bmp", gradient, kind)
    found = images.read_file(tmp_path / "a.bmp")
    assert found.codes is found.icc is None
    assert torch.equal(found.pixels, gradient)
    assert said in remarks(tmp_path / "a.bmp", ".bmp")
    assert bool(remarks(tmp_path / "a.bmp", ".bmp")) == bool(said)


def tiff_with_colours(path, pixels, white=None, primaries=None, curve=None, profile=None, triple=True):
    tags = []
    for number, values in ((318, white), (319, primaries)):
        if values:
            tags.append(
                (number, "2I", len(values), [part for value in values for part in (round(value * 1e5), 100_000)], True)
            )
    if curve is not None:
        table = np.rint(65535 * curve(np.linspace(0, 1, 256))).astype(int).tolist()
        tags.append((301, "H", 768 if triple else 256, table * 3 if triple else table, True))
    array = pixels.permute(1, 2, 0).numpy()
    tifffile.imwrite(path, array, photometric="rgb", extratags=tags, iccprofile=profile)


@pytest.mark.parametrize("suffix", [".avif", ".bmp", ".png", ".tif"])
@pytest.mark.parametrize("triple", [True, False])
def test_the_chromaticities_and_the_curve_of_a_tiff_are_told_or_converted(tmp_path, gradient, suffix, triple):
    tiff_with_colours(tmp_path / "a.tif", gradient, P3[:2], P3[2:], lambda x: x, triple=triple)
    done = again(tmp_path / "a.tif", suffix)
    assert np.abs(shown(done) - to_srgb(gradient, True)).max() < (12 if suffix in LOSSY else 4)


@pytest.mark.parametrize("suffix", [".avif", ".jpg", ".png", ".tif", ".webp"])
def test_a_curve_that_is_no_standard_s_becomes_a_profile(tmp_path, gradient, suffix):
    """Of sRGB's primaries, so that each channel is seen alone."""
    tiff_with_colours(tmp_path / "a.tif", gradient, curve=lambda x: x**1.5)
    wanted = gradient.numpy() / 255
    light = wanted**1.5
    wanted = 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    assert np.abs(shown(again(tmp_path / "a.tif", suffix)) - wanted).max() < (12 if suffix in LOSSY else 4)


def test_a_tiff_of_srgb_s_chromaticities_or_of_a_profile_needs_no_other(tmp_path, gradient):
    plain = 0.64, 0.33, 0.30, 0.60, 0.15, 0.06
    tiff_with_colours(tmp_path / "plain.tif", gradient, P3[:2], plain)
    assert "icc_profile" not in Image.open(again(tmp_path / "plain.tif", ".jpg")).info
    tiff_with_colours(tmp_path / "both.tif", gradient, P3[:2], P3[2:], profile=PROFILE)
    assert images.read_file(tmp_path / "both.tif").icc == PROFILE
    tiff_with_colours(tmp_path / "other.tif", gradient, P3[:2], P3[2:])  # TIFF's exponent without a table is 2.2
    assert np.abs(shown(again(tmp_path / "other.tif", ".tif")) - to_srgb(gradient, False)).max() < 8
