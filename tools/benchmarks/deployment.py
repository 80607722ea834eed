"""Compare the engines of exported checkpoints with PyTorch: speed, start, memory and size.

python -m tools.benchmarks.deployment pretrained/lite --calibration PAIRS --threads 1
python -m tools.benchmarks.deployment pretrained/lite --cases speed --threads 1 --engines 'torch bf16,openvino int8'
python -m tools.benchmarks.deployment pretrained/maxim --cases speed --stages 1 --width 384 --height 384 --repeats 2

All engines run in turns in one process, on one image. Beside the seconds stands the processor time, which
other programs on the same core do not change; with one thread the ratios are those of the processor time. They are to
PyTorch in bf16, or in fp32 if bf16 is not among the engines: a processor without it only emulates it. Results are
merged into the JSON file NAME.json, and the tables in NAME.md beside it are made from that.
What INT8 costs in quality is measured by evaluate.py.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from torch import Tensor

from deblur.checkpoints import load_pipeline
from deblur.cli import call, number_of, run_command
from deblur.onnx.export import keep_stages
from deblur.onnx.files import GRAPH
from deblur.pipeline import DeblurPipeline
from deblur.storage import replacing
from deblur.tools.benchmarks.record import in_own_process, machine, markdown_table, write_json
from deblur.tools.export_onnx import export_onnx

CASES = ("speed", "start")
ENGINES = {  # name -> precision of the export (none: PyTorch), and arguments of load_pipeline
    "torch fp32": (None, {"precision": "fp32"}),
    "torch bf16": (None, {"precision": "bf16"}),
    "torch compiled bf16": (None, {"precision": "bf16"}),
    "onnxruntime fp32": ("fp32", {"provider": "cpu"}),
    "onnxruntime int8": ("int8", {"provider": "cpu"}),
    "openvino fp32": ("fp32", {"provider": "openvino", "precision": "fp32"}),
    "openvino bf16": ("fp32", {"provider": "openvino", "precision": "bf16"}),
    "openvino int8": ("int8", {"provider": "openvino"}),
}
COMPILED = "torch compiled bf16"  # slow to prepare: measured only if named
WIDTH, HEIGHT = 1280, 720
ROOT = Path(__file__).resolve().parents[2]


def in_turns(runs: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds and processor time of each function: the least and the median of `repeats` calls in turns after one."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for k in range(repeats + 1):
        for name, run in runs.items():
            start, processor = time.perf_counter(), time.process_time()
            run()
            if k:
                times[name].append((time.perf_counter() - start, time.process_time() - processor))
    return {
        name: {
            "seconds": round(min(wall for wall, _ in each), 4),
            "seconds_median": round(median(wall for wall, _ in each), 4),
            "processor_seconds": round(min(processor for _, processor in each), 4),
            "processor_seconds_median": round(median(processor for _, processor in each), 4),
        }
        for name, each in times.items()
    }


def measure_speed(sources: dict[str, str], width: int, height: int, stages: int | None, repeats: int) -> dict:
    """The predictor alone and, if it draws samples, the whole preset, by each engine on the same image."""
    blurry = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    pipelines = loaded(sources, stages)
    whole = {name: lambda p=pipeline: p(blurry, output_type="pt").images for name, pipeline in pipelines.items()}
    alone = {name: lambda p=pipeline: p.predict(blurry) for name, pipeline in pipelines.items()}
    times = {"predictor": in_turns(alone, repeats)}
    one = next(iter(pipelines.values()))
    if one.denoiser is not None and one.preset().blend > 0:
        times["restoration"] = in_turns(whole, repeats)
    key = "processor_seconds" if torch.get_num_threads() == 1 else "seconds"
    base = "torch bf16" if "torch bf16" in sources else "torch fp32"
    for part in times.values():
        for seconds in part.values():
            seconds[f"{base}, times as fast"] = round(part[base][key] / seconds[key], 3)
    return times


def loaded(sources: dict[str, str], stages: int | None) -> dict[str, DeblurPipeline]:
    """The pipeline of each engine, from its folder."""
    pipelines = {name: load_pipeline(source, **ENGINES[name][1]) for name, source in sources.items()}
    for name, pipeline in pipelines.items():
        if ENGINES[name][0] is None:  # a graph has no others
            keep_stages(pipeline, stages)
    if COMPILED in pipelines:
        pipelines[COMPILED].compile_networks()
    return pipelines


def measure_start(sources: dict[str, str], repeats: int) -> dict:
    """From the start of sample.py to a restored photograph of 1280x720, with its memory: medians; bytes of weights."""
    measured = {}
    sources = {name: source for name, source in sources.items() if name != COMPILED}
    with TemporaryDirectory() as place:
        photo = Path(place) / "photo.jpg"
        Image.open(ROOT / "docs" / "examples" / "rsblur_1.jpg", formats=["JPEG"]).resize((WIDTH, HEIGHT)).save(photo)
        for name, source in sources.items():
            flags = [word for flag, value in ENGINES[name][1].items() for word in (f"--{flag}", value)]
            words = [sys.executable, "sample.py", photo, "--checkpoint", Path(source).resolve(), "--output"]
            runs = []
            for _ in range(repeats + 1):
                begin = time.perf_counter()
                with subprocess.Popen(
                    [*words, f"{place}/out", "--overwrite", *flags], cwd=ROOT, stdout=subprocess.DEVNULL
                ) as process:
                    _, status, used = os.wait4(process.pid, 0)
                    process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    raise ChildProcessError(f"sample.py failed with {name}")
                processor = used.ru_utime + used.ru_stime
                runs.append((time.perf_counter() - begin, processor, used.ru_maxrss / 1024))
            seconds, processor, memory = (
                median(each) for each in zip(*runs[1:], strict=True)
            )  # the first fills the caches
            graphs = sum(file.stat().st_size for file in Path(source).rglob(GRAPH))
            weights = graphs or sum(file.stat().st_size for file in Path(source).rglob("*.safetensors"))
            measured[name] = {"seconds": round(seconds, 2), "processor_seconds": round(processor, 2)}
            measured[name] |= {"memory_mib": round(memory), "weights_mib": round(weights / 2**20, 1)}
    return measured


def markdown(document: dict) -> str:
    """The result tables of all checkpoints."""
    lines = []
    for checkpoint, cases in document["checkpoints"].items():
        speeds = {case: parts for case, parts in cases.items() if case.startswith("speed")}
        for case, part, engines in ((case, *one) for case, parts in speeds.items() for one in parts.items()):
            width, height = cases["runs"][case].get("size", [WIDTH, HEIGHT])
            title = f"{checkpoint}, {part}{case[5:]}, {width}x{height}"
            ratio = next(key for key in next(iter(engines.values())) if key.endswith(", times as fast"))
            head = [title, "seconds", "processor time", f"against {ratio.removesuffix(', times as fast')}"]
            rows = [
                [name, f"{x['seconds']:.3f}", f"{x['processor_seconds']:.3f}", f"{x[ratio]:.2f}"]
                for name, x in engines.items()
            ]
            lines += [*markdown_table(head, *rows), ""]
        if "start" in cases:
            head = [f"{checkpoint}, first image", "seconds", "processor time", "memory, MiB", "weights, MiB"]
            rows = [[name, *(str(value) for value in one.values())] for name, one in cases["start"].items()]
            lines += [*markdown_table(head, *rows), ""]
    return "\n".join(lines)


def sources_of(
    checkpoint: str, engines: str | None, folder: Path, calibration: str | None, stages: int | None
) -> dict[str, str]:
    """Engine -> what it runs: the checkpoint, or its export in `folder`, which is made if it is missing; arguments as
    of `main`."""
    wanted = engines.split(",") if engines else ENGINES.keys() - {COMPILED}
    sources = {}
    for engine in (engine for engine in ENGINES if engine in wanted):
        kind = ENGINES[engine][0]
        if kind and not (folder / kind).is_dir():
            if kind == "int8" and calibration is None:
                print(f"{engine} is left out: give --calibration PAIRS")
                continue
            pairs = calibration if kind == "int8" else None
            export_onnx(checkpoint, str(folder / kind), kind, calibration=pairs, stages=stages)
        sources[engine] = str(folder / kind) if kind else checkpoint
    return sources


def main(
    checkpoint: str,
    cases: str = ",".join(CASES),
    engines: str | None = None,
    calibration: str | None = None,
    threads: int = 1,
    width: int = WIDTH,
    height: int = HEIGHT,
    stages: int | None = None,
    repeats: int = 5,
    work: str = "runs/deployment",
    output: str = "runs/benchmarks",
    name: str = "deployment",
) -> None:
    """Measure the chosen cases of a checkpoint, and write the JSON file and the tables.

    Args:
        checkpoint: what to measure: exported folder, hub id or .ckpt.
        cases: speed and start, separated by a comma.
        engines: names of engines, separated by commas; default: all but the compiled one.
        calibration: pairs of training images for INT8; without them, and without an INT8 folder in --work, INT8 is
            left out.
        threads: of PyTorch and of both engines.
        width, height: of the image of the case speed, in pixels.
        stages: of a predictor that has several, as MAXIM has three, in the case speed; none: all.
        repeats: of timed calls.
        work: folder for exported networks, in a folder for each checkpoint; existing ones are reused.
        output: folder for the JSON file and the tables.
        name: of both; another one for each kind of processor.
    """
    chosen = cases.split(",")
    if not set(chosen) <= set(CASES):
        raise ValueError(f"the cases are {', '.join(CASES)}, not {cases}")
    if unknown := set((engines or "").split(",")) - ENGINES.keys() - {""}:
        raise ValueError(f"engine {unknown.pop()} is none of {', '.join(ENGINES)}")
    if stages is not None and chosen != ["speed"]:
        raise ValueError("--stages is for the case speed: give --cases speed")
    torch.set_num_threads(threads)
    part = "" if stages is None else f"_stages_{stages}"
    folder = Path(work) / f"{checkpoint.replace('/', '_').replace(' ', '_')}{part}"
    sources = sources_of(checkpoint, engines, folder, calibration, stages)
    file = Path(output) / f"{name}.json"
    document = json.loads(file.read_text()) if file.is_file() else {}
    document = document if "checkpoints" in document else {"checkpoints": {}}
    for case in chosen:
        if case == "speed":
            result = measure_speed(sources, width, height, stages, repeats)
        else:  # in a small process, since a child's peak memory counts that of the process that starts it
            result = in_own_process(threads, measure_start, sources, min(repeats, 3))
        kept = document["checkpoints"].setdefault(checkpoint, {})
        if case == "speed":
            more = [number_of(stages, "stage")] * (stages is not None) + [f"{threads} threads"] * (threads > 1)
            case = ", ".join(["speed", *more])
        kept[case] = result
        versions = {package: version(package) for package in ("onnxruntime", "openvino", "nncf", "onnx")}
        kept.setdefault("runs", {})[case] = machine(threads=threads) | versions | {"size": [width, height]}
        write_json(file, document)
        with replacing(file.with_suffix(".md")) as part:
            part.write_text(markdown(document))
        print(json.dumps(result, indent=1, ensure_ascii=False))
    print(f"wrote {file} and {file.with_suffix('.md')}")


if __name__ == "__main__":
    command = partial(call, main, None, "-m tools.benchmarks.deployment")
    sys.exit(run_command("tools.benchmarks.deployment", command, "stopped; what was measured is written"))
