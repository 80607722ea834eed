"""DeblurDataModule: pairs from disk, or sharp photographs blurred on the training device."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from deblur.data.blur import SyntheticBlur
from deblur.data.files.images import ImageError, header_size, require_end
from deblur.data.layouts import (
    DatasetError,
    Pair,
    Source,
    find_sharp,
    holds_pairs,
    paired,
    remarks_on_skipped,
    split_folder,
)
from deblur.data.on_device import DeviceBatches, FramesOnDevice
from deblur.data.pairs import FramePairs, FrameSharp, Mix, TrainPairs, TrainSharp, Window, flatten
from deblur.data.predictions import Predictions
from deblur.progress import ProgressBar
from deblur.seeds import seed_of

GRACE_SECONDS = 10  # that a worker keeps running after SIGTERM


@dataclass(eq=False)
class NumberStream(Sampler[int]):
    """The numbers of the endless training stream for one rank.

    Each batch has the next `per_batch * world` numbers, `per_batch` for each rank. The stream begins after the batches
    that the trainer has processed, rounded down to a multiple of `window`, so a resumed run continues where its
    checkpoint was written. On several devices the trainer needs use_distributed_sampler=False, otherwise Lightning
    replaces this sampler.
    """

    per_batch: int
    trainer: pl.Trainer | None
    window: int

    def processed(self) -> int:
        """Batches that the trainer has processed; restored from the checkpoint before the loaders are made."""
        # `processed` does not count a batch in which a run died.
        return 0 if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress.total.processed

    def __iter__(self) -> Iterator[int]:
        world, rank = world_and_rank(self.trainer)
        batch = self.processed() // self.window * self.window
        while True:
            first = (batch * world + rank) * self.per_batch
            yield from range(first, first + self.per_batch)
            batch += 1


def world_and_rank(trainer: pl.Trainer | None) -> tuple[int, int]:
    """(number of processes, rank of this one)."""
    return (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)


class DeblurDataModule(pl.LightningDataModule):
    """Batches {"blurry", "sharp": (N, 3, H, W) float32 in [0, 1], "name": list of str}.

    With stored predictions training batches also have "x_init" (N, 3, H, W) in [0, 1] and, if the predictor has a size
    head, "log_size" (N, 1, H, W), the log of the error that it expects in [-1, 1].

    Training yields random crops without end (set max_steps). They depend only on the seed and the number of batches
    processed, so a resumed run sees exactly the batches of an uninterrupted one. Validation and test yield frames in
    order, one per batch.

    Args:
        train: training data: the root folder of pairs in any layout (see data.layouts.list_pairs), a CSV manifest,
            ROOT:SPLIT for another split of a dataset than train, a folder of sharp photographs if `blur` is given, a
            deblur.data.layouts.Source, or a list of these to mix. Pairs are recognised by their folders and used as
            they are, also if `blur` is given. ROOT/train is used if it exists.
        val: validation data; none: no validation. Pairs are recognised by their folders and used unchanged, so
            training on synthetic blur can be validated on real blur; sharp photographs need `blur`. ROOT/val is used
            if it exists.
        test: test data, in the same forms.
        predictions: hand over the predictions that `tools.make_pairs --predict` stored beside the training pairs, so
            that a frozen predictor is not run. They are those of the whole files, cut out and turned like the crops.
        blur: makes the blurry image from the sharp one, on the training device. In validation and test the blur
            depends only on the seed and the image's name, and frames lose the blur's margin on every side.
        variant: kind of blurry images: in GoPro blur or blur_gamma, in REDS blur, blur_comp or blur_jpeg, in RealBlur
            J or R; "blur" is the first one of every layout.
        patch_size: side of the training crops in pixels.
        batch_size: training crops per step and device.
        crops_per_image: most crops that are cut from each decoded file, since decoding is the largest cost; if it
            does not divide batch_size, as many as do.
        mix_batches: number of batches whose crops are shuffled together, so that the crops of one file do not share a
            batch. It costs memory for that many batches, and a resumed run reads up to that many again.
        val_crop: largest height and width of the centre crop used in validation, which limits memory and time; null
            uses whole frames. The test always uses whole frames.
        keep_on_device: decode all training files once, keep them in the memory of the training device, and cut, turn
            and flip there: no step waits for a disk. The batches are the same. A pair takes 6 bytes a pixel, 9 with
            predictions, 11 with a size head's; images of 16 bits take twice as much.
        num_workers: processes that read files; 0 reads in the main process. With keep_on_device only validation has
            them.
        seed: of the order, the crops and the blur.
    """

    def __init__(
        self,
        train: str | Source | list[str | Source] | None = None,
        val: str | Source | None = None,
        test: str | Source | None = None,
        predictions: bool = False,
        blur: SyntheticBlur | None = None,
        variant: str = "blur",
        patch_size: int = 128,
        batch_size: int = 16,
        crops_per_image: int = 1,
        mix_batches: int = 1,
        val_crop: int | None = 512,
        keep_on_device: bool = False,
        num_workers: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        self.roots = {"train": train, "val": val, "test": test}
        self.variant, self.blur = variant, blur
        self.predictions = predictions
        self.predictor_sha256: str | None = None  # whose the stored predictions are
        self.patch_size, self.val_crop = patch_size, val_crop
        self.batch_size, self.crops_per_image, self.mix_batches = batch_size, crops_per_image, mix_batches
        self.keep_on_device, self.num_workers, self.seed = keep_on_device, num_workers, seed
        for name in ("patch_size", "batch_size", "crops_per_image", "mix_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        while batch_size % self.crops_per_image:
            self.crops_per_image -= 1

    def setup(self, stage: str) -> None:
        """List and report the files of a stage (fit, validate, test). Raises DatasetError or ImageError."""
        if stage == "fit":
            sources = self._sources("train")
            # A single dataset uses the run's seed; in a mix each has its own.
            seeds = [self.seed] if len(sources) == 1 else [seed_of(self.seed, "mix", i) for i in range(len(sources))]
            parts = [self._train_set(source, seed) for source, seed in zip(sources, seeds, strict=True)]
            if len({type(part) for part in parts}) > 1:
                raise DatasetError("data.train mixes pairs with sharp photographs: train on one kind after the other.")
            if self.predictions:
                self.predictor_sha256 = _only_predictor(parts)
                for stored in (part.predictions for part in parts if part.predictions.predictor.stages is not None):
                    rank_zero_info(
                        f"warning: the predictions in {stored.folder} are of --stages {stored.predictor.stages}: what"
                        " is trained on them belongs to samples with as many, and by default all stages are run"
                    )
            self.train_set = Mix(parts, [source.weight for source in sources])
        if stage == "validate" or (stage == "fit" and self.roots["val"]):
            self.val_set = self._frames(*self._sources("val"), "val", self.val_crop)
            if stage == "fit":
                self._warn_of_shared_images()
        if stage == "test":
            self.test_set = self._frames(*self._sources("test"), "test", None)

    def _warn_of_shared_images(self) -> None:
        """Warn if validation images are also trained on, for example when both use a folder without train/ and val/."""
        val = _sharp_files(self.val_set)
        shared = sorted(val & _sharp_files(*self.train_set.parts))
        if shared:
            names = ", ".join(os.path.basename(path) for path in shared[:3]) + (", ..." if len(shared) > 3 else "")
            rank_zero_info(
                f"warning: {len(shared)} of {len(val)} validation images are trained on, too ({names}), so val/psnr and"
                " best-psnr.ckpt say little about new images: give another data.val, or folders train/ and val/"
            )

    def _sources(self, split: str) -> list[Source]:
        given = self.roots[split]
        if not given:
            raise DatasetError(f"No {split} data is given: set data.{split} to a folder.")
        entries = given if isinstance(given, list) else [given]
        return [entry if isinstance(entry, Source) else Source.named(entry) for entry in entries]

    def _train_set(self, source: Source, seed: int) -> Dataset:
        items, variant = self._items(source, "train")
        options = {"seed": seed, "crops_per_image": self.crops_per_image}
        if self.predictions:
            if variant is None or source.root is None:
                raise DatasetError(
                    "data.predictions needs datasets of pairs, given by their root: sharp photographs are blurred anew"
                    " in each step, and two folders have no place for predictions."
                )
            options["predictions"] = Predictions.of(source.root, source.split or "train", variant)
            options["predictions"].require(items)
        if variant is not None:
            return TrainPairs(items, self.patch_size, **options)
        return TrainSharp(items, self.patch_size, self.blur.margin, **options)

    def _frames(self, source: Source, split: str, crop: int | None) -> Dataset:
        items, variant = self._items(source, split)
        split = source.split or split
        if variant is not None:
            return FramePairs(items, crop)
        listed = (Path(source.root) / f"{split}.txt").is_file()
        base = Path(source.root) if listed else split_folder(source.root, split)
        return FrameSharp(items, base, self.blur.margin, self.seed, crop)

    def _items(self, source: Source, split: str) -> tuple[list[Pair] | list[Path], str | None]:
        """The pairs of a split and their variant, or its sharp photographs and None, after fast checks."""
        where, name = source.root or f"{source.blurry} and {source.sharp}", source.split or split
        if self.blur and source.root and not holds_pairs(source.root, name, source.variant or self.variant):
            items, variant = find_sharp(source.root, name), None
            rank_zero_info(f"{split}: {len(items)} photographs of {where}, blurred by {type(self.blur).__name__}")
        else:
            listing = source.list_pairs(split, self.variant)
            items, variant = paired(listing, where), listing.variant
            unused = ", used as they are: data.blur is for sharp photographs" if self.blur and split == "train" else ""
            kind = f"layout {listing.layout}, variant {listing.variant}"
            rank_zero_info(f"{split}: {len(items)} pairs of {where} ({kind}){unused}")
        for folder in filter(None, (source.root, source.blurry, source.sharp)):
            for remark in remarks_on_skipped(folder):
                rank_zero_info(f"warning: {remark}")
        check_files(items)
        return items, variant

    def train_dataloader(self) -> DataLoader | DeviceBatches | Window:
        per_batch = self.batch_size // self.crops_per_image
        stream = NumberStream(per_batch, self.trainer, self.mix_batches)
        mixed = self.mix_batches > 1
        if self.keep_on_device:
            device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
            loader = DeviceBatches(FramesOnDevice(self.train_set, device), stream, per_batch)
        else:
            # Lightning ends the persistent workers of a DataLoader, but not of one in a window: these end with its
            # stream.
            loader = self._loader(
                self.train_set, persistent=not mixed, batch_size=per_batch, sampler=stream, collate_fn=flatten
            )
        if not mixed:
            return loader
        return Window(loader, self.mix_batches, self.seed, stream.processed)

    def val_dataloader(self) -> DataLoader | list:
        return self._frame_loader(self.val_set) if self.roots["val"] else []

    def test_dataloader(self) -> DataLoader:
        return self._frame_loader(self.test_set)

    def _frame_loader(self, dataset: Dataset) -> DataLoader:
        """Frames in order, one at a time; several processes share them."""
        return self._loader(dataset, sampler=DistributedSampler(dataset, *world_and_rank(self.trainer), shuffle=False))

    def _loader(self, dataset: Dataset, persistent: bool = True, **options) -> DataLoader:
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            persistent_workers=persistent and self.num_workers > 0,
            worker_init_fn=_outlive_sigterm,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def on_after_batch_transfer(self, batch: dict, dataloader_idx: int) -> dict:
        """Blur sharp photographs on the device; every image has its own seed.

        All images are returned as channels_last, the layout of the networks' weights.
        """
        if "seed" in batch:
            generators = [torch.Generator().manual_seed(seed) for seed in batch["seed"].tolist()]
            # One layout for both ways to make a batch, since a convolution's rounding depends on it.
            blurry, sharp = self.blur(batch["sharp"].contiguous(), generators)
            batch = {"blurry": blurry, "sharp": sharp, "name": batch["name"]}
        laid_out = {
            name: value.contiguous(memory_format=torch.channels_last)
            for name, value in batch.items()
            if torch.is_tensor(value) and value.ndim == 4
        }
        return batch | laid_out


def _only_predictor(parts: Sequence[TrainPairs]) -> str:
    predictors = {part.predictions.predictor.sha256: part.predictions for part in parts}
    if len(predictors) > 1:
        folders = " and ".join(str(predictions.folder) for predictions in predictors.values())
        raise DatasetError(f"data.train mixes the predictions of several predictors, in {folders}: use one for all.")
    return parts[0].predictions.predictor.sha256


def check_files(items: Sequence[Pair | Path]) -> None:
    """Read the beginning and end of every file, of pairs or of sharp photographs; a pair's sizes must agree.

    All faults are reported in one DatasetError. tools/doctor.py also looks at the pixels.
    """
    faults, unit = [], "file" if isinstance(items[0], Path) else "pair"
    for item in ProgressBar(items, desc="checking files", unit=unit, leave=False, delay=2):
        files = [item] if isinstance(item, Path) else [item.blurry, item.sharp]
        try:
            sizes = [header_size(file) for file in files]
            for file in files:
                require_end(file)
        except ImageError as error:
            faults.append(error)
            continue
        if sizes[0] != sizes[-1]:
            (a, b), (c, d) = sizes
            faults.append(DatasetError(f"A pair differs in size: {item.blurry} has {a}x{b}, {item.sharp} has {c}x{d}."))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        shown = " ".join(map(str, faults[:8])) + (" And others." if len(faults) > 8 else "")
        raise DatasetError(f"{len(faults)} files or pairs cannot be used: {shown}")


def _outlive_sigterm(worker: int) -> None:
    """Keep a worker alive after SIGTERM, which clusters send to all processes while the main one finishes a batch."""
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; workers end with the main one


def _sharp_files(*datasets: Dataset) -> set[str]:
    return {os.path.abspath(getattr(item, "sharp", item)) for dataset in datasets for item in dataset.items}
