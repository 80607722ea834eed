"""Time and memory of a restoration, case by case, each in its own process.

python -m tools.benchmarks.sampling pretrained/lite --cases 'predictor/*,10/*/eager'
python -m tools.benchmarks.sampling pretrained/lite --cases 10/bf16-channels_last/eager,nafnet
python -m tools.benchmarks.sampling pretrained/lite --cases agreement --photos REALBLUR

A case is WORK/PRECISION-LAYOUT/MODE, where WORK is the predictor alone or a number of steps (with the predictor), for
example 10/bf16-channels_last/compiled; or agreement; or nafnet, a common reference at the same size. Results are merged
into the JSON file, so the cases can be run in parts; every case has its own device, versions, commit and command there.
A checkpoint of a predictor alone has only the cases 'predictor/*'.
"""

import json
from statistics import mean, median

import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from deblur.cli import call
from deblur.data.files import images, search
from deblur.evaluation.pixels import psnr
from deblur.pipeline import Limits, load_pipeline
from deblur.settings import SamplingSettings
from deblur.storage import write_json
from deblur.tools.benchmarks.record import (
    chosen_cases,
    in_own_process,
    machine,
    matmul_rate,
    peak_memory,
    seconds_of,
    stored_cases,
)

WORK_OF_CASES = ("predictor", "1", "4", "10", "50")
LAYOUTS = ("fp32-nchw", "fp32-channels_last", "bf16-channels_last")
CASES = [f"{work}/{layout}/{mode}" for work in WORK_OF_CASES for layout in LAYOUTS for mode in ("eager", "compiled")]
AGREEMENT, REFERENCE = "agreement", "nafnet"


def flops(function) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops() / 1e9


def pipeline_of(checkpoint: str, device: str, layout: str):
    precision, _, form = layout.partition("-")
    pipeline = load_pipeline(checkpoint, device, precision)
    if form == "nchw":
        for network in pipeline.networks.values():
            network.to(memory_format=torch.contiguous_format)
    return pipeline


def denoiser_call(pipeline, blurry):
    """One call of the denoiser at the image's size."""
    level = torch.full((len(blurry),), 0.5, device=blurry.device)
    noise = torch.randn(blurry.shape, device=blurry.device)
    c = torch.as_tensor(pipeline.config.residual_scale, device=blurry.device).view(1, -1, 1, 1)
    s = torch.ones_like(blurry[:, :1]) * c
    return lambda: pipeline.denoiser(noise, blurry, level, blurry, s)


def measure(
    case: str, checkpoint: str, device: str, width: int, height: int, stages: int | None, repeats: int, side: int
) -> dict:
    """Measure one case of CASES in this process."""
    work, layout, mode = case.split("/")
    pipeline = pipeline_of(checkpoint, device, layout)
    blurry = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    limits = Limits(max(width, height), max(width, height))  # whole images
    steps = 0 if work == "predictor" else int(work)
    options = {} if stages is None else {"stages": stages}
    gflop_predictor = flops(lambda: pipeline.predictor(blurry, **options))
    gflop_step = flops(denoiser_call(pipeline, blurry)) if steps else 0.0
    if mode == "compiled":
        pipeline.compile_networks()

    def run():
        if steps == 0:
            pipeline.predict(blurry, stages, limits)
        else:
            settings = SamplingSettings(steps=steps, **options)
            pipeline(blurry, settings, output_type="pt", limits=limits)

    warm_up = seconds_of(run, device)
    seconds = [seconds_of(run, device) for _ in range(repeats)]
    peak = peak_memory(device) / 2**20
    rate = matmul_rate(torch.bfloat16 if layout.startswith("bf16") else torch.float32, device, side) / 1e9
    gflop = gflop_predictor + steps * gflop_step
    return {
        "seconds": round(median(seconds), 4),
        "first_call_seconds": round(warm_up, 3),
        "peak_mib": round(peak),
        "gflop_predictor": round(gflop_predictor, 2),
        "gflop_step": round(gflop_step, 2),  # 0 if only the predictor runs
        "matmul_gflop_per_second": round(rate, 1),
        "share_of_matmul_rate": round(gflop / median(seconds) / rate, 4),
    }


def measure_reference(device: str, width: int, height: int, repeats: int) -> dict:
    """Measure one pass of NAFNet (Chen et al., ECCV 2022) in bf16 and channels_last.

    It is the network of width 32 for GoPro, with random weights, which do not affect its time.
    """
    from spandrel.architectures.NAFNet import NAFNet  # optional

    nafnet = NAFNet(width=32, enc_blk_nums=[1, 1, 1, 28], middle_blk_num=1, dec_blk_nums=[1, 1, 1, 1]).eval()
    nafnet.to(device, torch.bfloat16, memory_format=torch.channels_last)
    image = torch.rand(1, 3, height, width).to(device, torch.bfloat16, memory_format=torch.channels_last)
    with torch.inference_mode():
        seconds = [seconds_of(lambda: nafnet(image), device) for _ in range(repeats + 1)]
    return {"seconds": round(median(seconds[1:]), 4)}


def measure_agreement(checkpoint: str, device: str, photos: str, most: int | None) -> dict:
    """Mean PSNR between restorations in bf16 and fp32 with the same noise, ten steps."""
    paths = [path for path in search.find(photos) if path.parent.name == "blur"][:most]
    if not paths:
        raise ValueError(f"{photos} holds no images in a folder named blur")
    pipelines = [pipeline_of(checkpoint, device, f"{precision}-channels_last") for precision in ("fp32", "bf16")]
    values = {}
    for path in tqdm(paths, "agreement"):
        options = {"settings": SamplingSettings(steps=10), "names": [path.stem], "output_type": "pt"}
        fp32, bf16 = (pipeline(images.read(path), **options).images for pipeline in pipelines)
        values[path.relative_to(photos).as_posix()] = round(psnr(bf16, fp32).item(), 2)
    return {"mean_psnr": round(mean(values.values()), 2), "lowest": min(values.values()), "images": values}


def ratios(cases: dict) -> dict:
    """The speed-up of each case over the same work in plain fp32."""
    plain = {work: cases.get(f"{work}/fp32-nchw/eager", {}).get("seconds") for work in WORK_OF_CASES}
    return {
        case: round(plain[case.split("/")[0]] / record["seconds"], 2)
        for case, record in cases.items()
        if case in CASES and plain[case.split("/")[0]]
    }


def main(
    checkpoint: str,
    cases: str = "*/*",
    output: str = "runs/benchmarks/sampling.json",
    device: str = "cpu",
    threads: int | None = None,
    repeats: int = 3,
    width: int = 1280,
    height: int = 720,
    stages: int | None = None,
    photos: str | None = None,
    quick: bool = False,
) -> None:
    """Measure the chosen cases, print them, and merge them into the JSON file.

    Args:
        checkpoint: exported folder, hub id or .ckpt to run.
        cases: names or patterns of names, separated by commas.
        output: the JSON file.
        device: cpu or cuda.
        threads: of torch; none: torch's default.
        repeats: timed calls after the first; their median counts.
        width, height: of the image, in pixels; other sizes stand in the names of the results.
        stages: of a predictor that has stages, such as maxim; they stand there, too. none: all.
        photos: folder for the case agreement, with blurry images in folders named blur.
        quick: tiny images, to try the program.
    """
    chosen, document = chosen_cases(cases, [*CASES, AGREEMENT, REFERENCE]), stored_cases(output)
    if AGREEMENT in chosen and photos is None:
        raise ValueError("the case agreement needs --photos")
    side = 128 if quick else 4096 if device != "cpu" else 2048
    more = "" if (width, height) == (1280, 720) else f"/{width}x{height}"
    more += "" if stages is None else f"/stages {stages}"
    width, height = (64, 48) if quick else (width, height)
    subject = {"size": [width, height], "networks": checkpoint}
    for case in tqdm(chosen, "cases"):
        if case == AGREEMENT:
            job = measure_agreement, checkpoint, device, photos, 1 if quick else None
        elif case == REFERENCE:
            job = measure_reference, device, width, height, repeats
        else:
            job = measure, case, checkpoint, device, width, height, stages, repeats, side
        facts = machine(device, threads)
        record = in_own_process(facts["threads"], *job)
        document["cases"][case + more] = record | subject | facts
        document["times_as_fast_as_plain_fp32"] = ratios(document["cases"])
        write_json(output, document)
        tqdm.write(f"{case}{more}: {json.dumps({key: v for key, v in record.items() if key != 'images'})}")
    for case, ratio in document["times_as_fast_as_plain_fp32"].items():
        print(f"{case:<40} {ratio:6.2f} x")
    print(f"wrote {output}")


if __name__ == "__main__":
    call(main, None, "-m tools.benchmarks.sampling")
