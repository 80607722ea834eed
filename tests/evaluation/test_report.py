"""The page out of a folder of results; the page is used in a real browser."""

import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from evaluation.controls import RECIPES, VERDICT_RECIPE, Verdict
from evaluation.report import write_report
from evaluation.rows import Row
from evaluation.statistics import Estimate
from evaluation.summary import RowSummary
from tests.evaluation.document import FACTS, REASON, of_rows, summary_of, write_examples

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
    assert "&lt;photos&gt; &amp; more" in page and "<photos>" not in page
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert page.count("data:image/jpeg;base64,") == 4, "each file once"


def test_every_number_stands_with_its_interval_recipe_or_reason(folder):
    page = (folder / "report.html").read_text()
    summary = summary_of()
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
    assert "PSNR: RGB, 8 bits" in page and REASON in html.unescape(page) and REASON not in page
    assert "∞" in page


def test_the_page_is_for_everybody(folder):
    tags = Tags((folder / "report.html").read_text()).found
    assert ("html", {"lang": "en"}) in tags
    assert all("alt" in attributes for tag, attributes in tags if tag == "img")
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")
    slider = next(attributes for tag, attributes in tags if attributes.get("type") == "range")
    assert slider["aria-label"]


def test_results_without_checkpoint_or_images(tmp_path):
    """Images of another program: no checkpoint, no predictor, one image and so no interval."""
    rows = [
        RowSummary(Row(label), 1, 0.0, dict.fromkeys(("psnr", "lpips"), Estimate(mean, None, None, 1)))
        for label, mean in (("blurry", 25.0), ("outputs other", 27.0))
    ]
    write_report(tmp_path, of_rows(rows, facts=FACTS | {"checkpoint": None, "grid": None}), [])
    page = (tmp_path / "report.html").read_text()
    assert "outputs other" in page and 'id="view"' not in page and "Evaluation of images" in page


def test_a_setting_that_cannot_be_judged_says_so_in_a_word_and_why(tmp_path):
    summary = summary_of()
    rows = [replace(row, verdict=row.verdict and Verdict("unknown", {}, "LPIPS is missing")) for row in summary.rows]
    write_report(tmp_path, replace(summary, rows=rows), [])
    page = (tmp_path / "report.html").read_text()
    assert page.count(">unknown<small>LPIPS is missing</small>") == len(summary.settings)


# The page, used

PROBE = """
<script>
addEventListener("load", function () {
  var seen = { violations: 0, errors: 0 };
  addEventListener("securitypolicyviolation", function () { seen.violations += 1; });
  addEventListener("error", function () { seen.errors += 1; });
  var table = document.getElementById("scores"), view = document.getElementById("view");
  function column(n) {
    return Array.from(table.tBodies[0].rows, function (row) { return row.cells[n].dataset.value; });
  }
  function press(n) { table.tHead.rows[0].cells[n].querySelector("button").click(); return column(n); }
  function change(id, value, kind) {
    var control = document.getElementById(id);
    control.value = value;
    control.dispatchEvent(new Event(kind || "change", { bubbles: true }));
  }
  seen.psnr = press(2); seen.again = press(2); seen.lpips = press(3); seen.setting = press(0);
  seen.state = Array.from(table.tHead.rows[0].cells, function (cell) { return cell.getAttribute("aria-sort"); });
  var shown = function (kind) { return getComputedStyle(table.querySelector("." + kind)).display; };
  seen.before = [shown("interval"), shown("difference")];
  document.getElementById("paired").click();
  seen.after = [shown("interval"), shown("difference")];
  function split() {
    return [document.getElementById("clip").style.clipPath, document.getElementById("line").style.left];
  }
  seen.middle = split(); change("where", 20, "input"); seen.moved = split();
  var box = view.getBoundingClientRect();
  function pointer(kind, target, share) {
    var at = { pointerId: 1, bubbles: true, clientX: box.left + share * box.width, clientY: box.top + 9 };
    target.dispatchEvent(new PointerEvent(kind, at));
  }
  view.setPointerCapture = function () {};
  pointer("pointerdown", document.getElementById("grip"), 0.2); pointer("pointermove", view, 0.75);
  pointer("pointerup", view, 0.75); pointer("pointermove", view, 0.1);
  seen.dragged = split();
  var left = document.getElementById("image-a");
  seen.source = left.src.slice(0, 23);
  document.getElementById("in").click(); document.getElementById("in").click();
  seen.zoomed = left.style.transform;
  view.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
  seen.panned = left.style.transform;
  var blurry = left.src; change("left", "sharp"); seen.changed = left.src !== blurry;
  seen.settings = Array.from(document.getElementById("setting").options, function (option) { return option.value; });
  seen.chosen = document.getElementById("setting").value;
  change("setting", seen.settings[1]);
  seen.about = document.getElementById("about").textContent;
  left.decode().then(function () {
    seen.size = [left.naturalWidth, left.naturalHeight];
    seen.fetched = performance.getEntriesByType("resource").map(function (entry) { return entry.name; })
      .filter(function (name) { return !name.startsWith("data:"); });
    document.body.innerHTML = "";
    var told = document.createElement("pre");
    told.id = "told"; told.textContent = JSON.stringify(seen);
    document.body.append(told);
  });
});
</script>
"""


def test_in_a_browser_the_table_sorts_the_slider_moves_and_nothing_is_fetched(folder, tmp_path, chromium):
    page = (folder / "report.html").read_text()
    (tmp_path / "probe.html").write_text(page.replace("</body>", PROBE + "</body>"))
    tab = chromium.new_page()
    tab.goto((tmp_path / "probe.html").as_uri())
    seen = json.loads(tab.wait_for_selector("#told", state="attached").text_content())
    tab.close()
    assert (seen["violations"], seen["errors"], seen["fetched"]) == (0, 0, [])
    summary = summary_of()
    psnr = [float(value) for value in seen["psnr"]]
    assert psnr == sorted(psnr, reverse=True) and psnr[0] == float("inf") and len(psnr) == len(summary.rows)
    assert [float(value) for value in seen["again"]] == psnr[::-1]
    lpips = [float(value) for value in seen["lpips"][:-1]]
    assert lpips == sorted(lpips) and seen["lpips"][-1] == ""  # what is missing is last
    assert seen["setting"][0] < seen["setting"][1] and seen["state"] == [
        "ascending",
        *[None] * (len(seen["state"]) - 1),
    ]
    assert (seen["before"], seen["after"]) == (["block", "none"], ["none", "block"])
    assert seen["middle"] == ["inset(0px 0px 0px 50%)", "50%"]
    assert seen["moved"] == ["inset(0px 0px 0px 20%)", "20%"]
    assert seen["dragged"] == ["inset(0px 0px 0px 75%)", "75%"]
    assert seen["source"] == "data:image/jpeg;base64," and seen["changed"] and seen["size"] == [200, 200]
    assert "scale(4)" in seen["zoomed"] and "scale(4)" in seen["panned"] and seen["zoomed"] != seen["panned"]
    kept = [row.label for row in summary.settings_front[:2]]
    assert seen["settings"] == kept and seen["chosen"] in kept
    assert seen["about"].startswith(f"clock/1, the best of {kept[1]}: PSNR (dB) 27.12, LPIPS (AlexNet) 0.1234")
