"""Time a restoration against one pass of NAFNet, a common reference, at the same size.

python -m benchmarks.reference pretrained/lite
python -m benchmarks.reference pretrained/lite --steps 1

NAFNet (Chen et al., ECCV 2022) is its GoPro network of width 32, as built by spandrel, with random weights, which do
not affect its time. Both run in the same precision and in channels_last. They alternate, and the ratio is that of their
fastest calls.
"""

from typing import Literal

import torch
from tqdm import tqdm

from base.command_line import call
from benchmarks.record import machine, write_json
from benchmarks.timing import seconds_of
from models.checkpoints import load_pipeline
from models.devices import choose_device
from models.settings import SamplingSettings

NAFNET = {"width": 32, "enc_blk_nums": [1, 1, 1, 28], "middle_blk_num": 1, "dec_blk_nums": [1, 1, 1, 1]}


def main(
    checkpoint: str,
    steps: int = 10,
    width: int = 1280,
    height: int = 720,
    rounds: int = 4,
    precision: Literal["fp32", "bf16"] = "bf16",
    device: str = "cpu",
    output: str = "runs/benchmarks/reference.json",
) -> None:
    """Time both and write the results.

    Args:
        checkpoint: exported folder, hub id or .ckpt file.
        steps: of ddim; 0 for the prediction alone.
        width, height: of the image, in pixels.
        rounds: calls of each, alternating, after one for warm-up.
        precision: of both.
        device: cpu, cuda, cuda:1 or mps.
        output: JSON file; it is replaced.
    """
    from spandrel.architectures.NAFNet import NAFNet

    place = choose_device(device)
    pipeline = load_pipeline(checkpoint, place, precision)
    nafnet = NAFNet(**NAFNET).eval().requires_grad_(False)
    nafnet.to(place, torch.bfloat16 if precision == "bf16" else torch.float32, memory_format=torch.channels_last)
    settings = SamplingSettings(steps=steps) if steps else SamplingSettings(blend=0.0)
    image = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0)).to(place)
    like_nafnet = image.to(next(nafnet.parameters()).dtype, memory_format=torch.channels_last)
    calls = {
        "restoration": lambda: pipeline(image, settings, output_type="pt"),
        "nafnet": lambda: nafnet(like_nafnet),
    }
    seconds = {name: [] for name in calls}
    with torch.inference_mode():
        for _ in tqdm(range(rounds + 1), desc="rounds"):
            for name, call in calls.items():
                seconds[name].append(seconds_of(call, place.type))
    best = {name: min(each[1:]) for name, each in seconds.items()}
    ratio = best["restoration"] / best["nafnet"]
    print(
        f"{width}x{height}, {precision}: predictor and {steps} steps {best['restoration']:.2f} s, one pass of NAFNet"
        f" {best['nafnet']:.2f} s: {ratio:.2f} times as long"
    )
    found = {"size": [width, height], "precision": precision, "steps": steps, "seconds": seconds, "ratio": ratio}
    write_json(output, {"machine": machine(device), "checkpoint": checkpoint, **found})


if __name__ == "__main__":
    call(main, None, "-m benchmarks.reference", positional=0)
