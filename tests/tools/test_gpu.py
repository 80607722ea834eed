"""A GPU's minutes, tried on the CPU: all steps with the packages that are taken along, and what is not repeated."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.tools import gpu, gpu_training
from deblur.tools.benchmarks import sampling, training

ROOT = Path(__file__).parents[2]


def run(python, output, *flags, paths=()):
    command = [python, "-m", "tools.gpu", "--output", output, "--device", "cpu", "--quick", "true"]
    command += ["--seconds", "3000", *flags]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_step_that_is_done_is_not_repeated_and_one_that_failed_is(tmp_path, monkeypatch, capsys):
    marks = tmp_path / "marks"
    steps = {"one": f"-c \"open('{marks}', 'a').write('1')\"", "two": f"-c \"open('{marks}', 'a').write('2'); 1/0\""}
    monkeypatch.setattr(gpu, "STEPS", steps)
    monkeypatch.setattr(gpu, "TENSORRT", {})
    for _ in range(2):
        with pytest.raises(ValueError, match="these steps failed: two"):
            gpu.use(str(tmp_path / "out"))
    assert marks.read_text() == "122"
    assert "ZeroDivisionError" in (tmp_path / "out/two.log").read_text()
    assert "one: done before" in capsys.readouterr().out


def test_the_tests_that_need_a_gpu_are_those_of_the_step():
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text())
    marked = {path.relative_to(ROOT).as_posix() for path in files}
    assert marked - {"tests/tools/test_gpu.py"} == set(gpu.GPU_TESTS)


def test_what_is_measured_is_what_the_benchmarks_know():
    assert {*gpu.CASES.split()[1].split(",")} <= {*sampling.CASES}
    assert {*gpu.TRAINED.split(",")} <= {*training.CASES}


def test_a_step_is_stopped_when_the_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "STEPS", {"long": '-c "import time; time.sleep(60)"'})
    monkeypatch.setattr(gpu, "TENSORRT", {})
    with pytest.raises(ValueError, match="these steps failed: long"):
        gpu.use(str(tmp_path / "out"), seconds=1.0)
    assert json.loads((tmp_path / "out/steps.json").read_text()) == {"long": 124}


def test_tests_and_most_codecs_of_the_wheels_stay_behind():
    taken = [
        "kornia/color/gray.py",
        "imagecodecs/_png.abi3.so",
        "imagecodecs/__init__.py",
        "imagecodecs.libs/libpng16.so",
    ]
    left = ["tests/test_x.py", "imagecodecs/_avif.abi3.so", "imagecodecs.libs/libaom.so.3"]
    assert all(gpu.is_needed(name) for name in taken)
    assert not any(gpu.is_needed(name) for name in left)


def test_pairs_that_are_too_small_are_left_out(tmp_path, capsys):
    for name, height in (("a", 50), ("b", 64), ("c", 70)):
        for kind in ("blur", "sharp"):
            images.write(tmp_path / kind / f"{name}.png", torch.rand(3, height, 80))
    pairs = gpu_training.read_pairs(str(tmp_path), 64, "cpu")
    assert pairs.shape == (2, 2, 3, 64, 64)
    assert torch.equal(pairs[0, 0], images.read_raw(tmp_path / "blur/b.png")[:, :64, :64])
    assert capsys.readouterr().out == f"{tmp_path}: left out 1 of 3 pairs, smaller than 64 pixels\n"
    with pytest.raises(ValueError, match="has no pair of 100 pixels or more"):
        gpu_training.read_pairs(str(tmp_path), 100, "cpu")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_python_without_the_packages_does_every_step_with_those_taken_along(tmp_path):
    """On the CPU, with tiny images: a new environment sees the installed packages but those that are taken along."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    gpu.use(packages=str(tmp_path / "packages.zip"), python=version)
    assert (tmp_path / "packages.zip").stat().st_size < 40e6
    with zipfile.ZipFile(tmp_path / "packages.zip") as archive:
        archive.extractall(tmp_path / "packages")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    replaced = {str(file).split("/")[0] for name in gpu.PACKAGES for file in distribution(name).files}
    (tmp_path / "rest").mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in replaced - {"..", "__pycache__"}:
            (tmp_path / "rest" / entry.name).symlink_to(entry)
    python = tmp_path / "venv/bin/python"
    lacking = run(python, tmp_path / "out", paths=[tmp_path / "rest"])
    assert lacking.returncode != 0
    paths = [tmp_path / "packages", tmp_path / "rest"]
    result = run(python, tmp_path / "out", paths=paths)
    logs = {log.stem: log.read_text()[-2000:] for log in (tmp_path / "out").glob("*.log")}
    assert result.returncode == 0, (result.stdout, result.stderr, logs)
    # Training fills the time that is left, so that it gets a call of its own, of a minute.
    pairs = json.dumps([str(ROOT / "tests/assets/pairs")])
    result = run(python, tmp_path / "out", "--pairs", pairs, "--seconds", "60", paths=paths)
    assert result.returncode == 0, (result.stdout, result.stderr, (tmp_path / "out/train.log").read_text()[-2000:])
    assert set(gpu.STEPS) | {"train"} <= set(json.loads((tmp_path / "out/steps.json").read_text()))
    assert (tmp_path / "out/checkpoint/denoiser/diffusion_pytorch_model.safetensors").is_file()
