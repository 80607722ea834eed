"""The page's layout and controls."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import gradio as gr

from models.index import PURPOSES
from models.settings import Sampler
from web.actions import BEFORE, NEWEST, Actions
from web.restoration import PhotoRestorer
from web.visits import IDLE, Visits

LOOK = [Path(__file__).parents[1] / "evaluation" / "look.css", Path(__file__).with_name("page.css")]
FAST = {"show_progress": "hidden", "concurrency_id": "blend", "concurrency_limit": 1}  # events that run no network
PRIVATE = {"api_visibility": "private"}
LATEST = FAST | PRIVATE | {"trigger_mode": "always_last"}  # of events that follow one another, the last counts
ALONE = {"concurrency_id": "device", "concurrency_limit": 1}  # events that run the networks
HEAD = """<script>
addEventListener("paste", (event) => {
  const files = event.clipboardData.files;
  const input = document.querySelector("#photo input[type=file]");
  if (!files.length || !input) return;
  input.files = files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});
// Gradio shows a progress message that arrives after Cancel for good: page.css hides it until the next Run.
addEventListener("click", (event) => {
  const button = event.target.closest("#cancel, #run");
  if (button) document.documentElement.toggleAttribute("data-cancelled", button.id === "cancel");
}, true);
</script>"""
# Run takes what the fields show: a number that was just typed may not have reached the page's state yet.
TYPED = """(preset, sampler, ...rest) => [preset, sampler, ...["steps", "count", "seed", "strength"].map((id, k) => {
  const field = document.querySelector(`#${id} input[type=number]`);
  return field === null ? rest[k] : field.value === "" ? null : Number(field.value);
}), rest[4]]"""


class Page(gr.Blocks):
    """The page with its events, which are also available as named API endpoints.

    Args:
        restorers: restore photographs, by the name of their checkpoint; the first is the default.
        visits: each visitor's photographs and results.
    """

    def __init__(self, restorers: dict[str, PhotoRestorer], visits: Visits):
        title = "Predict and refine: image deblurring"
        super().__init__(title=title, analytics_enabled=False, fill_width=True, delete_cache=(600, IDLE))
        self.restorers, self.visits = restorers, visits
        ui, actions = SimpleNamespace(), Actions(restorers, visits)  # the page's parts by their names
        with self:
            gr.HTML(
                "<h1>Predict and refine</h1><p>A blurry photograph in, a sharper one out. Drop or paste one, or take an"
                " example, and press Run. Drag the line between the images; the wheel zooms.</p>",
                elem_id="title",
            )
            with gr.Row(elem_id="columns"):
                _place_inputs(ui, actions)
                _place_results(ui, actions.restorer)
            _connect(ui, actions)
            self.unload(actions.leave)

    async def preprocess_data(self, *given: Any, **named: Any) -> list[Any]:
        """The values that a request sends, as a handler takes them; gradio would print a traceback for wrong ones."""
        try:
            return await super().preprocess_data(*given, **named)
        except Exception as error:
            sentence = f"the request cannot be read: {' '.join(str(error).split())}"
            raise gr.Error(sentence, duration=None, title="Not done", print_exception=False) from None

    def serve(self, host: str, port: int, auth: str | None, most_bytes: int) -> None:
        """Serve the page in a thread.

        Args:
            host, port: address to serve at.
            auth: NAME:PASSWORD; None for no login.
            most_bytes: largest upload.

        Raises:
            OSError: the port is taken.
        """
        look = gr.themes.Default(
            primary_hue="blue",
            neutral_hue="slate",
            font=["system-ui", "sans-serif"],  # the visitor's own fonts, so that none is downloaded
            font_mono=["ui-monospace", "monospace"],
        )
        try:
            self.queue().launch(
                server_name=host,
                server_port=port,
                auth=tuple(auth.split(":", 1)) if auth else None,
                max_file_size=most_bytes,
                theme=look,
                css_paths=LOOK,
                head=HEAD,
                footer_links=[],
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                ssr_mode=False,
                mcp_server=False,
                run_history=False,
                enable_monitoring=False,
            )
        except OSError:
            raise OSError(f"port {port} of {host} cannot be used: give another --port") from None


def _place_inputs(ui: SimpleNamespace, actions: Actions) -> None:
    """The left column: a photograph and the settings of its restoration."""
    first = actions.restorer.pipeline.preset()
    presets = list(actions.restorer.pipeline.config.presets)
    samplers = list(get_args(Sampler))
    with gr.Column(scale=1, min_width=300):
        ui.photo = gr.File(label="Photograph", elem_id="photo", height=130)
        ui.name = gr.Textbox(visible=False)
        ui.examples = gr.Dataset(
            components=[gr.Image(visible=False)],
            samples=[[str(path)] for path, _ in actions.examples],
            type="index",
            label="Or one of these",
            elem_id="examples",
        )
        ui.checkpoint = gr.Radio(
            [(f"{name}: {PURPOSES.get(name, 'your own')}", name) for name in actions.restorers],
            value=next(iter(actions.restorers)),
            label="Checkpoint",
            elem_id="checkpoint",
            visible=len(actions.restorers) > 1,
        )
        ui.preset = gr.Dropdown(
            presets,
            value="balanced" if "balanced" in presets else None,
            label="Preset",
            elem_id="preset",
            visible=bool(presets),
        )
        with gr.Row():
            ui.sampler = gr.Dropdown(samplers, value=first.sampler, label="Sampler", min_width=120, elem_id="sampler")
            ui.steps = gr.Number(first.steps, label="Steps", precision=0, min_width=80, elem_id="steps")
        with gr.Row():
            ui.count = gr.Number(first.num_samples, label="Samples", precision=0, min_width=80, elem_id="count")
            ui.seed = gr.Number(0, label="Seed", precision=0, min_width=80, elem_id="seed")
        with gr.Row():
            ui.run = gr.Button("Run", variant="primary", min_width=80, elem_id="run")
            ui.cancel = gr.Button("Cancel", min_width=80, elem_id="cancel")
        ui.status = gr.HTML("<p>No photograph yet.</p>", elem_id="status")


def _place_results(ui: SimpleNamespace, restorer: PhotoRestorer) -> None:
    """The right column: two images side by side, their numbers, and the mask."""
    with gr.Column(scale=3, min_width=320):
        with gr.Row():
            ui.left = gr.Dropdown([BEFORE], value=BEFORE[1], label="Left", elem_id="left")
            ui.right = gr.Dropdown([NEWEST], value=NEWEST[1], label="Right", elem_id="right")
        ui.slider = gr.ImageSlider(
            format="png",
            show_label=False,
            buttons=["fullscreen"],
            max_height=680,
            interactive=False,
            elem_id="slider",
        )
        ui.strength = gr.Slider(
            0,
            1,
            restorer.pipeline.preset().blend,
            step=0.01,
            label="Strength: from the prediction to the full sample",
            elem_id="strength",
            visible=restorer.pipeline.denoiser is not None,
        )
        with gr.Row():
            ui.save = gr.Button("Download the right image", elem_id="save")
            ui.file = gr.DownloadButton(visible="hidden", elem_id="file")
        with gr.Tabs():
            with gr.Tab("Numbers"):
                ui.facts = gr.HTML(elem_id="facts")
                ui.command = gr.Textbox(
                    label="The same file by sample.py", buttons=["copy"], interactive=False, elem_id="command"
                )
            with gr.Tab("Uncertainty"):
                ui.heat = gr.Image(label="Standard deviation of the samples", buttons=["fullscreen"], elem_id="heat")
            with gr.Tab("Mask"):
                ui.where = gr.Radio(
                    ["only where painted", "everywhere but where painted"],
                    value="only where painted",
                    label="The strength applies",
                    elem_id="where",
                )
                ui.mask = gr.ImageEditor(
                    label="Paint on the photograph",
                    sources=(),
                    transforms=(),
                    layers=False,
                    brush=gr.Brush(default_size=40, colors=["#2f80ed"], color_mode="fixed"),
                    buttons=["fullscreen"],
                    elem_id="mask",
                )


def _connect(ui: SimpleNamespace, actions: Actions) -> None:
    """Connect each control to its event handler."""
    result = [ui.left, ui.right, ui.slider, ui.facts, ui.command, ui.heat]
    opened = [ui.photo, ui.status, ui.mask, *result]
    numbers = [ui.sampler, ui.steps, ui.count, ui.strength]
    for control in (ui.checkpoint, ui.preset, *numbers, ui.seed):
        _take_any(control)
    opening = ui.photo.upload(
        actions.open,
        [ui.photo, ui.name],
        opened,
        js="(file, name) => [file, file ? file.orig_name : name]",
        api_name="open",
        show_progress_on=ui.status,
    )
    # Clear the upload field after a refused file too, so that another one can be dropped.
    opening.failure(lambda: None, None, ui.photo, **PRIVATE, show_progress="hidden")
    ui.examples.click(actions.example, ui.examples, [*opened, ui.checkpoint], **PRIVATE, show_progress_on=ui.status)
    table = {
        checkpoint: {
            name: [preset.sampler, preset.steps, preset.num_samples, preset.blend]
            for name in restorer.pipeline.config.presets
            for preset in [restorer.pipeline.preset(name)]
        }
        for checkpoint, restorer in actions.restorers.items()
    }
    # In the browser, so that no late answer overwrites what is typed meanwhile.
    chosen = f"(checkpoint, preset) => ({json.dumps(table)})[checkpoint][preset]"
    for event in (ui.preset.input, ui.checkpoint.change):
        event(None, [ui.checkpoint, ui.preset], numbers, js=chosen)
    running = ui.run.click(
        actions.restore,
        [ui.preset, ui.sampler, ui.steps, ui.count, ui.seed, ui.strength, ui.checkpoint],
        [ui.status, *result],
        js=TYPED,
        api_name="run",
        show_progress_on=ui.status,
        **PRIVATE,
        **ALONE,
    )
    ui.cancel.click(actions.cancel, None, ui.status, cancels=running, api_name="cancel", queue=False)
    sides = [ui.left, ui.right]
    ui.strength.input(actions.strength, [ui.strength, *sides], result, api_name="slide", **LATEST)
    for event in (ui.mask.input, ui.where.input):
        event(actions.mask, [ui.mask, ui.where, *sides], result, **LATEST)
    for choice in sides:
        choice.input(actions.look, sides, result, **PRIVATE, **FAST)
    ui.save.click(actions.save, ui.right, ui.file, api_name="download", **PRIVATE, **FAST).success(
        None, js="() => document.querySelector('#file a, a#file, #file').click()"
    )
    _offer_api(ui, actions, result)


def _offer_api(ui: SimpleNamespace, actions: Actions, result: list[gr.components.Component]) -> None:
    """Endpoints with fields of their own, which have no values: what a call leaves out follows its preset."""
    texts = [gr.Textbox(visible=False) for _ in range(5)]  # preset, sampler, left, right, checkpoint
    numbers = [gr.Number(value, visible=False) for value in (None, None, 0, None)]  # steps, samples, seed, strength
    for number in numbers:
        _take_any(number)
    button = gr.Button(visible=False)
    button.click(actions.restore, [*texts[:2], *numbers, texts[4]], [ui.status, *result], api_name="restore", **ALONE)
    button.click(actions.strength, [numbers[3], *texts[2:4]], result, api_name="strength", **FAST)
    button.click(actions.save, texts[3], ui.file, api_name="save", **FAST)


def _take_any(control: gr.components.Component) -> None:
    """Let the handlers refuse a control's wrong values by their sentences; gradio would print a traceback."""
    control.preprocess = lambda payload: payload
