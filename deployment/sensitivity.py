"""Find the layers that INT8 harms: python -m deployment.sensitivity CHECKPOINT --calibration PAIRS --network predictor

Each convolution is quantised alone and ranked by the change of the output. Then the most sensitive ones go back to
float (none, one, two, four, ...), and a table is printed: layers in float, dB lost, milliseconds.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

import torch

from base.command_line import call
from base.files import replacing
from base.stop import run_command
from deployment.export import require_exporter, write_network
from deployment.quantise import JUDGED, Quantiser, calibrate
from models.checkpoints import load_pipeline, networks
from models.index import CheckpointError

REPEATS = 5  # timed calls; the fastest counts


def curve(
    checkpoint: str,
    calibration: str,
    network: Literal["predictor", "denoiser"] = "predictor",
    tile: int = 512,
    output: str | None = None,
) -> list[dict]:
    """Print and return how PSNR and time depend on the number of layers in float.

    Args:
        checkpoint: exported folder, hub id, or .ckpt file of train.py.
        calibration: pairs of training images, as for deployment.export.
        network: the network to examine.
        tile: side in pixels of the graph's input.
        output: JSON file for the ranking and the curve.

    Raises:
        CheckpointError: the checkpoint has no such network, or it cannot be exported.
    """
    require_exporter()
    pipeline = load_pipeline(checkpoint, "cpu", "fp32")
    if network not in networks(pipeline):
        raise CheckpointError(f"{checkpoint} has no {network}")
    with TemporaryDirectory() as place:
        for name, one in networks(pipeline).items():
            one.save_config(Path(place) / name)
            write_network(one, name, Path(place) / name, "fp32", tile)
        quantiser = Quantiser(pipeline, Path(place) / network, network, calibrate(pipeline, Path(place), calibration))
        order, points = quantiser.ranking(), []
        print(f"{network}: the first to stay in float is {order[0]}\nlayers in float, dB lost, ms a tile of {tile}")
        counts = [0, *(2**k for k in range(len(order).bit_length())), len(order)]
        for count in sorted(set(counts)):
            given = quantiser.calibration.inputs[network][0]
            quantised = quantiser.network(quantiser.quantised(order[:count]))
            point = {
                "float": count,
                "db_lost": round(quantiser.drop(quantised), 4),
                "ms": round(1e3 * _seconds(quantised, given), 1),
            }
            points.append(point)
            print(f"{count:>5} {point['db_lost']:>8.4f} {point['ms']:>8.1f}")
    if output is not None:
        facts = {
            "network": network,
            "crops": JUDGED,
            "threads": torch.get_num_threads(),
            "order": order,
            "curve": points,
        }
        with replacing(Path(output)) as part:
            part.write_text(json.dumps(facts, indent=1) + "\n")
    return points


def _seconds(network: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> float:
    """Time of the fastest call."""
    found = []
    for _ in range(REPEATS):
        start = perf_counter()
        network(*given)
        found.append(perf_counter() - start)
    return min(found)


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    call(curve, args, "deployment.sensitivity", __doc__)


if __name__ == "__main__":
    sys.exit(run_command("deployment.sensitivity", cli, "stopped"))
