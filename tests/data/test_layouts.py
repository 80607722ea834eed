from pathlib import Path

import pytest
import torch

from data import images
from data.layouts import DatasetError, find_pairs

SHARED = Path(__file__).parents[3] / "shared"


def make(root: Path, *names: str) -> Path:
    for name in names:
        images.write(root / name, torch.zeros(3, 2, 2))
    return root


def names(pairs):
    return [pair.name for pair in pairs]


@pytest.mark.parametrize("blurry", ["blur", "blurry", "input"])
@pytest.mark.parametrize("sharp", ["sharp", "gt", "target", "clean"])
def test_flat(tmp_path, blurry, sharp):
    make(tmp_path, f"{blurry}/b.png", f"{blurry}/a.v2.jpg", f"{sharp}/a.v2.png", f"{sharp}/b.png")
    pairs = find_pairs(tmp_path)
    assert names(pairs) == ["a.v2", "b"]
    assert (
        pairs[0].blurry == tmp_path / blurry / "a.v2.jpg" and pairs[0].sharp == tmp_path / sharp / "a.v2.png"
    )


def test_flat_with_subfolders_and_splits(tmp_path):
    make(tmp_path, "train/blur/x/1.png", "train/sharp/x/1.png", "val/blur/2.png", "val/sharp/2.png")
    assert names(find_pairs(tmp_path, "train")) == ["x/1"]
    assert names(find_pairs(tmp_path, "val")) == ["2"]
    with pytest.raises(DatasetError, match="no test folder, only train, val"):
        find_pairs(tmp_path, "test")


def test_gopro(tmp_path):
    for scene in ("GOPR0384_11_05", "GOPR0384_11_00"):
        for kind in ("blur", "blur_gamma", "sharp"):
            make(tmp_path / "test" / scene / kind, "000002.png", "000001.png")
    make(tmp_path / "train", "GOPR0372_07_00/blur/000047.png", "GOPR0372_07_00/sharp/000047.png")
    pairs = find_pairs(tmp_path, "test", "blur_gamma")
    frames = ("000001", "000002")
    assert names(pairs) == [f"GOPR0384_11_{scene}/{frame}" for scene in ("00", "05") for frame in frames]
    assert pairs[3].blurry == tmp_path / "test/GOPR0384_11_05/blur_gamma/000002.png"
    assert pairs[3].sharp == tmp_path / "test/GOPR0384_11_05/sharp/000002.png"
    assert names(find_pairs(tmp_path, "train")) == ["GOPR0372_07_00/000047"]
    assert names(find_pairs(tmp_path / "test")) == names(pairs)  # the split's folder itself


def test_everything_unpaired_is_in_one_error(tmp_path):
    make(tmp_path, *(f"blur/{i}.png" for i in range(9)), *(f"sharp/{i}.png" for i in range(5, 10)))
    with pytest.raises(DatasetError) as caught:
        find_pairs(tmp_path)
    sentence = str(caught.value)
    assert "6 pictures" in sentence and str(tmp_path / "blur" / "0.png") in sentence and "\n" not in sentence


def test_a_gopro_scene_without_sharp_frames(tmp_path):
    make(tmp_path, "test/A/blur/1.png", "test/A/sharp/1.png", "test/B/blur/7.png")
    with pytest.raises(DatasetError, match=r"1 pictures .*7\.png"):
        find_pairs(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "holds no pairs"),
        (["a.png"], "holds no pairs"),
        (["sharp/a.png"], "no folder blur beside sharp"),
        (["input/a.png"], "no folder sharp beside input"),
        (["blurry/a.png", "input/a.png", "gt/a.png"], "both blurry and input"),
        (["blur/a.png", "blur/a.jpg", "gt/a.png"], "the same name"),
    ],
)
def test_unusable_folders(tmp_path, files, words):
    with pytest.raises(DatasetError, match=words):
        find_pairs(make(tmp_path, *files))


def test_the_variant_is_never_replaced(tmp_path):
    with pytest.raises(DatasetError, match="no folder blur_gamma"):
        find_pairs(make(tmp_path, "blur/a.png", "sharp/a.png"), variant="blur_gamma")


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(DatasetError, match="missing is not a folder"):
        find_pairs(tmp_path / "missing")
    (tmp_path / "blur").mkdir()
    (tmp_path / "sharp").mkdir()
    with pytest.raises(DatasetError, match="holds no pairs"):
        find_pairs(tmp_path)


@pytest.mark.skipif(not (SHARED / "realblur").is_dir(), reason="needs ../shared")
@pytest.mark.parametrize(("folder", "count"), [("gopro", 8), ("reds", 6), ("captured", 4)])
def test_real_pairs(folder, count):
    assert len(find_pairs(SHARED / "realblur" / folder)) == count
