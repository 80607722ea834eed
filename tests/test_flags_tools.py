"""Every flag of app.py and of tools/ changes what it names; a flag without a line in these tables fails.

A line is what the flag adds to a command, and what must hold of the runs without and with it; or the test elsewhere,
as file and name, that tries it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from deblur.cli import call, run_command
from deblur.data.files import images
from deblur.data.predictions import folder_of
from deblur.models.networks.base import Cascade
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.nafnet import SlimPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from deblur.tools import calibrate, demo, doctor, export, import_maxim, make_pairs
from deblur.tools.batch import command as batch
from deblur.tools.web import command as app
from deblur.tools.web.served import Served
from tests.conftest import ROOT
from tests.processes import free_port
from tests.test_flags import LINEAR, LOG_SNR, SAMPLE
from tests.tiny import stir, tiny_pipeline

pytestmark = pytest.mark.commands
BLUR = """
data:
  blur:
    camera: [{{class_path: deblur.data.camera.CameraShake, init_args: {{length: [5, 5]}}}}]
    shot_noise: [{0}, {0}]
"""
CLASSES = (["--classes", "mypred.Net"], lambda a, b: b.code == 2 and "class mypred.Net cannot be imported" in b.said)
NO_DEVICE = (["--device", "cuda:99"], lambda a, b: b.code == 2 and "device cuda:99 cannot be used here" in b.said)


@dataclass
class Run:
    """What a command left: its exit code, what it said, and its output folder."""

    code: int
    said: str
    folder: Path

    @property
    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    @property
    def types(self) -> set[torch.dtype]:
        """Those of the weights that it wrote."""
        return {value.dtype for path in self.folder.rglob("*.safetensors") for value in load_file(path).values()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Checkpoints, photographs to blur, and a dataset of two splits and two kinds of blurry images."""
    folder = tmp_path_factory.mktemp("flags")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(folder / "sized")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True), residual_scale=0.3).save_pretrained(folder / "other")
    cascade = Cascade(stir(Maxim(stages=2)), stir(SlimPredictor((8, 12), (1, 1), images=2)))
    tiny_pipeline(cascade).save_pretrained(folder / "cascade")
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 60, 72, generator=generator))
    (folder / "photos" / "one.txt").write_text("a.png\n")
    for name, noise in (("quiet", 0.0), ("noisy", 0.01)):
        (folder / f"{name}.yaml").write_text(BLUR.format(noise))
    for split, count in (("train", 1), ("test", 2)):
        for k in range(count):
            sharp = torch.rand(3, 32, 40, generator=generator)
            for kind, share in (("sharp", 1.0), ("blur", 0.5), ("blur_gamma", 0.3)):
                scene = folder / "data" / split / f"scene_{split}" / kind
                images.write(scene / f"{k:02}.png", share * sharp + (1 - share) * sharp.mean())
    return folder


@pytest.fixture
def ran(place, tmp_path, monkeypatch, capsys):
    """A function that runs a command in this process; OUT among its words becomes a folder of its own."""
    monkeypatch.chdir(place)
    count = 0

    def ran(function: Callable, words: list[str], script: str = "tools.test", **how):
        nonlocal count
        count += 1
        folder = tmp_path / f"out{count}"
        given = [str(folder) if word == "OUT" else word for word in words]
        code = run_command(script, lambda: call(function, given, script, about="", **how), "stopped")
        return Run(code, "".join(capsys.readouterr()), folder)

    return ran


def other_blur(a, b):
    """Other blurry images of the same sharp regions."""
    sides = [name for name in a.files if name.startswith(("blur/", "sharp/"))]
    return all((a.files[name] == b.files[name]) == name.startswith("sharp/") for name in sides)


def shape(run, name="a_0"):
    return images.read(run.folder / "sharp" / f"{name}.png").shape


def other_table(a, b):
    """Other numbers in the table; what a progress bar says differs in any case."""
    tables = [[line for line in run.said.splitlines() if re.match(r"\s+[1-5]\s+[\d.]", line)] for run in (a, b)]
    return [len(table) for table in tables] == [5, 5] and tables[0] != tables[1]


def predicted(split, variant):
    """Whether the predictions of a split and variant, and of no other, are there."""
    wanted = folder_of("data", split, variant)
    found = {path.parent for path in Path("data").rglob("predictor.json")}
    return found == {wanted}


MAKE = ["photos", "--config", "quiet.yaml", "--output", "OUT", "--crops", "1", "--size", "24", "--workers", "1"]
PREDICT = ["--predict", "sized"]
OF_CASCADE = ["--predict", "cascade", "--device", "cpu"]
PAIRS_TESTS = "tests/tools/test_make_pairs.py"
MAKE_PAIRS = {
    "photos": (PAIRS_TESTS, "test_several_folders_and_processes"),
    "config": (["--config", "noisy.yaml"], other_blur),
    "output": ([], lambda a, b: {"blur/a_0.png", "sharp/b_0.png", "pairs.json"} <= a.files.keys()),
    "names": (["--names", "one.txt"], lambda a, b: "blur/b_0.png" in a.files and "blur/b_0.png" not in b.files),
    "crops": (["--crops", "2"], lambda a, b: "blur/a_1.png" in b.files and "blur/a_1.png" not in a.files),
    "size": (["--size", "20"], lambda a, b: (shape(a), shape(b)) == ((3, 24, 24), (3, 20, 20))),
    "candidates": (["--candidates", "40"], lambda a, b: a.files["sharp/a_0.png"] != b.files["sharp/a_0.png"]),
    "seed": (["--seed", "1"], lambda a, b: a.files["blur/a_0.png"] != b.files["blur/a_0.png"]),
    "workers": (PAIRS_TESTS, "test_several_folders_and_processes"),
    "predict": (PREDICT, lambda a, b: any("predictions" in name for name in b.files.keys() - a.files.keys())),
    "first": (PAIRS_TESTS, "test_predictions_of_a_cascades_first_network_and_of_fewer_stages"),
    "stages": (PAIRS_TESTS, "test_predictions_of_a_cascades_first_network_and_of_fewer_stages"),
    "split": ("tests/test_flags_tools.py", "test_predictions_are_of_the_split_and_the_variant_that_are_named"),
    "variant": ("tests/test_flags_tools.py", "test_predictions_are_of_the_split_and_the_variant_that_are_named"),
    "device": ([*PREDICT, *NO_DEVICE[0]], NO_DEVICE[1]),
    "classes": ([*PREDICT, *CLASSES[0]], CLASSES[1]),
}

CALIBRATE = {
    "checkpoint": ("tests/tools/test_calibrate.py", "test_a_stored_curve_maps_the_expected_error_everywhere"),
    "data": ("tests/tools/test_calibrate.py", "test_a_stored_curve_maps_the_expected_error_everywhere"),
    "split": (["--split", "train"], other_table),
    "precision": (["--precision", "bf16"], other_table),
    "save": ("tests/tools/test_calibrate.py", "test_a_stored_curve_maps_the_expected_error_everywhere"),
}

EXPORT = {
    "source": ([], lambda a, b: a.code == 0 and "the weights of sized in fp16" in a.said),
    "output": ([], lambda a, b: "model_index.json" in a.files),
    "dtype": (["--dtype", "bf16"], lambda a, b: (a.types, b.types) == ({torch.float16}, {torch.bfloat16})),
    "average_with": (["--average_with", "other"], lambda a, b: "0.2" in (b.folder / "model_index.json").read_text()),
    "classes": CLASSES,
}

CHECKPOINTS = "tests/deblur/onnx/test_export.py"
INT8 = "tests/deblur/onnx/test_quantise.py"
EXPORT_ONNX = {
    "source": (CHECKPOINTS, "test_a_folder_restores_as_its_checkpoint"),
    "output": (CHECKPOINTS, "test_a_folder_restores_as_its_checkpoint"),
    "precision": (CHECKPOINTS, "test_half_precision_and_batches"),
    "target_device": (CHECKPOINTS, "test_an_export_for_tensorrt_has_tiles_of_512_pixels"),
    "tile": (CHECKPOINTS, "test_a_folder_restores_as_its_checkpoint"),
    "calibration": (INT8, "test_a_loss_that_cannot_be_kept_is_refused_and_nothing_is_left"),
    "max_drop": (INT8, "test_a_loss_that_cannot_be_kept_is_refused_and_nothing_is_left"),
    "stages": (CHECKPOINTS, "test_a_graph_has_the_stages_that_were_asked_for_whatever_a_preset_says"),
    "classes": ("tests/test_flags_tools.py", "test_own_networks_are_exported_to_onnx_by_their_names"),
}
DOCTOR = {
    "root": ([], lambda a, b: "data: layout gopro, variant blur: 1 pairs in train, 2 pairs in test" in a.said),
    "variant": (["--variant", "blur_gamma"], lambda a, b: "data: layout gopro, variant blur_gamma: " in b.said),
    "num_workers": ("tests/tools/test_doctor.py", "test_a_killed_process_ends_as_one_sentence"),
}
DEMO = {"output": (PAIRS_TESTS, "test_demo_photographs")}
IMPORTED = "tests/tools/test_import_maxim.py"
IMPORT_MAXIM = {
    "file": (IMPORTED, "test_a_checkpoint_of_the_authors_becomes_one_of_ours"),
    "output": (IMPORTED, "test_a_checkpoint_of_the_authors_becomes_one_of_ours"),
    "stages": (IMPORTED, "test_a_checkpoint_of_the_authors_becomes_one_of_ours"),
    "dtype": (IMPORTED, "test_the_weights_are_stored_in_the_type_that_is_named"),
}

COMMANDS = {  # its function, its table, the words of a run without a flag, and how the command reads them
    "make_pairs": (make_pairs.make, MAKE_PAIRS, MAKE, {"nargs": "+"}),
    "calibrate": (calibrate.calibrate, CALIBRATE, ["sized", "data", "--precision", "fp32"], {"positional": 2}),
    "export": (export.export_checkpoint, EXPORT, ["sized", "OUT"], {"positional": 2}),
    "doctor": (doctor.main, DOCTOR, ["data", "--num_workers", "0"], {}),
    "demo": (demo.main, DEMO, [], {"positional": 0}),
    "import_maxim": (import_maxim.import_maxim, IMPORT_MAXIM, [], {}),
}
TABLES = {name: (set(signature(function).parameters), table) for name, (function, table, *_) in COMMANDS.items()}
CASES = [
    (name, flag) for name, (_, table) in TABLES.items() for flag, line in table.items() if not isinstance(line[0], str)
]


def require_tests(table):
    """Whether the tests elsewhere that a table names are there."""
    for flag, (where, what) in table.items():
        if isinstance(where, str):
            assert f"def {what}(" in (ROOT / where).read_text(), flag


@pytest.mark.parametrize("name", TABLES)
def test_a_command_has_no_other_flags(name):
    flags, table = TABLES[name]
    assert flags == table.keys()
    require_tests(table)


def test_the_export_to_onnx_has_no_other_flags():
    export_onnx = pytest.importorskip("deblur.tools.export_onnx")
    assert set(signature(export_onnx.export_onnx).parameters) == EXPORT_ONNX.keys()
    require_tests(EXPORT_ONNX)


@pytest.mark.parametrize(("name", "flag"), CASES)
def test_a_flag_does_what_it_says(ran, name, flag):
    function, table, words, how = COMMANDS[name]
    more, holds = table[flag]
    one = ran(function, words, **how)
    assert one.code == 0, one.said
    assert holds(one, ran(function, [*words, *more], **how))


@pytest.mark.parametrize(("split", "variant"), [("train", "blur"), ("test", "blur"), ("test", "blur_gamma")])
def test_predictions_are_of_the_split_and_the_variant_that_are_named(ran, place, tmp_path, monkeypatch, split, variant):
    words = [str(place / "data"), "--predict", str(place / "sized"), "--device", "cpu"]
    try:
        done = ran(make_pairs.make, [*words, "--split", split, "--variant", variant], nargs="+")
        assert done.code == 0, done.said
        assert predicted(split, variant)
    finally:
        for path in (place / "data").rglob("predictions"):
            path.rename(tmp_path / path.parent.name)


def test_own_networks_are_exported_to_onnx_by_their_names(ran):
    export_onnx = pytest.importorskip("deblur.tools.export_onnx")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    words = ["sized", "--output", "OUT", "--classes", "mypred.Net"]
    assert "class mypred.Net cannot be imported" in ran(export_onnx.export_onnx, words).said


# python -m tools.batch: its flags go to the workers, which are sample.py's restorers


def test_a_batch_has_sample_py_s_flags_and_its_own():
    own = {"concurrency", "num_gpus", "address"}
    assert {field.name for field in fields(batch.Flags)} == own
    for flag, value in {"concurrency": 3, "num_gpus": 0.5, "address": "ray://HEAD:1"}.items():
        _, _, _, flags = batch.parsed(["in", "out", f"--{flag}", str(value)])
        assert flags == batch.Flags(**{flag: value})
    tests = (ROOT / "tests" / "batch" / "test_input.py").read_text()
    for name in ("test_workers_share_the_gpus_or_the_cores_and_the_memory", "test_a_cluster_that_answers_is_tried_and"):
        assert f"def {name}" in tests


@pytest.mark.parametrize("flag", [field.name for field in fields(Options) if field.name not in batch.NOT_OF_BATCHES])
def test_a_flag_of_sample_py_is_one_of_a_batch(flag):
    values = {"memory": "2.5", "classes": "a.B", "batch_size": "3", "tile": "128", "predictor_tile": "192"}
    values |= {"format": "tif", "depth": "16", "seed": "7", "precision": "bf16", "provider": "cuda", "device": "cpu"}
    values |= {"metadata": "none", "on_fault": "fallback", "preset": "perceptual", "checkpoint": "text"}
    values |= {"scale": "0.5", "max_side": "1200", "restore": "all", "quality": "80"}
    source, options, numbers, _ = batch.parsed(["in", "out", f"--{flag}", values.get(flag, "true")])
    assert (source, numbers) == ("in", {})
    changed = {name for name, value in vars(options).items() if value != getattr(Options("out"), name)}
    assert changed == {flag}
    assert str(getattr(options, flag)) == values.get(flag, "True")


@pytest.mark.parametrize("flag", [field.name for field in fields(SamplingSettings)])
def test_a_sampling_setting_of_sample_py_is_one_of_a_batch(flag):
    both, value, _ = SAMPLE.get(flag, ([], ["3"], None))
    value = value or ["true"]
    _, options, numbers, _ = batch.parsed(["in", "out", *both, f"--{flag}", *value])
    assert options == Options("out")
    assert str(numbers[flag]).lower() in (*value, f"{float(value[0])}" if value[0][-1].isdigit() else "")
    assert len(numbers) == 1 + len(both) // 2
    assert {len(LINEAR), len(LOG_SNR)} == {4}


# app.py

REQUEST = SimpleNamespace(session_hash="somebody")


@pytest.fixture
def opened(place, tmp_path, monkeypatch):
    """A function that opens a photograph with the page that a command line makes; its handlers."""
    from deblur.tools.web.actions import Actions
    from deblur.tools.web.restoration import PhotoRestorer
    from deblur.tools.web.visits import Visits

    exif = Image.Exif()
    exif[0x010F] = "Camera"
    noise = np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg", exif=exif)
    monkeypatch.chdir(place)
    count = 0

    def opened(*flags):
        nonlocal count
        count += 1
        given = [*flags, *([] if "--checkpoint" in flags else ["--checkpoint", "sized"])]
        given += [] if "--device" in flags else ["--device", "cpu"]
        given += [] if "--precision" in flags else ["--precision", "fp32"]
        served, options = app.parsed(given)
        actions = Actions({options.checkpoint: PhotoRestorer(options, served)}, Visits(tmp_path / f"visits{count}"))
        actions.open({"path": str(tmp_path / "photo.jpg"), "orig_name": "photo.jpg"}, REQUEST)
        return actions

    return opened


def restored(actions, steps=2, count=1):
    """The newest result's pixels, and its file."""
    actions.restore(actions.restorer.name, None, "ddim", steps, count, 1.0, 3, "auto", None, REQUEST)
    [*_, result] = actions.visits.of("somebody").results
    return result.image(result.kinds[-1]), Path(actions.save(f"{result.number}/{result.kinds[-1]}", REQUEST))


def refused(words, action, *given, **named):
    with pytest.raises((gr.Error, ValueError), match=words):
        action(*given, **named)


def test_the_page_writes_no_metadata_if_it_is_told_to(opened):
    for choice in ("keep", "none"):
        actions = opened("--metadata", choice)
        uploaded = images.read_file(actions.save("blurry", REQUEST)).exif
        tags = images.read_file(restored(actions)[1]).exif
        for exif in (tags, uploaded):
            assert (b"Camera" in exif) if choice == "keep" else (exif is None)


def test_the_page_s_limits_are_those_of_its_flags(opened):
    restored(opened(), steps=4, count=3)
    refused("more than the 0.001 megapixels", opened, "--max_pixels", "0.001")
    refused("at most 3 steps, not 4", restored, opened("--max_steps", "3"), steps=4)
    refused("at most 2 samples, not 3", restored, opened("--max_samples", "2"), steps=4, count=3)
    refused("longer than the 1e-09 seconds", restored, opened("--max_seconds", "1e-9"))
    refused("--memory 0.01 is less than the program itself takes", opened, "--memory", "0.01")


def test_the_page_s_networks_are_those_of_its_flags(opened):
    plain, _ = restored(opened())
    for flags in (["--checkpoint", "other"], ["--precision", "bf16"]):
        other, _ = restored(opened(*flags))
        assert not torch.equal(plain, other)
    refused("device cuda:99 cannot be used here", opened, "--device", "cuda:99")
    refused("no ONNX folder, which the provider cuda", opened, "--provider", "cuda")
    refused("class mypred.Net cannot be imported", opened, "--classes", "mypred.Net")


@pytest.mark.xdist_group("page")
def test_the_page_is_served_as_its_flags_say(place, tmp_path, monkeypatch):
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
        monkeypatch.setenv(name, "")
    port = free_port()
    flags = ["--host", "127.0.0.2", "--port", str(port), "--auth", "name:word", "--max_size", "0.001"]
    page = app.start(*app.parsed([*flags, "--checkpoint", str(place / "sized"), "--device", "cpu"]), tmp_path)
    try:
        address = f"http://127.0.0.2:{port}"
        assert page.local_url == f"{address}/"
        with httpx.Client(base_url=address) as visitor:
            assert visitor.get("/config").status_code == 401
            assert visitor.post("/login", data={"username": "name", "password": "word"}).status_code == 200
            assert visitor.get("/config").status_code == 200
            codes = []
            for size in (900, 1100):
                file = {"files": ("a.png", bytes(size))}
                codes.append(visitor.post("/gradio_api/upload", files=file).status_code)
            assert codes == [200, 413]
    finally:
        page.close()


def test_app_py_has_no_other_flags():
    here = Path(__file__).read_text()
    for flag in [*(field.name for field in fields(Served)), *app.SHARED]:
        assert f'"--{flag}"' in here.partition("# app.py")[2], flag
