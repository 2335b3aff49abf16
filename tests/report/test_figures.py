"""What is on the figure: lines, limits, names; and the same file for the same rows."""

import itertools
import math
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from dape.report.figures import (
    choose_scale,
    curves_of,
    nice_ticks,
    passing,
    perplexity_figure,
    save_figure,
    spread_out,
    tick_texts,
)
from dape.results.statistics import arrange

LENGTHS = (64, 128, 256, 512)
NEAR = {"kerple": {64: 4.5, 128: 4.1, 256: 4.2, 512: 4.2}, "dape-kerple": {64: 4.0, 128: 3.7, 256: 3.6, 512: 3.5}}
WITH_ROPE = {**NEAR, "rope": {64: 4.1, 128: 3.8, 256: 11.0, 512: 1000.0}}


def curves(panel) -> dict[str, list[tuple[float, float]]]:
    """Name -> points of the lines that belong to methods."""
    found = {}
    for line in panel.lines:
        if not line.get_label().startswith("_"):
            found[line.get_label()] = list(zip(*line.get_data(), strict=True))
    return found


def names(figure) -> dict[str, Annotation]:
    texts = [t for panel in figure.axes for t in panel.texts if isinstance(t, Annotation) and t.arrow_patch is not None]
    return {text.get_text(): text for text in texts}


def words(figure) -> str:
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


# One panel -----------------------------------------------------------------------------------------------------------


def test_lines_are_the_means(make_rows):
    values = {"kerple": {128: [4.0, 4.2], 256: [5.0, 5.4]}, "dape-kerple": {128: [3.8, 3.8], 256: [3.7, 3.9]}}
    (panel,) = perplexity_figure(make_rows(values)).axes
    assert curves(panel) == {
        "kerple": [(128, pytest.approx(4.1)), (256, pytest.approx(5.2))],
        "dape-kerple": [(128, pytest.approx(3.8)), (256, pytest.approx(3.8))],
    }


def test_bands_reach_from_the_lowest_to_the_highest_seed(make_rows):
    (panel,) = perplexity_figure(make_rows({"rope": {128: [4.0, 4.6, 4.1], 256: [5.0, 5.4, 5.1]}})).axes
    (band,) = panel.collections
    corners = band.get_paths()[0].vertices
    assert {tuple(point) for point in corners.tolist()} >= {(128, 4.0), (128, 4.6), (256, 5.0), (256, 5.4)}
    assert panel.get_ylim()[0] < 4.0
    assert panel.get_ylim()[1] > 5.4
    (alone,) = perplexity_figure(make_rows({"rope": {128: 4.0, 256: 5.0}})).axes
    assert len(alone.collections) == 0


def test_axes_show_the_measured_lengths_and_plain_numbers(make_rows):
    (panel,) = perplexity_figure(make_rows(NEAR)).axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["64", "128", "256", "512"]
    assert panel.get_xscale() == panel.get_yscale() == "log"
    assert panel.xaxis.get_transform().base == 2
    ticks = [text.get_text() for text in panel.get_yticklabels()]
    assert len(ticks) >= 4
    assert all(re.fullmatch(r"\d\.\d+", text) for text in ticks)
    low, high = panel.get_ylim()
    assert low < 3.5
    assert high > 4.5
    assert high / low < 1.5


def test_training_length_is_marked(make_rows):
    figure = perplexity_figure(make_rows(NEAR))
    (panel,) = figure.axes
    upright = [
        line.get_xdata()[0]
        for line in panel.lines
        if line.get_label().startswith("_") and len(set(line.get_xdata())) == 1
    ]
    assert upright == [128]
    assert "training length" in [text.get_text() for text in panel.texts]
    beyond = perplexity_figure(make_rows({"rope": {256: 5.0, 512: 6.0}}))
    assert "training length" not in [text.get_text() for text in beyond.axes[0].texts]


def test_methods_in_the_order_given_and_only_those(make_rows):
    figure = perplexity_figure(make_rows(WITH_ROPE), methods=["dape-kerple", "kerple"])
    assert list(curves(figure.axes[0])) == ["dape-kerple", "kerple"]


def test_nothing_to_draw_is_refused(make_rows):
    with pytest.raises(ValueError, match="no rows of perplexity"):
        perplexity_figure([])
    with pytest.raises(ValueError, match="no rows of perplexity"):
        perplexity_figure(make_rows(NEAR), methods=["t5"])


# Two panels ----------------------------------------------------------------------------------------------------------


def test_far_values_get_a_panel_of_their_own(make_rows):
    lower, upper = perplexity_figure(make_rows(WITH_ROPE)).axes
    assert lower.get_ylim()[1] == upper.get_ylim()[0]
    assert 4.5 < lower.get_ylim()[1] < 6
    assert upper.get_ylim()[1] > 1000
    assert lower.get_position().height > 1.5 * upper.get_position().height
    assert lower.get_position().y1 < upper.get_position().y0
    # Kerple and dape-kerple differ by a fifth: that must be easy to see.
    apart = math.log(4.2 / 3.5) / math.log(lower.get_ylim()[1] / lower.get_ylim()[0])
    assert apart > 0.4


def test_no_second_panel_for_values_that_are_near(make_rows):
    assert len(perplexity_figure(make_rows({**NEAR, "rope": {64: 4.1, 128: 3.8, 256: 4.4, 512: 5.0}})).axes) == 1


def test_each_marker_is_drawn_in_one_panel(make_rows):
    lower, upper = perplexity_figure(make_rows(WITH_ROPE)).axes

    def marked(panel) -> list[int]:
        (line,) = [line for line in panel.lines if line.get_label() == "rope"]
        return list(line.get_markevery())

    assert (marked(lower), marked(upper)) == ([0, 1], [2, 3])


def test_passing_keeps_what_crosses():
    assert passing([1, 2, 9, 20], 5, 10) == pytest.approx([math.nan, 2, 9, 20], nan_ok=True)
    assert passing([1, 20, 1], 5, 10) == [1, 20, 1]
    assert passing([7], 5, 10) == [7]
    assert math.isnan(passing([4], 5, 10)[0])


def test_infinite_values_leave_the_chart_and_are_marked(make_rows):
    values = {**NEAR, "t5": {64: 4.1, 128: 3.9, 256: math.inf, 512: math.inf}, "rope": {64: 4.2, 128: 4.0, 512: 1e12}}
    figure = perplexity_figure(make_rows(values))
    top = figure.axes[-1]
    triangles = [float(line.get_xdata()[0]) for line in top.lines if line.get_marker() == "^"]
    assert triangles[:2] == [256, 512]
    assert 256 < triangles[2] < 512  # beside the other one
    assert {"t5 (inf)", "rope (1.0e12)"} <= set(names(figure))
    assert top.get_ylim()[1] < 1e5
    assert "Triangles: infinite, or off the chart." in words(figure)


def test_a_gap_where_it_is_not_a_number(make_rows):
    figure = perplexity_figure(make_rows({"kerple": {64: 4.5, 128: 4.1, 256: math.nan, 512: 4.2}}))
    assert [math.isnan(y) for _, y in curves(figure.axes[0])["kerple"]] == [False, False, True, False]
    assert "Gaps: not a number." in words(figure)


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [(math.inf, "rope (inf)", "Triangles: infinite"), (math.nan, "rope (nan)", "Gaps: not a number.")],
)
def test_nothing_finite_at_all_is_still_drawn(make_rows, tmp_path, value, name, said):
    figure = perplexity_figure(make_rows({"rope": {128: value}}))
    save_figure(figure, tmp_path / "a.png")
    assert set(names(figure)) == {name} and said in words(figure)


# Names and caption ---------------------------------------------------------------------------------------------------


def test_every_line_has_its_name_beside_it(make_rows):
    many = [f"m{n}" for n in range(13)] + ["kerple", "dape-kerple"]
    figure = perplexity_figure(make_rows({m: {128: 4.0, 256: 4.0 + i / 1000} for i, m in enumerate(many)}))
    found = names(figure)
    assert set(found) == set(many)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in found.values()]  # without the line to the curve
    edge = figure.bbox
    for box in boxes:
        assert box.x0 > figure.axes[0].bbox.x1
        assert edge.x0 <= box.x0 < box.x1 <= edge.x1
        assert edge.y0 <= box.y0 < box.y1 <= edge.y1
    for a, b in itertools.combinations(boxes, 2):
        assert a.y1 <= b.y0 + 2 or b.y1 <= a.y0 + 2  # less than two pixels of two letters' room


def test_names_stand_in_the_order_of_the_lines(make_rows):
    figure = perplexity_figure(make_rows(WITH_ROPE))
    height = {name: text.get_position()[1] for name, text in names(figure).items()}
    assert height["dape-kerple"] < height["kerple"] < height["rope"]
    assert names(figure)["dape-kerple"].get_fontweight() == "bold"
    assert names(figure)["dape-kerple"].get_color() == names(figure)["kerple"].get_color()


def test_a_title_is_inside_the_figure(make_rows):
    figure = perplexity_figure(make_rows(NEAR), title="Perplexity")
    figure.draw_without_rendering()
    title = figure.axes[-1].get_window_extent()
    (text,) = [t for t in (figure.axes[-1]._left_title,) if t.get_text() == "Perplexity"]
    assert title.y1 < text.get_window_extent().y1 <= figure.bbox.y1


def test_caption_says_what_lines_and_bands_are(make_rows):
    assert "One seed (0)" in words(perplexity_figure(make_rows(NEAR)))
    seeds = {"kerple": {128: [4.0, 4.2, 4.1]}, "dape-kerple": {128: [3.8, 3.7, 3.9]}}
    text = words(perplexity_figure(make_rows(seeds)))
    assert "Solid: with DAPE; dashed: without; one colour per base encoding." in text
    assert "Lines: mean over seeds 0, 1 and 2; bands: lowest to highest seed." in text
    assert "Protocol last_k, 12800 tokens scored at each length." in text
    assert "grey panel" not in text
    assert "grey panel continues above 4.57" in words(perplexity_figure(make_rows(WITH_ROPE)))
    assert "Solid" not in words(perplexity_figure(make_rows({"rope": {128: 4.0}})))


@pytest.mark.parametrize("count", [3, 12])
def test_caption_does_not_touch_the_axis(make_rows, count):
    lengths = [int(64 * 1.5**n) for n in range(count)]
    figure = perplexity_figure(
        make_rows({"kerple": dict.fromkeys(lengths, 4.0), "dape-kerple": dict.fromkeys(lengths, 3.9)})
    )
    figure.draw_without_rendering()
    caption = max(text.get_window_extent().y1 for text in figure.texts if "\n" in text.get_text())
    axis = figure.axes[0].xaxis
    assert caption < axis.label.get_window_extent().y0
    assert axis.label.get_window_extent().y1 < min(text.get_window_extent().y1 for text in axis.get_ticklabels())


def test_caption_tells_of_rows_left_out(make_rows):
    rows = [*make_rows(NEAR), *make_rows({"rope": {128: 1.0}}, data_hash="other")]
    figure = perplexity_figure(rows)
    assert "Not drawn, as not comparable: 1" in words(figure)
    assert "rope" not in names(figure)


# Parts ---------------------------------------------------------------------------------------------------------------


def test_scale_is_decided_from_the_rows(make_rows):
    def scale(values):
        return choose_scale(curves_of(arrange(make_rows(values))))

    near = scale(NEAR)
    assert near.cut is None
    assert near.low < 3.5 < 4.5 < near.high
    far = scale(WITH_ROPE)
    assert far.cut is not None
    assert 4.5 < far.cut < 11
    # Where all methods are worse with little context, that is no reason to call them far.
    short = scale({"kerple": {16: 9.0, 512: 4.2}, "dape-kerple": {16: 8.0, 512: 3.5}})
    assert short.cut is None


@pytest.mark.parametrize("seed", range(20))
def test_spread_out_is_the_nearest_arrangement(seed):
    """No other arrangement with the same order and gaps is nearer to what was wanted; 300 are tried."""
    generator = np.random.default_rng(seed)
    wanted = generator.uniform(0, 3, size=6)
    placed = np.array(spread_out(wanted.tolist(), 0.5, -100, 100))
    order = np.argsort(wanted)
    assert (np.diff(placed[order]) >= 0.5 - 1e-9).all()

    def cost(heights):
        return ((heights - wanted) ** 2).sum()

    for _ in range(300):
        other = np.sort(placed[order] + generator.normal(0, 0.1, size=6))
        other = other[0] + np.maximum.accumulate(other - other[0] - 0.5 * np.arange(6)) + 0.5 * np.arange(6)
        candidate = np.empty(6)
        candidate[order] = other
        assert cost(candidate) >= cost(placed) - 1e-9


def test_spread_out_stays_within():
    assert spread_out([0.0, 0.0, 0.1], 1, 0, 10) == [0, 1, 2]
    assert spread_out([10.0, 9.9], 1, 0, 10) == [10, 9]
    assert spread_out([3.0, 5.0], 1, 0, 10) == [3, 5]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (3.38, 4.62, ["3.4", "3.6", "3.8", "4.0", "4.2", "4.4", "4.6"]),
        (5, 60, ["5", "10", "20", "50"]),
        (5, 1200, ["10", "30", "100", "300", "1000"]),
        (5, 3e5, ["10", "100", "1000", "10000", "1e5"]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert tick_texts(nice_ticks(low, high)) == ticks


# Files ---------------------------------------------------------------------------------------------------------------


def test_files_are_the_same_for_the_same_rows(make_rows, tmp_path):
    first = save_figure(perplexity_figure(make_rows(WITH_ROPE)), tmp_path / "first")
    assert [path.name for path in first] == ["first.png", "first.svg"]
    with matplotlib.rc_context(
        {"svg.hashsalt": None, "axes.facecolor": "red", "lines.linewidth": 9, "savefig.dpi": 30}
    ):
        second = save_figure(perplexity_figure(make_rows(WITH_ROPE)), tmp_path / "second")
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.png", "first.svg", "second.png", "second.svg"]


def test_png_has_150_dots_per_inch(make_rows, tmp_path):
    figure = perplexity_figure(make_rows(NEAR))
    (path,) = save_figure(figure, tmp_path / "a.png")
    width = int.from_bytes(path.read_bytes()[16:20])
    assert width == round(150 * figure.get_figwidth())


def test_other_formats_are_refused(make_rows, tmp_path):
    with pytest.raises(ValueError, match=r"as \.png or \.svg, not as 'a\.pdf'"):
        save_figure(perplexity_figure(make_rows(NEAR)), tmp_path / "a.pdf")


def test_a_failure_leaves_the_old_file(make_rows, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_text("old")
    figure = perplexity_figure(make_rows(NEAR))

    def fail(file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save_figure(figure, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_drawing_needs_neither_pyplot_nor_torch():
    code = "import sys, dape.report.figures; print({'matplotlib.pyplot', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
