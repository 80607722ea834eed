"""Predict, then refine (Whang et al., CVPR 2022): the whole method, to be read from top to bottom.

y is the blurry and x the sharp image, (N, 3, H, W) in [-1, 1]; x_init = g(y) the prediction; r_0 = (x - x_init) / s the
residual, with its scale s (N, 1, H, W); a = alpha_bar the noise level. A schedule is a list of levels, the noisiest
first. The program (models/) computes the same, to the last digits (tests/models/test_method.py).
"""

import math

import torch
import torch.nn.functional as F


# 1. Predict x_init, and how large the error is expected to be around each pixel (models/diffusion.py).
def predict(g, y):
    x_init, log_size = g(y)
    return x_init, log_size.exp().clamp(max=2.0)


def scale(c, expected):
    around = F.avg_pool2d(expected, 5, stride=1, padding=2, count_include_pad=False)
    return c * around.clamp(min=0.005)


# 2. Diffuse: q(r_t | r_0), DDPM (Ho et al. 2020), equation 4 (models/diffusion.py).
def add_noise(r_0, eps, a):
    return a.sqrt() * r_0 + (1 - a).sqrt() * eps


# The denoiser f(r_t, y, a, x_init, s) estimates r_0, here by a network that predicts v (Salimans & Ho 2022).
def denoiser(network):
    def f(r_t, y, a, x_init, s):
        v = network(r_t, y, a, x_init, s)
        a = a.view(-1, 1, 1, 1)
        return a.sqrt() * r_t - (1 - a).sqrt() * v

    return f


# 3. Learn, with one level and one noise a crop: the error of v (training/module.py, models/losses.py).
def loss(f, x, y, x_init, s, a, eps):
    r_0, level = (x - x_init) / s, a.view(-1, 1, 1, 1)
    r_t = add_noise(r_0, eps, level)
    error = f(r_t, y, a, x_init, s) - r_0
    return (error.square() / (1 - level)).mean((1, 2, 3))


# 4. Sample, from noise to r_0, level by level (models/schedules.py, models/samplers.py).
def log_snr(steps, highest, lowest):
    return torch.linspace(lowest, highest, steps, dtype=torch.float64).sigmoid().tolist()


def ddpm_step(r_t, r_0, a, a_next, randn):  # Ho et al. 2020, equation 7, with the variance b
    b = 1 - a / a_next
    mean = math.sqrt(a_next) * b / (1 - a) * r_0 + math.sqrt(1 - b) * (1 - a_next) / (1 - a) * r_t
    return mean + math.sqrt(b) * randn(r_t.shape)


def ddim_step(r_t, r_0, a, a_next, randn, eta=1.0):  # Song et al. 2021, equation 12
    eps = (r_t - math.sqrt(a) * r_0) / math.sqrt(1 - a)
    sigma = eta * math.sqrt((1 - a_next) / (1 - a) * (1 - a / a_next))
    return math.sqrt(a_next) * r_0 + math.sqrt(1 - a_next - sigma**2) * eps + sigma * randn(r_t.shape)


def sample(f, y, x_init, s, levels, step, randn):
    r_t = math.sqrt(1 - levels[0]) * randn(y.shape)
    for a, a_next in zip(levels, [*levels[1:], 1.0], strict=True):
        r_0 = f(r_t, y, torch.full((len(y),), a), x_init, s)
        r_0 = r_0.clamp((-1 - x_init) / s, (1 - x_init) / s)  # x_init + s r_0 stays an image
        if a_next < 1:
            r_t = step(r_t, r_0, a, a_next, randn)
    return r_0


# 5. Restore: the prediction and a share of the sampled residual (deblur/pipeline.py).
def restore(g, f, y, c, levels, step, randn, blend=1.0):
    x_init, expected = predict(g, y)
    s = scale(c, expected)
    return x_init + blend * s * sample(f, y, x_init, s, levels, step, randn)


# 6. Score, on whole 8-bit numbers, as a file holds them (evaluation/pixels.py).
def psnr(restored, sharp):
    one, other = (image.clamp(-1, 1).add(1).mul(127.5).round() for image in (restored, sharp))
    return 10 * torch.log10(255**2 / (one - other).square().mean((1, 2, 3)))
