"""evaluate.py on a tiny pipeline and small pictures: its files, its numbers, and what it says of bad input."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import alexnet

import evaluate
from data import images
from evaluation.metrics import psnr
from models.checkpoints import CheckpointError, checkpoint_hash, load_pipeline
from models.pipeline import DeblurPipeline
from models.schedules import linear
from models.settings import SamplingSettings
from models.unet import Denoiser, UNetPredictor

ROOT = Path(__file__).parents[1]
GRID = "product: {sampler: [ddim, ddpm], steps: [2, 3]}\n"
LABELS = ["blurry", "predictor", "ddim 2", "ddim 3", "ddpm 2", "ddpm 3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """checkpoint/, data/{blur,sharp} with three pairs of different sizes, grid.yaml, and random.safetensors, a backbone
    of the right shapes that measures nothing known."""
    folder = tmp_path_factory.mktemp("evaluate")
    torch.manual_seed(0)
    scheduler = DDPMScheduler(num_train_timesteps=100, trained_betas=linear(100, 1e-4, 0.1).tolist())
    networks = UNetPredictor(4, (1, 2), 1), Denoiser(4, (1, 2), 1)
    for network in networks:
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.05)  # the last layers start at zero, and zero tests nothing
    DeblurPipeline(*networks, scheduler, 0.1).save_pretrained(folder / "checkpoint")
    for name, size in {"a": (48, 40), "b": (35, 64), "tiny": (8, 8)}.items():
        sharp = torch.rand(3, *size)
        images.write(folder / "data" / "sharp" / f"{name}.png", sharp)
        images.write(folder / "data" / "blur" / f"{name}.png", sharp.mean(0, keepdim=True).expand(3, -1, -1))
    (folder / "grid.yaml").write_text(GRID)
    features = alexnet(weights=None).features.state_dict()
    save_file({f"features.{name}": weight for name, weight in features.items()}, folder / "random.safetensors")
    return folder


def arguments(place: Path, output: Path, **changes) -> dict:
    given = {"checkpoint": place / "checkpoint", "data": place / "data", "grid": place / "grid.yaml", "output": output}
    given |= {"device": "cpu", "lpips_backbone": place / "random.safetensors"} | changes
    return {name: value if isinstance(value, int) else str(value) for name, value in given.items() if value is not None}


def run(given: dict, **environment: str) -> subprocess.CompletedProcess:
    flags = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    return subprocess.run(
        [sys.executable, ROOT / "evaluate.py", *flags],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def rows(output: Path, name: str = "results.csv") -> list[dict]:
    return list(csv.DictReader((output / name).open()))


def test_a_run_without_network_scores_everything_but_lpips(place, tmp_path):
    """In a process of its own: an empty weights cache, and a proxy that refuses at once."""
    output = tmp_path / "scores"
    offline = {"TORCH_HOME": str(tmp_path / "cache"), "https_proxy": "http://127.0.0.1:9"}
    done = run(arguments(place, output, lpips_backbone=None), **offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("LPIPS is missing") == 1 and "Traceback" not in done.stderr
    names = {"results.csv", "per_image.csv", "results.json", "pareto.png", "panel.png"}
    assert {path.name for path in output.iterdir()} == names
    assert all(name in done.stdout.splitlines()[-1] for name in names)

    table = rows(output)
    assert [line["label"] for line in table] == LABELS
    assert {line["images"] for line in table} == {"3"}
    assert {line["lpips"] for line in table} == {""}
    assert all(float(line["psnr"]) > 5 and float(line["ssim"]) < 1 for line in table)
    assert all(float(line["seconds"]) > 0 for line in table[1:])
    each = rows(output, "per_image.csv")
    assert len(each) == 3 * len(LABELS)
    assert [line["ssim"] == "" for line in each] == [line["image"] == "tiny" for line in each]

    document = json.loads((output / "results.json").read_text())
    assert document["recipes"]["lpips"].startswith("LPIPS is missing")
    assert "rounded to 8 bits" in document["recipes"]["psnr"]
    assert document["checkpoint"]["sha256"] == checkpoint_hash(str(place / "checkpoint"))
    facts = {"split": "test", "layout": "flat", "variant": "blur", "images": 3}
    assert document["data"] == {"root": str(place / "data"), **facts}
    assert document["seed"] == 0 and document["command"].startswith(str(ROOT / "evaluate.py"))
    assert [line["label"] for line in document["rows"]] == LABELS
    for name in ("pareto.png", "panel.png"):
        Image.open(output / name).load()


def test_the_scores_are_those_of_the_pipeline_itself(place, tmp_path):
    evaluate.main(**arguments(place, tmp_path, seed=7, precision="fp32"))
    pipeline = load_pipeline(str(place / "checkpoint"), precision="fp32")
    for line in rows(tmp_path, "per_image.csv"):
        blurry, sharp = (images.read(place / "data" / side / f"{line['image']}.png") for side in ("blur", "sharp"))
        if line["label"] == "blurry":
            restored = blurry[None]
        else:
            sampler, _, steps = line["label"].partition(" ")
            settings = SamplingSettings(sampler, steps=int(steps)) if steps else SamplingSettings(blend=0.0)
            restored = pipeline(blurry, settings, 7, [line["image"]], output_type="pt").images
        assert float(line["psnr"]) == pytest.approx(psnr(restored, sharp[None]).item(), abs=1e-5)


def test_the_seed_decides_the_samples_and_nothing_else(place, tmp_path):
    seeds = {"first": 0, "again": 0, "other": 1}
    for name, seed in seeds.items():
        evaluate.main(**arguments(place, tmp_path / name, seed=seed, limit=2))
    scored = ["label", "psnr", "ssim", "lpips"]
    first, again, other = ([[line[key] for key in scored] for line in rows(tmp_path / name)] for name in seeds)
    assert first == again
    assert first[:2] == other[:2]
    assert all(one != two for one, two in zip(first[2:], other[2:], strict=True))
    assert all(float(line[3]) > 0 for line in first)


def test_limit_and_panel(place, tmp_path):
    output, panel = tmp_path / "scores", tmp_path / "elsewhere" / "demo.png"
    evaluate.main(**arguments(place, output, limit=1, panel=panel))
    assert {line["image"] for line in rows(output, "per_image.csv")} == {"a"}
    Image.open(panel).load()
    assert not (output / "panel.png").exists()


def broken(place: Path, tmp_path: Path, what: str) -> dict:
    """Arguments with one thing wrong."""
    data = tmp_path / "data"
    for side in ("blur", "sharp"):
        images.write(data / side / "a.png", torch.rand(3, 32, 32))
    if what == "text named png":
        (data / "blur" / "a.png").write_text("not a picture")
    elif what == "truncated":
        (data / "blur" / "a.png").write_bytes((data / "sharp" / "a.png").read_bytes()[:900])
    elif what == "different size":
        images.write(data / "blur" / "a.png", torch.rand(3, 32, 31))
    elif what == "unpaired":
        (data / "sharp" / "a.png").rename(data / "sharp" / "b.png")
    elif what == "no data":
        data = tmp_path / "absent"
    elif what == "no checkpoint":
        return arguments(place, tmp_path / "out", checkpoint=tmp_path / "absent")
    elif what == "output is a file":
        (tmp_path / "out").write_text("in the way")
    elif what == "limit 0":
        return arguments(place, tmp_path / "out", limit=0)
    elif what == "panel without suffix":
        return arguments(place, tmp_path / "out", panel=tmp_path / "panel")
    elif what == "no device":
        return arguments(place, tmp_path / "out", device="nonsense")
    elif what == "wrong backbone":
        save_file({"features.0.weight": torch.zeros(1)}, tmp_path / "wrong.safetensors")
        return arguments(place, tmp_path / "out", lpips_backbone=tmp_path / "wrong.safetensors")
    else:
        (tmp_path / "grid.yaml").write_text(what)
        return arguments(place, tmp_path / "out", grid=tmp_path / "grid.yaml")
    return arguments(place, tmp_path / "out", data=data)


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("text named png", ValueError, "a.png"),
        ("truncated", ValueError, "a.png"),
        ("different size", ValueError, "31x32"),
        ("unpaired", ValueError, "b.png"),
        ("no data", ValueError, "absent"),
        ("no checkpoint", CheckpointError, "absent"),
        ("output is a file", OSError, "out"),
        ("limit 0", ValueError, "--limit must be 1 or more"),
        ("panel without suffix", ValueError, "--panel must name a .png file"),
        ("no device", ValueError, "nonsense"),
        ("wrong backbone", ValueError, "features.0.weight"),
        ("product: {sampler: euler}", ValueError, "euler"),
        ("product: {steps: 0}", ValueError, "steps"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_results(place, tmp_path, what, kind, said):
    with pytest.raises(kind) as caught:
        evaluate.main(**broken(place, tmp_path, what))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("results*"))


def test_an_error_is_a_line_on_stderr_and_exit_code_2(place, tmp_path):
    done = run(broken(place, tmp_path, "product: {sampler: euler}"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("evaluate.py: error: Grid file") and done.stderr.count("\n") == 1


def test_help_and_wrong_arguments_come_before_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    asked = run({"help": ""}, PYTHONPATH=str(tmp_path))
    assert asked.returncode == 0 and "--lpips_backbone" in asked.stdout
    wrong = run(
        {"checkpoint": "a", "data": "b", "grid": "c", "output": "d", "precision": "fp7"}, PYTHONPATH=str(tmp_path)
    )
    assert wrong.returncode == 2 and "precision" in wrong.stderr and "torch was imported" not in wrong.stderr
