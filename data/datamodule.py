"""DeblurDataModule: pairs from disk, or sharp photographs blurred on the training device."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from base.seeds import seed_of
from data.augment import Augment
from data.blur import SyntheticBlur
from data.checks import check_files
from data.layouts import DatasetError, Pair, Source, find_sharp, holds_pairs, paired, split_folder
from data.packed import Packed, is_packed
from data.pairs import FramePairs, FrameSharp, Mix, TrainPairs, TrainSharp, Window, flatten, generator_of

GRACE = 10  # seconds that a worker lives on after SIGTERM


@dataclass(eq=False)
class NumberStream(Sampler[int]):
    """The numbers of the training stream, without end, for one rank.

    Global batch b (from 0, over the whole run) has the next `per_batch * world` numbers, `per_batch` for each
    rank. It begins after the batches that the trainer has processed, rounded down to a multiple of `window`, so a
    resumed run continues where its checkpoint was written. The trainer's max_steps ends the run. On several devices
    the trainer needs use_distributed_sampler=False, or Lightning replaces this sampler.
    """

    per_batch: int
    trainer: pl.Trainer | None
    window: int

    def processed(self) -> int:
        """Batches that the trainer has processed, restored before the loaders are made."""
        # `processed` leaves out a batch in which a run died.
        return 0 if self.trainer is None else self.trainer.fit_loop.epoch_loop.batch_progress.total.processed

    def __iter__(self) -> Iterator[int]:
        world, rank = world_and_rank(self.trainer)
        batch = self.processed() // self.window * self.window
        while True:
            first = (batch * world + rank) * self.per_batch
            yield from range(first, first + self.per_batch)
            batch += 1


def world_and_rank(trainer: pl.Trainer | None) -> tuple[int, int]:
    """Processes of a run, and which of them this is."""
    return (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)


class DeblurDataModule(pl.LightningDataModule):
    """Batches {"blurry", "sharp": (N, 3, H, W) float32 in [0, 1], "name": list of str}.

    Training gives random crops without end (set max_steps), a pure function of the seed and of the batches
    processed, so a resumed run sees exactly the batches it would have seen. Validation and test give frames
    in order, one a batch.

    Args:
        train: the training data: the root folder of pairs in any layout (see data.layouts.list_pairs), a CSV
            manifest, shards made by tools.pack, sharp photographs where `blur` is given, or a data.layouts.Source,
            or a list of these to mix. Of pairs, `blur` takes the sharp side. ROOT/train is used where there is one.
        val: the validation data; none: no validation. Pairs are recognised by their folders and
            taken as they are, so that training on synthetic blur can be validated on real blur; sharp
            photographs need `blur`. ROOT/val is used where there are such folders.
        test: the test data, likewise.
        blur: makes the blurry image from the sharp one, on the training device; in validation and test
            always alike for a seed and an image's name, where the frames lose the blur's margin on every
            side.
        augment: changes the training pairs further, on the training device, blurry and sharp alike.
        variant: kind of blurry images: in GoPro blur or blur_gamma, in REDS blur, blur_comp or blur_jpeg, in
            RealBlur J or R; "blur" is the first of every layout.
        patch_size: side of the training crops in pixels.
        batch_size: training crops a step and device.
        crops_per_image: crops cut from each decoded file; decoding costs more than all else. Must divide
            batch_size.
        mix_batches: batches whose crops are put in a random order together, so that the crops of one file do not
            share a batch; costs memory for so many batches, and a resumed run reads at most so many again.
        val_crop: validation looks at the centre of a frame, at most this many pixels high and wide, which
            bounds its memory and time; null takes whole frames. The test always does.
        num_workers: processes that read files; 0 reads in the main one.
        on_error: what a damaged file does to training: stop it, or skip: it is named, counted, and another file
            takes its place.
        seed: of the order, the crops and the blur.
    """

    def __init__(
        self,
        train: str | Source | list[str | Source] | None = None,
        val: str | Source | None = None,
        test: str | Source | None = None,
        blur: SyntheticBlur | None = None,
        augment: Augment | None = None,
        variant: str = "blur",
        patch_size: int = 128,
        batch_size: int = 16,
        crops_per_image: int = 1,
        mix_batches: int = 1,
        val_crop: int | None = 512,
        num_workers: int = 0,
        on_error: Literal["stop", "skip"] = "stop",
        seed: int = 0,
    ):
        super().__init__()
        self.roots = {"train": train, "val": val, "test": test}
        self.variant, self.blur, self.augment = variant, blur, augment
        self.patch_size, self.val_crop = patch_size, val_crop
        self.batch_size, self.crops_per_image, self.mix_batches = batch_size, crops_per_image, mix_batches
        self.num_workers, self.on_error, self.seed = num_workers, on_error, seed
        self.skipped: dict[str, int] = {}
        for name in ("patch_size", "batch_size", "crops_per_image", "mix_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if batch_size % crops_per_image:
            raise ValueError(f"crops_per_image ({crops_per_image}) must divide batch_size ({batch_size}).")

    def setup(self, stage: str) -> None:
        """List the files of a stage (fit, validate, test) and say what they are; DatasetError or ImageError."""
        if stage == "fit":
            given = self._given("train")
            sources = [_source(one) for one in (given if isinstance(given, list) else [given])]
            if not sources:
                raise DatasetError("No train data is given: the list data.train is empty.")
            # The only dataset of a run has the run's seed, those of a mix have one each.
            seeds = [self.seed] if len(sources) == 1 else [seed_of(self.seed, "mix", i) for i in range(len(sources))]
            parts = [self._train_set(source, seed) for source, seed in zip(sources, seeds, strict=True)]
            self.train_set = parts[0] if len(parts) == 1 else Mix(parts, [source.weight for source in sources])
        if stage == "validate" or (stage == "fit" and self.roots["val"]):
            self.val_set = self._frames(_source(self._given("val")), "val", self.val_crop)
            if stage == "fit":
                self._warn_of_shared_images()
        if stage == "test":
            self.test_set = self._frames(_source(self._given("test")), "test", None)

    def _warn_of_shared_images(self) -> None:
        """As where one folder without train/ and val/ is given for both."""
        val = _sharp_files(self.val_set)
        shared = sorted(val & _sharp_files(self.train_set))
        if shared:
            names = ", ".join(os.path.basename(path) for path in shared[:3]) + (", ..." if len(shared) > 3 else "")
            rank_zero_info(
                f"warning: {len(shared)} of {len(val)} validation images are trained on, too ({names}), so val/psnr and"
                " best-psnr.ckpt say little about new images: give another data.val, or folders train/ and val/"
            )

    def _given(self, split: str) -> str | Source | list[str | Source]:
        if self.roots[split] is None or self.roots[split] == "":
            raise DatasetError(f"No {split} data is given: set data.{split} to a folder.")
        return self.roots[split]

    def _train_set(self, source: Source, seed: int) -> Dataset:
        options = {"scale": source.scale, "repeat": source.repeat, "seed": seed, "skip": self.on_error == "skip"}
        options["crops_per_image"] = self.crops_per_image
        if source.root is not None and is_packed(source.root):
            pairs = Packed(source.root)
            rank_zero_info(f"train: {len(pairs)} packed pairs of {source.root}")
        else:
            pairs = self._list(source, "train") if self._pairs(source, "train") else None
        if self.blur is None:
            return TrainPairs(pairs, self.patch_size, **options)
        if pairs is None:
            files = find_sharp(source.root, "train")
            if self.on_error == "stop":
                check_files(files)
        else:
            files = pairs if isinstance(pairs, Packed) else [pair.sharp for pair in pairs]
        return TrainSharp(files, self.patch_size, self.blur.margin, **options)

    def _frames(self, source: Source, split: str, crop: int | None) -> Dataset:
        if self._pairs(source, split):
            return FramePairs(self._list(source, split), crop)
        files = find_sharp(source.root, split)
        listed = (Path(source.root) / f"{split}.txt").is_file()
        base = Path(source.root) if listed else split_folder(source.root, split)
        return FrameSharp(files, base, self.blur.margin, self.seed, crop)

    def _list(self, source: Source, split: str) -> list[Pair]:
        """The pairs of a split, after the cheap part of the doctor's checks."""
        listing = source.list_pairs(split, self.variant)
        where = source.root or f"{source.blurry} and {source.sharp}"
        pairs = paired(listing, where)
        rank_zero_info(f"{split}: {len(pairs)} pairs of {where} (layout {listing.layout}, variant {listing.variant})")
        if self.on_error == "stop":  # else what is damaged is passed over where it is met
            check_files(pairs)
        return pairs

    def _pairs(self, source: Source, split: str) -> bool:
        if self.blur is None or source.root is None:
            return True
        return holds_pairs(source.root, split, source.variant or self.variant)

    def train_dataloader(self) -> DataLoader | Window:
        per_batch = self.batch_size // self.crops_per_image
        stream = NumberStream(per_batch, self.trainer, self.mix_batches)
        loader = self._loader(self.train_set, batch_size=per_batch, sampler=stream, collate_fn=flatten)
        if self.mix_batches == 1:
            return loader
        return Window(loader, self.mix_batches, self.seed, stream.processed)

    def val_dataloader(self) -> DataLoader | list:
        return self._frame_loader(self.val_set) if self.roots["val"] else []

    def test_dataloader(self) -> DataLoader:
        return self._frame_loader(self.test_set)

    def _frame_loader(self, dataset: Dataset) -> DataLoader:
        """Frames in order, one at a time; of several processes each has its share."""
        world, rank = world_and_rank(self.trainer)
        sampler = DistributedSampler(dataset, world, rank, shuffle=False) if world > 1 else None
        return self._loader(dataset, sampler=sampler)

    def _loader(self, dataset: Dataset, **options) -> DataLoader:
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            worker_init_fn=_outlive_sigterm,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def on_after_batch_transfer(self, batch: dict, dataloader_idx: int) -> dict:
        """Blur sharp photographs on the device, then augment; every image's draws have a seed of their own.

        Both sides come as channels_last, the layout of the networks' weights.
        """
        for sentence in batch.pop("errors", []):
            self.skipped[sentence] = self.skipped.get(sentence, 0) + 1
            total = sum(self.skipped.values())
            rank_zero_info(f"skipped, {total} so far, {len(self.skipped)} different: {sentence}")
            if self.trainer is not None:
                for logger in self.trainer.loggers:
                    logger.log_metrics({"data/skipped": total}, step=self.trainer.global_step)
        if "seed" in batch:
            generators = [torch.Generator().manual_seed(seed) for seed in batch["seed"].tolist()]
            blurry, sharp = self.blur(batch["sharp"], generators)
            batch = {"blurry": blurry, "sharp": sharp, "name": batch["name"]}
        if self.augment is not None and self.trainer is not None and self.trainer.training:
            step = self.trainer.fit_loop.epoch_loop.batch_progress.total.processed
            generator = generator_of(self.seed, "augment", step, self.trainer.global_rank)
            batch["blurry"], batch["sharp"] = self.augment(batch["blurry"], batch["sharp"], generator)
        sides = ("blurry", "sharp")
        return batch | {side: batch[side].contiguous(memory_format=torch.channels_last) for side in sides}


def _outlive_sigterm(worker: int) -> None:
    """A cluster sends SIGTERM to all processes of a job, but the main one still has a batch to finish."""
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches them all; they end with the main one


def _sharp_files(dataset: Dataset) -> set[str]:
    """The paths of a dataset's sharp images; packed ones have none."""
    if isinstance(dataset, Mix):
        return set().union(*map(_sharp_files, dataset.parts))
    if isinstance(dataset.items, Packed):
        return set()
    return {os.path.abspath(getattr(item, "sharp", item)) for item in dataset.items}


def _source(given: str | Source) -> Source:
    return given if isinstance(given, Source) else Source(root=given)
