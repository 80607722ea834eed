"""Restore image files, for sample.py (folders) and batch (buckets)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate
from tqdm import tqdm

from deblur.checkpoints import checkpoint_hash, load_pipeline
from deblur.data.files import images, metadata
from deblur.data.files.images import ImageFile
from deblur.data.files.kinds import usual_suffix
from deblur.draft import Blurry, DeblurOutput
from deblur.hub import PRETRAINED, name_of
from deblur.image_processor import visible_pixels, with_hidden_filled
from deblur.keep_sharp import faults, kept_remarks, restored_amount, scale_remarks
from deblur.memory import allowed_memory, require_memory
from deblur.pipeline import Area, Limits
from deblur.progress import counted
from deblur.restoration.choice import restored_pixels
from deblur.restoration.maps import write_map
from deblur.restoration.options import Options, largest_scale
from deblur.restoration.outputs import Extras, Names, batches
from deblur.tiling import TooLittleMemory, refusal

# Sides in pixels of the parts whose time is measured: the first call of a network takes longer, and small parts do.
PARTS = (64, 192, 384)
ENOUGH = 1.0  # seconds: a part that takes longer is large enough
LONG = 20.0  # seconds: a job that takes longer says so before it begins
FEW = 400_000  # pixels, for which no checkpoint takes long
QUICK = ("lite", "u2net", "text")  # than which lite is not faster
SMALLER = 1600  # pixels, the longer side that is recommended for speed
STEP = 16  # pixels, between the places where the part that changed most is looked for
DETAIL = 480  # side in pixels of the part that a comparison shows at full size
# Options that a restoration depends on, beside those that its facts have in another form.
FACTS = ["seed", "metadata", "on_fault", "uncertainty", "error_bound", "compare", "depth", "tile", "predictor_tile"]
FACTS += ["max_side", "restore"]


@dataclass(frozen=True)
class Restoration:
    """The result for one image, before anything is written."""

    path: Path
    names: Names  # of its files
    failure: str | None = None  # why it could not be restored; the fields below are then empty
    image: ImageFile | None = None  # with the metadata of its restoration
    out: DeblurOutput | None = None
    faults: Sequence[str] = ()  # of the sample; see `deblur.keep_sharp`
    back: bool = False  # whether the prediction is written in place of the sample
    masked: bool = False  # whether a mask says what is restored
    seconds: float = 0.0  # its share of the batch's time

    @property
    def files(self) -> dict[Path, Tensor]:
        """The files of the restoration, each with its image (3, H, W) in [0, 1]."""
        restored = self.out.predictions if self.back else self.out.images
        return dict(zip(self.names.restored(len(restored)), restored, strict=True))

    @property
    def target(self) -> Path:
        """The file of the restoration; of several samples each has its own."""
        return self.names.target

    @property
    def amount(self) -> float:
        """How much of what is visible in the image is restored, from 0 to 1."""
        return restored_amount(self.out.share.cpu(), visible_pixels([self.image.alpha]))

    @property
    def notes(self) -> list[str]:
        """What is notable in the image, in words."""
        remarks = [*self.image.remarks, *images.remarks_on(self.image, self.target.suffix)]
        remarks += scale_remarks(self.out.scale, *self.image.pixels.shape[-2:], self.amount)
        if self.masked:
            return remarks
        values = with_hidden_filled(self.image.values[None], visible_pixels([self.image.alpha]))
        return remarks + kept_remarks(self.amount, values[0])

    def remarks(self, named: bool) -> Iterator[str]:
        """Yield what is notable, in words; `named` is whether the output's format was given."""
        yield from self.notes
        if self.target.suffix != self.path.suffix and not named:
            yield f"is written as {self.target.name}"
        for fault in self.faults:
            yield f"{fault}, the prediction is written" if self.back else fault


class Restorer:
    """A pipeline with its options and sampling settings.

    Args:
        options: what is written, and how it is computed.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.
        device: overrides the device of the options.

    Attributes:
        facts: what a restoration depends on besides the image, for the manifest.
        title: the same in words.
        remarks: notes on settings without effect.
        extras: what is written of each image.

    Raises:
        ValueError, OSError: the checkpoint, the device or the settings cannot be used.
    """

    def __init__(self, options: Options, numbers: dict[str, Any], device: str | None = None):
        source = options.checkpoint or PRETRAINED
        self.options = options
        arguments = device or options.device, options.precision, options.provider, options.classes or ()
        self.pipeline = load_pipeline(source, *arguments)
        place, precision = self.pipeline.device, self.pipeline.precision
        self.mask = read_mask(options.mask) if options.mask else None
        self._scales: dict[Path, float] = {}  # that were found before the restoration
        self._choose_settings(numbers)
        self.extras = self._extras()
        if options.compile:
            self.pipeline.compile_networks()
        require_memory(options.memory, place)
        name, preset = name_of(options.checkpoint), options.preset
        if preset is None and "balanced" in self.pipeline.config.presets:
            preset = "balanced"
        choice_in_words = f"{name}, {preset}" if preset else name
        self.title = f"{choice_in_words}: {self.settings}; {self.pipeline.place}, {precision}; "
        self._found = {"checkpoint": name, "preset": preset, "device": self.pipeline.place}
        self.facts = {name: getattr(options, name) for name in FACTS} | {
            "checkpoint_sha256": checkpoint_hash(source),
            "settings": asdict(self.settings),
            "precision": precision,
            "scale": str(options.scale),
            "mask": None if self.mask is None else sha256(self.mask.numpy().tobytes()).hexdigest(),
            "format": options.suffix and usual_suffix(options.suffix),
        }

    @property
    def steps(self) -> int:
        """Steps of the progress bar per image."""
        return self.settings.num_samples * self.settings.steps if self.settings.blend > 0 else 1

    def restore(self, work: Sequence[tuple[Path, Names]], bar: tqdm) -> Iterator[Restoration]:
        """Restore images, each with the names of its files, in batches of one size; the bar counts steps."""
        begun, finished = bar.n, 0
        # On a CPU batches of more than thumbnails are slower, and on some processors a batch of another size rounds
        # differently.
        size = self.options.batch_size or (1 if self.pipeline.device.type == "cpu" else None)
        for batch in batches(work, size):
            bar.set_description(batch[0][0].name)
            by_scale: dict[float, list] = {}
            for path, names in batch:
                try:
                    image = metadata.kept(images.read_file(path), self.options.metadata)
                    images.require_tellable(names.target, image)
                    self._require_mask_of(image, path)
                    scale = self._scales.pop(path, None) or self._scale(image, path)
                    by_scale.setdefault(scale, []).append((path, names, image))
                except images.ImageError as error:
                    yield Restoration(path, names, str(error))
            for scale in sorted(by_scale):
                yield from self._restored(by_scale[scale], scale, bar)
            finished += len(batch)
            bar.update(begun + finished * self.steps - bar.n)

    def expected(self, sized: Sequence[tuple[Path, int, int]]) -> tuple[float, float]:
        """About how many seconds images of these `restoration.choice.sizes` take, and the longest restored side.

        The time is that of a part of an image. The scale that is found for the first large image stands for those of
        the others, and finding it counts, too. No time is expected for so few pixels that no checkpoint takes long.
        """
        scale, max_side = self.options.scale, self.options.max_side
        if restored_pixels(sized, scale, max_side) < FEW:
            return 0.0, 0.0
        searched = [one for one in sized if self._is_searched(max(one[1:]))]
        path, image = self._first_of(searched or sized)
        if image is None:
            return 0.0, 0.0
        others = [one for one in sized if not self._is_searched(max(one[1:]))]
        start = time.perf_counter()
        try:
            searched_scale = self._scale(image, path)
        except images.ImageError:  # which is said in its turn
            return 0.0, 0.0
        search = time.perf_counter() - start
        self._scales[path] = searched_scale
        groups = [(others, scale), (searched, searched_scale)]
        pixels = sum(restored_pixels(group, group_scale, max_side) for group, group_scale in groups)
        sides = [(max(one[1:]), group_scale) for group, group_scale in groups for one in group]
        longest = max(side * largest_scale(group_scale, max_side, side) for side, group_scale in sides)
        return self._seconds_of(pixels, image) + search * max(0, len(searched) - 1), longest

    def _is_searched(self, longer: int) -> bool:
        """Whether the scale is found by measuring an image with such a longer side."""
        rule = self.pipeline.working_size
        return self.options.scale == "auto" and rule is not None and longer > rule.largest_kept

    def _first_of(self, sized: Sequence[tuple[Path, int, int]]) -> tuple[Path | None, ImageFile | None]:
        """The first image that can be restored; the others are reported in their turn."""
        for path, _, _ in sized:
            try:
                image = images.read_file(path)
                self._require_mask_of(image, path)
                return path, image
            except images.ImageError:
                continue
        return None, None

    def _seconds_of(self, pixels: float, image: ImageFile) -> float:
        """The time of so many pixels, as a part of an image takes it."""
        for side in PARTS:
            part = image.values[None, :, :side, :side].to(self.pipeline.device)
            start = time.perf_counter()
            draft = self.pipeline.draft(Blurry(part), self.settings.stages)
            predicted = time.perf_counter()
            if self.settings.blend > 0:
                one = replace(self.settings, num_samples=1, average=False, keep_sharp=0.0)
                draft.restored(self.pipeline.sample(draft, one), [one])
            drawing = (time.perf_counter() - predicted) * self.settings.num_samples
            of_part = predicted - start + drawing
            seconds = of_part * pixels / part[0, 0].numel()
            if side > PARTS[0] and (of_part > ENOUGH or seconds <= LONG):
                break
        return seconds

    def faster(self, longest: float) -> str:
        """What would take less time than with this longest restored side, in words."""
        ways = ["--preset fast"] if "fast" in self.pipeline.config.presets and self.options.preset != "fast" else []
        is_quick = name_of(self.options.checkpoint).removeprefix("pretrained/") in QUICK
        ways += [] if is_quick else ["--checkpoint lite"]
        if longest > SMALLER:
            ways.append(f"--max_side {SMALLER}")
        return " or ".join(ways) or "a smaller --max_side"

    def write(self, restoration: Restoration) -> tuple[list[Path], dict[str, Any]]:
        """Write one restoration. Returns its files, and the other fields of the manifest's entry."""
        start, options, out, names = time.perf_counter(), self.options, restoration.out, restoration.names
        for file, restored in restoration.files.items():
            images.write(file, restored, restoration.image, options.depth)
        written, whites = list(restoration.files), {}
        maps = {"std": out.std, "error": out.expected_error} if options.uncertainty else {}
        if options.error_bound:
            maps["bound"] = self.pipeline.error_curve.bounding(out.expected_error)
        for kind, values in maps.items():
            if values is not None:
                heat = names.map(kind)
                whites[f"{kind}_white"] = write_map(heat, values[0])
                written += [heat, heat.with_suffix(".tif")]
        if options.compare:
            written.append(names.comparison())
            restored = next(iter(restoration.files.values()))
            _write_comparison(written[-1], restoration.image.values, out.predictions[0], restored)
        seconds = round(restoration.seconds + time.perf_counter() - start, 3)
        entry = {"tiles": out.tiles, "seconds": seconds, "faults": list(restoration.faults)}
        entry |= {"working_scale": out.scale, "restored_share": round(restoration.amount, 4)}
        return written, self._found | entry | whites

    def _choose_settings(self, numbers: dict[str, Any]) -> None:
        pipeline, options = self.pipeline, self.options
        settings = pipeline.preset(options.preset).changed(numbers)
        if options.restore == "all":
            settings = replace(settings, keep_sharp=0.0)
        self.remarks = settings.without_effect(numbers)
        self.settings = replace(settings, num_samples=1) if settings.blend == 0 else settings
        head = pipeline.predictor.config.get("size_head")
        if options.uncertainty and self.settings.num_samples == 1 and not head:
            raise ValueError(
                "--uncertainty needs several samples, since this checkpoint's predictor does not say what error it"
                " expects: give --num_samples 2 or more"
            )
        if options.error_bound and pipeline.error_curve is None:
            raise ValueError("--error_bound needs a checkpoint whose expected error is calibrated (tools.calibrate)")

    def _extras(self) -> Extras:
        options, maps = self.options, []
        samples = 1 if self.settings.average else self.settings.num_samples
        if options.uncertainty and self.settings.num_samples > 1:
            maps.append("std")
        if options.uncertainty and self.pipeline.predictor.config.get("size_head"):
            maps.append("error")
        if options.error_bound:
            maps.append("bound")
        return Extras(samples, tuple(maps), options.compare)

    def _scale(self, image: ImageFile, path: Path) -> float:
        """The scale at which one image is restored. ImageError if memory does not suffice to find it."""
        most = largest_scale(self.options.scale, self.options.max_side, max(image.pixels.shape[-2:]))
        if self.options.scale != "auto":
            return most
        visible = visible_pixels([image.alpha])
        memory = allowed_memory(self.options.memory, image.pixels[0].numel(), self.pipeline.device)
        try:
            area = Area(mask=self.mask, visible=visible)
            return min(most, self.pipeline.working_scale(image.values[None], area, Limits(memory=memory)))
        except (TooLittleMemory, MemoryError, RuntimeError) as error:
            sentence = refusal(error, *image.pixels.shape[-2:])
            if sentence is None:
                raise
            raise images.ImageError(f"{path} {sentence}") from None

    def _require_mask_of(self, image: ImageFile, path: Path) -> None:
        """ImageError if there is a mask of another size than the image's."""
        if self.mask is not None and self.mask.shape != image.pixels.shape[-2:]:
            (height, width), (rows, columns) = self.mask.shape, image.pixels.shape[-2:]
            raise images.ImageError(
                f"{path} has {columns} x {rows} pixels, and --mask {self.options.mask} {width} x {height}: give one of"
                " its size"
            )

    def _restored(self, loaded: list[tuple[Path, Names, ImageFile]], scale: float, bar: tqdm) -> Iterator[Restoration]:
        """Restore a batch; images that differ in size or do not fit into memory together are restored one by one."""
        out, start = None, time.perf_counter()
        if len({(image.pixels.shape, image.pixels.dtype) for _, _, image in loaded}) == 1:
            try:
                pixels = torch.stack([image.pixels for _, _, image in loaded])
                memory = allowed_memory(self.options.memory, pixels[0, 0].numel(), self.pipeline.device)
                out = self.pipeline(
                    pixels,
                    self.settings,
                    self.options.seed,
                    names=[path.stem for path, _, _ in loaded],
                    output_type="pt",
                    progress=counted(bar, len(loaded)),
                    limits=Limits(self.options.tile, self.options.predictor_tile, memory),
                    area=Area(scale, self.mask, visible_pixels([image.alpha for _, _, image in loaded])),
                )
            except (TooLittleMemory, MemoryError, RuntimeError) as error:
                out = refusal(error, *loaded[0][2].pixels.shape[-2:])
                if out is None:
                    raise
        if not hasattr(out, "images") and len(loaded) > 1:
            for half in (loaded[: len(loaded) // 2], loaded[len(loaded) // 2 :]):
                yield from self._restored(half, scale, bar)
            return
        seconds = (time.perf_counter() - start) / max(1, len(loaded))
        for i, (path, names, image) in enumerate(loaded):
            if isinstance(out, str):
                yield Restoration(path, names, f"{path} {out}")
                continue
            part, start = _part(out, i, len(loaded)), time.perf_counter()
            drawn = self.settings.blend > 0 and bool(part.share.any())
            visible = visible_pixels([image.alpha])
            sentences = faults(part.images[0], part.predictions[0], image.pixels, visible) if drawn else []
            back = bool(sentences) and self.options.on_fault == "fallback"
            took = seconds + time.perf_counter() - start
            yield Restoration(path, names, None, image, part, sentences, back, self.mask is not None, took)


def read_mask(file: str) -> Tensor:
    """A mask (H, W) in [0, 1] from an image file, by its brightness and alpha. ImageError if it cannot be read."""
    return images.read_mask(file)


def _part(out: DeblurOutput, i: int, count: int) -> DeblurOutput:
    """The part of a batch's output (of `count` images) that belongs to image `i`."""
    fields = {name: getattr(out, name) for name in ("predictions", "std", "expected_error", "share")}
    fields = {name: None if values is None else values[i : i + 1] for name, values in fields.items()}
    return replace(out, images=out.images.unflatten(0, (count, -1))[i], **fields)


def _write_comparison(path: Path, blurry: Tensor, prediction: Tensor, restored: Tensor) -> None:
    """A panel of the whole images and, if those are reduced in it, of the part that changed most, at full size."""
    from deblur.evaluation.panels import panel  # not at the top: slow to import

    columns = {}
    top, left = _most_changed(blurry, restored)
    for label, image in (("blurry", blurry), ("prediction", prediction), ("restored", restored)):
        height, width = image.shape[-2:]
        columns[label] = [image]
        if width > DETAIL:
            small = interpolate(image[None], (max(1, height * DETAIL // width), DETAIL), mode="area")[0]
            columns[label] = [small, image[:, top : top + DETAIL, left : left + DETAIL]]
    panel(columns, path)


def _most_changed(blurry: Tensor, restored: Tensor) -> tuple[int, int]:
    """Top and left of the part of DETAIL pixels a side in which two images (3, H, W) differ most."""
    squares = (restored - blurry).square_().mean(0, keepdim=True)
    blocks = avg_pool2d(squares[None], STEP, ceil_mode=True)
    rows, columns = (min(DETAIL // STEP, side) for side in blocks.shape[-2:])
    sums = avg_pool2d(blocks, (rows, columns), stride=1)[0, 0]
    places = divmod(int(sums.flatten().argmax()), sums.shape[1])
    return tuple(max(0, min(STEP * at, side - DETAIL)) for at, side in zip(places, blurry.shape[-2:], strict=True))
