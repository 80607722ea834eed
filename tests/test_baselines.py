import numpy as np
import pytest
import torch

from benchmarks.baselines import main
from data import images
from tools.make_pairs import main as make_pairs


@pytest.fixture
def dataset(tmp_path):
    """Two images of soft-edged patches under strong uniform blur, and a set without kernels."""
    (tmp_path / "photos").mkdir()
    for number in range(2):
        coarse = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(number))
        images.write(tmp_path / f"photos/{number}.png", torch.nn.functional.interpolate(coarse, (110, 120))[0])
    (tmp_path / "photos" / "test.txt").write_text("0.png\n1.png\n")
    shake = "{class_path: data.camera.CameraShake, init_args: {length: [8, 8]}}"
    blur = f"{{class_path: data.blur.SyntheticBlur, init_args: {{camera: [{shake}]}}}}"
    (tmp_path / "config.yaml").write_text(f"data: {{blur: {blur}}}")
    make_pairs([f"{tmp_path}/photos", "--config", f"{tmp_path}/config.yaml", "--output", f"{tmp_path}/set"])
    return tmp_path / "set"


def psnr(one, other):
    return -10 * torch.log10(((images.read(one) - images.read(other)) ** 2).mean()).item()


def test_a_known_kernel_restores_what_it_blurred(dataset, capsys):
    main([str(dataset), "--output", str(dataset.parent / "out"), "--balance", "0.001", "--iterations", "20"])
    for name in ("0.png", "1.png"):
        sharp = dataset / "sharp" / name
        scores = {m: psnr(dataset.parent / "out" / m / name, sharp) for m in ("richardson_lucy", "wiener")}
        blurry = psnr(dataset / "blur" / name, sharp)
        assert min(scores.values()) > blurry + 2, (scores, blurry)
        assert psnr(dataset.parent / "out" / "unsharp_mask" / name, sharp) > blurry - 0.5


def test_without_kernels_only_what_needs_none(dataset):
    (dataset / "kernels.npz").unlink()
    main([str(dataset), "--output", str(dataset.parent / "out")])
    assert [folder.name for folder in (dataset.parent / "out").iterdir()] == ["unsharp_mask"]
    np.savez(dataset / "kernels.npz", other=np.ones((1, 1)))
    with pytest.raises(ValueError, match="no kernel for 0"):
        main([str(dataset), "--output", str(dataset.parent / "again")])
