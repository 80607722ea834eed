"""A local page to restore photographs and to compare before and after in a browser.

python app.py
python app.py --checkpoint runs/demo/checkpoint --port 8000
python app.py --host 0.0.0.0 --auth name:password
"""

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from base.command_line import make_parser
from base.stop import run_command
from models.index import pretrained, shipped, stored_index
from restoration.options import Options

if TYPE_CHECKING:
    from web.page import Page

SHARED = ("checkpoint", "device", "precision", "provider", "classes", "memory", "metadata")  # flags of sample.py
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass
class Served:
    """How to serve the page, and what visitors may ask for.

    Args:
        host: address to serve at; 127.0.0.1 is reachable from this machine only, 0.0.0.0 from its network. The
            environment variable GRADIO_SERVER_NAME overrides the default.
        port: of the page.
        auth: NAME:PASSWORD that visitors have to give.
        max_size: largest uploaded file in megabytes (1e6 bytes).
        max_pixels: largest photograph in megapixels.
        max_steps: most steps of a sample.
        max_samples: most samples of a run.
        max_seconds: longest run; it ends after the step in which it becomes too long.
    """

    host: str = os.environ.get("GRADIO_SERVER_NAME", LOCAL[0])
    port: int = 7860
    auth: str | None = None
    max_size: float = 200
    max_pixels: float = 50
    max_steps: int = 100
    max_samples: int = 16
    max_seconds: float = 600

    def __post_init__(self):
        for name in ("max_size", "max_pixels", "max_steps", "max_samples", "max_seconds"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"--{name} must be above 0, got {value:g}")
        if self.auth is not None and not all(self.auth.partition(":")):
            raise ValueError("--auth is NAME:PASSWORD")


def start(served: Served, options: Options, folder: Path) -> "Page":
    """Serve the page in threads of this process.

    Args:
        served: the page's own options.
        options: those that it shares with sample.py; without a checkpoint visitors choose one of the repository's.
        folder: an empty folder for visitors' files.

    Raises:
        ValueError, OSError: the page cannot be served.
    """
    named = [options.checkpoint] if options.checkpoint else shipped() or [pretrained()]
    stored_index(named[0])
    files, kept = folder / "served", folder / "kept"
    files.mkdir()
    kept.mkdir()
    os.environ |= {"GRADIO_TEMP_DIR": str(files), "GRADIO_ANALYTICS_ENABLED": "False"}
    # Not at the top: these take seconds to import, and gradio reads the environment at import.
    from data.formats import refuse_others
    from web.page import Page
    from web.restoration import Limits, PhotoRestorer
    from web.visits import Visits

    refuse_others()  # gradio opens what a visitor sends as a mask
    limits = Limits(int(1e6 * served.max_pixels), served.max_steps, served.max_samples, served.max_seconds)
    restorers = {name: PhotoRestorer(replace(options, checkpoint=name), limits) for name in named}
    page = Page(restorers, Visits(kept, files))
    page.serve(served.host, served.port, served.auth, int(1e6 * served.max_size))
    return page


def serve(served: Served, options: Options) -> None:
    """Serve the page until Ctrl-C, then remove visitors' files."""
    if served.host not in LOCAL and served.auth is None:
        print(f"app.py: warning: everybody who reaches {served.host} can use the page: give --auth", file=sys.stderr)
    with TemporaryDirectory(prefix="deblur-", ignore_cleanup_errors=True) as folder:
        page = start(served, options, Path(folder))
        try:
            print(f"{', '.join(map(str, page.restorers.values()))}: {page.local_url} (Ctrl-C ends it)", flush=True)
            page.block_thread()
        finally:
            page.close(verbose=False)


def _main(args: list[str]) -> None:
    parser = make_parser("app.py", __doc__)
    parser.add_class_arguments(Served)
    parser.add_class_arguments(Options, skip={field.name for field in fields(Options)} - set(SHARED))
    values = parser.given(args)
    shared = {name: values.pop(name) for name in SHARED if name in values}
    serve(Served(**values), Options("", **shared))


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("app.py", lambda: _main(sys.argv[1:] if args is None else args), "stopped")


if __name__ == "__main__":
    sys.exit(main())
