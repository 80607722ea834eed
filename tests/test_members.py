"""Every value of an option, and every member of a table, as the code has them: a new one is tested, too."""

from dataclasses import fields
from inspect import signature
from pathlib import PurePath
from typing import get_args

import lightning as L
import pytest
import torch
from PIL import Image

from deblur.data import images
from deblur.data.blur import RESPONSES, SyntheticBlur
from deblur.data.layouts import LISTERS, Listing, Pair
from deblur.data.search import READ, WRITABLE
from deblur.evaluation import panels
from deblur.models.diffusion import ScaleKind
from deblur.models.nafnet import SlimPredictor
from deblur.restoration.manifest import Manifest
from deblur.restoration.maps import heat_map, reduced
from deblur.restoration.options import Options
from deblur.restoration.outputs import named
from deblur.restoration.restorer import DETAIL, Restorer, _write_comparison
from deblur.tools.doctor import leaks
from deblur.tools.make_pairs import write_photo
from tests.tiny import module, stir, tiny_pipeline

FACTS_OF = {"checkpoint": "checkpoint_sha256", "preset": "settings"}  # what stands for them in the manifest
NO_FACTS = {"output", "device", "classes", "provider", "compile", "batch_size", "memory", "overwrite"}
BY_SCENE = {"gopro", "realblur"}  # layouts whose names begin with a scene's folder


def test_the_manifest_has_every_option_that_changes_a_result(tmp_path):
    """A new option of sample.py is a fact, or is named here as one that changes no pixel but by rounding."""
    tiny_pipeline().save_pretrained(tmp_path)
    restorer = Restorer(Options("out", checkpoint=str(tmp_path), device="cpu", precision="fp32"), {"steps": 1})
    wanted = {FACTS_OF.get(field.name, field.name) for field in fields(Options)} - NO_FACTS
    assert restorer.facts.keys() == wanted
    photo, restored = tmp_path / "a.png", tmp_path / "out" / "a.png"
    restored.parent.mkdir()
    for file in (photo, restored):
        file.write_bytes(b"image")
    Manifest(restored.parent, restorer.facts).add(photo, [restored], {})
    assert Manifest(restored.parent, restorer.facts).has(photo, [restored])
    for name in restorer.facts:
        assert not Manifest(restored.parent, restorer.facts | {name: "another"}).has(photo, [restored]), name


@pytest.mark.parametrize("name", ["batch_size", "memory", "tile", "predictor_tile"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_size_must_be_above_zero(name, value):
    with pytest.raises(ValueError, match=f"--{name} must be .*, got {value}$"):
        Options("out", **{name: value})


@pytest.mark.parametrize("suffix", sorted(WRITABLE))
def test_a_format_keeps_each_of_its_suffixes(suffix):
    """--format jpg leaves a.jpeg its name, and --format tif a.tiff; of another format the image gets the suffix."""
    (kind,) = (kind for kind, suffixes in READ.items() if suffix in suffixes)
    for other in sorted(WRITABLE - set(READ["HEIF"]) - {suffix}):
        target = str(named(PurePath(f"a{suffix}"), other, False))
        assert (target == f"a{suffix}") == (other in READ[kind]), (suffix, other, target)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_pair_is_as_large_as_it_is_upright(tmp_path, orientation):
    size = (24, 16) if orientation < 5 else (16, 24)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(tmp_path / "blurry.jpg", exif=exif)
    Image.new("RGB", (24, 16)).save(tmp_path / "sharp.png")
    assert images.header_size(tmp_path / "blurry.jpg") == images.header_size(tmp_path / "sharp.png") == (24, 16)


@pytest.mark.parametrize("layout", sorted(LISTERS))
def test_a_scene_in_two_splits_is_a_leak_where_the_layout_has_scenes(tmp_path, layout):
    listing = Listing(layout, "blur", [Pair("scene/1", tmp_path, tmp_path)])
    assert bool(leaks({"train": listing, "test": listing}, [None, None])) == (layout in BY_SCENE)


@pytest.mark.parametrize("response", get_args(signature(SyntheticBlur).parameters["response"].annotation))
def test_light_goes_back_to_the_files_values(response):
    values = torch.linspace(0, 1, 30).view(3, 2, 5)
    to_light, from_light = RESPONSES[response]
    light = to_light(values)
    assert torch.allclose(from_light(light), values, atol=1e-5)
    if response == "gamma":
        assert torch.allclose(light, values**2.2)


@pytest.mark.parametrize("kind", get_args(ScaleKind))
@pytest.mark.parametrize("training", ["detached", "frozen"])
def test_no_gradient_of_the_refiner_reaches_a_predictor_that_is_not_joint(kind, training):
    torch.manual_seed(0)
    predictor = SlimPredictor((8, 16), (1, 1), size_head=True)
    model = module(
        predictor=predictor,
        residual={"scale": 0.1, "scale_kind": kind},
        predictor_training=training,
        predictor_loss={"weight": 0.0},
        condition="blurry+x_init",
    )
    stir(model.denoiser)  # what starts at zero lets no gradient through
    model.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    model.log = lambda *args, **options: None  # it does not run
    model.crop_generators = lambda crops: [torch.Generator().manual_seed(crop) for crop in range(crops)]
    batch = {name: torch.rand(2, 3, 16, 16) for name in ("blurry", "sharp")}
    model.training_step(batch, 0)["loss"].backward()
    gradients = [p.grad for p in predictor.parameters() if p.grad is not None]
    assert not any(gradient.any() for gradient in gradients)
    assert any(p.grad is not None and p.grad.any() for p in model.denoiser.parameters())


def test_crops_are_where_the_detail_is_and_depend_on_the_seed(tmp_path):
    photo = torch.full((3, 64, 512), 0.5)
    photo[..., 448:] = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    images.write(tmp_path / "a.png", photo)

    def drawn(seed, candidates):
        out = tmp_path / f"{seed} of {candidates}"
        write_photo("a", (tmp_path / "a.png", tmp_path), SyntheticBlur(), out, seed, 3, 32, candidates)
        return torch.stack([images.read(out / "sharp" / f"a_{at}.png") for at in range(3)])

    assert (drawn(0, 64).flatten(1).std(1) > 0.1).all()
    assert not torch.equal(drawn(0, 64), drawn(1, 64))


def test_the_value_named_as_the_brightest_is_drawn_in_the_brightest_colour():
    values = torch.zeros(3, 100, 100)
    values[2, 0, :60] = 1.5  # of the channels the mean is drawn
    values[2, 0, 0] = 12.0  # one pixel far above all others
    colours, white = heat_map(values)
    assert white == 0.5
    assert torch.equal(colours[:, 0, 1], colours[:, 0, 0]) and not torch.equal(colours[:, 0, 1], colours[:, 50, 50])


def test_large_images_are_reduced_by_their_mean():
    image = torch.rand(3, 60, 90)
    assert reduced(image, 5400) is image
    small = reduced(image, 600)
    assert small.shape == (3, 20, 30) and torch.allclose(small[:, 0, 0], image[:, :3, :3].mean((1, 2)))


def test_a_comparison_shows_the_whole_reduced_and_the_centre_at_full_size(tmp_path):
    height, width = 40, DETAIL + 200
    image = torch.zeros(3, height, width)
    image[0] = torch.arange(width) / width
    _write_comparison(tmp_path / "c.png", image, image, image)
    drawn = images.read(tmp_path / "c.png")
    rows = drawn[0].unfold(1, DETAIL, 1)
    for wanted in ((torch.arange(DETAIL) + 0.5) / DETAIL, image[0, 0, 100 : 100 + DETAIL]):
        assert ((rows - wanted).abs().amax(-1) < 0.01).any()
    heights = [round(panels.WIDTH * part / DETAIL) for part in (height * DETAIL // width, height)]
    assert drawn.shape[1] == panels.TITLE + sum(heights) + 2 * panels.CAPTION
