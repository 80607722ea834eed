import multiprocessing
import os
import re
import shutil
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deblur.data.blur import SyntheticBlur
from deblur.data.camera import CameraShake
from deblur.data.datamodule import check_files
from deblur.data.files import images
from deblur.data.layouts import LISTERS, DatasetError, Listing, Pair, find_pairs
from deblur.data.pairs import generator_of
from deblur.tools.doctor import diagnose, examine, find_shift, leaks, main
from tests.conftest import ASSETS

pytestmark = pytest.mark.commands
# The doctor's words where they are others.
NAMED = {"truncated": "unreadable", "truncated sharp": "unreadable", "linear": "gamma"}


def scene(*seed, height=96, width=112):
    """An image with edges and texture at several scales, as photographs have."""
    generator, image = generator_of(*seed), torch.zeros(1, 3, height, width)
    for cells in (3, 6, 12, 24, 48):
        noise = torch.rand(1, 3, cells, cells, generator=generator)
        image += torch.nn.functional.interpolate(noise, (height, width), mode="nearest") / cells**0.5
    return (0.1 + 0.8 * image / image.max())[0]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A clean dataset of two splits, four pairs each."""
    root = tmp_path_factory.mktemp("clean")
    shake = SyntheticBlur([CameraShake(length=(4, 8))], shot_noise=(0, 2e-4))
    for split in ("train", "test"):
        for i in range(4):
            wide = scene(split, i, height=96 + 2 * shake.margin, width=112 + 2 * shake.margin)
            (blurry,), (sharp,) = shake(wide[None], [generator_of("blur", split, i)])
            images.write(root / split / "sharp" / f"{split}{i}.png", sharp)
            images.write(root / split / "blur" / f"{split}{i}.png", blurry)
    return root


def counts(found):
    """The number of pairs of each split of a diagnosis."""
    return {split: len(listing.pairs) for split, listing in found.splits.items()}


def change(file, function):
    images.write(file, function(images.read(file)))


def swap(blurry, sharp):
    blurry.rename(blurry.parent / "swap")
    sharp.rename(blurry)
    (blurry.parent / "swap").rename(sharp)


def leak(blurry, sharp):
    other = "test" if blurry.parts[-3] == "train" else "train"
    for file in (blurry, sharp):
        shutil.copyfile(file, file.parents[2] / other / file.parent.name / f"copy_{file.name}")


def deepen(blurry, sharp):
    Image.fromarray(images.read(blurry).mean(0).mul(65535).round().numpy().astype("uint16")).save(blurry)


KINDS = {  # a kind of damage, and how it is done to a pair's files
    "unpaired": lambda blurry, sharp: blurry.unlink(),
    "unreadable": lambda blurry, sharp: sharp.write_text("no image"),
    "truncated": lambda blurry, sharp: os.truncate(blurry, blurry.stat().st_size - 2000),
    "truncated sharp": lambda blurry, sharp: os.truncate(sharp, sharp.stat().st_size - 2000),
    "size": lambda blurry, sharp: change(blurry, lambda image: image[:, 1:]),
    "swapped": swap,
    "shift": lambda blurry, sharp: change(blurry, lambda image: image.roll((5, -7), (1, 2))),
    "identical": lambda blurry, sharp: shutil.copyfile(sharp, blurry),
    "leak": leak,
    "gamma": lambda blurry, sharp: change(blurry, lambda image: image**2.2),
    "linear": lambda blurry, sharp: change(sharp, lambda image: image**2.2),
    "depth": deepen,
}


def plant(root, kind, split, number):
    """Do one kind of damage to pair `number` of a split."""
    KINDS[kind](*(root / split / side / f"{split}{number}.png" for side in ("blur", "sharp")))


@pytest.fixture
def root(clean, tmp_path):
    """A copy of the clean dataset."""
    return shutil.copytree(clean, tmp_path / "data")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([*KINDS]), st.sampled_from(["train", "test"])), min_size=1, max_size=4))
@example([(kind, "train") for kind in [*KINDS][:4]])
@example([(kind, "test") for kind in [*KINDS][4:8]])
@example([(kind, "train") for kind in [*KINDS][8:]])
def test_every_planted_fault_is_found_and_no_other(clean, tmp_path_factory, planted):
    root, expected = shutil.copytree(clean, tmp_path_factory.mktemp("ill") / "data"), set()
    for number, (kind, split) in enumerate(planted):
        plant(root, kind, split, number)
        expected.add((NAMED.get(kind, kind), f"{split}{number}"))
    found = set()
    for kind, sentence in diagnose(str(root), num_workers=0).faults:
        found |= {(kind, stem) for stem in re.findall(r"/(\w+)\.png", sentence) if not stem.startswith("copy_")}
        assert sentence.endswith(".")
        assert "\n" not in sentence
    assert found == expected
    shutil.rmtree(root)


def test_a_dataset_without_splits_is_one_split_and_warned_of(clean, tmp_path, capsys):
    root = shutil.copytree(clean / "train", tmp_path / "data")
    for side in ("blur", "sharp"):  # an image twice in a split leaks nowhere
        shutil.copyfile(root / side / "train0.png", root / side / "again.png")
    found = diagnose(str(root), num_workers=0)
    assert counts(found) == {"test": 5}
    assert found.faults == []
    assert main(str(root), num_workers=0) == 0
    said = capsys.readouterr().out
    assert f"{root}: layout flat, variant blur: 5 pairs\n  warning: no folders train/ and val/" in said


def test_the_shift_is_measured():
    wide = scene("shift", height=160, width=160)
    (blurry,), (sharp,) = SyntheticBlur([CameraShake(length=(8, 8))])(wide[None], [generator_of(1)])
    blurry, sharp = blurry.mean(0), sharp.mean(0)
    for right, down in ((0, 0), (5, -3), (-11, 6)):
        found = find_shift(blurry.roll((down, right), (0, 1)), sharp)
        assert abs(found[0] - right) <= 1
        assert abs(found[1] - down) <= 1
        assert (found[2] < 0.25) == (right != 0)


def test_noise_of_the_blurry_side_is_no_detail(tmp_path):
    shake = SyntheticBlur([CameraShake(length=(2, 3))], shot_noise=(1e-3, 1e-3))
    calm = 0.15 + 0.3 * scene("calm", height=128, width=128)
    files = tmp_path / "blurry.png", tmp_path / "sharp.png"
    for file, (image,) in zip(files, shake(calm[None], [generator_of(0)]), strict=True):
        images.write(file, image)
    assert examine(Pair("calm", *files))[0] == []


def test_counts_of_published_datasets_and_scenes_in_two_splits(tmp_path, clean, capsys):
    for split in ("train", "test"):
        for i, place in enumerate(("GOPR0372_07_00", "GOPR0384_11_00" if split == "test" else "GOPR0378_13_00")):
            for side in ("blur", "sharp"):
                target = tmp_path / split / place / side / f"00000{i}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(clean / split / side / f"{split}{i}.png", target)
    found = diagnose(str(tmp_path), num_workers=0)
    assert found.splits["train"].layout == "gopro"
    assert [fault.sentence for fault in found.faults] == ["The scene GOPR0372_07_00 is in test and train."]
    published = "the dataset whose layout this is, gopro, has {} as published"
    counts = {"train": 2103, "test": 1111}
    assert found.remarks == [f"{split} has 2 pairs; {published.format(count)}" for split, count in counts.items()]
    shutil.rmtree(tmp_path / "test" / "GOPR0372_07_00")
    assert main(str(tmp_path), num_workers=0) == 0  # a set of one's own has other counts
    said = capsys.readouterr().out
    assert "  remark: train has 2 pairs; " in said
    assert said.endswith("no faults\n")


def test_a_split_that_cannot_be_read_is_a_fault_and_a_missing_one_is_none(root):
    shutil.rmtree(root / "train" / "blur")
    found = diagnose(str(root), num_workers=0)
    assert counts(found) == {"test": 4}
    ((kind, sentence),) = found.faults
    assert kind == "split"
    assert "no folder blur beside sharp" in sentence


def test_table_and_exit_code(root, tmp_path, capsys):
    assert main(str(root), num_workers=0) == 0
    assert "layout flat, variant blur: 4 pairs in train, 4 pairs in test\nno faults" in capsys.readouterr().out
    plant(root, "swapped", "test", 1)
    assert main(str(root), num_workers=2) == 1
    assert re.search(r"^  swapped .*sharp/test1.png is blurrier .*\n1 swapped$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(DatasetError, match="not a folder"):
        main(str(tmp_path / "gone"))


def test_the_cheap_part_names_every_damaged_file(root):
    pairs = find_pairs(root, "train") + find_pairs(root, "test")
    check_files(pairs)
    check_files([pair.sharp for pair in pairs])
    for number, kind in enumerate(("unreadable", "truncated", "size", "truncated sharp")):
        plant(root, kind, "train", number)
    with pytest.raises(DatasetError) as caught:
        check_files(pairs)
    sentence = str(caught.value)
    assert all(f"train{number}.png" in sentence for number in range(4))
    assert not re.search(r"test\d\.png", sentence)
    assert "4 files or pairs cannot be used" in sentence
    assert "\n" not in sentence
    with pytest.raises(images.ImageError, match=r"sharp/train0\.png is not an image"):
        check_files([pair.sharp for pair in pairs[:3]])


def test_a_killed_process_ends_as_one_sentence(tmp_path):
    for side in ("blur", "sharp"):
        for i in range(16):
            images.write(tmp_path / "data" / side / f"{i}.png", torch.rand(3, 16, 16))

    before = set(multiprocessing.active_children())  # loaders of other tests, perhaps

    def kill():
        while len(set(multiprocessing.active_children()) - before) < 2:
            time.sleep(0.001)
        time.sleep(0.3)  # both are launched by then, and still importing
        (set(multiprocessing.active_children()) - before).pop().kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(DatasetError, match=r"^A process was killed.*\.$"):
        main(str(tmp_path / "data"), num_workers=2)


def test_real_pairs_have_no_faults():
    assert [fault for pair in find_pairs(ASSETS / "pairs") for fault in examine(pair)[0]] == []


@pytest.mark.parametrize("layout", sorted(LISTERS))
def test_a_scene_in_two_splits_is_a_leak_where_the_layout_has_scenes(tmp_path, layout):
    listing = Listing(layout, "blur", [Pair("scene/1", tmp_path, tmp_path)])
    assert bool(leaks({"train": listing, "test": listing}, [None, None])) == (layout in ("gopro", "realblur"))
