"""The predictions of a checkpoint, stored beside a dataset's pairs: python -m tools.make_pairs PAIRS --predict lite

See data/predictions.py for the files.
"""

from pathlib import Path

from deblur.checkpoints import network_hash
from deblur.data.files import images
from deblur.data.layouts import list_pairs, paired
from deblur.data.predictions import PredictedBy, Predictions, folder_of
from deblur.devices import choose_device
from deblur.hub import CheckpointError
from deblur.models.networks.base import Cascade
from deblur.onnx.network import OnnxNetwork
from deblur.pipeline import DeblurPipeline, load_pipeline
from deblur.progress import ProgressBar


def store_predictions(
    root: str | Path,
    checkpoint: str,
    split: str,
    variant: str,
    device: str,
    classes: str | None = None,
    first: bool = False,
    stages: int | None = None,
) -> int:
    """Predict all blurry images of a split, whole and in float32, unless their predictions are there.

    Returns how many pairs there are.

    Raises:
        DatasetError: the dataset has no such split, or holds the predictions of another predictor.
        CheckpointError: the checkpoint cannot be loaded, or is an ONNX folder.
        ValueError: its predictor is no cascade, and `first` is set, or has not so many stages.
    """
    listing = list_pairs(root, split, variant)
    pairs, on = paired(listing, root), choose_device(device)
    pipeline = load_pipeline(checkpoint, on, precision="fp32", classes=classes or ())
    if isinstance(pipeline.predictor, OnnxNetwork):
        raise CheckpointError(f"{checkpoint} is an ONNX folder: give the checkpoint that it was made of to --predict")
    if first and not isinstance(pipeline.predictor, Cascade):
        raise ValueError(f"the predictor of {checkpoint} is no cascade, and has no first network: omit first.")
    if first:
        pipeline = DeblurPipeline(pipeline.predictor.first, None, pipeline.scheduler)
    size_head = bool(pipeline.predictor.config.get("size_head"))
    predictor = PredictedBy(checkpoint, network_hash(pipeline.predictor), size_head, stages)
    stored = Predictions(folder_of(root, split, listing.variant), predictor)
    stored.begin()
    for pair in ProgressBar(pairs, unit="prediction"):
        if not stored.complete(pair.name):
            prediction = pipeline.predict(images.read(pair.blurry)[None].to(on), stages=stages)
            log_size = prediction.log_size[0] if size_head else None
            stored.write(pair.name, prediction.images[0], log_size)
    return len(pairs)
