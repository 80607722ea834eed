"""Train a checkpoint's denoiser on its predictions, with all pairs in the memory of one GPU.

python -m tools.gpu_training pretrained/maxim --pairs PAIRS ... --output FOLDER

The predictor runs once on each pair. Then the denoiser, which starts with the checkpoint's weights, is trained for a
given time by the plain diffusion loss, and at the end by a perceptual term, too. No step waits for a disk or runs the
predictor again. For a GPU that is had for minutes; where there are hours, train.py does the same with validation, logs
and resuming.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from deblur.checkpoints import load_pipeline
from deblur.cli import call, run_command
from deblur.data.files import images, search
from deblur.devices import has_bf16
from deblur.evaluation.perceptual import PerceptualLoss
from deblur.keep_sharp import to_network
from deblur.models.diffusion import ScaleKind, residual, residual_size
from deblur.models.losses import Crops, Objective
from deblur.models.networks.base import Predictor

DECAY = 0.4  # the last part of a phase, in which the learning rate falls to zero
SIGMAS = (0.05, 12.0)  # noise levels of training, as sigma in units of r_0
PERCEPTUAL_SIGMA = 2.0  # the lowest of those at which the perceptual term counts
SAVE_EVERY = 120.0  # seconds between states of the denoiser: a lent machine may be taken back


class Pairs:
    """Crops of one size: uint8 (N, images, 3, side, side) on the device.

    The images are blurry, sharp, and x_init once they are predicted.
    """

    def __init__(self, name: str, weight: float, frames: Tensor):
        self.name, self.weight, self.frames = name, weight, frames
        self.log_size: Tensor | None = None  # (N, side, side), float16

    def draw(self, count: int, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """`count` crops (count, images, 3, side, side) of different pairs, all cut, flipped and turned alike."""

        def below(most: int, shape: tuple[int, ...] = ()) -> Tensor:
            return torch.randint(most, shape, generator=generator)

        room = self.frames.shape[-1] - side + 1
        top, left, turns, flip = int(below(room)), int(below(room)), int(below(4)), bool(below(2))
        chosen = below(len(self.frames), (count,)).to(self.frames.device)

        def cut(frames: Tensor) -> Tensor:
            crops = frames[..., top : top + side, left : left + side][chosen].rot90(turns, (-2, -1))
            return crops.flip(-1) if flip else crops

        return cut(self.frames), None if self.log_size is None else cut(self.log_size)


def read_pairs(root: str, side: int, device: str) -> Tensor:
    """The pairs in ROOT/blur and ROOT/sharp, or in a .npy file, whose sides are at least `side`, cut to it.

    Smaller ones are left out, which a line says. Raises ValueError if none is left.
    """
    if root.endswith(".npy"):
        return torch.from_numpy(np.load(root)).permute(0, 1, 4, 2, 3)[..., :side, :side].contiguous().to(device)
    folder = Path(root)
    names = [path.relative_to(folder / "blur") for path in search.find(folder / "blur")]

    def read(name: Path) -> Tensor:
        pair = [images.read_raw(folder / kind / name) for kind in ("blur", "sharp")]
        return torch.stack(pair)[..., :side, :side]

    with ThreadPoolExecutor(12) as threads:
        pairs = list(threads.map(read, names))
    large = [pair for pair in pairs if pair.shape[-2:] == (side, side)]
    if not large:
        raise ValueError(f"{root} has no pair of {side} pixels or more: give other --pairs, or a smaller --side")
    if len(large) < len(pairs):
        print(f"{root}: left out {len(pairs) - len(large)} of {len(pairs)} pairs, smaller than {side} pixels")
    return torch.stack(large).to(device)


def to_bytes(image: Tensor) -> Tensor:
    """[-1, 1] -> 0 .. 255."""
    return ((image[:, :3] + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def in_range(image: Tensor) -> Tensor:
    """0 .. 255 -> [-1, 1], channels last."""
    return (image.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def batches(groups: Sequence[Pairs], size: int, side: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches without end, each of parts of 4 crops from groups drawn by weight."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor([group.weight for group in groups])
    while True:
        parts = torch.multinomial(weights, size // 4, replacement=True, generator=generator).tolist()
        drawn = [groups[part].draw(4, side, generator) for part in parts]
        frames = torch.cat([frames for frames, _ in drawn])
        yield frames, None if drawn[0][1] is None else torch.cat([log_size for _, log_size in drawn])


class Trainer:
    """AdamW for a given time, with averaged weights.

    Args:
        network: what is trained.
        seconds: of training, the last part of which the learning rate decays over.
        lr: peak of the learning rate.
        clip: largest norm of the gradient.
        average: decay of the averaged weights.
    """

    def __init__(self, network: nn.Module, seconds: float, lr: float, clip: float, average: float):
        self.network, self.seconds, self.lr, self.clip, self.average = network, seconds, lr, clip, average
        self.weights = [weight for weight in network.parameters() if weight.requires_grad]
        self.averages = [weight.detach().clone() for weight in self.weights]
        fused = self.weights[0].is_cuda
        self.optimizer = torch.optim.AdamW(self.weights, lr, (0.9, 0.98), weight_decay=0.0, fused=fused)
        self.steps, self.start, self.log = 0, time.monotonic(), []

    @property
    def passed(self) -> float:
        """Share of the time that has passed."""
        return (time.monotonic() - self.start) / self.seconds

    def step(self, loss: Tensor, logged: Tensor) -> None:
        """One step down a loss; `logged` is the number of it for the log."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.clip)
        rise = min(1.0, (self.steps + 1) / 200)
        fall = min(1.0, max(0.0, (1 - self.passed) / DECAY))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * rise * fall
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        decay = min(self.average, self.steps / (self.steps + 10))
        torch._foreach_lerp_(self.averages, [weight.detach() for weight in self.weights], 1 - decay)
        if self.steps % 100 == 0:
            seconds = round(time.monotonic() - self.start, 1)
            self.log.append({"step": self.steps, "seconds": seconds, "loss": logged.item()})
            print(json.dumps(self.log[-1]), flush=True)

    def averaged(self) -> dict[str, Tensor]:
        """The network's state with the averaged weights."""
        named = [name for name, weight in self.network.named_parameters() if weight.requires_grad]
        return self.network.state_dict() | dict(zip(named, self.averages, strict=True))


@torch.no_grad()
def add_predictions(predictor: Predictor, pairs: Pairs, batch: int) -> None:
    """Give each pair the predictor's x_init and, where it has a size head, the log of the expected error."""
    predictions, sizes = [], []
    for part in pairs.frames.split(batch):
        output = predictor(to_network(part[:, 0].float() / 255)).float()
        predictions.append(to_bytes(output))
        sizes.append(output[:, 3:].half().squeeze(1))
    pairs.frames = torch.cat([pairs.frames, torch.cat(predictions)[:, None]], dim=1)
    pairs.log_size = torch.cat(sizes) if sizes[0].numel() else None


def crops_of(frames: Tensor, log_size: Tensor | None, kind: ScaleKind) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blurry and sharp images, x_init, and the size m of the residual (N, 1, H, W), from a batch of predictions."""
    blurry, sharp, x_init = (in_range(frames[:, image]) for image in range(3))
    prediction = x_init if log_size is None else torch.cat([x_init, log_size[:, None].float()], dim=1)
    return blurry, sharp, x_init, residual_size(kind, prediction, blurry)


@torch.no_grad()
def measure_scales(groups: Sequence[Pairs], kind: ScaleKind, units: Tensor, side: int, seed: int) -> Tensor:
    """c, for each channel of r_0 that the units, 1 or 0, leave: the standard deviation of (x - x_init) / m."""
    squares = []
    for (frames, log_size), _ in zip(batches(groups, 32, side, seed), range(40), strict=False):
        _, sharp, x_init, size = crops_of(frames, log_size, kind)
        square = residual(sharp, x_init, units * size).square().mean((0, 2, 3), keepdim=True)
        squares.append(square if units.shape[1] == 3 else square.mean(1, keepdim=True))
    return torch.stack(squares).mean(0).sqrt()


def train_denoiser(
    denoiser: nn.Module,
    objective: Objective,
    scale: Tensor,
    kind: ScaleKind,
    groups: Sequence[Pairs],
    trainer: Trainer,
    size: int,
    side: int,
    seed: int,
) -> Iterator[None]:
    """Train a denoiser on predictions (the paper's algorithm 1); yields after each step."""
    device = scale.device
    generator = torch.Generator(device).manual_seed(seed)
    for frames, log_size in batches(groups, size, side, seed):
        if trainer.passed >= 1:
            return
        blurry, sharp, x_init, m = crops_of(frames, log_size, kind)
        s = scale * m
        r_0 = residual(sharp, x_init, s)
        places = torch.rand(size, dtype=torch.float64, device=device, generator=generator)
        alpha_bar = objective.draw(None, (torch.arange(size, device=device) + places) / size)
        eps = torch.randn(r_0.shape, device=device, generator=generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bf16(device)):
            losses, perceptual = objective.losses(denoiser, Crops(blurry, sharp, x_init, s, r_0), alpha_bar, eps)
        loss = losses.mean()
        trainer.step(loss if perceptual is None else loss + perceptual, loss)
        yield


def train(
    checkpoint: str,
    pairs: list[str],
    weights: list[float],
    output: str,
    seconds: float = 540.0,
    perceptual: list[float] = [],  # noqa: B006 (never changed)
    finish_share: float = 0.2,
    lr: float = 8e-4,
    side: int = 256,
    crop: int = 256,
    batch: int = 48,
    most: int | None = None,
    compiled: bool = False,
    device: str = "cuda",
    seed: int = 0,
) -> None:
    """Train a checkpoint's denoiser on its predictions.

    Args:
        checkpoint: folder of a checkpoint with a denoiser, which is trained further.
        pairs: folders with blur/ and sharp/, as tools.make_pairs makes them, or .npy files of uint8 numbers
            (N, 2, H, W, 3), blurry and sharp.
        weights: of each of them in a batch.
        output: folder to write to: denoiser/ and training.json, with the residual's scale that belongs to it.
        seconds: of all that; training takes what the preparation leaves.
        perceptual: weights of a perceptual term (LPIPS with SqueezeNet); for each one the denoiser is trained further
            and written to denoiser_perceptual_WEIGHT/.
        finish_share: share of the training's time for each of those.
        lr: peak of the learning rate; half of it for those.
        side: pairs are cut to it.
        crop: side of the training crops.
        batch: crops in a step.
        most: pairs of each folder to use; none: all.
        compiled: train compiled networks, which takes a minute at the start.
        device: torch device name.
        seed: of the crops and the noise.

    Raises:
        ValueError: the checkpoint has no denoiser, or the preparation or the finishes leave no time for the rest.
    """
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {text}", flush=True)

    pipeline = load_pipeline(checkpoint, device)
    if pipeline.denoiser is None:
        raise ValueError(f"{checkpoint} has no denoiser that could be trained")
    plain_share = 1 - finish_share * len(perceptual)
    if plain_share <= 0:
        raise ValueError(f"finish_share is {finish_share:g}, and {len(perceptual)} of it leave no time: give less")
    report: dict = {"pairs": {}}
    groups = []
    for root, weight in zip(pairs, weights, strict=True):
        group = Pairs(root, weight, read_pairs(root, side, device)[:most])
        add_predictions(pipeline.predictor, group, max(1, batch // 4))
        groups.append(group)
        report["pairs"][root] = gains(group)
        say(f"{root}: {json.dumps(report['pairs'][root])}")

    kind = pipeline.config.scale_kind
    c = torch.as_tensor(pipeline.config.residual_scale, device=device).view(1, -1, 1, 1)
    scale = measure_scales(groups, kind, (c > 0).float(), crop, seed)
    report["residual_scale"] = scale.flatten().tolist()
    say(f"residual_scale {report['residual_scale']}, {c.flatten().tolist()} in {checkpoint}")
    denoiser = load_pipeline(checkpoint, device, "fp32").denoiser.train().requires_grad_(True)
    if compiled:
        denoiser.compile()
    folder = Path(output)
    left = seconds - (time.monotonic() - begin)
    if left <= 0:
        used = f"the preparation took {seconds - left:.0f} s"
        raise ValueError(f"seconds is {seconds:g}, and {used}: give more, or a smaller --most")

    def run(name: str, term: PerceptualLoss | None, share: float, rate: float) -> dict[str, Tensor]:
        """Train for a share of the time that is left, and write and return the averaged weights."""
        objective = Objective(
            "l2",
            "log_normal",
            log_normal=(0.3, 1.1),
            sigma_range=SIGMAS,
            stratified=True,
            perceptual=term,
            perceptual_sigma=PERCEPTUAL_SIGMA,
        )
        trainer = Trainer(denoiser, share * left, lr=rate, clip=1.0, average=0.9993)
        saved = time.monotonic()
        for _ in train_denoiser(denoiser, objective, scale, kind, groups, trainer, batch, crop, seed):
            if time.monotonic() - saved > SAVE_EVERY:
                save(trainer.averaged(), folder / f"{name}_{trainer.steps}.safetensors")
                saved = time.monotonic()
        report[name] = trainer.log
        averaged = trainer.averaged()
        denoiser.save_config(folder / name)
        save(averaged, folder / name / "diffusion_pytorch_model.safetensors")
        (folder / "training.json").write_text(json.dumps(report) + "\n")
        say(f"{name}: {trainer.steps} steps of {batch} crops")
        return averaged

    plain = run("denoiser", None, plain_share, lr)
    for weight in perceptual:
        denoiser.load_state_dict(plain)
        run(f"denoiser_perceptual_{weight:g}", PerceptualLoss(weight, "squeeze"), finish_share, lr / 2)


def save(state: dict[str, Tensor], path: Path) -> None:
    """A state in fp16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.half().contiguous() for key, value in state.items()}, path)


@torch.no_grad()
def gains(group: Pairs) -> dict:
    """Mean PSNR of the blurry images and of the predictions, and how many pairs there are."""
    sharp = group.frames[:, 1]
    values = {}
    for name, image in (("blurry", 0), ("prediction", 2)):
        parts = zip(group.frames[:, image].split(64), sharp.split(64), strict=True)
        mse = torch.cat([(x.float() - y.float()).square().mean((1, 2, 3)) for x, y in parts])
        values[name] = round((10 * (255**2 / mse.clamp_min(1e-3)).log10()).mean().item(), 3)
    return {"number": len(sharp)} | values


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(train, args, "-m tools.gpu_training")


if __name__ == "__main__":
    sys.exit(run_command("tools.gpu_training", main, "stopped"))
