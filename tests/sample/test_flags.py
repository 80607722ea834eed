"""Every flag of sample.py changes what it names."""

from dataclasses import fields

import pytest
import torch

import sample
from deblur.data.files import images
from deblur.settings import SamplingSettings
from tests.tiny import RICH, TwoStages, tiny_pipeline

pytestmark = pytest.mark.commands


def of_sample(args):
    base = {"--checkpoint": "checkpoint", "--precision": "fp32", "--device": "cpu"}
    added = [part for flag, value in base.items() if flag not in args for part in (flag, value)]
    return sample.main(["photos", *args, *added])


def batch(run):
    return run.seen["denoiser"][-1][0]


def widest(run):
    return max(shape[-1] for shape in run.seen["denoiser"])


def size(run):
    return (run.folder / "a.jpg").stat().st_size


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
    "keep_sharp": (
        DRAWN,
        ["1e4"],
        lambda a, b: differ(a, b) and b.entry["restored_share"] == 0 and "a.png: looks sharp to this check" in b.said,
    ),
    "format": (DRAWN, ["tif"], lambda a, b: (b.folder / "a.tif").is_file() and not b.files),
    "quality": ([*DRAWN, "--format", "jpg"], ["20"], lambda a, b: size(b) < size(a)),
    "depth": (DRAWN, ["16"], lambda a, b: images.read_file(b.folder / "a.png").pixels.dtype == torch.uint16),
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


def test_every_flag_of_sample_py_is_tested_here():
    flags = {field.name for kind in (sample.Options, SamplingSettings) for field in fields(kind)}
    assert flags == {*SAMPLE, "classes", "memory", "overwrite", "mask", "stages"}


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
    assert "class mypred.Net cannot be imported" in called(of_sample, "--classes", "mypred.Net").said


def test_fewer_stages_make_another_image(called, tmp_path):
    tiny_pipeline(TwoStages()).save_pretrained(tmp_path / "staged")

    def of_staged(args):
        flags = ["--checkpoint", str(tmp_path / "staged"), "--classes", RICH, "--blend", "0"]
        return sample.main(["photos", *args, *flags])

    one, both, three = (called(of_staged, *flag) for flag in (["--stages", "1"], [], ["--stages", "3"]))
    assert differ(one, both)
    assert three.code == 2
    assert "this checkpoint's predictor has 2: give 1 to 2" in three.said


def test_a_mask_says_what_is_restored(called, place, tmp_path):
    images.write(tmp_path / "mask.png", (torch.arange(150) >= 75).float().expand(3, 72, 150))
    images.write(tmp_path / "small.png", torch.ones(3, 7, 9))

    def of_one(args):
        given = [str(place / "photos" / "a.png"), *args, "--checkpoint", "checkpoint", "--steps", "2"]
        return sample.main(given)

    masked = called(of_one, "--mask", tmp_path / "mask.png", "--keep_sharp", "1e4")
    assert masked.entry["restored_share"] == 0.5
    assert masked.entry["settings"]["keep_sharp"] == 0
    assert "--keep_sharp has no effect: --mask says what is restored" in masked.said
    every = called(of_one, "--restore", "all", "--keep_sharp", "3")
    assert "--keep_sharp has no effect: --restore all says what is restored" in every.said
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

    whole, limited = (called(of_large, *flags) for flags in ([], ["--memory", "2.93"]))
    assert whole.seen["denoiser"][-1][-1] == 420 > limited.seen["denoiser"][-1][-1]
    assert limited.code == 0
