"""The whole restoration: predict, then refine. Validation, sample.py and evaluate.py all restore through here."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn

from models.arrays import OUTPUT_TYPES, read_images, write_images
from models.bands import InBands, is_large
from models.devices import require_compiler
from models.diffusion import ScaleKind, residual_size
from models.memory import Footprint
from models.onnx_network import OnnxNetwork
from models.parts import BaseOutput, ConfigMixin, DDPMScheduler
from models.samples import Samples, blended, refined_share, to_network, to_world
from models.sampling import Progress, make_scheduler, noise_generator, sample_residual
from models.settings import SamplingSettings, preset_settings
from models.tiling import Tiling
from models.unet import UNet

Keep = Callable[[Literal["x_init", "s", "r_0"], Tensor], None]


@dataclass
class DeblurOutput(BaseOutput):
    """The result of a restoration. Tensors are float32 in [0, 1]; images can also be PIL images or arrays.

    Args:
        images: the N * num_samples restored images, with the samples of one image in a row; N if averaged.
        predictions: the predictor's N estimates.
        std: standard deviation over the samples (N, 3, H, W), in units of the [0, 1] range; None for one sample.
        expected_error: the predictor's own estimate of |x - x_init| (N, 1, H, W), in units of the [0, 1] range; None
            if it has no size head.
        tiles: side of each network's tiles, without their halo; None for the whole image.
    """

    images: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    predictions: Tensor | list[PIL.Image.Image] | list[np.ndarray]
    std: Tensor | None
    expected_error: Tensor | None = None
    tiles: dict[str, int | None] | None = None


class DeblurPipeline(ConfigMixin):
    """Predict, then refine (Whang et al. 2022).

    Args:
        predictor: g, blurry -> x_init.
        denoiser: f; None for a predictor alone.
        scheduler: the noise schedule of training. Each call builds the scheduler for its own settings.
        residual_scale: c, standard deviation of (x - x_init) / m on the training data; 1 for the paper's unscaled
            residual. The residual's scale is s(p) = c m(p), with m by `models.diffusion.residual_size`.
        presets: name -> fields of `SamplingSettings`, found by a grid search on this checkpoint.
        scale_kind: kind of m: global (1), local or learned.

    `pipeline(image).images[0]` restores one PIL image. `save_pretrained(folder)` writes the whole pipeline in the
    layout of diffusers, and `models.checkpoints.load_pipeline` reads it. Without a denoiser it can only predict.
    """

    config_name = "model_index.json"

    def __init__(
        self,
        predictor: nn.Module,
        denoiser: nn.Module | None,
        scheduler: DDPMScheduler,
        residual_scale: float = 1.0,
        presets: dict[str, dict] | None = None,
        scale_kind: ScaleKind = "global",
    ):
        self.predictor, self.denoiser, self.scheduler = predictor, denoiser, scheduler
        self.register_to_config(residual_scale=float(residual_scale), presets=presets or {}, scale_kind=scale_kind)
        self.precision: str | None = None  # of the networks, if load_pipeline chose it
        self.compiled = False
        self._tilings: dict[str, Tiling] = {}  # those of the last call
        self._footprints: dict[tuple, Footprint] = defaultdict(Footprint)

    @property
    def device(self) -> torch.device:
        """The device of the predictor's weights, which is where it computes."""
        weights = chain(self.predictor.parameters(), self.predictor.buffers())
        return next((weight.device for weight in weights), torch.device("cpu"))  # an OnnxNetwork has none

    @property
    def place(self) -> str:
        """Where the networks run: a device's name, or onnxruntime's provider for an ONNX folder."""
        network = self.predictor
        return f"onnxruntime {network.provider}" if isinstance(network, OnnxNetwork) else str(self.device)

    def save_pretrained(self, folder: str | Path, max_shard_size: str = "10GB") -> None:
        """Write a pipeline folder; a network larger than a shard is split into several files.

        Weight files get the permissions of the umask; safetensors alone would make them readable for the owner only.
        """
        for name in ("predictor", "denoiser", "scheduler"):
            part, names = getattr(self, name), [None, None]
            if part is not None:
                sizes = {} if part is self.scheduler else {"max_shard_size": max_shard_size}
                part.save_pretrained(Path(folder) / name, **sizes)
                module = type(part).__module__
                names = ["diffusers" if module.startswith("diffusers.") else module, type(part).__name__]
            self.register_to_config(**{name: names})
        self.save_config(folder)
        mode = (Path(folder) / self.config_name).stat().st_mode
        for file in Path(folder).rglob("*.safetensors"):
            file.chmod(mode)

    def preset(self, name: str) -> SamplingSettings:
        """The settings stored with this checkpoint under a name. ValueError if there are none."""
        return preset_settings(self.config.presets, name)

    @property
    def default_settings(self) -> SamplingSettings:
        """The preset balanced if this checkpoint has it, otherwise the defaults."""
        return preset_settings(self.config.presets)

    @torch.no_grad()
    def predict(self, blurry: Tensor, tile: int | None = None) -> Tensor:
        """Predict x_init from blurry images (N, 3, H, W) in [0, 1]: same shape and range, float32, not clipped.

        With a size head the result is (N, 4, H, W). Its last channel, which `refine_shared` may need, is the log of the
        expected |x - x_init| on the [-1, 1] scale.

        `tile` is the side of the tiles' cores; None: the whole image, or tiles that fit into memory.
        """
        prediction = self._predict(to_network(blurry.float()), tile)
        prediction[:, :3].add_(1).div_(2)
        return prediction

    @torch.no_grad()
    def refine_shared(
        self,
        blurry: Tensor,
        prediction: Tensor,
        settings: Sequence[SamplingSettings],
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Progress = iter,
    ) -> list[DeblurOutput]:
        """The diffusion part alone, once for each of several settings, which share their samples.

        A result does not depend on the other settings, and the total cost is that of the setting with the most samples.

        Args:
            blurry: (N, 3, H, W) in [0, 1].
            prediction: what `predict` returned for these images.
            settings: differ only in num_samples, average, blend and keep_sharp; `models.settings.sharing_samples` makes
                such groups.
            seed, names: a sample's noise depends only on the seed, its image's name and the sample's number. Without
                names all images start from the same noise field.
            progress: wraps the denoising steps, e.g. tqdm.

        Returns:
            `DeblurOutput` of tensors for each of the settings.
        """
        prediction = torch.cat([to_network(prediction[:, :3]), prediction[:, 3:]], dim=1)
        return self._refine(to_network(blurry.float()), prediction, settings, seed, names, progress)

    @torch.no_grad()
    def __call__(
        self,
        image: PIL.Image.Image | np.ndarray | Sequence[PIL.Image.Image | np.ndarray] | Tensor,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        output_type: Literal["pil", "np", "pt"] | None = None,
        progress: Progress = iter,
        tile: int | None = None,
        predictor_tile: int | None = None,
        memory: int | None = None,
        preset: str | None = None,
        keep: Keep | None = None,
    ) -> DeblurOutput:
        """Restore one image or a batch of images of one size.

        Args:
            image: as `models.arrays.read_images` takes it; any H and W. Grey images stay grey, and alpha and an array's
                depth are kept.
            settings: how to sample; None for `default_settings`.
            seed, names, progress: as in `refine_shared`.
            output_type: None: "np" for arrays, "pil" for all else. PIL images have 8 bits if they are in colour or grey
                with alpha.
            tile: side of the denoiser's tiles, without their halo; the result does not depend on it. None: the whole
                image, or tiles that fit into memory.
            predictor_tile: as `tile`, for the predictor. U2-Net's tiles are blended, which is not exact.
            memory: bytes that the process (on a GPU: its tensors there) should stay within; decides the tile size.
            preset: name of settings that are stored with the checkpoint, in place of `settings`.
            keep: called with a name and a tensor for each input of `blended`, to be copied at once: x_init, then s,
                then r_0 of each sample in turn; with blend 0 x_init alone.

        Raises:
            ValueError: images of different sizes, of an unknown shape, type or range; an unknown output_type or
                preset; both settings and preset.
            TooLittleMemory: the smallest tiles need more than `memory`.
        """
        one = image[0] if isinstance(image, list | tuple) and image else image
        output_type = output_type or ("np" if isinstance(one, np.ndarray) else "pil")
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type must be one of {', '.join(OUTPUT_TYPES)}, got {output_type!r}")
        if preset is not None and settings is not None:
            raise ValueError(f"give settings or the preset {preset!r}, not both")
        settings = self.preset(preset) if preset is not None else settings
        batch, layouts = read_images(image)
        self._tilings = {}
        blurry = to_network(batch.to(self.device))
        del batch
        prediction = self._predict(blurry, predictor_tile, memory)
        settings = [settings or self.default_settings]
        [output] = self._refine(blurry, prediction, settings, seed, names, progress, tile, memory, keep)
        output.tiles = {name: tiling.side(blurry) for name, tiling in self._tilings.items()}
        if output_type != "pt":
            output.images = write_images(output.images, layouts, output_type)
            output.predictions = write_images(output.predictions, layouts, output_type)
        return output

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

    def _predict(self, blurry: Tensor, tile: int | None, memory: int | None = None) -> Tensor:
        predictor, tiling = self._for_size("predictor", blurry, tile, memory)
        return tiling(predictor, [blurry])

    def _for_size(
        self,
        name: Literal["predictor", "denoiser"],
        image: Tensor,
        tile: int | None,
        memory: int | None,
        fields: int = 1,
    ) -> tuple[Callable[..., Tensor], Tiling]:
        """A network as a function suited to images of this size, and its tiling."""
        network = getattr(self, name)
        if isinstance(network, OnnxNetwork):
            facts = network.facts
            footprint, fixed = Footprint(facts.bytes_per_pixel), facts.side and (facts.side, facts.halo)
            tiling = Tiling(facts.receptive_field, facts.stride, tile, memory, fields, footprint, fixed)
            self._tilings[name] = tiling
            return network, tiling
        side = None if tile is None else tile + 2 * (network.receptive_field or 0)
        # torch.compile would generate code for every band.
        has_bands = isinstance(getattr(network, "unet", None), UNet) and not self.compiled
        banded = has_bands and is_large(image, side)
        footprint = self._footprints[name, banded, image.device.type]
        tiling = Tiling(network.receptive_field, network.stride, tile, memory, fields, footprint)
        self._tilings[name] = tiling
        return InBands(network) if banded else network, tiling

    def scale(self, prediction: Tensor, blurry: Tensor) -> Tensor:
        """s(p) (N, 1, H, W), from images in [-1, 1]."""
        return self.config.residual_scale * residual_size(self.config.scale_kind, prediction, blurry)

    def _refine(
        self,
        blurry: Tensor,
        prediction: Tensor,
        settings: Sequence[SamplingSettings],
        seed: int,
        names: Sequence[str] | None,
        progress: Progress,
        tile: int | None = None,
        memory: int | None = None,
        keep: Keep | None = None,
    ) -> list[DeblurOutput]:
        """`refine_shared` on images in [-1, 1]. At 24 megapixels a tensor has 288 MB, so few are kept alive."""
        names = [""] * len(blurry) if names is None else names
        if len(names) != len(blurry):
            raise ValueError(f"{len(blurry)} images, but {len(names)} names")
        one, K, x_init = settings[0], max(setting.num_samples for setting in settings), prediction[:, :3]
        if self.denoiser is None and one.blend > 0:
            raise ValueError("this checkpoint holds a predictor and no denoiser: it can only predict, with blend 0")
        expected_error = prediction[:, 3:].exp().div_(2) if prediction.shape[1] > 3 else None
        training_betas = torch.tensor(self.scheduler.config.trained_betas, dtype=torch.float64)
        if keep is not None:
            keep("x_init", x_init)
        if one.blend > 0:
            s = self.scale(prediction, blurry)
            shares = {level: refined_share(expected_error, level) for level in {own.keep_sharp for own in settings}}
            if keep is not None:
                keep("s", s * shares[one.keep_sharp])
            fields = 3 + 2 * (K > 1)  # three estimates (solvers keep two); mean and standard deviation of the samples
            denoiser, tiling = self._for_size("denoiser", blurry, tile, memory, fields)
        collected = [Samples(setting) for setting in settings]
        for k in range(K):
            wanted = [samples for samples in collected if k < samples.setting.num_samples]
            if one.blend == 0:
                for samples in wanted:
                    samples.add(to_world(x_init))
                continue
            shared = [noise_generator(seed, name, k) for name in names], s, progress, tiling
            scheduler = make_scheduler(one, training_betas)
            r_0 = sample_residual(denoiser, blurry, x_init, scheduler, one.eta, *shared)
            if keep is not None:
                keep("r_0", r_0)
            for samples in wanted:
                last, own = samples is wanted[-1], samples.setting  # the last one may overwrite r_0
                shown = s * shares[own.keep_sharp] if own.keep_sharp else s
                samples.add(blended(x_init, r_0, shown, own.blend, in_place=last))
            del r_0
        predictions = to_world(x_init)
        return [DeblurOutput(samples.images(), predictions, samples.std(), expected_error) for samples in collected]
