"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py photo.jpg --output sharp.png --preset perceptual
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --output restored
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from base.command_line import class_help, descriptions, flag_help, split, values, word_for
from base.messages import UsageError
from base.stop import Stopped, run_command
from data.manifest import Manifest
from data.outputs import Outputs, batches, outputs_of
from models.index import flow_of, name_of, pretrained, stored_index
from models.options import Options
from models.settings import SamplingSettings, preset_settings

if TYPE_CHECKING:
    from torch import Tensor

    from data.images import ImageFile
    from models.pipeline import DeblurOutput, DeblurPipeline

DETAIL = 480  # side in pixels of what a comparison shows at full size
STOPPED = "stopped, {} done; run again to go on"


NUMBERS = get_type_hints(SamplingSettings)
KINDS = get_type_hints(Options) | NUMBERS


def restore(inputs: list[str], options: Options, numbers: dict[str, Any]) -> int:
    """Restore images, each in its own format and depth, with its metadata.

    Under torchrun each process takes its share of the list.

    Args:
        inputs: images, folders of images (searched recursively) and patterns such as photos/**/*.png.
        options: what is written, and how it is computed.
        numbers: sampling numbers, by name of the field of `SamplingSettings`; what is not among them is the preset's.

    Returns:
        How many images could not be restored; each is named on stderr.

    Raises:
        ValueError, OSError: nothing can be restored; one sentence.
    """
    SamplingSettings(**numbers)  # says what is wrong before anything heavy
    outputs = outputs_of(inputs, options.output, options.suffix, options.depth == 16)
    source = options.checkpoint or pretrained()
    index = stored_index(source)
    if index is not None:
        flow = flow_of(index, source)
        replace(preset_settings(index.get("presets", {}), options.preset, flow), **numbers).check(flow)
    elif options.preset and source.endswith(".ckpt"):
        preset_settings({}, options.preset)
    outputs.folder.mkdir(parents=True, exist_ok=True)
    done = 0
    try:
        run = _Run(source, options, numbers, outputs)
        for done in run.go():  # noqa: B007 (counts)
            pass
    except Stopped as stopped:
        raise Stopped(stopped.signal, STOPPED.format(done)) from None
    return run.say_how_it_went()


class _Run:
    """The images of one process on their way through the pipeline."""

    def __init__(self, source: str, options: Options, numbers: dict[str, Any], outputs: Outputs):
        # Not above: these take seconds, and what is wrong with a command line is found without them.
        from models.checkpoints import checkpoint_hash, load_pipeline
        from models.devices import choose_device
        from models.memory import require_memory

        self.options, self.outputs = options, outputs
        self.rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = options.device
        if processes > 1 and str(choose_device(device)) == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        self.pipeline = load_pipeline(source, device, options.precision, options.provider)
        place, precision = self.pipeline.device, self.pipeline.precision
        self.settings, preset = _settings(self.pipeline, options, numbers)
        if options.compile:
            self.pipeline.compile()
        require_memory(options.memory, place)
        name = name_of(options.checkpoint)
        self.title = f"{name}{preset and f', {preset}'}: {self.settings}; {self.pipeline.place}, {precision}; "
        self.found = {"checkpoint": name, "preset": preset or None, "device": self.pipeline.place}
        facts = {"checkpoint_sha256": checkpoint_hash(source), "settings": asdict(self.settings)}
        facts["precision"] = precision
        for kept in ["seed", "guard", "uncertainty", "compare", "depth", "tile", "predictor_tile"]:
            facts[kept] = getattr(options, kept)
        self.manifest = Manifest(outputs.folder, facts | {"format": options.suffix})
        self.share = outputs.work[self.rank :: processes]
        self.work = [pair for pair in self.share if options.overwrite or not self.manifest.has(pair[0])]
        self.failures, self.written, self.replaced = list(outputs.missing), 0, Counter()

    def go(self) -> Iterator[int]:
        """Restore all; yields how many are written."""
        from tqdm import tqdm

        from data import images

        steps = self.settings.num_samples * self.settings.steps if self.settings.blend > 0 else 1
        with tqdm(total=len(self.work) * steps, unit="step", disable=self.rank > 0) as self.bar:
            finished = 0
            for batch in batches(self.work, self.options.batch_size):
                loaded = []
                for path, target in batch:
                    try:
                        loaded.append((path, target, images.read_file(path)))
                    except images.ImageError as error:
                        self.failures.append(str(error))
                self.bar.set_description(batch[0][0].name)
                for (path, target, image), out, seconds in self._restored(loaded):
                    if isinstance(out, str):
                        self.failures.append(f"{path} {out}")
                        continue
                    self._write(path, target, image, out, seconds)
                    self.written += 1
                    yield self.written
                finished += len(batch)
                self.bar.update(finished * steps - self.bar.n)

    def say_how_it_went(self) -> int:
        """Print what was written, and on stderr what was not; returns how many could not be restored."""
        for failure in sorted(self.failures):
            print(f"sample.py: error: {failure}", file=sys.stderr)
        for suffix, count in sorted(self.outputs.skipped.items()):
            print(f"sample.py: skipped {count} {suffix}, a format that is not read", file=sys.stderr)
        done = f", {skipped} done before" if (skipped := len(self.share) - len(self.work)) else ""
        replaced = ", ".join(f"{count} ({why})" for why, count in sorted(self.replaced.items()))
        where = self.outputs.work[0][1] if self._is_file() else self.outputs.folder
        print(
            f"wrote {self.written} of {len(self.work)} restored images to {where}{done}"
            + (f", replaced {replaced}" if replaced else "")
        )
        return len(self.failures)

    def _is_file(self) -> bool:
        return Path(self.options.output) != self.outputs.folder

    def _say(self, path: Path, sentence: str) -> None:
        self.bar.write(f"{path}: {sentence}", sys.stderr)

    def _restored(self, loaded: list[tuple[Path, Path, ImageFile]]) -> Iterator[tuple]:
        """Each (path, target, image) with its `DeblurOutput` of one image and its share of the seconds.

        Images that turn out to differ in size, and those that do not fit into memory together, are run apart; a
        sentence stands for the output of one that does not fit by itself.
        """
        from models.tiling import TooLittleMemory, refusal

        out, start = None, time.perf_counter()
        if len({(image.pixels.shape, image.pixels.dtype) for _, _, image in loaded}) == 1:
            try:
                out = self._run(loaded)
            except (TooLittleMemory, MemoryError, RuntimeError) as error:
                out = refusal(error, *loaded[0][2].pixels.shape[-2:])
                if out is None:
                    raise
        if not hasattr(out, "images") and len(loaded) > 1:
            for half in (loaded[: len(loaded) // 2], loaded[len(loaded) // 2 :]):
                yield from self._restored(half)
            return
        seconds = (time.perf_counter() - start) / max(1, len(loaded))
        for i, one in enumerate(loaded):
            yield one, out if isinstance(out, str) else _part(out, i, len(loaded)), seconds

    def _run(self, loaded: list[tuple[Path, Path, ImageFile]]) -> DeblurOutput:
        import torch

        from base.progress import counted
        from models.memory import allowed_memory

        pixels = torch.stack([image.pixels for _, _, image in loaded])
        return self.pipeline(
            pixels,
            self.settings,
            self.options.seed,
            names=[path.stem for path, _, _ in loaded],
            output_type="pt",
            progress=counted(self.bar, len(loaded)),
            tile=self.options.tile,
            predictor_tile=self.options.predictor_tile,
            memory=allowed_memory(self.options.memory, pixels[0, 0].numel(), self.pipeline.device),
        )

    def _write(self, path: Path, target: Path, image: ImageFile, out: DeblurOutput, seconds: float) -> None:
        """Write one restoration, all that goes with it, and its entry in the manifest."""
        from data import images
        from data.maps import write_map
        from models.guard import faults

        start, options = time.perf_counter(), self.options
        self._say_title(path, out.tiles)
        for remark in image.remarks:
            self._say(path, remark)
        if options.format is None and not self._is_file() and target.suffix != path.suffix:
            self._say(path, f"is written as {target.name}")
        wrong = faults(out.images[0], out.predictions[0], image.pixels) if self.settings.blend > 0 else []
        back = bool(wrong) and options.guard == "fallback"
        for fault in wrong:
            self._say(path, fault + ", the prediction is written" * back)
        restored = out.predictions if back else out.images
        several = len(restored) > 1
        names = [f"{target.stem}_{k}{target.suffix}" if several else target.name for k in range(len(restored))]
        files = {target.with_name(name): one for name, one in zip(names, restored, strict=True)}
        if (why := self.manifest.replaced_by(path, list(files))) is not None:
            self.replaced[why] += 1
        for file, one in files.items():
            images.write(file, one, image, options.depth)
        written, whites = list(files), {}
        for kind, value in {"std": out.std, "error": out.expected_error}.items():
            if options.uncertainty and value is not None:
                heat = target.with_name(f"{target.stem}_{kind}.png")
                whites[f"{kind}_white"] = write_map(heat, value[0])
                written += [heat, heat.with_suffix(".tif")]
        if options.compare:
            written.append(target.with_name(f"{target.stem}_compare.png"))
            _write_comparison(written[-1], image.values, out.predictions[0], restored[0])
        seconds += time.perf_counter() - start
        found = {"tiles": out.tiles, "seconds": round(seconds, 3), "faults": wrong}
        self.manifest.add(path, written, self.found | found | whites)

    def _say_title(self, path: Path, tiles: dict[str, int | None]) -> None:
        """Say once what is done, and of each image that is not done in the same tiles in which it is."""
        sides = ", ".join(f"{name} in tiles of {side}" for name, side in tiles.items() if side) or "whole image"
        if self.title:
            self.bar.write(f"{self.title}{sides}")
            self.title, self.sides = "", sides
        elif sides != self.sides:
            self._say(path, sides)


def _settings(pipeline: DeblurPipeline, options: Options, numbers: dict[str, Any]) -> tuple[SamplingSettings, str]:
    """How to sample, and the name of the preset that it starts from; says on stderr what has no effect."""
    settings = pipeline.preset(options.preset) if options.preset else pipeline.default_settings
    settings = replace(settings, **numbers)
    preset = options.preset or ("balanced" if "balanced" in pipeline.config.presets else "")
    for sentence in settings.without_effect(numbers):
        print(f"sample.py: {sentence}", file=sys.stderr)
    if settings.blend == 0:
        settings = replace(settings, num_samples=1)
    if options.uncertainty and settings.num_samples == 1 and not pipeline.predictor.config.get("size_head"):
        raise ValueError(
            "--uncertainty needs several samples, since this checkpoint's predictor does not say what error it expects:"
            " give --num_samples 2 or more"
        )
    return settings, preset


def _part(out: DeblurOutput, i: int, count: int) -> DeblurOutput:
    """What a batch of so many images gave for one of them."""
    return replace(
        out,
        images=out.images.unflatten(0, (count, -1))[i],
        predictions=out.predictions[i : i + 1],
        std=None if out.std is None else out.std[i : i + 1],
        expected_error=None if out.expected_error is None else out.expected_error[i : i + 1],
    )


def _write_comparison(path: Path, blurry: Tensor, prediction: Tensor, restored: Tensor) -> None:
    """A panel of the whole images and, where those are shown smaller than they are, of their middle."""
    from torch.nn.functional import interpolate

    from evaluation.panels import panel

    columns = {}
    for label, image in (("blurry", blurry), ("prediction", prediction), ("restored", restored)):
        height, width = image.shape[-2:]
        columns[label] = [image]
        if width > DETAIL:
            small = interpolate(image[None], (max(1, height * DETAIL // width), DETAIL), mode="area")[0]
            top, left = max(0, height - DETAIL) // 2, (width - DETAIL) // 2
            columns[label] = [small, image[:, top : top + DETAIL, left : left + DETAIL]]
    panel(columns, path)


def _help(flags: dict[str, str]) -> str:
    """--help; the defaults of the numbers are those of the checkpoint."""
    source = flags.get("checkpoint") or pretrained()
    index = stored_index(source) or {}
    settings = preset_settings(index.get("presets", {}), flags.get("preset"), flow_of(index, source))
    lines = [__doc__.strip(), "", "usage: python sample.py IMAGE_OR_FOLDER ... --output PATH [--FLAG VALUE ...]", ""]
    lines += class_help(Options)
    name = name_of(flags.get("checkpoint"))
    lines += ["", f"how to sample; shown are the numbers of {name}, preset {flags.get('preset', 'balanced')}:"]
    texts = descriptions(SamplingSettings.__doc__)
    for number, value in asdict(settings).items():
        lines += flag_help(
            number, word_for(NUMBERS[number]), value if value is None else str(value).lower(), texts[number]
        )
    return "\n".join(lines)


def _main(args: list[str]) -> int:
    wanted = {"-h", "--help"} & set(args)
    inputs, flags = split([arg for arg in args if arg not in ("-h", "--help")], KINDS, "sample.py")
    if wanted:
        print(_help(flags))
        return 0
    if not inputs or "output" not in flags:
        missing = "no image is named" if not inputs else "--output is missing"
        raise UsageError(f"{missing}: python sample.py photo.jpg --output restored (--help lists the flags)")
    given = values((Options, SamplingSettings), flags)
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    return 1 if restore(inputs, options, {name: given[name] for name in flags if name in NUMBERS}) else 0


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, after one sentence on stderr where the input is at fault."""
    return run_command("sample.py", lambda: _main(sys.argv[1:] if args is None else args), STOPPED.format(0))


if __name__ == "__main__":
    sys.exit(main())
