"""Pairs that are made of photographs, and the photographs and pairs of the demo."""

import json

import pytest
import torch

from deblur.checkpoints import network_hash
from deblur.data.blur import SyntheticBlur
from deblur.data.datamodule import DeblurDataModule
from deblur.data.files import images, search
from deblur.data.layouts import DatasetError, find_pairs
from deblur.data.pairs import read_pair
from deblur.data.predictions import Predictions, to_log_size
from deblur.models.networks.base import Cascade
from deblur.models.networks.nafnet import SlimPredictor
from deblur.tools import demo
from deblur.tools.make_pairs import main, read_blur, write_photo
from tests.tiny import RICH, TwoStages, stir, tiny_pipeline

pytestmark = pytest.mark.commands
SIDES = ("blur", "sharp")
NOISE = "      shot_noise: [0.001, 0.001]\n      jpeg: [60, 95]\n"
BLUR = """
data:
  batch_size: 4
  blur:
    class_path: deblur.data.blur.SyntheticBlur
    init_args:
      camera:
        - {class_path: deblur.data.camera.SixDegrees, init_args: {length: [2, 4]}}
        - {class_path: deblur.data.camera.CameraShake, init_args: {length: [3, 9]}}
        - {class_path: deblur.data.camera.Defocus, init_args: {radius: [1, 2]}}
      moving: {probability: 1}
"""


@pytest.fixture
def photos(tmp_path):
    for name in ("a", "b", "left_out"):
        coarse = torch.rand(1, 3, 10, 12, generator=torch.Generator().manual_seed(ord(name[0])))
        photo = torch.nn.functional.interpolate(coarse, (60, 72), mode="bicubic")[0].clamp(0, 1)
        images.write(tmp_path / "photos" / f"{name}.png", photo)
    (tmp_path / "photos" / "test.txt").write_text("a.png\nb.png\n")
    (tmp_path / "config.yaml").write_text(BLUR + NOISE)
    return tmp_path / "photos"


def make(photos, name, *flags, names="test.txt", more=()):
    folder = photos.parent / name
    command = [str(photos), *map(str, more), "--config", str(photos.parent / "config.yaml"), "--output", str(folder)]
    main([*command, "--workers", "1", *(["--names", names] if names else []), *flags])
    return folder


def test_a_set_is_what_the_data_module_tests_on(photos):
    (photos / "text").mkdir()
    (photos / "text" / "b.txt").write_text("as printed")
    pairs = find_pairs(make(photos, "set"))
    assert [file.read_text() for file in photos.parent.glob("set/text/b.txt")] == ["as printed"]
    assert [pair.name for pair in pairs] == ["a", "b"]
    module = DeblurDataModule(test=str(photos), blur=read_blur(photos.parent / "config.yaml")[0])
    module.setup("test")
    for pair, batch in zip(pairs, module.test_dataloader(), strict=True):
        batch = module.on_after_batch_transfer(batch, 0)
        for ours, theirs in zip(read_pair(pair), (batch["blurry"][0], batch["sharp"][0]), strict=True):
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() < 0.51 / 255
        assert (batch["blurry"] - batch["sharp"]).abs().mean() > 0.01


def test_a_seed_makes_the_same_files(photos):
    sets = [make(photos, f"set{i}", "--seed", seed, "--size", "20") for i, seed in enumerate("001")]
    files = [(folder / "blur" / "a.png").read_bytes() for folder in sets]
    assert files[0] == files[1] != files[2]
    centre = images.read(photos / "a.png")[:, 20:40, 26:46]
    assert torch.equal(images.read(photos.parent / "set0" / "sharp" / "a.png"), centre)
    facts = json.loads((photos.parent / "set2" / "pairs.json").read_text())
    assert (facts["seed"], facts["size"]) == (1, 20)
    assert facts["blur"]["class_path"] == "deblur.data.blur.SyntheticBlur"


def test_regions_to_train_on(photos):
    folder = make(photos, "set", "--crops", "3", "--size", "24", names=None)
    pairs = find_pairs(folder)
    assert [pair.name for pair in pairs] == [f"{photo}_{at}" for photo in ("a", "b", "left_out") for at in range(3)]
    whole, regions = images.read(photos / "a.png"), set()
    for pair in pairs[:3]:
        blurry, sharp = read_pair(pair)
        assert blurry.shape == sharp.shape == (3, 24, 24)
        assert (blurry - sharp).abs().mean() > 0.01
        places = whole.unfold(1, 24, 1).unfold(2, 24, 1)  # (3, rows, columns, 24, 24)
        [region] = ((places - sharp[:, None, None]).abs().amax((0, 3, 4)) < 1e-6).nonzero().tolist()  # cut out of it
        regions.add(tuple(region))
    assert len(regions) == 3
    module = DeblurDataModule(train=str(folder), patch_size=16, batch_size=4)
    module.setup("fit")
    assert next(iter(module.train_dataloader()))["blurry"].shape == (4, 3, 16, 16)
    other = make(photos, "other", "--crops", "2", "--size", "24")  # a pair follows from the seed and its name
    for name in ("a_0", "b_1"):
        assert (other / "blur" / f"{name}.png").read_bytes() == (folder / "blur" / f"{name}.png").read_bytes()


def test_predictions_of_the_pairs_that_are_made(photos):
    checkpoint = photos.parent / "checkpoint"
    pipeline = tiny_pipeline(stir(SlimPredictor((8, 12), (1, 1), size_head=True)))
    pipeline.save_pretrained(checkpoint)
    folder = make(photos, "set", "--predict", str(checkpoint), "--device", "cpu")
    stored = Predictions.of(folder, "train", "blur")
    assert stored.predictor.sha256 == network_hash(pipeline.predictor)
    for pair in find_pairs(folder):
        prediction, raw = pipeline.predict(images.read(pair.blurry)[None]), stored.read(pair.name)
        assert (images.to_float(raw["x_init"]) - prediction.images[0]).abs().max() < 0.51 / 255
        assert (to_log_size(images.to_float(raw["log_size"])) - prediction.log_size[0]).abs().max() < 1e-3
    assert not (make(photos, "other") / "predictions").exists()


def test_training_finds_the_predictions_whatever_the_blurry_folder_is_called(photos):
    checkpoint = photos.parent / "checkpoint"
    tiny_pipeline(stir(SlimPredictor((8, 12), (1, 1)))).save_pretrained(checkpoint)
    folder = make(photos, "set", "--crops", "1", "--size", "24")
    (folder / "blur").rename(folder / "input")
    main([str(folder), "--predict", str(checkpoint), "--device", "cpu"])
    module = DeblurDataModule(train=str(folder), predictions=True, patch_size=16, batch_size=2)
    module.setup("fit")
    assert next(iter(module.train_dataloader()))["x_init"].shape == (2, 3, 16, 16)


def test_predictions_of_a_cascades_first_network_and_of_fewer_stages(photos):
    checkpoint = photos.parent / "checkpoint"
    cascade = Cascade(stir(TwoStages()), stir(SlimPredictor((8, 12), (1, 1), images=2)))
    tiny_pipeline(cascade).save_pretrained(checkpoint)
    flags = ["--predict", str(checkpoint), "--device", "cpu", "--first", "true", "--classes", RICH, "--stages", "1"]
    folder = make(photos, "set", "--crops", "1", "--size", "40", *flags)
    stored = Predictions.of(folder, "train", "blur")
    assert stored.predictor.sha256 == network_hash(cascade.first)
    assert stored.predictor.stages == 1
    pair = find_pairs(folder)[0]
    estimate = (cascade.first(images.read(pair.blurry)[None] * 2 - 1, stages=1)[0] + 1) / 2
    x_init = images.to_float(stored.read(pair.name)["x_init"])
    assert (x_init - estimate.clamp(0, 1)).abs().max() < 0.51 / 255
    with pytest.raises(DatasetError, match="1 of its stages: remove it"):
        main([str(folder), *flags[:-2]])


def test_a_network_that_is_no_cascade_has_no_first_one(photos):
    checkpoint = photos.parent / "checkpoint"
    tiny_pipeline(SlimPredictor((8, 12), (1, 1))).save_pretrained(checkpoint)
    folder = make(photos, "set")
    with pytest.raises(ValueError, match="is no cascade, and has no first network"):
        main([str(folder), "--predict", str(checkpoint), "--first", "true", "--device", "cpu"])


def test_one_of_the_two_things_to_do_is_asked_for(photos):
    with pytest.raises(ValueError, match=r"give --config and --output, .* or --predict alone"):
        main([str(photos), "--output", str(photos.parent / "set")])


def test_photographs_smaller_than_the_region_are_reflected(photos):
    folder = make(photos, "set", "--crops", "1", "--size", "100")
    assert images.read(folder / "sharp" / "a_0.png").shape == (3, 100, 100)


@pytest.mark.slow
def test_several_folders_and_processes(photos):
    more = photos.parent / "more"
    images.write(more / "a.png", torch.rand(3, 60, 60))
    one = make(photos, "one", "--crops", "1", "--size", "16", more=[more])
    two = make(photos, "two", "--crops", "1", "--size", "16", "--workers", "2", more=[more])
    names = [pair.name for pair in find_pairs(one)]
    assert names == ["more/a_0", "photos/a_0", "photos/b_0"]  # of a folder without the list, all
    assert all((one / f"{s}/{n}.png").read_bytes() == (two / f"{s}/{n}.png").read_bytes() for n in names for s in SIDES)


def test_a_stopped_command_goes_on(photos):
    expected = make(photos, "whole")
    (photos / "b.png").rename(photos / "kept.png")
    (photos / "b.png").write_bytes(b"no image")
    with pytest.raises(images.ImageError, match=r"b\.png"):
        make(photos, "set")
    (photos / "kept.png").rename(photos / "b.png")
    begun = photos.parent / ".set.part"
    assert (begun / "blur" / "a.png").is_file()
    assert not (photos.parent / "set").exists()
    (photos / "a.png").unlink()  # made already: not read again
    (photos / "a.png").touch()
    folder = make(photos, "set")
    assert not begun.exists()
    for side, name in ((side, name) for side in SIDES for name in "ab"):
        assert (folder / side / f"{name}.png").read_bytes() == (expected / side / f"{name}.png").read_bytes()


def test_a_damaged_photograph_may_be_taken_away_before_the_command_is_repeated(photos):
    (photos / "b.png").write_bytes(b"no image")
    with pytest.raises(images.ImageError, match=r"b\.png"):
        make(photos, "set", names=None)
    (photos / "b.png").unlink()
    assert "a" in [pair.name for pair in find_pairs(make(photos, "set", names=None))]


@pytest.mark.parametrize("lost", ["blur/a_0.png", "blur/a_1.png", "sharp/a_0.png", "sharp/a_1.png"])
def test_a_photograph_that_has_only_some_of_its_files_is_made_again(photos, begun, lost):
    _, go_on = begun
    part = photos.parent / ".set.part"
    before = (part / lost).read_bytes()
    (part / lost).unlink()
    assert (go_on() / lost).read_bytes() == before


# A fact of a set that is begun -> a command line on which it differs.
CHANGES = {
    "folders": lambda photos: {"more": [photos.parent / "more"]},
    "names": lambda photos: {"names": "same.txt"},
    "crops": lambda photos: {"--crops": "3"},
    "size": lambda photos: {"--size": "21"},
    "candidates": lambda photos: {"--candidates": "2"},
    "seed": lambda photos: {"--seed": "1"},
    "blur": lambda photos: (photos.parent / "config.yaml").write_text(BLUR) and {},
}


@pytest.fixture
def begun(photos):
    """The facts of a set that was stopped by a damaged photograph, and a function that goes on with it."""
    images.write(photos.parent / "more" / "c.png", torch.rand(3, 60, 60))
    (photos / "same.txt").write_text("a.png\nb.png\n")
    whole = (photos / "b.png").read_bytes()
    (photos / "b.png").write_bytes(b"no image")

    def go_on(**changes):
        named = {name: changes.pop(name) for name in ("names", "more") if name in changes}
        flags = {"--crops": "2", "--size": "20", "--candidates": "1", "--seed": "0"} | changes
        return make(photos, "set", *(word for pair in flags.items() for word in pair), **named)

    with pytest.raises(images.ImageError, match=r"b\.png"):
        go_on()
    (photos / "b.png").write_bytes(whole)
    return json.loads((photos.parent / ".set.part" / "pairs.json").read_text()), go_on


def test_a_begun_set_is_not_gone_on_with_if_any_of_its_facts_differs(photos, begun):
    facts, go_on = begun
    assert facts.keys() == CHANGES.keys()
    before = sorted((photos.parent / ".set.part").rglob("*"))
    for fact in sorted(CHANGES, key=lambda name: name == "blur"):  # which changes a file, comes last
        with pytest.raises(DatasetError, match="begun with other settings"):
            go_on(**CHANGES[fact](photos))
        assert sorted((photos.parent / ".set.part").rglob("*")) == before, fact
    (photos.parent / "config.yaml").write_text(BLUR + NOISE)
    assert len(find_pairs(go_on())) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda photos: (photos.parent / "config.yaml").unlink(), "config.yaml"),
        (lambda photos: (photos.parent / "config.yaml").write_text("data: {train: x}"), "has no data.blur"),
        (lambda photos: (photos.parent / "config.yaml").write_text("[1]"), "holds no keys with values"),
        (
            lambda photos: (photos.parent / "config.yaml").write_text(BLUR + "      cam: 3"),
            r"blur\.cam is unknown: did you mean camera",
        ),
        (lambda photos: (photos.parent / "config.yaml").write_text(BLUR + "      jpeg: [0, 7]"), "jpeg must be"),
        (lambda photos: (photos / "test.txt").write_text("a.png\nmissing.png\n"), "lists missing.png"),
        (lambda photos: (photos / "test.txt").unlink(), "test.txt is no file"),
        (lambda photos: (photos / "a.jpg").touch() or (photos / "test.txt").write_text("a.png\na.jpg"), "same name"),
        (lambda photos: (photos.parent / "set").mkdir() or (photos.parent / "set/file").touch(), "not an empty folder"),
    ],
)
def test_faults_are_one_sentence_and_leave_nothing(photos, change, sentence):
    change(photos)
    before = sorted(photos.parent.rglob("*"))
    with pytest.raises((ValueError, OSError), match=sentence) as caught:
        make(photos, "set")
    assert "\n" not in str(caught.value)
    assert sorted(photos.parent.rglob("*")) == before


@pytest.mark.parametrize("flag", ["--candidates", "--size"])
def test_numbers_below_1_are_refused(photos, flag):
    with pytest.raises(ValueError, match="candidates and size must be 1 or more"):
        make(photos, "set", "--crops", "1", "--size", "20", flag, "0")


def detail(image):
    """Mean absolute change over two pixels, which weak noise hardly adds to."""
    return sum((image.narrow(d, 2, 254) - image.narrow(d, 0, 254)).abs().mean() for d in (1, 2))


def test_demo_photographs(tmp_path, capsys):
    demo.main(str(tmp_path / "photos"))
    assert "8 sharp photographs in train, 2 pairs in val, 6 in test" in capsys.readouterr().out
    assert len(search.find(tmp_path / "photos" / "train")) == 8
    assert images.read(tmp_path / "photos" / "clock_motion.png").shape == (3, 300, 400)
    val, test = (find_pairs(tmp_path / "photos", split) for split in ("val", "test"))
    scenes = [{name.split(".")[0].split("_")[0] for name in demo.TRAINING_PHOTOS}]
    scenes += [{pair.name.split("_")[0] for pair in pairs} for pairs in (val, test)]
    assert sum(map(len, scenes)) == len(set.union(*scenes)) == 7 + 1 + 3  # the motorcycles are one scene
    found = []
    for pair in val + test:
        blurry, sharp = read_pair(pair)
        assert sharp.shape == (3, 256, 256)
        # Blur of 3 to 11 pixels leaves 41 to 87 % of the detail.
        assert 21 < -10 * torch.log10(((blurry - sharp) ** 2).mean()) < 38
        assert 0.4 < detail(blurry) / detail(sharp) < 0.9
        # Where averages over 21 x 21 pixels lie closest to each other.
        blurry, sharp = torch.nn.functional.avg_pool2d(torch.stack([blurry, sharp]), 21, stride=1)
        shifts = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
        errors = [((blurry - sharp.roll(at, (1, 2)))[:, 1:-1, 1:-1] ** 2).mean() for at in shifts]
        found.append(shifts[torch.stack(errors).argmin()])
    assert torch.tensor(found).float().mean(0).abs().max() <= 0.5  # no shift that all have in common

    demo.main(str(tmp_path / "again"))
    first, again = (images.read(tmp_path / folder / "test/blur/coffee_1.png") for folder in ("photos", "again"))
    assert torch.equal(first, again)


def test_crops_are_where_the_detail_is_and_depend_on_the_seed(tmp_path):
    photo = torch.full((3, 64, 512), 0.5)
    photo[..., 448:] = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    images.write(tmp_path / "a.png", photo)

    def drawn(seed, candidates):
        out = tmp_path / f"{seed} of {candidates}"
        write_photo("a", (tmp_path / "a.png", tmp_path), SyntheticBlur(), out, seed, 3, 32, candidates)
        return torch.stack([images.read(out / "sharp" / f"a_{at}.png") for at in range(3)])

    assert (drawn(0, 64).flatten(1).std(1) > 0.1).all()
    assert not torch.equal(drawn(0, 64), drawn(1, 64))
