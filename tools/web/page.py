"""The page's layout and controls."""

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.request import getproxies_environment

import gradio as gr

from deblur.cli import error_in_words
from deblur.hub import SHIPPED, TEXT, shipped
from deblur.restoration.options import Options, ways
from deblur.restoration.restorer import Restorer
from deblur.settings import Sampler
from deblur.tools.web.actions import Actions
from deblur.tools.web.served import LOCAL, Served
from deblur.tools.web.visits import IDLE_SECONDS, Visits

LOOK = [Path(__file__).parents[2] / "evaluation" / "look.css", Path(__file__).with_name("page.css")]
SCRIPT = f"<script>{Path(__file__).with_name('page.js').read_text()}</script>"
EVENT = {"api_visibility": "private", "preprocess": False}  # the handlers refuse wrong values by their own sentences
FAST = EVENT | {"show_progress": "hidden", "concurrency_id": "blend", "concurrency_limit": 1}  # runs no network
ERROR_SECONDS = 20  # that an error is shown
NOT_OPENED = "<p>Not opened.</p>"  # in place of what was said before
# Restore takes what the fields show: a number that was just typed may not have reached the page's state yet.
TYPED = """(...known) => [...known.slice(0, 3), ...["steps", "count", "strength", "seed"].map((id, k) => {
  const field = document.querySelector(`#${id} input[type=number]`);
  return field === null ? known[3 + k] : field.value === "" ? null : Number(field.value);
}), ...known.slice(7)]"""
DOWNLOAD = "() => document.querySelector('#file a, a#file, #file').click()"
SCALES = ["auto", "1", "0.6", "0.4", "0.25", "0.1"]
BRUSH = gr.Brush(default_size=30, colors=["#ff3b30"], default_color="#ff3b30", color_mode="fixed")


class Page(gr.Blocks):
    """The page with its controls, which call the handlers of its events."""

    def __init__(self, actions: Actions):
        super().__init__(
            title="Predict and refine: image deblurring", fill_width=True, delete_cache=(600, IDLE_SECONDS)
        )
        self.actions, ui = actions, actions.ui
        with self:
            gr.HTML(
                "<h1>Predict and refine</h1><p>Drop or paste blurry photographs, and press Restore. They stay on the"
                " machine that serves this page.</p>",
                elem_id="title",
            )
            with gr.Row():
                _place(ui, actions)
            for name, part in vars(ui).items():
                part.elem_id = name
            _connect(ui, actions)
            self.unload(actions.leave)

    async def process_api(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Answer a request. An error is a sentence for the visitor, and if no input causes it, a line of the log."""
        try:
            return await super().process_api(*given, **named)
        except (ValueError, OSError) as error:
            said = error_in_words(error).partition("\n")[0]  # gradio's own have several lines
        except Exception as error:  # of a request that no page sends, or of this program
            *_, place = traceback.extract_tb(error.__traceback__)
            print(f"app.py: {type(error).__name__}: {error} ({place.filename}, {place.lineno})", file=sys.stderr)
            said = "the page cannot answer this: load it again"
        raise gr.Error(said, duration=ERROR_SECONDS, title="Not done", print_exception=False)


def _place(ui: SimpleNamespace, actions: Actions) -> None:
    """The left column, photographs and how they are restored, and the right one, the results."""
    pipeline = actions.restorer.pipeline
    first, presets = pipeline.preset(), list(pipeline.config.presets)
    balanced = "balanced" if "balanced" in presets else None
    examples = [[str(path)] for path in actions.examples]
    with gr.Column(scale=1, min_width=300):
        ui.photo = gr.File(label="Photographs", file_count="multiple", height=130)
        ui.examples = gr.Dataset(components=[gr.Image(visible=False)], samples=examples, label="Or one of these")
        ui.way = gr.Radio(actions.words, value=actions.words[0], show_label=False)
        with gr.Row():
            ui.run = gr.Button("Restore", variant="primary", min_width=80)
            ui.cancel = gr.Button("Cancel", min_width=80)
        ui.status = gr.HTML("<p>No photograph yet.</p>")
        with gr.Accordion("More", open=False, elem_id="more"):
            ui.preset = gr.Dropdown(presets, value=balanced, label="Preset", visible=bool(presets))
            with gr.Row():
                ui.sampler = gr.Dropdown(list(get_args(Sampler)), value=first.sampler, label="Sampler", min_width=120)
                ui.steps = gr.Number(first.steps, label="Steps", precision=0, min_width=80)
            with gr.Row():
                ui.count = gr.Number(first.num_samples, label="Samples", precision=0, min_width=80)
                ui.seed = gr.Number(0, label="Seed", precision=0, min_width=80)
                ui.scale = gr.Dropdown(SCALES, value=SCALES[0], label="Scale", min_width=120)
            tools = {"brush": BRUSH, "sources": [], "transforms": [], "layers": False, "buttons": ["fullscreen"]}
            ui.mask = gr.ImageEditor(label="Restore a part only: paint it", height=340, format="png", **tools)
            ui.mask.accept_blobs = None  # would keep in memory what anybody sends; painted layers are uploaded
    with gr.Column(scale=3, min_width=320):
        shape = {"columns": 8, "height": 130, "object_fit": "cover"}
        ui.gallery = gr.Gallery(show_label=False, allow_preview=False, buttons=[], visible=False, **shape)
        ui.slider = gr.ImageSlider(show_label=False, buttons=["fullscreen"], max_height=680, interactive=False)
        ui.remarks = gr.HTML()
        label = "Strength: from the prediction to the full sample"
        ui.strength = gr.Slider(0, 1, first.blend, step=0.01, label=label, visible=pipeline.denoiser is not None)
        with gr.Row():
            ui.save = gr.Button("Download", variant="primary", interactive=False, min_width=120)
            ui.file = gr.DownloadButton(visible="hidden")
        with gr.Accordion("Details", open=False, elem_id="details"):
            ui.kind = gr.Dropdown([], label="Shown")
            ui.facts = gr.HTML()
            ui.heat = gr.Image(buttons=["fullscreen"], visible=False)


def _connect(ui: SimpleNamespace, actions: Actions) -> None:
    """Connect each control to its event handler, which may change every part of the page."""
    everything = list(vars(ui).values())
    shown = EVENT | {"show_progress_on": ui.status}
    opening = ui.photo.upload(actions.open, ui.photo, everything, **shown)
    # Clear the upload field after a refused file too, so that another one can be dropped.
    opening.failure(lambda: (None, NOT_OPENED), None, [ui.photo, ui.status], show_progress="hidden", **EVENT)
    for event in (opening, ui.examples.click(actions.example, ui.examples, everything, **shown)):
        measured = event.success(actions.choose, None, everything, show_progress="hidden", **EVENT)
        measured.success(actions.numbers, [ui.way, ui.preset], everything, **FAST)  # of what is chosen by then
    # Its input comes a second time when the field is left, and would undo what was typed since.
    ui.preset.select(actions.numbers, [ui.way, ui.preset], everything, **FAST)
    ui.way.input(actions.numbers, [ui.way, gr.State()], everything, **FAST)
    settings = [ui.way, ui.preset, ui.sampler, ui.steps, ui.count, ui.strength, ui.seed, ui.scale, ui.mask]
    # While it runs, its own bar stands in the status; runs of several visitors wait for the device.
    running = shown | {"show_progress": "minimal", "concurrency_limit": None}
    ui.run.click(actions.restore, settings, everything, js=TYPED, **running)
    ui.cancel.click(actions.cancel, None, None, queue=False, **EVENT)
    ui.gallery.select(actions.select, None, everything, **FAST)
    # Of events that follow one another the last counts.
    ui.strength.input(actions.look, [ui.kind, ui.strength], everything, trigger_mode="always_last", **FAST)
    ui.kind.input(actions.look, ui.kind, everything, **FAST)
    ui.save.click(actions.save, ui.kind, ui.file, **FAST).success(None, js=DOWNLOAD)


def serve(served: Served, options: Options, folder: Path) -> Page:
    """Serve the page in threads of this process, with visitors' files in a folder, which is empty.

    Without a checkpoint visitors choose one of the repository's. ValueError or OSError: the page cannot be served.
    """
    checkpoints = [options.checkpoint]
    if options.checkpoint is None:
        checkpoints = [way.checkpoint for way, _ in ways(options, {})]
        checkpoints += [str(SHIPPED / TEXT)] if TEXT in shipped() else []
    restorers = {one: Restorer(replace(options, checkpoint=one), {}) for one in dict.fromkeys(checkpoints)}
    page = Page(Actions(restorers, served, Visits(folder)))
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}  # none is downloaded
    # Gradio asks for the page's own address as it starts, past a proxy that the environment names.
    excepted = [getproxies_environment().get("no", ""), *LOCAL, served.host]
    os.environ["no_proxy"] = ",".join(filter(None, excepted))
    try:
        page.queue().launch(
            server_name=served.host,
            server_port=served.port,
            auth=tuple(served.auth.split(":", 1)) if served.auth else None,
            max_file_size=int(1e6 * served.max_size),
            theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", **fonts),
            css_paths=LOOK,
            head=SCRIPT,
            footer_links=[],
            prevent_thread_lock=True,
            quiet=True,
            **dict.fromkeys(("share", "ssr_mode", "mcp_server", "run_history", "enable_monitoring"), False),
        )
    except OSError:
        raise OSError(f"port {served.port} of {served.host} cannot be used: give another --port") from None
    return page
