"""Sampling settings, without the libraries that sampling needs, so that a command line shows its help at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

from deblur.cli import number_of, one_of

if TYPE_CHECKING:
    from torch import Tensor

Sampler = Literal["ddpm", "ddim", "dpmsolver++", "unipc"]
Preset = Literal["fast", "fidelity", "balanced", "perceptual"]
SCHEDULES = ("training", "linear", "cosine", "sigmoid", "log_snr")
SMALLEST_TILE = 64  # side in pixels
DEVICES = ["auto", "cpu", "cuda", "mps"]


def require_device(name: str) -> None:
    """Raise ValueError if a device's name, which may end in a number (cuda:1), is not one of DEVICES."""
    if name.partition(":")[0] not in DEVICES:
        raise ValueError(one_of("--device", name, DEVICES))


def preset_settings(presets: Mapping[str, dict], name: str | None = None) -> "SamplingSettings":
    """The settings that a checkpoint stores under a name. ValueError if there are none.

    Without a name: the preset balanced if the checkpoint has it, otherwise the defaults. A schedule of somebody's own
    code is never imported because a checkpoint names it.
    """
    if name is not None and name not in presets:
        names = ", ".join(presets) or "none"
        raise ValueError(f"this checkpoint has no preset {name!r} (it has {names}): name one of these, or give numbers")
    name = name or "balanced"
    settings = SamplingSettings(**presets.get(name, {}))
    if settings.schedule not in SCHEDULES:
        raise ValueError(
            f"this checkpoint's preset {name} names the schedule {settings.schedule}, which is somebody's own code and"
            f" is not imported: give --schedule {settings.schedule} beside another preset if you trust it"
        )
    return settings


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample: one point of a grid, one preset, one set of command-line flags.

    Args:
        sampler: ddpm (ancestral, the paper), ddim, dpmsolver++ (second order) or unipc.
        schedule: noise levels to visit. training: evenly spaced levels of the checkpoint's training schedule. linear,
            cosine, sigmoid and log_snr are built with exactly `steps` steps, as in the paper's search over noise
            schedules; so is your own, by its path, such as myschedules.karras (docs/extend.md).
        steps: denoiser evaluations per sample.
        beta_start: beta of the first step, for linear and sigmoid.
        beta_end: beta of the last (noisiest) step, for linear and sigmoid.
        log_snr_max: log-SNR of the first step, for log_snr.
        log_snr_min: log-SNR of the last (noisiest) step, for log_snr.
        start: noise level to start from, as sigma = sqrt((1 - alpha_bar) / alpha_bar) in units of the residual's scale;
            the steps are spread over the levels below it. A predictor close to the mean leaves nothing to restore
            above some level (DP-IR, arXiv 2411.05993). None: the noisiest level of the schedule.
        eta: noise of ddim's steps: 0 is deterministic, 1 uses the variance of the exact posterior.
        num_samples: samples drawn for each image.
        average: return the mean of the samples instead of each one (the paper's DvSR-SA).
        blend: 0 is the prediction alone, 1 the full sample, values between them a pixelwise blend.
        stages: of a predictor that has several, as MAXIM has three: fewer take less time. None: all.
        keep_sharp: keep what is sharp, whatever the blend: the regions that the predictor changes by less than the fine
            detail that they have, to which this number of 8-bit levels is added. 0: restore every pixel.
    """

    sampler: Sampler = "ddim"
    schedule: str = "training"
    steps: int = 20
    beta_start: float = 1e-4
    beta_end: float = 0.5
    log_snr_max: float = 10.0
    log_snr_min: float = -10.0
    start: float | None = None
    eta: float = 0.0
    num_samples: int = 1
    average: bool = False
    blend: float = 1.0
    stages: int | None = None
    keep_sharp: float = 0.0

    def __post_init__(self):
        rules = {
            ("sampler",): (get_args(Sampler).__contains__, f"one of {', '.join(get_args(Sampler))}"),
            ("schedule",): (is_schedule, f"one of {', '.join(SCHEDULES)}, or a path such as myschedules.karras"),
            ("steps", "num_samples"): (lambda n: isinstance(n, Integral) and n >= 1, "a whole number of 1 or more"),
            ("average",): (lambda truth: isinstance(truth, bool), "true or false"),
            ("eta", "blend"): (lambda x: 0 <= x <= 1, "between 0 and 1"),
            ("beta_start", "beta_end"): (math.isfinite, "a finite number"),
            # Beyond these, alpha_bar or 1 - alpha_bar has no digits left.
            ("log_snr_max", "log_snr_min"): (lambda x: -30 <= x <= 30, "between -30 and 30"),
            ("keep_sharp",): (lambda x: 0 <= x < math.inf, "0 or more"),
            ("start",): (lambda x: x is None or 0 < x < math.inf, "a number above 0"),
            ("stages",): (lambda n: n is None or (isinstance(n, Integral) and n >= 1), "a whole number of 1 or more"),
        }
        for names, (holds, words) in rules.items():
            for name in names:
                value = getattr(self, name)
                try:
                    is_right = holds(value)
                except TypeError:  # text, say, is compared with a number
                    is_right = False
                if not is_right:
                    raise ValueError(f"{name} must be {words}, got {value!r}")
        if self.eta > 0 and self.sampler != "ddim":
            raise ValueError(f"eta belongs to the sampler ddim; leave it at 0 for {self.sampler}")
        # log_snr can only fail by the order of its ends; checking the others needs torch, which --help avoids.
        ordered = self.schedule == "log_snr" and self.start is None and self.log_snr_max > self.log_snr_min
        if self.schedule in SCHEDULES[1:] and not ordered:
            self._own_levels()
        for name in ("steps", "num_samples", "stages"):  # NumPy's whole numbers are no JSON
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))

    def __str__(self) -> str:
        """In words, without values that have no effect: ddim, 8 steps, blend 0.2."""
        words = self._sampling_in_words() if self.blend > 0 else ["the prediction alone"]
        if self.stages is not None:
            words.append(number_of(self.stages, "stage"))
        if self.keep_sharp:
            words.append(f"what is sharp kept ({self.keep_sharp:g})")
        if self.blend > 0 and self.num_samples > 1:
            words.append(f"the mean of {self.num_samples} samples" if self.average else f"{self.num_samples} samples")
        return ", ".join(words)

    def _sampling_in_words(self) -> list[str]:
        words = [self.sampler]
        if self.eta:
            words.append(f"eta {self.eta:g}")
        if self.schedule != "training":
            words.append(f"schedule {self.schedule}")
        words += [number_of(self.steps, "step"), f"blend {self.blend:g}"]
        if self.start is not None:
            words.append(f"from sigma {self.start:g}")
        return words

    def changed(self, numbers: Mapping[str, Any]) -> "SamplingSettings":
        """These settings with other values of some fields.

        What belongs to a choice that they replace goes with it: eta with the sampler ddim. Raises ValueError for values
        that contradict each other.
        """
        freed = {}
        if numbers.get("sampler", "ddim") != "ddim":
            freed["eta"] = 0.0
        if numbers.get("eta") and "sampler" not in numbers:
            freed["sampler"] = "ddim"
        return replace(self, **freed | dict(numbers))

    def without_effect(self, names: Iterable[str]) -> list[str]:
        """A sentence for each of these fields that has no effect, given the others."""
        unused = {}
        if self.num_samples == 1:
            unused["average"] = "there is one sample: give --num_samples 2 or more"
        if self.schedule != "log_snr":
            unused |= dict.fromkeys(("log_snr_max", "log_snr_min"), "it belongs to --schedule log_snr")
        if self.schedule not in ("linear", "sigmoid"):
            unused |= dict.fromkeys(("beta_start", "beta_end"), "the schedule has no betas: linear and sigmoid do")
        if self.blend == 0:
            drawn = ("sampler", "schedule", "steps", "start", "eta", "num_samples", "average", *unused)
            unused |= dict.fromkeys(drawn, "with blend 0 no sample is drawn")
        return [f"--{name} has no effect: {unused[name]}" for name in names if name in unused]

    def levels(self, training: "Tensor", sigma_min: float = 0.0, sigma_max: float = math.inf) -> "Tensor":
        """The noise levels (steps,) to visit, float64, the noisiest first. A schedule of one's own is imported here.

        Args:
            training: the levels of the training schedule.
            sigma_min, sigma_max: the least and the noisiest level of training; a schedule that goes beyond them is
                narrowed (`models.schedules.narrow`).

        Raises:
            ValueError: these numbers do not suit the checkpoint.
        """
        from deblur.models.schedules import narrow

        levels = self._training_levels(training) if self.schedule == "training" else self._own_levels()
        try:
            return narrow(levels, sigma_min, sigma_max)
        except ValueError as error:
            raise ValueError(f"{error}: change {self._level_names()}") from None

    def _level_names(self) -> str:
        """The settings that decide which noise levels are visited."""
        if self.start is not None:
            return "start"
        if self.schedule == "log_snr":
            return "log_snr_min or log_snr_max"
        return "beta_start or beta_end" if self.schedule in ("linear", "sigmoid") else "schedule"

    def _training_levels(self, training: "Tensor") -> "Tensor":
        from deblur.models.schedules import level_of, respace

        if self.start is None or self.steps > len(training):
            return respace(training, self.steps)
        below = training[training >= level_of(self.start)]
        if len(below) < self.steps:
            least = 1.005 * (1 / training[-self.steps] - 1).sqrt()  # so that the rounded value still suffices
            raise ValueError(
                f"start is {self.start:g}, and {number_of(self.steps, 'step')} of the training schedule need"
                f" {least:.3g} or more: give a higher start{', or fewer steps' if self.steps > 1 else ''}"
            )
        return respace(below, self.steps)

    def _own_levels(self) -> "Tensor":
        from deblur.models.schedules import NoiseSchedule, level_of, shorten

        numbers = self.steps, self.beta_start, self.beta_end, self.log_snr_max, self.log_snr_min
        levels = NoiseSchedule(self.schedule, *numbers).levels()
        return levels if self.start is None else shorten(levels, level_of(self.start))


def is_schedule(name: str) -> bool:
    """Whether this names a schedule: one of SCHEDULES, or a path of somebody's own, which is not imported."""
    return name in SCHEDULES or (isinstance(name, str) and "." in name and name.replace(".", "").isidentifier())


def sharing_samples(settings: Sequence[SamplingSettings]) -> list[list[SamplingSettings]]:
    """Group settings that share their samples because they differ only in num_samples, average, blend and keep_sharp.

    Settings with blend 0 need no sample, and those of equal stages form one group.
    """
    groups: dict[SamplingSettings, list[SamplingSettings]] = {}
    for setting in settings:
        alike = replace(setting, num_samples=1, average=False, blend=1.0, keep_sharp=0.0)
        alone = SamplingSettings(blend=0.0, stages=setting.stages)
        groups.setdefault(alike if setting.blend > 0 else alone, []).append(setting)
    return list(groups.values())
