"""Seconds until a command answers (help, wrong flags, paths and names) or restores a thumbnail, in its own process.

python -m benchmarks.startup
python -m benchmarks.startup --cases 'train/*' --repeats 5

A case is SCRIPT/WHAT. Results are merged into the JSON file, with the machine they were measured on. Besides wall-clock
time, which other load on the machine increases, the user and system time of the command's processes is recorded.
"""

import json
import resource
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from PIL import Image

from base.command_line import call
from benchmarks.record import destination, machine, write_json

ROOT = Path(__file__).parents[1]
FIT = ["train.py", "fit", "--config", "configs/demo.yaml"]
SAMPLE = ["sample.py", "docs/examples", "--output", "restored"]
SIDE = 256  # of the thumbnail
CASES = {  # command, and its time limit in seconds on two cores; train.py imports its libraries first
    "sample/help": (["sample.py", "--help"], 1.0),
    "sample/path": (["sample.py", "nowhere.jpg", "--output", "restored"], 1.0),
    "sample/flag": ([*SAMPLE, "--step", "3"], 1.0),
    "sample/choice": ([*SAMPLE, "--sampler", "dimm"], 1.0),
    "sample/preset": ([*SAMPLE, "--preset", "percptual"], 1.0),
    "sample/device": ([*SAMPLE, "--device", "gpu"], 1.0),
    "sample/checkpoint": ([*SAMPLE, "--checkpoint", "nowhere"], 1.0),
    "sample/thumbnail": (["sample.py", "THUMBNAIL", "--output", "RESTORED", "--overwrite"], 5.0),
    "evaluate/help": (["evaluate.py", "--help"], 1.0),
    "evaluate/path": (["evaluate.py", "--data", "nowhere", "--output", "scores"], 1.0),
    "evaluate/flag": (["evaluate.py", "--data", ".", "--output", "scores", "--metric", "psnr"], 1.0),
    "evaluate/checkpoint": (["evaluate.py", "--data", ".", "--output", "scores", "--checkpoint", "nowhere"], 1.0),
    "evaluate/name": (["evaluate.py", "--data", ".", "--output", "scores", "--metrics", "psnr,lpps"], 1.0),
    "train/help": (["train.py", "--help"], 1.0),
    "train/fit_help": (["train.py", "fit", "--help"], 15.0),
    "train/flag": ([*FIT, "--trainer.max_step", "3"], 15.0),
    "train/choice": ([*FIT, "--data.on_error", "stopp"], 15.0),
    "train/path": ([*FIT, "--data.train", "nowhere"], 15.0),
    "train/none": (["train.py", "fit"], 15.0),
    "train/config": (["train.py", "fit", "--config", "nowhere.yaml"], 15.0),
}


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor time of a command."""
    start, before = time.perf_counter(), _of_processor()
    subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, check=False)
    return time.perf_counter() - start, _of_processor() - before


def _of_processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _medians(command: list[str], repeats: int) -> list[float]:
    seconds_of(command)  # warm-up: fills the caches
    return [median(times) for times in zip(*(seconds_of(command) for _ in range(repeats)), strict=True)]


def main(
    cases: str = "*/*", output: str = "runs/benchmarks/startup.json", publish: bool = False, repeats: int = 3
) -> None:
    """Measure the chosen cases, print them, and merge them into the JSON file.

    Args:
        cases: names or patterns of names, separated by commas.
        output: the JSON file.
        publish: write into benchmarks/results, under the name of the output.
        repeats: runs of each after one for warm-up; the median counts.
    """
    output = destination(output, publish)
    chosen = [name for name in CASES if any(fnmatch(name, pattern) for pattern in cases.split(","))]
    if not chosen:
        raise ValueError(f"no case is named {cases}; there are {' '.join(CASES)}")
    found = json.loads(Path(output).read_text()) if Path(output).is_file() else {"cases": {}}
    with TemporaryDirectory() as folder:
        places = {"THUMBNAIL": f"{folder}/photo.jpg", "RESTORED": f"{folder}/restored"}
        Image.open(ROOT / "docs" / "examples" / "rsblur_1.jpg").resize((SIDE, SIDE)).save(places["THUMBNAIL"])
        measured = {name: _medians([places.get(word, word) for word in CASES[name][0]], repeats) for name in chosen}
    for name, (seconds, of_processor) in measured.items():
        limit = CASES[name][1]
        times = {"seconds": round(seconds, 2), "cpu_seconds": round(of_processor, 2), "wanted": limit}
        found["cases"][name] = times | machine()
        over = "" if seconds <= limit else f", more than {limit}"
        print(f"{name:<18} {seconds:6.2f} s{over}; {of_processor:.2f} s of a processor")
    write_json(output, found)
    print(f"wrote {output}")


if __name__ == "__main__":
    call(main, None, "-m benchmarks.startup", positional=0)
