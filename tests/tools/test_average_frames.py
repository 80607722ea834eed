import numpy as np
import pytest
import torch

from data import images
from data.layouts import DatasetError, find_pairs
from tests.conftest import ASSETS
from tools.average_frames import average, main, read_frames


def moving_bar(folder, count=9):
    """Frames of a bar two pixels wide that moves two pixels a frame."""
    frames = []
    for number in range(count):
        frame = torch.zeros(3, 16, 32)
        frame[:, :, 4 + 2 * number : 6 + 2 * number] = 1
        images.write(folder / f"{number:03}.png", frame)
        frames.append(frame)
    return frames


def test_averages_are_of_light_or_of_values():
    black, white = torch.zeros(3, 2, 2), torch.ones(3, 2, 2)
    for response, grey in (("srgb", 0.735357), ("gamma", 0.5 ** (1 / 2.2)), ("none", 0.5)):
        torch.testing.assert_close(average([black, white], response), torch.full((3, 2, 2), grey))
        torch.testing.assert_close(average([white * 0.3] * 5, response), white * 0.3)


def test_a_folder_of_frames_becomes_a_gopro_scene(tmp_path, capsys):
    frames = moving_bar(tmp_path / "bar")
    main(str(tmp_path / "bar"), str(tmp_path / "set"), frames=3, response="none", split="test")
    assert "3 pairs of 3 frames" in capsys.readouterr().out
    pairs = find_pairs(tmp_path / "set", "test")
    assert [pair.name for pair in pairs] == ["bar/000001", "bar/000002", "bar/000003"]
    for number, pair in enumerate(pairs):
        blurry, sharp = (images.to_float(side) for side in pair.read())
        assert torch.equal(sharp, frames[3 * number + 1])
        expected = torch.stack(frames[3 * number : 3 * number + 3]).mean(0)
        torch.testing.assert_close(blurry, expected, rtol=0, atol=0.5 / 255 + 1e-6)
    main(
        str(tmp_path / "bar"), str(tmp_path / "set"), frames=5, stride=1, response="gamma", scene="more", split="train"
    )
    assert len(find_pairs(tmp_path / "set", "train", "blur_gamma")) == 5


def test_a_video(tmp_path):
    av = pytest.importorskip("av", reason="needs requirements-extra.txt")
    with av.open(str(tmp_path / "clip.mp4"), "w") as video:
        stream = video.add_stream("mpeg4", rate=120)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 48, "yuv420p", 4_000_000
        for number in range(11):
            image = np.full((48, 64, 3), 20 * number + 20, dtype=np.uint8)
            video.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        video.mux(stream.encode())
    frames = list(read_frames(str(tmp_path / "clip.mp4")))
    assert len(frames) == 11 and frames[0].shape == (3, 48, 64)
    main(str(tmp_path / "clip.mp4"), str(tmp_path / "set"), frames=11, response="none")
    (pair,) = find_pairs(tmp_path / "set", "train")
    blurry, sharp = (images.to_float(side).mean() for side in pair.read())
    assert abs(blurry - 120 / 255) < 0.02 and abs(sharp - 120 / 255) < 0.02
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(DatasetError, match=r"broken\.mp4 cannot be decoded"):
        list(read_frames(str(tmp_path / "broken.mp4")))


def test_what_cannot_be_averaged(tmp_path):
    moving_bar(tmp_path / "bar", 3)
    for options, words in (
        ({"frames": 4}, "must be odd"),
        ({"frames": 5}, "fewer than 5 frames"),
        ({"stride": 0}, "stride"),
    ):
        with pytest.raises(DatasetError, match=words):
            main(str(tmp_path / "bar"), str(tmp_path / "set"), **options)
    with pytest.raises(DatasetError, match="neither a video"):
        main(str(tmp_path / "gone.txt"), str(tmp_path / "set"))


def test_real_frames(tmp_path):
    main(str(ASSETS / "frames"), str(tmp_path), frames=5)
    (pair,) = find_pairs(tmp_path, "train")
    blurry, sharp = pair.read()
    assert sharp.shape == (3, 120, 160) and not torch.equal(blurry, sharp)
