"""ONNX folders on a GPU: what only a CUDA device and onnxruntime-gpu can show."""

import pytest
import torch

from deployment.export import psnr
from models.checkpoints import load_pipeline

onnxruntime = pytest.importorskip("onnxruntime")
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["tiles", "half"])
def test_a_provider_restores_as_the_cpu(place, provider, kind):
    if PROVIDERS[provider] not in onnxruntime.get_available_providers():
        pytest.skip(f"needs a CUDA device with onnxruntime's provider {provider}")
    blurry = torch.rand(1, 3, 120, 100, generator=torch.Generator().manual_seed(0))
    ours, theirs = (load_pipeline(str(place / kind), provider=one).predict(blurry).images for one in (provider, "cpu"))
    assert psnr(ours, theirs) > 50
    if provider == "tensorrt":
        engines = place / kind / "predictor" / "engines"
        before = {file.name: file.stat().st_mtime_ns for file in engines.glob("*.engine")}
        assert before and load_pipeline(str(place / kind), provider=provider).predict(blurry).images.shape == ours.shape
        assert {file.name: file.stat().st_mtime_ns for file in engines.glob("*.engine")} == before
