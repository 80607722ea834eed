"""Use a GPU that is had for minutes: python -m tools.gpu --output runs/gpu --seconds 540 --pairs PAIRS

First the tests that need a GPU, then the speed of sampling and training, a grid search of the paper's settings, an
export for TensorRT where that is installed, and in all time that is left the training of maxim's denoiser
(tools.gpu_training). Each step writes what it says to OUTPUT/NAME.log. The same command continues: what is done
according to OUTPUT/steps.json is not repeated. On an H100 the tests take 1.1 minutes, the speeds of lite and maxim 1.2
each, the grid 2.2, and an image of 3840x2160 pixels 0.6.

Where the machine's Python has torch and lightning but no network, take the other packages along:

python -m tools.gpu --packages packages.zip --python 3.12
python -m zipfile -e packages.zip .packages && PYTHONPATH=.packages python -m tools.gpu ...     (there)
"""

import importlib.util
import json
import shlex
import subprocess
import sys
import time
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from deblur.cli import call, run_command
from deblur.storage import replacing

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK = "-m tools.benchmarks.sampling pretrained/{} --device {{device}} --output {{output}}/sampling_{}.json"
PREDICTOR = "predictor/bf16-channels_last/eager"
COMPILED, TEN_STEPS = "predictor/bf16-channels_last/compiled", "10/bf16-channels_last/eager"
CASES = f"--cases {PREDICTOR},{COMPILED},{TEN_STEPS}"
TRAINED = "finetune/default,finetune/compiled,u2net/default,paper/default"  # all 35 take longer than the machine is had
GPU_TESTS = ["tests/test_gpu.py", "tests/deployment/test_export.py", "tests/evaluation/test_metrics.py"]
STEPS = {  # the arguments of python; with --quick the tiny ones. What is wanted most is first: time may run out.
    "tests": f"-m pytest -q -m gpu -rs -p no:cacheprovider {' '.join(GPU_TESTS)}",
    "lite": f"{BENCHMARK.format('lite', 'lite')} {CASES} {{tiny}}",
    # Compiling three stages takes minutes of the machine, compiling one says as much.
    "maxim": f"{BENCHMARK.format('maxim', 'maxim')} --cases {PREDICTOR},{TEN_STEPS},nafnet {{tiny}}",
    "training": f"-m tools.benchmarks.training --cases {TRAINED} --device {{device}} --output {{output}}/training.json"
    " {tiny}",
    "grid": "evaluate.py --checkpoint lite --data tests/assets/pairs --grid {grid} --output {output}/grid"
    " --device {device} --overwrite true",
    "maxim_4k": f"{BENCHMARK.format('maxim', 'maxim')} --cases {PREDICTOR} --width 3840 --height 2160 {{tiny}}",
    "maxim_one_stage": f"{BENCHMARK.format('maxim', 'maxim')} --cases {PREDICTOR},{COMPILED} --stages 1 {{tiny}}",
    "u2net": f"{BENCHMARK.format('u2net', 'u2net')} {CASES} {{tiny}}",
    "text": f"{BENCHMARK.format('text', 'text')} {CASES} {{tiny}}",
}
TENSORRT = {
    "tensorrt": "-m tools.export_onnx pretrained/lite --output {output}/lite_tensorrt --precision fp16"
    " --target_device tensorrt"
}
TRAINING = "-m tools.gpu_training pretrained/maxim --output {output}/checkpoint --perceptual [4.0]"
LEAST = 60  # seconds; in less no training is worth its beginning

# What a Python for training lacks that has torch, lightning and the usual packages of science.
PACKAGES = ["diffusers", "docstring-parser", "imagecodecs", "jsonargparse", "kornia", "kornia-rs", "lpips"]
PACKAGES += ["pillow-heif", "spandrel", "torch-fidelity", "typeshed-client"]
CODECS = "__*", "*.py", "_shared*", "_jpeg8*", "_png*", "_zlib*"  # the rest of imagecodecs, 80 MB, is left behind
LIBRARIES = "libjpeg*", "libpng*", "libz-*", "libz.*"  # that these use


def use(
    output: str = "runs/gpu",
    seconds: float = 540.0,
    pairs: list[str] | None = None,
    device: str = "cuda",
    quick: bool = False,
    packages: str | None = None,
    python: str = "3.12",
) -> None:
    """Test, measure and train on a GPU.

    Args:
        output: folder of the results.
        seconds: of all that; training takes what the rest leaves.
        pairs: datasets of pairs to train on, as tools.make_pairs makes them; none: no training.
        device: torch device name.
        quick: tiny images and networks, to try the program on any device.
        packages: write the packages that the machine lacks into this zip file, and do nothing else.
        python: version of that machine's Python.

    Raises:
        ValueError: a step failed; the others were done.
    """
    if packages is not None:
        return pack(Path(packages), python)
    end = time.monotonic() + seconds
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    values = {"output": folder, "device": device, "tiny": "--quick true" if quick else ""}
    values["grid"] = "configs/grid/demo.yaml" if quick else "configs/grid/paper.yaml"
    listed = STEPS | (TENSORRT if importlib.util.find_spec("tensorrt") else {})
    for name, command in listed.items():
        do(name, command.format(**values), folder, end)
    if pairs:
        left = end - time.monotonic()
        size = "--side 64 --crop 64 --batch 4 --most 4" if quick else "--compiled true"
        weights = json.dumps([1.0] * len(pairs)).replace(" ", "")
        given = f"--pairs {shlex.quote(json.dumps(pairs))} --weights {weights} --seconds {max(left, LEAST):.0f}"
        do("train", f"{TRAINING.format(**values)} {given} --device {device} {size}", folder, end + LEAST)
    failed = [name for name, code in done(folder).items() if code != 0]
    if failed:
        raise ValueError(f"these steps failed: {', '.join(failed)}. {folder}/NAME.log says why; repeat to try again.")


def do(name: str, command: str, folder: Path, end: float) -> None:
    """Run a step, unless it is done, until the time is over; what it says goes to its log."""
    if done(folder).get(name) == 0:
        print(f"{name}: done before")
        return
    begin = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(
                [sys.executable, *shlex.split(command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                timeout=max(1.0, end - begin),
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    with replacing(folder / "steps.json") as part:
        part.write_text(json.dumps(done(folder) | {name: code}, indent=1) + "\n")
    print(f"{name}: {time.monotonic() - begin:.0f} s, exit code {code}", flush=True)


def done(folder: Path) -> dict[str, int]:
    """The exit codes of the steps that have ended."""
    file = folder / "steps.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def pack(file: Path, python: str) -> None:
    """Write what PACKAGES' wheels hold, for this version of Python on x86-64 Linux, into a zip file."""
    versions = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    wanted = [f"{name}=={versions[name]}" for name in PACKAGES]
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--no-deps"]
    command += ["--python-version", python]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"]
    with replacing(file) as part, TemporaryDirectory() as downloads:
        subprocess.run([*command, "-d", downloads, *wanted], check=True)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as whole:
            for wheel in sorted(Path(downloads).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    for name in filter(is_needed, archive.namelist()):
                        whole.writestr(name, archive.read(name))
    print(f"{file}: {len(wanted)} packages, {file.stat().st_size / 2**20:.0f} MiB")


def is_needed(name: str) -> bool:
    """Whether a file of a wheel is one that the steps import."""
    package, _, rest = name.partition("/")
    patterns = {"imagecodecs": CODECS, "imagecodecs.libs": LIBRARIES, "tests": ()}.get(package, ("*",))
    return any(fnmatch(rest, pattern) for pattern in patterns)


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(use, args, "-m tools.gpu", positional=0)


if __name__ == "__main__":
    sys.exit(run_command("tools.gpu", main, "stopped; run again to resume"))
