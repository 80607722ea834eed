"""A local page to restore photographs and to compare before and after in a browser.

python app.py
python app.py --checkpoint runs/demo/checkpoint --port 8000
python app.py --host 0.0.0.0 --auth name:password
"""

import os
import sys
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from deblur.cli import make_parser, run_command
from deblur.hub import name_of, stored_index
from deblur.restoration.options import Options
from deblur.tools.web.served import LOCAL, Served

if TYPE_CHECKING:
    from deblur.tools.web.page import Page

SHARED = ("checkpoint", "device", "precision", "provider", "classes", "memory", "metadata")  # flags of sample.py


def serve(served: Served, options: Options) -> None:
    """Serve the page until Ctrl-C."""
    if served.host not in LOCAL and served.auth is None:
        print(f"app.py: warning: everybody who reaches {served.host} can use the page: give --auth", file=sys.stderr)
    with TemporaryDirectory(prefix="deblur-", ignore_cleanup_errors=True) as folder:
        page = start(served, options, Path(folder))
        try:
            pipeline, names = page.actions.restorer.pipeline, ", ".join(map(name_of, page.actions.restorers))
            print(f"{names} on {pipeline.place}, {pipeline.precision}: {page.local_url} (Ctrl-C ends it)", flush=True)
            page.block_thread()
        finally:
            page.actions.visits.close_all()  # which stops their runs
            page.close(verbose=False)


def start(served: Served, options: Options, folder: Path) -> "Page":
    """The page, served in a thread, with its files in a folder; a wrong checkpoint is said before the slow imports."""
    if options.checkpoint:
        stored_index(options.checkpoint)
    # What gradio reads when it is imported.
    os.environ |= {"GRADIO_TEMP_DIR": str(folder / "served"), "GRADIO_ANALYTICS_ENABLED": "False"}
    from deblur.tools.web.page import serve

    return serve(served, options, folder)


def parsed(args: list[str]) -> tuple[Served, Options]:
    """What a command line says; a UsageError or ValueError says what is wrong with it."""
    parser = make_parser("app.py", __doc__)
    parser.add_class_arguments(Served)
    parser.add_class_arguments(Options, skip={field.name for field in fields(Options)} - set(SHARED))
    values = parser.given(args)
    shared = {name: values.pop(name) for name in SHARED if name in values}
    return Served(**values), Options("", **shared)


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("app.py", lambda: serve(*parsed(sys.argv[1:] if args is None else args)), "stopped")


if __name__ == "__main__":
    sys.exit(main())
