"""The consistency flow against closed forms: Gaussian residuals, of which the flow and its jumps are known."""

import json
import math
from dataclasses import replace

import pytest
import torch

from models.checkpoints import describe, from_folder, load_pipeline
from models.diffusion import PREDICTION_TYPES, add_noise, estimate_r_0, target
from models.flow import START, Flow
from models.objective import Objective
from models.pipeline import DeblurPipeline
from models.sampling import noise_generator, sample_flow
from models.settings import SamplingSettings, sharing_samples
from models.slim_unet import SlimDenoiser
from models.unet import Denoiser
from models.weights import CheckpointError
from tests.models.test_networks import stir
from tests.models.test_pipeline import tiny_pipeline
from tests.models.test_sampling import generators, whole, wide

MEAN, VARIANCE = 0.3, 0.49  # of r_0
SHAPE = (2, 3, 16, 24)


def time_of(alpha_bar, sigma):
    """tau of a level that the denoiser is told: the root of a quadratic equation."""
    odds = sigma**2 * alpha_bar / (1 - alpha_bar)  # (tau^2 + d^2) / (1 - tau)^2
    a, b, c = 1 - odds, 2 * odds, (sigma / START) ** 2 - odds
    return (2 * -c) / (b + (b**2 - 4 * a * c).clamp_min(0).sqrt())


def spread(tau, sigma):
    """Standard deviation of r_tau."""
    return (tau**2 * VARIANCE + ((1 - tau) * sigma) ** 2) ** 0.5


def slope(tau, sigma):
    """E[u | r_tau] = m + slope (r_tau - tau m), u = r_0 - sigma eps: the velocity of the flow."""
    return (tau * VARIANCE - (1 - tau) * sigma**2) / spread(tau, sigma) ** 2


class Gaussian:
    """The exact denoiser of r_0 ~ N(MEAN, VARIANCE): that of the flow, or of its jumps to the ends of K segments."""

    def __init__(self, flow, prediction_type="sample", jumps=True):
        self.flow, self.prediction_type, self.jumps = flow, prediction_type, jumps

    def velocity(self, r_tau, tau):
        sigma, K = self.flow.sigma, self.flow.segments
        if not self.jumps:
            return MEAN + slope(tau, sigma) * (r_tau - tau * MEAN)
        end = ((tau * K + 1e-5).floor() + 1) / K
        arrived = end * MEAN + spread(end, sigma) / spread(tau, sigma) * (r_tau - tau * MEAN)
        return (arrived - r_tau) / (end - tau)

    def __call__(self, r_t, blurry, alpha_bar, x_init, s):
        a = alpha_bar.to(r_t.dtype).view(-1, 1, 1, 1)
        tau = time_of(a, self.flow.sigma)
        r_tau = r_t * self.flow.size(tau)
        r_0 = r_tau + (1 - tau) * self.velocity(r_tau, tau)
        return target(r_0, (r_t - a.sqrt() * r_0) / (1 - a).sqrt(), a, self.prediction_type)


def noise(seed=0, dtype=torch.float64):
    fields = [torch.randn(SHAPE[1:], generator=noise_generator(seed, str(i), 0), dtype=dtype) for i in range(SHAPE[0])]
    return torch.stack(fields)


def run(denoiser, flow, steps, x_init=0.0, s=1e-6):
    """A sample; with this scale of the residual nothing is clipped."""
    blurry = torch.zeros(SHAPE, dtype=torch.float64)
    scale = torch.full_like(blurry[:, :1], s)
    return sample_flow(denoiser, blurry, blurry + x_init, flow, steps, generators(SHAPE[0]), scale, iter, whole)


class TestPath:
    @pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
    def test_a_state_of_the_path_is_a_state_of_the_diffusion(self, sigma):
        flow, (r_0, eps) = Flow(sigma), torch.randn(2, 50, 3, 2, 2, dtype=torch.float64)
        tau = torch.rand(50, dtype=torch.float64)
        t = tau.view(-1, 1, 1, 1)
        state = (t * r_0 + (1 - t) * sigma * eps) / flow.size(t)
        assert torch.allclose(state, add_noise(r_0, eps, tau**2 / flow.size(tau) ** 2))

    def test_the_levels_told_rise_from_a_finite_start_to_one(self):
        flow, tau = Flow(0.5, 3), torch.linspace(0, 1, 1001, dtype=torch.float64)
        told = flow.level(tau)
        assert (told.diff() > 0).all() and told[-1] == 1
        assert ((1 - told[0]) / told[0]).sqrt().item() == pytest.approx(10)
        assert torch.allclose(time_of(told[:-1], 0.5), tau[:-1], atol=1e-9)
        later = tau >= 0.2
        assert torch.allclose(told[later], (tau**2 / flow.size(tau) ** 2)[later], rtol=0.06)
        # Log-SNR, which the networks embed, has no step larger than one that they are used to.
        assert told[:-1].logit().diff()[:900].max() < 0.025

    @pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"sigma": math.nan}, {"segments": 0}, {"segments": 2.5}])
    def test_what_is_no_flow_is_refused(self, wrong):
        with pytest.raises(ValueError, match=r"a flow's (sigma|segments) must be"):
            Flow(**wrong)


class TestSampling:
    @pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
    @pytest.mark.parametrize(("segments", "steps"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
    def test_exact_jumps_arrive_where_the_flow_does(self, segments, steps, prediction_type):
        """The flow of Gaussians is m + sqrt(v) eps, which a step for each segment reaches."""
        flow = Flow(0.5, segments)
        r_0 = run(Gaussian(flow, prediction_type), flow, steps)
        assert (r_0 - (MEAN + VARIANCE**0.5 * noise())).abs().max() < 1e-4

    @pytest.mark.parametrize("sigma", [0.1, 0.5, 1.5])
    def test_small_steps_follow_the_velocity_of_the_flow(self, sigma):
        flow = Flow(sigma)
        exact = MEAN + VARIANCE**0.5 * noise()
        errors = [(run(Gaussian(flow, jumps=False), flow, n) - exact).abs().max().item() for n in (200, 400)]
        assert errors[1] < 0.02 and errors[1] == pytest.approx(errors[0] / 2, rel=0.1)

    @pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
    def test_steps_are_euler_s(self, prediction_type):
        """On the path itself, r += v / N; the sampler keeps it in the units of the diffusion."""
        flow, network = Flow(0.4), stir(Denoiser(8, (1, 2), 1, prediction_type=prediction_type)).double()
        network.embedding.float()
        blurry, told = torch.rand(SHAPE, dtype=torch.float64), []

        def denoiser(r_t, blurry, alpha_bar, x_init, s):
            told.append(alpha_bar[0].item())
            return network(r_t, blurry, alpha_bar, x_init).double()

        denoiser.prediction_type = prediction_type
        with torch.no_grad():
            found = sample_flow(denoiser, blurry, -blurry, flow, 4, generators(SHAPE[0]), wide(blurry), iter, whole)
            assert told == pytest.approx([flow.level(k / 4) for k in range(4)], rel=1e-12)
            r = 0.4 * noise()
            for k in range(4):
                tau = k / 4
                size, level = (tau**2 + (1 - tau) ** 2 * 0.16) ** 0.5, torch.full((2,), flow.level(tau)).double()
                output = denoiser(r / size, blurry, level, -blurry, wide(blurry))
                r = r + (estimate_r_0(output, r / size, level, prediction_type) - r) / (1 - tau) / 4
        assert (found - r).abs().max() < 1e-5 and r.std() > 0.01

    def test_estimates_are_clipped_to_the_range_of_images(self):
        def denoiser(r_t, blurry, alpha_bar, x_init, s):
            return torch.full_like(r_t, 9.0)

        denoiser.prediction_type = "sample"
        r_0 = run(denoiser, Flow(), 3, x_init=-0.5, s=0.5)
        assert torch.allclose(r_0, torch.tensor(3.0).double())  # x = x_init + s r_0 = 1

    @pytest.mark.parametrize("kind", [Denoiser, SlimDenoiser])
    def test_one_step_is_made_of_its_noise(self, kind):
        """Even where the network sees sqrt(alpha_bar) r_t, which is zero at the flow's true start."""
        torch.manual_seed(0)
        own = {"widths": (8, 12), "blocks": (1, 1)} if kind is SlimDenoiser else {"channels": 8, "blocks": 1}
        network, y = stir(kind(**own, prediction_type="sample")), torch.rand(1, 3, 16, 16)
        with torch.no_grad():
            s = torch.full_like(y[:, :1], 0.1)
            drawn = [sample_flow(network, y, y, Flow(), 1, generators(1, k), s, iter, whole) for k in range(8)]
        assert torch.stack(drawn).std(0).mean() > 0.02 * torch.stack(drawn).std()


def waves():
    """Two fields whose pixels have exactly mean 0, variance 1 and covariance 0."""
    x = 2 * math.pi * torch.arange(24, dtype=torch.float64) / 24
    return (2**0.5 * wave(x).expand(1, 3, 16, 24) for wave in (torch.cos, torch.sin))


class TestObjective:
    @pytest.mark.parametrize("segments", [1, 2, 5])
    @pytest.mark.parametrize("tau", [0.0, 0.11, 0.39, 0.51, 0.93])
    def test_the_exact_jumps_are_what_is_learnt(self, segments, tau):
        """The squared loss of velocities that are a line off the exact ones is least where the line is zero.

        With fields of exact moments the least squares are those of the distribution itself; a Newton step finds them.
        """
        objective = Objective("consistency_flow", loss="l2", segments=segments, delta=2e-5)
        flow, (z_0, eps) = objective.flow, waves()
        exact, line = Gaussian(flow), torch.zeros(2, dtype=torch.float64, requires_grad=True)

        def denoise(r_t, alpha_bar):
            at = time_of(alpha_bar.double().view(-1, 1, 1, 1), flow.sigma)
            r_tau = r_t * flow.size(at)
            return exact(r_t, None, alpha_bar.double(), None, None) + (1 - at) * (line[0] + line[1] * r_tau)

        def loss(line_now):
            u = torch.tensor([tau], dtype=torch.float64)
            losses, estimate, told = objective.flow_losses(denoise, "sample", MEAN + VARIANCE**0.5 * z_0, eps, u)
            assert told.item() == pytest.approx(flow.level(tau), rel=1e-5) and estimate.shape == eps.shape
            return losses.sum()

        gradient = torch.autograd.grad(loss(line), line, create_graph=True)[0]
        hessian = torch.stack([torch.autograd.grad(one, line, retain_graph=True)[0] for one in gradient])
        off = torch.linalg.solve(hessian, gradient.detach())
        assert off.abs().max() < 1e-4

    @pytest.mark.parametrize("loss", ["l1", "l2"])
    @pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
    def test_the_loss_is_the_stated_one(self, loss, prediction_type):
        """Crops in the middle of a segment and at its end, in the first and in the last, by the formula."""
        objective = Objective("consistency_flow", loss, source_sigma=0.3, segments=2, delta=0.1)
        r_0, eps, y = torch.randn(3, 4, 3, 8, 8, dtype=torch.float64)
        network = stir(Denoiser(4, (1, 2), 1, prediction_type=prediction_type, embedding_channels=8))

        def denoise(r_t, alpha_bar):
            return network(r_t, y, alpha_bar, y)

        u = torch.tensor([0.18, 0.45, 0.72, 0.96], dtype=torch.float64)
        losses, estimate, told = objective.evaluate(denoise, prediction_type, r_0, eps, u, torch.tensor([0.5]))
        expected = []
        for n, (tau, later, end) in enumerate([(0.18, 0.28, 0.5), (0.45, 0.5, 0.5), (0.72, 0.82, 1), (0.96, 1, 1)]):
            velocities = []
            for t in (tau, later) if later < end else (tau,):
                r = (1 - t) * 0.3 * eps + t * r_0
                size, level = (t**2 + 0.09 * (1 - t) ** 2) ** 0.5, torch.full((4,), Flow(0.3).level(t))
                r_0_hat = estimate_r_0(denoise(r / size, level), r / size, level, prediction_type)
                velocities.append(((r_0_hat - r) / (1 - t))[n])
                if t == tau:
                    assert torch.allclose(estimate[n], r_0_hat[n], atol=1e-4)
                    assert told[n].item() == pytest.approx(level[0].item(), rel=1e-5)
            v, after = velocities[0], (velocities[1] if later < end else (r_0 - 0.3 * eps)[n])
            r, r_later = ((1 - t) * 0.3 * eps[n] + t * r_0[n] for t in (tau, later))
            jumps = r + (end - tau) * v - (r_later + (end - later) * after)
            size = torch.abs if loss == "l1" else torch.square
            expected.append(size(2 * jumps).mean() + 1e-3 * size(2 * (1 - later) * (v - after)).mean())
        assert torch.allclose(losses, torch.stack(expected), rtol=1e-4)
        losses.sum().backward()
        assert all(weight.grad is not None for weight in network.parameters())

    def test_no_gradient_goes_through_the_target(self):
        objective, weight = Objective("consistency_flow", "l2"), torch.ones((), dtype=torch.float64, requires_grad=True)
        seen = []

        def denoise(r_t, alpha_bar):
            seen.append(torch.is_grad_enabled())
            return weight * r_t

        z_0, eps = waves()
        objective.flow_losses(denoise, "sample", z_0, eps, torch.tensor([0.1]).double())[0].sum().backward()
        assert seen == [True, False] and weight.grad is not None

    def test_the_last_moment_of_the_path_is_finite(self):
        for u in (0.0, 1 - 2**-53, 1 - 1e-9):
            for delta in (0.05, 0.5):
                objective = Objective("consistency_flow", delta=delta)
                z_0, eps = (wave.float() for wave in waves())
                u_n = torch.tensor([u], dtype=torch.float64)
                losses, _, told = objective.flow_losses(lambda r_t, _: 0.5 * r_t, "sample", z_0, eps, u_n)
                assert losses.isfinite().all() and losses.item() < 100 and 0 < told.item() <= 1

    @pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"delta": 1.0}, {"source_sigma": -1.0}, {"segments": 0}])
    def test_what_means_nothing_is_refused(self, wrong):
        with pytest.raises(ValueError, match="must be"):
            Objective("consistency_flow", **wrong)

    def test_diffusion_has_no_flow(self):
        assert Objective().flow is None and Objective("consistency_flow", segments=3).flow == Flow(0.5, 3)


def flowing(segments=3, **options):
    own = tiny_pipeline(**options)
    return DeblurPipeline(own.predictor, own.denoiser, own.scheduler, 0.1, flow=Flow(0.5, segments))


@pytest.fixture
def blurry():
    return torch.rand(2, 3, 21, 30, generator=torch.Generator().manual_seed(3))


class TestPipeline:
    def test_a_step_a_segment_is_the_default_and_a_preset_goes_before_it(self, blurry):
        pipeline = flowing(segments=4)
        assert pipeline.default_settings == SamplingSettings("flow", steps=4)
        assert str(pipeline.default_settings) == "flow, 4 steps, blend 1"
        default = pipeline(blurry, output_type="pt").images
        assert torch.equal(default, pipeline(blurry, SamplingSettings("flow", steps=4), output_type="pt").images)
        pipeline.register_to_config(presets={"balanced": {"sampler": "flow", "steps": 1}})
        assert pipeline.default_settings.steps == 1

    def test_samples_mean_std_blend_and_the_order_of_images(self, blurry):
        pipeline, settings = flowing(), SamplingSettings("flow", steps=2, num_samples=3)
        names = {"names": ["a", "b"], "output_type": "pt"}
        drawn = pipeline(blurry, settings, **names)
        stack = drawn.images.unflatten(0, (2, 3))
        assert torch.allclose(drawn.std, stack.std(1), atol=1e-6) and drawn.std.mean() > 1e-3
        mean = pipeline(blurry, replace(settings, average=True), **names).images
        assert torch.allclose(mean, stack.mean(1), atol=1e-6)
        alone = pipeline(blurry[1:], replace(settings, num_samples=1), names=["b"], output_type="pt").images
        assert torch.allclose(alone[0], stack[1, 0], atol=1e-5)
        other = pipeline(blurry[1:], replace(settings, num_samples=1), seed=1, names=["b"], output_type="pt").images
        assert not torch.allclose(alone, other, atol=1e-3)
        half = pipeline(blurry, replace(settings, num_samples=1, blend=0.5), **names)
        inside = [(x > 0) & (x < 1) for x in (half.images, stack[:, 0], half.predictions)]
        inside = inside[0] & inside[1] & inside[2]
        between = (stack[:, 0] + half.predictions) / 2
        assert torch.allclose(half.images[inside], between[inside], atol=1e-5) and inside.any()
        grid = [settings, replace(settings, average=True), replace(settings, blend=0.5)]
        [group] = sharing_samples(grid)
        found = pipeline.refine_shared(blurry, pipeline.predict(blurry), group, names=["a", "b"])
        assert torch.allclose(found[1].images, mean, atol=1e-5)

    def test_tiles_and_bands_give_the_same_image(self, monkeypatch):
        pipeline, large = flowing(), torch.rand(1, 3, 170, 150, generator=torch.Generator().manual_seed(0))
        settings = SamplingSettings("flow", steps=3)
        whole = pipeline(large, settings, output_type="pt", tile=1024).images
        tiled = pipeline(large, settings, output_type="pt", tile=64)
        assert (whole - tiled.images).abs().max() < 0.1 / 255 and tiled.tiles["denoiser"] == 64
        monkeypatch.setattr("models.bands.CPU_PIXELS", 1000)
        assert (whole - pipeline(large, settings, output_type="pt", tile=1024).images).abs().max() < 0.1 / 255

    def test_a_sampler_that_does_not_match_the_checkpoint_is_refused(self, blurry):
        for sampler in ("ddpm", "ddim", "dpmsolver++", "unipc"):
            with pytest.raises(ValueError, match=r"a consistency flow, which the sampler .* cannot sample"):
                flowing()(blurry, SamplingSettings(sampler, steps=2))
        with pytest.raises(ValueError, match="the sampler flow needs a checkpoint that was trained with"):
            tiny_pipeline()(blurry, SamplingSettings("flow", steps=2))
        prediction = SamplingSettings(blend=0.0)  # for which no sampler is needed
        assert torch.equal(*(p(blurry, prediction, output_type="pt").images for p in (flowing(), tiny_pipeline())))

    @pytest.mark.parametrize("wrong", [{"schedule": "cosine"}, {"start": 1.0}, {"eta": 0.5}])
    def test_what_belongs_to_other_samplers_is_refused(self, wrong):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} .*(belongs|belong) to"):
            SamplingSettings("flow", steps=2, **wrong)

    def test_a_checkpoint_keeps_its_flow_and_older_ones_are_diffusion(self, tmp_path, blurry):
        pipeline = flowing(segments=2)
        pipeline.save_pretrained(tmp_path / "flow")
        again = from_folder(tmp_path / "flow")
        assert again.flow == Flow(0.5, 2) and describe(again)["flow"] == {"sigma": 0.5, "segments": 2}
        assert torch.equal(*(p(blurry, seed=4, output_type="pt").images for p in (pipeline, again)))
        index = json.loads((tmp_path / "flow" / "model_index.json").read_text())
        for wrong in ({"sigma": -1}, {"speed": 2}, "yes"):
            (tmp_path / "flow" / "model_index.json").write_text(json.dumps(index | {"flow": wrong}))
            with pytest.raises(CheckpointError, match=r"says of its flow .* which is none"):
                load_pipeline(str(tmp_path / "flow"))
        del index["flow"]
        (tmp_path / "flow" / "model_index.json").write_text(json.dumps(index))
        assert load_pipeline(str(tmp_path / "flow")).flow is None
