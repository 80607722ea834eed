"""Pairs in the layouts of datasets."""

import shutil
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
import torch

from deblur.data.files import images
from deblur.data.files.search import DataError
from deblur.data.layouts import (
    DatasetError,
    Listing,
    Pair,
    Source,
    find_pairs,
    find_sharp,
    holds_pairs,
    list_pairs,
    paired,
)


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
    assert pairs[0].blurry == tmp_path / blurry / "a.v2.jpg"
    assert pairs[0].sharp == tmp_path / sharp / "a.v2.png"


def test_splits_are_folders_of_the_root_or_the_root_itself(tmp_path):
    make(tmp_path / "flat", "train/blur/x/1.png", "train/sharp/x/1.png", "val/blur/2.png", "val/sharp/2.png")
    assert [names(find_pairs(tmp_path / "flat", split)) for split in ("train", "val")] == [["x/1"], ["2"]]
    with pytest.raises(DatasetError, match="no test folder, only train, val"):
        find_pairs(tmp_path / "flat", "test")
    with pytest.raises(DatasetError, match="missing is not a folder"):
        find_pairs(tmp_path / "missing")
    (tmp_path / "flat").rename(tmp_path / "flat:test")  # a folder is itself before it is a split of another one
    assert names(find_pairs(tmp_path / "flat:test", "val")) == ["2"]
    root = published(tmp_path) / "GOPRO_Large"
    wanted = [f"GOPR0384_11_{scene}/000001" for scene in ("00", "05")]
    assert names(find_pairs(root, "test")) == names(find_pairs(root / "test")) == wanted


def test_everything_unpaired_is_in_one_error(tmp_path):
    make(tmp_path, *(f"blur/{i}.png" for i in range(9)), *(f"sharp/{i}.png" for i in range(5, 10)))
    with pytest.raises(DatasetError) as caught:
        find_pairs(tmp_path)
    sentence, first = str(caught.value), ", ".join(str(tmp_path / "blur" / f"{i}.png") for i in range(4))
    assert sentence.endswith(f"has 6 images without a partner of the same name: {first} and others.")


@pytest.mark.parametrize(
    ("files", "words", "variant"),
    [
        ([], "holds no pairs", "blur"),
        (["a.png"], "holds no pairs: neither it nor a folder in it has the folders blur/", "blur"),
        (["sharp/a.png"], "no folder blur beside sharp", "blur"),
        (["input/a.png"], "no folder sharp beside input", "blur"),
        (["blur/a.png", "sharp/a.png"], "no folder blur_gamma", "blur_gamma"),  # a variant is never replaced
        (["blurry/a.png", "input/a.png", "gt/a.png"], "both blurry and input", "blur"),
        (["blur/a.png", "blur/a.jpg", "gt/a.png"], "the same name", "blur"),
        (["test/A/blur/1.png", "test/A/sharp/1.png", "test/B/blur/7.png"], r"1 images .*7\.png", "blur"),
    ],
)
def test_unusable_folders(tmp_path, files, words, variant):
    with pytest.raises(DatasetError, match=words):
        find_pairs(make(tmp_path, *files), variant=variant)


def published(root: Path) -> Path:
    """A small tree of every published dataset, named as downloaded."""
    for scene in ("GOPR0384_11_00", "GOPR0384_11_05", ".trash"):  # hidden: no scene
        for kind in ("blur", "blur_gamma", "sharp"):
            make(root / "GOPRO_Large" / "test" / scene / kind, "000001.png")
    make(root / "HIDE_dataset", "train/11fromGOPR1089.png", "test/test-close-ups/1fromGOPR1034.png")
    make(root / "HIDE_dataset", "test/test-long-shot/13fromGOPR0975.png")
    make(root / "HIDE_dataset/GT", "11fromGOPR1089.png", "1fromGOPR1034.png", "13fromGOPR0975.png")
    for letter, steps in (("J", "ECC"), ("R", "BM3D_ECC")):
        camera = f"RealBlur-{letter}_{steps}_IMCORR_centroid_itensity_ref"
        for split, scene, shots in (("train", "scene001", (1, 2)), ("test", "scene230", (7,))):
            lines = ""
            for shot in shots:
                files = f"{camera}/{scene}/gt/gt_{shot}.png", f"{camera}/{scene}/blur/blur_{shot}.png"
                make(root / "RealBlur", *files)
                lines += " ".join(files) + " \n"  # the official lists end lines with a space
            (root / "RealBlur" / f"RealBlur_{letter}_{split}_list.txt").write_text(lines)
    for split, clip in (("train", "000"), ("val", "029")):
        for kind in ("blur", "blur_comp", "sharp"):
            make(root / "REDS" / split / f"{split}_{kind}" / clip, "00000000.png", "00000001.png")
        make(root / "REDS" / split / f"{split}_blur_jpeg" / clip, "00000000.jpg", "00000001.jpg")
    for split, shot in (("train", "0001/000001"), ("val", "0016/001317"), ("test", "0001/000022")):
        place = f"RSBlur/{shot}"
        make(root / "rs", f"{place}/real_blur/real_blur.png", f"{place}/avg65_img/avg_blur.png")
        make(root / "rs", f"{place}/gt/gt_sharp.png")
        line = f"{place}/gt/gt_sharp.png {place}/real_blur/real_blur.png\n"
        (root / "rs" / f"RSBlur_real_{split}.txt").write_text(line)
    return root


# The place, the layout found there, the split, the variant, the number of pairs, and of the first its name and ends.
PUBLISHED = """
GOPRO_Large gopro test blur 2 GOPR0384_11_00/000001 11_00/blur/000001.png 11_00/sharp/000001.png
GOPRO_Large gopro test blur_gamma 2 GOPR0384_11_00/000001 11_00/blur_gamma/000001.png 11_00/sharp/000001.png
HIDE_dataset hide train blur 1 11fromGOPR1089 train/11fromGOPR1089.png GT/11fromGOPR1089.png
HIDE_dataset hide test blur 2 13fromGOPR0975 long-shot/13fromGOPR0975.png GT/13fromGOPR0975.png
RealBlur realblur train blur 2 scene001/blur_1 ref/scene001/blur/blur_1.png scene001/gt/gt_1.png
RealBlur realblur test R 1 scene230/blur_7 R_BM3D_ECC_IMCORR_centroid_itensity_ref/scene230/blur/blur_7.png gt/gt_7.png
REDS reds train blur 2 000/00000000 train/train_blur/000/00000000.png train_sharp/000/00000000.png
REDS reds val blur_jpeg 2 029/00000000 val_blur_jpeg/029/00000000.jpg val_sharp/029/00000000.png
REDS/val reds val blur_comp 2 029/00000000 val_blur_comp/029/00000000.png val_sharp/029/00000000.png
rs rsblur val blur 1 0016/001317 RSBlur/0016/001317/real_blur/real_blur.png 001317/gt/gt_sharp.png
rs rsblur test avg65_img 1 0001/000022 RSBlur/0001/000022/avg65_img/avg_blur.png 000022/gt/gt_sharp.png
"""


@pytest.mark.parametrize("row", PUBLISHED.strip().splitlines())
def test_published_datasets_are_found_and_split_as_their_authors_say(tmp_path, row):
    place, layout, split, variant, count, name, blurry, sharp = row.split()
    listing = list_pairs(published(tmp_path) / place, split, variant)
    assert listing.layout == layout
    assert listing.alone == []
    assert len(listing.pairs) == int(count)
    first = listing.pairs[0]
    assert first.blurry.as_posix().endswith(blurry)
    assert first.sharp.as_posix().endswith(sharp)
    assert first.name == name
    assert all(pair.blurry.is_file() and pair.sharp.is_file() for pair in listing.pairs)


@pytest.mark.parametrize(
    ("place", "split", "variant", "words"),
    [
        ("REDS", "test", "blur", "not public"),
        ("HIDE_dataset", "val", "blur", "train and test"),
        ("RealBlur", "train", "blur_gamma", "knows J and R, not blur_gamma"),
        ("RealBlur", "val", "J", r"RealBlur_J_val_list\.txt is missing"),
        ("REDS", "train", "blur_comp", "no folder train_blur_comp"),
        ("RealBlur", "train", "J", r"train_list\.txt has a line that is not SHARP BLURRY: gt/gt_1\.png\."),
    ],
)
def test_what_published_datasets_do_not_have(tmp_path, place, split, variant, words):
    root = published(tmp_path)
    shutil.rmtree(root / "REDS/train/train_blur_comp")
    (root / "RealBlur/RealBlur_J_train_list.txt").write_text("gt/gt_1.png\n")
    with pytest.raises(DatasetError, match=words):
        list_pairs(root / place, split, variant)


def test_one_camera_of_realblur_alone(tmp_path):
    root = published(tmp_path) / "RealBlur"
    (root / "RealBlur_J_train_list.txt").unlink()
    assert names(find_pairs(root, "train", "R")) == ["scene001/blur_1", "scene001/blur_2"]
    for file in root.glob("*.txt"):
        file.unlink()
    with pytest.raises(DatasetError, match=r"RealBlur_R_train_list\.txt is missing"):
        list_pairs(root, "train", "R")  # known by its folder, and told what it lacks


def test_images_alone_in_published_datasets(tmp_path):
    root = published(tmp_path)
    files = ["HIDE_dataset/GT/13fromGOPR0975.png", "rs/RSBlur/0001/000022/gt/gt_sharp.png"]
    for file in (*files, "RealBlur/RealBlur-J_ECC_IMCORR_centroid_itensity_ref/scene230/gt/gt_7.png"):
        (root / file).unlink()
        with pytest.raises(DatasetError, match=r"1 images without a partner"):
            find_pairs(root / file.partition("/")[0], "test")


def test_csv_manifest(tmp_path):
    make(tmp_path, "a/1.png", "b/1.png", "a/2.png", "b/other.png", "a/4.png")
    manifest = tmp_path / "PAIRS.CSV"
    manifest.write_text("sharp,blurry, Split\nb/1.png,a/1.png,train\nb/other.png,a/2.png, Test \n")
    assert find_pairs(manifest, "train") == [Pair("a/1", tmp_path / "a/1.png", tmp_path / "b/1.png")]
    assert names(find_pairs(manifest, "test")) == ["a/2"]
    for above in (tmp_path, Path("..", tmp_path.name)):  # by the pair's name files are written below another folder
        manifest.write_text(f"sharp,blurry\n{above}/b/1.png,{above}/a/1.png\n")
        name = (above / "a/1").as_posix().removeprefix("/").removeprefix("../")
        assert find_pairs(manifest) == [Pair(name, tmp_path / above / "a/1.png", tmp_path / above / "b/1.png")]
    manifest.write_text("sharp,blurry\nb/gone.png,a/gone.png\nb/other.png,a/2.png\nb/4.png,a/4.png\nb/1.png,a/1.png")
    listing = list_pairs(manifest, "train")
    assert names(listing.pairs) == ["a/1", "a/2"]
    assert listing.alone == [tmp_path / "a/4.png", tmp_path / "a/gone.png"]  # of a missing pair the blurry side
    for lines, words in {
        "sharp,blurry\nb/1.png,a/1.png\nb/gone.png,a/2.png\n": r"1 images .*a/2\.png",
        "b/1.png,a/1.png\n": "blurry and sharp among them",
        "sharp,blurry\nb/1.png,\n": r"PAIRS\.CSV has a line without the two paths",
        "sharp,blurry,split\nb/1.png,a/1.png,train\nb/1.png,a/2.png,trian\na,b\n": r"'trian' as .* lines: 2\)",
        "sharp,blurry,split\nb/1.png,a/1.png,\n": "has '' as a split, .*: write train, val, test there",
        "sharp,blurry\nb/1.png,a/1.png\nb/other.png,a/1.png\n": r"a/1\.png and .*a/1\.png have the same name",
    }.items():
        manifest.write_text(lines)
        with pytest.raises(DatasetError, match=words):
            find_pairs(manifest)


def test_two_folders_of_any_name(tmp_path):
    make(tmp_path, "shaky images/1.png", "crisp/1.jpg")
    source = Source(blurry=str(tmp_path / "shaky images"), sharp=str(tmp_path / "crisp"))
    assert names(source.list_pairs("train").pairs) == ["1"] == names(source.list_pairs("test").pairs)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "root or by its two folders"),
        ({"root": "a", "blurry": "b", "sharp": "c"}, "root or by its two folders"),
        ({"blurry": "b"}, "root or by its two folders"),
        ({"root": "a", "weight": 0.0}, "weight must be above 0"),
        ({"root": "a", "split": "dev"}, "split must be one of train, val, test, not dev"),
    ],
)
def test_impossible_sources(values, words):
    with pytest.raises(ValueError, match=words):
        Source(**values)


def test_a_source_has_a_variant_of_its_own_or_that_of_the_run(tmp_path):
    root = str(published(tmp_path) / "GOPRO_Large")
    assert Source(root).list_pairs("test", "blur_gamma").variant == "blur_gamma"
    assert Source(root, variant="blur_gamma").list_pairs("test", "blur").variant == "blur_gamma"


def test_what_is_taken_for_pairs_and_what_for_sharp_photographs(tmp_path):
    make(tmp_path / "photos", "train/a.png", "train/b.png")
    assert not holds_pairs(tmp_path / "photos", "train")
    make(tmp_path / "scenes", "train/A/blur/1.png", "train/A/sharp/1.png", "train/B/sharp/1.png")
    assert holds_pairs(tmp_path / "scenes", "train")  # one scene with blurry frames is enough
    make(tmp_path / "flat", "blur/1.png", "sharp/1.png")
    assert holds_pairs(tmp_path / "flat", "train")
    (tmp_path / "flat" / "train.txt").write_text("sharp/1.png\n")
    assert not holds_pairs(tmp_path / "flat", "train")  # a list of photographs decides


def test_a_pair_of_two_sizes(tmp_path):
    images.write(tmp_path / "blur" / "a.png", torch.zeros(3, 2, 3))
    images.write(tmp_path / "sharp" / "a.png", torch.zeros(3, 2, 2))
    (pair,) = find_pairs(tmp_path)
    with pytest.raises(DatasetError, match=r"^A pair differs in size: .*blur/a\.png has 3x2, .*sharp/a\.png has 2x2"):
        pair.read()


def test_lists_of_sharp_photographs(tmp_path):
    make(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "train.txt").write_text("c.png\na.png\n")
    assert find_sharp(tmp_path, "train") == [tmp_path / "a.png", tmp_path / "c.png"]
    for lines, words in {"gone.png\n": r"lists gone\.png", "\n": r"train\.txt lists no file"}.items():
        (tmp_path / "train.txt").write_text(lines)
        with pytest.raises(DataError, match=words):
            find_sharp(tmp_path, "train")


@pytest.mark.parametrize("layout", ["flat", "gopro", "csv"])
def test_a_pair_may_have_its_names_in_two_forms_of_unicode(tmp_path, layout):
    """As when one side was made on macOS: the accents look the same."""
    composed, decomposed = (unicodedata.normalize(form, "Grüße") for form in ("NFC", "NFD"))
    scene = "scene" if layout == "gopro" else "."
    make(tmp_path, f"{scene}/blur/{composed}/{decomposed}.png", f"{scene}/sharp/{decomposed}/{composed}.jfif")
    if layout == "csv":
        root = tmp_path / "pairs.csv"
        root.write_text(f"blurry,sharp\nblur/{decomposed}/{composed}.png,sharp/{composed}/{decomposed}.jfif\n")
        expected = f"blur/{composed}/{composed}"
    else:
        root = tmp_path
        expected = (PurePosixPath(scene) / composed / composed).as_posix()
    [pair] = find_pairs(root)
    assert pair.name == expected
    assert pair.blurry.is_file() and pair.sharp.is_file()


def test_a_layout_of_its_own_that_lists_nothing_holds_no_pairs():
    with pytest.raises(DatasetError, match=r"BURSTS holds no pairs in this split, read as the layout bursts"):
        paired(Listing("bursts", "blur", []), "BURSTS")
