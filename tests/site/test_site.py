"""The built site in a real browser with the network off: what a reader sees."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from mhanw_core import claims

ROOT = Path(__file__).parents[2]
VIEWS = {"desktop": (1280, 900, "light"), "phone": (390, 844, "light"), "dark": (1280, 900, "dark")}
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
BLOCKED = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
PAGES = ["index", "bibliography"] + [
    f"chapters/{path.stem}" for path in sorted((ROOT / "chapters").glob("*.md"))
]
CHAPTERS = [page for page in PAGES if re.match(r"chapters/\d", page)]


def claims_of(page: str) -> list[str]:
    """Claims that the register gives to a chapter, by its page."""
    number = int(page.split("/")[1].partition("_")[0])
    return [row.id for row in claims.load().values() if row.chapter == number]


def formulas(page: str) -> int:
    """Formulas that the prose, the SymPy steps and the cards of a chapter hold."""
    twin = json.loads((ROOT / f"{page}.ipynb").read_text("utf-8"))
    count = 0
    for cell in twin["cells"]:
        if cell["cell_type"] == "markdown":
            prose, displayed = re.subn(r"\$\$.+?\$\$", "", "".join(cell["source"]), flags=re.S)
            count += displayed + len(re.findall(r"(?<![\\$])\$(?!\s)[^$]+\$", prose))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            count += len(re.findall(r"\$[^$]+\$|\\\(", "".join(data.get("text/html", ""))))
            count += "text/latex" in data and "text/html" not in data
    return count


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as readers build it: warnings are errors."""
    out = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(ROOT)]
    options = ["--path-output", str(out), "-W", "-n", "--keep-going", "--all"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out / "_build" / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """A local server of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Keep the test's output to the tests."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Chromium with no network but this machine."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        problem = "Chromium or its driver is absent (Debian: apt install chromium chromium-driver)."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in (*FLAGS, BLOCKED, profile):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_page_load_timeout(60)
    yield chrome
    chrome.quit()


def open_page(browser: webdriver.Chrome, url: str, view: str) -> None:
    """Open a page in a view, and wait until its equations are typeset."""
    width, height, scheme = VIEWS[view]
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": view == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(url)
    ready = "return !document.querySelector('.math') || !!window.MathJax?.startup?.promise"
    WebDriverWait(browser, 30).until(lambda b: b.execute_script(ready))
    browser.execute_async_script(
        "const done = arguments[0];"
        "document.querySelectorAll('img').forEach(i => i.loading = 'eager');"
        "(window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => setTimeout(done, 300))"
    )
    if folder := os.environ.get("MHANW_SCREENSHOTS"):
        name = url.rpartition("/")[2].removesuffix(".html")
        browser.save_screenshot(str(Path(folder) / f"{name}-{view}.png"))


def hosts(browser: webdriver.Chrome) -> set[str]:
    """Hosts that the page asked since the last call."""
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = [m["params"]["request"]["url"] for m in sent]
    return {match[1] for url in urls if (match := re.match(r"(?:https?|wss?)://([^:/]+)", url))}


LOOK = """
const all = q => [...document.querySelectorAll(q)];
const text = all('.cell_input pre').reduce(
  (rest, code) => rest.replace(code.innerText, ''), document.querySelector('article').innerText);
const wide = e => e.getBoundingClientRect().right > innerWidth + 1;
return {
  equations: all('mjx-container').length, places: all('article .math').length,
  broken: all('mjx-merror').length, raw: (text.match(/\\\\\\(|\\$|\\\\frac|\\{cite/g) || []),
  blind: all('article img').filter(i => (i.alt || '').length < 20).length,
  unloaded: all('article img').filter(i => !i.naturalWidth).length,
  images: all('article img').length, cards: all('.mhanw-card').length,
  red: all('.mhanw-red').length, width: document.documentElement.scrollWidth,
  window: innerWidth, wide: all('article img').filter(wide).length,
  titles: all('article h1').length,
};
"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", PAGES)
def test_page_is_whole(browser: webdriver.Chrome, address: str, page: str, view: str) -> None:
    open_page(browser, f"{address}/{page}.html", view)
    seen = browser.execute_script(LOOK)
    assert seen["titles"] == 1
    assert seen["equations"] >= seen["places"]
    assert (seen["broken"], seen["raw"], seen["red"]) == (0, [], 0)
    assert (seen["blind"], seen["unloaded"], seen["wide"]) == (0, 0, 0)
    assert seen["width"] <= seen["window"] + 1
    assert hosts(browser) <= {"127.0.0.1"}
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


@pytest.mark.parametrize("page", CHAPTERS)
def test_chapter_shows_equations_figures_and_cards(
    browser: webdriver.Chrome, address: str, page: str
) -> None:
    open_page(browser, f"{address}/{page}.html", "desktop")
    seen = browser.execute_script(LOOK)
    assert seen["equations"] >= formulas(page) > 50
    assert seen["images"] >= 4
    assert seen["cards"] == len(claims_of(page))


CONTRAST = """
const light = c => { const v = c.map(x => x / 255)
  .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const rgb = s => s.match(/[\\d.]+/g).map(Number);
const ground = e => { while (e) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0.99) return c.slice(0, 3); e = e.parentElement; }
  return [255, 255, 255]; };
const words = ['p', 'td', 'th', 'span.mhanw-place']
  .map(t => `.mhanw-card ${t}, .mhanw-ledger ${t}`).join();
return [...document.querySelectorAll(words)]
  .map(e => { const a = light(rgb(getComputedStyle(e).color).slice(0, 3)), b = light(ground(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
"""


@pytest.mark.parametrize("view", ["desktop", "dark"])
@pytest.mark.parametrize("page", [CHAPTERS[0], "chapters/ledger"])
def test_cards_are_legible(browser: webdriver.Chrome, address: str, page: str, view: str) -> None:
    open_page(browser, f"{address}/{page}.html", view)
    contrasts = browser.execute_script(CONTRAST)
    assert len(contrasts) > 50
    assert min(contrasts) >= 4.5


def test_solutions_unfold(browser: webdriver.Chrome, address: str) -> None:
    open_page(browser, f"{address}/{CHAPTERS[0]}.html", "desktop")
    toggle = "const b = document.querySelector('.solution button.toggle-button'); b.click();"
    before, after = (
        browser.execute_script(f"{act} return document.querySelectorAll('.toggle-hidden').length")
        for act in ("", toggle)
    )
    assert after == before - 1


def test_no_page_names_a_foreign_script_or_style(site: Path) -> None:
    tag = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"'](https?:)?//[^\"']+")
    found = {p.name: m[0] for p in site.rglob("*.html") if (m := tag.search(p.read_text()))}
    assert found == {}


def test_ledger_leads_to_every_card(site: Path) -> None:
    text = (site / "chapters" / "ledger.html").read_text()
    links = re.findall(r'href="([\w.]+)#(claim-[\w-]+)"', text)
    assert len(links) == sum(len(claims_of(page)) for page in CHAPTERS)
    for page, anchor in links:
        assert f'id="{anchor}"' in (site / "chapters" / page).read_text()
