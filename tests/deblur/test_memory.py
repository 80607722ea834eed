"""How much memory there is, and how much a network takes."""


import numpy as np
import psutil
import pytest
import torch

from deblur.memory import bytes_per_pixel, free_memory, give_back, used_memory
from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import Denoiser, UNetPredictor

CPU = torch.device("cpu")
NETWORKS = [UNetPredictor(8, (1, 2), 1), UNetPredictor(16, (1, 2, 3), 3, unshuffle=2, norm="pixel"), Denoiser(8)]
NETWORKS += [U2NetPredictor("lite"), SlimPredictor(), SlimDenoiser((16, 24), (1, 2), "naf")]
NETWORKS += [U2NetPredictor("small", "pixel", unshuffle=2, side_outputs=False, upsample="nearest", size_head=True)]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: type(network).__name__)
def test_what_a_pixel_takes_is_no_less_than_what_a_network_holds(network):
    """The largest sum of tensors alive at once, as torch's profiler counts them."""
    image, inputs = torch.rand(1, 3, 256, 256), 1
    given = [image]
    if hasattr(network, "prediction_type"):
        given, inputs = [image, image, torch.tensor([0.5]), image, image[:, :1] + 0.1], 3
    profiler = torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU])
    with torch.no_grad(), profiler as seen:
        network.eval()(*given)
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    assert 0.3 * 256**2 * bytes_per_pixel(network) < most + inputs * image.nbytes < 256**2 * bytes_per_pixel(network)


def test_half_the_precision_takes_half_and_a_network_may_say_what_it_takes():
    network = SlimPredictor()
    full = bytes_per_pixel(network)
    assert bytes_per_pixel(network.to(torch.bfloat16)) == full / 2
    network.bytes_per_pixel = 7.5
    assert bytes_per_pixel(network) == 7.5
    assert bytes_per_pixel(torch.nn.Conv2d(3, 3, 1)) == 10_000
    assert bytes_per_pixel(IdentityPredictor()) == 12


LIMITS = "memory.max", "memory/memory.limit_in_bytes"


def test_used_memory_is_what_this_process_holds():
    before = used_memory(CPU)
    held = np.ones(200_000_000, np.uint8)
    assert 180_000_000 < used_memory(CPU) - before < 300_000_000
    del held


@pytest.mark.parametrize("name", LIMITS)
def test_free_memory_is_what_the_system_and_a_container_leave(monkeypatch, tmp_path, name):
    """Control groups of both versions, as files."""
    monkeypatch.setattr("deblur.memory.CONTROL_GROUPS", tmp_path)
    limit = tmp_path / name
    limit.parent.mkdir(exist_ok=True)
    for unlimited in (None, "max\n", f"{1 << 62}\n"):
        if unlimited:
            limit.write_text(unlimited)
        assert abs(free_memory(CPU) - psutil.virtual_memory().available) < 2e9  # other programs run
    limit.write_text(f"{used_memory(CPU) + 100_000_000}\n")
    assert 0 < free_memory(CPU) < 200_000_000
    limit.write_text(f"{used_memory(CPU) // 2}\n")
    assert free_memory(CPU) == 0


def test_freed_memory_goes_back_to_the_system():
    """Small blocks below one that is still held, which the allocator would keep."""
    blocks = [bytearray(100_000) for _ in range(3000)]
    last = bytearray(100_000)
    blocks.clear()
    before = used_memory(CPU)
    give_back()
    assert used_memory(CPU) < before - 100_000_000
    assert last
