"""The ablation: its plan and its table by hand, and a small one from photographs to plot."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks.ablation import changed, main, table
from data import images

PLAN = Path(__file__).parents[1] / "benchmarks" / "ablation.yaml"


def test_an_arm_is_the_base_with_its_values_in_their_places():
    base = {"model": {"lr": 1.0, "deep": {"a": 1, "b": 2}}}
    arm = {"model.deep.a": 3, "model.new.c": {"d": 4}}
    assert changed(base, arm) == {"model": {"lr": 1.0, "deep": {"a": 3, "b": 2}, "new": {"c": {"d": 4}}}}
    assert base == {"model": {"lr": 1.0, "deep": {"a": 1, "b": 2}}}
    plan = yaml.safe_load(PLAN.read_text())
    arms = {arm: dict(given) for arm, given in plan["arms"].items()}
    settings = [given.pop("settings", None) for given in arms.values()]
    configs = [
        json.dumps([changed(plan["base"], given), extra]) for given, extra in zip(arms.values(), settings, strict=True)
    ]
    assert len(set(configs)) == len(configs) and not any("," in arm for arm in arms)  # --only separates them by commas
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
    folders = str(tmp_path / "photos"), str(tmp_path / "out"), str(tmp_path / "plan.yaml")
    main(*folders, teraflop=1e-6)  # a step
    found = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [row["arm"] for row in found["rows"]] == list(plan["arms"])
    with open(tmp_path / "out" / "ablation.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(plan["arms"])
    assert images.read(tmp_path / "out" / "ablation.png").shape[0] == 3
    before = (tmp_path / "out" / "base" / "0" / "scores.json").stat().st_mtime_ns
    main(*folders, teraflop=1e-6)
    assert (tmp_path / "out" / "base" / "0" / "scores.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="is of another plan"):
        main(*folders, teraflop=2e-6)
