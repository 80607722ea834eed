"""sample.py: runs that are stopped and resumed, damaged files, batches, memory, several processes."""

import json
import re
import signal
import time
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch

import sample
from deblur.checkpoints import update_index
from deblur.data.files import images
from deblur.evaluation.pixels import whole_numbers
from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.nafnet import SlimPredictor
from deblur.pipeline import DeblurPipeline
from deblur.restoration import job
from tests import processes
from tests.processes import torchrun
from tests.sample.conftest import restored, run, with_presets
from tests.tiny import RICH, rich_pipeline, tiny_pipeline

pytestmark = pytest.mark.commands


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_between_whole_files_and_started_again(checkpoint, tmp_path, number):
    for i in range(10):
        images.write(tmp_path / "in" / f"{i}.png", torch.rand(3, 40, 40))
    out = tmp_path / "out"
    command = [str(tmp_path / "in"), "--checkpoint", str(checkpoint), "--output", str(out), "--steps", "2"]
    # By itself, where it gives a file its name for the ninth time: an image and the manifest take one each.
    ended = processes.run("sample.py", command, fatal=("replace", 9, 0, number))
    files = sorted(out.glob("[!.]*.png"))
    assert len(files) in (4, 5)
    for file in files:
        images.read(file)  # whole, or ImageError
    if number == signal.SIGKILL:
        assert ended.returncode == -signal.SIGKILL
    else:
        assert ended.returncode == 130 and "Traceback" not in ended.stderr
        done = int(re.search(r"sample.py: stopped, (\d+) done; run again to resume", ended.stderr)[1])
        assert len(json.loads((out / "manifest.json").read_text())) in (done, done + 1)
        assert done >= 2 and not list(out.glob(".*part*"))
    first = files[0].stat().st_mtime_ns
    assert sample.main(command) == 0 and len(list(out.glob("[!.]*.png"))) == 10 and files[0].stat().st_mtime_ns == first


@pytest.mark.parametrize("blend", ["0", "1"])
def test_the_memory_that_a_refusal_names_suffices(checkpoint, tmp_path, blend):
    """A first number is refused before anything is read; one just above it by the networks."""
    images.write(tmp_path / "large.png", torch.rand(3, 1200, 1300))
    command = [tmp_path / "large.png", "--checkpoint", checkpoint, "--output", tmp_path / "out", "--steps", "1"]

    def limited(memory):
        done = processes.run("sample.py", [*command, "--blend", blend, "--device", "cpu", "--memory", memory])
        return done.returncode, done.stderr

    code, said = limited("0.01")
    assert code == 2
    used = float(re.search(r"less than the program itself takes, ([\d.]+) GB; its images come on top", said)[1])
    code, said = limited(f"{used + 0.02:.2f}")
    assert code == 1, said
    named = re.search(r"large.png does not fit into --memory: give ([\d.]+) or more", said)[1]
    code, said = limited(named)
    assert code == 0, said


def damaged(file, generator):
    """Cut it short, flip bytes, overwrite its head, or put something else in its place."""
    data, kind = bytearray(file.read_bytes()), generator.integers(4)
    if kind == 0:
        data = data[: generator.integers(len(data))]
    elif kind == 1:
        for place in generator.integers(len(data), size=generator.integers(1, 30)):
            data[place] ^= 1 << generator.integers(8)
    elif kind == 2:
        data[8 : 8 + generator.integers(64)] = generator.bytes(16)
    else:
        data = generator.bytes(generator.integers(200))
    file.write_bytes(data)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_named_and_the_good_ones_between_them_restored(checkpoint, tmp_path, capfd, count):
    generator = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for i in range(count):
        file = tmp_path / "in" / f"{i:04}{('.png', '.jpg', '.webp', '.tif', '.bmp')[i % 5]}"
        pixels = torch.from_numpy(generator.random((3, 8, 8), dtype=np.float32))
        like = images.ImageFile(torch.zeros(3, 1, 1, dtype=torch.uint16 if i % 2 else torch.uint8))
        images.write(file, pixels, like)
        if i % 10:
            damaged(file, generator)
    names = {file.name for file in (tmp_path / "in").iterdir()}
    good = {name for name in names if int(name[:4]) % 10 == 0}
    arguments = [tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    assert sample.main([*map(str, arguments), "--steps", "1"]) == 1
    errors = capfd.readouterr().err
    named = {name for name in names if f"{name} " in "".join(e for e in errors.splitlines(True) if ": error: " in e)}
    written = {file.name for file in (tmp_path / "out").iterdir()} - {"manifest.json", ".manifest.json.lock"}
    assert "Traceback" not in errors and good <= written and written | named == names and not written & named
    assert len(named) > count / 4  # flipped bytes of pixels leave a file readable


def test_what_is_done_is_skipped_until_something_changes(checkpoint, photos, tmp_path, capsys):
    command = [photos, "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    run(*command)
    before = restored(tmp_path / "out")
    (tmp_path / "out" / "a.png").write_bytes(b"kept")
    capsys.readouterr()
    run(*command)
    assert "all 3 done before, in" in capsys.readouterr().out and (tmp_path / "out" / "a.png").read_bytes() == b"kept"
    (tmp_path / "out" / "c.webp").unlink()
    run(*command)
    assert (tmp_path / "out" / "c.webp").is_file() and (tmp_path / "out" / "a.png").read_bytes() == b"kept"
    run(*command, "--overwrite", "true")
    assert restored(tmp_path / "out") == before
    capsys.readouterr()
    run(*command, "--seed", "7")
    assert "wrote 3 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("sampler", ["ddpm", "dpmsolver++"])
def test_a_batch_gives_what_single_images_give(tmp_path, sampler, monkeypatch):
    rich_pipeline().save_pretrained(tmp_path / "checkpoint")
    generator = torch.Generator().manual_seed(0)
    for i in range(5):  # two sizes in turns, and a file that breaks off behind its header
        size = (150, 90) if i % 2 else (60, 70)
        images.write(tmp_path / "in" / f"{i}.png", torch.rand(3, *size, generator=generator))
    (tmp_path / "in" / "2.png").write_bytes((tmp_path / "in" / "0.png").read_bytes()[:5000])
    sizes, call = [], DeblurPipeline.draw

    def counted(self, inputs, *arguments, **options):
        sizes.append(len(inputs))
        return call(self, inputs, *arguments, **options)

    monkeypatch.setattr(DeblurPipeline, "draw", counted)
    for count in (1, 2, 4):
        start = time.perf_counter()
        flags = ["--batch_size", count, "--sampler", sampler, "--num_samples", "2", "--uncertainty", "--compare"]
        flags += ["--keep_sharp", "40", "--precision", "fp32", "--classes", RICH]
        command = [tmp_path / "in", "--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / str(count)]
        assert run(*command, *flags) == 1
    assert sizes == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    alone, two, four = (json.loads((tmp_path / count / "manifest.json").read_text()) for count in "124")
    seconds = [[entry.pop("seconds") for entry in entries.values()] for entries in (alone, two, four)][-1]
    assert len(seconds) == 4 and min(seconds) > 0 and sum(seconds) < time.perf_counter() - start
    for image, facts in alone.items():
        rounded = ("restored_share", "std_white", "error_white")
        numbers = {name: pytest.approx(facts[name], abs=2e-4) for name in rounded}
        assert all(batch[image] == facts | numbers for batch in (two, four))
    assert len({entry["restored_share"] for entry in alone.values()}) > 1
    for name in restored(tmp_path / "1"):
        one, two, four = (levels_of(tmp_path / count / name) for count in "124")
        levels = 5 if name.endswith("_std.png") else 1  # its white is the largest value, far below 1
        assert max((one - two).abs().max(), (one - four).abs().max()) <= levels, name


def levels_of(file):
    """The values of a file times 255: of an image whole numbers, whose differences float32 holds exactly."""
    return 255 * torch.from_numpy(tifffile.imread(file)) if file.suffix == ".tif" else whole_numbers(images.read(file))


def limit(monkeypatch, name):
    """Let a method of the pipeline run out of memory on more than one image of 20 x 20 pixels."""
    method = getattr(DeblurPipeline, name)

    def limited(self, inputs, *arguments, **options):
        if inputs.numel() > 3 * 20 * 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return method(self, inputs, *arguments, **options)

    monkeypatch.setattr(DeblurPipeline, name, limited)


def test_out_of_memory_halves_a_batch_and_names_a_photo(checkpoint, tmp_path, monkeypatch, capsys):
    for i in range(7):
        images.write(tmp_path / "in" / f"{i}.png", torch.rand(3, 20, 20))
    images.write(tmp_path / "in" / "large.png", torch.rand(3, 99, 99))
    limit(monkeypatch, "draw")
    assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out", "--batch_size", "7") == 1
    assert set(restored(tmp_path / "out")) == {f"{i}.png" for i in range(7)}
    assert "large.png does not fit into memory (99 x 99 pixels)" in capsys.readouterr().err


def test_a_photo_whose_scale_is_not_found_within_memory_is_named_and_the_others_restored(tmp_path, monkeypatch, capsys):
    checkpoint = with_presets(tmp_path, balanced={})
    update_index(Path(checkpoint), working_size={"smallest": 10, "region": 1.0})
    for name, side in (("large", 99), ("small", 20)):
        images.write(tmp_path / "in" / f"{name}.png", torch.rand(3, side, side))
    limit(monkeypatch, "predict")
    for smallest in (job.SMALLEST_TIMED_JOB, 0):  # found when it is restored, or before to say how long that takes
        monkeypatch.setattr(job, "SMALLEST_TIMED_JOB", smallest)
        assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / f"out {smallest}") == 1
        assert set(restored(tmp_path / f"out {smallest}")) == {"small.png"}
        assert "large.png does not fit into memory (99 x 99 pixels)" in capsys.readouterr().err


PEAK = """
import sys
from pathlib import Path
import torch
import deblur.tiling, sample
from deblur.data.files import images
torch.set_num_threads(1)
deblur.tiling.PIXELS_OF_BAND = 1 << 18  # so that a test's photo has several
peaks = []
for side in (256, 3000):
    images.write(f"{side}.bmp", torch.rand(3, 1, side).expand(3, side, side))
    flags = ["--steps", "2", "--tile", "256", "--predictor_tile", "256", "--sampler", sys.argv[2]]
    assert sample.main([f"{side}.bmp", "--checkpoint", sys.argv[1], "--output", "out", *flags]) == 0
    status = Path("/proc/self/status").read_text().splitlines()
    peaks.append(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")))
print((peaks[1] - peaks[0]) / (3000**2 - 256**2))
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells a process's peak")
@pytest.mark.slow
def test_a_large_photo_takes_few_tensors_of_its_size(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = processes.run("-c", [PEAK, checkpoint, "ddim"])
    fields = float(done.stdout.splitlines()[-1]) / 12  # of three floats a pixel
    assert 3 < fields < 7.5


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    "flags", [[], ["--scale", "0.5"], ["--restore", "all"], ["--on_fault", "fallback"], ["--keep_sharp", "1e6"]]
)
def test_colours_under_alpha_0_change_nothing_but_themselves(tmp_path, capsys, depth, flags):
    checkpoint = with_presets(tmp_path, balanced={"keep_sharp": 2.5})
    generator, most = np.random.default_rng(0), np.iinfo(depth).max
    visible = np.zeros((64, 80), bool)
    visible[16:56, 8:60] = True
    colours = np.kron(generator.integers(most, size=(8, 10, 3)), np.ones((8, 8, 1)))
    is_kept = "--keep_sharp" in flags
    if is_kept:
        colours = np.linspace(0, most, 80)[None, :, None] + np.zeros((64, 1, 3))
    written, said = [], []
    for name, hidden in (("black", 0), ("white", most), ("noise", generator.integers(most, size=(64, 80, 3)))):
        array = np.dstack([np.where(visible[..., None], colours, hidden), visible * most]).astype(depth)
        path, folder = tmp_path / name / "a.png", tmp_path / f"{name} out"
        path.parent.mkdir()
        path.write_bytes(imagecodecs.png_encode(array))
        assert run(path, "--output", folder, "--checkpoint", checkpoint, *flags) == 0
        restored = imagecodecs.png_decode((folder / "a.png").read_bytes())
        assert np.array_equal(restored[~visible], array[~visible])
        assert np.array_equal(restored[visible], array[visible]) == is_kept
        [entry] = json.loads((folder / "manifest.json").read_text()).values()
        written.append((restored[visible].tobytes(), entry["restored_share"], entry["faults"]))
        said.append(capsys.readouterr().err.replace(str(path), ""))
    assert len(set(map(repr, written))) == 1
    assert len(set(said)) == 1
    assert ("looks too blurred" in said[0]) == is_kept


def test_two_processes_share_the_list_and_give_the_same_bytes(checkpoint, photos, tmp_path):
    run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "one")
    done = torchrun("sample.py", [photos, "--checkpoint", checkpoint, "--output", tmp_path / "two", "--steps", "2"])
    assert [(process.returncode, "Traceback" in process.stderr) for process in done] == [(0, False)] * 2
    shares = [int(re.search(r"wrote (\d+) of", process.stdout + process.stderr)[1]) for process in done]
    assert sorted(shares) == [1, 2] and restored(tmp_path / "two") == restored(tmp_path / "one")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert manifests[0].keys() == manifests[1].keys() and len(manifests[0]) == 3


def test_a_predictor_that_expects_its_error_shows_it_without_samples(photos, tmp_path):
    tiny_pipeline(SlimPredictor((8, 12), (1, 1), size_head=True)).save_pretrained(tmp_path / "checkpoint")
    command = [photos / "a.png", "--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "out"]
    run(*command, "--uncertainty", "true", "--blend", "0")
    assert set(restored(tmp_path / "out")) == {"a.png", "a_error.png", "a_error.tif"}
    error = tifffile.imread(tmp_path / "out" / "a_error.tif")
    assert error.shape == (20, 31, 3) and (error > 0).all() and (error[..., 0] == error[..., 2]).all()


def test_each_of_several_samples_is_warned_of_and_replaced_by_itself(tmp_path, capsys):
    """By the few pixels that are visible."""
    array = np.random.default_rng(0).integers(256, size=(24, 24, 4), dtype=np.uint8)
    array[..., 3] = 255 * (np.arange(24) < 6) * (np.arange(24) < 6)[:, None]
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(array))
    tiny_pipeline(IdentityPredictor(), residual_scale=0.05).save_pretrained(tmp_path / "checkpoint")
    command = [tmp_path / "a.png", "--checkpoint", tmp_path / "checkpoint", "--num_samples", "4", "--precision", "fp32"]
    run(*command, "--output", tmp_path / "warned")
    faulty = set(re.findall(r"a_\d\.png(?=: the sample is less sharp)", capsys.readouterr().err))
    assert faulty == {"a_1.png"}
    for said in ("wrote 1 of 1", "all 1 done before"):
        run(*command, "--output", tmp_path / "back", "--on_fault", "fallback")
        assert said in capsys.readouterr().out
    warned, back = restored(tmp_path / "warned"), restored(tmp_path / "back")
    assert warned.keys() == back.keys() == {f"a_{k}.png" for k in range(4)}
    assert {name for name in back if back[name] != warned[name]} == faulty
    assert all(torch.equal(images.read(tmp_path / "back" / name), images.read(tmp_path / "a.png")) for name in faulty)


def test_an_image_whose_sample_is_no_numbers_is_refused_whole_and_the_next_one_restored(photos, tmp_path, capsys):
    pipeline = tiny_pipeline()
    torch.nn.init.constant_(pipeline.denoiser.unet.head.bias, float("nan"))
    pipeline.save_pretrained(tmp_path / "checkpoint")
    command = [photos, "--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "out", "--num_samples", "2"]
    assert run(*command) == 1
    said = capsys.readouterr()
    assert said.err.count("is not written: its restoration has pixels that are no numbers") == 3
    assert "wrote 0 of 3" in said.out
    assert restored(tmp_path / "out") == {}
    assert run(*command, "--on_fault", "fallback", "--uncertainty", "true") == 1
    assert capsys.readouterr().err.count("--uncertainty false writes the restoration") == 3
    assert restored(tmp_path / "out") == {}
    assert run(*command, "--on_fault", "fallback") == 0
    assert len(restored(tmp_path / "out")) == 6
