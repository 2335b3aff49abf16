"""The page as text: what is in it, that its numbers are those of the statistics, that no data is taken as HTML."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.reproduce.test_ladder import rows as ladder_rows

from dape.evaluation.chomsky_scores import summarise
from dape.experiments.reproduce.ladder import RUNG_HEADS, TEST_HEADS
from dape.report.page import Claim, Maps, Section, build_page
from dape.report.page.build import MARKERS
from dape.report.page.curves import curve_block, effect, in_short
from dape.report.page.explorer import explorer_of, kept_keys
from dape.report.page.panels import split
from dape.report.page.tasks import task_block
from dape.results.numbers import as_text, deviation
from dape.results.paper import load
from dape.results.records import Row, read_rows
from dape.results.statistics import arrange, compare
from dape.tasks.chomsky.config import CheConfig

pytest.importorskip("vl_convert", reason="pip install 'dape[report]'")

RESULTS = Path(__file__).parents[2] / "results"
SCRIPT, IMAGE = "</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """Elements and their text, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._cell = self._script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._script = False
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        if self._script:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._cell:
            self.tables[-1][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def table(self, first: str) -> dict[str, list[str]]:
        """Cells by first column of the first table that begins with this header."""
        found = next(table for table in self.tables if table[0][0] == first)
        return {line[0].strip(): [" ".join(cell.split()) for cell in line[1:]] for line in found}


@pytest.fixture(scope="module")
def compared() -> list[Row]:
    return read_rows(RESULTS / "compare/results.jsonl")


def test_a_page_stands_alone(compared):
    """No reference to the outside, and only the scripts that belong to it may run."""
    page = Page(build_page([Section("A", ["about"], compared, load("A3"))], "Title"))
    assert page.text.startswith("<!DOCTYPE html>")
    assert not page.all("link") and not page.all("img") and not page.all("iframe")
    assert not [a for a in page.all("script") if "src" in a]
    assert all((a.get("href") or "").startswith("#") for a in page.all("a"))
    policy = next(m["content"] or "" for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = policy.split("; ")[1]
    assert "unsafe" not in scripts and "http" not in policy
    running = [text for attributes, text in page.scripts if "type" not in attributes]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running}
    assert set(re.findall("sha256-([^']+)", scripts)) == hashes and len(hashes) == 4
    assert len(page.text) < 1_300_000


def test_everything_that_came_from_data_is_escaped(make_rows):
    rows = make_rows(
        {SCRIPT: {128: 3.0, 256: 4.0}, IMAGE: {128: 5.0}}, note=IMAGE, extra={"reduced": IMAGE, "cpu": SCRIPT}
    )
    rows += make_rows(
        {SCRIPT: {41: 0.5, 20: 0.4}}, protocol="che", metric="accuracy", extra={"task": SCRIPT, "lr": 0.1}
    )
    claim = Claim.from_plain({"id": IMAGE, "statement": SCRIPT, "ours": {"verdict": IMAGE, "detail": SCRIPT}})
    maps = small_maps(text=SCRIPT, method=IMAGE, summary=[{IMAGE: SCRIPT}])
    section = Section(SCRIPT, [IMAGE], rows, [], [claim], maps, source=IMAGE, warnings=[SCRIPT])
    page = Page(build_page([section], SCRIPT))
    assert not page.all("img")
    running = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(running) == 4
    ours = page.text
    for script in running:
        ours = ours.replace(script, "")
    assert "alert(1)</script>" not in ours and "<img" not in ours and "alert(1)" in ours
    data = [text for attributes, text in page.scripts if attributes.get("type") == "application/json"]
    assert all("<" not in text for text in data)
    assert any(SCRIPT in json.dumps(json.loads(text)) for text in data)  # still there, and still the same text


def test_the_table_has_the_numbers_of_the_statistics(compared):
    table = Page(build_page([Section("A", rows=compared)], "T")).table("method")
    results = arrange(compared)
    tests = {(t.method, t.length): t for t in compare(results)}
    for method in results.methods:
        seeds, *cells = table[method]
        assert seeds == "3"
        for length, cell in zip(results.lengths, cells, strict=True):
            found = results.spread(method, length)
            assert cell.startswith(f"{as_text(found.mean)} ± {deviation(found.std, found.mean)}")
            test = tests.get((method, length))
            assert ("*" in cell) == bool(test and (test.p_holm or 0) < 0.05)
            lowest = min(results.spread(m, length).mean for m in results.methods)
            assert ("best" in cell) == (found.mean == lowest)
    assert "*" in table["dape-fire"][3]  # 256 tokens: the one difference that is significant after Holm


def test_every_test_is_told_with_n_effect_and_interval(compared):
    block = curve_block(split(compared)[0], [])
    tests = compare(arrange(compared))
    (_, table) = block.details[0]
    assert len(table.lines) == len(tests) == 18
    one = next(test for test in tests if (test.method, test.length) == ("dape-fire", 256))
    line = next(line for line in table.lines if [c.text for c in line[:3]] == ["dape-fire", "fire", "256"])
    assert [cell.text for cell in line[3:5]] == ["3", f"{100 * (one.ratio - 1):+.1f}%"]
    assert effect(one) in in_short(one) and "n = 3" in in_short(one) and "95% interval" in in_short(one)


def test_one_seed_says_that_no_test_is_possible(make_rows, with_windows):
    rows = with_windows(make_rows({"kerple": {128: 8.0}, "dape-kerple": {128: 7.0}}))
    page = build_page([Section("A", rows=rows)], "T")
    assert "no test possible (one seed)" in page and "95% interval" in page


def test_what_is_not_finite_is_shown_as_such(make_rows):
    rows = make_rows(
        {"rope": {128: [9.0, 9.2], 256: [math.inf, 40.0], 512: [math.nan, 50.0]}, "alibi": {128: [8.0, 8.1]}}
    )
    page = Page(build_page([Section("A", rows=rows)], "T"))
    cells = page.table("method")["rope"]
    assert cells[2:] == ["inf 1 of 2 seeds not finite", "nan 1 of 2 seeds not finite"]
    (chart,) = curve_block(split(rows)[0], []).charts
    odd = {point["x"]: (point["y"], point["odd"]) for point in chart.data["ours"] if point["s"] == "rope"}
    assert odd[256] == (None, "∞") and odd[512] == (None, "NaN") and odd[128][1] is None


def test_a_variant_is_a_line_of_its_own_and_has_the_plain_encoding_as_base(make_rows):
    rows = make_rows({"alibi": {128: [8.0, 8.1]}})
    for hidden, value in ((4, 7.5), (64, 7.0)):
        rows += make_rows({"dape-alibi": {128: [value, value + 0.15]}}, variant=f"hidden={hidden}", run=f"h{hidden}")
    rows = [Row(**{**row.as_dict(), "run": f"{row.run}-{row.seed}"}) for row in rows]
    block = curve_block(split(rows)[0], [])
    assert [look["name"] for look in block.series] == ["alibi", "dape-alibi (hidden=4)", "dape-alibi (hidden=64)"]
    assert {line[1].text for line in block.details[0][1].lines} == {"alibi"}


def test_rows_of_other_data_scale_or_training_length_are_not_compared(make_rows):
    rows = make_rows({"rope": {256: 9.0}})
    rows += make_rows({"rope": {256: 5.0}}, data_hash="other", extra={"data": "books"})
    rows += make_rows({"rope": {256: 6.0}}, extra={"model": "125m"})
    rows += make_rows({"rope": {256: 7.0}}, train_length=64)
    panels = split(rows)
    assert [len(panel.rows) for panel in panels] == [1, 1, 1, 1]
    assert (
        "books" in panels[1].difference and "125m" in panels[2].difference and "trained at 64" in panels[3].difference
    )
    assert "Perplexity against length: " in build_page([Section("A", rows=rows)], "T")


def test_the_paper_beside_ours_at_multiples_of_the_training_length(compared):
    block = curve_block(split(compared)[0], load("A3"))
    points = {(p["s"], p["m"]): p["text"] for p in block.charts[0].data["paper"]}
    assert points["rope", 16.0] == "265.5 ± 20.4" and "t5" in {look["name"] for look in block.series}
    table = {line[0].text: line for line in block.paper[0].lines}
    assert table["dape-kerple"][5].text == "3.864" and table["dape-kerple"][5].best


def test_tasks_by_methods_are_those_of_the_benchmark():
    rows = read_rows(RESULTS / "che/batch-32/results.jsonl")
    (panel,) = split(rows)
    block = task_block(panel, load("A2"))
    config = CheConfig(lengths=tuple(sorted({row.length for row in rows})))
    methods = [look["name"] for look in block.series]
    tasks = list(dict.fromkeys(row.extra["task"] for row in rows))
    scores = {(s.task, s.method): s for s in summarise(rows, config, tasks=tasks, methods=methods, rates=[0.001])}
    assert len(block.tables[0].lines) == len(scores) > 20
    lines = {(line[0].text, line[1].text): line for line in block.tables[0].lines}
    alibi = lines["Bucket Sort", "dape-alibi"]
    assert alibi[2].text == as_text(scores["bucket_sort", "dape-alibi"].mean, "accuracy") and alibi[3].text == "2"
    assert alibi[7].text == "99.4%"  # the paper's 99.38
    cells = {(cell["r"], cell["c"]): cell for cell in block.charts[0].data["cells"]}
    assert cells["Bucket Sort", "dape-alibi"]["paper"] == "99.4"
    assert cells["Bucket Sort", "dape-alibi"]["v"] == pytest.approx(
        (scores["bucket_sort", "dape-alibi"].mean - 0.2) / 0.8
    )


def test_recall_has_a_curve_and_maps_by_depth_and_pairs():
    (panel,) = split(read_rows(RESULTS / "probe/results.jsonl"))
    block = curve_block(panel, [])
    assert [chart.kind for chart in block.charts] == ["curves", *["places"] * 12]
    rope = next(chart for chart in block.charts if chart.data.get("series") == "rope" and chart.data["axis"] == "depth")
    assert {"c": "64", "r": "0"}.items() <= rope.data["cells"][0].items() and rope.data["cells"][0]["v"] == 1.0


def test_depths_alone_give_a_curve_of_their_mean(make_rows):
    rows = []
    for depth, value in ((0.0, 0.2), (1.0, 0.6)):
        rows += make_rows({"rope": {128: value, 256: 0}}, metric="accuracy", protocol="passkey", extra={"depth": depth})
    assert curve_block(split(rows)[0], []).charts[0].data["ours"][0]["y"] == pytest.approx(40)


def test_rows_without_a_chart_are_listed(make_rows):
    rows = make_rows(
        {"rope": {128: 2.5}}, metric="nll", protocol="per_position", extra={"first_position": 1, "last_position": 8}
    )
    page = Page(build_page([Section("A", rows=rows)], "T"))
    assert page.table("method")["rope"] == ["0", "128", "1", "8", "2.500", ""]


def test_claims_are_plain_html_with_both_verdicts():
    given = {
        "id": "C1",
        "statement": "DAPE is better",
        "source": "section 4",
        "paper": {"verdict": "holds (significant)", "detail": "p = 0.01"},
        "ours": {"verdict": "fails", "detail": "7.2 against 7.1"},
    }
    page = Page(build_page([Section("A", claims=[Claim.from_plain(given)])], "T"))
    (line,) = [cells for name, cells in page.table("claim").items() if name.startswith("C1")]
    assert line == ["fails 7.2 against 7.1", "holds (significant) p = 0.01"]
    assert {"type": "button", "class": "chip", "aria-pressed": "true", "data-verdict": "fails"} in page.all("button")


def test_where_the_numbers_come_from_and_what_was_reduced(make_rows):
    extra = {"commit": "abc123", "torch": "2.13", "cpu": "EPYC", "cores": 2, "command": "dape compare --seeds 2"}
    rows = make_rows(
        {"rope": {128: [9.0, 9.1]}}, extra={**extra, "reduced": ["400 steps instead of 50000"]}, note="hot"
    )
    page = build_page([Section("A", rows=rows)], "T")
    for text in (
        "abc123",
        "EPYC, 2 cores",
        "dape compare --seeds 2",
        "400 steps instead of 50000",
        "hot",
        "0</span><span>1",
    ):
        assert text in page


def test_headers_that_sort_are_buttons(compared):
    page = Page(build_page([Section("A", rows=compared)], "T"))
    headers = [a for a in page.all("th") if a.get("scope") == "col"]
    assert headers and all(a.get("aria-sort") == "none" for a in headers)


def small_maps(text="text", method="dape-kerple", summary=None, shape=(2, 3, 4, 16)) -> Maps:
    generator = np.random.default_rng(0)
    terms = {name: generator.normal(size=shape).astype("f4") for name in ("scores", "bias", "f", "logits", "weights")}
    return Maps(
        method=method,
        length=shape[-1],
        query=shape[-1],
        layers=tuple(range(1, shape[1] + 1)),
        heads=tuple(range(1, shape[2] + 1)),
        samples=tuple((f"{text} {place}", text) for place in range(shape[0])),
        lags=np.arange(shape[-1])[::-1],
        terms=terms,
        heads_summary=summary,
    )


def test_the_explorer_has_the_arrays():
    maps = small_maps()
    data = explorer_of(maps)
    back = np.frombuffer(base64.b64decode(data["terms"]["bias"]), "<f4").reshape(2, 3, 4, 16)
    np.testing.assert_array_equal(back, maps.terms["bias"])
    assert data["lags"] == list(range(15, -1, -1)) and data["all_keys"] == 16


def test_of_many_keys_the_nearest_are_kept():
    lags = np.arange(5000)[::-1]
    kept = lags[kept_keys(lags, 100)]
    assert len(set(kept)) == len(kept) == 100 and set(range(32)) <= set(kept) and 4999 in kept


def test_a_large_map_does_not_make_a_large_page():
    data = explorer_of(small_maps(shape=(4, 12, 12, 512)))
    assert sum(map(len, data["terms"].values())) < 4e6 and len(data["lags"]) < data["all_keys"] == 512


def test_of_many_tasks_it_is_told_who_is_best_on_how_many(make_rows):
    rows = []
    for place, task in enumerate(["even_pairs", "parity_check", "odds_first", "compute_sqrt", "bucket_sort"]):
        for length, value in ((40, 0.9), (41, 0.5 + 0.01 * place)):
            values = {"alibi": {length: value}, "dape-alibi": {length: 0.525}}
            common = {"protocol": "che", "metric": "accuracy", "train_length": 40, "data_hash": task}
            rows += make_rows(values, **common, extra={"task": task, "lr": 0.1})
    block = task_block(split(rows)[0], [])
    assert block.words == ["Best beyond the training length, of 5 tasks: dape-alibi on 3 and alibi on 2."]


def test_nothing_at_or_below_guessing_is_called_best(make_rows):
    rows = []
    for task, beyond in (("even_pairs", 0.48), ("parity_check", 0.6)):
        for length, value in ((40, 0.9), (41, beyond)):
            values = {"alibi": {length: value}, "dape-alibi": {length: value - 0.05}}
            common = {"protocol": "che", "metric": "accuracy", "train_length": 40, "data_hash": task}
            rows += make_rows(values, **common, extra={"task": task, "lr": 0.1})
    block = task_block(split(rows)[0], [])
    first, second = block.words
    assert "no method is above guessing" in first and "best beyond" not in first
    assert "best beyond the training length is alibi with" in second
    best = [(line[0].text, line[1].text) for line in block.tables[0].lines if any(cell.best for cell in line)]
    assert [method for _, method in best] == ["alibi"] and "Parity" in best[0][0]


def test_a_single_section_is_named_once_and_has_the_markers_of_its_chart(compared):
    text = build_page([Section("mine", rows=compared, published=load("A3"), mode="ours")], "mine")
    page = Page(text)
    assert not [a for a in page.all("a") if a.get("href") == "#s1"]
    assert len(re.findall(">mine<", text)) == 3  # of the window, of the page, and for those who hear it
    assert re.search('value="ours" checked', text) and not re.search('value="both" checked', text)
    shapes = {look["shape"] for look in curve_block(split(compared)[0], []).series}
    assert len(shapes) > 2 and all(MARKERS[shape] in text for shape in shapes)


def test_costs_stand_behind_the_lengths(make_rows):
    rows = [*make_rows({"rope": {128: 4.0}}, extra={"step_ms": 1234.4}), *make_rows({"t5": {128: 4.0}})]
    (panel,) = split(rows)
    (table,) = curve_block(panel, []).tables
    assert table.headers[-1] == "ms a step"
    assert [(line[-1].text, line[-1].sort) for line in table.lines] == [("1,234", 1234.0), ("-", None)]


def test_one_length_has_a_table_and_no_chart(make_rows):
    block = curve_block(split(make_rows({"rope": {128: 9.0}, "alibi": {128: 8.0}}))[0], [])
    assert not block.charts and len(block.tables[0].lines) == 2
    assert "<figure" not in build_page([Section("A", rows=make_rows({"rope": {128: 9.0}}))], "T")


# Evidence ------------------------------------------------------------------------------------------------------------


def test_folders_of_several_rungs_begin_with_the_registered_tests():
    rungs = [Section(str(n), [], ladder_rows(tokens=n)) for n in (2_000_000, 8_192_000)]
    page = Page(build_page(rungs, "Rungs"))
    tests, perplexities = page.tables[:2]
    assert tests[0] == list(TEST_HEADS) and perplexities[0] == list(RUNG_HEADS)
    by_id = {line[0]: line for line in tests[1:]}
    assert by_id["E1/16x"][2:4] == ["5 of 5", "+2.02%"] and by_id["E1/16x"][-1] == "yes"
    assert by_id["E2/1x"][2:] == ["0 of 5", "-", "-", "-", "incomplete"]
    assert [line[0] for line in perplexities[1:]] == ["books3 (the paper)", "stdlib", "stdlib"]
    assert perplexities[1][5:8] == ["19.68 (1)", "19.64 (1)", "19.22 (1)"]  # Table 5 at the training length
    (chart,) = [json.loads(text) for kind, text in page.scripts if '"ours"' in text and '"n = 5"' in text]
    assert {point["s"]: point["y"] for point in chart["ours"]}["stdlib, 125m, 1x"] == pytest.approx(
        100 * math.expm1(0.02)
    )
    assert "E1/16x, content helps on stdlib at 16x: yes." in page.text


def test_one_rung_has_no_section_of_evidence():
    assert "Registered tests" not in build_page([Section("one", [], ladder_rows())], "One")
