"""The whole restoration: predict, then refine. Validation, sample.py and evaluate.py all restore through here."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn

from deblur.calibration import ErrorCurve
from deblur.devices import bytes_per_pixel, require_compiler
from deblur.image_processor import (
    OUTPUT_TYPES,
    Image,
    read_images,
    restorable,
    size_of,
    visible_pixels,
    with_hidden_filled,
    write_images,
)
from deblur.keep_sharp import Samples, blended, kept, restored_share, to_network, to_world
from deblur.models.diffusion import ScaleKind, expected_size, residual_size
from deblur.models.networks.base import BaseOutput, ConfigMixin, DDPMScheduler
from deblur.models.samplers import FIELDS, Denoise, Progress, noise_generator, sample_residual
from deblur.onnx.network import OnnxNetwork
from deblur.settings import SamplingSettings, preset_settings
from deblur.tiling import Tiling, TooLittleMemory
from deblur.working_size import WorkingSize, chosen_scale, reduced, reduced_visible, resized, with_change


@dataclass(frozen=True)
class Prediction:
    """The predictor's estimates, in the networks' range [-1, 1].

    Args:
        x_init: (N, 3, H, W), float32, not clipped.
        log_size: log of the expected |x - x_init|, (N, 1, H, W); None if the predictor has no size head.
        error_curve: from that to the error that was measured; None: it is not calibrated.
    """

    x_init: Tensor
    log_size: Tensor | None = None
    error_curve: ErrorCurve | None = None

    @property
    def images(self) -> Tensor:
        """The estimates in [0, 1], clipped."""
        return to_world(self.x_init)

    @property
    def expected_error(self) -> Tensor | None:
        """The expected |x - x_init| (N, 1, H, W) in units of the [0, 1] range, if the predictor has a size head."""
        if self.log_size is None:
            return None
        estimate = expected_size(self.log_size).div_(2)
        return estimate if self.error_curve is None else self.error_curve.expected(estimate)


@dataclass
class DeblurOutput(BaseOutput):
    """The result of a restoration. Tensors are float32 in [0, 1]; images can also be PIL images or arrays.

    Args:
        images: the N * num_samples restored images, with the samples of one image in a row; N if averaged.
        predictions: the predictor's N estimates.
        std: standard deviation over the samples (N, 3, H, W), in units of the [0, 1] range; None for one sample.
        expected_error: the predictor's own estimate of |x - x_init| (N, 1, H, W), in units of the [0, 1] range,
            calibrated if the checkpoint is; None if it has no size head.
        share: weights of the restored images over their inputs (N, 1, H, W), or (N, 1, 1, 1) if all is restored in
            full, by `deblur.keep_sharp.restored_share`.
        tiles: side of each network's tiles, without their halo; None for the whole image.
        scale: at which the images were restored.
    """

    images: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    predictions: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    std: Tensor | None
    expected_error: Tensor | None = None
    share: Tensor | None = None
    tiles: dict[str, int | None] | None = None
    scale: float = 1.0


class DeblurPipeline(ConfigMixin):
    """Predict, then refine (Whang et al. 2022).

    Args:
        predictor: g, blurry -> x_init.
        denoiser: f; None for a predictor alone.
        scheduler: the noise schedule of training. Each call builds the scheduler for its own settings.
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
        c = torch.tensor(residual_scale, dtype=torch.float64).tolist()
        self.error_curve = ErrorCurve(**error_curve) if error_curve else None
        self.working_size = WorkingSize(**working_size) if working_size is not None else None
        optional = {"error_curve": error_curve, "sigma_min": sigma_min, "sigma_max": sigma_max}
        optional["working_size"] = working_size
        given = {name: value for name, value in optional.items() if value}
        self.register_to_config(residual_scale=c, presets=presets or {}, scale_kind=scale_kind, **given)
        self.precision: str | None = None  # of the networks, if load_pipeline chose it
        self.compiled = False
        self._tilings: dict[str, Tiling] = {}  # those of the last call

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> "DeblurPipeline":
        """Load a checkpoint: diffusers' name of `deblur.checkpoints.load_pipeline`, with the same arguments."""
        from deblur.checkpoints import load_pipeline  # not at the top: it makes pipelines, so it imports this

        return load_pipeline(source, **options)

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
        for network in (self.predictor, self.denoiser):
            if network is not None:
                network.to(device)
        return self

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
    def predict(
        self, blurry: Tensor, tile: int | None = None, memory: int | None = None, stages: int | None = None
    ) -> Prediction:
        """Predict from blurry images (N, 3, H, W) in [0, 1].

        `tile` is the side of the tiles' cores, `memory` as in `__call__`; None: the whole image, or tiles that fit into
        memory. `stages` as in `SamplingSettings`.

        Raises:
            ValueError: the predictor has no stages, or fewer.
        """
        self._tilings = {}
        self.require_stages(stages)
        network = self.predictor if stages is None else partial(self.predictor, stages=stages)
        output = self._tiling("predictor", tile, memory)(network, [to_network(blurry.float())])
        return Prediction(output[:, :3], output[:, 3:] if output.shape[1] > 3 else None, self.error_curve)

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

    def sample(
        self,
        blurry: Tensor,
        prediction: Prediction,
        settings: SamplingSettings,
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Progress = iter,
        tile: int | None = None,
        memory: int | None = None,
    ) -> Iterator[Tensor]:
        """Draw `settings.num_samples` samples of the scaled residual r_0 (N, 3, H, W), one at a time.

        `deblur.keep_sharp.blended` makes images from them; the other arguments are those of `refine_shared` and
        `__call__`.

        Raises:
            ValueError: this checkpoint has no denoiser, or there are not as many names as images.
        """
        if self.denoiser is None:
            raise ValueError("this checkpoint holds a predictor and no denoiser: it can only predict, with blend 0")
        names, count = _names(names, len(blurry)), settings.num_samples
        tiling, s = self._tiling("denoiser", tile, memory, _fields(settings)), self.scale(prediction, blurry)
        blurry = to_network(blurry.float())
        trained = self.config.get("sigma_min", 0.0), self.config.get("sigma_max", math.inf)
        denoise = Denoise(self.denoiser, tiling, blurry, prediction.x_init, s, *trained)
        training_betas = torch.tensor(self.scheduler.config.trained_betas, dtype=torch.float64)
        betas = settings.betas(training_betas, *trained)
        draws = ([noise_generator(seed, name, k) for name in names] for k in range(count))
        return map(partial(sample_residual, denoise, settings, betas, progress, blurry), draws)

    @torch.no_grad()
    def refine_shared(
        self,
        blurry: Tensor,
        prediction: Prediction,
        settings: Sequence[SamplingSettings],
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Progress = iter,
        tile: int | None = None,
        memory: int | None = None,
        visible: Tensor | None = None,
    ) -> list[DeblurOutput]:
        """The diffusion part alone, once for each of several settings, which share their samples.

        A result does not depend on the other settings, and the total cost is that of the setting with the most samples.

        Args:
            blurry: (N, 3, H, W) in [0, 1].
            prediction: what `predict` returned for these images.
            settings: differ only in num_samples, average, blend and keep_sharp; `deblur.settings.sharing_samples` makes
                such groups.
            seed, names: a sample's noise depends only on the seed, its image's name and the sample's number. Without
                names all images start from the same noise field.
            progress: wraps the denoising steps, e.g. tqdm.
            tile, memory: as in `__call__`.
            visible: as in `deblur.keep_sharp.restored_share`.

        Returns:
            `DeblurOutput` of tensors for each of the settings.
        """
        names = _names(names, len(blurry))
        collected = [Samples(setting) for setting in settings]
        levels = {setting.keep_sharp for setting in settings}
        shares = {level: restored_share(blurry, prediction.x_init, level, visible) for level in levels}
        most = max(settings, key=lambda setting: setting.num_samples)
        if most.blend == 0 or not any(share.any() for share in shares.values()):
            for samples in collected:
                for _ in range(samples.setting.num_samples):
                    samples.add(kept(prediction.images, blurry, shares[samples.setting.keep_sharp]))
        else:
            s = self.scale(prediction, blurry)
            drawn = self.sample(blurry, prediction, most, seed, names, progress, tile, memory)
            for k, r_0 in enumerate(drawn):
                wanted = [samples for samples in collected if k < samples.setting.num_samples]
                for samples in wanted:
                    setting, last = samples.setting, samples is wanted[-1]  # the last one may overwrite r_0
                    x = blended(prediction.x_init, r_0, s, setting.blend, in_place=last)
                    samples.add(kept(x, blurry, shares[setting.keep_sharp]))
                del r_0
        images, error = prediction.images, prediction.expected_error
        return [
            DeblurOutput(samples.images(), images, samples.std(), error, shares[samples.setting.keep_sharp])
            for samples in collected
        ]

    @torch.no_grad()
    def __call__(
        self,
        image: Image | Sequence[Image] | Tensor,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        output_type: Literal["pil", "np", "pt"] | None = None,
        progress: Progress = iter,
        tile: int | None = None,
        predictor_tile: int | None = None,
        memory: int | None = None,
        preset: str | None = None,
        num_inference_steps: int | None = None,
        eta: float | None = None,
        generator: torch.Generator | None = None,
        scale: float | Literal["auto"] = "auto",
        mask: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DeblurOutput:
        """Restore one image, or several, which are a batch if they are of one size.

        Args:
            image: as `deblur.image_processor.read_images` takes it; any H and W. Grey images stay grey, and alpha and
                an array's depth are kept.
            settings: how to sample; None for those of `preset`.
            seed, names, progress: as in `refine_shared`.
            output_type: None: "np" for arrays, "pil" for all else. PIL images have 8 bits if they are in colour or grey
                with alpha.
            tile: side of the denoiser's tiles, without their halo; the result does not depend on it. None: the whole
                image, or tiles that fit into memory.
            predictor_tile: as `tile`, for the predictor. U2-Net's tiles are blended, which is not exact.
            memory: bytes that the process (on a GPU: its tensors there) should stay within; decides the tile size.
            preset: name of settings that are stored with the checkpoint, in place of `settings`.
            num_inference_steps, eta: diffusers' names of `steps` and `eta`, in place of those of the settings.
            generator: the seed is drawn from it, in place of `seed`.
            scale: above 0 and at most 1, at which images are restored; the change is enlarged and added to them. auto:
                by `working_scale`.
            mask: (H, W) in [0, 1], 1 where an image is restored, whatever `keep_sharp` says, and 0 where it is kept.
            visible: (N, 1, H, W) of bool; hidden pixels stay as they are, and their colours change no other. None:
                where alpha is not 0.

        Returns:
            `DeblurOutput`. Of images of different sizes `images` and `predictions` are lists, and the rest is None.

        Raises:
            ValueError: images of an unknown shape, type or range; an unknown output_type or preset; both settings and
                preset.
            TooLittleMemory: the smallest tiles need more than `memory`.
        """
        first = image[0] if isinstance(image, list | tuple) and image else image
        output_type = output_type or ("np" if isinstance(first, np.ndarray) else "pil")
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}")
        if preset is not None and settings is not None:
            raise ValueError(f"give settings or the preset {preset!r}, not both")
        settings = settings or self.preset(preset)
        given = {"steps": num_inference_steps, "eta": eta}
        settings = settings.changed({name: value for name, value in given.items() if value is not None})
        if generator is not None:
            seed = int(torch.randint(1 << 31, (), generator=generator, device=generator.device))
        if isinstance(image, list | tuple) and len({size_of(one) for one in image}) > 1:
            names = _names(names, len(image))
            options = {"output_type": output_type, "progress": progress, "tile": tile, "memory": memory}
            options |= {"predictor_tile": predictor_tile, "scale": scale, "mask": mask}
            each = [self([one], settings, seed, [name], **options) for one, name in zip(image, names, strict=True)]
            parts = (
                [restored for out in each for restored in getattr(out, name)] for name in ("images", "predictions")
            )
            return DeblurOutput(*parts, std=None)
        batch, layouts = read_images(image)
        given = batch.to(self.device)
        if memory is not None:
            self._require_memory(given, settings, tile, predictor_tile, memory)
        if visible is None:
            visible = visible_pixels([layout.alpha_plane() for layout in layouts])
        visible = None if visible is None else visible.to(self.device)
        if mask is not None:
            if mask.shape != given.shape[-2:]:
                raise ValueError(f"the mask is {tuple(mask.shape)}, and the image {tuple(given.shape[-2:])}")
            mask, settings = mask.to(self.device).float(), replace(settings, keep_sharp=0.0)
        if scale == "auto":
            scale = self.working_scale(given, visible, mask, memory)
        if not 0 < scale <= 1:
            raise ValueError(f"scale must be auto, or above 0 and at most 1, got {scale!r}")
        blurry = with_hidden_filled(given, visible)
        small = reduced(blurry, scale)
        seen = reduced_visible(visible, scale)
        prediction = self.predict(small, predictor_tile, memory, settings.stages)
        [output] = self.refine_shared(small, prediction, [settings], seed, names, progress, tile, memory, seen)
        output.tiles, output.scale = self.tiles(small), scale
        if scale < 1:
            _enlarge(output, blurry, small)
        _keep(output, given, visible, mask)
        if output_type != "pt":
            output.images = write_images(output.images, layouts, output_type)
            output.predictions = write_images(output.predictions, layouts, output_type)
        return output

    @torch.no_grad()
    def working_scale(
        self,
        blurry: Tensor,
        visible: Tensor | None = None,
        mask: Tensor | None = None,
        memory: int | None = None,
    ) -> float:
        """The scale at which images (N, 3, H, W) in [0, 1] are restored by `working_size`: the finest that one needs.

        The other arguments are those of `__call__`.
        """
        rule = self.working_size
        if rule is None:
            return 1.0

        def change(region: Tensor) -> Tensor:
            x_init = self.predict(region, memory=memory, stages=rule.stages).x_init
            return (to_world(x_init) - region).mul_(restored_share(region, x_init, rule.keep_sharp))

        visible = None if visible is None else visible.to(self.device)
        mask = None if mask is None else mask.to(self.device)
        blurry, weight = with_hidden_filled(blurry.to(self.device), visible), restorable(visible, mask)
        weights = [None] * len(blurry) if weight is None else weight.expand(len(blurry), 1, -1, -1).split(1)
        pairs = zip(blurry.split(1), weights, strict=True)
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

    def tiles(self, image: Tensor) -> dict[str, int | None]:
        """Side of each network's tiles in the last call, for an image (N, C, H, W); None for the whole image."""
        return {name: tiling.side(image) for name, tiling in self._tilings.items()}

    def _tiling(
        self, name: Literal["predictor", "denoiser"], tile: int | None, memory: int | None, fields: int = 1
    ) -> Tiling:
        """How a network is called on images of any size."""
        network = getattr(self, name)
        takes, fixed = bytes_per_pixel(network), getattr(network, "fixed_tile", None)
        if tile is None and fixed is None:
            fixed = getattr(network, "own_tile", None)
        self._tilings[name] = Tiling(network.receptive_field, network.stride, tile, memory, fields, takes, fixed)
        return self._tilings[name]

    def _require_memory(
        self, blurry: Tensor, settings: SamplingSettings, tile: int | None, predictor_tile: int | None, memory: int
    ) -> None:
        """Raise TooLittleMemory, with what suffices for both networks, before the first of them runs."""
        needed = self._tiling("predictor", predictor_tile, memory).least_memory(blurry)
        if settings.blend > 0 and self.denoiser is not None:
            fields = _fields(settings) + 3  # the prediction, its scale and the input in the networks' range
            needed = max(needed, self._tiling("denoiser", tile, memory, fields).least_memory(blurry))
        if needed > memory:
            raise TooLittleMemory(needed)

    def scale(self, prediction: Prediction, blurry: Tensor) -> Tensor:
        """s(p) (N, 1, H, W), or (N, 3, H, W) for three numbers c, from blurry images in [0, 1]."""
        kind, predicted = self.config.scale_kind, prediction.x_init
        if kind == "local":
            blurry = to_network(blurry.float())
        elif kind == "learned":  # which uses the fourth channel alone
            predicted = prediction.log_size.expand(-1, 4, -1, -1)
        size = residual_size(kind, predicted, blurry)
        return torch.tensor(self.config.residual_scale).to(size).view(-1, 1, 1) * size


def _fields(settings: SamplingSettings) -> int:
    """Tensors of the image's size while samples are drawn: the sampler's, and mean and deviation of several."""
    return FIELDS[settings.sampler] + 2 * (settings.num_samples > 1)


def _enlarge(output: DeblurOutput, blurry: Tensor, small: Tensor) -> None:
    """Bring what was made of reduced images to the size of the images."""
    size = blurry.shape[-2:]
    output.images = with_change(blurry, small, output.images)
    output.predictions = with_change(blurry, small, output.predictions)
    for name in ("std", "expected_error", "share"):
        values = getattr(output, name)
        if values is not None and values.numel() > len(values):
            setattr(output, name, resized(values, *size).clamp_min_(0))


def _keep(output: DeblurOutput, given: Tensor, visible: Tensor | None, mask: Tensor | None) -> None:
    """Put the given images (N, 3, H, W) back where a mask is black, and where they are hidden."""
    if visible is not None:
        output.predictions = kept(output.predictions, given, visible.float())
    weight = restorable(visible, mask)
    if weight is None:
        return
    weight, times = weight.expand(len(given), 1, -1, -1), len(output.images) // len(given)
    each = weight.repeat_interleave(times, 0)
    output.images = kept(output.images, given.repeat_interleave(times, 0), each)
    output.std = None if output.std is None else output.std.mul_(weight)
    if mask is not None:
        output.share = weight


def _names(names: Sequence[str] | None, images: int) -> Sequence[str]:
    """One name for each image, empty if none are given."""
    if names is not None and len(names) != images:
        raise ValueError(f"{images} images, but {len(names)} names")
    return [""] * images if names is None else names
