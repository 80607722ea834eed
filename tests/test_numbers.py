"""The figures of the documentation: those measured are in tools/benchmarks/results, others the program's own."""

import json
import re
from bisect import bisect_left
from inspect import signature

import pytest
import torch

from deblur.data.blur import ObjectMotion, Softening
from deblur.data.camera import CameraShake, Defocus, SixDegrees, TiltedDefocus
from deblur.data.files.encoding import SETTINGS
from deblur.data.files.metadata import SOURCE
from deblur.evaluation.grid import NOISED, SHARPENED, STRENGTHS, read_grid
from deblur.evaluation.plots import BRIGHTEST_PERCENTILE
from deblur.evaluation.scoring import BATCH_PIXELS, sharing_samples, steps_of
from deblur.evaluation.statistics import RESAMPLES
from deblur.hub import WAYS
from deblur.models.losses import Objective
from deblur.onnx.graphs import MAX_ERROR, MIN_PSNR, OPSET
from deblur.restoration.remarks import COLOUR_DRIFT
from deblur.restoration.restorer import IMAGES_AT_ONCE, PIXELS_AT_ONCE
from deblur.tiling import CPU_MEMORY, CPU_PIXELS, SHARE_OF_FREE_MEMORY, allowed_memory
from deblur.tools.batch.options import OBJECT_STORE, WORKER_MEMORY
from deblur.tools.export_onnx import export_onnx
from deblur.tools.web.actions import LARGEST_UPLOAD
from deblur.tools.web.view import LARGEST_SHOWN
from deblur.tools.web.visits import IDLE_SECONDS, LARGEST_RESULTS
from deblur.training.callbacks import LOG_SNR_EDGES, Guard, Scores
from deblur.working_size import WorkingSize
from tests.conftest import ROOT

RESULTS = ROOT / "tools" / "benchmarks" / "results"
# Pages with tables of measured numbers, the files that hold them, and how such a cell looks, without what is in
# parentheses. The numbers of sharp photographs have no such file.
SCORES = r" [\d.]+ dB / [\d.]+\b"
MEASURED = {
    "README.md": (["maxim.md"], SCORES),
    "pretrained/maxim/README.md": (["maxim.md"], SCORES),
    "tools/benchmarks/results/scores.md": (["lite.md", "u2net.md"], SCORES),
    "pretrained/lite/README.md": (["lite.md"], SCORES),
    "pretrained/u2net/README.md": (["u2net.md"], SCORES),
    "docs/text.md": (["text.md"], r" [\d.]+"),
    "docs/deployment.md": (["deployment.md"], r" [\d.]+"),
}
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+")


def records(file):
    """The numbers that belong together: those of a table's row."""
    rows = [line for line in (RESULTS / file).read_text().splitlines() if line.startswith("|")]
    return [sorted(map(float, NUMBER.findall(row))) for row in rows]


def holds(record, number):
    """Whether a number of a page is one of a record's, rounded to its digits."""
    value, half = float(number), 0.5001 * 10.0 ** -len(number.partition(".")[2])
    at = bisect_left(record, value - half)
    return at < len(record) and record[at] <= value + half


@pytest.mark.parametrize("page", MEASURED)
def test_a_measured_number_of_a_table_is_that_of_the_results(page):
    files, look = MEASURED[page]
    known = [record for file in files for record in records(file)]
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    cells = [re.sub(r"\(.*?\)", "", cell) for line in rows for cell in line.strip("|").split("|")[1:]]
    measured = [numbers for cell in cells if re.match(look, cell) and (numbers := NUMBER.findall(cell))]
    assert len(measured) > 8
    for numbers in measured:
        assert any(all(holds(record, number) for number in numbers) for record in known), numbers


def test_the_seconds_of_a_step_are_those_of_their_case():
    cases = json.loads((RESULTS / "sampling.json").read_text())["cases"]
    seconds = {steps: cases[f"{steps}/bf16-channels_last/eager"]["seconds"] for steps in ("predictor", "1", "10")}
    page = " ".join((ROOT / "docs/sampling.md").read_text().split())
    numbers = NUMBER.findall(page.partition("with bf16 units `u2net` takes ")[2].partition(", and")[0])
    for steps, number in zip(seconds, numbers, strict=True):
        assert holds([seconds[steps]], number), steps
    for steps, default in seconds.items():
        assert cases[f"{steps}/fp32-nchw/eager"]["seconds"] / default == pytest.approx(2, abs=0.3)


def test_the_readme_says_what_samples_of_maxim_gain_and_lose():
    rows = (RESULTS / "maxim.md").read_text().partition("## Samples")[2].splitlines()

    def on_gopro(name):
        (row,) = [row for row in rows if row.startswith(f"| {name}")]
        return [float(number) for number in NUMBER.findall(row.split("|")[2])]

    said = {
        "**preset balanced": "the result has {:.0f} % lower LPIPS than the prediction and {:.2f} dB less",
        "**preset perceptual": "by the preset perceptual, the sample alone, {:.0f} % and {:.2f} dB (",
    }
    page = " ".join((ROOT / "README.md").read_text().split())
    psnr, lpips = on_gopro("prediction")
    for name, words in said.items():
        psnr_of_sample, lpips_of_sample = on_gopro(name)
        assert words.format(100 * (1 - lpips_of_sample / lpips), psnr - psnr_of_sample) in page


def grid_row(name):
    settings = read_grid(ROOT / "configs" / "grid" / f"{name}.yaml")
    return f"| `{name}.yaml` | {len(settings)} | {sum(map(steps_of, sharing_samples(settings)))} |"


def listed(values):
    *first, last = (f"{value:g}" for value in values)
    return f"{', '.join(first)} or {last}"


def defaults(function):
    return {name: one.default for name, one in signature(function).parameters.items()}


def ranges(kind):
    drawn = {name: one for name, one in defaults(kind).items() if isinstance(one, tuple)}
    return f"`{kind.__name__}` " + ", ".join(f"{name} {least:g} to {most:g}" for name, (least, most) in drawn.items())


MINUTES = {60: "a minute", 120: "two minutes", 600: "ten minutes"}
BEST, FAST, SWIFT = (MINUTES.get(way.longest) for way in WAYS[:3])  # the longest time of each way
CPU = torch.device("cpu")
PER_MEGAPIXEL = (allowed_memory(None, 2 * CPU_PIXELS, CPU) - allowed_memory(None, CPU_PIXELS, CPU)) / CPU_PIXELS / 1e3
SENTENCES = {
    "pretrained/maxim/README.md": [f"where it takes less than about {BEST}, if need be with the preset fast"],
    "pretrained/swift/README.md": [f"where `maxim` would need more than {FAST}"],
    "pretrained/lite/README.md": [f"where `swift` would take more than {SWIFT}"],
    "docs/sampling.md": [
        f"on a CPU is {CPU_MEMORY:g}, plus {PER_MEGAPIXEL:.3f} for each megapixel above {CPU_PIXELS / 1e6:g},",
        f"it is {'half' if SHARE_OF_FREE_MEMORY == 0.5 else '?'} of the free memory",
        f"batches of up to {'two' if PIXELS_AT_ONCE == 2 << 20 else '?'} megapixels and {IMAGES_AT_ONCE} images",
        f"whose brightest colour is the {BRIGHTEST_PERCENTILE}th percentile",
        f"no copy is smaller than {WorkingSize().smallest} pixels",
        f"differs by more than {COLOUR_DRIFT * 255:g} of 255 levels",
        f"of other inputs it has {SETTINGS['JPEG']['quality']}, AVIF {SETTINGS['AVIF']['quality']} and HEIF"
        f" {SETTINGS['HEIF']['quality']}, which is as near, all without chroma subsampling",
        f"IPTC's digital source type `{SOURCE.rpartition('/')[2]}`",
    ],
    "docs/evaluation.md": [
        *(grid_row(name) for name in ("demo", "presets", "quick", "results", "few_steps", "cost_of_lpips", "paper")),
        f"({BATCH_PIXELS['cpu']} pixels on a CPU, ",
        f"; {BATCH_PIXELS['gpu'] // 10**6} million on a GPU",
        f"({RESAMPLES} resamples",
        f"a = {listed(STRENGTHS[SHARPENED])}",
        f"mean square is {listed(STRENGTHS[NOISED])} of 255 levels",
    ],
    "docs/deployment.md": [
        f"more than {MAX_ERROR:.0e}".replace("e-0", "e-") + f" in fp32, or is below {MIN_PSNR:g} dB in fp16",
        f"opset {OPSET}",
        f"`--max_drop` ({defaults(export_onnx)['max_drop']:g} dB)",
    ],
    "docs/training.md": [
        f"After `--guard.patience` ({defaults(Guard)['patience']}) such steps",
        f"`--scores.panels` ({defaults(Scores)['panels']}) images",
        f"`--scores.samples` ({defaults(Scores)['samples']}) samples each",
        "by log-SNR of the crop: below {:g}, up to {:g}, up to {:g}, up to {:g}, above".format(*LOG_SNR_EDGES),
        f"`objective.log_normal` is {list(defaults(Objective)['log_normal'])} by default",
    ],
    "docs/web.md": [
        f"Photographs of more than {LARGEST_SHOWN / 1e6:g} megapixels are shown reduced",
        f"(at most {LARGEST_UPLOAD / 1e9:g} GB of photographs, and {LARGEST_RESULTS / 1e9:g} GB of results that can be"
        f" blended again) and removed when the page is closed or after {'an hour' if IDLE_SECONDS == 3600 else '?'}"
        " without activity",
    ],
    "docs/scaling.md": [f"within {WORKER_MEMORY / 1e9:g} GB", f"so {OBJECT_STORE >> 20} MiB are enough"],
    "docs/data.md": [
        ranges(kind) for kind in (CameraShake, Defocus, TiltedDefocus, SixDegrees, ObjectMotion, Softening)
    ],
}


@pytest.mark.parametrize(("page", "sentence"), [(page, one) for page, own in SENTENCES.items() for one in own])
def test_a_number_that_the_program_has_is_that_of_the_page(page, sentence):
    assert sentence in " ".join((ROOT / page).read_text().split())
