"""A run of train.py, built from a config and flags."""

import signal
from argparse import SUPPRESS, ArgumentError
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only

from deblur.cli import PARSER_OPTIONS, Formatter, Stopped, UsageError, explain, nearest
from deblur.data.datamodule import DeblurDataModule
from deblur.data.layouts import Source
from deblur.devices import has_bf16
from deblur.hub import CheckpointError
from deblur.pipeline import load_pipeline
from deblur.storage import read_yaml, remove_parts, sole_user
from deblur.training.callbacks import (
    Averages,
    Bar,
    Guard,
    Metrics,
    RecordConfig,
    Scores,
    Speed,
    Track,
    export_pipeline,
    log_offline_without_key,
    quiet,
    values_of,
)
from deblur.training.module import Predict, PredictAndRefine
from deblur.training.resume import (
    AtomicCheckpointIO,
    Last,
    TakeOver,
    changed_settings,
    newest,
    read_checkpoint,
    refusals,
)

# Defaults that differ from Lightning's. The training stream has no epochs: its length is max_steps.
DEFAULTS = {
    "default_root_dir": "runs/latest",
    "max_epochs": -1,
    "check_val_every_n_epoch": None,
    "val_check_interval": 1000,
    "use_distributed_sampler": False,  # the data module splits the data between processes
    "enable_model_summary": False,  # train.py prints its own summary
}


class RunParser(LightningArgumentParser):
    """A parser that raises its errors and accepts no abbreviated flags; its subparsers for class arguments, too."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **PARSER_OPTIONS | {"formatter_class": Formatter} | kwargs)

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """As jsonargparse's, but a file's name as a value stays a name: data.train may be a CSV manifest."""
        return super().add_class_arguments(*args, **kwargs | {"sub_configs": False})


class Run(LightningCLI):
    """A run as described by its flags: `model`, `datamodule` and `trainer`, for `fit`, `validate` and `test`.

    In addition to its config, every run has: `DEFAULTS`; the callbacks of `_callbacks`; metrics.csv as its first
    logger; atomically written checkpoints; bf16 if trainer.precision is null and the device supports it.

    Args:
        name: fit, validate or test; none: the run is built but not started.
        args: flags, without the command's name.
        held: keeps the run's folder locked while the run writes to it.

    Raises:
        ValueError: something is wrong with the flags, the data or the checkpoint.
        FolderInUse: another run writes into the folder.
    """

    def __init__(self, name: str | None, args: list[str], held: ExitStack):
        set_parsing_settings(subclasses_enabled=[Source])  # a user's own layout; dataclasses have none by default
        quiet()
        self.name = name
        self.held = held
        self.checkpoint = {}
        self.ckpt_path = None
        self.resumes = False
        super().__init__(
            Predict,
            DeblurDataModule,
            subclass_mode_model=True,
            save_config_callback=RecordConfig,
            save_config_kwargs={"save_to_log_dir": False},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            trainer_defaults=dict(DEFAULTS),
            parser_class=RunParser,
            parser_kwargs={"usage": f"python train.py {name} --config FILE [--FLAG VALUE ...]"},
            args=args,
            run=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for name, kind in {"ema": Averages, "scores": Scores, "guard": Guard}.items():
            parser.add_lightning_class_args(kind, name)
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="checkpoint to resume from, or to score")
        parser.add_argument(
            "--auto_resume",
            type=bool,
            default=True,
            help="fit resumes from the newest checkpoint in trainer.default_root_dir, unless --ckpt_path is given;"
            " false starts anew and overwrites that run",
        )
        parser.link_arguments("trainer.default_root_dir", "trainer.logger.init_args.save_dir")

    def parse_arguments(self, parser: LightningArgumentParser, args: list[str]) -> None:
        if {"-h", "--help"} & set(args):  # the model is given by its class, whose arguments the parser does not list
            model = RunParser(usage=SUPPRESS, add_help=False)
            model.add_class_arguments(PredictAndRefine, "model")
            parser.epilog = model.format_help().removeprefix("usage: ")
        words = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        configs = [value for flag, value in pairwise(words) if flag in ("-c", "--config")]
        for file in configs:
            read_yaml(file, "--config")
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            raise UsageError(_explain(error, parser, configs)) from None

    def before_instantiate_classes(self) -> None:
        """Lock the run's folder, find the checkpoint to resume from, and let Weights & Biases resume its run."""
        self.ckpt_path = self.config.ckpt_path
        require_files(self.name, self.config)
        trainer = self.config.trainer
        batches = trainer.max_steps * trainer.accumulate_grad_batches
        interval = trainer.val_check_interval
        if batches > 0 and (interval is None or batches < interval):  # a short run is validated and saved at its end
            trainer.val_check_interval = batches
        if self.name != "fit" or self.config.trainer.fast_dev_run:
            return
        root = Path(self.config.trainer.default_root_dir)
        if not rank_zero_only.rank:  # only the first process writes
            self.held.enter_context(sole_user(root))
            remove_parts(root)
            remove_parts(root / "checkpoints")
        if self.ckpt_path is not None:
            self.checkpoint = read_checkpoint(Path(self.ckpt_path)) if Path(self.ckpt_path).is_file() else {}
        elif self.config.auto_resume:
            path, self.checkpoint = newest(root)
            if path is not None:
                self.ckpt_path, self.resumes = str(path), True
        for logger in _listed(self.config.trainer.logger):
            arguments = getattr(logger, "init_args", {})
            if self.resumes and "id" in arguments and arguments["id"] is None and arguments["version"] is None:
                arguments["id"] = self.checkpoint.get("run", {}).get("wandb")

    def instantiate_classes(self) -> None:
        """Make the model and the rest; a resumed run has its weights from the checkpoint and reads no others."""
        arguments = self.config.get("model", {}).get("init_args", {})
        given = arguments.get("init_from")
        if self.checkpoint and given is not None:
            arguments["init_from"] = None
        super().instantiate_classes()
        if given is not None:
            arguments["init_from"] = given

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        settings = self.config_init.trainer
        steps, interval, batches = settings.max_steps, settings.val_check_interval, settings.accumulate_grad_batches
        if steps < 1:
            raise ValueError(f"trainer.max_steps must be 1 or more, got {steps}")
        if interval % batches:
            raise ValueError(
                f"trainer.val_check_interval ({interval} batches) must be a multiple of trainer.accumulate_grad_batches"
                f" ({batches}): whole steps are validated and saved"
            )
        root = Path(settings.default_root_dir)
        given = [entry for entry in _listed(settings.logger) if isinstance(entry, Logger)]
        log_offline_without_key(given)
        kwargs["logger"] = [Metrics(root, name="logs"), *given]
        kwargs["plugins"] = [AtomicCheckpointIO(), *(entry for entry in _listed(settings.plugins) if entry is not None)]
        if settings.precision is None:
            on_gpu = settings.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
            kwargs["precision"] = "bf16-mixed" if has_bf16("cuda" if on_gpu else "cpu") else "32-true"
        self.trainer_defaults["callbacks"] = self._callbacks(root)
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (TypeError, MisconfigurationException) as error:
            raise ValueError(f"the trainer cannot be made: {error}") from error
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise ValueError(
                f"trainer.strategy {settings.strategy} divides the weights, and the averages need them whole: give ddp"
            )
        return trainer

    def _callbacks(self, root: Path) -> list:
        """The callbacks that every run has, in addition to those with flags of their own and those of the config."""
        settings = self.config_init.trainer
        has_bar = any(isinstance(callback, ProgressBar) for callback in _listed(settings.callbacks))
        kept = {"dirpath": root / "checkpoints", "auto_insert_metric_name": False, "enable_version_counter": False}
        best = {"best-psnr": ("val/psnr", "max"), "best-lpips": ("val/lpips", "min")}
        # After the others, because it stores their best scores.
        self.last = Last(root, settings.val_check_interval)
        return [
            TakeOver(),
            Speed(lambda batch: len(batch["sharp"]), window_size=max(2, settings.log_every_n_steps or 0)),
            Track(),
            *(ModelCheckpoint(**kept, filename=name, monitor=score, mode=mode) for name, (score, mode) in best.items()),
            *([] if has_bar or settings.enable_progress_bar is False else [Bar()]),
            self.last,
        ]

    def score(self) -> None:
        """Score the checkpoint by `validate` or `test`."""
        run = getattr(self.trainer, self.name)
        run(self.model, datamodule=self.datamodule, ckpt_path=self.ckpt_path, weights_only=True)

    def is_finished(self) -> bool:
        """Whether the checkpoint to resume from is that of the last step; then its pipeline is exported, if it is not.

        Raises:
            CheckpointError: the checkpoint is of another config.
        """
        if "pipeline" in self.checkpoint:
            here = values_of(self.parser, self.config)
            there = self.checkpoint.get("config", here)
            if refused := refusals(there, here):
                raise CheckpointError(
                    f"this config cannot resume from {self.ckpt_path}: {'; '.join(refused)}. Restore it or start anew"
                    " with another trainer.default_root_dir or --auto_resume false"
                )
            if self.resumes and self.checkpoint["global_step"] >= self.trainer.max_steps:
                self._report_finished()
                return True
            rank_zero_info(f"resumed from {self.ckpt_path}, step {self.checkpoint['global_step']}")
            if changed := changed_settings(there, here):
                rank_zero_info(f"changed since that checkpoint: {'; '.join(changed)}")
        return False

    def train(self) -> None:
        """Train to the last step, from the checkpoint if there is one."""
        self.checkpoint = {}  # frees the memory of the model and its optimizer; Lightning reads the file again
        try:
            self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=self.ckpt_path, weights_only=True)
        except SIGTERMException:
            raise Stopped(self.last.signal or signal.SIGTERM) from None  # the signal may have reached another process

    def export(self) -> None:
        """Write the averaged weights as a pipeline folder."""
        if self.trainer.is_global_zero and not self.trainer.fast_dev_run:
            export_pipeline(self.model.pipeline(), Path(self.trainer.default_root_dir))  # the averages are in it

    def _report_finished(self) -> None:
        root = Path(self.trainer.default_root_dir)
        exported = root / "checkpoint"
        old = not exported.is_dir() or exported.stat().st_mtime < Path(self.ckpt_path).stat().st_mtime
        if old and self.trainer.is_global_zero:
            classes = [type(network) for network in self.model.pipeline().networks.values()]
            export_pipeline(load_pipeline(self.ckpt_path, precision="fp32", classes=classes), root)
        rank_zero_info(
            f"the run in {root} is finished, at step {self.checkpoint['global_step']}: raise trainer.max_steps to train"
            " longer, or start anew with another trainer.default_root_dir or --auto_resume false"
        )


def require_files(name: str | None, config: Namespace) -> None:
    """Raise UsageError for data, or for a checkpoint to resume from, that a command needs and that does not exist."""
    for split in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(name, ()):
        for path in _listed(config.data[split]):
            root = Path(path.rpartition(":")[0] or path) if isinstance(path, str) else None  # of ROOT:SPLIT
            if root is not None and not Path(path).exists() and not root.exists():
                raise UsageError(f"data.{split}: {path} does not exist")
    path = config.ckpt_path
    if name is not None and path is not None and path.endswith(".ckpt") and not Path(path).is_file():
        raise UsageError(f"ckpt_path: {path} does not exist")
    if name in ("validate", "test") and path is None and config.model.init_args.get("init_from") is None:
        raise UsageError(f"there is no network to {name}: give --ckpt_path, such as runs/demo/checkpoints/last.ckpt")


def _explain(error: ArgumentError, parser: RunParser, configs: list[str]) -> str:
    """The parser's error in one sentence, with the config file that causes it."""
    text = str(error)
    for file in configs:
        try:
            parser.parse_args(["--config", file])
        except ArgumentError as other:
            if str(other) == text:
                return f"{file}: {_explain(other, parser, [])}"
    if text.startswith("unrecognized arguments: ") and not text.startswith("unrecognized arguments: -"):
        return f"{text.split()[2]} belongs to no flag: a config follows --config"
    if "arguments are required: predictor" in text and not configs:
        return "model.predictor is missing: give a config, as python train.py fit --config configs/demo.yaml"
    if text.startswith(("unrecognized arguments: ", "Group '")):
        quoted = text.split("'")
        unknown = f"--{quoted[1]}.{quoted[3]}" if text.startswith("Group") else text.split()[2].partition("=")[0]
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        return f"{unknown} is unknown{nearest(unknown, flags, '; python train.py fit --help lists the flags')}"
    return explain(error)


def _listed(value: Any) -> list:
    """A value that Lightning accepts alone or in a list, as a list."""
    return value if isinstance(value, list) else [value]
