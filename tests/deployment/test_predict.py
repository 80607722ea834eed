"""tools.predict reads and writes as sample.py does, and needs no more packages than its page names."""

import re
import shlex
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import tifffile
from packaging.requirements import Requirement
from PIL import ExifTags, Image, ImageCms

from deblur.data.files import metadata
from deblur.tools import predict
from tests.conftest import ROOT

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("onnx")]  # which share the exports


@pytest.fixture
def values():
    y, x = np.mgrid[:40, :56]
    return np.stack([4 * x, 6 * y, 200 - 3 * x], axis=-1).astype(np.uint8)


def run(place, folder, name, target):
    predict.predict(str(place / "any"), str(folder / name), str(folder / target), "cpu")
    return folder / target


def test_the_file_says_that_a_program_has_restored_it(place, tmp_path, values):
    for suffix in (".jpg", ".png", ".tif"):
        Image.fromarray(values).save(tmp_path / f"a{suffix}")
        assert metadata.SOURCE.encode() in run(place, tmp_path, f"a{suffix}", f"b{suffix}").read_bytes()


def exif():
    block = Image.Exif()
    block[ExifTags.Base.Make], block[ExifTags.Base.Orientation] = "Camera", 6
    block.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ExposureTime] = 0.5
    return block


def test_a_profile_of_inks_does_not_stay_with_other_colours(place, tmp_path, values):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(values).convert("CMYK").save(tmp_path / "a.jpg", icc_profile=profile[:16] + b"CMYK" + profile[20:])
    with Image.open(run(place, tmp_path, "a.jpg", "b.jpg")) as found:
        assert found.mode == "RGB"
        assert "icc_profile" not in found.info


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_tags_density_and_quality_are_those_of_sample_py(place, tmp_path, values, suffix):
    block = exif()
    block.load(block.tobytes())  # as Pillow wants it for TIFF
    Image.fromarray(values).save(tmp_path / f"a{suffix}", exif=block, dpi=(300, 200))
    with Image.open(run(place, tmp_path, f"a{suffix}", f"b{suffix}")) as found:
        assert found.size == (40, 56)
        assert found.info["dpi"] == (200, 300)
        tags = found.getexif()
        assert tags[ExifTags.Base.Make] == "Camera"
        assert tags.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ExposureTime] == 0.5
        assert tags.get(ExifTags.Base.Orientation, 1) == 1
        if suffix == ".jpg":
            assert found.layer[0][1:3] == found.layer[1][1:3]
            assert sum(found.quantization[0]) < 500


def test_transparency_and_sixteen_bits_of_colour_are_kept_or_said(place, tmp_path, values, capsys):
    alpha = np.where(values[..., :1] > 100, 255, 0).astype(np.uint8)
    Image.fromarray(np.dstack([values, alpha])).save(tmp_path / "a.png")
    with Image.open(run(place, tmp_path, "a.png", "b.png")) as found:
        assert np.array_equal(found.getchannel("A"), alpha[..., 0])
    assert not capsys.readouterr().err
    with Image.open(run(place, tmp_path, "a.png", "b.jpg")) as found:
        assert (np.array(found)[8:32, :20] > 250).all()
    assert "put on white" in capsys.readouterr().err
    tifffile.imwrite(tmp_path / "deep.tif", values * np.uint16(257), photometric="rgb")
    found = tifffile.imread(run(place, tmp_path, "deep.tif", "b.tif"))
    assert found.dtype == np.uint16
    assert (found % 257 != 0).any()


def test_the_photograph_is_not_overwritten(place, tmp_path, values):
    Image.fromarray(values).save(tmp_path / "a.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(ValueError, match="is the photograph itself"):
        run(place, tmp_path, "a.png", "link.png")


def named_packages():
    """The packages that docs/deployment.md says predict needs."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    return shlex.split(re.search(r"^pip install (numpy .*?) +#", page, re.MULTILINE)[1])


def needed(names):
    """The distributions of packages and of all that these require."""
    found, left = {}, list(names)
    while left:
        requirement = Requirement(left.pop())
        extras = requirement.extras or {""}
        if requirement.name in found and not requirement.extras:
            continue
        found[requirement.name] = distribution(requirement.name)
        for more in map(Requirement, found[requirement.name].requires or ()):
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(str(more).partition(";")[0])
    return found.values()


def test_it_runs_where_there_is_only_what_its_page_names(place, tmp_path, values):
    Image.fromarray(values).save(tmp_path / "a.png")
    venv.create(tmp_path / "alone", symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "alone" / "lib" / version / "site-packages"
    for package in needed(named_packages()):
        for part in {file.parts[0] for file in package.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / part).exists():
                (packages / part).symlink_to(Path(package.locate_file(part)).resolve())
    words = ["-m", "tools.predict", place / "any", tmp_path / "a.png", tmp_path / "b.png"]
    command = [tmp_path / "alone" / "bin" / "python", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert Image.open(tmp_path / "b.png").size == (56, 40)
