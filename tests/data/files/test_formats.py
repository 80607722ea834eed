"""Files that strangers made: formats by their content, and bounds on all that is not pixels."""

import io
import os
import struct
import zlib
from contextlib import nullcontext

import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deblur.data.files import formats, images
from deblur.data.files.kinds import NAME_OF, READ_SUFFIXES
from tests.conftest import fresh
from tests.data.files.made import chunk

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"


@pytest.mark.parametrize("suffix", [".tif", ".bmp"])
def test_an_image_has_at_most_so_many_pixels(tmp_path, suffix):
    file, width = tmp_path / f"a{suffix}", formats.MOST_PIXELS + 1
    if suffix == ".tif":
        tifffile.imwrite(file, shape=(1, width), dtype=np.uint8)
    else:
        Image.new("L", (3, 2)).save(file)
        content = bytearray(file.read_bytes())
        struct.pack_into("<LL", content, 18, width, 1)
        file.write_bytes(content)
    with pytest.raises(images.ImageError, match=rf"a\{suffix} .*decompression bomb: .*{width}"):
        images.read_file(file)


@pytest.mark.parametrize("tag", ["ImageWidth", "ImageLength"])
def test_a_tiff_without_pixels_is_named(tmp_path, tag):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8), np.uint8))
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as file:
        file.pages.first.tags[tag].overwrite(0)
    size = {"ImageWidth": "0x8", "ImageLength": "8x0"}[tag]
    for reader in (images.read_file, images.header_size):
        with pytest.raises(images.ImageError, match=rf"a\.tif has no pixels.*: its header says {size}\.$"):
            reader(tmp_path / "a.tif")


@pytest.mark.parametrize("suffix", sorted(READ_SUFFIXES))
def test_every_format_is_read_under_every_suffix(tmp_path, suffix):
    whole, mode = tmp_path / f"whole{suffix}", {".pgm": "L", ".pbm": "1"}.get(suffix, "RGB")
    Image.new("RGB", (20, 16), (200, 40, 90)).convert(mode).save(whole, NAME_OF[suffix])
    expected = images.read_file(whole)
    assert expected.remarks == ()
    assert expected.pixels.shape == (3, 16, 20)
    for other in sorted(READ_SUFFIXES):
        (tmp_path / f"other{other}").write_bytes(whole.read_bytes())
        found = images.read_file(tmp_path / f"other{other}")
        kind = NAME_OF[suffix]
        said = () if NAME_OF[other] == kind else (f"is a {kind} image in spite of its suffix",)
        assert found.remarks == said
        assert torch.equal(found.pixels, expected.pixels)


@pytest.mark.parametrize(
    "content", [POSTSCRIPT, b"8BPS\0\1" + bytes(99), b"SIMPLE  =", b"GIF89a" + bytes(20), b"text", b""]
)
def test_other_formats_are_refused(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    for reader in (images.read_file, images.header_size):
        with pytest.raises(images.ImageError, match=r"a\.png is not an image of a known format: save it as PNG"):
            reader(tmp_path / "a.png")


def png(before=b"", after=b""):
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0))
    return start + before + chunk(b"IDAT", zlib.compress(bytes(20))) + after + chunk(b"IEND", b"")


def sparse(path, before, size, after=b""):
    """A file with `size` zeros in its middle, which take no room on the disk."""
    with open(path, "wb") as file:
        file.write(before)
        file.seek(size, os.SEEK_CUR)
        file.write(after or b"\0")


def segment(marker, content):
    return b"\xff" + bytes([marker]) + struct.pack(">H", 2 + len(content)) + content


def jpeg(folder, *segments):
    Image.new("RGB", (3, 2)).save(folder / "plain.jpg")
    plain = (folder / "plain.jpg").read_bytes()
    return plain[:2] + b"".join(segments) + plain[2:]


def overlapping(count, size):
    """EXIF whose `count` tags each have the same `size` bytes as their value."""
    entries = b"".join(struct.pack("<HHLL", 300 + tag, 7, size, 8) for tag in range(count))
    return b"II*\0" + struct.pack("<L", size + 8) + bytes(size) + struct.pack("<H", count) + entries + bytes(4)


def zeros(megabytes):
    """A zlib stream of so many mebibytes of zeros: one block, and again and again the same."""
    deflater = zlib.compressobj(9, wbits=-15)
    block = deflater.compress(bytes(1 << 20)) + deflater.flush(zlib.Z_FULL_FLUSH)
    adler32 = (megabytes << 20) % 65521 << 16 | 1
    return b"\x78\xda" + block * megabytes + b"\x03\0" + struct.pack(">I", adler32)


def hostile(folder):
    """Files that hold far more than their pixels, or that never end."""
    files = {"text_after.png": png(after=chunk(b"iTXt", b"a\0\0\0\0\0" + bytes(40 << 20)))}
    files["chunks.png"] = png(chunk(b"tEXt", b"a\0b") * 1_000_000)
    files["profile.png"] = png(chunk(b"iCCP", b"a\0\0" + zeros(500)))
    exif = overlapping(3000, 300_000)
    tags = [segment(0xE1, b"Exif\0\0" + exif[at : at + 60_000]) for at in range(0, len(exif), 60_000)]
    files |= {"tags.jpg": jpeg(folder, *tags), "padded.jpg": jpeg(folder, *(b"\xff\0" + part for part in tags))}
    files["profiles.jpg"] = jpeg(folder, *[segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(60_000))] * 1000)
    files["tags.png"] = png(chunk(b"eXIf", overlapping(60_000, 20_000_000)))
    files["late_tags.png"] = png(after=chunk(b"eXIf", overlapping(60_000, 20_000_000)))
    files["comment.ppm"] = b"P6\n#" + b"a" * 100_000_000
    files["strip.tif"], files["tags.tif"] = inflated(folder), overlapping(60_000, 20_000_000)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sparse(folder / "text.png", png()[:33] + struct.pack(">I", (1 << 31) - 1) + b"tEXta\0", (1 << 31) - 3)
    with open(folder / "profile.tif", "wb") as file:  # 3 x 2 pixels, and a profile of 500 MB
        tags = [(256, 4, 1, 3), (257, 4, 1, 2), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
        tags += [(277, 3, 1, 1), (279, 4, 1, 6), (34675, 7, 500_000_000, 200)]
        directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHLL", *tag) for tag in tags) + bytes(4)
        file.write(b"II*\0\x10\0\0\0" + bytes(8) + directory)
        file.truncate(500_001_000)
    Image.new("RGB", (3, 2)).save(folder / "plain.webp", icc_profile=b"profile.")
    content = (folder / "plain.webp").read_bytes()
    at, size = content.index(b"ICCP"), 500_000_000
    head = b"RIFF" + struct.pack("<L", len(content) - 16 + size) + content[8:at] + b"ICCP" + struct.pack("<L", size)
    sparse(folder / "profile.webp", head, size, content[at + 16 :])
    return [folder / name for name in sorted({*files, "text.png", "profile.tif", "profile.webp"})]


def inflated(folder):
    """A TIFF of 2 x 3 pixels whose compressed strip has 2 GB."""
    tifffile.imwrite(folder / "plain.tif", np.zeros((2, 3), np.uint8), compression="zlib", rowsperstrip=2)
    strip = zeros(2000)
    with tifffile.TiffFile(folder / "plain.tif", mode="r+b") as file:
        end = file.filehandle.seek(0, os.SEEK_END)
        file.filehandle.write(strip)
        for tag, value in ((273, end), (279, len(strip))):
            file.pages.first.tags[tag].overwrite(value)
    return (folder / "plain.tif").read_bytes()


LIMITED = """
import resource, sys
from deblur.data.files import images
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
for path in sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 20, -1))
    for function in (images.header_size, images.read_file):
        try: function(path)
        except images.ImageError as error: said = str(error)
        else: said = "read"
    print(said)
"""


@pytest.fixture(scope="module")
def said_within_limits(tmp_path_factory):
    """What reading each file says, in one process that may use little more memory, and 20 seconds for each.

    By kind and path: files with much besides their pixels, chains of pages, EXIF in a circle.
    """
    kinds = {make: make(tmp_path_factory.mktemp(make.__name__)) for make in (chains, circles, hostile)}
    done = fresh(LIMITED, *(path for paths in kinds.values() for path in paths))
    assert done.returncode == 0, done.stderr[-800:]
    lines = iter(done.stdout.splitlines())
    return {make: {path: next(lines) for path in paths} for make, paths in kinds.items()}


@pytest.mark.xdist_group("limits")
def test_what_is_not_pixels_is_bounded_in_memory_and_time(said_within_limits):
    said = said_within_limits[hostile]
    may_be_read = {"strip.tif", "profile.png"}
    for path, sentence in said.items():
        assert str(path) in sentence or (path.name in may_be_read and sentence == "read"), sentence
        assert "MemoryError" not in sentence, sentence
    by_name = {path.name: sentence for path, sentence in said.items()}
    for name in ("text.png", "profile.tif", "profile.webp", "padded.jpg", "tags.jpg", "tags.png"):
        assert "it holds more than 32 MiB besides its pixels" in by_name[name]


KINDS_OF_CHUNKS = [b"ICCP", b"EXIF", b"XMP ", b"ABCD", b"VP8 ", b"VP8L", b"ALPH", b"ANMF"]


@given(st.lists(st.tuples(st.sampled_from(KINDS_OF_CHUNKS), st.integers(0, 300)), max_size=8))
def test_what_is_not_pixels_is_counted_chunk_by_chunk_whatever_their_sizes(chunks):
    """One of odd size is followed by a byte that belongs to none."""
    content = b"".join(kind + struct.pack("<L", size) + b"\xff" * size + b"\0" * (size % 2) for kind, size in chunks)
    file = io.BytesIO(b"RIFF" + struct.pack("<L", 4 + len(content)) + b"WEBP" + content)
    total = sum(formats.COUNTED_PER_READ + (0 if kind in KINDS_OF_CHUNKS[4:] else size) for kind, size in chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "MOST_METADATA", total)
        formats._check_chunks(file)
        if chunks:
            patch.setattr(formats, "MOST_METADATA", total - 1)
            with pytest.raises(formats.TooMuchError):
                formats._check_chunks(file)


@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_a_profile_within_the_limits_of_its_file_is_bounded_too(tmp_path, suffix):
    for size, refused in ((1 << 20, False), (33 << 20, True)):
        Image.new("RGB", (64, 64)).save(tmp_path / f"a{suffix}", icc_profile=bytes(size))
        with pytest.raises(images.ImageError, match="32 MiB besides its pixels") if refused else nullcontext():
            images.read_file(tmp_path / f"a{suffix}")


def chains(folder):
    """Pages that lead back to the first, or a million of them: empty ones, or thumbnails after a thumbnail."""
    paths = []
    for kind, tags in (("empty", b""), ("thumbnail", struct.pack("<HHLL", 254, 4, 1, 1))):
        for count in (1, 2, 1_000_000):
            paths.append(folder / f"{kind}_{count}.tif")
            tifffile.imwrite(paths[-1], np.full((2, 3), 7, np.uint8), subfiletype=int(kind == "thumbnail"))
            content = paths[-1].read_bytes()
            with tifffile.TiffFile(paths[-1]) as file:
                page, end = file.pages.first, len(content) + len(content) % 2
                following = page.offset + 2 + 12 * len(page.tags)
            content = content[:following] + struct.pack("<L", end) + content[following + 4 :]
            content = content.ljust(end, b"\0")
            head = struct.pack("<H", len(tags) // 12) + tags
            places = [end + (len(head) + 4) * (k + 1) for k in range(count - 1)]
            content += b"".join(head + struct.pack("<L", place) for place in [*places, page.offset])
            paths[-1].write_bytes(content)
    return paths


@pytest.mark.xdist_group("limits")
def test_a_chain_of_pages_is_not_followed(said_within_limits):
    said = said_within_limits[chains]
    assert list(said.values()) == ["read"] * 6
    for path in said:
        found = images.read_file(path)
        assert found.remarks == ("has several frames, the first is restored",)
        assert (found.pixels == 7).all()


def circles(folder):
    """Directories of EXIF that lead back to the first."""
    exif = b"II*\0\x08\0\0\0" + struct.pack("<HHHLLHHLLL", 2, 0x010F, 2, 3, 0x00626143, 0x8769, 4, 1, 8, 8)
    with Image.new("RGB", (3, 2)) as image:
        for suffix in ("jpg", "png", "webp"):
            image.save(folder / f"a.{suffix}", exif=b"Exif\0\0" + exif)
        image.save(folder / "a.tif")
    content = bytearray((folder / "a.tif").read_bytes())  # whose first directory becomes its own sub-directory
    first = struct.unpack_from("<L", content, 4)[0]
    struct.pack_into("<HHLL", content, first + 2 + 12 * 3, 0x8769, 4, 1, first)  # in place of the compression
    (folder / "a.tif").write_bytes(content)
    return sorted(folder.iterdir())


@pytest.mark.xdist_group("limits")
def test_directories_of_exif_that_lead_in_a_circle_end(said_within_limits):
    assert list(said_within_limits[circles].values()) == ["read"] * 4
