"""Train a corrector of MAXIM and a denoiser on its predictions, with all pairs in the memory of one GPU.

python -m tools.gpu_training --maxim pretrained/maxim --start pretrained/lite --pairs PAIRS ... --output FOLDER

MAXIM predicts each pair once. Then the second network of a cascade is trained for a given time, and after it a denoiser
on the cascade's predictions. No step waits for a disk or runs MAXIM again. For a GPU that is had for minutes; where
there are hours, train.py does the same with validation, logs and resuming.
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

from deblur.cli import call, run_command
from deblur.data import images, search
from deblur.models.base import Cascade
from deblur.models.checkpoints import load_pipeline, load_weights
from deblur.models.diffusion import laplace_loss, residual, residual_size
from deblur.models.losses import SIZE_WEIGHT, Crops, Objective
from deblur.models.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.samples import to_network

FLOOR = 4e-4  # of the squared error in [-1, 1]: 40 dB; a crop above it hardly counts
DECAY = 0.4  # the last part of the time, in which the learning rate falls to zero
SIGMAS = (0.05, 12.0)  # noise levels of training, as sigma in units of r_0
SAVE_EVERY = 120.0  # seconds between states of the denoiser: a lent machine may be taken back
STAGES = (1, 3)  # of MAXIM, whose estimates are both kept


class Pairs:
    """Crops of one size with MAXIM's estimates: uint8 (N, images, 3, side, side) on the device.

    The images are blurry, sharp, MAXIM's estimate after one stage, after all, and later a cascade's x_init.
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


@torch.no_grad()
def add_estimates(pairs: Tensor, maxim: nn.Module, batch: int) -> Tensor:
    """Pairs (N, 2, 3, H, W) uint8 with MAXIM's estimates after each of STAGES."""
    whole = []
    for part in pairs.split(batch):
        estimates = maxim.estimates(to_network(part[:, 0].float() / 255))[::-1]
        kept = [to_bytes(estimates[min(stage, len(estimates)) - 1]) for stage in STAGES]
        whole.append(torch.cat([part, torch.stack(kept, dim=1)], dim=1))
    return torch.cat(whole)


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

    def step(self, loss: Tensor) -> None:
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
            self.log.append({"step": self.steps, "seconds": seconds, "loss": loss.item()})
            print(json.dumps(self.log[-1]), flush=True)

    def averaged(self) -> dict[str, Tensor]:
        """The network's state with the averaged weights."""
        named = [name for name, weight in self.network.named_parameters() if weight.requires_grad]
        return self.network.state_dict() | dict(zip(named, self.averages, strict=True))


def train_corrector(
    cascade: Cascade, groups: Sequence[Pairs], trainer: Trainer, size: int, side: int, seed: int
) -> None:
    """Train the second network of a cascade on MAXIM's estimates, of one stage for a third of the parts."""
    kinds = torch.Generator().manual_seed(seed)
    for frames, _ in batches(groups, size, side, seed):
        if trainer.passed >= 1:
            return
        few = (torch.rand(size // 4, generator=kinds) < 1 / 3).repeat_interleave(4).to(frames.device)
        estimate = torch.where(few[:, None, None, None], frames[:, 2], frames[:, 3])
        blurry, sharp, estimate = in_range(frames[:, 0]), in_range(frames[:, 1]), in_range(estimate)
        with torch.autocast(frames.device.type, torch.bfloat16):
            output = cascade.second(blurry, estimate)
        error = output[:, :3] - sharp
        loss = (error.square().mean((1, 2, 3)) / FLOOR).log1p().mean()
        size_loss = laplace_loss(output[:, 3:], -error)
        trainer.step(loss + SIZE_WEIGHT * size_loss)


@torch.no_grad()
def add_predictions(cascade: Cascade, groups: Sequence[Pairs], batch: int, seed: int) -> None:
    """Give each pair a cascade's x_init, from one stage of MAXIM for a third of them, and the log of its error."""
    for group in groups:
        images, sizes = [], []
        few = torch.rand(len(group.frames), generator=torch.Generator().manual_seed(seed)) < 1 / 3
        for part, kind in zip(group.frames.split(batch), few.to(group.frames.device).split(batch), strict=True):
            estimate = torch.where(kind[:, None, None, None], part[:, 2], part[:, 3])
            with torch.autocast(part.device.type, torch.bfloat16):
                output = cascade.second(in_range(part[:, 0]), in_range(estimate))
            images.append(to_bytes(output))
            sizes.append(output[:, 3].half())
        group.frames = torch.stack([group.frames[:, 0], group.frames[:, 1], torch.cat(images)], dim=1)
        group.log_size = torch.cat(sizes)


def crops_of(frames: Tensor, log_size: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blurry and sharp images, x_init, and the size m of the residual (N, 1, H, W), from a batch of predictions."""
    blurry, sharp, x_init = (in_range(frames[:, image]) for image in range(3))
    size = residual_size("learned", torch.cat([x_init, log_size[:, None].float()], dim=1), blurry)
    return blurry, sharp, x_init, size


@torch.no_grad()
def measure_scales(groups: Sequence[Pairs], side: int, seed: int) -> Tensor:
    """c for each of the AXES (3,): the standard deviation of (x - x_init) / m."""
    squares = []
    for (frames, log_size), _ in zip(batches(groups, 32, side, seed), range(40), strict=False):
        _, sharp, x_init, size = crops_of(frames, log_size)
        squares.append(residual(sharp, x_init, size.expand(-1, 3, -1, -1)).square().mean((0, 2, 3)))
    return torch.stack(squares).mean(0).sqrt()


def train_denoiser(
    denoiser: SlimDenoiser,
    scales: Tensor,
    groups: Sequence[Pairs],
    trainer: Trainer,
    size: int,
    side: int,
    seed: int,
) -> Iterator[None]:
    """Train a denoiser on predictions (the paper's algorithm 1); yields after each step."""
    objective = Objective(loss="l2", levels="log_normal", log_normal=(0.3, 1.1), sigma_range=SIGMAS, stratified=True)
    device = scales.device
    generator = torch.Generator(device).manual_seed(seed)
    for frames, log_size in batches(groups, size, side, seed):
        if trainer.passed >= 1:
            return
        blurry, sharp, x_init, m = crops_of(frames, log_size)
        s = scales.view(1, 3, 1, 1) * m
        r_0 = residual(sharp, x_init, s)
        places = torch.rand(size, dtype=torch.float64, device=device, generator=generator)
        alpha_bar = objective.draw(None, (torch.arange(size, device=device) + places) / size)
        eps = torch.randn(r_0.shape, device=device, generator=generator)
        with torch.autocast(device.type, torch.bfloat16):
            losses, _ = objective.losses(denoiser, Crops(blurry, sharp, x_init, s, r_0), alpha_bar, eps)
        trainer.step(losses.mean())
        yield


def widened(state: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """A predictor's weights for a network of two images: the second one's channels and the head start at zero."""
    zeros = {key: torch.zeros_like(value) for key, value in network.state_dict().items()}
    stem = zeros["unet.stem.weight"]
    stem[:, : stem.shape[1] // 2] = state["unet.stem.weight"]
    kept = {key: value for key, value in state.items() if not key.startswith("unet.head")}
    return zeros | kept | {"unet.stem.weight": stem}


def train(
    maxim: str,
    start: str,
    pairs: list[str],
    weights: list[float],
    output: str,
    seconds: float = 540.0,
    corrector_share: float = 0.4,
    widths: tuple[int, int, int] = (64, 128, 192),
    blocks: tuple[int, int, int] = (2, 2, 4),
    side: int = 384,
    crop: int = 256,
    batch: int = 48,
    most: int | None = None,
    device: str = "cuda",
    seed: int = 0,
) -> None:
    """Train a corrector of MAXIM and a denoiser on its predictions.

    Args:
        maxim: checkpoint with MAXIM's weights.
        start: checkpoint of a SlimPredictor, whose weights the corrector starts with.
        pairs: folders with blur/ and sharp/, as tools.make_pairs makes them, or .npy files of uint8 numbers
            (N, 2, H, W, 3), blurry and sharp.
        weights: of each of them in a batch.
        output: folder to write the checkpoint to.
        seconds: of all that; training takes what the preparation leaves.
        corrector_share: share of that for the corrector.
        widths, blocks: of the denoiser, as in `models.nafnet.SlimDenoiser`.
        side: pairs are cut to it.
        crop: side of the training crops.
        batch: crops in a step.
        most: pairs of each folder to use; none: all.
        device: torch device name.
        seed: of the crops and the noise.
    """
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {text}", flush=True)

    first = load_pipeline(maxim, device).predictor
    groups = []
    for root, weight in zip(pairs, weights, strict=True):
        frames = read_pairs(root, side, device)[:most]
        say(f"{root}: {len(frames)} pairs read")
        groups.append(Pairs(root, weight, add_estimates(frames, first, max(1, batch // 4))))
        say(f"{root}: predicted")
    report = {"pairs": {group.name: gains(group) for group in groups}}
    say(json.dumps(report))

    config = load_pipeline(start, precision="fp32").predictor
    arguments = {key: config.config[key] for key in ("widths", "blocks", "block", "unshuffle")}
    second = SlimPredictor(**arguments, size_head=True, images=2)
    load_weights(second, widened(config.state_dict(), second), start)
    cascade = Cascade(first, second.to(device, memory_format=torch.channels_last))
    left = seconds - (time.monotonic() - begin)
    trainer = Trainer(second, corrector_share * left, lr=8e-4, clip=0.5, average=0.998)
    train_corrector(cascade, groups, trainer, batch, crop, seed)
    second.load_state_dict(trainer.averaged())
    second.eval()
    report["corrector"] = trainer.log
    say(f"corrector: {trainer.steps} steps of {batch} crops")
    folder = Path(output)
    second.half().save_pretrained(folder / "predictor" / "second")
    second.float()

    add_predictions(cascade, groups, batch, seed)
    scales = measure_scales(groups, crop, seed)
    say(f"predicted; scales {scales.tolist()}")
    denoiser = SlimDenoiser(widths, blocks, prediction_type="v_prediction")
    denoiser.to(device, memory_format=torch.channels_last)
    left = seconds - (time.monotonic() - begin)
    trainer = Trainer(denoiser, left, lr=8e-4, clip=1.0, average=0.9995)
    saved = time.monotonic()
    for _ in train_denoiser(denoiser, scales, groups, trainer, batch, crop, seed):
        if time.monotonic() - saved > SAVE_EVERY:
            save(trainer.averaged(), folder / f"denoiser_{trainer.steps}.safetensors")
            saved = time.monotonic()
    denoiser.load_state_dict(trainer.averaged())
    report["denoiser"] = trainer.log
    report["scales"] = scales.tolist()
    say(f"denoiser: {trainer.steps} steps of {batch} crops")
    denoiser.half().save_pretrained(folder / "denoiser")
    (folder / "training.json").write_text(json.dumps(report) + "\n")
    say("done")


def save(state: dict[str, Tensor], path: Path) -> None:
    """A state in fp16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.half().contiguous() for key, value in state.items()}, path)


@torch.no_grad()
def gains(group: Pairs) -> dict:
    """Mean PSNR of the blurry images and of MAXIM's estimates, and how many pairs there are."""
    sharp = group.frames[:, 1]
    values = {}
    for name, image in (("blurry", 0), ("one stage", 2), ("all stages", 3)):
        parts = zip(group.frames[:, image].split(64), sharp.split(64), strict=True)
        mse = torch.cat([(x.float() - y.float()).square().mean((1, 2, 3)) for x, y in parts])
        values[name] = round((10 * (255**2 / mse.clamp_min(1e-3)).log10()).mean().item(), 3)
    return {"number": len(sharp)} | values


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(train, args, "-m tools.gpu_training", positional=0)


if __name__ == "__main__":
    sys.exit(run_command("tools.gpu_training", main, "stopped"))
