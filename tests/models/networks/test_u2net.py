"""U2-Net against the paper, stated once more: functions of a state dict, with nothing of the module in them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deblur.models.networks.u2net import U2NetPredictor

# Qin et al. 2020, table 1: the height of each stage's block, encoder and decoder alike. 5 and 6 do not pool.
HEIGHTS = {1: 7, 2: 6, 3: 5, 4: 4}


def conv(w, name, x, dilation=1):
    """Convolution, batch normalisation by the running statistics, ReLU."""
    x = F.conv2d(x, w[f"{name}.conv_s1.weight"], w[f"{name}.conv_s1.bias"], padding=dilation, dilation=dilation)
    mean, var, scale, shift = (w[f"{name}.bn_s1.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
    channels = [value.view(1, -1, 1, 1) for value in (mean, var, scale, shift)]
    return F.relu((x - channels[0]) / (channels[1] + 1e-5).sqrt() * channels[2] + channels[3])


def pool(x):
    """The largest of each 2 x 2 pixels, or of what there is of them at the lower and right border."""
    height, width = x.shape[-2:]
    x = F.pad(x, (0, width % 2, 0, height % 2), value=float("-inf"))
    return x.unflatten(-2, (-1, 2)).unflatten(-1, (-1, 2)).amax((-3, -1))


def upsample(x, like):
    return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


def rsu(w, name, x, height):
    """RSU-L of the paper's figure 2 (e)."""
    first = conv(w, f"{name}.rebnconvin", x)
    maps = [conv(w, f"{name}.rebnconv1", first)]
    for i in range(2, height):
        maps.append(conv(w, f"{name}.rebnconv{i}", pool(maps[-1])))
    h = conv(w, f"{name}.rebnconv{height}", maps[-1], dilation=2)
    for i in range(height - 1, 0, -1):
        h = conv(w, f"{name}.rebnconv{i}d", torch.cat([upsample(h, maps[i - 1]), maps[i - 1]], 1))
    return h + first


def rsu_4f(w, name, x):
    first = conv(w, f"{name}.rebnconvin", x)
    h1 = conv(w, f"{name}.rebnconv1", first, 1)
    h2 = conv(w, f"{name}.rebnconv2", h1, 2)
    h3 = conv(w, f"{name}.rebnconv3", h2, 4)
    h4 = conv(w, f"{name}.rebnconv4", h3, 8)
    d3 = conv(w, f"{name}.rebnconv3d", torch.cat([h4, h3], 1), 4)
    d2 = conv(w, f"{name}.rebnconv2d", torch.cat([d3, h2], 1), 2)
    return conv(w, f"{name}.rebnconv1d", torch.cat([d2, h1], 1), 1) + first


def u2net(w, x):
    """The fused output and the six side outputs, without a sigmoid."""

    def stage(number, x, decoder=""):
        name = f"stage{number}{decoder}"
        return rsu_4f(w, name, x) if number > 4 else rsu(w, name, x, HEIGHTS[number])

    maps = [stage(1, x)]
    for number in range(2, 7):
        maps.append(stage(number, pool(maps[-1])))
    decoded = [maps.pop()]
    for number in range(5, 0, -1):
        skip = maps.pop()
        decoded.insert(0, stage(number, torch.cat([upsample(decoded[0], skip), skip], 1), "d"))
    sides = []
    for number, h in enumerate(decoded, start=1):
        side = F.conv2d(h, w[f"side{number}.weight"], w[f"side{number}.bias"], padding=1)
        sides.append(side if number == 1 else upsample(side, sides[0]))
    return [F.conv2d(torch.cat(sides, 1), w["outconv.weight"], w["outconv.bias"]), *sides]


@pytest.mark.parametrize(("variant", "size"), [("full", (45, 38)), ("lite", (67, 33)), ("lite", (64, 96))])
def test_the_forward_pass_is_the_paper_s(variant, size):
    torch.manual_seed(0)
    network = U2NetPredictor(variant).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for value, low in ((layer.running_mean, -0.5), (layer.running_var, 0.5), (layer.weight, 0.5)):
                nn.init.uniform_(value, low, low + 1)
        if isinstance(layer, nn.Conv2d) and not layer.weight.any():  # heads start at zero
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.normal_(layer.bias, std=0.1)
    blurry = torch.rand(1, 3, *size) * 2 - 1
    with torch.no_grad():
        expected = [blurry + head for head in u2net(network.state_dict(), blurry)]
        found, _ = network.estimates(blurry)
    assert len(found) == len(expected) == 7
    for ours, theirs in zip(found, expected, strict=True):
        assert (theirs - blurry).std() > 0.01
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
