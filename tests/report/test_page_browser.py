"""The page in a real browser: headless Chromium, driven by selenium."""

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiments.reproduce.test_ladder import rows as ladder_rows

from dape.report.page import Claim, Maps, Section, build_page
from dape.results.paper import load
from dape.results.records import Row, read_rows

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver here (Debian: apt install chromium chromium-driver)"
)
pytest.importorskip("selenium", reason="pip install selenium")
pytest.importorskip("vl_convert", reason="pip install 'dape[report]'")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

RESULTS = Path(__file__).parents[2] / "results"
SCRIPT = "</script><script>document.title='taken over'</script>"
IMAGE = "<img src=x onerror=\"document.title='taken over'\">"
FRAMES = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(true)))"


class Browser:
    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # With both paths given, selenium has nothing to look for on the network.
        self._driver = webdriver.Chrome(options, Service(str(DRIVER)))
        self.command, self.run = self._driver.execute_cdp_cmd, self._driver.execute_script

    def close(self) -> None:
        self._driver.quit()

    def open(self, page: Path, *, width: int = 1200, scheme: str = "light") -> None:
        """At this width, in colours as the system would ask for them; waits for the first charts."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.command("Emulation.setEmulatedMedia", media)
        self.console()
        self._driver.get(page.resolve().as_uri())
        self.run("localStorage.clear()")
        self.command("Page.bringToFront", {})
        self.until("return document.hasFocus()")

    def frame(self) -> None:
        """Wait until the page has drawn itself again: what is scrolled or pressed before that may not count."""
        self._driver.execute_async_script(FRAMES)

    def count(self, selector: str) -> int:
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def until(self, script: str, *arguments: Any) -> Any:
        """What the script gives, as soon as that is true."""
        end = time.monotonic() + 60
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"never true: {script}; {self.console()}"
            time.sleep(0.05)
        return found

    def becomes(self, script: str, expected: Any, *arguments: Any) -> None:
        """Wait until the script gives this: what a key or a click does may be seen later than it returns."""
        end = time.monotonic() + 60
        while (found := self.run(script, *arguments)) != expected:
            assert time.monotonic() < end, f"{script}: {found}, expected {expected}; {self.console()}"
            time.sleep(0.05)

    def show(self, selector: str) -> None:
        self.run(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector
        )

    def click(self, selector: str) -> None:
        self.show(selector)
        self._driver.find_element(By.CSS_SELECTOR, selector).click()

    def focus(self, selector: str) -> None:
        self.show(selector)
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def press(self, key: str) -> None:
        ActionChains(self._driver).send_keys(key).perform()

    def point_at(self, selector: str, across: float) -> None:
        """Move the pointer to the middle height of an element, at this share of its width."""
        self.frame()
        measure = "const r = document.querySelector(arguments[0]).getBoundingClientRect()"
        measure += "; return [r.x, r.y, r.width, r.height]"
        left, top, width, height = self.run(measure, selector)
        for before in (8, 0):
            where = {"x": left + across * width - before, "y": top + height / 2}
            self.command("Input.dispatchMouseEvent", {"type": "mouseMoved", **where})

    def console(self) -> list[str]:
        """What was logged since the last call."""
        return [f"{e['level']} {e['message']}" for e in self._driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Everything a page can have, and names that try to leave it."""
    verdicts = ["holds (significant)", "fails", "fails", "not tested"]
    plain = [{"id": f"C{n}", "statement": IMAGE, "ours": {"verdict": verdict}} for n, verdict in enumerate(verdicts)]
    sections = [
        Section("Comparison", [SCRIPT], read_rows(RESULTS / "compare/results.jsonl"), load("A3")),
        Section("Tasks", [], read_rows(RESULTS / "che/batch-32/results.jsonl"), load("A2")),
        Section("Recall", [], read_rows(RESULTS / "probe/results.jsonl")),
        Section(SCRIPT, [IMAGE], odd_rows(), [], [Claim.from_plain(claim) for claim in plain], maps()),
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(build_page(sections, "Everything"), encoding="utf-8")
    return path


def odd_rows() -> list[Row]:
    values = {
        "rope": [9.0, math.inf, math.nan],
        SCRIPT: [8.0, 8.5, 9.0],
        IMAGE: [7.0, 1e9, 7.5],
        "title": [6.0, 6.1, 6.2],
    }
    common = {"seed": 0, "train_length": 64, "metric": "perplexity", "scored_tokens": 10, "protocol": "last_k"}
    return [
        Row(run=method, method=method, length=64 * 2**place, value=value, data_hash="x", **common)
        for method, by_length in values.items()
        for place, value in enumerate(by_length)
    ]


def maps() -> Maps:
    """Every value tells where it is: layer + head / 10."""
    shape = (2, 3, 4, 32)
    _, layer, head, _ = np.indices(shape)
    values = layer + 1 + (head + 1) / 10
    weights = np.zeros(shape)
    weights[..., 5] = values[..., 5] / 10
    terms = {"scores": values, "bias": -values, "f": 2 * values, "logits": 2 * values, "weights": weights}
    return Maps(
        method=SCRIPT,
        length=32,
        query=32,
        layers=(1, 2, 3),
        heads=(1, 2, 3, 4),
        samples=(("first", IMAGE), ("second", "plain text")),
        lags=np.arange(32)[::-1],
        terms=terms,
        heads_summary=[{"layer": 1, "head": 2, "share": 0.5}],
    )


DRAWN = "return [...document.querySelectorAll(arguments[0])].every(f => f.querySelector('svg') && !f.ariaBusy)"
LINES = "return document.querySelectorAll(arguments[0] + ' .mark-line path').length"
FIRST = "#s1 .block figure.curves"


def drawn(browser: Browser, selector: str) -> None:
    browser.show(selector)
    browser.until("return document.querySelectorAll(arguments[0]).length > 0", selector)
    browser.until(DRAWN, selector)


def test_every_chart_is_drawn_and_nothing_is_logged(browser, page):
    browser.open(page)
    for selector in (
        FIRST,
        "#s2 figure.map",
        "#s2 figure.lengths",
        "#s3 figure.curves",
        "#s3 figure.places",
        "#s4 figure",
    ):
        drawn(browser, selector)
    browser.becomes(LINES, 7, f"{FIRST} [data-name=ours]")
    browser.becomes(LINES, 8, f"{FIRST} [data-name=paper]")
    assert browser.count("#s2 figure.map .mark-rect path") >= 17
    tasks = {row.extra["task"] for row in read_rows(RESULTS / "che/batch-32/results.jsonl")}
    assert browser.count("#s2 figure.lengths svg") == len(tasks) and browser.count("#s3 figure.places svg") == 12
    assert browser.console() == []
    assert browser.run("return document.title") == "Everything" and browser.count("img") == 0


def test_what_is_not_finite_is_marked_on_the_chart(browser, page):
    browser.open(page)
    drawn(browser, "#s4 figure.curves")
    texts = browser.run(
        "return [...document.querySelectorAll('#s4 figure.curves .mark-text.role-mark text')].map(t => t.textContent)"
    )
    assert sorted(texts) == sorted(["∞", "NaN", "↑"])


def test_a_method_can_be_switched_off_and_on(browser, page):
    browser.open(page)
    drawn(browser, FIRST)
    ours = f"{FIRST} [data-name=ours]"
    browser.becomes(LINES, 7, ours)
    axis = "return document.querySelector(arguments[0] + ' .role-axis-label').textContent"
    before = browser.run(axis, ours)
    browser.click('#s1 .chip[data-series="rope"]')
    browser.becomes(LINES, 6, ours)
    assert browser.run("return document.querySelector('#s1 .chip[data-series=rope]').ariaPressed") == "false"
    browser.focus('#s1 .chip[data-series="rope"]')
    browser.press(Keys.ENTER)
    browser.becomes(LINES, 7, ours)
    browser.becomes(axis, before, ours)


def test_ours_the_paper_and_both(browser, page):
    browser.open(page)
    drawn(browser, FIRST)
    hidden = "return [...document.querySelectorAll(arguments[0])].map(e => e.hidden)"
    browser.run("document.querySelector('#s1 .switch input[value=ours]').click()")
    browser.until("return document.querySelector(arguments[0] + ' [data-name=paper]').hidden", FIRST)
    assert browser.run(hidden, "#s1 .of-ours, #s1 .of-paper") == [False, True]
    title = "return document.querySelector(arguments[0]).textContent.includes(arguments[1])"
    browser.until(title, f"{FIRST} [data-name=ours]", "context length (tokens)")
    browser.run("document.querySelector('#s1 .switch input[value=both]').click()")
    browser.until(title, f"{FIRST} [data-name=ours]", "length / training length")
    assert browser.run(hidden, "#s1 .of-ours, #s1 .of-paper") == [False, False]


def test_values_at_the_pointer_and_by_arrow_keys_are_plain_text(browser, page):
    browser.open(page)
    drawn(browser, "#s4 figure.curves")
    browser.focus("#s4 figure.curves .drawing")
    browser.press(Keys.RIGHT)
    browser.press(Keys.RIGHT)
    tip = "const tip = document.getElementById('tip'); const said = tip.hidden ? '' : tip.innerText;"
    shown = browser.until(f"{tip} return said.startsWith('128 tokens') && said")
    assert SCRIPT in shown and IMAGE in shown and "inf" in shown
    browser.point_at("#s4 figure.curves .drawing svg", 0.97)
    browser.until("return document.getElementById('tip').innerText.startsWith('256 tokens')")
    assert browser.console() == [] and browser.run("return document.title") == "Everything"


def test_a_table_sorts_by_click_and_by_key(browser, page):
    browser.open(page)
    table = "#s1 .of-ours table"
    column = f"return [...document.querySelectorAll('{table} tbody tr')].map(r => Number(r.cells[2].dataset.sort))"
    header = f"{table} thead th:nth-child(3)"
    values = browser.run(column)
    assert values != sorted(values)
    browser.click(f"{header} button")
    browser.becomes(column, sorted(values))
    assert browser.run(f"return document.querySelector('{header}').ariaSort") == "ascending"
    browser.press(Keys.ENTER)  # the button has the focus
    browser.becomes(column, sorted(values, reverse=True))
    odd = "#s4 .of-ours table"
    words = f"return [...document.querySelectorAll('{odd} tbody tr')].map(r => r.cells[arguments[0]]"
    words += ".innerText.split(/\\s/)[0])"
    browser.click(f"{odd} thead th:nth-child(4) button")
    browser.becomes(words, ["6.100", "8.500", "1.0e9", "inf"], 3)
    browser.click(f"{odd} thead th:nth-child(5) button")
    browser.press(Keys.ENTER)
    browser.becomes(words, ["9.000", "7.500", "6.200", "nan"], 4)


def test_claims_are_filtered_by_verdict(browser, page):
    browser.open(page)
    shown = "return [...document.querySelectorAll('.claims tbody tr')].filter(r => r.offsetParent).length"
    browser.becomes(shown, 4)
    browser.click('.claims button[data-verdict="fails"]')
    browser.becomes(shown, 2)
    assert browser.run("return document.querySelector('.claims [data-count]').textContent") == "2 of 4 shown"
    browser.click('.claims button[data-verdict="fails"]')
    browser.becomes(shown, 4)


def test_the_explorer_moves_by_keys_and_by_choice(browser, page):
    browser.open(page)
    drawn(browser, ".explorer figure")
    said = "return document.querySelector('.explorer [data-said]').textContent"
    browser.until("return document.querySelectorAll('.explorer .terms .mark-line path').length === 4")
    assert browser.run(said).startswith("Layer 1, head 1, first: largest weight 0.11 at distance 26; A 1.1 to 1.1")
    browser.focus(".explorer figure")
    for key in (Keys.RIGHT, Keys.RIGHT, Keys.DOWN):
        browser.press(key)
    browser.until(f"{said}.startsWith('Layer 2, head 3, first: largest weight 0.23 at distance 26; A 2.3 to 2.3')")
    choose = (
        "const s = document.querySelector('.explorer select[data-pick=' + arguments[0] + ']'); s.value = arguments[1];"
    )
    browser.run(f"{choose} s.dispatchEvent(new Event('change'))", "sample", "1")
    browser.until(f"{said}.includes('second')")
    assert browser.run("return document.querySelector('.explorer [data-text]').textContent") == "plain text"
    browser.click('.explorer [data-term="bias"]')
    browser.until("return document.querySelectorAll('.explorer .terms .mark-line path').length === 3")
    browser.run(f"{choose} s.dispatchEvent(new Event('change'))", "across", "key")
    browser.until("return document.querySelector('.explorer .weights').textContent.includes('position of the key')")
    browser.show(".explorer .weights")
    browser.point_at(".explorer .weights svg", 0.98)
    browser.until("return document.getElementById('tip').innerText.includes('distance 0, key 32')")
    assert browser.console() == []


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser, page):
    browser.open(page, width=390)
    for selector in (FIRST, "#s2 figure.map", "#s3 figure.curves", "#s4 figure"):
        drawn(browser, selector)
    widths = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert widths[0] <= widths[1] <= 390


def test_the_ladder_of_evidence_is_drawn(browser, tmp_path):
    rungs = [Section(str(n), [], ladder_rows(tokens=n)) for n in (2_000_000, 8_192_000)]
    path = tmp_path / "report.html"
    path.write_text(build_page(rungs, "Rungs"), encoding="utf-8")
    browser.open(path, width=390)
    drawn(browser, "#s1 figure.ladder")
    # stdlib at 1x and at 16x over two rungs; a line of one rung, such as the paper's, is a path without length
    browser.becomes(LINES, 4, "#s1 figure.ladder")
    widths = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert widths[0] <= widths[1] <= 390
    assert browser.console() == []


def test_colours_follow_the_system_until_they_are_chosen(browser, page):
    browser.open(page, scheme="dark")
    theme = "return document.documentElement.dataset.theme"
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(theme) == "dark"
    dark = browser.run(ground)
    browser.click("[data-theme-button]")
    browser.becomes(theme, "light")
    assert browser.run(ground) != dark
    drawn(browser, FIRST)
    assert browser.console() == []


def test_nothing_is_requested(browser, page):
    """And the policy would not let it."""
    browser.open(page)
    drawn(browser, FIRST)
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    browser.run("const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i)")
    browser.until("return document.images.length")
    assert any("Content Security Policy" in line for line in browser.console())
    browser.run("const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s)")
    assert browser.run("return window.ran") is None


def test_tab_reaches_the_controls_in_order(browser, page):
    """The page itself notes what gets the focus: asked between two keys on a busy machine, it may be one key behind,
    and the next answer then two keys further."""
    browser.open(page)
    drawn(browser, FIRST)
    browser.frame()
    # Since Chromium 150 Tab goes on from what was scrolled to, not from the beginning.
    browser.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    browser.run(NOTE_FOCUS)
    wanted = ["To the results", "Comparison", "dark", "both", "rope", "all"]
    seen: list[str] = []
    while wanted[-1] not in seen and len(seen) < 40:
        browser.press(Keys.TAB)
        seen = browser.until("return window.reached.length > arguments[0] && window.reached", len(seen))
    order = [seen.index(text) for text in wanted]
    assert order == sorted(order) and order[0] == 0, seen


NOTE_FOCUS = """
window.reached = [];
document.addEventListener("focusin", (event) => {
  const e = event.target;
  window.reached.push((e.innerText || e.value || "").trim());
});
"""


def test_without_scripts_tables_and_claims_are_there(browser, page):
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page, scheme="dark")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", {"value": False})
    assert browser.count("svg.marks") == 0 and browser.count("#s1 .of-ours tbody tr") == 7
    hidden = "return [...document.querySelectorAll('.needs-script')].every(e => e.offsetParent === null)"
    assert browser.run(hidden) and "6.421" in browser.run("return document.body.innerText")
    stroke = "return getComputedStyle(document.querySelector('#s1 .swatch line')).stroke"
    assert browser.run(stroke) == "rgb(232, 232, 232)", "on a dark page rope's line is light"


# Hostile names -------------------------------------------------------------------------------------------------------

HOSTILE = [
    "</script><script>window.taken=1</script>",
    "<!--<script>window.taken=2",
    "\"><img src=x onerror='window.taken=3'>",
    "' onfocus='window.taken=4' autofocus tabindex='0",
    "javascript:window.taken=5//",
    "]]></style><svg onload=window.taken=6>",
    "}</style><style>body{display:none}",
    "{{ 7 * 7 }} {% raw %} ${window.taken=8}",
    "datum.constructor.constructor('window.taken=9')()",
    "'+(window.taken=10)+'",
    "line\u2028separator\u2029and\u0000zero\u202eoverride",
    "constructor",
    "__proto__",
    "a\\'];window.taken=11;//",
    "url(http://127.0.0.1:9/x)",
]
"""Text of somebody who wants the page to run it: HTML, attributes, links, CSS, templates, expressions of Vega."""


def hostile_rows(metric: str, protocol: str, **extra: Any) -> list[Row]:
    """Every text that a row can have."""
    return [
        Row(
            run=f"{name} {length}",
            method=name,
            variant=name,
            seed=0,
            train_length=64,
            length=length,
            metric=metric,
            value=0.5 + place / 100,
            scored_tokens=9,
            protocol=protocol,
            data_hash=name,
            mode=name,
            tokenizer=name,
            note=name,
            extra={
                name: name,
                "href": "javascript:window.taken=12",
                "tooltip": {"signal": "window.taken=13"},
                **extra,
                "data": name,
            },
        )
        for place, name in enumerate(HOSTILE)
        for length in (64, 128)
    ]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    def claim(name: str) -> Claim:
        side = {"verdict": name, "detail": name}
        return Claim.from_plain({"id": name, "statement": name, "source": name, "ours": side, "paper": side})

    def taken(name: str) -> Maps:
        plain, summary = maps(), [{name: name, "layer": name, "head": 2}]
        texts = tuple((each, each) for each in HOSTILE[:2])
        return replace(
            plain, method=name, samples=texts, formulas=dict.fromkeys(plain.terms, name), heads_summary=summary
        )

    claims = [claim(name) for name in HOSTILE]
    of_tasks = [row for name in HOSTILE[:4] for row in hostile_rows("accuracy", "che", task=name)]
    sections = [
        Section(
            HOSTILE[0], HOSTILE, hostile_rows("perplexity", "last_k"), [], claims, taken(HOSTILE[0]), warnings=HOSTILE
        ),
        Section(HOSTILE[2], HOSTILE, of_tasks, [], [], taken(HOSTILE[3]), source=HOSTILE[2]),
        *(Section(name, [name], hostile_rows(name, name), [], source=name) for name in HOSTILE[3:]),
    ]
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(build_page(sections, HOSTILE[0]), encoding="utf-8")
    return path


def test_hostile_names_in_every_field_are_text(browser, hostile):
    browser.open(hostile)
    for place in range(1, 1 + browser.count("main > section")):  # charts are drawn when they come into sight
        browser.show(f"#s{place}")
        browser.frame()
    browser.click("#s1 .of-ours table thead th:nth-child(3) button")
    assert browser.console() == []
    assert browser.run("return window.taken") is None and browser.run("return document.title") == HOSTILE[0]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.outerHTML.slice(0, 150))"
    selector = "img, iframe, object, embed, base, link[href], [onerror], [onload], [onfocus]"
    assert browser.run(script, selector) == []
    addresses = browser.run("return [...document.querySelectorAll('[href], [src]')].map(e => e.getAttribute('href'))")
    assert all(address.startswith("#") for address in addresses)
    body = browser.run("return document.body.textContent")
    for name in HOSTILE:
        assert name.replace("\0", "\ufffd") in body or name in body, name
