"""Restore image files by one checkpoint: read, restore, say what is notable, write.

What comes before and after is the caller's: sample.py (`job.py`) lists files and keeps manifest.json, tools.batch
copies them from a bucket and keeps manifest.parquet. Which files are written stands in `outputs.py` for both.
"""

import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from deblur.checkpoints import checkpoint_hash
from deblur.data.files import images, metadata
from deblur.data.files.images import ImageError, ImageFile, header_size
from deblur.data.files.kinds import usual_suffix
from deblur.draft import DeblurOutput, Draft
from deblur.hub import PRETRAINED, PURPOSES, TEXT, name_of
from deblur.image_processor import visible_pixels
from deblur.keep_sharp import restored_amount
from deblur.pipeline import Area, Limits, Progress, load_pipeline
from deblur.progress import ProgressBar
from deblur.restoration.maps import write_before_and_after, write_map
from deblur.restoration.options import Options, largest_scale
from deblur.restoration.outputs import Extras, Names
from deblur.restoration.photograph import Photograph, Restoration
from deblur.restoration.remarks import faults, notes
from deblur.restoration.text import looks_like_text
from deblur.settings import SamplingSettings, preset_settings
from deblur.tiling import TooLittleMemory, allowed_memory, fixed_spans, refusal, require_memory

PIXELS_AT_ONCE = 1 << 21  # default number of pixels restored at once
IMAGES_AT_ONCE = 16  # images
# Options that a restoration depends on, beside those that its facts have in another form.
OPTIONS_IN_FACTS = ["seed", "metadata", "on_fault", "uncertainty", "error_bound", "compare", "depth", "quality", "tile"]
OPTIONS_IN_FACTS += ["predictor_tile", "max_side", "restore"]


class Restorer:
    """A pipeline with its options and sampling settings.

    Args:
        options: what is written, and how it is computed.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.
        loaded: another one of the same checkpoint, whose pipeline it takes.

    Attributes:
        facts: what a restoration depends on besides the image, for the manifest.
        title: the same in words.
        remarks: notes on settings without effect.
        extras: what is written of each image.
        is_for_photographs: whether the checkpoint is one of the repository's for them.

    Raises:
        ValueError, OSError: the checkpoint, the device or the settings cannot be used.
    """

    def __init__(self, options: Options, numbers: dict[str, Any], loaded: "Restorer | None" = None):
        self.options = options
        if loaded is None:
            source = options.checkpoint or PRETRAINED
            self.pipeline = load_pipeline(
                source, options.device, options.precision, options.provider, options.classes or ()
            )
            digest = checkpoint_hash(source)
        else:
            self.pipeline, digest = loaded.pipeline, loaded.facts["checkpoint_sha256"]
        self.mask = images.read_mask(options.mask) if options.mask else None
        self.scales: dict[Path, float] = {}  # that were found
        self.predictor_share = 0.5  # of the time of a restoration, unless it was measured
        presets = self.pipeline.config.presets
        self.settings = settings_of(presets, options, numbers)
        self.remarks = self.settings.without_effect(numbers)
        if "keep_sharp" in numbers and (flag := _restores_all_by(options)):
            self.remarks.append(f"--keep_sharp has no effect: {flag} says what is restored")
        samples = 1 if self.settings.average else self.settings.num_samples
        self.extras = Extras(samples, self._maps(), options.compare)
        if options.compile:
            self.pipeline.compile_networks()
        require_memory(options.memory, self.pipeline.device)
        name, preset = name_of(options.checkpoint), options.preset
        if preset is None and "balanced" in presets:
            preset = "balanced"
        self.is_for_photographs = name.removeprefix("pretrained/") in PURPOSES.keys() - {TEXT}
        place, precision = self.pipeline.place, self.pipeline.precision
        self.title = f"{f'{name}, {preset}' if preset else name}: {self.settings}; {place}, {precision}; "
        self._found = {"checkpoint": name, "preset": preset, "device": place}
        self.facts = {name: getattr(options, name) for name in OPTIONS_IN_FACTS} | {
            "checkpoint_sha256": digest,
            "settings": asdict(self.settings),
            "precision": precision,
            "scale": str(options.scale),
            "mask": None if self.mask is None else sha256(self.mask.numpy().tobytes()).hexdigest(),
            "format": options.suffix and usual_suffix(options.suffix),
        }

    def _maps(self) -> tuple[str, ...]:
        """The kinds of maps that are wanted. ValueError if this checkpoint does not give one of them."""
        maps, head = [], self.pipeline.predictor.config.get("size_head")
        if self.options.uncertainty:
            maps += ["std"] if self.settings.num_samples > 1 else []
            maps += ["error"] if head else []
            if not maps:
                raise ValueError(
                    "--uncertainty needs several samples, since this checkpoint's predictor does not say what error it"
                    " expects: give --num_samples 2 or more"
                )
        if self.options.error_bound:
            if self.pipeline.error_curve is None:
                raise ValueError(
                    "--error_bound needs a checkpoint whose expected error is calibrated (tools.calibrate)"
                )
            maps.append("bound")
        return tuple(maps)

    def restore(self, work: Sequence[tuple[Path, Names]], bar: tqdm, refused: dict[Path, str]) -> Iterator[Restoration]:
        """Restore images, each with the names of its files, in batches of one size; the bar counts images.

        `refused` gets each image that cannot be restored, with a sentence that names it.
        """
        # On a CPU batches of more than thumbnails are slower, and on some processors a batch of another size rounds
        # differently.
        size = self.options.batch_size or (1 if self.pipeline.device.type == "cpu" else None)
        finished = bar.n
        for batch in batches(work, size):
            bar.set_description(batch[0][0].name)
            alike: dict[tuple, list[Photograph]] = {}  # by scale, shape and depth
            for path, names in batch:
                try:
                    photograph = self.read(path, names)
                    scale = self.scale_of(photograph)
                    pixels = photograph.image.pixels
                    alike.setdefault((scale, pixels.shape, str(pixels.dtype)), []).append(photograph)
                except ImageError as error:
                    refused[path] = str(error)
            for (scale, *_), photographs in sorted(alike.items()):
                yield from self._restore_alike(photographs, scale, bar, refused)
            finished += len(batch)
            bar.update(finished - bar.n)

    def read(self, path: Path, names: Names) -> Photograph:
        """Read an image. ImageError if it cannot be read, and as of `photograph`."""
        return self.photograph(path, names, images.read_file(path))

    def photograph(self, path: Path, names: Names, image: ImageFile) -> Photograph:
        """An image that was read. ImageError if it cannot be written, or if there is a mask of another size."""
        image = metadata.of_restoration(image, self.options.metadata)
        images.require_tellable(names.target, image)
        _require_short_names(path, names.files(self.extras))
        if self.mask is not None and self.mask.shape != image.pixels.shape[-2:]:
            (height, width), (rows, columns) = self.mask.shape, image.pixels.shape[-2:]
            raise ImageError(
                f"{path} has {columns} x {rows} pixels, and --mask {self.options.mask} {width} x {height}: give one of"
                " its size"
            )
        return Photograph(path, names, image)

    def scale_of(self, photograph: Photograph) -> float:
        """The scale at which one image is restored. ImageError if memory does not suffice to find it."""
        image = photograph.image
        most = largest_scale(self.options.scale, self.options.max_side, max(image.pixels.shape[-2:]))
        if self.options.scale != "auto":
            return most
        if photograph.path not in self.scales:
            area = Area(mask=self.mask, visible=photograph.visible)
            limits = Limits(memory=self._memory(image.pixels[0].numel()))
            try:
                self.scales[photograph.path] = self.pipeline.prepare(image.values[None], area, limits).scale
            except (TooLittleMemory, MemoryError, RuntimeError) as error:
                sentence = refusal(error, *image.pixels.shape[-2:])
                if sentence is None:
                    raise
                raise ImageError(f"{photograph.path} {sentence}") from None
        return min(most, self.scales[photograph.path])

    def _memory(self, pixels: int) -> int | None:
        return allowed_memory(self.options.memory, pixels, self.pipeline.device)

    def _restore_alike(
        self, photographs: list[Photograph], scale: float, bar: tqdm, refused: dict[Path, str]
    ) -> Iterator[Restoration]:
        """Restore images of one shape and depth together, or by halves if they do not fit into memory together."""
        groups = [photographs]
        while groups:
            together, start = groups.pop(0), time.perf_counter()
            try:
                output = self._run_pipeline(together, scale, bar)
            except (TooLittleMemory, MemoryError, RuntimeError) as error:
                reason = refusal(error, *together[0].image.pixels.shape[-2:])
                if reason is None:
                    raise
                if len(together) == 1:
                    refused[together[0].path] = f"{together[0].path} {reason}"
                else:
                    middle = len(together) // 2
                    groups[:0] = [together[:middle], together[middle:]]
                continue  # the error, which holds tensors, is gone
            seconds = (time.perf_counter() - start) / len(together)
            for i, photograph in enumerate(together):
                try:
                    restoration = self.restoration(photograph, _part(output, i, len(together)), seconds)
                except ImageError as error:
                    refused[photograph.path] = str(error)
                else:
                    yield restoration
            del output  # before the other half is restored

    def _run_pipeline(self, photographs: list[Photograph], scale: float, bar: tqdm) -> DeblurOutput:
        """What the pipeline makes of images of one shape and depth, while the bar moves."""
        height, width = photographs[0].image.pixels.shape[-2:]
        predicted = network_pixels(self.pipeline.predictor, round(scale * height), round(scale * width))
        with self._moving(bar, len(photographs), predicted) as progress:
            draft, samples = self.draw(photographs, scale, progress)
            [output] = draft.restored(samples, [self.settings])
        return output

    def draw(
        self, photographs: Sequence[Photograph], scale: float, progress: Progress = iter
    ) -> tuple[Draft, Iterator[Tensor]]:
        """The networks' part of a restoration of images of one shape and depth, as `DeblurPipeline.draw`."""
        pixels = torch.stack([photograph.image.pixels for photograph in photographs])
        visible = visible_pixels([photograph.image.alpha for photograph in photographs])
        names = [photograph.path.stem for photograph in photographs]
        limits = Limits(self.options.tile, self.options.predictor_tile, self._memory(pixels[0, 0].numel()))
        area = Area(scale, self.mask, visible)
        return self.pipeline.draw(
            images.to_float(pixels), self.settings, self.options.seed, names, progress, limits, area
        )

    @contextmanager
    def _moving(self, bar: tqdm, images_together: int, pixels: int) -> Iterator[Progress]:
        """Move the bar while images are restored, which have so many pixels each: by tiles, and by the steps of this
        wrapper."""
        predicted_by = bar.n + images_together * self.predictor_share
        drawn_by = bar.n + images_together

        def predicted(_, given: tuple[Tensor, ...], __) -> None:
            part = self.predictor_share * given[0][:, 0].numel() / pixels
            bar.update(min(part, predicted_by - bar.n))  # tiles overlap

        def drawn(steps: Iterable) -> Iterator:
            all_steps = self.settings.num_samples * self.settings.steps
            for step in steps:
                yield step
                part = images_together * (1 - self.predictor_share) / all_steps
                bar.update(min(part, drawn_by - bar.n))  # their sum is rounded

        hook = None if self.pipeline.compiled else self.pipeline.predictor.register_forward_hook(predicted)
        try:
            yield drawn
        finally:
            if hook is not None:
                hook.remove()

    def restoration(self, photograph: Photograph, out: DeblurOutput, seconds: float) -> Restoration:
        """What the pipeline made of one image in so many seconds, with what is wrong and notable in it.

        Raises ImageError if it is no image, which is not to be written.
        """
        start, image, visible = time.perf_counter(), photograph.image, photograph.visible
        [prediction], restored, found = out.predictions, list(out.images), []
        is_drawn = self.settings.blend > 0 and bool(out.share.any())
        files = photograph.names.restored(len(restored))
        for k, file in enumerate(files if is_drawn else []):
            sentences = faults(restored[k], prediction, image.pixels, visible)
            found += sentences if len(files) == 1 else [f"{file.name}: {sentence}" for sentence in sentences]
            if sentences and self.options.on_fault == "fallback":
                restored[k] = prediction
        if not all(x.isfinite().all() for x in restored):
            raise ImageError(
                f"{photograph.path} is not written: its restoration has pixels that are no numbers, the checkpoint may"
                " be damaged; --on_fault fallback writes the prediction"
            )
        if "std" in self.extras.maps and not out.std.isfinite().all():
            raise ImageError(
                f"{photograph.path} is not written: a sample has pixels that are no numbers, so there is no map of how"
                " much the samples differ; --uncertainty false writes the restoration"
            )
        amount = restored_amount(out.share.cpu(), visible)
        made = Restoration(photograph, out, restored, amount, found, seconds)
        noted = notes(made, self.mask is not None)
        if self.is_for_photographs and looks_like_text(image.values):
            noted.append("looks like a page of text, for which --checkpoint text is made")
        return replace(made, notes=noted, seconds=seconds + time.perf_counter() - start)

    def write(self, restoration: Restoration) -> tuple[list[Path], dict[str, Any]]:
        """Write one restoration. Returns its files, and the other fields of the manifest's entry."""
        start, options, out = time.perf_counter(), self.options, restoration.out
        photograph, names = restoration.photograph, restoration.photograph.names
        written, whites = list(restoration.files), {}
        maps = {"std": out.std, "error": out.expected_error}
        if "bound" in self.extras.maps:
            maps["bound"] = self.pipeline.error_curve.bounding(out.expected_error)
        for file, restored in restoration.files.items():
            images.write(file, restored, photograph.image, options.depth, quality=options.quality)
        for kind in self.extras.maps:
            heat = names.map(kind)
            whites[f"{kind}_white"] = write_map(heat, maps[kind][0])
            written += [heat, heat.with_suffix(".tif")]
        if options.compare:
            written.append(names.comparison())
            prediction = out.predictions[0] if self.settings.blend > 0 else None
            write_before_and_after(written[-1], photograph.image.values, restoration.restored[0], prediction)
        seconds = round(restoration.seconds + time.perf_counter() - start, 3)
        found = {"tiles": out.tiles, "seconds": seconds, "faults": list(restoration.faults)}
        found |= {"working_scale": out.scale, "restored_share": round(restoration.amount, 4)}
        return written, self._found | self.facts | found | whites


def settings_of(presets: dict[str, dict], options: Options, numbers: dict[str, Any]) -> SamplingSettings:
    """How to sample with a checkpoint that has these presets."""
    settings = preset_settings(presets, options.preset).changed(numbers)
    if _restores_all_by(options):
        settings = replace(settings, keep_sharp=0.0)
    return replace(settings, num_samples=1) if settings.blend == 0 else settings


def _restores_all_by(options: Options) -> str | None:
    """The flag by which nothing is kept for being sharp; None if there is none."""
    if options.mask:
        return "--mask"
    return "--restore all" if options.restore == "all" else None


def checkpoint_facts(presets: dict[str, dict], options: Options, numbers: dict[str, Any]) -> dict[str, Any]:
    """What of a restoration's facts depends on the checkpoint."""
    settings = settings_of(presets, options, numbers)
    return {"checkpoint_sha256": checkpoint_hash(options.checkpoint or PRETRAINED), "settings": asdict(settings)}


def batches(work: Sequence[tuple[Path, Names]], size: int | None) -> Iterator[list[tuple[Path, Names]]]:
    """Group images, each with the names of its files, by the size in their headers, as the sizes appear.

    A group has `size` images; None: as many as fit into PIXELS_AT_ONCE, at most IMAGES_AT_ONCE.
    """
    if size == 1:
        yield from ([pair] for pair in work)
        return
    groups: dict[tuple[int, int], list] = {}  # by width and height
    for path, names in ProgressBar(work, "sizes", delay=2, leave=False):
        try:
            shape = header_size(path)
        except ImageError:  # to be refused when it is read
            shape = (PIXELS_AT_ONCE, 1)
        groups.setdefault(shape, []).append((path, names))
    for (width, height), group in groups.items():
        count = size or max(1, min(IMAGES_AT_ONCE, PIXELS_AT_ONCE // (width * height)))
        yield from (group[i : i + count] for i in range(0, len(group), count))


def network_pixels(predictor: nn.Module, height: int, width: int) -> int:
    """How many pixels a predictor is given for an image: more than it has where the predictor's own tiles overlap."""
    tile = getattr(predictor, "fixed_tile", None) or getattr(predictor, "own_tile", None)
    if tile is None:
        return height * width
    rows, columns = (
        sum(end - start for start, _, _, end in fixed_spans(length, *tile, stride=1)) for length in (height, width)
    )
    return rows * columns


def _require_short_names(path: Path, files: Sequence[Path]) -> None:
    """ImageError if a file of an image would have a longer name than the file system allows."""
    for file in files:
        folder = next(parent for parent in file.parents if parent.exists())
        try:
            os.lstat(folder / file.name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ImageError(f"{path} cannot be written as {file.name}: that name is too long, rename it") from None


def _part(out: DeblurOutput, i: int, count: int) -> DeblurOutput:
    """The part of a batch's output (of `count` images) that belongs to image `i`."""
    fields = {name: getattr(out, name) for name in ("predictions", "std", "expected_error", "share", "discarded")}
    fields = {name: None if values is None else values[i : i + 1] for name, values in fields.items()}
    return replace(out, images=out.images.unflatten(0, (count, -1))[i], **fields)
