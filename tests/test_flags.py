"""Every flag of sample.py and evaluate.py changes what it names; a flag without a line in these tables fails."""

import json
import re
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import evaluate
import sample
import tests.test_evaluate
import train
from deblur.checkpoints import save_presets, update_index
from deblur.data.files import images
from deblur.evaluation.pixels import psnr
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.settings import SamplingSettings
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands
PRESET = SamplingSettings("ddpm", steps=3, blend=0.7)


@dataclass
class Run:
    """What a command left: its exit code, what it said, the folder it wrote to, and the shapes its networks saw."""

    code: int
    said: str
    folder: Path
    seen: dict[str, list[tuple]]

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.suffix == ".png"}

    @property
    def entry(self) -> dict:
        """What the manifest says of the first photograph."""
        return next(iter(json.loads((self.folder / "manifest.json").read_text()).values()))

    @property
    def results(self) -> dict:
        return json.loads((self.folder / "results.json").read_text())

    @property
    def scores(self) -> dict:
        """(row, image) -> PSNR."""
        table = pq.read_table(self.folder / "per_image.parquet").to_pylist()
        return {(line["setting"], line["image"]): line["psnr"] for line in table}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two checkpoints, two photographs of one size, and a dataset of two splits and two kinds of blurry images."""
    folder = tmp_path_factory.mktemp("flags")
    tiny_pipeline().save_pretrained(folder / "checkpoint")
    save_presets(folder / "checkpoint", {"balanced": SamplingSettings(steps=2), "perceptual": PRESET})
    tiny_pipeline(residual_scale=0.3).save_pretrained(folder / "other")
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 72, 150, generator=generator))
    for split, count in (("train", 1), ("test", 12)):
        for k in range(count):
            sharp = torch.rand(3, 16, 12 + 2 * (split == "train"), generator=generator)
            for kind, share in (("sharp", 1.0), ("blur", 0.5), ("blur_gamma", 0.4)):
                scene = folder / "data" / split / "scene" / kind
                images.write(scene / f"{k:02}.png", share * sharp + (1 - share) * sharp.mean())
                images.write(folder / "outputs" / "scene" / f"{k:02}.png", sharp) if kind == "blur" else None
    drifting = tiny_pipeline(residual_scale=1.0)
    nn.init.constant_(drifting.denoiser.unet.head.bias, 0.5)
    drifting.save_pretrained(folder / "drifting")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(folder / "calibrated")
    update_index(folder / "calibrated", error_curve={"estimate": [1.0], "mean": [2.0], "bound": [4.0]})
    (folder / "grid.yaml").write_text("settings: [{steps: 2}]\n")
    (folder / "two.yaml").write_text("settings: [{steps: 2, blend: 0.0}, {steps: 2}]\n")
    return folder


@pytest.fixture(scope="module")
def known():
    """Runs that several flags are compared with, by their command lines."""
    return {}


@pytest.fixture
def called(place, tmp_path, monkeypatch, capsys):
    """A function that runs a script in this process, with what it writes going to a folder of its own."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("CXX", "no-such-compiler")
    made = []

    def call(script, *flags):
        seen = {"predictor": [], "denoiser": []}

        def look(module, given, output):
            name = {UNetPredictor: "predictor", Denoiser: "denoiser"}.get(type(module))
            if name:
                seen[name].append(tuple(given[0].shape))

        given = list(map(str, flags))
        if "--output" not in given:
            given += ["--output", str(tmp_path / f"out{len(made)}")]
        made.append(given)
        hook = nn.modules.module.register_module_forward_hook(look)
        try:
            code = script(given)
        finally:
            hook.remove()
        return Run(code, "".join(capsys.readouterr()), Path(given[given.index("--output") + 1]), seen)

    return call


def of_sample(args):
    base = {"--checkpoint": "checkpoint", "--precision": "fp32", "--device": "cpu"}
    added = [part for flag, value in base.items() if flag not in args for part in (flag, value)]
    return sample.main(["photos", *args, *added])


def of_evaluate(args):
    base = {"--data": "data", "--metrics": "psnr", "--device": "cpu", "--precision": "fp32"}
    base |= {"--checkpoint": "checkpoint", "--grid": "grid.yaml"}
    try:
        evaluate.command([*args, *(part for flag, value in base.items() if flag not in args for part in (flag, value))])
    except ValueError as error:
        print(error)
        return 2
    return 0


def batch(run):
    return run.seen["denoiser"][-1][0]


def widest(run):
    return max(shape[-1] for shape in run.seen["denoiser"])


def differ(one, other):
    """Other images, by other numbers, of the same names."""
    return one.files.keys() == other.files.keys() and all(one.files[name] != other.files[name] for name in one.files)


# flag -> what else is on both command lines, what the flag adds, and what must hold of the runs without and with it.
DRAWN = ["--steps", "2"]
LINEAR, LOG_SNR = [*DRAWN, "--schedule", "linear"], [*DRAWN, "--schedule", "log_snr"]
SAMPLE = {
    "output": ([], ["elsewhere"], lambda a, b: b.folder.name == "elsewhere" and a.files == b.files),
    "checkpoint": (DRAWN, ["other"], lambda a, b: differ(a, b) and b.entry["checkpoint"] == "other"),
    "preset": ([], ["perceptual"], lambda a, b: differ(a, b) and b.entry["settings"]["blend"] == 0.7),
    "seed": (DRAWN, ["1"], differ),
    "device": (DRAWN, ["cuda:99"], lambda a, b: b.code == 2 and "device cuda:99 cannot be used here" in b.said),
    "precision": (DRAWN, ["bf16"], lambda a, b: differ(a, b) and "bf16" in b.said and "fp32" in a.said),
    "provider": (DRAWN, ["cuda"], lambda a, b: b.code == 2 and "no ONNX folder, which the provider cuda" in b.said),
    "compile": (DRAWN, [], lambda a, b: b.code == 2 and "no-such-compiler was not found" in b.said),
    "batch_size": (DRAWN, ["2"], lambda a, b: a.files == b.files and [batch(run) for run in (a, b)] == [1, 2]),
    "tile": (DRAWN, ["64"], lambda a, b: a.seen["denoiser"][-1][-1] == 150 > max(x[-1] for x in b.seen["denoiser"])),
    "predictor_tile": (
        DRAWN,
        ["64"],
        lambda a, b: a.seen["predictor"][-1][-1] == 150 > max(x[-1] for x in b.seen["predictor"]),
    ),
    "scale": (DRAWN, ["0.5"], lambda a, b: differ(a, b) and b.entry["working_scale"] == 0.5 and widest(b) == 75),
    "max_side": (DRAWN, ["100"], lambda a, b: differ(a, b) and widest(b) == 100),
    "restore": (
        [*DRAWN, "--keep_sharp", "1e4"],
        ["all"],
        lambda a, b: differ(a, b) and [run.entry["restored_share"] for run in (a, b)] == [0, 1],
    ),
    "format": (DRAWN, ["tif"], lambda a, b: (b.folder / "a.tif").is_file() and not b.files),
    "depth": (DRAWN, ["16"], lambda a, b: images.read_file(b.folder / "a.png").pixels.dtype == torch.uint16),
    "quality": (
        [*DRAWN, "--format", "jpg"],
        ["20"],
        lambda a, b: (a.folder / "a.jpg").stat().st_size > (b.folder / "a.jpg").stat().st_size,
    ),
    "metadata": (
        DRAWN,
        ["none"],
        lambda a, b: images.read_file(a.folder / "a.png").exif and not images.read_file(b.folder / "a.png").exif,
    ),
    "on_fault": (
        [*DRAWN, "--checkpoint", "drifting"],
        ["fallback"],
        lambda a, b: a.entry["faults"] and differ(a, b) and "prediction is" in b.said,
    ),
    "uncertainty": ([*DRAWN, "--num_samples", "2"], [], lambda a, b: {"a_std.png"} <= b.files.keys() - a.files.keys()),
    "error_bound": (
        [*DRAWN, "--checkpoint", "calibrated"],
        [],
        lambda a, b: b.files.keys() - a.files.keys() == {"a_bound.png", "b_bound.png"},
    ),
    "compare": (DRAWN, [], lambda a, b: {"a_compare.png", "b_compare.png"} == b.files.keys() - a.files.keys()),
    "sampler": (DRAWN, ["ddpm"], differ),
    "schedule": (DRAWN, ["cosine"], differ),
    "steps": ([], ["5"], lambda a, b: differ(a, b) and sum(x[-1] == 150 for x in b.seen["denoiser"]) == 2 * 5),
    "beta_start": (LINEAR, ["0.2"], differ),
    "beta_end": (LINEAR, ["0.9"], differ),
    "log_snr_max": (LOG_SNR, ["2"], differ),
    "log_snr_min": (LOG_SNR, ["-2"], differ),
    "start": (DRAWN, ["2"], differ),
    "eta": (DRAWN, ["1"], differ),
    "num_samples": (DRAWN, ["2"], lambda a, b: b.files.keys() == {"a_0.png", "a_1.png", "b_0.png", "b_1.png"}),
    "average": ([*DRAWN, "--num_samples", "2"], [], lambda a, b: b.files.keys() == {"a.png", "b.png"}),
    "blend": (DRAWN, ["0.5"], differ),
}
SAMPLE_APART = {
    "classes": "test_own_networks_are_named",
    "memory": "test_memory_chooses_the_tiles",
    "overwrite": "test_overwrite_restores_again",
    "mask": "test_a_mask_says_what_is_restored",
    "keep_sharp": "test_keep_sharp_keeps_what_the_predictor_hardly_changes",
    "stages": "test_fewer_stages_make_another_image",
}


def test_sample_py_has_no_other_flags():
    flags = {field.name for kind in (sample.Options, SamplingSettings) for field in fields(kind)}
    assert flags == {*SAMPLE, *SAMPLE_APART}
    assert set(SAMPLE_APART.values()) <= globals().keys()


@pytest.mark.parametrize("flag", SAMPLE)
def test_a_flag_of_sample_py_does_what_it_says(called, known, flag, tmp_path):
    both, value, holds = SAMPLE[flag]
    one = known.get((of_sample, *both)) or called(of_sample, *both)
    known[(of_sample, *both)] = one
    value = [str(tmp_path / one_value) if flag == "output" else one_value for one_value in value]
    assert one.code == 0
    assert holds(one, called(of_sample, *both, f"--{flag}", *value))


def test_own_networks_are_named(called):
    """What they are for stands in tests/test_extend.py."""
    for script in (of_sample, of_evaluate):
        assert "class mypred.Net cannot be imported" in called(script, "--classes", "mypred.Net").said


def test_fewer_stages_make_another_image(called, place, tmp_path):
    staged = tiny_pipeline(Maxim(stages=2))
    nn.init.normal_(staged.predictor.unets[1].to_image.weight, std=0.1)
    staged.save_pretrained(tmp_path / "staged")

    def of_staged(args):
        return sample.main(["photos", *args, "--checkpoint", str(tmp_path / "staged"), "--blend", "0"])

    one, both, three = (called(of_staged, *flag) for flag in (["--stages", "1"], [], ["--stages", "3"]))
    assert differ(one, both)
    assert three.code == 2
    assert "this checkpoint's predictor has 2: give 1 to 2" in three.said


def test_keep_sharp_keeps_what_the_predictor_hardly_changes(called, place, tmp_path):
    still = tiny_pipeline()
    nn.init.zeros_(still.predictor.unet.head.weight)
    nn.init.constant_(still.predictor.unet.head.bias, 2 * 3 / 255)  # three levels brighter: a fault of a sample
    still.save_pretrained(tmp_path / "still")

    def of_still(args):
        return sample.main(["photos", *args, "--checkpoint", str(tmp_path / "still"), "--steps", "2"])

    kept, restored = (called(of_still, "--keep_sharp", level) for level in ("4", "0"))
    assert "a.png: looks sharp already, and is kept as it is" in kept.said
    assert "looks sharp" not in restored.said
    assert not kept.entry["faults"]
    for name in ("a.png", "b.png"):
        pixels = images.read_file(place / "photos" / name).pixels
        assert torch.equal(images.read_file(kept.folder / name).pixels, pixels)
        assert not torch.equal(images.read_file(restored.folder / name).pixels, pixels)


def test_a_mask_says_what_is_restored(called, place, tmp_path):
    images.write(tmp_path / "mask.png", (torch.arange(150) >= 75).float().expand(3, 72, 150))
    images.write(tmp_path / "small.png", torch.ones(3, 7, 9))

    def of_one(args):
        given = [str(place / "photos" / "a.png"), *args, "--checkpoint", "checkpoint", "--steps", "2"]
        return sample.main(given)

    masked = called(of_one, "--mask", tmp_path / "mask.png", "--keep_sharp", "1e4")
    before, after = (images.read_file(folder / "a.png").pixels for folder in (place / "photos", masked.folder))
    assert torch.equal(after[..., :75], before[..., :75])
    assert not torch.equal(after[..., 75:], before[..., 75:])
    assert masked.entry["restored_share"] == 0.5
    refused = called(of_one, "--mask", tmp_path / "small.png")
    assert refused.code == 1
    assert "a.png has 150 x 72 pixels, and --mask" in refused.said
    assert "9 x 7: give one of its size" in refused.said
    assert "no.png is not an image file: no such file" in called(of_one, "--mask", tmp_path / "no.png").said
    several = called(of_sample, "--mask", tmp_path / "mask.png")
    assert several.code == 2
    assert "--mask is for one photograph, and there are 2" in several.said


def test_memory_chooses_the_tiles(called, tmp_path, monkeypatch):
    """Beside 2.9 GB that the process is said to hold, 3.5 GB leave room for the whole image, 2.93 for tiles alone."""
    monkeypatch.setattr("deblur.tiling.used_memory", lambda device: 2_900_000_000)
    images.write(tmp_path / "large.png", torch.rand(3, 420, 420))

    def of_large(args):
        flags = ["--checkpoint", "checkpoint", "--steps", "1", "--precision", "fp32"]
        return sample.main([str(tmp_path / "large.png"), *args, *flags])

    whole, limited, least = (called(of_large, *flags) for flags in ([], ["--memory", "2.93"], ["--memory", "2.901"]))
    assert whole.seen["denoiser"][-1][-1] == 420 > limited.seen["denoiser"][-1][-1]
    assert limited.code == 0
    assert least.code == 1
    named = re.search(r"does not fit into --memory: give ([\d.]+) or more", least.said)[1]
    assert called(of_large, "--memory", named).code == 0


def test_overwrite_restores_again(called, tmp_path):
    output = ["--steps", "1", "--output", tmp_path / "out"]
    called(of_sample, *output)
    assert "all 2 done before, in " in called(of_sample, *output).said
    assert "wrote 2 of 2 restored images" in called(of_sample, *output, "--overwrite").said


def rows(run):
    return [row["setting"] for row in run.results["rows"]]


def of_row(run, label):
    return {image: score for (row, image), score in run.scores.items() if row == label}


# Images take most of the time of a run, so several flags share one. None of what a flag is looked at by comes from
# another flag of its run.
RUNS = {
    "plain": [],
    "one": ["--checkpoint", "other", "--metrics", "psnr,psnr_aligned", "--panel", "shown.png", "--limit", "4"],
    "two": ["--seed", "1", "--batch_size", "3", "--grid", "two.yaml", "--checkpoint", "drifting"],
    "three": ["--variant", "blur_gamma", "--split", "train", "--images", "true"],
    "four": ["--precision", "bf16", "--outputs", "outputs", "--checkpoint", "checkpoint", "--grid", "grid.yaml"],
    "device": ["--device", "cuda:99"],
    "provider": ["--provider", "cuda", "--checkpoint", "checkpoint"],
}


def of_gamma(plain, run):
    """The blurry images of the other kind are scored."""
    pair = (images.read(f"data/train/scene/{kind}/00.png")[None] for kind in ("blur_gamma", "sharp"))
    return of_row(run, "blurry") == {"scene/00": pytest.approx(psnr(*pair).item())}


EVALUATE = {
    "data": ("plain", lambda a, b: a.results["data"]["root"] == "data" and len(of_row(a, "sharp")) == 12),
    "output": ("plain", lambda a, b: (a.folder / "results.csv").is_file()),
    "checkpoint": ("one", lambda a, b: of_row(b, "ddim 2").items().isdisjoint(of_row(a, "ddim 2").items())),
    "metrics": ("one", lambda a, b: b.results["metrics"].keys() - a.results["metrics"] == {"psnr_aligned"}),
    "panel": ("one", lambda a, b: Path("shown.png").is_file() and not (b.folder / "panel.png").exists()),
    "limit": ("one", lambda a, b: [*of_row(b, "sharp")] == [f"scene/{k:02}" for k in (0, 3, 6, 9)]),
    "seed": ("two", lambda a, b: of_row(a, "noised 40") != of_row(b, "noised 40")),
    "batch_size": (
        "two",
        lambda a, b: {shape[0] for shape in b.seen["predictor"]} <= {3, 2, 1} and (3, 3, 16, 12) in b.seen["predictor"],
    ),
    "grid": ("two", lambda a, b: len(rows(b)) == len(rows(a)) + 1),
    "images": (
        "three",
        lambda a, b: (
            (b.folder / "images" / "sharp" / "scene" / "00.png").is_file() and not (a.folder / "images").exists()
        ),
    ),
    "split": ("three", lambda a, b: len(of_row(b, "sharp")) == 1),
    "variant": ("three", of_gamma),
    "precision": ("four", lambda a, b: of_row(a, "predictor") != of_row(b, "predictor")),
    "provider": ("provider", lambda a, b: b.code == 2 and "no ONNX folder, which the provider cuda" in b.said),
    "outputs": ("four", lambda a, b: {*rows(b)} - {*rows(a)} == {"outputs outputs"}),
    "device": ("device", lambda a, b: b.code == 2 and "device cuda:99 cannot be used here" in b.said),
}
EVALUATE_APART = {  # whose tests stand in tests/test_evaluate.py
    "checkpoints": "test_two_checkpoints_are_compared_on_the_same_images_and_noise",
    "save_presets": "test_a_setting_on_the_front_shows_its_best_median_and_worst_image_and_becomes_a_preset",
}


def test_evaluate_py_has_no_other_flags():
    elsewhere = {"overwrite", "classes", "language"}  # test_evaluate_command.py, test_extend.py, test_reading.py
    assert {field.name for field in fields(evaluate.Evaluation)} == {*EVALUATE, *EVALUATE_APART, *elsewhere}
    assert set(EVALUATE_APART.values()) <= vars(tests.test_evaluate).keys()


@pytest.mark.parametrize("flag", EVALUATE)
def test_a_flag_of_evaluate_py_does_what_it_says(called, known, flag, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    run, holds = EVALUATE[flag]
    for name in ("plain", run):
        known[name] = known.get(name) or called(of_evaluate, *RUNS[name])
    assert known["plain"].code == 0
    assert holds(known["plain"], known[run])


def test_overwrite_starts_anew(called, known, tmp_path):
    known["plain"] = known.get("plain") or called(of_evaluate)
    shutil.copytree(known["plain"].folder, tmp_path / "copy")
    other = ["--output", tmp_path / "copy", "--seed", "1"]
    refused = called(of_evaluate, *other)
    assert refused.code == 2
    assert "--overwrite true to start anew" in refused.said
    assert called(of_evaluate, *other, "--overwrite", "true").results["seed"] == 1


@pytest.mark.filterwarnings("ignore")
def test_print_config_prints_what_a_run_is_made_of(run_folder, capsys):
    assert train.main(["fit", "--config", "run.yaml", "--model.optimizer.lr", "0.125", "--print_config"]) == 0
    assert "lr: 0.125" in capsys.readouterr().out
    assert not (run_folder / "runs").exists()
