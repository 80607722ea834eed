"""Draw the perception-distortion curves of several evaluations side by side, with the controls.

    python -m tools.benchmarks.curves scores/synthetic scores/gopro --output docs/perception_distortion.png
    python -m tools.benchmarks.curves scores/synthetic scores/gopro --by steps --output docs/few_steps.png

With --by steps, PSNR and LPIPS by the number of denoiser evaluations, a line for each sampler, schedule and eta. Each
folder holds the results.json of evaluate.py and gives panels named after the folder. Means only: the tables have the
intervals of the paired differences, which are far smaller than those of the means.
"""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deblur.cli import call, run_command
from deblur.files import replacing

STYLES = {"sharpened": "--", "noised": ":"}
LEVELS = {"predictor": "-", "blurry": ":", "sharpened 0.6": "--", "noised 2": "-."}  # horizontal lines by steps
LOWER, UPPER = 0.25, 0.12  # margins around the settings, in parts of their range; the lower one has room for names


def main(evaluations: list[str], output: str, by: Literal["scores", "steps"] = "scores") -> None:
    """Draw the plot.

    Args:
        evaluations: folders that evaluate.py has written, with PSNR and LPIPS.
        output: PNG file to write to.
        by: scores (LPIPS by PSNR), or steps (both by the number of steps).
    """
    lines = 2 if by == "steps" else 1
    figure = Figure(figsize=(4.6 * len(evaluations), 4.2 * lines), dpi=120, layout="constrained")
    panels = figure.subplots(lines, len(evaluations), squeeze=False)
    for column, folder in zip(panels.T, evaluations, strict=True):
        document = json.loads(Path(folder, "results.json").read_text(encoding="utf-8"))
        if "lpips" not in document["metrics"]:
            raise ValueError(f"{folder} has no LPIPS: score it with --metrics psnr,ssim,lpips")
        if by == "steps":
            for axes, metric in zip(column, ("psnr", "lpips"), strict=True):
                draw_steps(axes, document, metric)
        else:
            draw(column[0], document)
        images = max(row["images"] for row in document["rows"])
        column[0].set_title(f"{Path(folder).name}: {images} images", fontsize=10)
    if by == "scores":
        panels[0][0].set_ylabel("LPIPS (AlexNet): lower is better ↑")
    names = panels[0][0].get_legend_handles_labels()
    figure.legend(*names, fontsize=8, loc="outside lower center", ncols=min(5, 3 * len(evaluations)))
    with replacing(Path(output)) as part:
        figure.savefig(part, format="png")


def draw(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the curves of one evaluation; `document` is its results.json."""
    rows = {row["setting"]: row for row in document["rows"]}
    place = {name: [row["metrics"][metric]["mean"] for metric in ("psnr", "lpips")] for name, row in rows.items()}
    for control, labels in document["controls"]["rows"].items():
        curve = [place["predictor"], *(place[label] for label in labels)]
        axes.plot(*zip(*curve, strict=True), STYLES[control], color="0.4", marker=".", label=control)
    settings = [row for row in document["rows"] if row["fields"]]
    once = sorted(filter(_on_line, settings), key=lambda row: row["fields"]["blend"])
    line = [place["predictor"], *(place[row["setting"]] for row in once)]
    axes.plot(*zip(*line, strict=True), color="tab:blue", label="one step, by blend")
    named = []
    for row in settings:
        marker, offset, side = ("o", (5, 4), "left") if row in once else ("s", (-5, -3), "right")
        axes.plot(*place[row["setting"]], marker, color="tab:blue", markersize=5)
        fields = row["fields"] | {"start": row["fields"]["start"] is not None}
        if fields not in named:  # one name for settings that differ only in where they start; they lie close together
            text = {"textcoords": "offset points", "fontsize": 7, "ha": side}
            axes.annotate(_name(row), place[row["setting"]], xytext=offset, **text)
        named.append(fields)
    for name, marker in (("blurry", "X"), ("predictor", "*")):
        axes.plot(*place[name], marker, color="black", markersize=9, linestyle="", label=name)
    shown = [place[name] for name in ("predictor", *(row["setting"] for row in settings))]
    # A blurry image far from all settings would press them into a corner, so it lies outside then.
    span = max(psnr for psnr, _ in shown) - min(psnr for psnr, _ in shown)
    if place["predictor"][0] - place["blurry"][0] <= 2 * span:
        shown.append(place["blurry"])
    for limits, values in zip((axes.set_xlim, axes.set_ylim), zip(*shown, strict=True), strict=True):
        margin = max(values) - min(values)
        limits(min(values) - LOWER * margin, max(values) + UPPER * margin)
    axes.invert_yaxis()
    axes.set_xlabel("PSNR (dB): higher is better →")
    axes.grid(color="0.92")


def draw_steps(axes: Axes, document: Mapping[str, Any], metric: str) -> None:
    """Draw a metric by the number of steps; `document` is an evaluation's results.json."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in document["rows"]:
        fields, score = row["fields"], row["metrics"][metric]["mean"]
        if fields and fields["blend"] > 0 and score is not None:
            eta = f", eta {fields['eta']:g}" if fields["sampler"] == "ddim" else ""
            name = f"{fields['sampler']}, {fields['schedule']}{eta}"
            curves.setdefault(name, []).append((fields["steps"], score))
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    compared = {row["setting"]: row["metrics"][metric]["mean"] for row in document["rows"] if row["setting"] in LEVELS}
    for name, score in compared.items():
        axes.axhline(score, color="0.5", linestyle=LEVELS[name], label=name)
    axes.set_xscale("log")
    axes.set_xlabel("denoiser evaluations")
    axes.set_ylabel(document["metrics"][metric]["title"])


def _on_line(row: Mapping[str, Any]) -> bool:
    """Whether it is one step from the noisiest level that refines every image: such settings differ in their blend."""
    fields = row["fields"]
    return fields["steps"] == 1 and fields["start"] is None and not fields.get("keep_sharp")


def _name(row: Mapping[str, Any]) -> str:
    fields = row["fields"]
    if _on_line(row):
        return f"{fields['blend']:g}"
    if fields.get("keep_sharp"):
        return f"{fields['blend']:g}, sharp kept"
    text = f"{fields['steps']} step{'s' * (fields['steps'] > 1)}"
    text = f"mean of {fields['num_samples']}, {text}" if fields["average"] else text
    text = f"{fields['blend']:g}, {text}" if fields["blend"] < 1 else text
    return text if fields["start"] is None else f"{text} from {fields['start']:g}"


if __name__ == "__main__":
    command = partial(call, main, None, "-m tools.benchmarks.curves", nargs="+")
    sys.exit(run_command("tools.benchmarks.curves", command, "stopped"))
