"""evaluate.py on a tiny pipeline and small images: its files, its numbers, and what these depend on."""

import csv
import json
import shutil
import subprocess
from pathlib import Path
from unicodedata import normalize

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import evaluate
import sample
from deblur.checkpoints import checkpoint_hash
from deblur.data.files import images
from deblur.evaluation.controls import control_images
from deblur.evaluation.grid import CONTROLS
from deblur.evaluation.pixels import psnr
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import load_pipeline
from deblur.revision import commit
from deblur.settings import SamplingSettings
from tests import processes
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands
GRID = "product: {sampler: [ddim, ddpm], steps: [2, 3]}\n"
LABELS = ["blurry", "predictor", "sharp", *CONTROLS, "ddim 2", "ddim 3", "ddpm 2", "ddpm 3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """checkpoint/, data/{blur,sharp} with three pairs of different sizes, and grid.yaml."""
    folder = tmp_path_factory.mktemp("evaluate")
    tiny_pipeline(residual_scale=0.3).save_pretrained(folder / "checkpoint")
    for name, size in {"a": (48, 40), "b": (35, 64), "tiny": (8, 8)}.items():
        sharp = torch.rand(3, *size)
        images.write(folder / "data" / "sharp" / f"{name}.png", sharp)
        images.write(folder / "data" / "blur" / f"{name}.png", sharp.mean(0, keepdim=True).expand(3, -1, -1))
    (folder / "grid.yaml").write_text(GRID)
    return folder


def arguments(place: Path, output: Path, **changes) -> dict:
    given = {"checkpoint": place / "checkpoint", "data": place / "data", "grid": place / "grid.yaml", "output": output}
    given |= {"device": "cpu"} | changes
    return {name: value if isinstance(value, int) else str(value) for name, value in given.items() if value is not None}


def score(given: dict) -> None:
    """Evaluate in this process."""
    evaluate.evaluate(evaluate.Evaluation(**given))


def flags(given: dict) -> list[str]:
    return [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]


def run(given: dict, **environment: str) -> subprocess.CompletedProcess:
    return processes.run("evaluate.py", flags(given), environment)


def rows(output: Path) -> list[dict]:
    return list(csv.DictReader((output / "results.csv").open()))


def each(output: Path) -> list[dict]:
    return pq.read_table(output / "per_image.parquet").to_pylist()


@pytest.fixture(scope="module")
def offline(place, tmp_path_factory):
    """What a run says in a process of its own, with an empty weights cache and a proxy that refuses; and its folder."""
    folder = tmp_path_factory.mktemp("offline")
    without = {"TORCH_HOME": str(folder / "cache"), "https_proxy": "http://127.0.0.1:9"}
    return run(arguments(place, folder / "scores"), **without), folder / "scores"


def test_a_run_without_network_scores_everything(offline):
    done, output = offline
    assert done.returncode == 0, done.stderr
    assert "missing" not in done.stdout
    assert "Traceback" not in done.stderr
    files = ["results.csv", "results.json", "per_image.parquet", "pareto.png", "report.html"]
    assert {path.name for path in output.iterdir()} >= {*files, "journal"}
    assert done.stdout.splitlines()[-1] == f"wrote {output}: open {output / 'report.html'}"
    Image.open(output / "pareto.png").load()

    table = rows(output)
    assert [line["setting"] for line in table] == LABELS
    assert {line["images"] for line in table} == {"3"}
    scored = [line for line in table if line["setting"] != "sharp"]
    assert all(float(line["psnr"]) > 5 and float(line["ssim"]) < 1 and float(line["lpips"]) > 0 for line in scored)
    assert all(float(line["psnr_low"]) < float(line["psnr"]) < float(line["psnr_high"]) for line in scored)
    assert all((line["psnr_difference"] == "") == (line["setting"] in ("predictor", "sharp")) for line in table)
    assert all(line["perceptual"] and float(line["lpips_over_sharpened"]) for line in table[-4:])
    assert all(float(line["seconds"]) > 0 for line in table[3:])
    assert list(table[0])[:4] == ["setting", "sampler", "schedule", "steps"]
    assert list(table[0])[-1] == "seconds"
    images = each(output)
    assert len(images) == 3 * len(LABELS)
    assert all((line["ssim"] is None) == (line["image"] == "tiny" or line["setting"] == "sharp") for line in images)


def test_its_json_says_how_the_numbers_were_made(place, offline):
    document = json.loads((offline[1] / "results.json").read_text())
    assert document["metrics"]["lpips"]["reason"] is None
    assert "rounded to 8 bits" in document["metrics"]["psnr"]["recipe"]
    assert document["checkpoint"]["sha256"] == checkpoint_hash(str(place / "checkpoint"))
    facts = {"root": str(place / "data"), "split": "test", "layout": "flat", "variant": "blur", "images": 3}
    assert {name: document["data"][name] for name in facts} == facts
    assert len(document["data"]["sha256"]) == 64
    assert document["git_commit"] == commit()
    assert torch.__version__.startswith(document["versions"]["torch"])
    assert document["seed"] == 0
    assert document["command"].startswith(str(ROOT / "evaluate.py"))
    assert [line["setting"] for line in document["rows"]] == LABELS
    assert {line["verdict"]["perceptual"] for line in document["rows"][-4:]} <= {"yes", "no", "unclear"}
    assert document["cost"] == {"denoising_steps": 30}


@pytest.mark.parametrize(("metric", "sign"), [("lpips", 1), ("ssim", -1)])  # the lower, or the higher is better
def test_a_setting_on_the_front_shows_its_best_median_and_worst_image_and_becomes_a_preset(
    place, tmp_path, metric, sign
):
    grid, checkpoint = tmp_path / "grid.yaml", tmp_path / "checkpoint"
    shutil.copytree(place / "checkpoint", checkpoint)
    index = json.loads((checkpoint / "model_index.json").read_text())
    (checkpoint / "model_index.json").write_text(json.dumps(index | {"residual_scale": 1e-4}))
    # The ground truth is near the prediction, so blend 0 is on the front with it.
    grid.write_text("product: {steps: 2, blend: [0.0, 0.5, 1.0]}")
    for number in range(3):
        blurry = torch.rand(3, 40, 48)
        prediction = load_pipeline(str(checkpoint)).predict(blurry[None]).images[0]
        sharp = prediction + 0.02 * (number + 1) * torch.randn(3, 40, 48)
        images.write(tmp_path / "data" / "blur" / f"{number}.png", blurry)
        images.write(tmp_path / "data" / "sharp" / f"{number}.png", sharp.clamp(0, 1))
    given = arguments(place, tmp_path / "scores", checkpoint=checkpoint, grid=grid, save_presets=True)
    given["metrics"] = f"psnr,{metric}"
    given["data"] = str(tmp_path / "data")
    before = checkpoint_hash(str(checkpoint))
    score(given)
    document = json.loads((tmp_path / "scores" / "results.json").read_text())
    front = {line["setting"] for line in document["rows"] if line["front"] and line["fields"]}
    best = {entry["setting"] for entry in document["examples"] if entry["rank"] == "typical"}
    assert {entry["setting"] for entry in document["examples"]} - best == front - best
    assert front
    for setting in front:
        own = {entry["rank"]: entry for entry in document["examples"] if entry["setting"] == setting}
        assert sign * own["best"]["scores"][metric] < sign * own["worst"]["scores"][metric]
        for entry in own.values():
            files = {what: images.read(tmp_path / "scores" / file) for what, file in entry["files"].items()}
            value = psnr(files["restored"][None], files["sharp"][None]).item()
            assert value == pytest.approx(entry["scores"]["psnr"], abs=0.05)
    assert checkpoint_hash(str(checkpoint)) == before, "presets are no part of what was scored"
    presets = {line["preset"]: line["fields"] for line in document["rows"] if line["preset"]}
    pipeline = load_pipeline(str(checkpoint))
    assert {name for names in presets for name in names.split(", ")} == {"fidelity", "balanced", "perceptual"}
    for names, fields in presets.items():
        assert all(pipeline.preset(name) == SamplingSettings(**fields) for name in names.split(", "))
    score(given | {"save_presets": False})  # resumes, and has nothing to do
    score(arguments(place, tmp_path / "presets", checkpoint=checkpoint, grid=None))
    scored = json.loads((tmp_path / "presets" / "results.json").read_text())["rows"]
    fields = [row["fields"] for row in scored if row["fields"]]
    assert sorted(fields, key=str) == sorted(presets.values(), key=str)


def test_the_scores_are_those_of_the_pipeline_itself(place, tmp_path):
    score(arguments(place, tmp_path, seed=7, precision="fp32"))
    pipeline = load_pipeline(str(place / "checkpoint"), precision="fp32")
    for line in each(tmp_path):
        if line["setting"] == "sharp":
            assert line["psnr"] is None
            continue
        blurry, sharp = (images.read(place / "data" / side / f"{line['image']}.png") for side in ("blur", "sharp"))
        if line["setting"] == "blurry":
            restored = blurry[None]
        elif line["setting"] in CONTROLS:
            prediction = pipeline(blurry, SamplingSettings(blend=0.0), output_type="pt").predictions
            restored = dict(control_images(prediction, blurry[None], 7, [line["image"]]))[line["setting"]]
        else:
            sampler, _, steps = line["setting"].partition(" ")
            settings = SamplingSettings(sampler, steps=int(steps)) if steps else SamplingSettings(blend=0.0)
            restored = pipeline(blurry, settings, 7, [line["image"]], output_type="pt").images
        # Batches of another size round otherwise in the network, which an 8-bit image shows in a few pixels.
        assert line["psnr"] == pytest.approx(psnr(restored, sharp[None]).item(), abs=1e-3)


def test_some_pairs_of_a_split_with_blurry_images_of_one_kind_are_scored_and_shown(place, tmp_path):
    """Every second of four, each in a batch of its own."""
    root, batches = tmp_path / "GoPro" / "train" / "scene", []
    for k in range(4):
        for kind in ("sharp", "blur", "blur_gamma"):
            images.write(root / kind / f"{k}.png", torch.rand(3, 40, 48))
    changes = {"split": "train", "variant": "blur_gamma", "limit": 2, "batch_size": 1, "panel": tmp_path / "panel.png"}

    def look(network, given, output):
        if isinstance(network, UNetPredictor):
            batches.append(len(given[0]))

    hook = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        score(arguments(place, tmp_path / "scores", data=tmp_path / "GoPro", controls=False, **changes))
    finally:
        hook.remove()
    found = {line["image"]: line["psnr"] for line in each(tmp_path / "scores") if line["setting"] == "blurry"}
    assert list(found) == ["scene/0", "scene/2"]
    for name, value in found.items():
        pair = (images.read(root / kind / f"{name[-1]}.png")[None] for kind in ("blur_gamma", "sharp"))
        assert value == pytest.approx(psnr(*pair).item())
    assert set(batches) == {1}
    assert images.header_size(tmp_path / "panel.png")[0] > 6 * 480, "six images side by side"


def test_where_no_setting_has_both_scores_it_is_said_that_there_is_no_panel_and_no_preset(place, tmp_path, capsys):
    for side in ("blur", "sharp"):
        images.write(tmp_path / "data" / side / "a.png", torch.rand(3, 8, 8))  # too small for SSIM
    shutil.copytree(place / "checkpoint", tmp_path / "checkpoint")
    given = {"checkpoint": tmp_path / "checkpoint", "data": tmp_path / "data", "metrics": "psnr", "controls": False}
    score(arguments(place, tmp_path / "out", save_presets=True, panel=tmp_path / "a.png", **given))
    assert "so there is no panel, and no preset to save\n" in capsys.readouterr().out
    assert not (tmp_path / "a.png").exists()


def test_images_of_another_program_are_scored_by_the_same_recipe(place, tmp_path):
    other, missing = tmp_path / "other", tmp_path / "missing"
    for name, suffix in {"a": "tif", "b": "png", "tiny": "bmp"}.items():
        images.write(other / f"{name}.{suffix}", images.read(place / "data" / "sharp" / f"{name}.png") * 0.9)
    given = arguments(place, tmp_path / "out", checkpoint=None, grid=None, outputs=other)
    score(given)
    table = rows(tmp_path / "out")
    assert [line["setting"] for line in table] == ["blurry", "sharp", "outputs other"]
    assert float(table[2]["psnr"]) > float(table[0]["psnr"])
    assert "<h1>Evaluation of images" in (tmp_path / "out" / "report.html").read_text()
    shutil.copytree(other, missing)
    (missing / "b.png").unlink()
    with pytest.raises(ValueError, match="has no image b"):
        score(given | {"outputs": str(missing), "output": str(tmp_path / "second")})


def test_a_dataset_is_scored_as_it_was_downloaded_however_it_is_named(place, tmp_path):
    """Scenes with names that are not ASCII, two images a batch, an odd size, grey, 16 bits; outputs named by a Mac."""
    root, other = tmp_path / "GoPro", tmp_path / "other"
    for name, shape in {"Straße/Müller": (3, 48, 40), "Straße/b": (3, 48, 40), "zwei/c": (1, 35, 63)}.items():
        scene, name = name.split("/")
        sharp, depth = torch.rand(shape).expand(3, -1, -1), 16 if scene == "zwei" else 8
        images.write(root / "train" / scene / "sharp" / f"{name}.png", sharp, depth=depth)
        images.write(root / "train" / scene / "blur" / f"{name}.png", sharp.mean((1, 2), keepdim=True).expand_as(sharp))
        images.write(other / scene / f"{normalize('NFD', name)}.tif", sharp * 0.9)
    (tmp_path / "grid.yaml").write_text("settings: [{steps: 1}]")
    ways = [f"{root}:train", f"{{class_path: deblur.data.layouts.Source, init_args: {{root: {root}, split: train}}}}"]
    found = []
    for at, data in enumerate(ways):
        changes = {"grid": tmp_path / "grid.yaml", "outputs": other, "metrics": "psnr,lpips", "controls": False}
        score(arguments(place, tmp_path / str(at), data=data, precision="fp32", **changes))
        lines = [line | {"seconds": None} for line in each(tmp_path / str(at))]
        assert list(lines[0]) == ["setting", "image", "seconds", "psnr", "lpips", "missing"]
        found.append(lines)
    assert found[0] == found[1]
    assert {line["setting"] for line in found[0]} == {"blurry", "predictor", "sharp", "outputs other", "ddim 1"}
    assert {line["image"] for line in found[0]} == {"Straße/Müller", "Straße/b", "zwei/c"}
    facts = json.loads((tmp_path / "0" / "results.json").read_text())["data"]
    assert (facts["split"], facts["layout"], facts["images"]) == ("train", "gopro", 3)
    pipeline = load_pipeline(str(place / "checkpoint"), precision="fp32")
    for line in (line for line in found[0] if line["setting"] == "ddim 1"):
        scene, name = line["image"].split("/")
        blurry, sharp = (images.read(root / "train" / scene / side / f"{name}.png") for side in ("blur", "sharp"))
        restored = pipeline(blurry, SamplingSettings(steps=1), 0, [line["image"]], output_type="pt").images
        assert line["psnr"] == pytest.approx(psnr(restored, sharp[None]).item(), abs=1e-3)


# One way to restore


def test_images_are_restored_as_the_pipeline_and_sample_py_restore_them(place, tmp_path):
    """The examples that an evaluation writes, beside what sample.py writes for the same file, settings and seed."""
    (tmp_path / "grid.yaml").write_text("settings: [{sampler: ddpm, steps: 3, blend: 0.7}]")
    score(arguments(place, tmp_path / "scores", grid=tmp_path / "grid.yaml", seed=5, precision="fp32", controls=False))
    examples = json.loads((tmp_path / "scores" / "results.json").read_text())["examples"]
    examples = [entry for entry in examples if entry["setting"] != "predictor"]
    assert {entry["image"] for entry in examples} == {"a", "b"}  # the smallest has no LPIPS
    for entry in examples:
        blurry = place / "data" / "blur" / f"{entry['image']}.png"
        flags = ["--checkpoint", str(place / "checkpoint"), "--output", str(tmp_path / "restored"), "--seed", "5"]
        flags += ["--precision", "fp32", "--device", "cpu", "--sampler", "ddpm", "--steps", "3", "--blend", "0.7"]
        assert sample.main([str(blurry), *flags]) == 0
        ours = images.read(tmp_path / "scores" / entry["files"]["restored"])
        assert torch.equal(ours, images.read(tmp_path / "restored" / blurry.name))
