"""The table of metrics: names, recipes, reasons, batches; and stored values that guard each metric against drift.

    python -m tests.evaluation.test_metrics

writes expected_metrics.json anew. Do so only where a recipe is meant to change, and say it in the commit.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluate import Evaluation
from evaluation import metrics as module
from evaluation.catalogue import METRICS
from evaluation.metrics import MetricError, make_metrics, psnr
from tests.evaluation.images import RESTORED, SHARP, tensor

TABLE = Path(__file__).with_name("expected_metrics.json")
HERE = (
    "psnr",
    "ssim",
    "ssim_matlab",
    "lpips",
    "lpips_squeeze",
    "sharpness",
    "consistency",
)
NAME = "image"


def files(folder: Path) -> dict[str, Path]:
    """A kernel that is the same everywhere."""
    kernel = np.zeros((7, 7))
    kernel[3, 1:6] = (1, 2, 3, 4, 5)
    np.savez(folder / "kernels.npz", **{NAME: kernel})
    return {"kernels": folder / "kernels.npz"}


def scores(folder: Path, names: tuple[str, ...], restored: torch.Tensor) -> dict[str, float]:
    made = make_metrics(names, **files(folder))
    sharp = tensor(SHARP)
    blurry = (sharp + sharp.roll(1, 3)) / 2
    return {name: metric(restored, sharp, blurry, [NAME]).item() for name, metric in made.items()}


def set_features() -> tuple[torch.Tensor, torch.Tensor]:
    """(images, patches, features) made of the photograph's own pixels."""
    sharp = tensor(SHARP)[0].unfold(1, 4, 4).unfold(2, 4, 4)[:, :, :, 1, 2].permute(1, 2, 0)
    return sharp.square(), sharp


def set_scores() -> dict[str, float]:
    return {
        "fid": module.fid(*(f.flatten(0, 1) for f in set_features())),
        "kid": module.kid(*(f.flatten(0, 1)[:500] for f in set_features())),
    }


@pytest.mark.parametrize("name", RESTORED)
def test_values_do_not_drift(tmp_path, name):
    """Each of these values agrees with a second implementation in the tests of its metric."""
    expected = json.loads(TABLE.read_text())[name]
    assert scores(tmp_path, HERE, tensor(RESTORED[name])) == pytest.approx({k: expected[k] for k in HERE}, rel=1e-4)


def test_distances_of_sets_do_not_drift():
    assert set_scores() == pytest.approx(json.loads(TABLE.read_text())["sets"], rel=1e-4)


def test_the_metrics_come_in_the_order_of_the_columns_with_recipes(tmp_path):
    made = make_metrics(reversed(HERE), **files(tmp_path))
    assert list(made) == [name for name in METRICS if name in HERE]
    assert set(Evaluation("", "").metrics.split(",")) <= METRICS.keys()
    for name, metric in made.items():
        assert (metric.name, metric.title, metric.is_set) == (name, METRICS[name], False)
        assert metric.reason is None
        assert all(word in metric.recipe for word in ("RGB", "clipped to [0, 1]", "8 bits"))
        assert any(library in metric.recipe for library in ("torch 2", "kornia", "lpips 0"))
    assert [name for name in made if not made[name].higher_is_better] == ["lpips", "lpips_squeeze"]
    assert [name for name in made if not made[name].reference] == ["consistency"]
    assert len({metric.recipe for metric in made.values()}) == len(made)


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(ValueError, match="unknown metric quality: it is one of psnr, ssim, ssim_matlab, "):
        make_metrics(["quality"])
    with pytest.raises(ValueError, match=r"unknown metric ssimm: did you mean ssim\?"):
        make_metrics(["psnr", "ssimm"])


def test_metrics_without_weights_are_there_with_their_reason(no_network):
    made = make_metrics(name for name in METRICS if "aligned" not in name)
    missing = [name for name, metric in made.items() if metric.reason is not None]
    assert missing == ["lpips_vgg", "consistency", "fid", "kid"]
    image = tensor(SHARP)
    for name in missing:
        assert made[name].recipe is None
        with pytest.raises(MetricError, match="missing"):
            made[name].features(image) if made[name].is_set else made[name](image, image, image, [NAME])
        if made[name].is_set:
            with pytest.raises(MetricError, match="missing"):
                made[name].distance(*set_features())
    assert made["fid"].features == made["kid"].features != make_metrics(["fid"])["fid"].features


def test_sets_are_distances_of_all_patches_of_all_images(no_network):
    made = make_metrics(["fid", "kid"])
    for name, function in (("fid", module.fid), ("kid", module.kid)):
        known = module.SetMetric(name, name, made[name].features, function, "recipe")
        restored, sharp = (features[:, :10] for features in set_features())
        assert known.distance(restored, sharp) == function(restored.flatten(0, 1), sharp.flatten(0, 1))


def test_a_large_batch_is_scored_in_parts_with_its_own_columns(tmp_path, monkeypatch):
    kernels = {"right": np.eye(1, 9).reshape(3, 3)[:, ::-1], "left": np.eye(1, 9).reshape(3, 3)}
    np.savez(tmp_path / "kernels.npz", **kernels)
    made = make_metrics(["psnr", "consistency"], kernels=tmp_path / "kernels.npz")
    restored = torch.cat([tensor(image) for image in RESTORED.values()])
    columns = restored, tensor(SHARP).expand_as(restored), restored.flip(0), ["right", "left", "right"]
    whole = {name: metric(*columns) for name, metric in made.items()}
    monkeypatch.setattr(module, "_PIXELS", 1)
    for name, metric in made.items():
        assert torch.equal(metric(*columns), whole[name])
    assert torch.equal(whole["psnr"], psnr(*columns[:2]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RESTORED)
def test_a_gpu_gives_the_numbers_of_the_cpu(tmp_path, name):
    made = make_metrics(HERE, **files(tmp_path))
    restored, sharp = tensor(RESTORED[name]), tensor(SHARP)
    for metric in made.values():
        here = metric(restored, sharp, sharp, [NAME])
        there = metric(*(image.cuda() for image in (restored, sharp, sharp)), [NAME])
        assert there.is_cuda
        assert there.item() == pytest.approx(here.item(), rel=1e-3)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        table = {name: scores(Path(folder), HERE, tensor(image)) for name, image in RESTORED.items()}
    TABLE.write_text(json.dumps(table | {"sets": set_scores()}, indent=2) + "\n")
