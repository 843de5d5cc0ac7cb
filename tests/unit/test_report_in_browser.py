"""Pages of measurements in Debian's Chromium, offline, as a person meets them: shown, sorted, printed, in the dark, on a phone."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_report as report
from ansible.module_utils import sglang_runs
from test_sglang_report import CPU_NEW, CPU_OLD, LAYOUTS, page_of, sample

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed (apt install chromium)")

# Contrast of each text with what is behind it (WCAG 2.1, 1.4.3), the texts below 4.5 : 1; charts' words are told by their fill.
CONTRAST = """() => {
  const light = (c) => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const luminance = (rgb) => 0.2126 * light(rgb[0]) + 0.7152 * light(rgb[1]) + 0.0722 * light(rgb[2]);
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return parts(getComputedStyle(document.body).backgroundColor);
  };
  const found = { seen: 0, low: [] };
  for (const node of document.querySelectorAll("main *")) {
    const words = [...node.childNodes].filter((n) => n.nodeType === 3 && n.textContent.trim());
    if (!words.length || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const one = luminance(parts(node.closest("svg") ? style.fill : style.color)), other = luminance(behind(node));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.seen += 1;
    if (ratio < 4.5) found.low.push([node.textContent.trim().slice(0, 40), ratio]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # No sandbox: tests may run as root, and the pages are the project's own.
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield running
        running.close()


def comparison() -> str:
    runs = [sample(CPU_OLD), sample(CPU_NEW)]
    return report.comparison_page(sglang_runs.compare(copy.deepcopy(runs)), runs)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every layout's page and a comparison, as files."""
    folder = tmp_path_factory.mktemp("pages")
    pages = {**{name: page_of(name) for name in LAYOUTS}, "comparison": comparison()}
    found = {name: folder / f"{name}.html" for name in pages}
    for name, path in found.items():
        path.write_text(pages[name], encoding="utf-8")
    return found


Open = Callable[..., Any]


@pytest.fixture
def shown(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """Opens a page without a network; an error on its console or a request beside the page fails the test."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def dialogs(dialog: Any) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open_page(name: str, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda message: wrong.append(f"console: {message.text}") if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        page.on(
            "request",
            lambda request: wrong.append(f"request: {request.url}") if request.url != files[name].as_uri() else None,
        )
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
        page.on("dialog", dialogs)
        page.goto(files[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [line for line in wrong if "data:," not in line] == []


PAGES = [*LAYOUTS, "comparison"]


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_and_nothing_goes_wrong(shown: Open, files: dict[str, Path], name: str) -> None:
    page = shown(name)
    assert page.locator("h1").is_visible()
    assert page.locator("h1").inner_text().strip()
    assert files[name].stat().st_size < 2_000_000


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_the_page_itself_never_scrolls_sideways(shown: Open, name: str, width: int) -> None:
    page = shown(name, width)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_are_seen_with_their_words(shown: Open) -> None:
    for width in (360, 1200):
        page = shown("h200", width)
        panels = page.locator("svg.panel")
        assert panels.count() == 6
        for panel in panels.all():
            box = panel.bounding_box()
            assert box and box["width"] > 250 and box["height"] > 120
            assert panel.locator("text").count() >= 5
        words = page.locator("svg.panel text").all_text_contents()
        assert {"output", "total", "64", "limit 700 W"} <= {word.strip() for word in words}
        smallest = page.evaluate(
            "Math.min(...[...document.querySelectorAll('svg.panel text')].map((t) => t.getBoundingClientRect().height))"
        )
        assert smallest >= 7, "readable on a phone"


def column(page: Any, place: int) -> list[str]:
    return page.locator(f"#loads ~ .scroll tbody tr > :nth-child({place})").all_inner_texts()


def numbers(cells: list[str]) -> list[float]:
    return [float(re.sub(r"[,\s]|±.*", "", cell)) for cell in cells if cell.strip() != "–"]


def test_a_click_sorts_numbers_as_numbers_and_what_is_missing_last(shown: Open) -> None:
    page = shown("eight_cards")
    before = column(page, 3)
    assert numbers(before) != sorted(numbers(before))
    head = page.locator("#loads ~ .scroll thead tr:last-child th").nth(2)
    assert head.get_attribute("aria-sort") == "none"
    for state, backwards in (("ascending", False), ("descending", True)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == state
        cells = column(page, 3)
        assert numbers(cells) == sorted(numbers(before), reverse=backwards)
        assert [cell.strip() for cell in cells[-2:]] == ["–", "–"]
        assert page.locator("#loads ~ .scroll th[aria-sort]:not([aria-sort=none])").count() == 1


def test_rows_stay_whole_when_they_are_sorted(shown: Open) -> None:
    page = shown("forty")
    rows = page.locator("#loads ~ .scroll tbody tr").all_inner_texts()
    page.locator("#loads ~ .scroll thead button").nth(0).click()
    page.locator("#loads ~ .scroll thead button").nth(0).click()
    after = page.locator("#loads ~ .scroll tbody tr").all_inner_texts()
    assert sorted(after) == sorted(rows)
    assert [int(cell.replace(",", "")) for cell in column(page, 1)] == [13 * place for place in range(40, 0, -1)]


def test_the_keyboard_sorts(shown: Open) -> None:
    page = shown("eight_cards")
    button = page.locator("#loads ~ .scroll thead button").nth(0)
    page.locator("#loads ~ .scroll").focus()
    page.keyboard.press("Tab")
    assert button.evaluate("(node) => node === document.activeElement")
    page.keyboard.press("Enter")
    assert numbers(column(page, 1)) == sorted(numbers(column(page, 1)))
    page.keyboard.press("Space")
    assert numbers(column(page, 1)) == sorted(numbers(column(page, 1)), reverse=True)
    assert page.locator("#loads ~ .scroll thead tr:last-child th").nth(0).get_attribute("aria-sort") == "descending"


def test_the_filter_leaves_the_arguments_that_are_asked_for(shown: Open) -> None:
    page = shown("h200")
    page.locator("summary", has_text="Server arguments").click()
    page.get_by_label("Filter").fill("moe back")
    seen = [row for row in page.locator("#resolved tr").all() if row.is_visible()]
    assert 0 < len(seen) < 20
    assert all("moe" in row.inner_text() and "back" in row.inner_text() for row in seen)
    assert page.locator("#resolved-count").inner_text().startswith(f"{len(seen)} of ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["eight_cards", "h200", "comparison"])
def test_every_text_has_contrast(shown: Open, name: str, scheme: str) -> None:
    page = shown(name, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    found = page.evaluate(CONTRAST)
    assert found["seen"] > 100
    assert found["low"] == []


def test_the_dark_is_dark(shown: Open) -> None:
    def colours(scheme: str) -> tuple[str, str]:
        page = shown("h200", color_scheme=scheme)
        line = "getComputedStyle(document.querySelector('svg.panel path[clip-path]')).stroke"
        return page.evaluate("getComputedStyle(document.body).backgroundColor"), page.evaluate(line)

    light, dark = colours("light"), colours("dark")
    assert light[0] == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", dark[0]))) < 40
    assert light[1] != dark[1]


@pytest.mark.parametrize("name", PAGES)
def test_paper_gets_the_whole_page(shown: Open, name: str) -> None:
    page = shown(name, 690, color_scheme="dark")
    pdf = page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF") and len(pdf) > 10_000
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('details:not([open]):not(.long)').length") == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # A4 without its margins is 695 pixels wide: no table is cut.
    assert page.evaluate("document.documentElement.scrollWidth") <= 695
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[open]').length") == 0


def test_hostile_text_is_text(shown: Open) -> None:
    page = shown("hostile")
    assert "<script>alert(1)</script>" in page.locator("h1").inner_text()
    assert page.locator("script").count() == 1
