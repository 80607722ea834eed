"""The ablation: its plans and its table by hand, and small ones from photographs and from pairs to plot."""

import csv
import importlib
import itertools
import json
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from deblur.data import images
from deblur.tools.benchmarks.ablation import changed, main, table

BENCHMARKS = Path(__file__).parents[1] / "tools" / "benchmarks"
PLAN, PREDICTORS = BENCHMARKS / "ablation.yaml", BENCHMARKS / "predictors.yaml"
PLANS = [PLAN, PREDICTORS, BENCHMARKS / "recipe.yaml", BENCHMARKS / "photographs.yaml"]

PUBLISHED = [("U2-Net", 3.5, 35), ("U2-Net with six side outputs", 3.6, 36), ("U2-Net lite", 1.2, 48)]
PUBLISHED += [("U-Net", 1.8, 42), ("U-Net of NAF blocks", 4.1, 34)]


def test_an_arm_is_the_base_with_its_values_in_their_places():
    base = {"model": {"lr": 1.0, "deep": {"a": 1, "b": 2}}}
    arm = {"model.deep.a": 3, "model.new.c": {"d": 4}}
    assert changed(base, arm) == {"model": {"lr": 1.0, "deep": {"a": 3, "b": 2}, "new": {"c": {"d": 4}}}}
    assert base == {"model": {"lr": 1.0, "deep": {"a": 1, "b": 2}}}


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_each_arm_of_a_plan_differs_and_can_be_named(path):
    plan = yaml.safe_load(path.read_text())
    arms = {arm: dict(given) for arm, given in plan["arms"].items()}
    settings = [given.pop("settings", None) for given in arms.values()]
    configs = [changed(plan["base"], given) for given in arms.values()]
    different = {json.dumps([config, extra]) for config, extra in zip(configs, settings, strict=True)}
    assert len(different) == len(configs) and not any("," in arm for arm in arms)  # --only separates them by commas
    assert arms[plan["reference"]] == {}


def test_the_table_s_means_and_differences():
    def run(arm, seed, *scores):
        cost = {"steps": 1, "gflop_step": 1.0, "parameters": 1, "train_seconds": 1.0}
        return {"arm": arm, "seed": seed, **cost, "scores": {"crops/few/psnr": dict(zip("abcd", scores, strict=True))}}

    runs = [run("base", 0, 1, 2, 3, 4), run("other", 0, 2, 3, 4, 6), run("base", 1, 3, 4, 5, 6)]
    base, other = (row["crops/few/psnr"] for row in table(runs, "base"))
    assert (base["mean"], base["each"], "difference" in base) == (3.5, [2.5, 4.5], False)
    # Of the first seed alone, which both have.
    assert (other["mean"], other["difference"]) == (3.75, 1.25) and other["low"] < 1.25 < other["high"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arms", [["base", "x0"], pytest.param(None, marks=pytest.mark.slow)], ids=["two arms", "all"])
def test_from_photographs_to_plot(tmp_path, arms):
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b", "c"):
        images.write(tmp_path / "photos" / f"{name}.png", torch.rand(3, 96, 96, generator=generator))
    (tmp_path / "photos" / "train.txt").write_text("a.png\n")
    (tmp_path / "photos" / "test.txt").write_text("b.png\nc.png\n")
    plan = yaml.safe_load(PLAN.read_text()) | {"seeds": [0], "crop": 32, "frame": 48}
    if arms is not None:
        plan["settings"] = {"few": {"steps": 1}, "many": {"steps": 2}}
        plan["base"]["data"] |= {"patch_size": 32, "batch_size": 2, "crops_per_image": 1}
    plan["arms"] = {arm: plan["arms"][arm] for arm in arms or plan["arms"]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    folders = str(tmp_path / "out"), str(tmp_path / "photos"), str(tmp_path / "plan.yaml")
    main(*folders, budget=1e-6)  # a step
    found = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [row["arm"] for row in found["rows"]] == list(plan["arms"])
    assert images.read(tmp_path / "out" / "ablation.png").shape[0] == 3
    before = (tmp_path / "out" / "base" / "0" / "scores.json").stat().st_mtime_ns
    main(*folders, budget=1e-6)
    assert (tmp_path / "out" / "base" / "0" / "scores.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="is of another plan"):
        main(*folders, budget=2e-6)


@pytest.mark.parametrize(("arm", "million", "gmac"), PUBLISHED, ids=[arm for arm, *_ in PUBLISHED])
def test_the_predictors_have_the_size_that_the_plan_says(arm, million, gmac):
    plan = yaml.safe_load(PREDICTORS.read_text())
    given = changed(plan["base"], plan["arms"][arm])["model"]["init_args"]["predictor"]
    module, name = given["class_path"].rsplit(".", 1)
    network = getattr(importlib.import_module(module), name)(**given["init_args"]).to("meta")
    assert round(sum(weights.numel() for weights in network.parameters()) / 1e6, 1) == million
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, 720, 1280, device="meta"))
    assert round(counter.get_total_flops() / 2e9) == gmac <= 80


@pytest.mark.filterwarnings("ignore")
def test_arms_of_equal_time_on_pairs(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name, side in itertools.product(("a", "b", "test"), ("blur", "sharp")):
        images.write(tmp_path / name / side / f"{name}.png", torch.rand(3, 64, 64, generator=generator))
    plan = yaml.safe_load(PREDICTORS.read_text())
    plan["base"]["data"] |= {"patch_size": 32, "batch_size": 1, "val_crop": 32}
    small = {"class_path": "deblur.models.nafnet.SlimPredictor", "init_args": {"widths": [4, 8], "blocks": [1, 1]}}
    plan["base"]["model"]["init_args"]["predictor"] = small
    own = {"data.train": [{"root": str(tmp_path / "b"), "weight": 3}]}
    wide = {"model.init_args.predictor.init_args.widths": [8, 8]}
    plan["arms"] = {plan["reference"]: {}, "Wide-Net": wide | own}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    pairs = [str(tmp_path / "a"), str(tmp_path / "b")]
    given = {"arms": str(tmp_path / "plan.yaml"), "pairs": pairs, "tests": {"own": str(tmp_path / "test")}}
    with pytest.raises(ValueError, match="give either --photos, or --pairs with --tests"):
        main(str(tmp_path / "out"), photos=str(tmp_path), **given)
    main(str(tmp_path / "out"), budget=0.005, val=str(tmp_path / "test"), **given)
    found = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [row["arm"] for row in found["rows"]] == list(plan["arms"]) and found["core_minutes"] == 0.005
    for run in found["runs"]:
        own = tmp_path / "out" / run["arm"].replace("-", "_") / "0"
        steps = round(0.3 / run["core_seconds_step"])
        assert json.loads((own / "pace.json").read_text())["processor_seconds"] == run["core_seconds_step"] > 0
        assert steps - 12 < run["steps"] <= steps and list(run["scores"])[-1] == "own/prediction/lpips"
        with open(own / "logs" / "version_0" / "metrics.csv", newline="") as file:
            scores = [[int(row["step"]), float(row["val/psnr"])] for row in csv.DictReader(file) if row["val/psnr"]]
        assert run["curve"] == scores and len(scores) >= min(12, run["steps"]) and scores[-1][0] == run["steps"]
        config = yaml.safe_load((own / "config.yaml").read_text())
        sources = [source.get("init_args", source) for source in config["data"]["train"]]
        weights = {pairs[1]: 3} if run["arm"] == "Wide-Net" else dict.fromkeys(pairs, 1)
        assert {source["root"]: source["weight"] for source in sources} == weights
    assert images.read(tmp_path / "out" / "curves.png").shape[0] == 3
