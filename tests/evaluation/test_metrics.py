"""The table of metrics: names, recipes, reasons, batches; and stored values that guard each metric against drift.

    python -m tests.evaluation.test_metrics

writes expected_metrics.json anew. Do so only where a recipe is meant to change, and say it in the commit.
"""

import json
from pathlib import Path

import pytest
import torch

from evaluate import Evaluation
from evaluation import metrics as module
from evaluation.catalogue import METRICS, Column
from evaluation.metrics import MetricError, make_metrics, psnr
from tests.evaluation.images import RESTORED, SHARP, tensor

TABLE = Path(__file__).with_name("expected_metrics.json")
HERE = ("psnr", "ssim", "lpips", "niqe")


def scores(names: tuple[str, ...], restored: torch.Tensor) -> dict[str, float]:
    return {name: metric(restored, tensor(SHARP)).item() for name, metric in make_metrics(names).items()}


@pytest.mark.parametrize("name", RESTORED)
def test_values_do_not_drift(name):
    """Each of these values agrees with a second implementation in the tests of its metric."""
    expected = json.loads(TABLE.read_text())[name]
    assert scores(HERE, tensor(RESTORED[name])) == pytest.approx({k: expected[k] for k in HERE}, rel=1e-4)


def test_the_metrics_come_in_the_order_of_the_columns_with_recipes():
    made = make_metrics(reversed(METRICS))
    assert list(made) == [*METRICS]
    assert [name for name in made if not made[name].column.higher_is_better] == ["lpips", "dists", "niqe", "cer", "wer"]
    assert set(Evaluation("", "").metrics.split(",")) <= METRICS.keys()
    for name, metric in made.items():
        assert metric.column == METRICS[name]
        assert (metric.reason is None) != (metric.recipe is None), name
        if metric.reason is None:
            assert all(word in metric.recipe for word in ("RGB", "clipped to [0, 1]", "8 bits"))
            libraries = ("torch 2", "lpips 0", "torchmetrics 1", "scipy 1", "OpenCV", "Tesseract")
            assert any(library in metric.recipe for library in libraries)
    recipes = [metric.recipe for metric in made.values() if metric.recipe]
    assert len(set(recipes)) == len(recipes)


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(ValueError, match="unknown metric quality: it is one of psnr, ssim, lpips, "):
        make_metrics(["quality"])
    with pytest.raises(ValueError, match=r"unknown metric ssimm: did you mean ssim\?"):
        make_metrics(["psnr", "ssimm"])


def test_a_missing_metric_has_its_reason_and_no_recipe():
    reason = "Quality is missing: it needs a text."
    missing = module.Metric(Column("quality", 2, True), torch.ones_like, None, reason)
    with pytest.raises(MetricError, match=reason):
        missing(tensor(SHARP), tensor(SHARP))


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


if __name__ == "__main__":
    table = {name: scores(HERE, tensor(image)) for name, image in RESTORED.items()}
    TABLE.write_text(json.dumps(table, indent=2) + "\n")
