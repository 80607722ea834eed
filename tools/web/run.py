"""Start the page."""

from dataclasses import replace
from pathlib import Path

from deblur.hub import PRETRAINED, shipped
from deblur.restoration.options import Options
from deblur.tools.web.actions import Actions
from deblur.tools.web.page import Page
from deblur.tools.web.restoration import PhotoRestorer
from deblur.tools.web.served import Served
from deblur.tools.web.visits import Visits


def serve(served: Served, options: Options, folder: Path) -> Page:
    """Serve the page in threads of this process, with visitors' files in a folder, which is empty.

    Without a checkpoint visitors choose one of the repository's. ValueError or OSError: the page cannot be served.
    """
    named = [options.checkpoint] if options.checkpoint else shipped() or [PRETRAINED]
    restorers = {name: PhotoRestorer(replace(options, checkpoint=name), served) for name in named}
    page = Page(Actions(restorers, Visits(folder)))
    page.serve(served)
    return page
