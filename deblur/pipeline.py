"""The whole restoration: predict, then refine. Validation, sample.py and evaluate.py all restore through here."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from deblur.architectures import Classes
from deblur.calibration import ErrorCurve
from deblur.checkpoints import PARTS, arguments_of, convert_layers, read_arguments
from deblur.devices import choose_device, require_compiler, resolve_precision
from deblur.draft import Blurry, DeblurOutput, Draft, Prediction
from deblur.hub import CheckpointError
from deblur.image_processor import (
    OUTPUT_TYPES,
    Image,
    as_array,
    read_images,
    restorable,
    visible_pixels,
    write_images,
)
from deblur.keep_sharp import restored_share
from deblur.models.diffusion import (
    LARGEST_SIZE,
    Estimator,
    ScaleKind,
    clip_residual,
    predict,
    residual_size,
    to_network,
    to_world,
)
from deblur.models.networks.mixins import ConfigMixin, DDPMScheduler, randn_tensor
from deblur.models.samplers import Multistep, Step, ddim_step, ddpm_step, sample
from deblur.models.schedules import betas_of, levels_of
from deblur.onnx.network import OnnxNetwork, Precision, Provider
from deblur.seeds import noise_seed
from deblur.settings import Sampler, SamplingSettings, preset_settings
from deblur.tiling import Limits, Tiled, TooLittleMemory, banded
from deblur.working_size import WorkingSize, chosen_scale

LARGEST_PREDICTION = 3.0  # in [-1, 1]; the published networks stay below 1.7, also on noise, stripes and flat colours
DISCARDED_AROUND = 32  # pixels

# Tensors of an image's size that are allocated during a step, the estimate of r_0 among them. Our own steps take bands
# of rows; the multistep solvers of diffusers keep estimates and compute on whole images.
FIELDS: dict[Sampler, int] = {"ddpm": 3, "ddim": 3, "dpmsolver++": 6, "unipc": 10}

Progress = Callable[[Iterable], Iterable]


@dataclass(frozen=True, eq=False)
class Area:
    """What of an image is restored, and how large the networks see it.

    Args:
        scale: above 0 and at most 1, at which images are restored; the change is enlarged and added to them. auto: by
            the checkpoint's `working_size`.
        mask: (H, W) in [0, 1], 1 where an image is restored, whatever `keep_sharp` says, and 0 where it is kept.
        visible: (N, 1, H, W) of bool; hidden pixels stay as they are, and their colours change no other. None: where
            alpha is not 0.
    """

    scale: float | Literal["auto"] = "auto"
    mask: Tensor | None = None
    visible: Tensor | None = None


NO_LIMITS, WHOLE = Limits(), Area()


class DeblurPipeline(ConfigMixin):
    """Predict, then refine (Whang et al. 2022).

    Args:
        predictor: g, blurry -> x_init.
        denoiser: f; None for a predictor alone.
        scheduler: the noise schedule of training, as files hold it; `levels` are those of its betas.
        residual_scale: c, standard deviation of (x - x_init) / m on the training data; 1 for the paper's unscaled
            residual. The residual's scale is s(p) = c m(p), with m by `models.diffusion.residual_size`. Three numbers:
            one for each of `models.diffusion.AXES`, along which r_0 is then expressed; 0 keeps the prediction's.
        presets: name -> fields of `SamplingSettings`, found by a grid search on this checkpoint.
        scale_kind: kind of m: global (1), local or learned.
        sigma_min, sigma_max: the least and the noisiest level that the denoiser was trained on, as sigma =
            sqrt((1 - alpha_bar) / alpha_bar). Sampling visits none beyond them. None: this end has no bound.
        error_curve: the fields of an `ErrorCurve`, which calibrates the error that a size head expects.
        working_size: the fields of a `WorkingSize`, by which the scale of a large image is chosen. None: it is 1.

    `pipeline(image).images[0]` restores one PIL image; without a denoiser it can only predict. `save_pretrained` writes
    a folder in the layout of diffusers, which `from_pretrained` reads.
    """

    config_name = "model_index.json"

    def __init__(
        self,
        predictor: nn.Module,
        denoiser: nn.Module | None,
        scheduler: DDPMScheduler,
        residual_scale: float | Sequence[float] = 1.0,
        presets: dict[str, dict] | None = None,
        scale_kind: ScaleKind = "global",
        error_curve: dict[str, list[float]] | None = None,
        sigma_min: float | None = None,
        sigma_max: float | None = None,
        working_size: dict[str, Any] | None = None,
    ):
        self.predictor, self.denoiser, self.scheduler = predictor, denoiser, scheduler
        self.levels = levels_of(torch.tensor(scheduler.config.trained_betas, dtype=torch.float64))  # the noisiest first
        c = torch.tensor(residual_scale, dtype=torch.float64).tolist()
        self.error_curve = ErrorCurve(**error_curve) if error_curve else None
        self.working_size = WorkingSize(**working_size) if working_size is not None else None
        optional = {"error_curve": error_curve, "sigma_min": sigma_min, "sigma_max": sigma_max}
        optional["working_size"] = working_size
        given = {name: value for name, value in optional.items() if value is not None}
        self.register_to_config(residual_scale=c, presets=presets or {}, scale_kind=scale_kind, **given)
        self.precision: str | None = None  # of the networks, if load_pipeline chose it
        self.compiled = False

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> "DeblurPipeline":
        """Load a checkpoint: diffusers' name of `load_pipeline`, with the same arguments."""
        return load_pipeline(source, **options)

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The predictor and, if there is one, the denoiser, by name."""
        return {part: getattr(self, part) for part in PARTS if getattr(self, part) is not None}

    @property
    def device(self) -> torch.device:
        """The device of the predictor's weights, which is where it computes."""
        weights = chain(self.predictor.parameters(), self.predictor.buffers())
        return next((weight.device for weight in weights), torch.device("cpu"))  # an OnnxNetwork has none

    @property
    def place(self) -> str:
        """Where the networks run: a device's name, or the engine of an ONNX folder."""
        return self.predictor.engine.place if isinstance(self.predictor, OnnxNetwork) else str(self.device)

    def to(self, device: str | torch.device) -> "DeblurPipeline":
        """Move the networks to a device, and return the pipeline. The engine of an ONNX folder stays where it is."""
        for network in self.networks.values():
            network.to(device)
        return self

    def describe(self) -> dict[str, Any]:
        """Everything but the weights, as plain values."""
        described = {
            part: {"class": type(network).__name__, "config": arguments_of(network.config)}
            for part, network in self.networks.items()
        }
        described["betas"] = list(self.scheduler.config.trained_betas)
        names = ("residual_scale", "scale_kind", "sigma_min", "sigma_max", "working_size")
        return described | {name: self.config.get(name) for name in names}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a pipeline folder, whose files get the permissions of the umask: safetensors would not."""
        for name in ("predictor", "denoiser", "scheduler"):
            part, names = getattr(self, name), [None, None]
            if part is not None:
                part.save_pretrained(Path(folder) / name)
                module = type(part).__module__
                names = ["diffusers" if module.startswith("diffusers.") else module, type(part).__name__]
            self.register_to_config(**{name: names})
        self.save_config(folder)
        mode = (Path(folder) / self.config_name).stat().st_mode
        for file in Path(folder).rglob("*.safetensors"):
            file.chmod(mode)

    def preset(self, name: str | None = None) -> SamplingSettings:
        """The settings stored with this checkpoint under a name, as `preset_settings` returns them."""
        return preset_settings(self.config.presets, name)

    @torch.no_grad()
    def predict(self, blurry: Tensor, stages: int | None = None, limits: Limits = NO_LIMITS) -> Prediction:
        """Predict from blurry images (N, 3, H, W) in [0, 1]; `stages` as in `SamplingSettings`.

        Raises:
            ValueError: the predictor has no stages, or fewer.
        """
        return self._predicted(self._tiled_predictor(limits, stages), blurry)

    def _predicted(self, g: Tiled, blurry: Tensor) -> Prediction:
        y = to_network(blurry.float())
        x_init, log_size = predict(g, y)
        outside = beyond_range(x_init)
        if outside is None:
            return Prediction(x_init, log_size, self.error_curve)
        if log_size is not None:
            log_size = log_size.nan_to_num(nan=math.log(LARGEST_SIZE))
        return Prediction(torch.where(outside, y, x_init), log_size, self.error_curve, outside)

    def require_stages(self, stages: int | None) -> None:
        """Raise ValueError if the predictor has not this many stages; None asks for none in particular."""
        most = getattr(self.predictor, "stages", None)
        if stages is None or (most is not None and 1 <= stages <= most):
            return
        if isinstance(self.predictor, OnnxNetwork):
            told = "an ONNX folder has those of its export: export the checkpoint again with that number, or omit it"
        elif most is None:
            told = "this checkpoint's predictor has no stages: omit it"
        else:
            told = f"this checkpoint's predictor has {most}: give 1 to {most}"
        raise ValueError(f"stages is {stages}, and {told}")

    @torch.no_grad()
    def __call__(
        self,
        image: Image | Sequence[Image] | Tensor,
        settings: SamplingSettings | str | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        output_type: Literal["pil", "np", "pt"] | None = None,
        progress: Progress = iter,
        limits: Limits = NO_LIMITS,
        area: Area = WHOLE,
    ) -> DeblurOutput:
        """Restore one image, or several, which are a batch if they are of one size.

        Args:
            image: as `deblur.image_processor.read_images` takes it; any H and W. Grey images stay grey, and alpha and
                an array's depth are kept.
            settings: how to sample, or the name of settings that are stored with the checkpoint. None: as `preset`.
            seed, names: a sample's noise depends only on the seed, its image's name and the sample's number. Without
                names all images start from the same noise field.
            output_type: None: "np" for arrays, "pil" for all else. PIL images have 8 bits if they are in colour or grey
                with alpha.
            progress: wraps the denoising steps, e.g. tqdm.
            limits: how much of an image the networks get at once.
            area: what is restored, and at which scale.

        Returns:
            `DeblurOutput`. Of images of different sizes `images` and `predictions` are lists, and the rest is None.

        Raises:
            ValueError: images of an unknown shape, type or range; an unknown output_type or preset.
            TooLittleMemory: the smallest tiles need more than the memory allowed.
        """
        first = image[0] if isinstance(image, list | tuple) and image else image
        output_type = output_type or ("np" if isinstance(first, np.ndarray) else "pil")
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}")
        settings = settings if isinstance(settings, SamplingSettings) else self.preset(settings)
        if isinstance(image, list | tuple):
            image = [as_array(one) for one in image]
        if isinstance(image, list) and len({one.shape[:2] for one in image}) > 1:
            names = _names(names, len(image))
            options = (output_type, progress, limits, area)
            each = [self([one], settings, seed, [name], *options) for one, name in zip(image, names, strict=True)]
            return DeblurOutput(
                [x for out in each for x in out.images], [x for out in each for x in out.predictions], None
            )
        batch, layouts = read_images(image)
        if area.visible is None:
            area = replace(area, visible=visible_pixels([layout.alpha_plane() for layout in layouts]))
        draft, samples = self.draw(batch, settings, seed, names, progress, limits, area)
        [output] = draft.restored(samples, [settings])  # x_init + blend s r_0, kept where y is sharp, and enlarged
        if output_type != "pt":
            output.images = write_images(output.images, layouts, output_type)
            output.predictions = write_images(output.predictions, layouts, output_type)
        return output

    def draw(
        self,
        images: Tensor,
        settings: SamplingSettings,
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Progress = iter,
        limits: Limits = NO_LIMITS,
        area: Area = WHOLE,
    ) -> tuple[Draft, Iterator[Tensor]]:
        """The networks' part of restoring images (N, 3, H, W) in [0, 1]: the draft, and samples, drawn as asked for.

        The arguments are those of a call. `Draft.restored` does the rest, for any blend.
        """
        names = _names(names, len(images))
        blurry = self.prepare(images, area, limits)  # hidden colours are filled, and large images reduced
        self._require_memory(blurry.small, settings, limits)
        draft = self.draft(blurry, settings.stages, limits)  # x_init = g(y), and the residual's scale s
        return draft, self.sample(draft, settings, seed, names, progress, limits)  # r_0, level by level

    @torch.no_grad()
    def prepare(self, images: Tensor, area: Area = WHOLE, limits: Limits = NO_LIMITS) -> Blurry:
        """Images (N, 3, H, W) in [0, 1] as the networks see them, on their device."""
        visible, mask = (None if x is None else x.to(self.device) for x in (area.visible, area.mask))
        if mask is not None and mask.shape != images.shape[-2:]:
            raise ValueError(f"the mask is {tuple(mask.shape)}, and the image {tuple(images.shape[-2:])}")
        if area.scale != "auto" and not 0 < area.scale <= 1:
            raise ValueError(f"scale must be auto, or above 0 and at most 1, got {area.scale!r}")
        whole = Blurry(images.to(self.device), visible, None if mask is None else mask.float())
        return replace(whole, scale=self._working_scale(whole, limits) if area.scale == "auto" else area.scale)

    @torch.no_grad()
    def draft(self, blurry: Blurry, stages: int | None = None, limits: Limits = NO_LIMITS) -> Draft:
        """The prediction, and what samples need beside it; `stages` as in `SamplingSettings`."""
        g = self._tiled_predictor(limits, stages)
        prediction = self._predicted(g, blurry.small)
        s = None if self.denoiser is None else self.scale(prediction, blurry.small)
        return Draft(blurry, prediction, s, {"predictor": g})

    def sample(
        self,
        draft: Draft,
        settings: SamplingSettings,
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Progress = iter,
        limits: Limits = NO_LIMITS,
    ) -> Iterator[Tensor]:
        """Draw `settings.num_samples` samples of the scaled residual r_0 (N, 3, h, w), each when it is asked for.

        The arguments are those of a call.

        Raises (with the first sample):
            ValueError: this checkpoint has no denoiser, or there are not as many names as images.
        """
        names = _names(names, len(draft.blurry.given))
        if self.denoiser is None:
            raise ValueError("this checkpoint holds a predictor and no denoiser: it can only predict, with blend 0")
        f = draft.tiled["denoiser"] = self._tiled_denoiser(limits, settings)
        y, x_init = to_network(draft.blurry.small.float()), draft.prediction.x_init
        levels = settings.levels(self.levels, self.config.get("sigma_min", 0.0), self.config.get("sigma_max", math.inf))
        clip = banded(clip_residual)
        for k in range(settings.num_samples):
            generators = [noise_generator(seed, name, k) for name in names]
            randn = partial(randn_tensor, generator=generators, device=y.device, dtype=y.dtype)
            yield sample(f, y, x_init, draft.s, levels, step_of(settings, levels), randn, progress, clip)

    def _working_scale(self, blurry: Blurry, limits: Limits) -> float:
        """The scale for images by the checkpoint's `working_size`: the finest that one of them needs."""
        rule = self.working_size
        if rule is None:
            return 1.0
        limits = replace(limits, predictor_tile=None)

        def change(region: Tensor) -> Tensor:
            x_init = self.predict(region, rule.stages, limits).x_init
            changed = to_world(x_init) - region
            return changed.mul_(restored_share(region, x_init, rule.keep_sharp)) if rule.keep_sharp else changed

        images, weight = blurry.filled, restorable(blurry.visible, blurry.mask)
        weights = [None] * len(images) if weight is None else weight.expand(len(images), 1, -1, -1).split(1)
        pairs = zip(images.split(1), weights, strict=True)
        return max(chosen_scale(one, change, rule, where) for one, where in pairs)

    def compile_networks(self) -> None:
        """Compile both networks in place, separately for each size of image or tile; the first calls are slow.

        On a GPU the denoiser's steps become CUDA graphs; the predictor, which runs once per image, gets none.

        Raises:
            ValueError: no C++ compiler on a CPU, or an ONNX folder.
        """
        if isinstance(self.predictor, OnnxNetwork):
            raise ValueError("there is nothing to compile in an ONNX folder: onnxruntime runs it as it is")
        require_compiler(self.device)
        self.compiled = True
        self.predictor.compile(dynamic=False)
        if self.denoiser is not None:
            graphs = "reduce-overhead" if self.device.type == "cuda" else None
            self.denoiser.compile(dynamic=False, mode=graphs)

    def _tiled_predictor(self, limits: Limits, stages: int | None = None) -> Tiled:
        self.require_stages(stages)
        g = self.predictor if stages is None else partial(self.predictor, stages=stages)
        return Tiled(g, self.predictor, limits.predictor_tile, limits.memory)

    def _tiled_denoiser(self, limits: Limits, settings: SamplingSettings, fields: float = 0) -> Tiled:
        """The estimator of r_0; `fields` are tensors of the image's size beside those of sampling."""
        fields += FIELDS[settings.sampler] + 2 * (settings.num_samples > 1)  # mean and deviation of several
        return Tiled(Estimator(self.denoiser), self.denoiser, limits.tile, limits.memory, fields)

    def _require_memory(self, images: Tensor, settings: SamplingSettings, limits: Limits) -> None:
        """Raise TooLittleMemory, with what suffices for both networks at the images' size, before one restores them."""
        if limits.memory is None:
            return
        needed = self._tiled_predictor(limits).least_memory(images)
        if settings.blend > 0 and self.denoiser is not None:
            # The prediction and the input in the networks' range; the expected size and the scale, by their channels.
            fields = 2 + (1 + torch.tensor(self.config.residual_scale).numel()) / 3
            needed = max(needed, self._tiled_denoiser(limits, settings, fields).least_memory(images))
        if needed > limits.memory:
            raise TooLittleMemory(needed)

    def scale(self, prediction: Prediction, blurry: Tensor) -> Tensor:
        """s(p) (N, 1, H, W), or (N, 3, H, W) for three numbers c, from blurry images in [0, 1]."""
        y, kind = to_network(blurry.float()), self.config.scale_kind
        size = residual_size(kind, y, prediction.x_init, prediction.log_size)
        return torch.tensor(self.config.residual_scale).to(size).view(-1, 1, 1) * size


def load_pipeline(
    source: str | Path,
    device: str | torch.device = "cpu",
    precision: Precision = "auto",
    provider: Provider | None = None,
    classes: Classes = (),
) -> DeblurPipeline:
    """Load a pipeline that is ready to restore: in eval mode, on the device, in the precision, channels last.

    Args:
        source: exported folder, Lightning .ckpt file, hub id "user/name" or "user/name@revision", or the name of a
            checkpoint that comes with the repository, such as lite.
        device: a torch device name, or auto for the first available of cuda, mps and cpu.
        precision: of the networks' layers; the schedule, the residual and normalisation statistics stay float32. auto
            is bf16 where the device supports it natively.
        provider: runs the networks of an ONNX folder: openvino (the default if it is installed), or cpu, cuda or
            tensorrt of ONNX Runtime. The tensors outside these networks stay on the CPU.
        classes: a user's own networks that the checkpoint names, as classes or as paths such as mypred.MyPredictor
            (docs/extend.md). A file alone never makes this program import a class.

    Raises:
        CheckpointError: the checkpoint is missing or incomplete, its weights belong to another architecture, or an
            ONNX file is damaged, was not exported here, or cannot be run on this machine.
    """
    source = str(source)
    pipeline = read_pipeline(source, provider, precision, classes)
    if isinstance(pipeline.predictor, OnnxNetwork):
        pipeline.precision = pipeline.predictor.engine.precision
        if str(device) not in ("auto", "cpu"):
            raise CheckpointError(
                f"{source} is an ONNX folder, whose tensors stay on the CPU: omit the device {device}; --provider says"
                " what runs the networks"
            )
        return pipeline
    if provider is not None:
        raise CheckpointError(
            f"{source} is no ONNX folder, which the provider {provider} would run: export it with tools.export_onnx, or"
            " omit --provider"
        )
    device = choose_device(str(device))
    pipeline.precision = resolve_precision(precision, device)
    dtype = torch.bfloat16 if pipeline.precision == "bf16" else torch.float32
    for network in pipeline.networks.values():
        network.requires_grad_(False).eval()
        nn.Module.to(network, device, memory_format=torch.channels_last)  # diffusers' own `to` loads the compiler
        convert_layers(network, dtype)
    return pipeline


def read_pipeline(
    source: str, provider: Provider | None = None, precision: Precision = "auto", classes: Classes = ()
) -> DeblurPipeline:
    """The pipeline of a source, as it is stored; of a .ckpt with its averaged weights.

    Raises CheckpointError as `load_pipeline` does.
    """
    return DeblurPipeline(**read_arguments(source, provider, precision, classes))


def beyond_range(x_init: Tensor) -> Tensor | None:
    """Where a prediction (N, 3, H, W) is no image's, and around it: (N, 1, H, W) of bool; None: nowhere.

    A network may give any values for an image unlike its training, also nan: coloured specks and patches.
    """
    if x_init.max() <= LARGEST_PREDICTION and x_init.min() >= -LARGEST_PREDICTION:  # neither is true of nan
        return None
    beyond = ~(x_init.abs() <= LARGEST_PREDICTION).all(dim=1, keepdim=True)
    return max_pool2d(beyond.float(), 2 * DISCARDED_AROUND + 1, stride=1, padding=DISCARDED_AROUND) > 0


def step_of(settings: SamplingSettings, levels: Tensor) -> Step:
    """The sampler's step, for one sample."""
    if settings.sampler == "ddpm":
        return banded(ddpm_step)
    if settings.sampler == "ddim":
        return banded(partial(ddim_step, eta=settings.eta))
    return Multistep(settings.sampler, levels)


def noise_generator(seed: int, name: str, sample: int) -> torch.Generator:
    """The random generator of one sample of one image, seeded only by the seed, the name and the sample's number.

    A CPU generator, so the noise is the same on every device, in every batch and in every order.
    """
    return torch.Generator().manual_seed(noise_seed(seed, sample, name))


def stored_schedule(levels: Tensor) -> DDPMScheduler:
    """A schedule as files hold it, diffusers' scheduler with its betas."""
    return DDPMScheduler(num_train_timesteps=len(levels), trained_betas=betas_of(levels).tolist())


def _names(names: Sequence[str] | None, images: int) -> Sequence[str]:
    """One name for each image, empty if none are given."""
    if names is not None and len(names) != images:
        raise ValueError(f"{images} images, but {len(names)} names")
    return [""] * images if names is None else names
