"""A file that changed is another one, also with as many bytes as before."""

import os

from restoration.manifest import Manifest


def test_an_image_written_again_with_as_many_bytes_is_not_done(tmp_path):
    image, out = tmp_path / "a.png", tmp_path / "out"
    image.write_bytes(b"12")
    out.mkdir()
    (out / "a.png").write_bytes(b"restored")
    manifest = Manifest(out, {"seed": 0})
    manifest.add(image, [out / "a.png"], {})
    assert manifest.has(image)
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    assert not manifest.has(image) and manifest.replaces(image, [])
