"""The progress bar."""

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger

from training.screen import Bar


def test_the_bar_counts_the_whole_run_s_batches_and_names_neither_epoch_nor_version(tmp_path):
    bar, options = Bar(), {"accelerator": "cpu", "enable_checkpointing": False, "default_root_dir": tmp_path}
    trainer = Trainer(max_steps=6, accumulate_grad_batches=2, callbacks=[bar], logger=CSVLogger(tmp_path), **options)
    bar.setup(trainer, None, "fit")
    assert bar.total_train_batches == 12
    assert bar.get_metrics(trainer, None) == {} and bar._get_train_description(0) == "training"
