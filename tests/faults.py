"""Small faults for tests/mutate.py: what somebody might break, found by reading the program and not its tests.

A fault belongs where a promise is made: in a docstring, a flag's help, a recipe, the paper's formula.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One replacement in one file.

    Attributes:
        says: the program with the fault, in words.
        file: from the repository's root.
        old, new: the text that stands in the file exactly once, and what takes its place.
        tests: files, without their slow tests, or single tests that should notice, from tests/ on.
    """

    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _of(file: str, tests: str, *faults: tuple[str, str, str]) -> list[Fault]:
    return [Fault(says, file, old, new, tuple(tests.split())) for says, old, new in faults]


FAULTS = [
    *_of(
        "models/diffusion.py",
        "models/test_diffusion.py models/test_residual_scale.py models/test_lightning_module.py",
        (
            "the residual has the wrong sign",
            "return (sharp - x_init) / residual_scale",
            "return (x_init - sharp) / residual_scale",
        ),
        (
            "noise is added without the root",
            "return a.sqrt() * r_0 + (1 - a).sqrt() * eps\n",
            "return a.sqrt() * r_0 + (1 - a) * eps\n",
        ),
        (
            "noise levels are mirrored inside their step",
            "torch.lerp(levels[t], levels[t - 1], inside",
            "torch.lerp(levels[t - 1], levels[t], inside",
        ),
        (
            "the local scale is a mean over 7 x 7 pixels",
            ".abs().mean(1, keepdim=True), 9) + FLOOR",
            ".abs().mean(1, keepdim=True), 7) + FLOOR",
        ),
        ("maps are dark at the border", "count_include_pad=False", "count_include_pad=True"),
        ("the size loss reaches the prediction", "(error.detach().abs()", "(error.abs()"),
    ),
    *_of(
        "models/objective.py",
        "models/test_objective.py",
        ("min-SNR is max-SNR", "return snr.clamp(max=gamma)", "return snr.clamp(min=gamma)"),
        (
            "l1 takes the weight of squares",
            'losses * (weight.sqrt() if self.loss == "l1" else weight)',
            "losses * weight",
        ),
        (
            "sigma_range is ignored",
            "sample_log_normal(*self.log_normal, self.sigma_range, u)",
            "sample_log_normal(*self.log_normal, None, u)",
        ),
    ),
    *_of(
        "models/lightning_module.py",
        "models/test_lightning_module.py models/test_residual_scale.py training/test_values.py",
        (
            "the detached predictor gets the denoiser's gradient through x_init",
            "x_init, fixed = prediction[:, :3], prediction[:, :3].detach()",
            "x_init = fixed = prediction[:, :3]",
        ),
        (
            "joint training does not reach the predictor",
            'x_init if self.predictor_training == "joint" else fixed, s)',
            "fixed, s)",
        ),
        (
            "the residual's scale is that of the last 10 steps",
            "self.residual_steps.clamp(max=1000)",
            "self.residual_steps.clamp(max=10)",
        ),
        (
            "validation ignores the images' names",
            'self.validation, names=batch["name"], output_type="pt"',
            'self.validation, output_type="pt"',
        ),
        ("weight_decay is ignored", "weight_decay=self.weight_decay, fused", "weight_decay=0.0, fused"),
        ("betas are ignored", "AdamW(trained, self.lr, self.betas,", "AdamW(trained, self.lr, (0.9, 0.999),"),
        (
            "predictor_weight is ignored",
            "denoiser_loss + self.predictor_weight * predictor_loss",
            "denoiser_loss + predictor_loss",
        ),
        (
            "a frozen predictor's batch statistics move",
            "predictor.requires_grad_(False).eval()",
            "predictor.requires_grad_(False)",
        ),
        ("Fourier transforms grow with the crop", ', norm="ortho")', ")"),
        (
            "the refiner's perceptual term starts a step late",
            "(self.global_step - start + 1)",
            "(self.global_step - start)",
        ),
        (
            "dropout is alike in every batch",
            "noise_seed(self._seed, self.global_rank, number)",
            "noise_seed(self._seed, self.global_rank)",
        ),
        ("the size head rules the clipping", "loss = loss + SIZE_WEIGHT * size_loss", "loss = loss + size_loss"),
        (
            "a checkpoint's averaged weights have the raw scale",
            'checkpoint["state_dict"]["residual_square"].sqrt().item()',
            "float(self.scale())",
        ),
    ),
    *_of(
        "models/lightning_module.py",
        "training/test_ranks.py",
        (
            "all processes draw the same noise",
            "first = (number * self.trainer.world_size + self.global_rank) * crops",
            "first = (number * self.trainer.world_size) * crops",
        ),
    ),
    *_of(
        "models/schedules.py",
        "models/test_schedules.py",
        (
            "linear keeps the beta of the clean residual",
            "return torch.linspace(beta_start, beta_end, steps + 1, dtype=torch.float64)[1:]",
            "return torch.linspace(beta_start, beta_end, steps, dtype=torch.float64)",
        ),
        ("cosine is not clipped", "return _betas((f / f[0])[1:]).clamp(max=MAX_BETA)", "return _betas((f / f[0])[1:])"),
        (
            "respaced levels are rounded down",
            "* T / steps).round().long() - 1",
            "* T / steps).floor().long() - 1",
        ),
        ("sigmoid bends half as much", "torch.linspace(-6, 6, steps + 1", "torch.linspace(-3, 3, steps + 1"),
        (
            "a shortened schedule ends a step early",
            "end = after - 1 + (wanted",
            "end = after - 2 + (wanted",
        ),
        ("quadratic is cubic", "dtype=torch.float64)[1:] ** 2", "dtype=torch.float64)[1:] ** 3"),
    ),
    *_of(
        "models/sampling.py",
        "models/test_sampling.py",
        ("ddpm has the posterior's variance", 'variance_type="fixed_large"', 'variance_type="fixed_small"'),
        ("every schedule starts from pure noise", "r_t = math.sqrt(1 - levels[0]) * randn", "r_t = randn"),
        ("eta is ignored", 'options = {"eta": eta, "generator": generators}', 'options = {"generator": generators}'),
        ("all samples of an image are the same", "noise_seed(seed, sample, name)", "noise_seed(seed, name)"),
        (
            "estimates are clipped from below alone",
            "r_0.clamp(residual(-1.0, x_init, s), residual(1.0, x_init, s))",
            "r_0.clamp(residual(-1.0, x_init, s))",
        ),
        (
            "bands of a large image share a solver's memory",
            "[deepcopy(self.scheduler) for _",
            "[self.scheduler for _",
        ),
        (
            "levels have float32's digits",
            "    scheduler.alphas_cumprod = (1 - betas).cumprod(0)\n",
            "    scheduler.alphas_cumprod = (1 - betas.float()).cumprod(0)\n",
        ),
        (
            "unipc is of first order",
            "UniPCMultistepScheduler(**table, ",
            "UniPCMultistepScheduler(**table, solver_order=1, ",
        ),
        (
            "dpmsolver++ is of first order",
            "DPMSolverMultistepScheduler(**table, ",
            "DPMSolverMultistepScheduler(**table, solver_order=1, ",
        ),
    ),
    *_of(
        "base/seeds.py",
        "base/test_files.py models/test_sampling.py",
        ("noise has another seed than published results", '"little", signed=True', '"big", signed=True'),
    ),
    *_of(
        "models/samples.py",
        "models/test_pipeline.py",
        (
            "std is that of the population",
            "(self.squares / (self.count - 1)).sqrt()",
            "(self.squares / self.count).sqrt()",
        ),
        (
            "samples come by number and not by image",
            "torch.stack(self.kept, dim=1).flatten(0, 1)",
            "torch.stack(self.kept, dim=0).flatten(0, 1)",
        ),
    ),
    *_of(
        "models/pipeline.py",
        "models/test_pipeline.py models/test_arrays.py models/test_residual_scale.py",
        ("the expected error is in units of [-1, 1]", "self.log_size.exp().div_(2)", "self.log_size.exp()"),
        (
            "settings that share samples see those of the one before",
            "samples is wanted[-1]  # the",
            "samples is wanted[0]  # the",
        ),
        (
            "every setting of a group gets as many samples as the largest",
            "if k < samples.setting.num_samples]",
            "if True]",
        ),
        (
            "a preset named beside settings is taken in silence",
            "if preset is not None and settings is not None:",
            "if False:",
        ),
    ),
    *_of(
        "models/tiling.py",
        "models/test_tiling.py",
        (
            "halos are rounded down",
            "return -(-pixels // self.stride) * self.stride",
            "return pixels // self.stride * self.stride",
        ),
        ("cores start anywhere", "return max(tile // self.stride, 1) * self.stride", "return tile"),
        ("memory is ignored", "return min(free, self.memory - self._held(image))", "return free"),
        (
            "blended tiles do not add to one",
            "target[..., top:bottom, left:right] += part",
            "target[..., top:bottom, left:right] = part",
        ),
    ),
    *_of(
        "models/unet.py",
        "models/test_networks.py",
        ("noise levels of the clean end look alike", "clamp(1e-6, 1 - 1e-6)", "clamp(1e-3, 1 - 1e-3)"),
        ("images are padded with grey", '0, -height % self.stride), mode="replicate")', "0, -height % self.stride))"),
        ("dropout is ignored", "h = self.conv2(self.dropout(F.silu(h)))", "h = self.conv2(F.silu(h))"),
        ("the receptive field counts one convolution a block", "radius += 2  # two", "radius += 1  # two"),
    ),
    *_of(
        "models/u2net.py",
        "models/test_u2net.py models/test_networks.py",
        ("the bottom of a block does not dilate", "[1] * (L - 1) + [2] if", "[1] * L if"),
        (
            "blocks pool downwards in odd sizes",
            "if self.pooled and i > 1:\n                h = F.max_pool2d(h, 2, stride=2, ceil_mode=True)",
            "if self.pooled and i > 1:\n                h = F.max_pool2d(h, 2, stride=2, ceil_mode=False)",
        ),
        (
            "the decoder takes skip and rest in the other order",
            "joined = torch.cat([_resize(decoded[-1], skip, self.upsample), skip], dim=1)",
            "joined = torch.cat([skip, _resize(decoded[-1], skip, self.upsample)], dim=1)",
        ),
        ("maps are resized by their corners", "mode=mode, align_corners=False)", "mode=mode, align_corners=True)"),
        (
            "side outputs are fused in the other order",
            "self.outconv(torch.cat(sides, dim=1))",
            "self.outconv(torch.cat(sides[::-1], dim=1))",
        ),
    ),
    *_of(
        "models/slim_unet.py",
        "models/test_networks.py models/test_tiling.py",
        (
            "the slim denoiser gets the noise as it is",
            "alpha_bar.sqrt().view(-1, 1, 1, 1) * r_t",
            "r_t",
        ),
        (
            "the slim network's receptive field leaves the head out",
            "return -(-(radius + 1) * self.unshuffle // self.stride)",
            "return -(-(radius - 1) * self.unshuffle // self.stride)",
        ),
    ),
    *_of(
        "deployment/export.py",
        "deployment/test_export.py",
        ("graphs say where they were made", '        noted.ClearField("metadata_props")', "        pass"),
    ),
    *_of(
        "models/checkpoints.py",
        "models/test_checkpoints.py models/test_export.py",
        ("the hash leaves the weights out", 'f.suffix in (".json", ".safetensors", ".onnx")', 'f.suffix in (".json",)'),
        ("raw weights are exported with the averaged scale", 'if state.get("residual_steps", 0) > 0:', "if False:"),
        ("the hash follows the presets", 'read_json(file, "") | {"presets": {}}', 'read_json(file, "")'),
        (
            "normalisation runs in bf16",
            "isinstance(layer, nn.Conv2d | nn.Linear)",
            "isinstance(layer, nn.Conv2d | nn.Linear | nn.LayerNorm | nn.BatchNorm2d)",
        ),
    ),
    *_of(
        "models/export.py",
        "models/test_export.py",
        ("an average of runs is the last of them", "torch.stack(values).mean(0)", "values[-1]"),
    ),
    *_of(
        "models/faults.py",
        "models/test_faults.py",
        ("a sample's sharpness is compared in other units", "torch.iinfo(blurry.dtype).max)", "1)"),
        ("colours may drift by 20 levels", "COLOUR_DRIFT = 2 / 255", "COLOUR_DRIFT = 20 / 255"),
    ),
    *_of(
        "models/arrays.py",
        "models/test_arrays.py",
        (
            "arrays are cut off and not rounded",
            "np.rint(array * levels).astype(dtype)",
            "(array * levels).astype(dtype)",
        ),
    ),
    *_of(
        "training/command.py",
        "training/test_values.py test_train.py",
        ("best-psnr keeps the worst checkpoint", '("val/psnr", "max")', '("val/psnr", "min")'),
        ("best-lpips keeps the worst checkpoint", '("val/lpips", "min")', '("val/lpips", "max")'),
        (
            "validate scores the untrained network",
            "ckpt_path=self.ckpt_path, weights_only=True)\n\n",
            "ckpt_path=None, weights_only=True)\n\n",
        ),
    ),
    *_of(
        "training/command.py",
        "training/test_takeover.py",
        ("--auto_resume false resumes", "elif self.config.auto_resume:", "else:"),
    ),
    *_of(
        "training/scores.py",
        "training/test_values.py",
        ("validation scores the prediction for the restoration", '{"": outputs.images,', '{"": outputs.predictions,'),
        ("a score that is not finite is left out of the mean", 'value = torch.tensor(float("nan"))', "continue"),
        ("the blurry image is scored against itself", '"_blurry": batch["blurry"].float()}', '"_blurry": sharp}'),
    ),
    *_of(
        "training/averages.py",
        "training/test_speed.py test_train.py::test_a_run_leaves_checkpoints_logs_config_and_the_averaged_pipeline",
        ("ema.decay is ignored", "get_ema_multi_avg_fn(decay)", "get_ema_multi_avg_fn()"),
    ),
    *_of(
        "benchmarks/speed.py",
        "training/test_values.py training/test_speed.py",
        ("data_wait is the share of work", "clock.waited / clock.seconds", "1 - clock.waited / clock.seconds"),
        ("crops are counted by batches", 'self.crops += len(batch["sharp"])', "self.crops += 1"),
        ("mfu leaves the denoiser out", "flops += _flops(module.denoiser", "_flops(module.denoiser"),
        ("speeds are those since the start", "        self.crops = 0\n        clock.reset()", "        self.crops = 0"),
    ),
    *_of(
        "training/tracking.py",
        "training/test_values.py training/test_tracking.py",
        (
            "losses by noise level stand in the other order",
            'outputs["alpha_bar"].logit()',
            '-outputs["alpha_bar"].logit()',
        ),
        ("losses by noise level are those since the start", "self.sums = torch.zeros_like(self.sums)", "pass"),
    ),
    *_of(
        "training/guards.py",
        "training/test_values.py training/test_guards.py",
        (
            "colours drift from the sharp image's",
            '- batch["blurry"].float().mean((0, 2, 3))',
            '- batch["sharp"].float().mean((0, 2, 3))',
        ),
        ("a skipped step leaves its buffers", "buffer.copy_(before)", "pass"),
    ),
    *_of(
        "training/scale.py",
        "training/test_ranks.py::test_a_run_says_how_large_its_steps_are",
        (
            "the learning rate grows with the crops and not with their root",
            "math.sqrt(crops / self.lr_batch)",
            "crops / self.lr_batch",
        ),
    ),
    *_of(
        "training/resume.py",
        "training/test_takeover.py training/test_resume.py",
        (
            "a resumed run keeps the old weight decay",
            'group["betas"], group["weight_decay"] = tuple(pl_module.betas), pl_module.weight_decay',
            'group["betas"] = tuple(pl_module.betas)',
        ),
        ("the last but one checkpoint is not kept", "if path.name == LAST and path.is_file():", "if False:"),
        (
            "an older checkpoint of a requeued job is taken",
            "requeued.stat().st_mtime > found[0]",
            "requeued.stat().st_mtime < found[0]",
        ),
    ),
    *_of(
        "benchmarks/refiner_gates.py",
        "test_refiner_gates.py",
        ("flat is flat by itself and not beside the images", "(local < FLAT * overall)", "(local < FLAT)"),
        (
            "the slope is of the estimate on the residual",
            'regions["edge"].product / max(regions["edge"].estimate',
            'regions["edge"].product / max(regions["edge"].true',
        ),
    ),
    *_of(
        "data/blur.py",
        "data/test_blur.py",
        ("noise has the variance as its deviation", "(shot * light + read**2).sqrt()", "(shot * light + read**2)"),
        ("the response gamma is always 2.2", "light ** (1 / gamma)", "light ** (1 / 2.2)"),
        (
            "JPEG has its lowest quality alone",
            "round(self.jpeg[0] + (self.jpeg[1] - self.jpeg[0]) * quality)",
            "round(self.jpeg[0])",
        ),
        ("a moving object's own light stays behind", "moved[:3] + (1 - moved[3:]) * scene", "moved[:3] + scene"),
        ("the clean share has JPEG", "if self.jpeg is not None and not clean:", "if self.jpeg is not None:"),
    ),
    *_of(
        "data/camera.py",
        "data/test_camera.py",
        (
            "kernels are mirrored",
            "torch.fft.rfft2(kernel.to(inside), size).conj()",
            "torch.fft.rfft2(kernel.to(inside), size)",
        ),
        (
            "measured kernels are centred along the wrong axes",
            "round((kernel.sum(1) @ offsets).item()), round((kernel.sum(0) @ offsets).item())",
            "round((kernel.sum(0) @ offsets).item()), round((kernel.sum(1) @ offsets).item())",
        ),
        ("trajectories start at the middle", "return trajectory - trajectory.mean(0)", "return trajectory"),
    ),
    *_of(
        "data/pairs.py",
        "data/test_pairs.py",
        ("every pass has the same order", 'generator_of(seed, "order", epoch)', 'generator_of(seed, "order")'),
        (
            "crops never touch the last row and column",
            "(draw(height - size + 1), draw(width - size + 1)",
            "(draw(max(1, height - size)), draw(max(1, width - size))",
        ),
        ("reduced images alias", "antialias=True", "antialias=False"),
        ("crops of one photograph have one blur", "seed_of(self.seed, number, i)", "seed_of(self.seed, number)"),
        ("photographs are validated with one blur", "seed_of(self.seed, name)}", "seed_of(self.seed)}"),
        (
            "every window is mixed alike",
            'generator_of(self.seed, "window", window)',
            'generator_of(self.seed, "window")',
        ),
    ),
    *_of(
        "data/datamodule.py",
        "data/test_datamodule.py",
        ("val_crop is ignored", '"val", self.val_crop)', '"val", None)'),
        ("variant is ignored", "source.list_pairs(split, self.variant)", "source.list_pairs(split)"),
        (
            "all processes see the same crops",
            "first = (batch * world + rank) * self.per_batch",
            "first = batch * world * self.per_batch",
        ),
    ),
    *_of(
        "data/images.py",
        "data/test_images.py",
        ("values are cut off and not rounded", "clamp(0, 1).mul_(levels).round_()", "clamp(0, 1).mul_(levels)"),
        ("photographs lie on the wrong side", "if orientation in (2, 3, 6, 7):", "if orientation in (2, 3, 7, 8):"),
        ("alpha keeps the numbers of another depth", "like.alpha.float().mul_(levels / most)", "like.alpha.float()"),
    ),
    *_of(
        "data/layouts.py",
        "data/test_layouts.py",
        ("RealBlur's sides are swapped", "for sharp, blurry in rows]", "for blurry, sharp in rows]"),
        (
            "HIDE's other split is alone",
            "for name, file in sharp.items() if name not in other}",
            "for name, file in sharp.items()}",
        ),
        ("a manifest's splits are all taken", 'if row.get("split") in (None, split)]', "]"),
    ),
    *_of(
        "data/scored_pairs.py",
        "test_flags.py::test_a_flag_of_evaluate_py_does_what_it_says",
        ("--limit takes the first pairs", "pairs[k * len(pairs) // count]", "pairs[k]"),
    ),
    *_of(
        "evaluation/pixels.py",
        "evaluation/test_pixels.py",
        ("values are not rounded to those of a file", ".mul(255).round()", ".mul(255)"),
        ("SSIM has another constant", "(0.03 * levels) ** 2", "(0.01 * levels) ** 2"),
    ),
    *_of(
        "evaluation/perceptual.py",
        "evaluation/test_perceptual.py",
        ("LPIPS sees [0, 1]", "(restored / 127.5 - 1, sharp / 127.5 - 1)", "(restored / 255, sharp / 255)"),
        ("the perceptual loss forgets its weight", "return self.weight * network(", "return network("),
    ),
    *_of(
        "evaluation/alignment.py",
        "evaluation/test_alignment.py",
        (
            "the aligned image keeps its own intensity",
            "image = (image * target).sum() / power * image",
            "image = 1 * image",
        ),
    ),
    *_of(
        "evaluation/statistics.py",
        "evaluation/test_statistics.py",
        ("the bootstrap ignores the seed", "np.random.default_rng(seed)", "np.random.default_rng(0)"),
        ("small samples have narrow intervals", "ndtr((n / (n - 1)) ** 0.5 * stdtrit(n - 1, 0.025))", "0.025"),
    ),
    *_of(
        "evaluation/scoring.py",
        "evaluation/test_scoring.py",
        (
            "seconds leave the predictor out",
            "before + seconds * setting.num_samples / drawn",
            "seconds * setting.num_samples / drawn",
        ),
        ("a setting gets the score of its first sample", ".double().mean().item()", ".double()[0].item()"),
        (
            "every process restores all images",
            "batches[plan.processes.global_rank :: plan.processes.world_size]",
            "batches",
        ),
    ),
    *_of(
        "evaluation/scoring.py",
        "test_flags.py test_evaluate.py test_evaluate_command.py",
        ("another seed goes on with the scores of the first", '        "seed": facts["seed"],\n', ""),
    ),
    *_of(
        "evaluation/summary.py",
        "evaluation/test_summary.py evaluation/test_scoring.py evaluation/test_report.py",
        (
            "differences have the wrong sign",
            'gaps = compared.sub(part[PREDICTOR], axis="index")',
            'gaps = -compared.sub(part[PREDICTOR], axis="index")',
        ),
        (
            "the presets' ends are swapped",
            "perceptual, fidelity = front[0], front[-1]",
            "fidelity, perceptual = front[0], front[-1]",
        ),
        (
            "the front has what another row equals on one axis and beats on the other",
            "a >= x and b >= y and (a, b) != (x, y)",
            "a > x and b > y",
        ),
    ),
    *_of(
        "evaluation/comparison.py",
        "test_evaluate.py::test_two_checkpoints_are_compared_on_the_same_images_and_noise",
        ("A - B stands for B - A", "pairs[:, 1] - pairs[:, 0]", "pairs[:, 0] - pairs[:, 1]"),
    ),
    *_of(
        "evaluation/controls.py",
        "evaluation/test_controls.py",
        ("a control's highest LPIPS counts", "float(min(found, ", "float(max(found, "),
        ("all images have the same control noise", "default_rng([seed, *name.encode()])", "default_rng([seed])"),
    ),
    *_of(
        "evaluation/grid.py",
        "evaluation/test_grid.py",
        ("ranges are never logarithmic", '(np.linspace if spacing == "linear" else np.geomspace)', "np.linspace"),
    ),
    *_of(
        "evaluate.py",
        "test_flags.py test_evaluate.py test_evaluate_command.py",
        ("--metrics is ignored", '*self.metrics.replace(" ", "").split(",")', '"lpips"'),
        (
            "--variant is ignored",
            "evaluation.split, evaluation.variant, evaluation.limit",
            'evaluation.split, "blur", evaluation.limit',
        ),
        (
            "--split is ignored",
            "scored_pairs(evaluation.data, evaluation.split,",
            'scored_pairs(evaluation.data, "test",',
        ),
        (
            "--precision is ignored",
            "load_pipeline(checkpoint, on, evaluation.precision,",
            'load_pipeline(checkpoint, on, "fp32",',
        ),
        ("--batch_size is ignored", "batch_size=evaluation.batch_size,", "batch_size=None,"),
        (
            "a checkpoint is compared with itself",
            "checkpoints=None, checkpoint=checkpoint,",
            "checkpoints=None, checkpoint=evaluation.checkpoints[0],",
        ),
    ),
    *_of(
        "sample.py",
        "test_flags.py test_sample.py",
        ("--overwrite is ignored", "if options.overwrite or not", "if not"),
    ),
    *_of(
        "restoration/restorer.py",
        "test_flags.py test_sample.py",
        ("--memory is ignored", "allowed_memory(self.options.memory,", "allowed_memory(None,"),
        ("--seed is ignored", "            self.options.seed,\n", "            0,\n"),
        ("--tile is ignored", "            tile=self.options.tile,", "            tile=None,"),
        ("--predictor_tile is ignored", "predictor_tile=self.options.predictor_tile,", "predictor_tile=None,"),
        ("--on_fault fallback only warns", 'options.on_fault == "fallback"', "False"),
        ("--precision is ignored", "device or options.device, options.precision,", 'device or options.device, "fp32",'),
        ("--batch_size is ignored", "self.options.batch_size or (1 if", "(1 if"),
        ("batches on a CPU", '(1 if self.pipeline.device.type == "cpu" else None)', "None"),
        ("--compile is ignored", "if options.compile:", "if False:"),
        ("another --depth is done before", '"compare", "depth", "tile"', '"compare", "tile"'),
        ("all images have the same noise", "names=[path.stem for path, _, _ in loaded]", 'names=["" for _ in loaded]'),
        (
            "the comparison shows the prediction twice",
            "out.predictions[0], restored)",
            "out.predictions[0], out.predictions[0])",
        ),
    ),
    *_of(
        "batch/command.py",
        "batch/test_batch.py::test_what_could_not_be_restored_is_listed_with_its_reason",
        ("what died with a worker is forgotten", "    for row in left.values():", "    for row in ():"),
    ),
    *_of(
        "batch/worker.py",
        "batch/test_batch.py::test_outputs_are_those_of_sample_py_to_the_bit",
        ("the tree of the source is lost", "file.relative_to(out).as_posix()", "file.name"),
    ),
    *_of(
        "batch/store.py",
        "batch/test_store.py",
        ("rows of other settings count as done", "if facts.items() <= row.items()", 'if row["error"] is None'),
        ("a changed photograph counts as done", '== (row["bytes"], row["modified"])', "is not None"),
        ("a row is there twice", "self.table.filter(~pc.field", "self.table.filter(pc.field"),
        ("a file is written under its own name", "key if self._is_bucket else", "key if True else"),
        ("another image's file is removed", "self._replaced.difference(", "self._replaced.union("),
    ),
    *_of(
        "web/results.py",
        "web/test_results.py test_app.py",
        ("what is painted is protected in any case", "return 1 - mask if outside else mask", "return 1 - mask"),
        ("all samples are the first", 'self.kept.read(f"r_{k}")', 'self.kept.read("r_0")'),
        ("the prediction's command draws a sample", "wanted = replace(self.preset, blend=0.0)", "wanted = self.preset"),
        ("a mask is forgotten", "if self.mask is not None:\n            blend", "if False:\n            blend"),
    ),
    *_of(
        "models/onnx_network.py",
        "deployment/test_export.py deployment/test_hostile.py",
        ("images are padded with black", 'mode="replicate")', 'mode="constant")'),
        ("images are padded to the stride", "-length % self.facts.multiple", "-length % self.stride"),
        ("of several images the first is returned", "else torch.cat(results)", "else results[0]"),
        ("tensors in other files are read", "if tensor.data_location or tensor.external_data:", "if False:"),
        ("a tensor may claim any size", "if not _is_whole(tensor):", "if False:"),
        ("any operator is run", "or node.op_type not in OPERATORS:", "or False:"),
        ("a graph may grow without bounds", "if prod(known[result]) > LARGEST * side**2:", "if False:"),
    ),
    *_of(
        "evaluation/perceptual.py",
        "evaluation/test_perceptual.py",
        ("making LPIPS draws random numbers", '"__module__", None) == "torch.nn.init"', '"__module__", None) == ""'),
    ),
    *_of(
        "base/stop.py",
        "test_train.py",
        ("a fault ends with exit code 0", "        return 2\n", "        return 0\n"),
    ),
]
