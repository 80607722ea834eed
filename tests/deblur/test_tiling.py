"""Tiles against the whole image: the receptive field of a network, exactness, memory."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor, SlimUNet
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import Denoiser, UNet, UNetPredictor
from deblur.pipeline import Limits
from deblur.settings import SamplingSettings
from deblur.tiling import (
    Tiled,
    TooLittleMemory,
    bytes_per_pixel,
    fixed_spans,
    free_memory,
    give_back,
    used_memory,
)
from tests.tiny import stir, tiny_pipeline


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def seeing(receptive_field, stride=1, takes=10_000):
    """What `Tiled` asks of a network, for a function that is none."""
    return SimpleNamespace(receptive_field=receptive_field, stride=stride, bytes_per_pixel=takes)


def seen(network, make):
    """How many pixels above and below a border the other side's outputs see."""
    border = (network.receptive_field // network.stride + 2) * network.stride
    x = make(1, 1, 2 * border, 16, dtype=torch.float64, requires_grad=True)
    (above,) = torch.autograd.grad(network(x)[:, :, border:].sum(), x)
    (below,) = torch.autograd.grad(network(x)[:, :, :border].sum(), x)
    rows = [(gradient[0, 0] != 0).any(dim=1).nonzero() for gradient in (above, below)]
    return border - rows[0].min().item(), rows[1].max().item() + 1 - border


@pytest.mark.parametrize(
    ("multipliers", "blocks", "unshuffle"),
    [((1, 2), 1, 1), ((1, 2, 3), 1, 1), ((1, 1, 1, 1), 1, 1), ((1, 1), 3, 1), ((1, 2), 1, 2), ((1,), 1, 4)],
)
def test_the_receptive_field_is_what_a_changed_pixel_reaches(multipliers, blocks, unshuffle):
    # Weights of one sign and no activation near zero: nothing cancels, so what is seen is all that can be.
    unet = UNet(1, 1, 2, multipliers, blocks, unshuffle=unshuffle).double()
    for parameter in unet.parameters():
        torch.nn.init.uniform_(parameter, 0.01, 0.05)
    above, below = seen(unet, torch.ones)
    assert max(above, below) <= unet.receptive_field < min(above, below) + unet.stride


@pytest.mark.parametrize("block", ["plain", "naf"])
@pytest.mark.parametrize(("widths", "blocks", "unshuffle"), [((2, 2, 2), (1, 1, 2), 2), ((2,), (2,), 4)])
def test_the_slim_receptive_field_is_enough(block, widths, blocks, unshuffle):
    network = stir(SlimUNet(1, 1, widths, blocks, block, unshuffle)).double()
    above, below = seen(network, torch.rand)
    assert max(above, below) <= network.receptive_field < min(above, below) + 2 * network.stride


@pytest.mark.parametrize(("sampler", "size"), [("ddim", (301, 277)), ("ddpm", (129, 400)), ("dpmsolver++", (129, 260))])
def test_tiled_equals_whole(sampler, size):
    pipeline, blurry = tiny_pipeline(), torch.rand(1, 3, *size)
    settings = SamplingSettings(sampler, steps=3)
    whole = pipeline(blurry, settings, output_type="pt", limits=Limits(1024, 1024))
    tiled = pipeline(blurry, settings, output_type="pt", limits=Limits(128, 128))
    assert whole.images.std() > 0.1
    assert (whole.predictions - tiled.predictions).abs().max() < 1e-4
    assert (whole.images - tiled.images).abs().max() < 0.1 / 255


def test_a_smaller_halo_would_show():
    denoiser = stir(Denoiser(8, (1, 2), 2))
    r_t, y = torch.randn(2, 1, 3, 256, 256)
    level = torch.tensor([0.5])

    def f(r, b, level):
        return denoiser(r, b, level, b)

    with torch.no_grad():
        whole, exact = f(r_t, y, level), Tiled(f, denoiser, 64)(r_t, y, level)
        cut = Tiled(f, seeing(4, denoiser.stride), 64)(r_t, y, level)
    assert (exact - whole).abs().max() < 1e-5 < 1e-3 < (cut - whole).abs().max()


def test_u2net_in_blended_tiles_shows_no_seam():
    torch.manual_seed(0)
    predictor = U2NetPredictor("lite").eval()
    for k in range(1, 7):
        torch.nn.init.normal_(predictor.get_submodule(f"side{k}").weight, std=0.12)
    pipeline = tiny_pipeline(predictor)
    rows = torch.linspace(0, 6, 330)[:, None] + torch.linspace(0, 7, 390)
    blurry = torch.stack([rows.sin(), rows.cos(), (2 * rows).sin()])[None] * 0.4 + 0.5
    whole, tiled = (pipeline.predict(blurry, limits=Limits(predictor_tile=tile)).images for tile in (1024, 128))
    error = (whole - tiled).abs()

    assert (whole - blurry).square().mean().sqrt() > 0.01  # the predictor does something
    assert error.square().mean() < 1e-5  # 50 dB
    for border in (128, 256, 384):  # no jump where tiles meet: steps of the error there are as small as elsewhere
        jump = (whole - tiled).diff(dim=3)[..., border - 1].abs().mean()
        assert jump < 3 * (whole - tiled).diff(dim=3).abs().mean() + 1e-4


@pytest.mark.parametrize("length", [40, 96, 97, 150, 1000])
def test_fixed_tiles_cover_an_axis_with_their_halo(length):
    side, halo, stride = 96, 16, 8
    tiles = list(fixed_spans(length, side, halo, stride))
    assert [begin for _, begin, _, _ in tiles] == [0, *(end for _, _, end, _ in tiles[:-1])]
    assert tiles[-1][2] == length
    for start, begin, end, stop in tiles:
        assert start % stride == 0
        assert start <= begin < end <= stop <= length
        assert stop - start <= side
        assert begin - start >= halo or start == begin == 0
        assert stop - end >= halo or end == stop == length
        assert stop - start == side or stop == length
    assert length < side or length - tiles[-1][0] > side - stride


@pytest.mark.parametrize(
    ("size", "most", "tried"),
    [((1, 500, 400), 130**2, [(1, 400), (1, 250), (1, 125)]), ((5, 90, 90), 100**2, [(5, 90), (2, 90), (1, 90)])],
)
def test_running_out_of_memory_halves_the_batch_and_then_the_tiles(size, most, tried):
    seen = []

    def hungry(x):
        seen.append(tuple(x.shape[::3]))
        if x[:, 0].numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 2 * x

    x = torch.rand(size)[:, None].expand(-1, 3, -1, -1)
    assert torch.equal(Tiled(hungry, seeing(0), 512)(x), 2 * x)
    assert seen[:3] == tried
    assert all(images == 1 and side <= tried[2][1] for images, side in seen[2:])


@pytest.mark.parametrize("width", [128, 72], ids=["the first tile", "the second tile"])
def test_a_real_allocation_that_fails_is_out_of_memory(width):
    def huge(x):
        return x + (torch.empty(1 << 60)[:1] if x.shape[-1] == width else 0)

    x = torch.rand(1, 3, 64, 200)
    assert torch.equal(Tiled(huge, seeing(0), 128)(x), x)


def test_other_errors_are_not_taken_for_it():
    def broken(x):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        Tiled(broken, seeing(0), 128)(torch.rand(1, 3, 8, 8))


def test_tiles_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="64"):
        tiny_pipeline().predict(torch.rand(1, 3, 8, 8), limits=Limits(predictor_tile=8))


def test_tiles_come_from_what_a_pixel_takes(monkeypatch):
    """24 megapixels at 1000 bytes a pixel: the largest tile whose core and halo fit into what is left."""
    monkeypatch.setattr("deblur.tiling.free_memory", lambda device: 1 << 40)
    monkeypatch.setattr("deblur.tiling.used_memory", lambda device: 400_000_000)
    image = torch.empty(1, 1).expand(1, 3, 4000, 6000)  # no memory of its own

    def chosen(memory, count=1, fields=1, receptive_field=352):
        tiled = Tiled(torch.abs, seeing(receptive_field, 16, 1000.0), memory=memory, fields=fields)
        tiled._fit(image.expand(count, -1, -1, -1))
        return tiled.tile, tiled.together

    own = 400_000_000 + 4000 * 6000 * 3 * 4
    for side in (128, 1024, 2048):
        takes = 1000 * (side + 2 * 352) ** 2
        assert chosen(own + takes) == (side, 1)
        assert chosen(own + takes - 1)[0] < side
        assert side == 128 or chosen(own + takes, fields=2)[0] < side
    takes = 1000 * 4000 * (4096 + 2 * 352)  # a tile is no higher than the image
    assert chosen(own + takes) == (4096, 1)
    assert chosen(own + 1000 * 4000 * 6000) == (6000, 1)
    least = own + 1000 * (64 + 2 * 352) ** 2
    assert chosen(least) == (64, 1)
    with pytest.raises(TooLittleMemory) as caught:
        chosen(least - 1)
    assert caught.value.needed == least
    assert chosen(own + 4000 * 6000 * 12 + 2 * 1000 * 4000 * 6000, count=2) == (6000, 2)
    assert chosen(own + 1000 * (1024 + 2 * 256) ** 2, receptive_field=None) == (1024, 1)
    monkeypatch.setattr("deblur.tiling.free_memory", lambda device: 2 * 1000 * (512 + 2 * 352) ** 2)
    assert chosen(None) == chosen(1 << 40) == (512, 1)


def test_tiles_do_not_depend_on_the_batch(monkeypatch):
    """What a batch holds more than one image is done image by image, in the tiles that one would have."""
    network, sizes = UNetPredictor(4, (1, 2), 1).eval(), []

    def seen(x):
        sizes.append((*x.shape[-2:], len(x)))
        return network(x)

    x = torch.rand(3, 3, 80, 140)
    with torch.no_grad():
        whole = network(x)
        for count in (1, 3):
            monkeypatch.setattr("deblur.tiling.free_memory", lambda device: 0)  # nothing fits
            tiled = Tiled(seen, network)
            assert torch.allclose(tiled(x[:count]), whole[:count], atol=1e-5)
            assert tiled.tile == 64
            assert {n for _, _, n in sizes[1:]} == {1}
        monkeypatch.undo()
        generous = Tiled(seen, network)
        assert torch.allclose(generous(x), whole, atol=1e-5)
        assert sizes[-1] == (80, 140, 3)


def test_two_outputs_and_numbers_of_images_are_tiled_too(monkeypatch):
    network, x = stir(SlimPredictor((8, 12), (1, 1), size_head=True)), torch.rand(3, 3, 90, 140)
    numbers = torch.tensor([1.0, 2.0, 3.0])

    def times(x, numbers):
        image, log_size = network(x)
        return image * numbers.view(-1, 1, 1, 1), log_size

    with torch.no_grad():
        whole = times(x, numbers)
        monkeypatch.setattr("deblur.tiling.free_memory", lambda device: 0)  # nothing fits: one image at a time
        for one, other in zip(Tiled(times, network)(x, numbers), whole, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("own", [(96, 24), None], ids=["tiles of its own", "tiles by hand"])
@pytest.mark.parametrize("along", ["columns", "rows"])
def test_tiles_of_other_brightness_leave_no_step_at_their_borders(own, along):
    """A network that sees a whole tile may make it brighter than its neighbours, here by more than a level."""
    network = seeing(None)
    network.own_tile = own
    image = torch.linspace(0.2, 0.8, 310).expand(1, 3, 200, 310)
    image = image if along == "columns" else image.mT

    def brighten(part):
        return part + 0.05 * part.mean(dim=(2, 3), keepdim=True)

    tiled = Tiled(brighten, network, tile=None if own else 64)(image)
    added = 255 * (tiled - image).mean(dim=(0, 1, 2 if along == "columns" else 3))
    assert added.max() - added.min() > 4  # from the darkest tile to the brightest
    assert added.diff().abs().max() < 0.2


def test_the_identity_is_tiled_too():
    pipeline, x = tiny_pipeline(IdentityPredictor()), torch.rand(1, 3, 150, 70)
    assert torch.equal(pipeline.predict(x, limits=Limits(predictor_tile=64)).x_init, pipeline.predict(x).x_init)


def test_tiles_that_blend_start_and_end_at_multiples_of_the_stride():
    """Cores of 100 become 96, whose quarter is none: a network that pools would see other pixels together."""
    image, sides = torch.rand(1, 3, 320, 352), set()

    def look(part):
        sides.update(part.shape[-2:])
        return part

    assert torch.allclose(Tiled(look, seeing(None, 32), tile=100)(image), image, atol=1e-6)
    assert max(sides) == 96 + 2 * 32
    assert all(side % 32 == 0 for side in sides)


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
    monkeypatch.setattr("deblur.tiling.CONTROL_GROUPS", tmp_path)
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
