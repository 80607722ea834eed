"""Restore the images of a folder or a bucket with Ray, on this machine or on a cluster.

python -m tools.batch photos restored
python -m tools.batch s3://photos/2026 s3://restored/2026 --preset fidelity --seed 1
python -m tools.batch gs://photos gs://restored --address ray://HEAD:10001 --concurrency 8
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from deblur.cli import UsageError, make_parser, run_command
from deblur.hub import PRETRAINED
from deblur.restoration.options import Options, check_settings
from deblur.settings import SamplingSettings
from deblur.tools.batch.options import Flags

NEEDED = "python -m tools.batch needs Ray: pip install -r requirements-extra.txt -c constraints.txt"
STOPPED = "stopped; run again to resume"
ENDED = (
    "the command was ended from outside, by Ray where a process of Ray's own such as its agent was killed, or by a"
    " signal; what is finished stays in {}, and the same command goes on from there"
)
NOT_OF_BATCHES = {"output", "mask"}  # options of sample.py: the target is named, and a mask is of one photograph
# The command reports on the images itself, the rest goes to Ray's logs, and no usage statistics are sent.
WITHOUT_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
LOOPBACK_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # on any system: Ray listens on the loopback address only


def restore(source: str, options: Options, numbers: dict[str, Any], flags: Flags) -> int:
    """Restore the images of a place that are not done.

    Args:
        source: a folder or bucket prefix.
        options: as for sample.py; its output is the target, a folder or bucket prefix.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.
        flags: all other flags.

    Returns:
        The number of images that could not be restored; each has a row with its error in the target's manifest.parquet.

    Raises:
        ValueError, OSError: nothing can be restored, or the job cannot continue.
    """
    if find_spec("ray") is None:
        raise ValueError(NEEDED)
    check_settings(options.checkpoint or PRETRAINED, options.preset, numbers)
    variables = WITHOUT_REPORTS if flags.cluster else WITHOUT_REPORTS | LOOPBACK_ALONE
    os.environ.update(variables | dict(os.environ))  # Ray reads them at import
    with watched(options.output):
        from deblur.tools.batch import run  # not at the top: Ray and torch take seconds to import

        run.require_listening(flags.cluster)
        batch = run.Batch.of(source, options, numbers)
        images = run.images_of(batch.source, options)
        batch.require_target()
        with closing(run.ManifestTable(batch.target)) as manifest, run.connected(flags.cluster):
            job = run.Job(batch, images, manifest, flags)  # its first worker tells which images are done
            for finished in job.restorations():  # of chunks of images, by the other workers
                job.record(finished)
        return job.report()


@contextmanager
def watched(target: str) -> Iterator[None]:
    """Say so if this process ends inside the block without a word.

    Ray's library does that where its node is dead, for example since its agent was killed: no error is raised. A second
    process waits for the end, and speaks unless the block has ended in any other way.
    """
    end, alive = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(alive)
        if not os.read(end, 1):
            os.write(2, f"batch: error: {ENDED.format(target)}\n".encode(errors="backslashreplace"))
        os._exit(0)
    os.close(end)
    try:
        yield
    finally:
        os.write(alive, b"1")
        os.close(alive)
        os.waitpid(watcher, 0)


def parsed(args: list[str]) -> tuple[str, Options, dict[str, Any], Flags]:
    """What a command line says, as the arguments of `restore`. UsageError or ValueError: it is wrong."""
    parser = make_parser("-m tools.batch", __doc__, "SOURCE TARGET [--FLAG VALUE ...]")
    parser.add_argument("places", nargs="*", help="SOURCE and TARGET: folders or buckets")
    for kind in (Flags, Options, SamplingSettings):
        parser.add_class_arguments(kind, skip=NOT_OF_BATCHES if kind is Options else None)
    values = parser.given(args)
    places = values.pop("places", ())
    if len(places) != 2:
        raise UsageError(f"a source and a target are needed, got {' '.join(places) or 'none'}: --help has examples")
    values["output"] = places[1]
    options, numbers, flags = (
        {field.name: values[field.name] for field in fields(kind) if field.name in values}
        for kind in (Options, SamplingSettings, Flags)
    )
    return places[0], Options(**options), numbers, Flags(**flags)


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""

    def command() -> int:
        return 1 if restore(*parsed(sys.argv[1:] if args is None else args)) else 0

    return run_command("batch", command, STOPPED)
