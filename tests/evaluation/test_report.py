"""The page of results, which is used in a real browser."""

import base64
import html.parser
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape
from PIL import Image

from deblur.evaluation.controls import RECIPES, VERDICT_RECIPE, Verdict
from deblur.evaluation.report import write_report
from tests.evaluation.document import REASON, summary_of, write_examples

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
    write_examples(folder, summary)
    write_report(folder, {"": summary})
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


def test_a_setting_that_cannot_be_judged_says_so_in_a_word_and_why(tmp_path):
    summary = summary_of()
    rows = [replace(row, verdict=row.verdict and Verdict("unknown", {}, "LPIPS is missing")) for row in summary.rows]
    write_report(tmp_path, {"": replace(summary, rows=rows)})
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
    summary = summary_of()
    left, kept = tab.locator("#image-a"), [row.label for row in summary.front if row.settings]
    source = left.get_attribute("src")
    tab.select_option("#left", "sharp")
    assert source.startswith("data:image/jpeg;base64,")
    assert left.get_attribute("src") != source
    assert tab.locator("#setting option").evaluate_all("options => options.map(option => option.value)") == kept
    tab.select_option("#setting", kept[1])
    best = summary.scores_of(summary.front[1].label, "wall</script>5")
    words = f"PSNR (dB) {best['psnr']:.2f}, LPIPS (AlexNet) {best['lpips']:.4f}"
    assert tab.text_content("#about").startswith(f"wall</script>5, the best of {kept[1]}: {words}")
    size = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    assert left.evaluate(size) == [200, 200]


@pytest.mark.commands
def test_in_a_browser_the_typical_image_comes_first_with_its_numbers(tab):
    """Of images ordered by their LPIPS the median one, as the best rows have it."""
    summary = summary_of()
    figures = tab.locator(".overview figure")
    by_psnr, by_lpips = (summary.best[name].label for name in ("psnr", "lpips"))
    titles = ["Blurry", f"Best by PSNR: {by_psnr}", f"Best by LPIPS: {by_lpips}", "Sharp"]
    assert figures.locator("b").all_text_contents() == titles
    assert tab.text_content("#overview") == "wall</script>3, the median of 6 images by LPIPS (AlexNet)"
    blurry = summary.scores_of("blurry", "wall</script>3")
    assert f"PSNR {blurry['psnr']:.2f}, LPIPS {blurry['lpips']:.4f}" in figures.first.text_content()
    shown = figures.locator("img").evaluate_all(
        "images => images.map(image => [image.src, image.getBoundingClientRect().top])"
    )
    assert len({source for source, _ in shown}) == 3, "both rows have the same file here"
    assert len({top for _, top in shown}) == 1, "side by side"


@pytest.mark.commands
@pytest.mark.parametrize("width", [1400, 390])
def test_in_a_browser_a_wide_table_scrolls_with_the_setting_s_name_in_sight(tab, width):
    tab.set_viewport_size({"width": width, "height": 900})
    page = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert tab.evaluate(page), "only the table scrolls"
    scroll, name, last = (
        tab.locator(".scroll"),
        tab.locator("#scores tbody th").nth(3),
        tab.locator("#scores tbody tr").nth(3).locator("td").last,
    )
    scroll.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    box, left, right = (place.bounding_box() for place in (scroll, name, last))
    assert box["x"] <= left["x"] <= box["x"] + 2
    assert right["x"] + right["width"] <= box["x"] + box["width"] + 1
    assert right["x"] >= left["x"] + (0 if width < 400 else left["width"])


def test_of_two_evaluations_the_strip_at_the_top_has_each_one_s_own_images(tmp_path):
    """The settings have the same names in both, and so have the files, each of a grey level of its own."""
    summaries, levels = {"A": summary_of(), "B": summary_of()}, {}
    for number, (letter, summary) in enumerate(summaries.items()):
        best = {row.label for row in summary.best.values()}
        write_examples(tmp_path / letter, summary)
        for at, example in enumerate(summary.examples):
            example.files["restored"] = f"examples/{at}.png"
            grey = 20 + 100 * number + 3 * at
            Image.new("RGB", (16, 16), (grey, grey, grey)).save(tmp_path / letter / example.files["restored"])
            if example.image == summary.typical and example.row.label in best:
                levels[letter, example.row.label] = grey
    write_report(tmp_path, summaries, {})
    page = (tmp_path / "report.html").read_text()
    shown = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])["images"]
    found = {}
    for file, title in re.findall(r'<figure><img data-image="(.*?)" alt="(.*?)">', page)[1:-1]:
        letter, label = re.fullmatch(r"([AB]), best by .*?: (.*)", html.unescape(title)).groups()
        with Image.open(io.BytesIO(base64.b64decode(shown[file].partition(",")[2]))) as image:
            found[letter, label] = image.getpixel((8, 8))[0]
    assert len(found) == 4
    assert found == pytest.approx(levels, abs=1)


def test_the_page_warns_where_the_prediction_is_worse_than_the_blurry_image(tmp_path):
    """Of the planted images number 2 has 43.1 dB before and 30.7 after, and number 4 loses less."""
    summary = summary_of()
    scores = summary.scores.set_index(["setting", "image"])
    scores.loc[("predictor", slice(None)), "psnr"] = scores.loc["blurry", "psnr"].to_numpy() + 1
    for image, before, after in (("wall</script>4", 30.0, 29.94), ("wall</script>2", 43.1, 30.7)):
        scores.loc[("blurry", image), "psnr"], scores.loc[("predictor", image), "psnr"] = before, after
    write_report(tmp_path, {"": replace(summary, scores=scores.reset_index())})
    said = " ".join(html.unescape((tmp_path / "report.html").read_text()).split())
    assert "lower PSNR than the blurry image on 2 of 6 images:</b>" in said
    assert "wall</script>2 (43.1 to 30.7 dB), wall</script>4 (30.0 to 29.9 dB)" in said
    scores.loc[("predictor", slice(None)), "psnr"] = 50.0
    write_report(tmp_path, {"": replace(summary, scores=scores.reset_index())})
    assert "lower PSNR" not in (tmp_path / "report.html").read_text()
