"""The page of results, which is used in a real browser, the perception-distortion curve, and the panel."""

import html.parser
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape
from matplotlib.text import Annotation
from PIL import Image, ImageDraw

from deblur.evaluation.controls import LABELS, RECIPES, VERDICT_RECIPE, Verdict
from deblur.evaluation.panels import BAR, CAPTION, GAP, NAME, TITLE, WIDTH, _font, panel
from deblur.evaluation.plots import curve
from deblur.evaluation.report import write_report
from deblur.evaluation.rows import Row
from deblur.evaluation.statistics import Estimate
from deblur.evaluation.summary import RowSummary
from deblur.settings import SamplingSettings
from tests.evaluation.document import FACTS, REASON, SAMPLERS, metric, of_rows, scored, summary_of, write_examples

# The page, read


class Tags(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder, summary = tmp_path_factory.mktemp("results"), summary_of()
    write_report(folder, summary, write_examples(folder, summary))
    return folder


def test_the_page_holds_everything_and_fetches_nothing(folder):
    page = (folder / "report.html").read_text()
    tags = Tags(page).found
    links = [attributes.get(name) for _, attributes in tags for name in ("src", "href", "srcset", "action")]
    assert all(link.startswith("data:") for link in links if link)
    assert not re.search(r"url\(|@import|https?://", page)
    policy = next(attributes["content"] for tag, attributes in tags if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "{{" not in page
    assert "&lt;photos&gt; &amp; more" in page
    assert "<photos>" not in page
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert page.count("data:image/jpeg;base64,") == 4, "each file once"


def test_every_number_stands_with_its_interval_recipe_or_reason(folder):
    page, summary = (folder / "report.html").read_text(), summary_of()
    for row in summary.rows:
        assert f">{row.label}<" in page
    psnr, gap = summary.rows[3].estimates["psnr"], summary.rows[3].differences["psnr"]
    assert f'data-value="{psnr.mean}">{psnr.mean:.2f}<small class="interval">{psnr.low:.2f} to' in page
    assert f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})" in page
    for row in summary.settings:
        gap = row.verdict.differences["sharpened"]
        shown = f"<small>sharpened {gap.mean:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})</small>"
        assert f">{row.verdict.perceptual}{shown}" in page
    assert all(str(escape(recipe)) in page for recipe in (*RECIPES.values(), VERDICT_RECIPE))
    assert "PSNR: RGB, 8 bits" in page
    assert REASON in html.unescape(page)
    assert REASON not in page
    assert "∞" in page


def test_the_page_is_for_everybody(folder):
    tags = Tags((folder / "report.html").read_text()).found
    assert ("html", {"lang": "en"}) in tags
    assert all("alt" in attributes for tag, attributes in tags if tag == "img")
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")
    assert next(attributes for tag, attributes in tags if attributes.get("type") == "range")["aria-label"]


def test_results_without_checkpoint_or_images(tmp_path):
    """Images of another program: no checkpoint, no predictor, one image and so no interval."""
    scores = {"blurry": 25.0, "outputs other": 27.0}
    alone = {label: dict.fromkeys(("psnr", "lpips"), Estimate(mean, None, None, 1)) for label, mean in scores.items()}
    rows = [RowSummary(Row(label), 1, 0.0, estimates) for label, estimates in alone.items()]
    write_report(tmp_path, of_rows(rows, facts=FACTS | {"checkpoint": None, "grid": None}), [])
    page = (tmp_path / "report.html").read_text()
    assert "outputs other" in page
    assert 'id="view"' not in page
    assert "Evaluation of images" in page


def test_a_setting_that_cannot_be_judged_says_so_in_a_word_and_why(tmp_path):
    summary = summary_of()
    rows = [replace(row, verdict=row.verdict and Verdict("unknown", {}, "LPIPS is missing")) for row in summary.rows]
    write_report(tmp_path, replace(summary, rows=rows), [])
    page = (tmp_path / "report.html").read_text()
    assert page.count(">unknown<small>LPIPS is missing</small>") == len(summary.settings)


# The page, used


@pytest.fixture
def tab(folder, chromium):
    """The page in a tab, which logs no error and asks for nothing else."""
    tab, said, asked = chromium.new_page(), [], []
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((folder / "report.html").as_uri())
    yield tab
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [tab.url]
    tab.close()


def pressed(tab, column):
    """The values of a column, from the top, once its head is pressed."""
    tab.locator("#scores thead button").nth(column).click()
    values = "(table, n) => [...table.tBodies[0].rows].map(row => row.cells[n].dataset.value)"
    return tab.locator("#scores").evaluate(values, column)


@pytest.mark.commands
def test_in_a_browser_the_table_sorts_by_any_column_in_both_directions(tab):
    psnr = [float(value) for value in pressed(tab, 2)]
    assert psnr == sorted(psnr, reverse=True)
    assert psnr[0] == float("inf")
    assert len(psnr) == len(summary_of().rows)
    assert [float(value) for value in pressed(tab, 2)] == psnr[::-1]
    *lpips, last = pressed(tab, 3)
    assert [*map(float, lpips)] == sorted(map(float, lpips))
    assert last == "", "what is missing is last"
    first, second, *_ = pressed(tab, 0)
    assert first < second
    state = tab.locator("#scores thead th").evaluate_all("heads => heads.map(head => head.getAttribute('aria-sort'))")
    assert state == ["ascending", *[None] * (len(state) - 1)]


@pytest.mark.commands
@pytest.mark.parametrize("differences", [False, True])
def test_in_a_browser_the_table_shows_intervals_or_differences(tab, differences):
    tab.set_checked("#paired", differences)
    assert tab.locator("#scores .interval").first.is_visible() != differences
    assert tab.locator("#scores .difference").first.is_visible() == differences


def style(tab, place, name):
    return tab.locator(place).evaluate(f"element => element.style.{name}")


@pytest.mark.commands
def test_in_a_browser_the_slider_moves_by_its_field_and_by_its_handle(tab):
    def drag():
        tab.hover("#grip")
        tab.mouse.down()
        box, height = tab.locator("#view").bounding_box(), tab.locator("#grip").bounding_box()["y"] + 9
        for share in (0.75, 0.1):  # after the first the grip is let go
            tab.mouse.move(box["x"] + share * box["width"], height)
            tab.mouse.up()

    for place, move in ((50, lambda: None), (20, lambda: tab.fill("#where", "20")), (75, drag)):
        move()
        assert style(tab, "#clip", "clipPath") == f"inset(0px 0px 0px {place}%)"
        assert style(tab, "#line", "left") == f"{place}%"


@pytest.mark.commands
def test_in_a_browser_the_images_are_zoomed_and_moved(tab):
    tab.click("#in")
    tab.click("#in")
    zoomed = style(tab, "#image-a", "transform")
    tab.locator("#view").press("ArrowLeft")
    panned = style(tab, "#image-a", "transform")
    assert "scale(4)" in zoomed
    assert "scale(4)" in panned
    assert zoomed != panned


@pytest.mark.commands
def test_in_a_browser_other_images_and_settings_are_chosen(tab):
    left, kept = tab.locator("#image-a"), [row.label for row in summary_of().settings_front[:2]]
    source = left.get_attribute("src")
    tab.select_option("#left", "sharp")
    assert source.startswith("data:image/jpeg;base64,")
    assert left.get_attribute("src") != source
    assert tab.locator("#setting option").evaluate_all("options => options.map(option => option.value)") == kept
    tab.select_option("#setting", kept[1])
    about = f"clock/1, the best of {kept[1]}: PSNR (dB) 27.12, LPIPS (AlexNet) 0.1234"
    assert tab.text_content("#about").startswith(about)
    size = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    assert left.evaluate(size) == [200, 200]


def labels(figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("count", [2, 12, 18])
def test_the_labels_of_the_curve_do_not_lie_on_each_other(tmp_path, count):
    figure = curve({"": summary_of(count)})
    figure.savefig(tmp_path / "pareto.png")
    boxes = [text.get_window_extent() for text in labels(figure)]
    boxes.append(figure.axes[0].get_legend().get_window_extent())
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for text in labels(figure):  # in one of eight directions, near its point
        box, (right, up) = text.get_window_extent(), text.get_position()
        points = 72 / figure.dpi
        ways = [(right / (box.width / 2 * points + gap), up / (box.height / 2 * points + gap)) for gap in (8, 15)]
        angle, radius = min(((math.atan2(y, x), math.hypot(x, y)) for x, y in ways), key=lambda way: abs(way[1] - 1))
        eighths = angle / (math.pi / 4)
        assert radius == pytest.approx(1, abs=1e-6)
        assert eighths == pytest.approx(round(eighths), abs=1e-6)
    assert len(boxes) == count + 3
    with Image.open(tmp_path / "pareto.png") as image:
        assert image.size == (1500, 975)


def test_the_curve_shows_the_rows_their_intervals_and_the_front():
    summary = summary_of()
    axes = curve({"": summary}).axes[0]
    points = {c.get_label(): c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")}
    assert set(points) == {*SAMPLERS, "blurry", "predictor"}
    for sampler in SAMPLERS:
        own = [row for row in summary.settings if row.row.settings.sampler == sampler]
        assert points[sampler] == [[row.mean("psnr"), row.mean("lpips")] for row in own]
    [line] = [line for line in axes.lines if line.get_label() == "Pareto front"]
    assert line.get_xydata().tolist() == sorted([row.mean("psnr"), row.mean("lpips")] for row in summary.front)
    ends = {tuple(np.round(end, 6)) for c in axes.containers for bar in c[2] for s in bar.get_segments() for end in s}
    for row in summary.rows:
        if row.row.settings or row.label in ("blurry", "predictor"):
            psnr, lpips = row.estimates["psnr"], row.estimates["lpips"]
            assert (round(psnr.low, 6), round(lpips.mean, 6)) in ends
            assert (round(psnr.mean, 6), round(lpips.high, 6)) in ends
    own = {row.label: [row.mean("psnr"), row.mean("lpips")] for row in summary.rows}
    for control, labels in LABELS.items():
        [line] = [line for line in axes.lines if line.get_label() == control]
        assert line.get_xydata().tolist() == [own[at] for at in ("predictor", *labels)]
        assert line.get_linewidth() < 1
    least = min(x for group in points.values() for x, _ in group)
    assert axes.get_xlim()[0] == pytest.approx(least, abs=0.5), "controls far away do not squeeze what is compared"
    assert axes.yaxis_inverted()
    assert not axes.xaxis_inverted()
    assert "LPIPS (AlexNet): lower is better" in axes.get_ylabel()
    assert "PSNR (dB): higher" in axes.get_xlabel()


def moved(summary, psnr, lpips):
    """The same rows, but for the blurry images, with other means."""
    rows = []
    for row in summary.rows:
        means = {name: estimate.mean for name, estimate in row.estimates.items()}
        is_moved = row.label != "blurry" and "lpips" in means
        rows.append(scored(row.row, means["psnr"] + psnr, means["lpips"] + lpips) if is_moved else row)
    return replace(summary, rows=rows)


@pytest.mark.parametrize("count", [2, 12])
def test_two_evaluations_are_drawn_on_one_pair_of_axes_with_their_labels_apart(tmp_path, count):
    first = summary_of(count)
    second = moved(first, 0.5, -0.02)
    figure = curve({"A": first, "B": second})
    figure.savefig(tmp_path / "pareto.png")
    [axes] = figure.axes
    points = {c.get_label(): c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")}
    samplers = SAMPLERS[:count]
    assert set(points) == {"blurry", *(f"{letter}: {name}" for letter in "AB" for name in (*samplers, "predictor"))}
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    for letter, summary in {"A": first, "B": second}.items():
        places = {row.label: [row.mean("psnr"), row.mean("lpips")] for row in summary.rows}
        for sampler in samplers:
            own = [row.label for row in summary.settings if row.row.settings.sampler == sampler]
            assert points[f"{letter}: {sampler}"] == [places[label] for label in own]
        assert lines[f"{letter}: Pareto front"] == sorted(places[row.label] for row in summary.front)
        for control, names in LABELS.items():
            assert lines[f"{letter}: {control}"] == [places[name] for name in ("predictor", *names)]
    colours = {c.get_label(): tuple(c.get_facecolor()[0]) for c in axes.collections if c.get_label() in points}
    by_letter = [{colour for label, colour in colours.items() if label.startswith(letter)} for letter in "AB"]
    assert [len(own) for own in by_letter] == [1, 1]
    assert by_letter[0] != by_letter[1]
    boxes = [text.get_window_extent() for text in labels(figure)]
    assert {text.get_text()[:2] for text in labels(figure)} >= {"A:", "B:"}
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_images_equal_to_the_ground_truth_have_no_place_on_the_curve():
    """Their PSNR is infinite: another program's copy of the ground truth, on the front."""
    rows = summary_of().rows
    equal = {"psnr": Estimate(float("inf"), None, None, 6), "lpips": Estimate(0.0, None, None, 6)}
    summary = of_rows([*rows, RowSummary(Row("outputs copy"), 6, 0.0, equal)])
    assert [row.label for row in summary.front] == ["outputs copy"]
    axes = curve({"": summary}).axes[0]
    assert "Pareto front" not in [line.get_label() for line in axes.lines]
    assert "outputs copy" not in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("field", ["blend", "steps", "sampler"])
def test_every_label_of_the_curve_stands_at_its_own_row(field):
    """Two settings that differ in one field, the better one first and last."""
    others = {"blend": 0.5, "steps": 7, "sampler": "unipc"}
    settings = [SamplingSettings(), SamplingSettings(**{field: others[field]})]
    for first, second in ((0, 1), (1, 0)):
        places = [(25.0, 0.2), (26.0, 0.3), (25.5, 0.25)]
        own = [Row("a", settings[first]), Row("b", settings[second]), Row("c", SamplingSettings(blend=0.0))]
        rows = [scored(row, *place) for row, place in zip(own, places, strict=True)]
        summary = of_rows(rows)
        found = {label.xy: label.get_text() for label in labels(curve({"": summary}))}
        for row, place in zip(rows, places, strict=True):
            words = [str(row.row.settings.steps)] if row.row.settings.blend else [row.label]
            assert found[place] == " ".join([*words, *filter(None, [summary.preset(row)])])
        assert found[places[0]].endswith(" perceptual")
        assert " fidelity" in found[places[1]]


@pytest.mark.parametrize(("names", "said"), [(("lpips",), "LPIPS has no value."), ((), "not asked for")])
def test_without_lpips_the_curve_takes_ssim_and_says_why(names, said):
    scored = [row for row in summary_of().rows if "lpips" in row.estimates]
    rows = [replace(r, estimates={"psnr": r.estimates["psnr"], "ssim": r.estimates["lpips"]}) for r in scored]
    summary = of_rows(rows, metrics={name: metric(name) for name in ("psnr", "ssim", *names)})
    axes = curve({"": summary}).axes[0]
    assert said in axes.get_title().replace("\n", " ")
    assert axes.get_ylabel().startswith("SSIM: higher")
    assert not axes.yaxis_inverted()


def words(pixels, centre, text, size):
    """Whether a text stands at a place, and nothing beside it."""
    expected = Image.new("L", (WIDTH, CAPTION), "white")
    ImageDraw.Draw(expected).text((WIDTH // 2, CAPTION // 2), text, "black", _font(size), "mm")
    x, y = centre[0] - WIDTH // 2, centre[1] - CAPTION // 2
    return (pixels[y : y + CAPTION, x : x + WIDTH, 0] == np.asarray(expected)).all()


def test_panel_shows_each_image_in_its_colours(tmp_path):
    red = torch.zeros(3, 40, 60)
    red[0] = 1
    dark, spread = red * 0.5, torch.full((3, 40, 60), 10 / 255)
    spread[:, 20:] = 0
    tall = [torch.full((3, 60, 30), level) for level in (0.2, 0.6, 0.1, 0.4)]
    columns = {"blurry": [dark, tall[0]], "unsharp": [red, tall[1]], "std": [spread, tall[2]], "sharp": [red, tall[3]]}
    panel(columns, tmp_path / "panel.png", ["best: clock", "worst: cat"])
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))

    heights = WIDTH * 40 // 60, WIDTH * 60 // 30
    tops = TITLE, TITLE + heights[0] + CAPTION
    lefts = [GAP + NAME + k * (WIDTH + GAP) + (BAR if k == 3 else 0) for k in range(4)]
    assert pixels.shape == (tops[1] + heights[1] + CAPTION, lefts[3] + WIDTH + GAP, 3)
    colours = {(0, 0): (128, 0, 0), (0, 1): (255, 0, 0), (1, 0): (51, 51, 51), (0, 3): (255, 0, 0)}
    for (line, column), colour in colours.items():
        inside = pixels[tops[line] : tops[line] + heights[line], lefts[column] : lefts[column] + WIDTH]
        assert (inside == colour).all(), (line, column)
    heat = pixels[tops[0] : tops[0] + heights[0], lefts[2] : lefts[2] + WIDTH + GAP]
    assert (heat[10, 0] == (252, 254, 164)).all() and (heat[-1, 0] == (0, 0, 3)).all()  # inferno's ends, and its bar's
    assert (heat[0, -1] == heat[10, 0]).all()
    assert (heat[-1, -1] == heat[-1, 0]).all()
    captions = [["10.83 dB", "inf dB", "8-bit levels", ""], ["13.98 dB", "13.98 dB", "8-bit levels", ""]]
    for column, label in enumerate(columns):
        centre = lefts[column] + WIDTH // 2
        assert words(pixels, (centre, TITLE // 2), label, 24)
        for line in range(2):
            assert words(pixels, (centre, tops[line] + heights[line] + CAPTION // 2), captions[line][column], 20)
    for line in range(2):
        assert pixels[tops[line] : tops[line] + heights[line], GAP // 2 : GAP // 2 + NAME].min() < 100  # its name


@pytest.mark.parametrize("level", [2, 10, 60])
def test_the_colour_bar_tells_the_level_of_every_colour(tmp_path, level):
    """Rows of the heat map from 0 to a level: their colours stand in the bar at the height of their numbers."""
    spread = torch.linspace(0, level / 255, 200).view(1, -1, 1).expand(3, -1, 240)
    panel({"std": [spread]}, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png")).astype(int)
    heat, bar = pixels[TITLE : TITLE + 400, GAP + WIDTH // 2], pixels[TITLE : TITLE + 400, GAP + WIDTH + GAP // 2 + 9]
    at = np.array([abs(bar - colour).sum(axis=1).argmin() for colour in heat])
    top = np.percentile(spread.mean(0).numpy() * 255, 99.5)
    shown = (1 - at / 399) * top
    assert shown == pytest.approx(np.linspace(0, level, 400).clip(max=top), abs=0.02 * level)
    for share, anchor in ((1.0, "la"), (0.5, "lm"), (0.0, "ld")):
        place = GAP + WIDTH + GAP // 2 + 24, TITLE + (1 - share) * 399
        expected = Image.new("RGB", pixels.shape[1::-1], "white")
        ImageDraw.Draw(expected).text(place, f"{share * top:.3g}", "black", _font(18), anchor)
        inked = np.asarray(expected).min(axis=2) < 255
        assert inked.any(), share
        assert (pixels[inked] == np.asarray(expected)[inked]).all(), share


def test_panel_of_one_image_without_ground_truth(tmp_path):
    panel({"blurry": torch.rand(1, 3, 32, 32), "std": torch.zeros(1, 3, 32, 32)}, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))
    assert pixels.shape == (TITLE + WIDTH + CAPTION, 3 * GAP + 2 * WIDTH + BAR, 3)
    assert words(pixels, (GAP + WIDTH // 2, TITLE + WIDTH + CAPTION // 2), "", 20)
    assert words(pixels, (2 * GAP + WIDTH + WIDTH // 2, TITLE + WIDTH + CAPTION // 2), "8-bit levels", 20)
