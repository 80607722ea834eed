"""The table of metrics: names, recipes, reasons and batches."""

import pytest
import torch

from evaluate import Evaluation
from evaluation import metrics as module
from evaluation.catalogue import METRICS, Column
from evaluation.metrics import make_metrics, psnr
from tests.evaluation.images import RESTORED, SHARP, tensor

HERE = ("psnr", "ssim", "lpips", "niqe")


def test_the_metrics_come_in_the_order_of_the_columns_with_recipes():
    made = make_metrics(reversed(METRICS))
    assert list(made) == [*METRICS]
    assert [name for name in made if not made[name].column.higher_is_better] == ["lpips", "dists", "niqe", "cer"]
    assert set(Evaluation("", "").metrics.split(",")) <= METRICS.keys()
    for name, metric in made.items():
        assert metric.column == METRICS[name]
        assert (metric.reason is None) != (metric.recipe is None), name
        if metric.reason is None:
            assert all(word in metric.recipe for word in ("RGB", "clipped to [0, 1]", "8 bits"))
            libraries = ("torch 2", "kornia 0", "lpips 0", "torchmetrics 1", "scipy 1", "OpenCV", "Tesseract")
            assert any(library in metric.recipe for library in libraries)
    recipes = [metric.recipe for metric in made.values() if metric.recipe]
    assert len(set(recipes)) == len(recipes)


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(ValueError, match="unknown metric quality: it is one of psnr, ssim, lpips, "):
        make_metrics(["quality"])
    with pytest.raises(ValueError, match=r"unknown metric ssimm: did you mean ssim\?"):
        make_metrics(["psnr", "ssimm"])


def test_a_large_batch_is_scored_in_parts_with_its_own_inputs(monkeypatch):
    """Also a metric that takes no ground truth and knows more about an image by its name."""
    known = {"dark": 1.0, "light": 2.0}

    def of_name(restored, names):
        return restored.mean((1, 2, 3)) + torch.tensor([known[name] for name in names])

    made = make_metrics(["psnr"])
    made["named"] = module.Metric(Column("named", 2, True), of_name, "recipe", inputs=("restored", "names"))
    restored = torch.cat([tensor(image) for image in RESTORED.values()])
    inputs = restored, tensor(SHARP).expand_as(restored), ["dark", "light", "dark"]
    whole = {name: metric(*inputs) for name, metric in made.items()}
    monkeypatch.setattr(module, "_PIXELS", 1)
    for name, metric in made.items():
        assert torch.equal(metric(*inputs), whole[name])
    assert torch.equal(whole["psnr"], psnr(*inputs[:2]))
    assert torch.equal(whole["named"], of_name(restored, inputs[2]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RESTORED)
def test_a_gpu_gives_the_numbers_of_the_cpu(name):
    restored, sharp = tensor(RESTORED[name]), tensor(SHARP)
    for metric in make_metrics(HERE).values():
        there = metric(restored.cuda(), sharp.cuda())
        assert there.is_cuda
        assert there.item() == pytest.approx(metric(restored, sharp).item(), rel=1e-3)
