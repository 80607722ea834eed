"""Files that tests make, and what they find in the written ones."""

import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageCms

from deblur.data.files import images, metadata

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def pil(pixels):
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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
    images.write(target, image.values, metadata.of_restoration(image, choice), depth)
    return target


def remarks(path, suffix):
    image = metadata.of_restoration(images.read_file(path), "keep")
    return " ".join([*image.remarks, *images.remarks_on(image, suffix)])


def upright(array, orientation):
    turned = {1: array, 2: array[:, ::-1], 3: np.rot90(array, 2), 4: array[::-1], 5: array.swapaxes(0, 1)}
    turned |= {6: np.rot90(array, -1), 7: np.rot90(array, 2).swapaxes(0, 1), 8: np.rot90(array, 1)}
    return turned[orientation]
