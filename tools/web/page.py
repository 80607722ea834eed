"""The page's layout and controls."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.request import getproxies_environment

import gradio as gr

from deblur.hub import PURPOSES
from deblur.settings import Sampler
from deblur.tools.web.actions import BEFORE, SCALES, Actions
from deblur.tools.web.served import LOCAL, Served
from deblur.tools.web.visits import IDLE

LOOK = [Path(__file__).parents[2] / "evaluation" / "look.css", Path(__file__).with_name("page.css")]
EVENT = {"api_visibility": "private", "preprocess": False}  # the handlers refuse wrong values by their own sentences
FAST = EVENT | {"show_progress": "hidden", "concurrency_id": "blend", "concurrency_limit": 1}  # runs no network
NOT_OPENED = "<p>Not opened.</p>"  # in place of what was said before
HEAD = """<script>
addEventListener("paste", (event) => {
  const files = event.clipboardData.files;
  const input = document.querySelector("#photo input[type=file]");
  if (!files.length || !input) return;
  input.files = files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});
// Errors lie over the result: those of before are closed when the visitor does something else.
const closeErrors = () => document.querySelectorAll("[data-testid=toast-close]").forEach((close) => close.click());
addEventListener("change", (event) => event.target.closest("#photo") && closeErrors(), true);
// Gradio shows a progress message that arrives after Cancel for good: page.css hides it until the next Run.
addEventListener("click", (event) => {
  if (event.target.closest("#cancel, #run, #save, #examples")) closeErrors();
  const button = event.target.closest("#cancel, #run");
  if (button) document.documentElement.toggleAttribute("data-cancelled", button.id === "cancel");
}, true);
</script>"""
# Run takes what the fields show: a number that was just typed may not have reached the page's state yet.
TYPED = """(...known) => [...known.slice(0, 3), ...["steps", "count", "strength", "seed"].map((id, k) => {
  const field = document.querySelector(`#${id} input[type=number]`);
  return field === null ? known[3 + k] : field.value === "" ? null : Number(field.value);
}), ...known.slice(7)]"""
BRUSH = gr.Brush(default_size=30, colors=["#ff3b30"], default_color="#ff3b30", color_mode="fixed")


class Page(gr.Blocks):
    """The page with its controls, which call the handlers of its events."""

    def __init__(self, actions: Actions):
        super().__init__(title="Predict and refine: image deblurring", fill_width=True, delete_cache=(600, IDLE))
        self.actions, ui = actions, SimpleNamespace()  # the page's parts by their names, which are their ids
        with self:
            gr.HTML(
                "<h1>Predict and refine</h1><p>A blurry photograph in, a sharper one out. Drop or paste one, or take an"
                " example, and press Run. Drag the line between the images; the wheel zooms.</p>",
                elem_id="title",
            )
            with gr.Row():
                _place(ui, actions)
            for name, part in vars(ui).items():
                part.elem_id = name
            _connect(ui, actions)
            self.unload(actions.leave)

    async def process_api(self, *given: Any, **options: Any) -> dict[str, Any]:
        """Gradio's handling of a request. What it refuses itself is forged, and is no fault of the program to print."""
        try:
            return await super().process_api(*given, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except (ValueError, IndexError) as error:
            raise gr.Error(str(error), title="Not done", print_exception=False) from None

    def serve(self, served: Served) -> None:
        """Serve the page in a thread. OSError if the port is taken."""
        fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}  # none is downloaded
        try:
            with _reached_without_proxy(served.host):
                self.queue().launch(
                    server_name=served.host,
                    server_port=served.port,
                    auth=tuple(served.auth.split(":", 1)) if served.auth else None,
                    max_file_size=int(1e6 * served.max_size),
                    theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", **fonts),
                    css_paths=LOOK,
                    head=HEAD,
                    footer_links=[],
                    prevent_thread_lock=True,
                    quiet=True,
                    **dict.fromkeys(("share", "ssr_mode", "mcp_server", "run_history", "enable_monitoring"), False),
                )
        except OSError:
            raise OSError(f"port {served.port} of {served.host} cannot be used: give another --port") from None


@contextmanager
def _reached_without_proxy(host: str) -> Iterator[None]:
    """Let gradio ask for the page's own address, as it does when it starts, past a proxy that the environment names."""
    before = os.environ.get("no_proxy")
    excepted = [getproxies_environment().get("no", ""), *LOCAL, host]
    os.environ["no_proxy"] = ",".join(filter(None, excepted))
    try:
        yield
    finally:
        del os.environ["no_proxy"]
        if before is not None:
            os.environ["no_proxy"] = before


def _place(ui: SimpleNamespace, actions: Actions) -> None:
    """The left column, a photograph and the settings of its restoration, and the right one, its results."""
    pipeline = actions.restorer.pipeline
    first, presets = pipeline.preset(), list(pipeline.config.presets)
    balanced = "balanced" if "balanced" in presets else None
    checkpoints = [(f"{name}: {PURPOSES.get(name, 'your own')}", name) for name in actions.restorers]
    examples = [[str(path)] for path, _ in actions.examples]
    strength = "Strength: from the prediction to the full sample"
    with gr.Column(scale=1, min_width=300):
        ui.photo = gr.File(label="Photograph", height=130)
        ui.examples = gr.Dataset(components=[gr.Image(visible=False)], samples=examples, label="Or one of these")
        ui.checkpoint = gr.Radio(checkpoints, value=checkpoints[0][1], label="Checkpoint", visible=len(checkpoints) > 1)
        ui.preset = gr.Dropdown(presets, value=balanced, label="Preset", visible=bool(presets))
        with gr.Row():
            ui.sampler = gr.Dropdown(list(get_args(Sampler)), value=first.sampler, label="Sampler", min_width=120)
            ui.steps = gr.Number(first.steps, label="Steps", precision=0, min_width=80)
        with gr.Row():
            ui.count = gr.Number(first.num_samples, label="Samples", precision=0, min_width=80)
            ui.seed = gr.Number(0, label="Seed", precision=0, min_width=80)
            ui.scale = gr.Dropdown(list(SCALES), value=SCALES[0], label="Scale", min_width=120)
        with gr.Accordion("Restore a part only: paint it", open=False):
            tools = {"brush": BRUSH, "sources": [], "transforms": [], "layers": False, "buttons": ["fullscreen"]}
            ui.mask = gr.ImageEditor(show_label=False, height=340, format="png", **tools)
            ui.mask.accept_blobs = None  # would keep in memory what anybody sends; painted layers are uploaded
        with gr.Row():
            ui.run = gr.Button("Run", variant="primary", min_width=80)
            ui.cancel = gr.Button("Cancel", min_width=80)
        ui.status = gr.HTML("<p>No photograph yet.</p>")
    with gr.Column(scale=3, min_width=320):
        with gr.Row():
            ui.left = gr.Dropdown([BEFORE], value=BEFORE, label="Left")
            ui.right = gr.Dropdown([BEFORE], value=BEFORE, label="Right")
        ui.slider = gr.ImageSlider(show_label=False, buttons=["fullscreen"], max_height=680, interactive=False)
        ui.strength = gr.Slider(0, 1, first.blend, step=0.01, label=strength, visible=pipeline.denoiser is not None)
        with gr.Row():
            ui.save = gr.Button("Download the right image")
            ui.file = gr.DownloadButton(visible="hidden")
        with gr.Tab("Numbers"):
            ui.facts = gr.HTML()
        with gr.Tab("Uncertainty"):
            ui.heat = gr.Image(label="Standard deviation of the samples", buttons=["fullscreen"])


def _connect(ui: SimpleNamespace, actions: Actions) -> None:
    """Connect each control to its event handler."""
    sides, numbers = [ui.left, ui.right], [ui.sampler, ui.steps, ui.count, ui.strength]
    result = [*sides, ui.slider, ui.facts, ui.heat]
    opened = [ui.photo, ui.status, ui.mask, *result]
    shown = EVENT | {"show_progress_on": ui.status}
    opening = ui.photo.upload(actions.open, ui.photo, opened, **shown)
    # Clear the upload field after a refused file too, so that another one can be dropped.
    opening.failure(lambda: (None, NOT_OPENED), None, [ui.photo, ui.status], show_progress="hidden", **EVENT)
    ui.examples.click(actions.example, ui.examples, [*opened, ui.checkpoint], **shown)
    values = attrgetter("sampler", "steps", "num_samples", "blend")
    table = {
        checkpoint: {name: values(restorer.pipeline.preset(name)) for name in restorer.pipeline.config.presets}
        for checkpoint, restorer in actions.restorers.items()
    }
    # In the browser, so that no late answer overwrites what is typed meanwhile.
    chosen = f"(checkpoint, preset) => ({json.dumps(table)})[checkpoint][preset]"
    for event in (ui.preset.input, ui.checkpoint.change):
        event(None, [ui.checkpoint, ui.preset], numbers, js=chosen)
    alone = shown | {"concurrency_id": "device", "concurrency_limit": 1}  # runs the networks
    settings = [ui.checkpoint, ui.preset, *numbers, ui.seed, ui.scale, ui.mask]
    running = ui.run.click(actions.restore, settings, [ui.status, *result], js=TYPED, **alone)
    ui.cancel.click(actions.cancel, None, ui.status, cancels=running, queue=False, **EVENT)
    # Of events that follow one another the last counts.
    ui.strength.input(actions.look, [*sides, ui.strength], result, trigger_mode="always_last", **FAST)
    for choice in sides:
        choice.input(actions.look, sides, result, **FAST)
    ui.save.click(actions.save, ui.right, ui.file, **FAST).success(
        None, js="() => document.querySelector('#file a, a#file, #file').click()"
    )
