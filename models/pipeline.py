"""The whole restoration: predict, then refine. Validation, sample.py and evaluate.py all restore through here."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import torch
from diffusers import DDPMScheduler, DiffusionPipeline
from diffusers.utils import BaseOutput
from torch import Tensor, nn

# Loading a saved pipeline looks its classes up among the modules already imported.
import models.u2net
import models.unet
import models.untrained  # noqa: F401
from models.diffusion import add_residual, residual
from models.sampling import make_scheduler, noise_generator, sample_residual
from models.settings import SamplingSettings


@dataclass
class DeblurOutput(BaseOutput):
    """What a restoration returns. Tensors are float32 in [0, 1]; with output_type "pil" the pictures are PIL images.

    Args:
        images: the restored pictures: N * num_samples of them, all samples of the first picture first; N if averaged.
        predictions: the predictor's N estimates.
        std: standard deviation over the samples (N, 3, H, W), in units of the [0, 1] range; None for one sample.
    """

    images: Tensor | list[PIL.Image.Image]
    predictions: Tensor | list[PIL.Image.Image]
    std: Tensor | None


class DeblurPipeline(DiffusionPipeline):
    """Predict, then refine (Whang et al. 2022).

    Args:
        predictor: g, blurry -> x_init.
        denoiser: f; None for a predictor alone.
        scheduler: the noise schedule of training. Each call makes the scheduler that its settings ask for.
        residual_scale: s, standard deviation of x - x_init on the training data; 1 for the paper's unscaled residual.

    `pipeline(image).images[0]` restores one PIL picture. `save_pretrained(folder)` and `from_pretrained(folder or hub
    id)` keep all of it. Without a denoiser it predicts only.
    """

    _optional_components = ["denoiser"]  # noqa: RUF012 (the name diffusers reads)

    def __init__(
        self, predictor: nn.Module, denoiser: nn.Module | None, scheduler: DDPMScheduler, residual_scale: float = 1.0
    ):
        super().__init__()
        self.register_modules(predictor=predictor, denoiser=denoiser, scheduler=scheduler)
        self.register_to_config(residual_scale=float(residual_scale))

    @torch.no_grad()
    def predict(self, blurry: Tensor) -> Tensor:
        """x_init in the units of [0, 1], not clipped, float32. (N, 3, H, W) in [0, 1] -> the same shape."""
        return (self.predictor(_to_network(blurry)) + 1) / 2

    @torch.no_grad()
    def refine(
        self,
        blurry: Tensor,
        x_init: Tensor,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        progress: Callable[[Iterable], Iterable] = iter,
    ) -> DeblurOutput:
        """The diffusion part alone, on top of `predict`'s x_init.

        Args:
            blurry: (N, 3, H, W) in [0, 1].
            x_init: what `predict` returned for it.
            settings: how to sample; None for the defaults of `SamplingSettings`.
            seed, names: the noise of a sample comes from the seed, its picture's name and its number, nothing else.
                Without names all pictures start from the same noise field.
            progress: wraps the denoising steps, e.g. tqdm.

        Returns:
            `DeblurOutput` of tensors.
        """
        settings = settings or SamplingSettings()
        names = [""] * len(blurry) if names is None else names
        if len(names) != len(blurry):
            raise ValueError(f"{len(blurry)} pictures, but {len(names)} names")
        if self.denoiser is None and settings.blend > 0:
            raise ValueError("this checkpoint holds a predictor and no denoiser: it can only predict, with blend 0")
        s = self.config.residual_scale
        blurry, x_init = _to_network(blurry), _to_network(x_init)
        samples = []
        if settings.blend > 0:
            bounds = residual(-1.0, x_init, s), residual(1.0, x_init, s)
            training_betas = torch.tensor(self.scheduler.config.trained_betas, dtype=torch.float64)
            for k in range(settings.num_samples):
                r_0 = sample_residual(
                    self.denoiser,
                    blurry,
                    x_init,
                    make_scheduler(settings, training_betas),
                    settings.eta,
                    [noise_generator(seed, name, k) for name in names],
                    bounds,
                    progress,
                )
                samples.append(add_residual(x_init, settings.blend * r_0, s))
        else:
            samples = [x_init] * settings.num_samples
        stack = torch.stack([_to_world(x) for x in samples], dim=1)  # (N, K, 3, H, W)
        std = stack.std(dim=1, correction=1) if settings.num_samples > 1 else None
        images = stack.mean(dim=1) if settings.average else stack.flatten(0, 1)
        return DeblurOutput(images=images, predictions=_to_world(x_init), std=std)

    def __call__(
        self,
        image: PIL.Image.Image | Sequence[PIL.Image.Image] | Tensor,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        names: Sequence[str] | None = None,
        output_type: str = "pil",
        progress: Callable[[Iterable], Iterable] = iter,
    ) -> DeblurOutput:
        """Restore one picture or a batch of pictures of one size.

        Args:
            image: a PIL picture, a list of them, or a tensor (3, H, W) or (N, 3, H, W) in [0, 1]. Any H and W.
            settings, seed, names, progress: as in `refine`.
            output_type: "pil" or "pt".

        Raises:
            ValueError: pictures of different sizes, a tensor of another shape, an unknown output_type.
        """
        if output_type not in ("pil", "pt"):
            raise ValueError(f"output_type must be 'pil' or 'pt', got {output_type!r}")
        blurry = _to_tensor(image).to(self.device)
        output = self.refine(blurry, self.predict(blurry), settings, seed, names, progress)
        if output_type == "pil":
            output.images, output.predictions = _to_pil(output.images), _to_pil(output.predictions)
        return output


def _to_network(x: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1]."""
    return x.float() * 2 - 1


def _to_world(x: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clipped."""
    return ((x + 1) / 2).clamp(0, 1)


def _to_tensor(image: PIL.Image.Image | Sequence[PIL.Image.Image] | Tensor) -> Tensor:
    if isinstance(image, Tensor):
        batch = image[None] if image.ndim == 3 else image
        if batch.ndim != 4 or batch.shape[1] != 3:
            raise ValueError(f"a picture tensor must be (3, H, W) or (N, 3, H, W), got {tuple(image.shape)}")
        return batch
    pictures = [image] if isinstance(image, PIL.Image.Image) else list(image)
    if len({picture.size for picture in pictures}) != 1:
        raise ValueError(f"a batch needs pictures of one size, got {sorted({p.size for p in pictures})}")
    arrays = [np.asarray(picture.convert("RGB"), dtype=np.float32) / 255 for picture in pictures]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def _to_pil(images: Tensor) -> list[PIL.Image.Image]:
    arrays = (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [PIL.Image.fromarray(array) for array in arrays]
