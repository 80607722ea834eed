"""Linux is not needed: what macOS and Windows lack is taken away."""


import pytest
import torch

from deblur.data.files import images
from tests.conftest import ROOT, fresh
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands

# What other packages ask for themselves is their own matter: they are imported before, and psutil keeps its own `os`.
ELSEWHERE = """
import ctypes
import os
import sys
from types import ModuleType

import diffusers, imagecodecs, kornia, lightning, lpips, matplotlib.pyplot, pandas, psutil, tifffile, torch, torchvision

root, program, *arguments = sys.argv[1:]
if hasattr(psutil, "_pslinux"):
    psutil._pslinux.os = ModuleType("os")
    vars(psutil._pslinux.os).update(vars(os))
for owner, name in ((os, "sched_getaffinity"), (os, "sysconf"), (os, "fork"), (psutil.Process, "cpu_affinity")):
    if hasattr(owner, name):
        delattr(owner, name)


class Library(ctypes.CDLL):
    def __init__(self, name, *rest, **options):
        if name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *rest, **options)


def without_proc(event, values):
    if event == "open" and str(values[0]).startswith("/proc/"):
        frame = sys._getframe(1)
        while "/lib/python" in frame.f_code.co_filename and "site-packages" not in frame.f_code.co_filename:
            frame = frame.f_back  # the standard library opens for its caller
        if frame.f_code.co_filename.startswith(root):
            raise FileNotFoundError(2, "No such file or directory", values[0])


ctypes.CDLL = Library
sys.addaudithook(without_proc)
sys.path.insert(0, root)
"""
RUN = "from importlib import import_module\nsys.argv[1:] = arguments\nsys.exit(import_module(program).main())"


@pytest.fixture
def folder(tmp_path):
    images.write(tmp_path / "photo.jpg", torch.rand(3, 20, 31))
    for side in ("blur", "sharp"):
        images.write(tmp_path / "pairs" / side / "a.png", torch.rand(3, 40, 44))
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    return tmp_path


def test_a_photograph_is_restored(folder):
    for flags in ([], ["--checkpoint", "checkpoint", "--steps", "2"]):
        arguments = ["photo.jpg", "--output", f"out{len(flags)}", *flags]
        done = fresh(ELSEWHERE + RUN, ROOT, "deblur.restoration.command", *arguments, folder=folder)
        assert done.returncode == 0, done.stderr
        assert images.read(folder / f"out{len(flags)}" / "photo.jpg").shape == (3, 20, 31)


def test_a_checkpoint_is_scored(folder):
    arguments = ["--checkpoint", "checkpoint", "--data", "pairs", "--output", "scores"]
    done = fresh(ELSEWHERE + RUN, ROOT, "deblur.evaluation.command", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "scores" / "results.csv").is_file()


IMPORTS = """
from importlib import import_module
from pathlib import Path

optional = {"batch", "benchmarks", "onnx", "quantise.py"}
for package in sorted(path for path in Path(root, "deblur").iterdir() if path.is_dir()):
    for path in sorted(package.resolve().rglob("*.py")):
        place = Path("deblur", package.name, path.relative_to(package.resolve()))
        if not optional & set(place.parts):
            import_module(".".join(place.with_suffix("").parts).removesuffix(".__init__"))
"""


def test_every_module_but_the_optional_ones_is_imported(tmp_path):
    done = fresh(ELSEWHERE + IMPORTS, ROOT, "", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_elsewhere_is_missing_here(tmp_path):
    """Else the tests above would prove nothing."""
    own = tmp_path / "ours.py"
    for line in ("os.sched_getaffinity(0)", "os.sysconf(1)", "ctypes.CDLL(None)", "open('/proc/meminfo')"):
        own.write_text(f"import ctypes, os\n{line}\n")
        done = fresh(ELSEWHERE + "import ours", tmp_path, "", folder=tmp_path)
        assert done.returncode == 1, line
        assert f'{own}", line 2' in done.stderr
