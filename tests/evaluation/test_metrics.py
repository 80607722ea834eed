"""The table of metrics; PSNR and SSIM against scikit-image, NIQE and RealBlur's scores against other programs."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
from skimage import data, io
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from skimage.transform import ProjectiveTransform, warp

from deblur.evaluation.metrics import METRICS, make_metrics
from deblur.evaluation.perceptual import Niqe
from deblur.evaluation.pixels import Aligned, MetricError, psnr, ssim
from evaluate import Evaluation
from tests.conftest import ASSETS
from tests.evaluation.document import RESTORED, SHARP, tensor

FRAMES = {file.stem: file for file in sorted((ASSETS / "pairs" / "blur").iterdir())}
PAIRS = {name: (io.imread(file), io.imread(ASSETS / "pairs" / "sharp" / file.name)) for name, file in FRAMES.items()}
PAIRS |= {name: (image, SHARP) for name, image in RESTORED.items()}
PAPERS = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
HERE = ("psnr", "ssim", "lpips", "niqe")


def test_the_metrics_come_in_the_order_of_the_columns_with_recipes():
    made = make_metrics(reversed(METRICS))
    assert list(made) == [*METRICS]
    assert [name for name in made if not made[name].column.higher_is_better] == ["lpips", "dists", "niqe", "cer"]
    assert Evaluation("", "").metric_names <= METRICS.keys()
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RESTORED)
def test_a_gpu_gives_the_numbers_of_the_cpu(name):
    restored, sharp = tensor(RESTORED[name]), tensor(SHARP)
    for metric in make_metrics(HERE).values():
        there = metric(restored.cuda(), sharp.cuda())
        assert there.is_cuda
        assert there.item() == pytest.approx(metric(restored, sharp).item(), rel=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_psnr_and_ssim_equal_scikit_image(name):
    blurry, sharp = PAIRS[name]
    pair = tensor(blurry), tensor(sharp)
    assert psnr(*pair).item() == pytest.approx(peak_signal_noise_ratio(sharp, blurry, data_range=255), abs=1e-4)
    options = {"channel_axis": 2, "data_range": 255}
    assert ssim(*pair).item() == pytest.approx(structural_similarity(sharp, blurry, **options, **PAPERS), abs=1e-5)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_a_batch_scores_each_image_alone(metric):
    restored, sharp = torch.cat([tensor(image) for image in RESTORED.values()]), tensor(SHARP)
    together = metric(restored, sharp.expand_as(restored))
    alone = [metric(image[None], sharp).item() for image in restored]
    assert together.tolist() == pytest.approx(alone, abs=1e-5)
    assert len(set(together.tolist())) == 3


def test_images_are_clipped_and_rounded_to_8_bits():
    restored, sharp = tensor(RESTORED["few levels"]), tensor(SHARP)
    assert psnr(restored + 0.4 / 255, sharp) == psnr(restored, sharp)
    assert psnr(torch.where(sharp == 1, 1.7, sharp), sharp).isinf()
    assert ssim(sharp + 0.4 / 255, sharp).item() == pytest.approx(1, abs=1e-6)


def test_what_cannot_be_scored_says_why():
    tiny = torch.rand(1, 3, 8, 8)
    assert psnr(tiny, tiny).isinf()
    with pytest.raises(MetricError, match="SSIM needs 11 pixels a side and the image is 8x8"):
        ssim(tiny, tiny)
    with pytest.raises(MetricError, match="not finite"):
        psnr(tiny * float("nan"), tiny)
    with pytest.raises(MetricError, match=r"\(1, 3, 8, 8\).*\(1, 3, 8, 9\)"):
        psnr(tiny, torch.rand(1, 3, 8, 9))


MOVED = np.array([[1.01, 0.01, 2.3], [-0.012, 0.995, -1.6], [1e-5, -2e-5, 1]])
CENTRE = data.astronaut()[100:300, 100:300]


def moved() -> np.ndarray:
    """What stands at MOVED @ p in CENTRE stands at p here; what comes in at the border is there in the photograph."""
    corner = np.array([[1, 0, 100], [0, 1, 100], [0, 0, 1]])
    whole = ProjectiveTransform(corner @ MOVED @ np.linalg.inv(corner))
    shifted = warp(data.astronaut(), whole, order=3, preserve_range=True)[100:300, 100:300]
    return np.clip(shifted, 0, 255).round().astype(np.uint8)


needs_opencv = pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed")


@needs_opencv
def test_a_moved_and_darker_copy_scores_well_only_after_alignment():
    copy, sharp = tensor(moved()) * 0.9, tensor(CENTRE)
    assert Aligned("psnr")(copy, sharp) > psnr(copy, sharp) + 10
    assert Aligned("ssim")(copy, sharp) > 0.95


def test_without_opencv_the_scores_say_what_is_missing(monkeypatch):
    monkeypatch.setattr("deblur.evaluation.pixels.cv2", None)
    made = make_metrics(["psnr_aligned"])["psnr_aligned"]
    assert made.recipe is None
    assert "pip install opencv-python-headless" in made.reason
    with pytest.raises(MetricError, match="Aligned PSNR is missing"):
        made(tensor(CENTRE), tensor(CENTRE))


# By the steps of evaluation_RealBlur_ecc.py, one after the other, with OpenCV and scikit-image: PSNR and SSIM.
AUTHORS = {"few levels": (28.5967, 0.81609), "dark and shifted": (35.1629, 0.95353)}
AUTHORS["every second row"] = (32.1232, 0.93722)


@needs_opencv
@pytest.mark.parametrize("name", RESTORED)
def test_the_scores_equal_those_of_the_authors_steps(name):
    psnr, ssim = (Aligned(score)(tensor(RESTORED[name]), tensor(SHARP)).item() for score in ("psnr", "ssim"))
    assert psnr == pytest.approx(AUTHORS[name][0], abs=1e-3)
    assert ssim == pytest.approx(AUTHORS[name][1], abs=1e-4)


@needs_opencv
def test_what_cannot_be_aligned_says_so():
    sharp, aligned, small = tensor(CENTRE), Aligned("psnr"), tensor(CENTRE)[..., :10]
    with pytest.raises(MetricError, match="needs 11 pixels a side"):
        aligned(small, small)
    for image, words in ((0 * sharp, "black"), (torch.full_like(sharp, 0.5), "aligned"), (1 - sharp, "aligned")):
        with pytest.raises(MetricError, match=words):
            aligned(image, sharp)


# By BasicSR 1.4.2, which reproduces the authors' own program to 1e-5, from grey images. In saturated parts its single
# precision decides on which side of zero a value lies, so the third decimal differs.
ELSEWHERE = {"blur/gopro_test_01": 8.92696, "sharp/gopro_test_01": 5.14671}
ELSEWHERE |= {"blur/reds_000_002": 5.95982, "sharp/reds_000_002": 2.65311}


def test_niqe_equals_another_implementation(no_network):
    niqe = Niqe()
    found = {name: niqe(tensor(io.imread(ASSETS / "pairs" / f"{name}.png"))).item() for name in ELSEWHERE}
    assert found == pytest.approx(ELSEWHERE, abs=0.005)
    assert niqe(tensor(data.chelsea())).item() == pytest.approx(2.57208, abs=1e-4)


def test_niqe_needs_no_ground_truth():
    metric, photograph = make_metrics(["niqe"])["niqe"], tensor(data.astronaut())
    several = torch.cat([photograph, photograph.flip(1)])
    assert metric(several, torch.zeros_like(several))[0] == metric(photograph, photograph)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("psnr,lpips", {"psnr", "lpips"}),
        ("niqe", {"niqe", "psnr", "ssim"}),  # the curve has two axes
        ("psnr", {"psnr", "ssim"}),
    ],
)
def test_what_is_asked_for_is_scored_and_what_the_curve_needs(asked, names):
    assert Evaluation("", "", metrics=asked).metric_names == names


@pytest.mark.parametrize(("told", "higher"), [(None, True), (False, True), (True, False)])
def test_a_metric_of_one_s_own_says_by_itself_that_lower_is_better(tmp_path, monkeypatch, told, higher):
    line = "" if told is None else f"own.lower_is_better = {told}\n"
    (tmp_path / "mine.py").write_text(f"def own(restored, sharp):\n    return restored.mean((1, 2, 3))\n\n\n{line}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    metric = make_metrics(["mine.own"])["mine.own"]
    assert metric.column.higher_is_better == higher


def test_another_code_of_one_s_own_metric_is_another_recipe(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    recipes = []
    for code in ("restored.mean((1, 2, 3))", "restored.amax((1, 2, 3))", "restored.mean((1, 2, 3))"):
        (tmp_path / "mine.py").write_text(f"def own(restored, sharp):\n    return {code}\n")
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        recipes.append(make_metrics(["mine.own"])["mine.own"].recipe)
    assert recipes[0] == recipes[2] != recipes[1]


def test_what_niqe_cannot_score_says_why():
    niqe = Niqe()
    with pytest.raises(MetricError, match="NIQE needs two blocks of 96x96 pixels and the image is 191x190"):
        niqe(torch.rand(1, 3, 190, 191))
    assert niqe(torch.rand(1, 3, 96, 192)) > 0
    with pytest.raises(MetricError, match="not flat"):
        niqe(torch.full((1, 3, 192, 192), 0.5))
    with pytest.raises(MetricError, match="not finite"):
        niqe(torch.full((1, 3, 192, 192), float("nan")))
