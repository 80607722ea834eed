"""Crops per second and MFU of training, by config and option, each case in its own process.

python -m tools.benchmarks.training --cases 'demo/*,finetune/*'
python -m tools.benchmarks.training --cases 'paper/*' --flags '--data.batch_size 2 --data.crops_per_image 2'

A case is CONFIG/OPTION. The option `default` is train.py without changes: bf16 if the device supports it,
channels_last, fused AdamW. The others change one thing: fp32, nchw, compiled, on_device (no loader:
data.keep_on_device); plain is fp32 and nchw. mfu is the share of the machine's rate of matrix products that the
networks reach by their own operations, forward and backward; data_wait is the share of the time that waits for the data
loader. Results are merged into the JSON file with the machine they were measured on, so cases can be run in parts.
"""

import json
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
from tqdm import tqdm

from deblur import train
from deblur.cli import call
from deblur.data.blur import SyntheticBlur
from deblur.data.camera import CameraShake
from deblur.data.files import images
from deblur.storage import write_json
from deblur.tools import demo
from deblur.tools.benchmarks.record import (
    chosen_cases,
    in_own_process,
    machine,
    matmul_rate,
    peak_memory,
    stored_cases,
)
from deblur.training.module import Predict

CONFIGS = {
    "demo": "configs/demo.yaml",
    "finetune": "configs/finetune.yaml",
    "gopro_lite": "configs/gopro_lite.yaml",
    "u2net": "configs/gopro_u2net.yaml",
    "paper": "configs/gopro.yaml",
}
FP32 = ["--trainer.precision", "32-true"]
NCHW = ["--trainer.callbacks+", "deblur.tools.benchmarks.training.Contiguous"]
OPTIONS = {
    "default": [],
    "fp32": FP32,
    "nchw": NCHW,
    "compiled": ["--model.compiled", "true"],
    "on_device": ["--data.keep_on_device", "true"],
    "plain": [*FP32, *NCHW],
}
CASES = [f"{config}/{option}" for config in CONFIGS for option in OPTIONS]
SMALL_RUN = "--data.patch_size 32 --data.batch_size 2 --data.crops_per_image 1 --data.num_workers 0"
MATRIX_SIDES = {"cuda": 8192, "cpu": 1024}  # of the matrices used to measure the machine's speed
PRECISION_TYPES = {"bf16": torch.bfloat16, "16": torch.float16}
WARM_UP_STEPS = 5  # steps that do not count
LARGEST_WAITING_SHARE = 0.05  # with a larger share of waiting the data loader limits the speed


class Contiguous(Callback):
    """Keeps networks and crops out of channels_last, which train.py chooses by itself."""

    def on_train_start(self, trainer, pl_module) -> None:
        pl_module.to(memory_format=torch.contiguous_format)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        batch.update({side: batch[side].contiguous() for side in ("blurry", "sharp")})


class Pace(Callback):
    """Writes the median time of a training step, in seconds, into pace.json of the run's folder.

    `processor_seconds` leaves out pauses and other programs; `seconds` includes the wait for the data loader. The first
    steps, a warm-up, are not counted.
    """

    def on_train_start(self, trainer: Trainer, pl_module: Predict) -> None:
        self.times = [(time.perf_counter(), time.process_time())]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Predict, outputs, batch: dict, batch_idx: int) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def on_train_end(self, trainer: Trainer, pl_module: Predict) -> None:
        seconds, processor_seconds = np.median(np.diff(self.times, axis=0)[WARM_UP_STEPS:], axis=0).tolist()
        pace = {"seconds": seconds, "processor_seconds": processor_seconds}
        write_json(Path(trainer.default_root_dir, "pace.json"), pace)


def measure(case: str, data: str, device: str, steps: int, flags: list[str]) -> dict:
    """Measure one case in this process: medians over `steps` steps after a warm-up."""
    config, option = case.split("/")
    with tempfile.TemporaryDirectory() as folder:
        length = str(WARM_UP_STEPS + steps)
        arguments = ["fit", "--config", CONFIGS[config], "--trainer.default_root_dir", folder]
        arguments += ["--trainer.accelerator", "gpu" if device == "cuda" else device, "--trainer.devices", "1"]
        arguments += ["--trainer.max_steps", length, "--trainer.val_check_interval", length, "--data.val", "null"]
        arguments += ["--model.init_from", "null"]  # the speed does not depend on the weights
        arguments += ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false", "--data.train", data]
        arguments += ["--trainer.profiler", "simple", "--trainer.callbacks+", "deblur.tools.benchmarks.training.Pace"]
        run = train.cli([*arguments, *flags, *OPTIONS[option]])
        seconds = json.loads((Path(folder) / "pace.json").read_text())["seconds"]
    waits = run.trainer.profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]
    data_module = run.datamodule
    shape = data_module.batch_size, 3, data_module.patch_size, data_module.patch_size
    dtype = PRECISION_TYPES.get(run.trainer.precision.partition("-")[0], torch.float32)
    rate = matmul_rate(dtype, device, MATRIX_SIDES.get(device, 1024))
    rates = {
        "crops_per_s": data_module.batch_size / seconds,
        "data_wait": median(waits[WARM_UP_STEPS:]) / seconds,
        "mfu": step_flops(run.model, shape) / seconds / rate,
        "peak_gib": peak_memory(device) / 2**30,
    }
    return {name: round(value, 4) for name, value in rates.items()} | {
        "loader_bound": rates["data_wait"] > LARGEST_WAITING_SHARE,
        "precision": run.trainer.precision,
        "batch_size": data_module.batch_size,
        "patch_size": data_module.patch_size,
        "num_workers": data_module.num_workers,
    }


def step_flops(module: Predict, shape: Sequence[int]) -> int:
    """Floating-point operations of the networks in one training step, forward and backward: 2 per multiply-add.

    The count uses shapes only and leaves weights, random numbers and batch statistics untouched.

    Args:
        module: the module being trained.
        shape: (N, 3, H, W) of the crops.
    """
    image = torch.empty(*shape, device="meta")
    flops = _flops(module.predictor, [image])
    if getattr(module, "denoiser", None) is not None:
        noisy = image.repeat(module.objective.noises, 1, 1, 1)
        inputs = noisy, noisy, noisy[:, 0, 0, 0], noisy, noisy[:, :1]
        flops += _flops(module.denoiser, inputs)
    return flops


def _flops(network: nn.Module, inputs: Sequence[Tensor]) -> int:
    state = dict(network.named_parameters()) | dict(network.named_buffers())
    shapes = {name: value.detach().to("meta").requires_grad_(value.requires_grad) for name, value in state.items()}
    synced = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm) and module.training]
    for module in synced:  # in training mode they reject tensors that are not on a GPU
        module.training = False
    try:
        gradients = {torch.ops.aten.convolution_backward: _convolution_gradients}
        with FlopCounterMode(display=False, custom_mapping=gradients) as counter, torch.enable_grad():
            output = functional_call(network, shapes, tuple(inputs))
            outputs = [output] if isinstance(output, Tensor) else output  # a size head's is the second
            total = sum(one.sum() for one in outputs)
            if total.requires_grad:
                total.backward()
    finally:
        for module in synced:
            module.training = True
    return counter.get_total_flops()


def _convolution_gradients(
    gradient, image, weights, bias, stride, padding, dilation, transposed, extra, groups, wanted, **_
) -> int:
    """As many operations as the convolution for each gradient; torch's formula counts grouped convolutions as dense."""
    return sum(wanted[:2]) * conv_flop_count(image, weights, gradient, transposed)


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
    photos: str | None = None,
    pairs: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    steps: int = 12,
    flags: str = "",
    quick: bool = False,
) -> None:
    """Measure the chosen cases, print them, and merge them into the JSON file.

    Args:
        cases: names or patterns of names, separated by commas.
        output: the JSON file.
        photos: folder of sharp photographs for demo; none: those of the demo.
        pairs: dataset of pairs for the other configs; none: four of 1280x720 are made.
        device: cpu or cuda.
        threads: of torch; none: torch's default.
        steps: timed steps after the warm-up; their median counts.
        flags: more flags of train.py, such as "--data.batch_size 2 --data.crops_per_image 2".
        quick: tiny crops, to try the program.
    """
    chosen, document = chosen_cases(cases, CASES), stored_cases(output)
    with tempfile.TemporaryDirectory() as folder:
        configs = {case.split("/")[0] for case in chosen}
        if photos is None and "demo" in configs:
            photos = f"{folder}/photos"
            demo.main(photos)
        if pairs is None and configs - {"demo"}:
            pairs = f"{folder}/pairs"
            make_pairs(Path(pairs), 1 if quick else 4)
        more = [*shlex.split(SMALL_RUN if quick else ""), *shlex.split(flags)]
        for case in tqdm(chosen, "cases"):
            facts, data = machine(device, threads) | {"flags": flags}, photos if case.startswith("demo/") else pairs
            record = in_own_process(facts["threads"], measure, case, data, device, steps, more)
            document["cases"][case] = record | facts
            document["times_as_fast_as_plain"] = ratios(document["cases"])
            write_json(output, document)
            tqdm.write(f"{case}: {json.dumps(record)}")
    for case, ratio in document["times_as_fast_as_plain"].items():
        print(f"{case:<20} {ratio:6.2f} x")
    print(f"wrote {output}")


def make_pairs(root: Path, count: int) -> None:
    """Write 1280x720 pairs that compress about as well as photographs: smooth structure with some noise."""
    blur = SyntheticBlur([CameraShake()], shot_noise=(1e-4, 1e-4))
    size = 720 + 2 * blur.margin, 1280 + 2 * blur.margin
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        wide = torch.zeros(1, 3, *size)
        for cells in (4, 16, 64, 256):
            noise = torch.rand(1, 3, cells, cells, generator=generator)
            wide += torch.nn.functional.interpolate(noise, size, mode="bilinear") / cells**0.5
        wide = (wide / wide.max() + 0.01 * torch.randn(1, 3, *size, generator=generator)).clamp(0, 1)
        (blurry,), (sharp,) = blur(wide, [generator])
        images.write(root / "sharp" / f"{number:03}.png", sharp)
        images.write(root / "blur" / f"{number:03}.png", blurry)


if __name__ == "__main__":
    call(main, None, "-m tools.benchmarks.training", positional=0)
