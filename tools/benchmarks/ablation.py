"""Train variants ("arms") that differ in one thing with equal compute, and score them on held-out images.

python -m tools.benchmarks.ablation --photos PHOTOS --output runs/ablation --minutes 35
python -m tools.benchmarks.ablation --arms tools/benchmarks/predictors.yaml --pairs '[PAIRS]' --tests.NAME TEST \\
    --output runs/arms

An arm is the base config with a few values changed. Its number of steps is chosen by the cost of its networks: all arms
train with the same number of floating-point operations (tools/benchmarks/ablation.yaml), or for the same time of a
processor core (tools/benchmarks/predictors.yaml). Finished runs are skipped, so the same command resumes the ablation;
ablation.json and ablation.png hold the results so far. PHOTOS has sharp photographs and the lists train.txt and
test.txt.
"""

import copy
import csv
import gc
import json
import os
import re
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from tqdm import tqdm

from deblur.cli import run_command
from deblur.evaluation.statistics import Estimate, estimates
from deblur.files import replacing
from deblur.tools.benchmarks.record import machine, write_json

TITLES = {"psnr": "PSNR (dB)", "lpips": "LPIPS (AlexNet)"}
PACED = 25  # steps that measure an arm's time per step
CURVE = 12  # validations of an arm that is validated
SCORES = "scores.json"  # in the folder of an arm that is done


def changed(base: dict, arm: dict) -> dict:
    """The config of an arm: `base` with the values that `arm` gives by path, such as "model.init_args.optimizer.lr"."""
    config = copy.deepcopy(base)
    for path, value in arm.items():
        *folders, name = path.split(".")
        place = config
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = copy.deepcopy(value)
    return config


def fit(folder: Path, arguments: list[str], steps: int, interval: int) -> None:
    """Run train.py in this process for `steps` steps, validating every `interval` steps."""
    from deblur.training import command as train

    length = ["--trainer.max_steps", str(steps), "--trainer.val_check_interval", str(interval)]
    code = train.main(["fit", *arguments, "--trainer.default_root_dir", str(folder), *length])
    if code:
        raise RuntimeError(f"training in {folder} ended with exit code {code}; see above")


def core_seconds(folder: Path, arguments: list[str]) -> float:
    """The processor time of a training step; measured in a short run, and kept in `folder` for a resumed arm."""
    path = folder / "pace.json"
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=folder) as short:
            measured = ["--trainer.callbacks+", "deblur.tools.benchmarks.speed.Pace", "--data.val", "null"]
            fit(Path(short), [*arguments, *measured, "--trainer.limit_val_batches", "0"], PACED, PACED)
            os.replace(Path(short) / "pace.json", path)
    return json.loads(path.read_text())["processor_seconds"]


def train_arm(
    config: dict, folder: Path, source: str, val: str | None, compute: dict[str, float], seed: int
) -> dict[str, Any]:
    """Train or resume one arm; returns its numbers of steps, operations and parameters.

    Args:
        config: the arm's.
        folder: of the run.
        source: what it trains on, as --data.train, unless its config says.
        val: folder of pairs for its learning curve, or none.
        compute: {"teraflop": operations of the run} or {"core_minutes": processor time of the run}.
        seed: of the run.
    """
    from deblur.tools.benchmarks.speed import step_flops
    from deblur.training import command as train

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "arm.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    arguments = ["--config", str(path), "--seed_everything", str(seed), "--data.seed", str(seed)]
    arguments += [] if "train" in config["data"] else ["--data.train", source]
    arguments += ["--data.val", val or "null", "--trainer.logger", "false"]
    arguments += [] if val else ["--trainer.limit_val_batches", "0"]
    built = train.cli([*arguments, "--trainer.max_steps", "1", "--trainer.val_check_interval", "1"], run=False)
    data = built.datamodule
    flops = step_flops(built.model, (data.batch_size, 3, data.patch_size, data.patch_size))
    facts = {
        "gflop_step": round(flops / 1e9, 2),
        "parameters": sum(parameter.numel() for parameter in built.model.parameters()),
    }
    if "core_minutes" in compute:
        facts["core_seconds_step"] = core_seconds(folder, arguments)
        steps = max(1, round(60 * compute["core_minutes"] / facts["core_seconds_step"]))
    else:
        steps = max(1, round(compute["teraflop"] * 1e12 / flops))
    start = time.perf_counter()
    interval = max(1, steps // CURVE) if val else steps
    steps -= steps % interval  # so that the last step is validated
    fit(folder, arguments, steps, interval)
    return facts | {"steps": steps, "train_seconds": round(time.perf_counter() - start, 1), "curve": curve(folder)}


def curve(folder: Path) -> list[tuple[int, float]]:
    """The step and the PSNR of each validation of a run."""
    found = {}
    for file in folder.glob("logs/version_*/metrics.csv"):
        with file.open(newline="") as lines:
            found |= {int(row["step"]): float(row["val/psnr"]) for row in csv.DictReader(lines) if row.get("val/psnr")}
    return sorted(found.items())


def score(checkpoint: Path, settings: dict[str, dict], tests: dict[str, Path], metrics: dict) -> dict[str, dict]:
    """Column -> image -> score: `crops/prediction/psnr`, `crops/few/lpips`, `frames/prediction/psnr`, ...

    Only the crops are sampled on: whole frames would take long.
    """
    from deblur.data.layouts import find_pairs
    from deblur.data.pairs import read_pair
    from deblur.models.checkpoints import load_pipeline
    from deblur.models.settings import SamplingSettings

    pipeline = load_pipeline(str(checkpoint))
    samplings = {name: SamplingSettings(**given) for name, given in settings.items()}
    found: dict[str, dict] = {}
    for test, root in tests.items():
        for pair in find_pairs(root):
            blurry, sharp = (side[None] for side in read_pair(pair))
            prediction = pipeline.predict(blurry)
            restored = {"blurry": blurry, "prediction": prediction.images}
            for name, setting in samplings.items() if test == "crops" else ():
                [output] = pipeline.refine_shared(blurry, prediction, [setting], names=[pair.name])
                restored[name] = output.images
            for what, image in restored.items():
                for metric, compute in metrics.items():
                    value = compute(image, sharp).item()
                    found.setdefault(f"{test}/{what}/{metric}", {})[pair.name] = round(value, 5)
    return found


def table(runs: list[dict], reference: str) -> list[dict]:
    """One row per arm: for each column the mean over images and seeds, its difference to the reference, and all seeds.

    The difference uses the seeds that both have, paired by image; its 95 % interval is over images.
    """
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    by_arm = {arm: {run["seed"]: run for run in runs if run["arm"] == arm} for arm in arms}
    rows = []
    for arm, seeds in by_arm.items():
        first = next(iter(seeds.values()))
        row = {"arm": arm, "seeds": sorted(seeds), **{key: first[key] for key in ("steps", "gflop_step", "parameters")}}
        row["train_seconds"] = [run["train_seconds"] for run in seeds.values()]
        for column in first["scores"]:
            each = {seed: float(np.mean(list(run["scores"][column].values()))) for seed, run in seeds.items()}
            entry = {"mean": float(np.mean(list(each.values()))), "each": [each[seed] for seed in sorted(each)]}
            shared = sorted(seeds.keys() & by_arm.get(reference, {}).keys())
            if shared and arm != reference and column in by_arm[reference][shared[0]]["scores"]:
                own, other = (
                    np.mean([list(who[seed]["scores"][column].values()) for seed in shared], axis=0)
                    for who in (seeds, by_arm[reference])
                )
                estimate: Estimate = estimates((own - other)[:, None])[0]
                entry |= {"difference": estimate.mean, "low": estimate.low, "high": estimate.high}
            row[column] = entry
        rows.append(row)
    return rows


def plot(rows: list[dict], reference: str, path: Path) -> None:
    """Plot each arm as a line with a dot per seed and a bar at the mean; outliers as text."""
    known = dict.fromkeys(column for row in rows for column in row if "/" in column)
    columns = [column for column in known if "/blurry/" not in column]
    figure = Figure(figsize=(2.2 + 2.6 * len(columns), 1.2 + 0.32 * len(rows)), dpi=150, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(columns), sharey=True))
    for axes, column in zip(panels, columns, strict=True):
        test, what, metric = column.split("/")
        means = np.array([row[column]["mean"] for row in rows if column in row])
        middle = np.median(means)
        far = 12 * np.median(abs(means - middle))
        for height, row in enumerate(rows):
            if column not in row:
                continue
            mean = row[column]["mean"]
            if abs(mean - middle) > far:
                left = mean < middle
                axes.text(
                    0.03 if left else 0.97,
                    height,
                    f"← {mean:.3g}" if left else f"{mean:.3g} →",
                    transform=axes.get_yaxis_transform(),
                    ha="left" if left else "right",
                    va="center",
                    fontsize=7,
                    color="#D55E00",
                )
                continue
            axes.plot(row[column]["each"], [height] * len(row["seeds"]), "o", ms=4, mfc="none", color="#0072B2")
            axes.plot(mean, height, "|", ms=13, mew=2, color="#D55E00")
            if row["arm"] == reference:
                axes.axvline(mean, color="#999999", lw=0.8, zorder=0)
        axes.set_title(
            f"{test}, {what}\n{TITLES[metric]}, {'higher' if metric == 'psnr' else 'lower'} is better", fontsize=8
        )
        axes.tick_params(labelsize=7)
        axes.grid(axis="y", color="#eeeeee")
    panels[0].set_yticks(range(len(rows)), [row["arm"] for row in rows], fontsize=8)
    panels[0].invert_yaxis()
    with replacing(path) as part:
        figure.savefig(part, format="png")


def write(folder: Path, runs: list[dict], reference: str, facts: dict) -> None:
    """Write ablation.json and .png of the runs so far."""
    rows = table(runs, reference)
    write_json(folder / "ablation.json", {**facts, "reference": reference, "rows": rows, "runs": runs})
    plot(rows, reference, folder / "ablation.png")
    if any(run["curve"] for run in runs):
        plot_curves(runs, folder / "curves.png")


def plot_curves(runs: list[dict], path: Path) -> None:
    """Plot the validation PSNR of each run by the share of its training that is done."""
    figure = Figure(figsize=(6.4, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    for run in runs:
        steps, scores = zip(*run["curve"], strict=True)
        axes.plot(
            [step / run["steps"] for step in steps], scores, "o-", ms=3, label=f"{run['arm']}, seed {run['seed']}"
        )
    axes.set(xlabel="share of the training", ylabel="validation PSNR (dB)")
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=8)
    with replacing(path) as part:
        figure.savefig(part, format="png")


def held_out(folder: Path, photos: str, plan: dict) -> dict[str, Path]:
    """Crops and frames of the photographs of test.txt, blurred once by the base config's blur."""
    from deblur.tools import make_pairs

    base = folder / "base.yaml"
    base.write_text(yaml.safe_dump(plan["base"], sort_keys=False))
    tests = {name: folder / name for name in ("crops", "frames")}
    for root, side in zip(tests.values(), (plan["crop"], plan["frame"]), strict=True):
        if not root.is_dir():
            make_pairs.make([photos], str(base), str(root), names="test.txt", size=side)
    return tests


def images_of(
    folder: Path, plan: dict, photos: str | None, pairs: list[str] | None, tests: dict[str, str] | None
) -> tuple[dict[str, Path], str]:
    """The pairs to score on, by name, and the value of data.train; arguments as of `main`."""
    if (photos is None) == (pairs is None) or (pairs is None) != (tests is None):
        raise ValueError("give either --photos, or --pairs with --tests")
    folder.mkdir(parents=True, exist_ok=True)
    if photos is not None:
        return held_out(folder, photos, plan), photos
    scored = {name: Path(root) for name, root in tests.items()}
    return scored, json.dumps([{"root": root, "weight": 1} for root in pairs])


def chosen(plan: dict, only: str | None, file: str) -> list[str]:
    """The arms to run, of the plan in `file`; `only` as of `main`. ValueError if the plan lacks one."""
    wanted = list(plan["arms"]) if only is None else only.split(",")
    unknown = [arm for arm in wanted if arm not in plan["arms"]]
    if unknown:
        raise ValueError(f"{file} has no arm {unknown[0]!r}; it has {', '.join(plan['arms'])}")
    return wanted


def finished(folder: Path, spec: dict) -> dict | None:
    """The scores of an arm that is done; None if it is not. ValueError if it is of another plan."""
    done = folder / SCORES
    if not done.is_file():
        return None
    run = json.loads(done.read_text())
    if any(run.get(key) != value for key, value in spec.items()):
        raise ValueError(f"{done} is of another plan: give a new --output, or remove {folder}")
    return run


def main(
    output: str,
    photos: str | None = None,
    arms: str = "tools/benchmarks/ablation.yaml",
    only: str | None = None,
    budget: float | None = None,
    minutes: float | None = None,
    pairs: list[str] | None = None,
    tests: dict[str, str] | None = None,
    val: str | None = None,
) -> None:
    """Run the arms that are not done, and write the table and the plot after each.

    Args:
        output: folder of the runs, the held-out images, and ablation.json and .png.
        photos: folder of sharp photographs with train.txt and test.txt.
        arms: the YAML file.
        only: names of arms, separated by commas without spaces; none: all.
        budget: compute of every run in the file's unit, overriding the file's.
        minutes: start no run after this time; the same command resumes. A run is never cut short.
        pairs: folders of pairs to train on, with equal shares, in place of photos; an arm's data.train wins.
        tests: name -> folder of pairs to score the predictions on, with `pairs`.
        val: folder of pairs for learning curves (validations in each run's logs), with `pairs`.
    """
    from deblur.evaluation.metrics import make_metrics

    begin, folder, plan = time.monotonic(), Path(output), yaml.safe_load(Path(arms).read_text())
    wanted = chosen(plan, only, arms)
    unit = next(unit for unit in ("core_minutes", "teraflop") if unit in plan)
    compute = {unit: budget or plan[unit]}
    scored, source = images_of(folder, plan, photos, pairs, tests)
    metrics = make_metrics(["psnr", "lpips"])
    missing = {name: metric.reason for name, metric in metrics.items() if metric.reason is not None}
    metrics = {name: metric for name, metric in metrics.items() if metric.reason is None}
    facts = {**compute, "base": plan["base"], "missing": missing}
    runs = []
    for seed in plan["seeds"]:
        for arm in tqdm(wanted, f"seed {seed}", unit="arm"):
            given = dict(plan["arms"][arm])
            settings = given.pop("settings", plan["settings"])
            own = folder / re.sub(r"\W+", "_", arm) / str(seed)
            spec = {"arm": arm, "seed": seed, **compute, "changed": given, "settings": settings}
            if (run := finished(own, spec)) is not None:
                runs.append(run)
                continue
            if minutes is not None and time.monotonic() - begin > 60 * minutes:
                continue
            cost = train_arm(changed(plan["base"], given), own, source, val, compute, seed)
            run = spec | cost | {"scores": score(own / "checkpoint", settings, scored, metrics)} | machine()
            write_json(own / SCORES, run)
            runs.append(run)
            write(folder, runs, plan["reference"], facts)
            gc.collect()  # a trainer and its model refer to each other
    if not runs:
        raise ValueError("no run is done, and there was no time to begin one: give more --minutes")
    write(folder, runs, plan["reference"], facts)
    left = len(wanted) * len(plan["seeds"]) - len(runs)
    print(f"wrote {folder}/ablation.json and .png: {len(runs)} runs" + (f"; {left} to go" if left else ""))


if __name__ == "__main__":
    command = partial(auto_cli, main, as_positional=False)
    sys.exit(run_command("tools.benchmarks.ablation", command, "stopped; run again to resume"))
