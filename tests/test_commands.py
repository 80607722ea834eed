"""Every command and every piece of Python in the documentation, run as it is written, on small images.

The checkpoints are the shipped ones, and those that commands of the pages make in two steps: the demo's with the
presets that evaluate.py stores, and exports. Networks of more than 20 M parameters are made narrow.
"""

import re
import runpy
import shlex
import shutil
import signal
import sys
import urllib.request
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from matplotlib import get_data_path
from torch.nn.functional import avg_pool2d, interpolate

import sample
from deblur.data.files import images
from deblur.pipeline import load_pipeline
from deblur.training.run import Run, require_files
from tests.conftest import ROOT
from tests.documented import APPS, EXCEPTIONS, RUN, blocks, commands
from tests.processes import Command, free_port, until

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("docs")]
CLUSTER = ("--trainer.devices 8",)  # parsed, and its paths looked for

# What makes a command small, by how it begins.
TRAIN = "--trainer.max_steps=2 --trainer.val_check_interval=2 --trainer.accelerator=cpu --trainer.precision=32-true"
TRAIN += " --trainer.enable_progress_bar=false --data.patch_size=32 --data.batch_size=2 --data.crops_per_image=1"
TRAIN += " --data.mix_batches=1 --data.num_workers=0 --data.val_crop=32 --scores.panels=1 --scores.samples=1"
PAPER = "--model.predictor.channels=8 --model.denoiser.channels=8 --model.predictor.blocks=1 --model.denoiser.blocks=1"
SMALLER = {
    "python sample.py": "--device=cpu",
    "python evaluate.py": "--device=cpu",
    "python train.py": TRAIN,
    "python train.py fit --config configs/demo.yaml --data.train PHOTOS": "--trainer.default_root_dir=runs/photos",
    "python train.py fit --config configs/gopro": "--model.validation.steps=1 --trainer.logger=false",
    "python train.py fit --config configs/gopro.yaml": PAPER,
    "python train.py fit --config configs/text": "--model.validation.steps=1",
    "python -m tools.doctor": "--num_workers=0",
    "python -m tools.make_pages": "--count=1 --size=256 --workers=1",
    "python -m tools.make_pairs": "--size=32 --crops=1",
    "python -m tools.make_pairs PAIRS --predict pretrained/maxim": "--split=test",  # lite's lie beside train
}
# What a command needs that another of the pages makes: its words, and how the other begins.
MADE = {
    "runs/demo/checkpoint": "python evaluate.py --checkpoint runs/demo/checkpoint --data runs/demo/photos",
    "runs/demo ": "python train.py fit --config configs/demo.yaml",
    "best-psnr.ckpt": "python train.py fit --config configs/demo.yaml",
    "runs/finetune/checkpoint": "python train.py fit --config configs/finetune.yaml --data.train PAIRS",
    "data.predictions": "python -m tools.make_pairs PAIRS --predict",
    "checkpoint runs/gopro_lite/": "python train.py fit --config configs/gopro_lite.yaml --data.train PAIRS --data.val"
    " PAIRS --model.predictor mypred",
    "deployed/lite photo": "python -m tools.export_onnx pretrained/lite --output deployed/lite",
    "checkpoint deployed/lite": "python -m tools.export_onnx pretrained/lite --output deployed/lite",
    "checkpoint deployed/int8": "python -m tools.export_onnx pretrained/lite --output deployed/int8",
    "PAGES_TEST --names": "python -m tools.make_pages /usr/share/fonts --output PAGES_TEST",
    "make_pairs PAGES --config": "python -m tools.make_pages /usr/share/fonts --output PAGES --families",
}
# What a command needs that is a copy: its words, the copy, and of what.
COPIED = [
    ("checkpoints first/checkpoint", "first/checkpoint", "pretrained/lite"),
    ("checkpoints first/checkpoint", "second/checkpoint", "pretrained/text"),
    ("calibrate CHECKPOINT", "CHECKPOINT", "pretrained/lite"),
    ("best-psnr.ckpt", "best-psnr.ckpt", "runs/demo/checkpoints/best-psnr.ckpt"),
    ("runs/longer", "runs/longer", "runs/demo"),
    ("runs/longer", "runs/long", "runs/demo"),
    ("PAGES_TEST --names", "PAGES_TEST/test.txt", "page.txt"),
]
EXTRAS = {"IMG_1.heic": "pillow_heif", "deploy": "onnxscript", "TensorBoard": "tensorboard", "lpips,cer": "rapidfuzz"}
EXTRAS["mynafnet"] = "spandrel"
# Those that take longest, and of several of a kind all but one, whose words are those of others.
SLOW = (
    *("output sharp.png", "street_blurry.jpg", "restored --preset fidelity", "--blend 0.5", "runs/edges"),
    *("maxim --preset perceptual", "swift --preset perceptual"),
    *("deploy", "grid/paper.yaml", "grid/presets.yaml", "checkpoints "),
    *("output PAGES ", "make_pairs PAGES ", "runs/longer", "TensorBoard"),
    *("app.py --host", "app.py --checkpoint", "devices 8", "images true", "lpips,cer"),
)


class Place:
    """A folder where everything lies that the pages name and no command makes, and what was run in it."""

    def __init__(self, folder):
        self.folder, self.done = folder, {}
        shutil.copytree(ROOT / "configs", folder / "configs")
        (folder / "pretrained").symlink_to(ROOT / "pretrained")
        (folder / "tools").mkdir()
        (folder / "tools" / "benchmarks").symlink_to(ROOT / "tools" / "benchmarks")
        self._write_images()
        for grid in (folder / "configs" / "grid").iterdir():
            grid.write_text(yaml.safe_dump(few_steps(yaml.safe_load(grid.read_text()))))
        shutil.copyfile(folder / "configs" / "demo.yaml", folder / "CONFIG")
        (folder / "fonts.txt").write_text("DejaVu Sans\n")
        (folder / "words.txt").write_text("\n".join(["table", "lamp", "river", "window", "paper", "garden"] * 40))
        page = (ROOT / "docs/extend.md").read_text()
        for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
            (folder / name).write_text(text)
        if find_spec("spandrel"):
            from spandrel.architectures.NAFNet import NAFNet

            network = NAFNet(width=4, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])
            torch.save({"params": network.state_dict()}, folder / "NAFNet-GoPro-width64.pth")

    def _write_images(self):
        generator = torch.Generator().manual_seed(0)

        def write(*names):
            for name in names:
                sharp = interpolate(torch.rand(1, 3, 16, 16, generator=generator), scale_factor=2, mode="nearest")
                images.write(self.folder / name, sharp[0])
                if "/sharp/" in name:
                    blurry = avg_pool2d(sharp, 3, 1, 1, count_include_pad=False)
                    images.write(self.folder / name.replace("/sharp/", "/blur/"), blurry[0])

        write("photo.jpg", "page.jpg", "docs/page_blurry.jpg", "docs/street_blurry.jpg")
        write("photos/a.png", "scans/sub/b.tif", "more/IMG_1.heic")
        write(*(f"docs/examples/rsblur_{at}.jpg" for at in (2, 3)), "runs/demo/photos/clock_motion.png")
        folders = ("PHOTOS", "MORE_PHOTOS", "baseline/results/scene_test", "runs/demo/photos/train")
        write(*(f"{folder}/{name}.png" for folder in folders for name in "ab"))
        for split in ("train", "val", "test"):
            as_downloaded = ("GoPro", "GOPRO_Large") if split != "val" else ()
            scenes = (f"{data}/{split}/scene_{split}/sharp" for data in as_downloaded)
            write(*(f"{scene}/{name}.png" for scene in scenes for name in "ab"))
            roots = ["PAIRS", "OTHER_PAIRS", "pairs_video", "pairs_shake"]
            roots += ["runs/demo/photos"] if split != "train" else []
            write(*(f"{data}/{split}/sharp/{split}_{name}.png" for data in roots for name in "ab"))
            (self.folder / "BURSTS" / split).mkdir(parents=True)
            for side, name in (("blur", "a_blurry.png"), ("sharp", "a_sharp.png")):
                copied = self.folder / f"PAIRS/{split}/{side}/{split}_a.png"
                shutil.copyfile(copied, self.folder / "BURSTS" / split / name)
        roots = ["camera", "already_sharp", "TEXT_TEST", "ROOT", "SYNTHETIC", "FRAMES", "CAPTURED", "DATA"]
        for data in (*roots, "VALIDATION_PAIRS"):
            write(*(f"{data}/sharp/{name}.png" for name in "ab"))
        shutil.copytree(self.folder / "already_sharp/sharp", self.folder / "already_sharp/blur", dirs_exist_ok=True)
        (self.folder / "TEXT_TEST/text").mkdir()
        texts = {"TEXT_TEST/text/a": "a table", "TEXT_TEST/text/b": "a lamp", "page": "page_0000.png"}
        for name, text in (texts | {"PHOTOS/train": "a.png", "PHOTOS/test": "a.png"}).items():
            (self.folder / f"{name}.txt").write_text(text)

    def run(self, line):
        """The exit code of a command of the pages, which is run once, in small."""
        if line not in self.done:
            for needed, start in MADE.items():
                if needed in f"{line} " and not line.startswith(start):
                    exact_first = sorted(RUN, key=lambda one: one != start)
                    self.run(next(one for one in exact_first if one.startswith(start)))
            for needed, copy, source in COPIED:
                copy, source = self.folder / copy, self.folder / source
                if needed in line and not copy.exists():
                    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copy)
            self.done[line] = start_here(self.small(line))
        return self.done[line]

    def small(self, line, fresh=True):
        """The words of a command with small values; where it is `fresh`, what lies in its output is removed."""
        line = line.replace("/usr/share/fonts", f"{get_data_path()}/fonts/ttf")
        line = re.sub(r"/usr/share/dict/[\w-]+", "words.txt", line)
        line = re.sub(r"pretrained/text/fonts_\w+.txt", "fonts.txt", line)
        words = shlex.split(line)
        for start, more in SMALLER.items():
            if line.startswith(start):
                words += shlex.split(more)
        for at, before in enumerate(words[:-1], start=1):
            if before == "--output" and words[at] in ("PAIRS", "ROOT", "TEXT_TEST", "runs/demo/photos"):
                words[at] += "_made"  # others take those that lie here, which are small
        configs = [self.folder / name for flag, name in pairwise(words) if flag == "--config" and name != "CONFIG"]
        trainers = [yaml.safe_load(config.read_text()).get("trainer", {}) for config in configs]
        roots = re.findall(r"--trainer.default_root_dir[ =](\S+)", " ".join(words))
        outputs = roots or [trainer.get("default_root_dir") for trainer in trainers[-1:]]
        outputs += [word for word in words if word == "DIR"][:1]
        outputs += [words[at] for at, before in enumerate(words[:-1], start=1) if before == "--output"]
        for output in (self.folder / name for name in outputs if fresh and name not in (None, "runs/demo")):
            shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
        return words


def few_steps(grid):
    """A grid with at most two steps in every setting."""
    if isinstance(grid, list):
        return [few_steps(one) for one in grid]
    if not isinstance(grid, dict):
        return grid
    steps = grid.get("steps")
    few = min(steps, 2) if isinstance(steps, int) else [1, 2]
    return {name: few if name == "steps" else few_steps(value) for name, value in grid.items()}


def start_here(words):
    """The exit code of a program that is started as python starts it, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words[1 + (words[1] == "-m") :])
        try:
            if words[1] == "-m":
                runpy.run_module(words[2], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        except SystemExit as end:
            return end.code or 0
    return 0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def there(place, monkeypatch, no_network):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(place.folder)
    monkeypatch.syspath_prepend(place.folder)
    return place


def test_there_are_commands_and_every_exception_is_one():
    assert len(RUN) > 60
    for start in (*EXCEPTIONS, *SMALLER, *MADE.values()):
        assert any(line.startswith(start) for line in commands()), f"no page says {start}: remove it here"


def marked(line):
    slow = [pytest.mark.slow] * any(part in line for part in SLOW)
    return pytest.param(line, id=line.removeprefix("python "), marks=slow)


def test_a_command_of_sample_py_has_flags_that_there_are():
    for line in RUN:
        _, script, *words = shlex.split(line)
        if script == "sample.py" and "--help" not in words:
            sample.parser_of([]).given(words)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", [marked(line) for line in RUN if line not in APPS])
def test_a_command_of_the_pages(there, capfd, line):
    if any(part in line for part in CLUSTER):
        _, _, name, *flags = shlex.split(line)
        parser = Run(None, ["--config", "configs/demo.yaml", "--data.train", "PHOTOS"], ExitStack()).parser
        require_files(name, parser.parse_args(flags))
        return
    for part, package in EXTRAS.items():
        if part in line:
            pytest.importorskip(package)
    wanted = 0
    assert there.run(line) == wanted, capfd.readouterr().err
    words = there.small(line, fresh=False)
    if words[1] == "evaluate.py" and "--output" in words:
        folder = Path(words[words.index("--output") + 1])
        table = folder / ("comparison.csv" if "--checkpoints" in words else "results.csv")
        assert (folder / "report.html").is_file()
        assert len(table.read_text().splitlines()) > 2
    elif words[1:3] == ["train.py", "fit"] and "--config" in words:
        configs = [yaml.safe_load(Path(name).read_text()) for flag, name in pairwise(words) if flag == "--config"]
        roots = [config["trainer"]["default_root_dir"] for config in configs if "default_root_dir" in config["trainer"]]
        root = [*roots, *re.findall(r"--trainer.default_root_dir[ =](\S+)", " ".join(words))][-1]
        model = configs[0]["model"]["init_args"]
        own = [word for word in words if word.startswith(("mypred", "mynaf"))]
        pipeline = load_pipeline(f"{root}/checkpoint", classes=own)
        assert (pipeline.denoiser is None) == ("denoiser" not in model)
        kind = model.get("residual", {}).get("scale_kind", "global")
        assert pipeline.denoiser is None or pipeline.config.scale_kind == kind


@pytest.mark.parametrize("line", [marked(line) for line in APPS])
def test_the_page_starts_answers_and_ends(there, capfd, line):
    there.run(next(one for one in RUN if one.startswith(MADE["runs/demo/checkpoint"])))
    port = free_port()
    _, script, *flags = shlex.split(line)
    command = Command(script, [*flags, "--port", port, "--device", "cpu"])
    out = command.said / "out"
    until(lambda: out.exists() and "Ctrl-C ends it" in out.read_text(), command)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert answer.status == 200
        assert b"gradio" in answer.read()
    command.send_signal(signal.SIGINT)
    ended = command.wait()
    assert ended.returncode == 130
    assert ended.stderr.endswith("app.py: stopped\n")


def test_the_python_of_the_pages(there, capsys):
    there.run(next(one for one in RUN if one.startswith(MADE["runs/demo/checkpoint"])))
    found = [block for block in blocks(("python",)) if block[0] not in ("extend.md", "deployment.md")]  # have their own
    assert len(found) == 2
    for _, code in found:
        exec(code, {"restored": torch.rand(1, 3, 40, 40), "sharp": torch.rand(1, 3, 40, 40)})
    assert Path("restored.png").is_file()
    assert capsys.readouterr().out.count("RGB, clipped to [0, 1]") == 3
