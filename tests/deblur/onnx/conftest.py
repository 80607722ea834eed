"""Small checkpoints, and the ONNX folders that became of them."""

import logging

import pytest
import torch

from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from tests.tiny import tiny_pipeline

TILE = 96


def slim_pipeline():
    """A predictor with a size head, whose map the denoiser is told, and a denoiser that knows the scale."""
    torch.manual_seed(0)
    pipeline = tiny_pipeline(SlimPredictor((4, 8), (1, 1), size_head=True))
    pipeline.denoiser = SlimDenoiser((4, 8), (1, 1), embedding_channels=8).eval()
    for network in (pipeline.predictor, pipeline.denoiser):
        torch.nn.init.normal_(network.unet.head.weight, std=0.05)
    pipeline.register_to_config(scale_kind="learned", residual_scale=1.5, sigma_min=0.05, sigma_max=12.0)
    pipeline.register_to_config(presets={"balanced": {"steps": 2}})
    return pipeline


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Checkpoints, and what became of them: fixed tiles, any size, half precision."""
    pytest.importorskip("onnxscript")
    from deblur.tools.export_onnx import export_onnx

    folder, alone = tmp_path_factory.mktemp("deployed"), slim_pipeline()
    alone.denoiser = None
    alone.save_pretrained(folder / "alone")
    slim_pipeline().save_pretrained(folder / "slim")
    coloured = slim_pipeline()  # like pretrained/text
    coloured.predictor = SlimPredictor((4, 72), (1, 1), "naf", size_head=True).eval()  # large weights, too
    for name, weight in coloured.predictor.named_parameters():
        if name.endswith(("project.weight", "narrow.weight", "head.weight")):  # that start at zero
            torch.nn.init.normal_(weight, std=0.1)
        elif "norm" in name:  # that start at one and zero
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    coloured.register_to_config(residual_scale=[1.5, 0.0, 0.0])  # luma
    coloured.save_pretrained(folder / "coloured")
    (folder / "slim" / "README.md").write_text("the card")
    logging.disable(logging.INFO)  # torch traces every export to loggers that pytest listens to
    try:
        export_onnx(str(folder / "slim"), str(folder / "tiles"), tile=TILE)
        export_onnx(str(folder / "alone"), str(folder / "any"))
        export_onnx(str(folder / "coloured"), str(folder / "coloured_any"))
        export_onnx(str(folder / "alone"), str(folder / "half"), "fp16", tile=TILE)
    finally:
        logging.disable(logging.NOTSET)  # other tests look at what is logged
    return folder


def image(height, width):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(2))


@pytest.fixture(params=["cpu", "openvino"])
def provider(request):
    """Each engine on a CPU."""
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return request.param
