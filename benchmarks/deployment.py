"""Compare ONNX files with PyTorch: which networks export, parity, speed, and what INT8 costs.

python -m benchmarks.deployment --calibration PAIRS --photos PHOTOS --data synthetic=PAIRS gopro=PAIRS
python -m benchmarks.deployment --cases support --networks 'unet,nafnet'
python -m benchmarks.deployment --cases speed --calibration PAIRS --threads 2

The cases are support (each network, on one tile), photos (whole restorations in the same tiles), quality (INT8 against
float32, on pairs), speed (1280x720, alternating) and start (from process start to a restored image). Results are merged
into the JSON file, and the tables in deployment.md beside it are made from that.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from tqdm import tqdm

from base.files import replacing
from base.stop import run_command
from benchmarks.record import destination, machine, markdown_table, write_json
from deployment.export import examples, export, parity, write_network
from models.checkpoints import load_pipeline, networks
from models.index import CheckpointError
from models.onnx_network import GRAPH, INPUTS, OnnxNetwork
from models.pipeline import DeblurPipeline

KINDS = ("fp32", "int8", "int8 trained")
CASES = ("support", "photos", "quality", "speed", "start")
WIDTH, HEIGHT = 1280, 720
PHOTOS = 8
ROOT = Path(__file__).parents[1]


def lite(name: str) -> Callable[[], nn.Module]:
    """Returns a function that loads a network of the published checkpoint."""
    return lambda: networks(load_pipeline(str(ROOT / "pretrained" / "lite"), precision="fp32"))[name]


def untrained(name: str, *arguments, **options) -> Callable[[], nn.Module]:
    """Returns a function that makes an untrained network, with its zero-initialised last layers made random."""
    from models.classes import NETWORKS

    def make() -> nn.Module:
        torch.manual_seed(0)
        network = NETWORKS[name](*arguments, **options).eval().requires_grad_(False)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d) and not layer.weight.any():
                nn.init.normal_(layer.weight, std=0.01)
        return network

    return make


def nafnet() -> nn.Module:
    """NAFNet of width 32 with random weights, through spandrel."""
    from spandrel.architectures.NAFNet import NAFNet

    from models.spandrel_predictor import SpandrelPredictor

    torch.manual_seed(0)
    network = NAFNet(width=32, middle_blk_num=1, enc_blk_nums=[1, 1, 1, 28], dec_blk_nums=[1, 1, 1, 1])
    return SpandrelPredictor(weights=network.state_dict())


NETWORKS = {  # part, tile size, and a function that makes it
    "lite predictor": ("predictor", 512, lite("predictor")),
    "lite denoiser": ("denoiser", 512, lite("denoiser")),
    "U2-Net full": ("predictor", 512, untrained("U2NetPredictor", "full")),
    "U2-Net lite": ("predictor", 512, untrained("U2NetPredictor", "lite")),
    "the paper's predictor": ("predictor", 640, untrained("UNetPredictor")),
    "the paper's denoiser": ("denoiser", 640, untrained("Denoiser")),
    "slim U-Net of NAF blocks": ("predictor", 1024, untrained("SlimPredictor", block="naf")),
    "NAFNet (spandrel)": ("predictor", 512, nafnet),
}


def measure_support(folder: Path, pattern: str) -> dict:
    """Export each network in float32 and float16 on the CPU: parity and seconds per tile, or why it fails."""
    found = {}
    for name, (part, side, make) in NETWORKS.items():
        if not any(fnmatch(name.lower(), f"*{word.strip().lower()}*") for word in pattern.split(",")):
            continue
        for precision in ("fp32", "fp16"):
            network, place = make(), folder / name.replace("'", "") / precision
            network.save_config(place)
            cell = found[f"{name}/{precision}/cpu"] = {"side": side, "exported": False}
            try:
                write_network(network, part, place, precision, side)
                cell |= {"exported": True, "parity": parity(network, part, place)}
                given = examples(INPUTS[part], side)
                cell["seconds"] = in_turns({"onnx": OnnxNetwork(place, part), "torch": network}, given, 2)
            except CheckpointError as error:
                cell["blocked"] = str(error)
            tqdm.write(f"{name}, {precision}: {cell}")
    return found


def in_turns(runs: dict[str, Callable[..., Tensor]], given: tuple[Tensor, ...], repeats: int) -> dict[str, float]:
    """Seconds of each function: the fastest of `repeats` alternating calls after one for warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for k in range(repeats + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run(*given)
                if k:
                    seconds[name].append(time.perf_counter() - start)
    return {name: round(min(each), 4) for name, each in seconds.items()}


def measure_photos(checkpoint: str, folders: dict[str, Path], source: str, limit: int) -> dict:
    """Whole restorations of photographs: ONNX against PyTorch, with the same padding and tiles."""
    from data import images, search

    paths = search.find(source)
    paths = [paths[k * len(paths) // limit] for k in range(min(limit, len(paths)))]
    torch_pipeline = load_pipeline(checkpoint, precision="fp32")
    found = {}
    for kind, folder in folders.items():
        deployed, worst = load_pipeline(str(folder)), {}
        for path in tqdm(paths, f"photos, {kind}"):
            blurry = images.read(path)[None]
            ours = deployed(blurry, names=[path.stem], output_type="pt").images
            theirs = as_torch(deployed, torch_pipeline, blurry, path.stem)
            worst[path.name] = round(255 * (ours - theirs).abs().max().item(), 4)
        found[kind] = {"largest_difference_in_levels": max(worst.values()), "photos": worst}
    return found


def as_torch(deployed: DeblurPipeline, pipeline: DeblurPipeline, blurry: Tensor, name: str) -> Tensor:
    """Restore as the deployed pipeline would with PyTorch's networks instead of its graphs, for a fair comparison."""
    with ExitStack() as swapped:
        for part, network in networks(pipeline).items():
            exported = getattr(deployed, part)
            exported._run = network.forward  # assigning the module would register it, and the graph would still run
            swapped.callback(delattr, exported, "_run")
        return deployed(blurry, names=[name], output_type="pt").images


def measure_quality(folders: dict[str, Path], data: dict[str, str], limit: int | None) -> dict:
    """PSNR and LPIPS of prediction and restoration, each kind of INT8 against float32, means over the pairs."""
    from data.layouts import find_pairs
    from data.pairs import read_pair
    from evaluation.metrics import make_metrics

    metrics = make_metrics(["psnr", "lpips"])
    pipelines = {kind: load_pipeline(str(folder)) for kind, folder in folders.items()}
    settings = pipelines["fp32"].default_settings
    found = {}
    for name, root in data.items():
        pairs = find_pairs(root)[:limit]
        scores: dict[str, list[float]] = {}
        for pair in tqdm(pairs, f"quality, {name}"):
            blurry, sharp = (image[None] for image in read_pair(pair))
            outputs = {
                kind: pipeline(blurry, settings, names=[pair.name], output_type="pt")
                for kind, pipeline in pipelines.items()
            }
            for kind, output in outputs.items():
                for what, image in (("prediction", output.predictions), ("restoration", output.images)):
                    for metric in ("psnr", "lpips"):
                        scores.setdefault(f"{kind} {what} {metric}", []).append(metrics[metric](image, sharp).item())
        means = {key: mean(values) for key, values in scores.items()}
        rows = {"images": len(pairs)} | {key: round(value, 4) for key, value in means.items()}
        for kind in [kind for kind in folders if kind != "fp32"]:
            for what in ("prediction", "restoration"):
                key = f"{kind} {what}"
                rows[f"psnr lost, {key}"] = round(means[f"fp32 {what} psnr"] - means[f"{key} psnr"], 4)
                rows[f"lpips gained, {key}"] = round(means[f"{key} lpips"] - means[f"fp32 {what} lpips"], 4)
        found[name] = rows
        tqdm.write(f"{name}: {rows}")
    return found


def measure_speed(checkpoint: str, folders: dict[str, Path], repeats: int) -> dict:
    """Seconds at 1280x720 of predictor and restoration, alternating, and the costliest operators of INT8."""
    blurry = torch.rand(1, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    pipelines = {f"torch {precision}": load_pipeline(checkpoint, precision=precision) for precision in ("fp32", "bf16")}
    pipelines |= {f"onnx {kind}": load_pipeline(str(folder)) for kind, folder in folders.items()}
    whole = {
        name: lambda x, p=pipeline: p(x, output_type="pt", tile=WIDTH, predictor_tile=WIDTH).images
        for name, pipeline in pipelines.items()
    }
    alone = {name: lambda x, p=pipeline: p.predict(x, WIDTH) for name, pipeline in pipelines.items()}
    found = {"predictor": in_turns(alone, (blurry,), repeats), "restoration": in_turns(whole, (blurry,), repeats)}
    for seconds in (found["predictor"], found["restoration"]):
        seconds["int8 against torch bf16, times as fast"] = round(seconds["torch bf16"] / seconds["onnx int8"], 2)
    sizes = {kind: sum(f.stat().st_size for f in folder.rglob(GRAPH)) for kind, folder in folders.items()}
    found["bytes"] = sizes | {"int8 share": round(sizes["int8"] / sizes["fp32"], 3)}
    found["costliest operators of int8, share of the time"] = {
        name: profile(folders["int8"] / name, examples(network.inputs, HEIGHT, WIDTH), name)
        for name, network in networks(pipelines["onnx int8"]).items()
    }
    return found


def profile(folder: Path, given: tuple[Tensor, ...], name: str) -> dict[str, float]:
    """The costliest operators and their share of the time, by onnxruntime's profile of three runs."""
    import onnxruntime

    network = OnnxNetwork(folder, name)
    with TemporaryDirectory() as place:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, f"{place}/profile"
        options.intra_op_num_threads = torch.get_num_threads()
        network.session = onnxruntime.InferenceSession((folder / GRAPH).read_bytes(), options)
        for _ in range(3):
            network(*given)
        events = json.loads(Path(network.session.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    return {operator: round(time / spent.total(), 3) for operator, time in spent.most_common(8)}


def measure_start(checkpoint: str, folders: dict[str, Path], repeats: int) -> dict:
    """Seconds from process start to a restored photograph of 1280x720, by sample.py in its own process; medians."""
    from PIL import Image

    sources = {"torch auto": checkpoint} | {f"onnx {kind}": str(folder) for kind, folder in folders.items()}
    with TemporaryDirectory() as place:
        photo = Path(place) / "photo.jpg"
        Image.open(ROOT / "docs" / "examples" / "rsblur_1.jpg").resize((WIDTH, HEIGHT)).save(photo)
        seconds: dict[str, list[float]] = {name: [] for name in sources}
        for k in range(repeats + 1):
            for name, source in sources.items():
                words = [sys.executable, "sample.py", photo, "--checkpoint", source, "--output", f"{place}/out"]
                begin = time.perf_counter()
                subprocess.run([*words, "--overwrite"], cwd=ROOT, check=True, capture_output=True)
                if k:  # the first run fills the caches
                    seconds[name].append(time.perf_counter() - begin)
    return {name: round(median(each), 2) for name, each in seconds.items()}


def markdown(found: dict) -> str:
    """The result tables of the measured cases."""
    tables = {"support": _support, "photos": _photos, "quality": _quality, "speed": _speed, "start": _start}
    return "\n".join(line for case, table in tables.items() if case in found for line in [*table(found[case]), ""])


def _support(found: dict) -> list[str]:
    head = ["network", "precision", "provider", "exported", "parity with PyTorch", "tile", "onnx, s", "torch fp32, s"]
    rows = []
    for key, cell in found.items():
        seconds = cell.get("seconds", {})
        said = cell.get("parity") or cell["blocked"]
        measured = [str(seconds.get(engine, "")) for engine in ("onnx", "torch")]
        rows.append([*key.split("/"), "✓" if "parity" in cell else "", said, str(cell["side"]), *measured])
    return markdown_table(head, *rows)


def _photos(found: dict) -> list[str]:
    rows = [[kind, str(len(each["photos"])), str(each["largest_difference_in_levels"])] for kind, each in found.items()]
    return markdown_table(["whole restorations, fp32", "photographs", "largest difference, of 255"], *rows)


def _quality(found: dict) -> list[str]:
    kinds = [kind for kind in KINDS if any(key.startswith(f"{kind} prediction") for key in next(iter(found.values())))]
    rows = []
    for name, values in found.items():
        for what in ("prediction", "restoration"):
            row = [f"{name}, {values['images']} images", what]
            for kind in kinds:
                psnr, lpips = (values[f"{kind} {what} {metric}"] for metric in ("psnr", "lpips"))
                row.append(f"{psnr:.3f} / {lpips:.4f}")
            rows.append(row)
    return markdown_table(["PSNR, dB / LPIPS", "", *kinds], *rows)


def _speed(found: dict) -> list[str]:
    names = list(found["predictor"])
    rows = [[part, *(str(found[part][name]) for name in names)] for part in ("predictor", "restoration")]
    lines = [*markdown_table([f"{WIDTH}x{HEIGHT}, seconds", *names], *rows), ""]
    for part, shares in found["costliest operators of int8, share of the time"].items():
        lines.append(f"- operators of the {part} in int8: {', '.join(f'{name} {x:.0%}' for name, x in shares.items())}")
    sizes = found["bytes"]
    return [*lines, f"- graphs: {', '.join(f'{name} {size}' for name, size in sizes.items())} (bytes)"]


def _start(found: dict) -> list[str]:
    return markdown_table(["from process start to a restored image, seconds", *found], ["", *map(str, found.values())])


def main(
    checkpoint: str = "pretrained/lite",
    cases: str = ",".join(CASES),
    calibration: str | None = None,
    photos: str | None = None,
    data: list[str] | None = None,
    trained: str | None = None,
    networks: str = "*",
    limit: int | None = None,
    threads: int | None = None,
    repeats: int = 5,
    work: str = "runs/deployment",
    output: str = "runs/benchmarks",
    publish: bool = False,
) -> None:
    """Measure the chosen cases, and write the JSON file and the tables.

    Args:
        checkpoint: the checkpoint for photos, quality, speed and start.
        cases: separated by commas.
        calibration: pairs of training images for INT8; not needed if --work already holds the folders.
        photos: photographs for the case photos.
        data: datasets of pairs for the case quality, as NAME=FOLDER.
        trained: the checkpoint trained further with model.quantize int8; in the case quality it has its own INT8 row.
        networks: for the case support, parts of the names of the networks, separated by commas.
        limit: largest number of pairs per dataset.
        threads: of PyTorch and of onnxruntime; none: PyTorch's default.
        repeats: of timed calls.
        work: folder for exported networks; existing ones are reused.
        output: folder for deployment.json and deployment.md.
        publish: write into benchmarks/results, under the name of the output.
    """
    output = destination(output, publish)
    chosen = cases.split(",")
    if not set(chosen) <= set(CASES):
        raise ValueError(f"the cases are {', '.join(CASES)}, not {cases}")
    if threads is not None:
        torch.set_num_threads(threads)
    file = Path(output) / "deployment.json"
    found = json.loads(file.read_text()) if file.is_file() else {"runs": {}}
    folders = {kind: Path(work) / kind for kind in (*KINDS, "tiles")}
    wanted = {
        "photos": ("fp32", "tiles"),
        "quality": KINDS[:2] if trained is None else KINDS,
        "speed": ("fp32", "int8"),
        "start": ("fp32", "int8"),
    }
    for kind in sorted({kind for case in chosen for kind in wanted.get(case, ())}):
        if not folders[kind].is_dir():
            own = {"precision": "int8", "calibration": calibration} if kind.startswith("int8") else {}
            source = trained if kind == "int8 trained" else checkpoint
            export(source, str(folders[kind]), dynamic=kind != "tiles", **own)
    for case in chosen:
        own = {kind: folders[kind] for kind in wanted.get(case, ())}
        if case == "support":
            with TemporaryDirectory() as place:
                result = found.get("support", {}) | measure_support(Path(place), networks)
        elif case == "photos":
            result = measure_photos(checkpoint, own, needed(photos, "photos"), PHOTOS)
        elif case == "quality":
            sets = dict(one.split("=", 1) for one in needed(data, "data"))
            result = found.get("quality", {}) | measure_quality(own, sets, limit)
        elif case == "speed":
            result = measure_speed(checkpoint, own, repeats)
        else:
            result = measure_start(checkpoint, own, min(repeats, 3))
        found[case] = result
        found["runs"][case] = machine(threads=threads) | {
            "onnxruntime": version("onnxruntime"),
            "onnx": version("onnx"),
        }
        write_json(file, found)
        with replacing(file.with_suffix(".md")) as part:
            part.write_text(markdown(found))
        print(json.dumps(result, indent=1, ensure_ascii=False))
    print(f"wrote {file} and {file.with_suffix('.md')}")


def needed(value, flag: str):
    """The value of a flag that a case requires; ValueError if it is missing."""
    if not value:
        raise ValueError(f"this case needs --{flag}")
    return value


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    parser = ArgumentParser(description=__doc__, prog="benchmarks.deployment", allow_abbrev=False)
    parser.add_argument("--data", nargs="+", help="datasets of pairs for the case quality, as NAME=FOLDER")
    parser.add_function_arguments(main, skip={"data"})
    main(**parser.parse_args(args).as_dict())


if __name__ == "__main__":
    sys.exit(run_command("benchmarks.deployment", cli, "stopped; what was measured is written"))
