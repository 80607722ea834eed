"""The Python of docs/deployment.md predicts without PyTorch, and as the pipeline does."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from deblur.data.files import images
from deblur.pipeline import load_pipeline
from tests.conftest import ROOT, fresh

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("onnx")]


@pytest.mark.parametrize("checkpoint", ["any", "coloured_any"])
def test_the_prediction_of_the_page_is_the_pipeline_s(place, tmp_path, checkpoint):
    page = (ROOT / "docs" / "deployment.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "deployed").mkdir()
    (tmp_path / "deployed" / "lite").symlink_to(place / checkpoint)
    images.write(tmp_path / "photo.jpg", torch.rand(3, 37, 54))
    done = fresh(f"{code}\nimport sys\nprint({{'torch', 'deblur'}} & set(sys.modules))", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    pipeline = load_pipeline(str(place / checkpoint), provider="cpu")
    theirs = pipeline.predict(images.read(tmp_path / "photo.jpg")[None]).images[0]
    ours = np.int64(Image.open(tmp_path / "restored.png")).transpose(2, 0, 1)
    assert np.abs(ours - (255 * theirs).round().numpy()).max() <= 1
