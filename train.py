"""Train on blur/clean pairs, or on sharp photographs with synthetic blur.

    python train.py fit --config configs/demo.yaml
    python train.py fit --config configs/gopro.yaml --data.train /data/GoPro
    python train.py validate --config configs/demo.yaml --ckpt_path runs/demo/checkpoints/last.ckpt
    python train.py replay runs/demo/faults/step_N.safetensors --config configs/demo.yaml
    python train.py plan [--measure] --config configs/gopro.yaml      # memory and time of a step, computed and measured
    python train.py fit --help

Every value of a config file is also a flag. A run writes into trainer.default_root_dir: checkpoints/ (last, the one
before it, best by PSNR, best by LPIPS), checkpoint/ (the averaged weights as a pipeline folder, for sample.py and
evaluate.py), config.yaml and logs/version_N/metrics.csv. A run that was stopped goes on by the same command.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from data.datamodule import DeblurDataModule
from evaluation.metrics import Lpips, MetricError, psnr
from models.checkpoints import has_bf16, load_pipeline
from models.lightning_module import Predict
from models.pipeline import DeblurPipeline
from models.weights import CheckpointError
from training.gates import Gates
from training.guards import Guard, replay
from training.plan import describe_plan, measure, plan
from training.resume import AtomicCheckpointIO, Last, Progress, RunLog, changes, newest, read_checkpoint
from training.scale import Scale, recompute_activations
from training.shard import Sharded
from training.speed import Averages, Speed
from training.tracking import Track, log_pipeline


class Scores(Callback):
    """Score validation and test pictures: PSNR of prediction and restoration, LPIPS of the restoration.

    Args:
        lpips_backbone: file with AlexNet's feature layers; None: those in pretrained/metrics. Without them LPIPS is
            omitted, and a message says so.
        panels: pictures of the validation set to show in Weights & Biases or TensorBoard.
        samples: samples of each that are drawn for it.
    """

    def __init__(self, lpips_backbone: str | None = None, panels: int = 4, samples: int = 3):
        self.lpips = Lpips(lpips_backbone)
        self.panels, self.samples = panels, samples
        if self.lpips.reason is not None:
            rank_zero_info(f"val/lpips is left out: {self.lpips.reason}")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "val", outputs, batch)

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "test", outputs, batch)

    def _score(self, pl_module: LightningModule, stage: str, outputs, batch: dict) -> None:
        sharp = batch["sharp"].float()
        restored = {"": outputs.images, "_prediction": outputs.predictions, "_blurry": batch["blurry"].float()}
        metrics = {"psnr": psnr} | ({"lpips": self.lpips} if self.lpips.reason is None else {})
        scores = {}
        for metric, function in metrics.items():
            for whose, pictures in restored.items():
                try:
                    scores[f"{stage}/{metric}{whose}"] = function(pictures, sharp).mean()
                except MetricError:  # not finite, or too small: a mean with a hole in it must not look whole
                    scores[f"{stage}/{metric}{whose}"] = torch.tensor(float("nan"))
        for name, value in scores.items():
            shown = name.endswith("/psnr")
            pl_module.log(
                name, value, prog_bar=shown, on_step=False, on_epoch=True, batch_size=len(sharp), sync_dist=True
            )


class Export(Callback):
    """After fit, write the averaged weights as a pipeline folder, an artifact in Weights & Biases."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # By now the averaging callback has copied its averages into the module.
        if trainer.is_global_zero and not trainer.fast_dev_run:
            _export(pl_module.pipeline(), Path(trainer.default_root_dir))
            scores = {name: value.item() for name, value in trainer.callback_metrics.items() if name[:4] == "val/"}
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    log_pipeline(logger, Path(trainer.default_root_dir) / "checkpoint", scores)


def _export(pipeline: DeblurPipeline, root: Path) -> None:
    folder, temporary = root / "checkpoint", root / ".checkpoint.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    pipeline.save_pretrained(temporary)
    if folder.is_dir():
        shutil.rmtree(folder)
    temporary.rename(folder)
    rank_zero_info(f"wrote {folder}: the averaged weights, for sample.py and evaluate.py")


class RecordConfig(SaveConfigCallback):
    """Write config.yaml beside the checkpoints, and the config and git commit to every logger."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, root / "config.yaml", overwrite=True)
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
        for logger in trainer.loggers:
            logger.log_hyperparams({"config": self.config.as_dict(), "commit": git.stdout.strip() or None})


class DeblurCLI(LightningCLI):
    """LightningCLI with the averaging, scoring and checkpoints that every run has."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(Averages, "ema")
        parser.add_lightning_class_args(Scores, "scores")
        parser.add_lightning_class_args(Guard, "guard")
        parser.add_lightning_class_args(Scale, "scale")
        parser.add_lightning_class_args(Gates, "gates")
        parser.add_argument(
            "--auto_resume",
            type=bool,
            default=True,
            help="fit goes on from the newest checkpoint in trainer.default_root_dir, unless --ckpt_path is given;"
            " false starts anew, over what is there",
        )
        parser.link_arguments("trainer.default_root_dir", "trainer.logger.init_args.save_dir")

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: names for name, names in LightningCLI.subcommands().items() if name != "predict"}

    def _parse_ckpt_path(self) -> None:
        """Lightning reads hyperparameters from the checkpoint here; ours have none."""

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint to go on from, and let Weights & Biases go on with its run."""
        self.checkpoint, self.goes_on = {}, False
        if self.subcommand != "fit" or self._get(self.config, "trainer").fast_dev_run:
            return
        given = self._get(self.config, "ckpt_path")
        if given is not None:
            self.checkpoint = read_checkpoint(Path(given)) if Path(given).is_file() else {}
        elif self._get(self.config, "auto_resume"):
            path, self.checkpoint = newest(Path(self._get(self.config, "trainer").default_root_dir))
            self.goes_on = path is not None
            if self.goes_on:
                self.config["fit"]["ckpt_path"] = str(path)
                rank_zero_info(f"going on from {path}, step {self.checkpoint['global_step']}")
        loggers = self._get(self.config, "trainer").logger
        for logger in _listed(loggers):
            arguments = getattr(logger, "init_args", {})
            if self.goes_on and "id" in arguments and arguments["id"] is None and arguments["version"] is None:
                arguments["id"] = self.checkpoint.get("run", {}).get("wandb")

    def fit(self, model: LightningModule, ckpt_path: str | None = None, **kwargs) -> None:
        """Trainer.fit, unless the run is finished or its checkpoint is of another config."""
        if "pipeline" in self.checkpoint:
            differing = changes(self.checkpoint, model)
            if differing:
                raise CheckpointError(
                    f"this config cannot go on with {ckpt_path}: {'; '.join(differing)}. Restore it, or start anew with"
                    " another trainer.default_root_dir or --auto_resume false"
                )
        if self.goes_on and self.checkpoint["global_step"] >= self.trainer.max_steps:
            root = Path(self.trainer.default_root_dir)
            exported = root / "checkpoint"
            old = not exported.is_dir() or exported.stat().st_mtime < Path(ckpt_path).stat().st_mtime
            if old and self.trainer.is_global_zero:
                _export(load_pipeline(ckpt_path, precision="fp32"), root)
            rank_zero_info(
                f"the run in {root} is finished, at step {self.checkpoint['global_step']}: raise trainer.max_steps to"
                " go on, or start anew with another trainer.default_root_dir or --auto_resume false"
            )
            return
        self.checkpoint = {}  # as large as the model and its optimizer; Lightning reads it again
        self.trainer.fit(model, ckpt_path=ckpt_path, **kwargs)

    def instantiate_trainer(self, **kwargs) -> Trainer:
        settings, scores = self._get(self.config_init, "trainer"), self._get(self.config_init, "scores")
        interval, max_steps = settings["val_check_interval"], settings["max_steps"]
        # Lightning counts this one interval in batches, of which a step accumulates several.
        kwargs["val_check_interval"] = interval * settings["accumulate_grad_batches"]
        kwargs["use_distributed_sampler"] = False  # the data module gives each process its share
        if max_steps < 1 or max_steps % interval:
            raise ValueError(
                f"trainer.max_steps must be a multiple of trainer.val_check_interval ({interval}), so that the last"
                f" steps are validated and saved, got {max_steps}"
            )
        strategy = settings["strategy"]
        if strategy == "fsdp":
            kwargs["strategy"] = _sharded(settings["precision"], self._get(self.config_init, "model").compiled)
        elif isinstance(strategy, FSDPStrategy | ModelParallelStrategy) or "fsdp" in str(strategy):
            raise ValueError("averages and export follow one kind of sharding alone: give trainer.strategy as fsdp")
        root = Path(settings["default_root_dir"])
        keep = {"dirpath": root / "checkpoints", "auto_insert_metric_name": False, "enable_version_counter": False}
        speed = Speed()
        if settings["profiler"] is None:
            kwargs["profiler"] = speed.clock
        callbacks = [
            Export(),
            LearningRateMonitor("step"),
            speed,
            Track(scores.lpips, scores.panels, scores.samples),
            ModelCheckpoint(**keep, filename="best-psnr", monitor="val/psnr", mode="max"),
        ]
        if scores.lpips.reason is None:
            callbacks.append(ModelCheckpoint(**keep, filename="best-lpips", monitor="val/lpips", mode="min"))
        callbacks.append(Last(root, interval))  # after the others, whose best scores it holds
        theirs = any(isinstance(callback, ProgressBar) for callback in _listed(settings["callbacks"]))
        if settings["enable_progress_bar"] is not False and not theirs:
            callbacks.append(Progress())
        log = RunLog(root)
        if self.goes_on:
            loop = self.checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
            log = RunLog(root, self.checkpoint.get("run", {}).get("log"), loop["_batches_that_stepped"])
        loggers = [log, *(logger for logger in _listed(settings["logger"]) if isinstance(logger, Logger))]
        plugins = [plugin for plugin in _listed(settings["plugins"]) if plugin is not None]
        kwargs["plugins"] = [AtomicCheckpointIO(), *plugins]
        self.trainer_defaults = {**self.trainer_defaults, "callbacks": callbacks}
        if settings["precision"] is None:
            kwargs["precision"] = "bf16-mixed" if has_bf16(_device(settings["accelerator"])) else "32-true"
        _log_offline_without_key(loggers)
        return super().instantiate_trainer(logger=loggers, **kwargs)


def _listed(value: Any) -> list:
    """What Lightning takes as one or as a list of them, as a list."""
    return value if isinstance(value, list) else [value]


def _sharded(precision: str | int | None, compiled: bool) -> Sharded:
    if precision in ("16", 16, "16-mixed", "16-true"):
        raise ValueError(
            f"trainer.strategy fsdp has no gradient scaler for trainer.precision {precision}: take bf16-mixed"
        )
    if compiled:
        raise ValueError("trainer.strategy fsdp does not go with model.compiled: leave one of them away")
    return Sharded()


def _log_offline_without_key(loggers: list[Logger]) -> None:
    """Weights & Biases would stop and ask for a key; without one it logs to disk instead."""
    for logger in loggers:
        if isinstance(logger, WandbLogger) and "WANDB_MODE" not in os.environ:
            import wandb

            if not wandb.login(prompt=False):
                wandb.setup(wandb.Settings(mode="offline"))
                rank_zero_info(
                    "Weights & Biases: no API key, so the run is logged offline; `wandb sync` uploads it later"
                )


def _device(accelerator) -> str:
    return "cuda" if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available() else "cpu"


def cli(args: list[str] | None = None, run: bool = True) -> DeblurCLI:
    """The command line: parse `args` (None: the process's own), build everything, and run the subcommand if `run`."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # on a CPU the same switch slows convolutions down
    return DeblurCLI(
        Predict,
        DeblurDataModule,
        subclass_mode_model=True,
        save_config_callback=RecordConfig,
        save_config_kwargs={"save_to_log_dir": False},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        trainer_defaults={
            "default_root_dir": "runs/latest",
            # The training stream has no epochs: its length is max_steps, and intervals count steps.
            "max_epochs": -1,
            "check_val_every_n_epoch": None,
            "val_check_interval": 1000,
        },
        args=args,
        run=run,
    )


def _replay(args: list[str]) -> int:
    if not args or args[0].startswith("-"):
        raise ValueError("replay wants a file first: python train.py replay FILE --config ... (the run's own flags)")
    run = cli(args[1:], run=False)
    print("\n".join(replay(Path(args[0]), run.model, run.trainer.precision)))
    return 0


def _plan(args: list[str]) -> int:
    measures = args[:1] == ["--measure"]
    run = cli(args[measures:], run=False)
    model, data, trainer = run.model, run.datamodule, run.trainer
    if run.config.scale.activation_checkpointing:
        recompute_activations(model)
    device = _device(run.config.trainer.accelerator)
    sharded = isinstance(trainer.strategy, Sharded)
    own = plan(model, data.batch_size, data.patch_size, trainer.precision, trainer.world_size, sharded)
    print("\n".join(describe_plan(own, trainer.precision, trainer.world_size, trainer.accumulate_grad_batches, device)))
    if measures:
        seconds, taken = measure(model, data.batch_size, data.patch_size, trainer.precision, device)
        expected = own.kept + 12 * own.trained
        print(
            f"measured: {seconds:.3g} s a batch, {own.crops / seconds:.3g} crops a second;"
            f" {taken / 2**30:.2f} GiB beyond the weights, where {expected / 2**30:.2f} were expected"
        )
    return 0


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, after one sentence on stderr where the input is at fault."""
    args = sys.argv[1:] if args is None else args
    try:
        if args[:1] == ["replay"]:
            return _replay(args[1:])
        if args[:1] == ["plan"]:
            return _plan(args[1:])
        cli(args)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        # jsonargparse wraps what a class says of its arguments in a list of all that it tried: say the first cause.
        while isinstance(error.__cause__ or error.__context__, ValueError | OSError):
            error = error.__cause__ or error.__context__
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    except SIGTERMException:
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    sys.exit(main())
