import itertools
import multiprocessing
import re
import shutil
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from deblur.data.blur import SyntheticBlur
from deblur.data.camera import CameraShake
from deblur.data.datamodule import DeblurDataModule
from deblur.data.files import images
from deblur.data.layouts import DatasetError, Source
from deblur.data.pairs import generator_of
from deblur.tools import doctor
from tests.data.test_pairs import same

SHAKE = SyntheticBlur([CameraShake((3, 6))], shot_noise=(0, 2e-4))

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


class Recorder(pl.LightningModule):
    """Learns one number and keeps every batch it sees."""

    def __init__(self):
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))
        self.seen = {"train": [], "val": [], "test": []}

    def training_step(self, batch):
        self.seen["train"].append(batch)
        return (self.number - batch["sharp"].mean()) ** 2

    def validation_step(self, batch):
        self.seen["val"].append(batch)

    def test_step(self, batch):
        self.seen["test"].append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, max_steps=6, **options):
    """As the project's runs: steps, no epochs; validation every so many steps."""
    own = {"val_check_interval": 2, "logger": False, "default_root_dir": folder, **options}
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(max_steps=max_steps, max_epochs=-1, check_val_every_n_epoch=None, **own, **quiet)


@pytest.fixture
def root(tmp_path):
    """Seven pairs to train, two to validate and test."""
    for split, count in (("train", 7), ("val", 2), ("test", 2)):
        for i in range(count):
            sharp = torch.rand(3, 40 + 2 * i, 50, generator=generator_of(split, i))
            images.write(tmp_path / "pairs" / split / "sharp" / f"{i}.png", sharp)
            images.write(tmp_path / "pairs" / split / "blur" / f"{i}.png", 1 - sharp)
    return tmp_path / "pairs"


def module(root, synthetic, workers=0, **options):
    options = {"patch_size": 16, "batch_size": 4, "crops_per_image": 2, "num_workers": workers, **options}
    if not synthetic:
        return DeblurDataModule(str(root), str(root), str(root), **options)
    folders = [str(root / split / "sharp") for split in ("train", "val", "test")]
    return DeblurDataModule(*folders, blur=SHAKE, **options)


@pytest.mark.parametrize(("synthetic", "mixed"), [(False, 1), (True, 1), (True, 4)])
@pytest.mark.parametrize("kept", [False, True])
def test_six_batches_equal_three_and_three_after_resuming(tmp_path, root, synthetic, mixed, kept):
    """Also where the rest is kept on the device: whether it is changes no batch."""
    whole, options, others = Recorder(), {"mix_batches": mixed}, multiprocessing.active_children()
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trainer(tmp_path, callbacks=[keep]).fit(whole, module(root, synthetic, **options))
    assert len(whole.seen["train"]) == 6

    for workers in (0, 2):
        rest, data = Recorder(), module(root, synthetic, workers, keep_on_device=kept, **options)
        trainer(tmp_path).fit(rest, data, ckpt_path=tmp_path / "step=3.ckpt")
        assert set(multiprocessing.active_children()) <= set(others)  # no worker outlives its training
        same(rest.seen["train"], whole.seen["train"][3:])
        assert torch.equal(rest.number, whole.number)

    # Each batch differs from every other: the test would pass on a stream that repeats itself.
    assert len({batch["blurry"].sum().item() for batch in whole.seen["train"]}) == 6


@pytest.mark.parametrize("synthetic", [False, True])
def test_ranks_share_the_batches_of_one_device(root, synthetic):
    def batches(world, rank):
        """The names and sums of what one of several processes trains and validates on."""
        data = module(root, synthetic, batch_size=4 // world)
        fresh = pl.Trainer(accelerator="cpu", logger=False).fit_loop
        data.trainer = SimpleNamespace(world_size=world, global_rank=rank, fit_loop=fresh)
        data.setup("fit")
        parts = itertools.islice(data.train_dataloader(), 3), data.val_dataloader()
        return [[[*zip(batch["name"], batch["sharp"].sum((1, 2, 3)), strict=True)] for batch in part] for part in parts]

    (whole, every), *ranks = batches(1, 0), batches(2, 0), batches(2, 1)
    assert [first + second for first, second in zip(*(train for train, _ in ranks), strict=True)] == whole
    assert all(len(val) == 1 for _, val in ranks)
    assert sorted(ranks[0][1] + ranks[1][1]) == sorted(every)


def test_batches_are_what_the_models_expect(tmp_path, root):
    for synthetic in (False, True):
        recorder = Recorder()
        run = trainer(tmp_path, max_steps=1, num_sanity_val_steps=0, val_check_interval=1)
        run.fit(recorder, module(root, synthetic, val_crop=20))
        (batch,) = recorder.seen["train"]
        assert batch.keys() == {"blurry", "sharp", "name"}
        assert len(batch["name"]) == 4
        assert batch["blurry"].shape == batch["sharp"].shape == (4, 3, 16, 16)
        assert batch["blurry"].dtype == batch["sharp"].dtype == torch.float32
        for side in ("blurry", "sharp"):  # laid out as the networks' weights are
            assert batch[side].is_contiguous(memory_format=torch.channels_last)
        assert [frame["name"] for frame in recorder.seen["val"]] == [["0"], ["1"]]
        assert all(frame["sharp"].shape == (1, 3, 20, 20) for frame in recorder.seen["val"])
        run.test(recorder, module(root, synthetic, val_crop=20), verbose=False)
        sizes = [(40, 50), (42, 50)]  # whole frames; synthetic blur takes its margin of 4
        if synthetic:
            sizes = [(height - 8, width - 8) for height, width in sizes]
        assert [frame["sharp"].shape[2:] for frame in recorder.seen["test"]] == sizes


def test_training_blur_is_free_of_border_effects(tmp_path):
    # Stripes go on outside of the crop; a border made up there would show as a change in brightness.
    images.write(tmp_path / "stripes.png", (torch.arange(64) % 2).float().expand(3, 64, 64))
    blur = SyntheticBlur([CameraShake(length=(6, 6))], response="linear")
    data, recorder = DeblurDataModule(str(tmp_path), blur=blur, patch_size=16), Recorder()
    trainer(tmp_path, max_steps=2, limit_val_batches=0).fit(recorder, data)
    for batch in recorder.seen["train"]:
        for blurry in batch["blurry"]:
            period_two = blurry[..., 2:, :] - blurry[..., :-2, :], blurry[..., 2:] - blurry[..., :-2]
            assert all(change.abs().max() < 1e-5 for change in period_two)


def test_validation_blur_is_always_the_same(tmp_path, root):
    recorder = Recorder()
    trainer(tmp_path, max_steps=4, num_sanity_val_steps=0).fit(recorder, module(root, True))
    same(recorder.seen["val"][:2], recorder.seen["val"][2:])
    (root / "val" / "sharp" / "0.png").unlink()
    alone = Recorder()
    trainer(tmp_path).validate(alone, module(root, True), verbose=False)
    same(alone.seen["val"], recorder.seen["val"][1:2])


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_in_workers_end_as_one_sentence(tmp_path, root, workers):
    file = root / "train" / "blur" / "5.png"
    whole = file.read_bytes()
    torn = whole[:100] + bytes(200) + whole[300:]  # in the middle, which only decoding finds: met in training
    unknown = re.escape(f"{file} is not an image of a known format: save it as PNG, JPEG or TIFF.")
    for damage, error, words in (
        (lambda: file.write_bytes(torn), images.ImageError, r"5\.png cannot be decoded"),
        (lambda: file.write_text("no image"), images.ImageError, f"^{unknown}$"),
        (lambda: images.write(file, torch.zeros(3, 7, 9)), DatasetError, "^A pair differs in size: "),
    ):
        damage()
        with pytest.raises(error, match=words) as caught:
            trainer(tmp_path).fit(Recorder(), module(root, False, workers))
        assert "\n" not in str(caught.value)


def test_synthetic_training_with_real_validation(tmp_path, root):
    data = DeblurDataModule(str(root / "train" / "sharp"), str(root), str(root / "test"), blur=SHAKE, patch_size=16)
    recorder = Recorder()
    trainer(tmp_path, max_steps=1, num_sanity_val_steps=0, val_check_interval=1).fit(recorder, data)
    assert all(file.parent == root / "train" / "sharp" for file in data.train_set.parts[0].items)
    assert len(data.train_set.parts[0].items) == 7
    assert torch.equal(recorder.seen["val"][0]["blurry"], images.read(root / "val" / "blur" / "0.png")[None])

    # Sharp photographs in split folders: the other splits are left alone.
    for split in ("train", "val"):
        images.write(tmp_path / "photos" / split / f"{split}.png", torch.rand(3, 40, 40))
    photos = str(tmp_path / "photos")
    data = DeblurDataModule(photos, photos, f"{photos}:train", blur=SHAKE, patch_size=16)
    trainer(tmp_path, max_steps=1).fit(Recorder(), data)
    assert [file.stem for file in data.train_set.parts[0].items + data.val_set.items] == ["train", "val"]
    assert data.val_set[0]["name"] == "val", "not val/val: a blur follows its name, here and in a set of that folder"
    data.setup("test")
    assert [frame["name"] for frame in data.test_set] == ["train"]


def test_pairs_are_used_as_they_are_where_the_config_blurs(tmp_path, root, caplog):
    with caplog.at_level("INFO"):
        data = DeblurDataModule(str(root), str(root), blur=SHAKE, patch_size=16, batch_size=2)
        recorder = Recorder()
        trainer(tmp_path, max_steps=1, num_sanity_val_steps=0, val_check_interval=1).fit(recorder, data)
    (batch,) = recorder.seen["train"]
    assert torch.allclose(batch["blurry"], 1 - batch["sharp"], atol=1 / 255)  # as in the files
    assert "used as they are: data.blur is for sharp photographs" in caplog.text
    assert f"train: 7 pairs of {root} (layout flat, variant blur)" in caplog.text
    assert f"val: 2 pairs of {root} (layout flat, variant blur)" in caplog.text
    with pytest.raises(DatasetError, match=r"data\.train mixes pairs with sharp photographs"):
        DeblurDataModule([str(root), str(root / "train" / "sharp")], blur=SHAKE, patch_size=16).setup("fit")


def test_sharp_photographs_need_blur(root):
    with pytest.raises(DatasetError, match="sharp holds no pairs"):
        DeblurDataModule(str(root / "train" / "sharp"), patch_size=16).setup("fit")


def test_a_split_may_be_named(tmp_path, root):
    shutil.rmtree(root / "val")
    fix = f"one of these, as --data.val {root}:test for train.py, or --split test for evaluate.py"
    with pytest.raises(DatasetError, match=f"only train, test: name {fix}"):
        DeblurDataModule(str(root), str(root), patch_size=16).setup("fit")
    data = DeblurDataModule(str(root), f"{root}:test", patch_size=16)
    data.setup("fit")
    assert [pair.sharp for pair in data.val_set.items] == [root / "test" / "sharp" / f"{k}.png" for k in range(2)]


def test_missing_data(tmp_path, root):
    trainer(tmp_path, max_steps=1).fit(Recorder(), DeblurDataModule(str(root), patch_size=16))  # val is optional
    with pytest.raises(DatasetError, match="No test data"):
        trainer(tmp_path).test(Recorder(), DeblurDataModule(str(root)))
    with pytest.raises(DatasetError, match="missing"):
        trainer(tmp_path).fit(Recorder(), DeblurDataModule(str(root / "missing"), blur=SHAKE))
    assert DeblurDataModule(str(root), batch_size=4, crops_per_image=3).crops_per_image == 2
    with pytest.raises(ValueError, match="patch_size"):
        DeblurDataModule(str(root), patch_size=0)


def test_a_mix_of_datasets_by_weight(tmp_path, root):
    for i in range(3):
        images.write(tmp_path / "shaky" / f"other{i}.png", torch.rand(3, 40, 40))
        images.write(tmp_path / "crisp" / f"other{i}.png", torch.rand(3, 40, 40))
    other = Source(blurry=str(tmp_path / "shaky"), sharp=str(tmp_path / "crisp"), weight=3)
    data = DeblurDataModule([Source(root=str(root), weight=1), other], patch_size=16, batch_size=8)
    recorder = Recorder()
    trainer(tmp_path, max_steps=2, limit_val_batches=0).fit(recorder, data)
    for batch in recorder.seen["train"]:
        assert sum(name.startswith("other") for name in batch["name"]) == 6


def test_images_that_are_trained_on_and_validated_are_named(tmp_path, root, caplog):
    def said(**options):
        caplog.clear()
        DeblurDataModule(**options, patch_size=16, batch_size=1).setup("fit")
        return [record.message for record in caplog.records if record.message.startswith("warning: ")]

    flat = tmp_path / "flat"
    for side in ("blur", "sharp"):
        (root / "train" / side).rename((flat / side).parent.mkdir(exist_ok=True) or flat / side)
    with caplog.at_level("INFO"):
        (line,) = said(train=str(flat), val=str(flat))
        assert "7 of 7 validation images are trained on, too (0.png, 1.png, 2.png, ...)" in line
        (line,) = said(train=str(flat / "sharp"), val=str(flat / "sharp"), blur=SHAKE)
        assert line.startswith("warning: 7 of 7 ")
        assert said(train=[Source(root=str(flat))], val=str(root / "val")) == []
        (line,) = said(train=[Source(root=str(flat)), Source(root=str(root / "val"))], val=str(root / "val"))
        assert line.startswith("warning: 2 of 2 ")


def test_the_blurry_images_are_those_of_the_variant(tmp_path):
    for split in ("train", "test"):
        for level, side in enumerate(("sharp", "blur", "blur_gamma")):
            images.write(tmp_path / split / "GOPR0001" / side / "1.png", torch.full((3, 20, 20), level / 5))
    for variant, value in (("blur", 0.2), ("blur_gamma", 0.4)):
        data = DeblurDataModule(str(tmp_path), patch_size=16, batch_size=1, num_workers=0, variant=variant)
        data.setup("fit")
        batch = next(iter(data.train_dataloader()))
        assert batch["blurry"].mean() == pytest.approx(value, abs=1e-5)
        assert batch["sharp"].max() == 0


def test_images_that_are_not_read_are_said(root, caplog, capsys):
    (root / "train" / "blur" / "9.gif").write_bytes(b"GIF89a")
    shutil.copy(root / "train" / "sharp" / "0.png", root / "train" / "sharp" / "9")
    with caplog.at_level("INFO"):
        module(root, False).setup("fit")
    assert f"warning: {root}: skipped 1 .gif, GIF is not read: save its first frame as PNG" in caplog.text
    assert "skipped 1 without the suffix of an image, in folders files are found by their suffix" in caplog.text
    doctor.main(str(root), num_workers=0)
    assert f"  remark: {root}: skipped 1 .gif" in capsys.readouterr().out
