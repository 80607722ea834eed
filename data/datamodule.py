"""DeblurDataModule: pairs from disk, or sharp photographs blurred on the training device."""

from collections.abc import Iterator

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from data import images
from data.blur import CameraShake
from data.layouts import DatasetError, find_pairs, holds_pairs, split_folder
from data.pairs import FramePairs, FrameSharp, TrainPairs, TrainSharp, flatten


class NumberStream(DistributedSampler):
    """The numbers of the training stream, without end, for one rank.

    Global batch b (from 0, over the whole run) has the next `per_batch * world` numbers, `per_batch` for each
    rank. It begins after the batches that the trainer has processed, so a resumed run goes on where its
    checkpoint was written. A DistributedSampler by type because Lightning replaces samplers of any other type
    on several devices.
    """

    __len__ = None  # the trainer's max_steps ends the run

    def __init__(self, per_batch: int, trainer: pl.Trainer | None):
        self.per_batch = per_batch
        self.trainer = trainer

    def __iter__(self) -> Iterator[int]:
        world, rank, batch = 1, 0, 0
        if self.trainer is not None:
            world, rank = self.trainer.world_size, self.trainer.global_rank
            # Restored before the loaders are made. `processed` leaves out a batch in which a run died.
            batch = self.trainer.fit_loop.epoch_loop.batch_progress.total.processed
        while True:
            first = (batch * world + rank) * self.per_batch
            yield from range(first, first + self.per_batch)
            batch += 1


class DeblurDataModule(pl.LightningDataModule):
    """Batches {"blurry", "sharp": (N, 3, H, W) float32 in [0, 1], "name": list of str}.

    Training gives random crops without end (set max_steps), a pure function of the seed and of the batches
    processed, so a resumed run sees exactly the batches it would have seen. Validation and test give frames
    in order, one a batch.

    Args:
        train: root folder of the training data: pairs (see data.layouts.find_pairs), or sharp photographs
            where `blur` is given. Of pairs, `blur` takes the sharp side. ROOT/train is used where there is one.
        val: root folder of the validation data; none: no validation. Pairs are recognised by their folders and
            taken as they are, so that training on synthetic blur can be validated on real blur; sharp
            photographs need `blur`. ROOT/val is used where there are such folders.
        test: root folder of the test data, likewise.
        blur: makes the blurry picture from the sharp one, on the training device; in validation and test
            always alike for a seed and a picture's name, where the frames lose the blur's margin on every
            side.
        variant: name of the folder of blurry pictures in the GoPro layout: blur or blur_gamma.
        patch_size: side of the training crops in pixels.
        batch_size: training crops a step and device.
        crops_per_image: crops cut from each decoded file; decoding costs more than all else. Must divide
            batch_size.
        val_crop: validation looks at the centre of a frame, at most this many pixels high and wide, which
            bounds its memory and time; null takes whole frames. The test always does.
        num_workers: processes that read files; 0 reads in the main one.
        seed: of the order, the crops and the blur.
    """

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        blur: CameraShake | None = None,
        variant: str = "blur",
        patch_size: int = 128,
        batch_size: int = 16,
        crops_per_image: int = 1,
        val_crop: int | None = 512,
        num_workers: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        for name, value in {
            "patch_size": patch_size,
            "batch_size": batch_size,
            "crops_per_image": crops_per_image,
        }.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        if batch_size % crops_per_image:
            raise ValueError(f"crops_per_image ({crops_per_image}) must divide batch_size ({batch_size}).")
        self.roots = {"train": train, "val": val, "test": test}
        self.blur = blur
        self.variant = variant
        self.patch_size = patch_size
        self.batch_size = batch_size
        self.crops_per_image = crops_per_image
        self.val_crop = val_crop
        self.num_workers = num_workers
        self.seed = seed

    def setup(self, stage: str) -> None:
        """List the files of a stage (fit, validate, test); raises DatasetError or ImageError."""
        if stage == "fit":
            self.train_set = self._train_set(self._root("train"))
        if stage == "validate" or (stage == "fit" and self.roots["val"]):
            self.val_set = self._frames(self._root("val"), "val", self.val_crop)
        if stage == "test":
            self.test_set = self._frames(self._root("test"), "test", None)

    def _root(self, split: str) -> str:
        if not self.roots[split]:
            raise DatasetError(f"No {split} data is given: set data.{split} to a folder.")
        return self.roots[split]

    def _train_set(self, root: str) -> Dataset:
        pairs = find_pairs(root, "train", self.variant) if self._pairs(root, "train") else None
        if self.blur is None:
            return TrainPairs(pairs, self.patch_size, self.seed, self.crops_per_image)
        files = [pair.sharp for pair in pairs] if pairs else images.find(split_folder(root, "train"))
        return TrainSharp(files, self.patch_size, self.blur.margin, self.seed, self.crops_per_image)

    def _frames(self, root: str, split: str, crop: int | None) -> Dataset:
        if self._pairs(root, split):
            return FramePairs(find_pairs(root, split, self.variant), crop)
        return FrameSharp(split_folder(root, split), self.blur.margin, self.seed, crop)

    def _pairs(self, root: str, split: str) -> bool:
        return self.blur is None or holds_pairs(root, split, self.variant)

    def train_dataloader(self) -> DataLoader:
        per_batch = self.batch_size // self.crops_per_image
        stream = NumberStream(per_batch, self.trainer)
        return self._loader(self.train_set, batch_size=per_batch, sampler=stream, collate_fn=flatten)

    def val_dataloader(self) -> DataLoader | list:
        return self._loader(self.val_set) if self.roots["val"] else []

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.test_set)

    def _loader(self, dataset: Dataset, **options) -> DataLoader:
        return DataLoader(
            dataset,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def on_after_batch_transfer(self, batch: dict, dataloader_idx: int) -> dict:
        """Blur sharp photographs on the device; every picture's blur has a seed of its own."""
        if "seed" not in batch:
            return batch
        generators = [torch.Generator().manual_seed(seed) for seed in batch["seed"].tolist()]
        blurry = self.blur(batch["sharp"], generators)
        inside = slice(self.blur.margin, -self.blur.margin or None)
        blurry, sharp = blurry[..., inside, inside], batch["sharp"][..., inside, inside]
        return {"blurry": blurry, "sharp": sharp, "name": batch["name"]}
