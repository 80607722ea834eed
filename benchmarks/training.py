"""Crops per second and MFU of training, by config and option, each case in its own process.

python -m benchmarks.training --cases 'demo/*,lite/*'
python -m benchmarks.training --cases 'paper/*' --flags '--data.batch_size 2 --data.crops_per_image 2'

A case is CONFIG/OPTION. The option `default` is train.py without changes: bf16 if the device supports it,
channels_last, fused AdamW. The others change one thing: fp32, nchw, unfused, unguarded (the guard off), compiled; plain
is fp32 and nchw. Results are merged into the JSON file with the machine they were measured on, so cases can be run in
parts.
"""

import csv
import json
import shlex
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import torch
from lightning.pytorch import Callback
from tqdm import tqdm

from base.command_line import call
from benchmarks.record import destination, in_own_process, machine, write_json

CONFIGS = {
    "demo": "configs/demo.yaml",
    "lite": "configs/pretrained_lite/predictor_finish.yaml",
    "base": "configs/pretrained_base/predictor.yaml",
    "gopro_lite": "configs/gopro_lite.yaml",
    "u2net": "configs/gopro_u2net.yaml",
    "paper": "configs/gopro.yaml",
}
FP32, OFF = ["--trainer.precision", "32-true"], "benchmarks.training.Off"
OPTIONS = {
    "default": [],
    "fp32": FP32,
    "nchw": ["--trainer.callbacks+", OFF, "--trainer.callbacks.channels_last", "false"],
    "unfused": ["--trainer.callbacks+", OFF, "--trainer.callbacks.fused", "false"],
    "unguarded": ["--guard.patience", "0"],
    "compiled": ["--model.compiled", "true"],
    "plain": [*FP32, "--trainer.callbacks+", OFF, "--trainer.callbacks.channels_last", "false"],
}
CASES = [f"{config}/{option}" for config in CONFIGS for option in OPTIONS]
QUICK = "--data.patch_size 32 --data.batch_size 2 --data.crops_per_image 1 --data.num_workers 0"
INTERVALS = 3
PROFILED = 2  # steps after the timed ones
FIGURES = ("crops_per_s", "mfu", "data_wait", "peak_gib")
BOUND = 0.05  # with a larger share of waiting the data loader limits the speed


class Off(Callback):
    """Disables optimisations that train.py applies by itself.

    Args:
        channels_last: whether networks and crops stay in channels_last.
        fused: whether AdamW stays fused.
    """

    def __init__(self, channels_last: bool = True, fused: bool = True):
        self.channels_last, self.fused = channels_last, fused

    def on_train_start(self, trainer, pl_module) -> None:
        if not self.channels_last:
            pl_module.to(memory_format=torch.contiguous_format)
        if not self.fused:
            for group in trainer.optimizers[0].param_groups:
                group["fused"] = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if not self.channels_last:
            batch.update({side: batch[side].contiguous() for side in ("blurry", "sharp")})


class Costliest(Callback):
    """Writes the three costliest kernels (on a CPU: operators) and their share of the time into costliest.json.

    Args:
        start: the first profiled step; all later steps are profiled, too.
    """

    def __init__(self, start: int):
        self.first = start

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if trainer.global_step == self.first:
            on_gpu = pl_module.device.type == "cuda"
            kinds = torch.profiler.ProfilerActivity
            self.profiler = torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if on_gpu else [])])
            self.profiler.start()
            self.time = "self_device_time_total" if on_gpu else "self_cpu_time_total"

    def on_train_end(self, trainer, pl_module) -> None:
        self.profiler.stop()
        seconds = {event.key: getattr(event, self.time) for event in self.profiler.key_averages()}
        total = sum(seconds.values())
        three = sorted(seconds, key=seconds.get, reverse=True)[:3]
        shares = {name: round(seconds[name] / total, 3) for name in three}
        Path(trainer.default_root_dir, "costliest.json").write_text(json.dumps(shares))


def measure(case: str, data: str, device: str, interval: int, flags: list[str]) -> dict:
    """Measure one case in this process: medians over `INTERVALS` intervals of `interval` steps each."""
    import train

    config, option = case.split("/")
    timed = 1 + INTERVALS * interval  # the first step is for warm-up
    with tempfile.TemporaryDirectory() as folder:
        steps = str(timed + PROFILED)
        arguments = ["fit", "--config", CONFIGS[config], "--trainer.default_root_dir", folder]
        arguments += ["--trainer.accelerator", "gpu" if device == "cuda" else device, "--trainer.devices", "1"]
        arguments += ["--trainer.max_steps", steps, "--trainer.val_check_interval", steps, "--data.val", "null"]
        arguments += ["--model.init_from", "null"]  # the speed does not depend on the weights
        arguments += ["--trainer.log_every_n_steps", str(interval), "--trainer.logger", "false"]
        arguments += ["--trainer.enable_progress_bar", "false", "--data.train", data, *flags]
        arguments += ["--trainer.profiler", "benchmarks.speed.Clock", "--trainer.callbacks+", "benchmarks.speed.Speed"]
        arguments += ["--trainer.callbacks+", "benchmarks.training.Costliest"]
        arguments += ["--trainer.callbacks.start", str(timed), *OPTIONS[option]]
        run = train.cli(arguments)
        with open(Path(folder) / "logs" / "version_0" / "metrics.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("speed/mfu")]
        # The first row covers only the few steps before the first multiple of the interval.
        found = {name: median(float(row[f"speed/{name}"]) for row in rows[1:]) for name in FIGURES}
        costliest = json.loads((Path(folder) / "costliest.json").read_text())
    return {name: round(value, 4) for name, value in found.items()} | {
        "loader_bound": found["data_wait"] > BOUND,
        "precision": run.trainer.precision,
        "batch_size": run.datamodule.batch_size,
        "patch_size": run.datamodule.patch_size,
        "num_workers": run.datamodule.num_workers,
        "costliest": costliest,
    }


def ratios(cases: dict) -> dict:
    """The speed-up of each case over its config's plain case."""
    plain = {config: cases.get(f"{config}/plain", {}).get("crops_per_s") for config in CONFIGS}
    return {
        case: round(record["crops_per_s"] / plain[case.split("/")[0]], 2)
        for case, record in cases.items()
        if plain[case.split("/")[0]]
    }


def main(
    cases: str = "*/*",
    output: str = "runs/benchmarks/training.json",
    publish: bool = False,
    photos: str | None = None,
    pairs: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    steps: int = 4,
    flags: str = "",
    quick: bool = False,
) -> None:
    """Measure the chosen cases, print them, and merge them into the JSON file.

    Args:
        cases: names or patterns of names, separated by commas.
        output: the JSON file.
        publish: write into benchmarks/results, under the name of the output.
        photos: folder of sharp photographs for demo; none: those of the demo.
        pairs: dataset of pairs for the other configs; none: four of 1280x720 are made.
        device: cpu or cuda.
        threads: of torch; none: torch's default.
        steps: length of each of three intervals; the median counts.
        flags: more flags of train.py, such as "--data.batch_size 2 --data.crops_per_image 2".
        quick: tiny crops, to try the program.
    """
    output = destination(output, publish)
    chosen = [name for name in CASES if any(fnmatch(name, pattern) for pattern in cases.split(","))]
    if not chosen:
        raise ValueError(f"no case is named {cases}; there are {' '.join(CASES)}")
    found = json.loads(Path(output).read_text()) if Path(output).is_file() else {"cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = {
            config: _photos(photos, Path(folder)) if config == "demo" else _pairs(pairs, Path(folder), quick)
            for config in {case.split("/")[0] for case in chosen}
        }
        more = [*shlex.split(QUICK if quick else ""), *shlex.split(flags)]
        for case in tqdm(chosen, "cases"):
            facts = machine(device, threads) | {"flags": flags}
            record = in_own_process(facts["threads"], measure, case, data[case.split("/")[0]], device, steps, more)
            found["cases"][case] = record | facts
            found["times_as_fast_as_plain"] = ratios(found["cases"])
            write_json(output, found)
            tqdm.write(f"{case}: {json.dumps(record)}")
    for case, ratio in found["times_as_fast_as_plain"].items():
        print(f"{case:<20} {ratio:6.2f} x")
    print(f"wrote {output}")


def _photos(given: str | None, folder: Path) -> str:
    if given is None and not (folder / "photos").is_dir():
        from tools import demo

        demo.main(str(folder / "photos"))
    return given or str(folder / "photos")


def _pairs(given: str | None, folder: Path, quick: bool) -> str:
    if given is None and not (folder / "pairs").is_dir():
        from benchmarks.data import make_pairs

        make_pairs(folder / "pairs", 1 if quick else 4)
    return given or str(folder / "pairs")


if __name__ == "__main__":
    call(main, None, "-m benchmarks.training", positional=0)
