"""What a file says besides its pixels comes through, kind by kind; and a round trip of every form of every format."""

import io
import struct
import zlib
from importlib.util import find_spec

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageCms, TiffImagePlugin

from deblur.data.files import boxes, codecs, colour, images, metadata
from deblur.data.files.search import HEIF, WRITABLE
from tests.data.files.test_formats import chunk
from tests.data.files.test_images import PROFILE, upright

P3 = 0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06
CHRM = struct.pack(">8I", *(round(value * 1e5) for value in P3))
LINEAR, SRGB, PQ, HLG = 8, 13, 16, 18
XMP_HEAD = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
XMP_END = "</rdf:RDF></x:xmpmeta>"


@pytest.fixture
def colours():
    return torch.randint(0, 256, (3, 12, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def pil(pixels):
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def with_chunks(image, *chunks):
    """A PNG with chunks after its header."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    content = buffer.getvalue()
    return content[:33] + b"".join(chunk(*each) for each in chunks) + content[33:]


def chunks_of(path):
    content, at, found = path.read_bytes(), 8, {}
    while at < len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        found[kind] = content[at + 8 : at + 8 + size]
        at += 12 + size
    return found


def nclx_of(path):
    content = path.read_bytes()
    at = content.find(b"colrnclx")
    return struct.unpack_from(">2H", content, at + 8) if at > 0 else None


def again(path, suffix, choice="keep", depth=None):
    """The file written of one that was read, untouched."""
    image, target = images.read_file(path), path.with_name(f"again{suffix}")
    images.write(target, image.values, metadata.kept(image, choice), depth)
    return target


def remarks(path, suffix):
    image = metadata.kept(images.read_file(path), "keep")
    return " ".join([*image.remarks, *images.remarks_on(image, suffix)])


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
def test_colours_told_by_png_chunks_are_told_by_every_format(tmp_path, suffix, linear):
    if suffix in HEIF:
        pytest.importorskip("pillow_heif")
    y, x = np.mgrid[:12, :16]
    pixels = torch.from_numpy(np.stack([90 + 8 * x, 60 + 10 * y, 200 - 4 * x]).astype(np.uint8))
    told = [(b"gAMA", struct.pack(">I", 100_000)), (b"cHRM", CHRM)] if linear else [(b"cICP", bytes([12, 13, 0, 1]))]
    (tmp_path / "a.png").write_bytes(with_chunks(pil(pixels), *told))
    done = again(tmp_path / "a.png", suffix)
    assert ("converted to sRGB" in remarks(tmp_path / "a.png", suffix)) == (suffix == ".bmp")
    if suffix == ".png":
        assert told == [(kind, chunks_of(done).get(kind)) for kind, _ in told]
    elif suffix in (".avif", ".heic"):
        assert nclx_of(done) == (12, LINEAR if linear else SRGB)
    else:
        assert np.abs(shown(done) - to_srgb(pixels, linear)).max() < (12 if suffix == ".jpg" else 4)
    if suffix != ".bmp":
        assert np.abs(images.read(done).numpy() * 255 - pixels.numpy()).max() < 12


@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_colours_told_by_nclx_are_kept_or_told_by_other_formats(tmp_path, colours, suffix):
    if suffix in HEIF:
        pytest.importorskip("pillow_heif")
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
    for suffix in (".avif", ".heic") if find_spec("pillow_heif") else (".avif",):
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
    given = {"primaries": [0.68, 0.32, 1, 0.265, 0.69, 1, 0.15, 0.06, 1]} if mode == "RGB" else {}
    profile = imagecodecs.cms_profile("rgb" if mode == "RGB" else "gray", whitepoint=[*P3[:2], 1], gamma=1.0, **given)
    Image.new(mode, (5, 4), 55 if mode == "L" else (55, 55, 55)).save(tmp_path / "a.png", icc_profile=profile)
    assert np.abs(shown(again(tmp_path / "a.png", ".bmp")) - 127).max() < 3
    assert "converted to sRGB" in remarks(tmp_path / "a.png", ".bmp")


LINEAR_P3 = [0.68, 0.32, 1, 0.265, 0.69, 1, 0.15, 0.06, 1]  # x, y and Y of its primaries
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
    assert codecs.INKS in raster.remarks


@pytest.mark.parametrize("profile", [None, b"no profile", PROFILE], ids=["none", "no profile", "of light"])
def test_inks_without_a_profile_of_inks_are_taken_from_white(tmp_path, profile):
    Image.new("CMYK", (8, 8), (0, 255, 0, 0)).save(tmp_path / "a.tif", icc_profile=profile)
    raster = images.read_file(tmp_path / "a.tif")
    assert raster.pixels[:, 4, 4].tolist() == [255, 0, 255]
    assert codecs.INKS in raster.remarks


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


@pytest.fixture
def gradient():
    y, x = np.mgrid[:12, :16]
    return torch.from_numpy(np.stack([90 + 8 * x, 60 + 10 * y, 200 - 4 * x]).astype(np.uint8))


@pytest.mark.parametrize("gamma", [1.0, 2.2, 1 / 2.2])
@pytest.mark.parametrize("suffix", [".bmp", ".png", ".tif"])
def test_the_calibrated_colours_of_a_bmp_are_told_or_converted(tmp_path, gradient, suffix, gamma):
    bmp_with_colours(tmp_path / "a.bmp", gradient, b"\0\0\0\0", XYZ_OF_P3, gamma)
    found = images.read_file(tmp_path / "a.bmp").colour
    assert found.codes == (12, LINEAR if gamma == 1 else 4)
    done = again(tmp_path / "a.bmp", suffix)
    assert ("converted to sRGB" in remarks(tmp_path / "a.bmp", suffix)) == (suffix == ".bmp")
    if suffix == ".png":
        assert chunks_of(done)[b"cICP"] == bytes([12, LINEAR if gamma == 1 else 4, 0, 1])
    elif gamma == 1:
        assert np.abs(shown(done) - to_srgb(gradient, True)).max() < 4


@pytest.mark.parametrize("suffix", [".bmp", ".png", ".jpg"])
def test_the_profile_in_a_bmp_is_kept_or_applied(tmp_path, gradient, suffix):
    primaries = [0.68, 0.32, 1, 0.265, 0.69, 1, 0.15, 0.06, 1]
    profile = imagecodecs.cms_profile("rgb", whitepoint=[*P3[:2], 1], gamma=1.0, primaries=primaries)
    bmp_with_colours(tmp_path / "a.bmp", gradient, b"MBED", profile=profile)
    assert images.read_file(tmp_path / "a.bmp").icc == profile
    assert np.abs(shown(again(tmp_path / "a.bmp", suffix)) - to_srgb(gradient, True)).max() < 12


@pytest.mark.parametrize(
    ("kind", "said"), [(b"sRGB", ""), (b"Win ", ""), (b"\0\0\0\0", ""), (b"LINK", "which is not read")]
)
def test_a_bmp_of_plain_colours_says_nothing_and_one_of_a_linked_profile_does(tmp_path, gradient, kind, said):
    bmp_with_colours(tmp_path / "a.bmp", gradient, kind)
    found = images.read_file(tmp_path / "a.bmp")
    assert found.colour is None
    assert found.icc is None
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
    assert images.read_file(tmp_path / "a.tif").colour.codes == (12, LINEAR)
    done = again(tmp_path / "a.tif", suffix)
    if suffix == ".avif":
        assert nclx_of(done) == (12, LINEAR)
    elif suffix == ".png":
        assert chunks_of(done)[b"cICP"] == bytes([12, LINEAR, 0, 1])
    else:
        assert np.abs(shown(done) - to_srgb(gradient, True)).max() < 4


@pytest.mark.parametrize("suffix", [".avif", ".jpg", ".png", ".tif", ".webp"])
def test_a_curve_that_is_no_standard_s_becomes_a_profile(tmp_path, gradient, suffix):
    """Of sRGB's primaries, so that each channel is seen alone."""
    tiff_with_colours(tmp_path / "a.tif", gradient, curve=lambda x: x**1.5)
    wanted = gradient.numpy() / 255
    light = wanted**1.5
    wanted = 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    assert np.abs(shown(again(tmp_path / "a.tif", suffix)) - wanted).max() < (12 if suffix in (".jpg", ".avif") else 4)


def test_a_tiff_of_srgb_s_chromaticities_or_of_a_profile_needs_no_other(tmp_path, gradient):
    plain = 0.64, 0.33, 0.30, 0.60, 0.15, 0.06
    tiff_with_colours(tmp_path / "plain.tif", gradient, P3[:2], plain)
    assert "icc_profile" not in Image.open(again(tmp_path / "plain.tif", ".jpg")).info
    tiff_with_colours(tmp_path / "both.tif", gradient, P3[:2], P3[2:], profile=PROFILE)
    both = images.read_file(tmp_path / "both.tif")
    assert both.icc == PROFILE
    assert both.colour is None
    tiff_with_colours(tmp_path / "other.tif", gradient, P3[:2], P3[2:])
    assert images.read_file(tmp_path / "other.tif").colour.codes == (12, 4)  # TIFF's exponent without a table is 2.2


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
        pillow_heif = pytest.importorskip("pillow_heif")
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
    stored = np.moveaxis(array, -1, 0) if planar == "separate" else array
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", planarconfig=planar, extrasamples=["assocalpha"])
    found = images.read_file(tmp_path / "a.tif").pixels.numpy()
    visible = alpha > most // 4
    assert np.abs(found[:, visible] / most - 1 / 3).max() < 0.01
    for suffix in (".tif", ".png"):
        done = again(tmp_path / "a.tif", suffix)
        assert np.array_equal(images.read_file(done).pixels, found)
        if suffix == ".tif":
            page = tifffile.TiffFile(done).pages.first
            assert page.extrasamples == (tifffile.EXTRASAMPLE.ASSOCALPHA,)
            assert np.array_equal(page.asarray(), array)


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
    assert not remarks(tmp_path / "a.tif", ".tif")
    assert "neither colours nor transparency" in remarks(tmp_path / "a.tif", ".png")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_an_image_of_no_numbers_is_not_written(tmp_path, suffix, value):
    image = torch.rand(3, 6, 8)
    image[0, 2, 3] = value
    with pytest.raises(images.ImageError, match="pixels that are no numbers"):
        images.write(tmp_path / f"a{suffix}", image)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("first", [".jpg", ".png", ".bmp", ".tif"])
@pytest.mark.parametrize("suffix", sorted(WRITABLE - {".jpeg", ".tiff", ".heif"}))
@pytest.mark.parametrize("choice", ["keep", "none"])
def test_the_density_is_kept(tmp_path, colours, first, suffix, choice):
    if suffix in HEIF:
        pytest.importorskip("pillow_heif")
    pil(colours).save(tmp_path / f"a{first}", dpi=(300, 200))
    done = again(tmp_path / f"a{first}", suffix, choice)
    found = images.read_file(done).density
    holds = suffix in metadata.OWN_DENSITY or choice == "keep"
    assert found == (pytest.approx((300, 200), abs=0.02) if holds else None)
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
    assert images.read_file(done).density is None


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_square_pixels_without_a_density_get_none(tmp_path, colours, suffix):
    with_aspect(tmp_path / f"a{suffix}", colours, 72, 72)
    assert images.read_file(tmp_path / f"a{suffix}").aspect is None
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


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_the_values_of_the_axes_turn_with_the_image(tmp_path, colours, suffix):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.XResolution], exif[ExifTags.Base.YResolution] = 6, 300, 200
    exif[ExifTags.Base.ImageWidth], exif[ExifTags.Base.ImageLength] = 16, 12
    exif.get_ifd(ExifTags.IFD.Exif).update({0xA002: 16, 0xA003: 12, 0xA20E: 5.0, 0xA20F: 7.0})
    xmp = f'{XMP_HEAD}<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:ImageWidth="16"'
    xmp += f' tiff:ImageLength="12" tiff:XResolution="9"><exif:PixelXDimension>16</exif:PixelXDimension>{XMP_END}'
    pil(colours).save(tmp_path / f"a{suffix}", exif=exif, dpi=(300, 200), xmp=xmp.encode())
    if suffix == ".png":
        packet = b"XML:com.adobe.xmp\0\0\0\0\0" + xmp.encode()
        content = with_chunks(pil(colours), (b"eXIf", exif.tobytes()[6:]), (b"iTXt", packet))
        (tmp_path / "a.png").write_bytes(content)
    found = images.read_file(again(tmp_path / f"a{suffix}", suffix))
    block = metadata.exif_of(found)
    sizes = block.get_ifd(ExifTags.IFD.Exif)
    assert found.pixels.shape == (3, 16, 12)
    assert (block[ExifTags.Base.XResolution], block[ExifTags.Base.YResolution]) == (200, 300)
    assert (block[ExifTags.Base.ImageWidth], block[ExifTags.Base.ImageLength]) == (12, 16)
    assert [sizes[tag] for tag in (0xA002, 0xA003, 0xA20E, 0xA20F)] == [12, 16, 7, 5]
    assert b'tiff:ImageWidth="12"' in found.xmp
    assert b'tiff:ImageLength="16"' in found.xmp
    assert b"<exif:PixelXDimension>12<" in found.xmp
    assert b'tiff:XResolution="9"' in found.xmp


CAMERA, ITEMS = "http://ns.google.com/photos/1.0/camera/", "http://ns.google.com/photos/1.0/container/"
VIDEO, GAIN = "the video of a motion photo is left out", "the gain map of an HDR photo is left out"
CLAIMS = {
    f'xmlns:G="{CAMERA}" G:MotionPhoto="1" G:MicroVideoOffset="5"/>': VIDEO,
    f'xmlns:G="{CAMERA}"><G:MotionPhoto>1</G:MotionPhoto></rdf:Description>': VIDEO,
    f'xmlns:C="{ITEMS}" xmlns:I="{ITEMS}item/"><C:Directory><rdf:Seq><rdf:li rdf:parseType="Resource"><C:Item'
    ' I:Semantic="MotionPhoto" I:Length="5"/></rdf:li></rdf:Seq></C:Directory></rdf:Description>': VIDEO,
    'xmlns:hdrgm="http://ns.adobe.com/hdr-gain-map/1.0/" hdrgm:Version="1.0"/>': GAIN,
    'xmlns:H="http://ns.apple.com/HDRGainMap/1.0/"><H:HDRGainMapVersion>6</H:HDRGainMapVersion></rdf:Description>': (
        GAIN
    ),
    'xmlns:N="http://ns.adobe.com/xmp/note/" N:HasExtendedXMP="0123"/>': "the second part of its XMP is left out",
}


@pytest.mark.parametrize(("claim", "remark"), CLAIMS.items())
@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".webp"])
def test_xmp_claims_no_part_that_is_not_written(tmp_path, colours, claim, remark, suffix):
    rating = '<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="5" '
    xmp = XMP_HEAD + rating + claim + XMP_END
    image = images.ImageFile(colours, xmp=xmp.encode())
    images.write(tmp_path / f"a{suffix}", image.values, image)
    found = images.read_file(tmp_path / f"a{suffix}")
    assert found.remarks == (remark,)
    left = images.read_file(again(tmp_path / f"a{suffix}", suffix)).xmp
    assert b'xmp:Rating="5"' in left
    assert metadata.SOURCE.encode() in left
    for word in (b"Motion", b"MicroVideo", b"Directory", b"Version", b"HasExtendedXMP"):
        assert word not in left


@pytest.mark.parametrize(
    "xmp", [b"no XML", b'<!DOCTYPE x [<!ENTITY a "b">]><x/>', b"<x>" * 100_000], ids=["text", "entity", "deep"]
)
def test_xmp_that_cannot_be_read_is_left_out(tmp_path, colours, xmp):
    image = images.ImageFile(colours, xmp=xmp + b" http://ns.adobe.com/hdr-gain-map/1.0/")
    images.write(tmp_path / "a.png", image.values, image)
    found = images.read_file(tmp_path / "a.png")
    assert found.xmp is None
    assert found.remarks == ("has XMP that cannot be read, which is left out",)


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
    for suffix in sorted(WRITABLE - {".jpeg", ".tiff", ".heif"})
    for dtype in ((np.uint8, np.uint16) if suffix in images.DEEP else (np.uint8,))
    for channels in (1, 2, 3, 4)
    if suffix in images.TRANSPARENT or channels in (1, 3)
]


@pytest.mark.parametrize(("suffix", "dtype", "channels"), FORMS)
def test_every_form_of_every_format_comes_back(tmp_path, suffix, dtype, channels):
    """In eight orientations: the pixels are upright, and they and the tags are equal when written again."""
    if suffix in HEIF:
        pytest.importorskip("pillow_heif")
    smooth = np.stack(np.mgrid[:9, :14], axis=-1) @ np.array([[7, 3, 11, 9], [5, 13, 2, 6]])
    array = (smooth[..., :channels] * (np.iinfo(dtype).max // 255)).astype(dtype)
    colours, alpha = (array[..., :-1], array[..., -1:]) if channels in (2, 4) else (array, None)
    parts = [np.repeat(colours, 3 // colours.shape[-1], axis=-1), alpha]
    pixels, alpha = (None if part is None else torch.from_numpy(np.moveaxis(part, -1, 0).copy()) for part in parts)
    most = {".jpg": 10, ".jpeg": 10, ".avif": 10, ".heic": 14, ".heif": 14}.get(suffix, 0)
    for orientation in range(1, 9) if suffix != ".heic" else (1, 6):  # its encoder is slow
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = orientation, "Camera"
        told = {"icc": None if suffix == ".bmp" else PROFILE, "density": (300.0, 200.0)}
        image = images.ImageFile(pixels, alpha, colours.shape[-1] == 1, exif.tobytes(), **told)
        images.write(tmp_path / f"a{suffix}", image.values, image)
        first = images.read_file(tmp_path / f"a{suffix}")
        second = images.read_file(again(tmp_path / f"a{suffix}", suffix))
        turned = 1 if suffix == ".bmp" else orientation  # it has no EXIF
        for part, one, other in zip(parts, *((found.pixels, found.alpha) for found in (first, second)), strict=True):
            assert (part is None) == (one is None) == (other is None)
            if part is not None:
                assert one.dtype == other.dtype == pixels.dtype
                wanted = np.moveaxis(np.int64(upright(part, turned)), -1, 0)
                assert max(np.abs(wanted - np.int64(found)).max() for found in (one, other)) <= most
        assert first.density == second.density is not None
        if suffix != ".bmp":
            assert first.icc == second.icc == PROFILE
            tags, before = (dict(metadata.exif_of(found)) for found in (second, first))
            assert tags.pop(ExifTags.Base.Software) == metadata.SOFTWARE
            assert tags == before
            assert tags[ExifTags.Base.Make] == "Camera"
            assert ExifTags.Base.Orientation not in tags
