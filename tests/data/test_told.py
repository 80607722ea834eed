"""What a file says besides its pixels comes through, kind by kind; and a round trip of every form of every format."""

import io
import struct
import zlib

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch
from PIL import ExifTags, Image, ImageCms, TiffImagePlugin

from deblur.data import images, metadata
from deblur.data.search import HEIF, WRITABLE
from tests.data.test_formats import chunk
from tests.data.test_images import PROFILE, upright

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
    assert nclx_of(again(tmp_path / "a.png", ".avif")) == (9, transfer)
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
        assert found.pixels.dtype == torch.uint16 and found.grey == (channels == 1)
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
            assert page.extrasamples == (tifffile.EXTRASAMPLE.ASSOCALPHA,) and np.array_equal(page.asarray(), array)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("kinds", [["unspecified"], ["unassalpha", "unspecified"], ["unspecified", "unspecified"]])
def test_samples_that_are_no_alpha_stay_what_they_are(tmp_path, dtype, kinds):
    array = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (6, 8, 3 + len(kinds)), dtype)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", planarconfig="contig", extrasamples=kinds)
    found = images.read_file(tmp_path / "a.tif")
    assert (found.alpha is not None) == ("unassalpha" in kinds)
    page = tifffile.TiffFile(again(tmp_path / "a.tif", ".tif")).pages.first
    assert [kind.name.lower() for kind in page.extrasamples] == kinds and np.array_equal(page.asarray(), array)
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
        assert str(file) in sentence and sentence.endswith(".")
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
        assert np.array_equal(found.alpha[0, 0].numpy() / most, wanted) and found.grey
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
    assert b'tiff:ImageWidth="12"' in found.xmp and b'tiff:ImageLength="16"' in found.xmp
    assert b"<exif:PixelXDimension>12<" in found.xmp and b'tiff:XResolution="9"' in found.xmp


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
    assert b'xmp:Rating="5"' in left and metadata.SOURCE.encode() in left
    for word in (b"Motion", b"MicroVideo", b"Directory", b"Version", b"HasExtendedXMP"):
        assert word not in left


@pytest.mark.parametrize(
    "xmp", [b"no XML", b'<!DOCTYPE x [<!ENTITY a "b">]><x/>', b"<x>" * 100_000], ids=["text", "entity", "deep"]
)
def test_xmp_that_cannot_be_read_is_left_out(tmp_path, colours, xmp):
    image = images.ImageFile(colours, xmp=xmp + b" http://ns.adobe.com/hdr-gain-map/1.0/")
    images.write(tmp_path / "a.png", image.values, image)
    found = images.read_file(tmp_path / "a.png")
    assert found.xmp is None and found.remarks == ("has XMP that cannot be read, which is left out",)


@pytest.mark.parametrize("suffix", [".jpg", ".bmp"])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_was_transparent_is_white_where_there_is_no_alpha(tmp_path, suffix, mode):
    clear = Image.new(mode, (16, 16), (200, 0, 0, 0) if mode == "RGBA" else (40, 0))
    clear.paste((10, 20, 30, 255) if mode == "RGBA" else (20, 255), (0, 0, 8, 16))
    clear.save(tmp_path / "a.png")
    done = images.read(again(tmp_path / "a.png", suffix)) * 255
    wanted = torch.tensor([10.0, 20, 30] if mode == "RGBA" else [20.0] * 3)
    assert (done[..., :8].mean((1, 2)) - wanted).abs().max() < 2 and (done[..., 8:] > 252).all()
    assert "put on white" in remarks(tmp_path / "a.png", suffix) and "white" not in remarks(tmp_path / "a.png", ".png")


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
