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
import gc
import os
import sys
from types import ModuleType

import diffusers, imagecodecs, kornia, lightning, lpips, matplotlib.pyplot, pandas, psutil, tifffile, torch, torchvision

gc.freeze()  # these stay
root, folder = sys.argv[1:]
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
        if frame.f_code.co_filename.startswith((root, folder)):
            raise FileNotFoundError(2, "No such file or directory", values[0])


ctypes.CDLL = Library
sys.addaudithook(without_proc)
sys.path[:0] = [root, "."]

import ours  # of each of these a check that it is missing

for use in (ours.affinity, ours.sysconf, ours.library, ours.proc):
    try:
        use()
    except (AttributeError, TypeError, FileNotFoundError):
        continue
    raise AssertionError(f"{use} is there")

from importlib import import_module
from pathlib import Path

optional = {"batch", "benchmarks", "onnx"}
for package in sorted(path for path in Path(root, "deblur").iterdir() if path.is_dir()):
    for path in sorted(package.resolve().rglob("*.py")):
        place = Path("deblur", package.name, path.relative_to(package.resolve()))
        if not optional & set(place.parts):
            import_module(".".join(place.with_suffix("").parts).removesuffix(".__init__"))

import evaluate, sample

assert sample.main(["photo.jpg", "--output", "default"]) == 0
assert sample.main(["photo.jpg", "--output", "tiny", "--checkpoint", "checkpoint"]) == 0
assert evaluate.main(["--checkpoint", "checkpoint", "--data", "pairs", "--output", "scores"]) == 0
"""
OURS = """
import ctypes, os
def affinity(): return os.sched_getaffinity(0)
def sysconf(): return os.sysconf("SC_PAGE_SIZE")
def library(): return ctypes.CDLL(None)
def proc(): return open("/proc/meminfo").read()
"""


def test_elsewhere_all_is_imported_restored_and_scored(tmp_path):
    images.write(tmp_path / "photo.jpg", torch.rand(3, 20, 31))
    for side in ("blur", "sharp"):
        images.write(tmp_path / "pairs" / side / "a.png", torch.rand(3, 40, 44))
    pipeline = tiny_pipeline()
    pipeline.register_to_config(presets={"balanced": {"steps": 2}})
    pipeline.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "ours.py").write_text(OURS)
    done = fresh(ELSEWHERE, ROOT, tmp_path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert images.read(tmp_path / "default" / "photo.jpg").shape == (3, 20, 31)
    assert images.read(tmp_path / "tiny" / "photo.jpg").shape == (3, 20, 31)
    assert (tmp_path / "scores" / "results.csv").is_file()
