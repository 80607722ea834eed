"""The page that the tests of this folder share, a visit to it, and a run."""

import os
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest
from PIL import Image, ImageCms

import app
from deblur.checkpoints import save_presets
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from tests.processes import free_port
from tests.tiny import tiny_pipeline

PRESET = SamplingSettings("ddim", steps=2, eta=1.0, blend=0.35)
REQUEST = SimpleNamespace(session_hash="somebody")


@contextmanager
def serving(folder, checkpoint=None, **served):
    """A page that this process serves."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", "no_proxy"):
            patch.setenv(name, os.environ.get(name, ""))  # put back what was there
        options = Options("", checkpoint, device="cpu", precision="fp32")
        page = app.start(app.Served(port=free_port(), max_steps=1000, **served), options, folder)
        yield page
        page.close()


@pytest.fixture(scope="package")
def page(tmp_path_factory):
    """A page with a tiny checkpoint, and its parts; its `calls` get an entry for each call of the denoiser."""
    checkpoint = tmp_path_factory.mktemp("app") / "checkpoint"
    tiny_pipeline().save_pretrained(checkpoint)
    save_presets(checkpoint, {"balanced": PRESET, "perceptual": replace(PRESET, blend=0.8)})
    with serving(tmp_path_factory.mktemp("visitors"), str(checkpoint)) as page:
        page.calls, page.checkpoint, page.ui = [], str(checkpoint), page.actions.ui
        page.actions.restorer.pipeline.denoiser.register_forward_pre_hook(lambda *given: page.calls.append(1))
        yield page


def opened(page, *paths):
    """Open files as if they were uploaded, and await their times; returns the new values of the page."""
    values = page.actions.open([{"path": str(path), "orig_name": path.name} for path in paths], REQUEST)
    page.actions.choose(REQUEST)
    return values


@pytest.fixture
def visit(page, tmp_path):
    """A visit that opened a JPEG of a camera that was held sideways."""
    exif, profile = Image.Exif(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif[0x010F], exif[0x0112] = "Camera", 6
    turned = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8))
    turned.save(tmp_path / "a photo.jpg", exif=exif, icc_profile=profile)
    opened(page, tmp_path / "a photo.jpg")
    yield page.actions.visits.of("somebody")
    page.actions.leave(REQUEST)


def run(page, preset=None, sampler=None, steps=None, count=None, strength=None, seed=3, scale="auto", mask=None):
    """Restore the open photographs; returns the newest result of the one that is shown."""
    fields = preset, sampler, steps, count, strength, seed, scale, mask
    list(page.actions.restore(page.checkpoint, *fields, REQUEST))
    return page.actions.visits.of("somebody").shown.result


def clicked(index):
    """What gradio's Gallery sends when a photograph is clicked."""
    return gr.SelectData(None, {"index": index, "value": None})


def layer(path):
    """What gradio's ImageEditor sends of a layer that is a file."""
    layers = [{"path": str(path), "meta": {"_type": "gradio.FileData"}}]
    return {"background": None, "layers": layers, "composite": None}


def brushed(path, height, width):
    """A layer whose right half is painted, with a soft edge and any colour; returns its alpha from 0 to 255."""
    alpha = (np.arange(width) * 255 - 255 * width // 2 + 77).clip(0, 255) * np.ones((height, 1))
    colours = np.random.default_rng(2).integers(0, 256, (height, width, 3))
    Image.fromarray(np.dstack([colours, alpha]).astype(np.uint8)).save(path)
    return alpha.astype(np.uint8)
