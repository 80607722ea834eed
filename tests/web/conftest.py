"""The page that the tests of this folder share."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from deblur.checkpoints import save_presets
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from deblur.tools.web import command as app
from tests.processes import free_port
from tests.tiny import tiny_pipeline

PRESET = SamplingSettings("ddim", steps=2, eta=1.0, blend=0.35)


@contextmanager
def serving(folder, checkpoint=None, **served):
    """A page that this process serves."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
            patch.setenv(name, "")  # put back what was there
        options = Options("", checkpoint, device="cpu", precision="fp32")
        page = app.start(app.Served(port=free_port(), max_steps=1000, **served), options, folder)
        yield page
        page.close()


@pytest.fixture(scope="package")
def page(tmp_path_factory):
    """A page with a tiny checkpoint; its `calls` get an entry for each call of the denoiser."""
    checkpoint = tmp_path_factory.mktemp("app") / "checkpoint"
    tiny_pipeline().save_pretrained(checkpoint)
    save_presets(checkpoint, {"balanced": PRESET, "perceptual": replace(PRESET, blend=0.8)})
    with serving(tmp_path_factory.mktemp("visitors"), str(checkpoint)) as page:
        page.calls = []
        page.actions.restorer.pipeline.denoiser.register_forward_pre_hook(lambda *given: page.calls.append(1))
        yield page
