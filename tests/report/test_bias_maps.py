# pyright: reportOperatorIssue=false, reportOptionalOperand=false
"""Figures of bias maps show the arrays they were given."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, to_hex

from dape.evaluation.map_files import STAGES, BiasMaps
from dape.report import bias_maps
from dape.report.bias_maps import (
    draw_maps,
    figures_of,
    head_look,
    image_figure,
    lag_figure,
    log_groups,
    means,
    triples_figure,
)
from dape.report.looks import BLUE, GREY, VERMILION

SLOPES = {"local": -1.0, "anti-local": 0.5, "flat": 0.0}
KINDS = [["local", "anti-local", "flat"], ["flat", "local", "local"]]


def make(length: int = 40, *, samples: int = 2, f: str = "f([A; B])", bias: bool = True, shown: int = 7) -> BiasMaps:
    """Layers 2 and 4, heads 1, 3 and 12; f is a line against log-lag, one step higher in the second sample."""
    generator = np.random.default_rng(0)
    lags = np.arange(length - 1, -1, -1)
    rows = {stage: generator.normal(size=(samples, 2, 3, length)).astype(np.float32) for stage in STAGES}
    for layer, head in np.ndindex(2, 3):
        line = SLOPES[KINDS[layer][head]] * np.log(np.maximum(lags, 1))
        rows["f"][:, layer, head] = line + np.arange(samples)[:, None]
    images = {
        stage: np.where(np.tri(shown) > 0, generator.normal(size=(2, 3, shown, shown)) * (head + 1), np.nan)
        for head, stage in enumerate(STAGES)
    }
    images["weights"] = np.abs(images["weights"]) / 10
    facts = {
        "method": "dape-kerple",
        "variant": "concat",
        "terms": {"logits": "A + f([A; B])", "f": f, "bias": bias},
        "run": "run7",
        "step": 150,
        "train_length": 16,
        "length": length,
        "layers": [2, 4],
        "heads": [1, 3, 12],
        "samples": [{"id": n + 1, "text": f"some $ text\n{n}"} for n in range(samples)],
        "image": {"sample": 1, "first": length - shown + 1, "last": length},
        "heads_summary": [
            {
                "layer": layer,
                "head": head,
                "kind": KINDS[row][column],
                "slope": SLOPES[KINDS[row][column]],
                "input_dependence": 0.25 if samples > 1 else None,
                "bias_kind": "local",
                "bias_slope": -2.0,
            }
            for row, layer in enumerate([2, 4])
            for column, head in enumerate([1, 3, 12])
        ],
    }
    return BiasMaps(facts, rows, images)


def texts(figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def assert_laid_out(figure) -> None:
    boxes = [panel.get_position() for panel in figure.axes]
    assert all(0 < box.x0 < box.x1 < 1 and 0 < box.y0 < box.y1 < 1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


# Triples -------------------------------------------------------------------------------------------------------------


def test_one_row_of_three_panels_per_layer():
    maps = make()
    figure = triples_figure(maps, 1)
    assert len(figure.axes) == 6
    assert_laid_out(figure)
    for row in range(2):
        for column, stage in enumerate(("scores", "bias", "f")):
            lines = [line for line in figure.axes[3 * row + column].lines if len(line.get_xdata()) == 40]
            assert len(lines) == 3
            for head, line in enumerate(lines):
                assert list(line.get_xdata()) == list(range(1, 41))
                np.testing.assert_allclose(line.get_ydata(), maps.rows[stage][1, row, head], rtol=1e-6)
                assert line.get_color() == head_look([1, 3, 12][head])["color"]
    assert [panel.get_title() for panel in figure.axes[:3]] == ["content scores A", "bias B (kerple)", "f([A; B])"]
    assert [figure.axes[n].get_title(loc="left") for n in (0, 3)] == ["layer 2", "layer 4"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1", "3", "12"]
    assert figure.axes[3].get_xlabel() == "key position" and figure.axes[0].get_xlabel() == ""
    assert "sample 2" in texts(figure) and r'ends in "some \$ text 1"' in texts(figure) and "run7" in texts(figure)


def test_keys_farther_than_in_training_are_marked():
    def marks(length):
        return [
            line.get_xdata()[0] for line in triples_figure(make(length), 0).axes[0].lines if line.get_linewidth() == 0.9
        ]

    # The query stands at 40; the farthest key of training was 15 before it, at 25.
    assert marks(40) == [25] and marks(16) == []


def test_many_keys_are_averaged(monkeypatch):
    monkeypatch.setattr(bias_maps, "POINTS", 10)
    maps = make()
    figure = triples_figure(maps, 0)
    lines = [line for line in figure.axes[0].lines if line.get_linewidth() == 1.0]
    assert len(lines) == 3
    np.testing.assert_allclose(lines[0].get_xdata(), np.arange(1, 41).reshape(10, 4).mean(axis=1))
    np.testing.assert_allclose(
        lines[0].get_ydata(), maps.rows["scores"][0, 0, 0].reshape(10, 4).mean(axis=1), rtol=1e-5
    )
    assert "means of about 4 neighbouring keys" in texts(figure)
    pale = [line for line in figure.axes[0].lines if line.get_linewidth() == 0.4]
    assert [len(line.get_xdata()) for line in pale] == [40, 40, 40]


def test_only_what_the_encoding_has_is_drawn():
    assert len(triples_figure(make(f=""), 0).axes) == 4
    assert len(triples_figure(make(f="", bias=False), 0).axes) == 2


def test_headings_and_legends_have_room():
    """Also beside a single panel, and with many heads beside a single layer."""
    maps = make()
    first = {stage: values[:, :1, :1] for stage, values in maps.rows.items()}
    one = BiasMaps({**maps.facts, "heads": [1], "layers": [2]}, first, None)
    for figure in (lag_figure(one, "f"), triples_figure(one, 0)):
        renderer = FigureCanvasAgg(figure).get_renderer()
        assert max(text.get_window_extent(renderer).x1 for text in figure.texts) <= figure.bbox.x1
    rows = {stage: np.repeat(values, 32, axis=2) for stage, values in first.items()}
    many = triples_figure(BiasMaps({**one.facts, "heads": list(range(1, 33))}, rows, None), 0)
    box = many.legends[0].get_window_extent(FigureCanvasAgg(many).get_renderer())
    assert many.bbox.x0 <= box.x0 < box.x1 <= many.bbox.x1 and many.bbox.y0 <= box.y0 < box.y1 <= many.bbox.y1


def test_heads_are_told_apart():
    looks = {(head_look(head)["color"], str(head_look(head)["linestyle"])) for head in range(1, 33)}
    assert len(looks) == 32


# f against lag -------------------------------------------------------------------------------------------------------


def test_layers_by_heads_against_lag():
    maps = make()
    figure = lag_figure(maps, "f")
    assert len(figure.axes) == 6
    assert_laid_out(figure)
    colours = {"local": BLUE, "anti-local": VERMILION, "flat": GREY}
    for place, panel in enumerate(figure.axes):
        kind = KINDS[place // 3][place % 3]
        (line,) = [line for line in panel.lines if line.get_linewidth() == 1.3]
        assert line.get_color() == colours[kind] and panel.get_xscale() == "log"
        # Averages of a line over log-lags lie on it; the samples are at 0 and 1.
        np.testing.assert_allclose(
            line.get_ydata(), 0.5 + SLOPES[kind] * np.log(line.get_xdata()), rtol=1e-5, atol=1e-6
        )
        band = panel.collections[0].get_paths()[0].vertices
        assert band[:, 1].max() - line.get_ydata().max() == pytest.approx(0.5, abs=1e-5)
        assert f"{SLOPES[kind]:+.2f}".replace("-", "\N{MINUS SIGN}") + "  text 25%" == panel.texts[0].get_text()
    first, last = figure.axes[0], figure.axes[2]
    assert first.get_ylim() == last.get_ylim()
    assert first.get_ylim()[0] < 0.5 - np.log(39) and first.get_ylim()[1] > 1.5 + 0.4 * np.log(39)
    assert [panel.get_title() for panel in figure.axes[:3]] == ["head 1", "head 3", "head 12"]
    assert first.get_ylabel() == "layer 2" and "Dotted: training length (16)" in texts(figure)


def test_bias_against_lag_and_a_single_sample():
    maps = make(samples=1)
    panel = lag_figure(maps, "bias").axes[0]
    assert panel.texts[0].get_text() == "\N{MINUS SIGN}2.00"
    assert "only 1 sample," in texts(lag_figure(maps, "f"))


def test_groups_of_lags():
    lags = np.arange(1, 1000)
    groups = log_groups(lags)
    assert sorted(np.concatenate(groups)) == list(range(999))
    assert all(lags[group[-1]] / lags[group[0]] < 2 ** (1 / 6) for group in groups) and len(groups) < 60
    np.testing.assert_allclose(means(np.array([[1.0, 3.0, 5.0]]), [np.array([0, 1]), np.array([2])]), [[2, 5]])


@pytest.mark.parametrize("length", [1, 2])
def test_very_short_texts(length):
    maps = make(length)
    lines = triples_figure(maps, 0).axes[0].lines
    assert [len(line.get_xdata()) for line in lines[:3]] == [length] * 3
    # Of one token there is no past: no lag to draw f against.
    assert [len(panel.lines) for panel in lag_figure(maps, "f").axes] == [length] * 6


# Images --------------------------------------------------------------------------------------------------------------


def test_images_of_all_stages():
    maps = make()
    figure = image_figure(maps, 1)
    panels = [panel for panel in figure.axes if panel.images]
    assert len(panels) == 15 and len(figure.axes) == 30
    assert_laid_out(figure)
    for place, panel in enumerate(panels):
        head, stage = divmod(place, 5)
        (image,) = panel.images
        expected = maps.images[STAGES[stage]][1, head]
        np.testing.assert_allclose(np.ma.filled(image.get_array(), np.nan), expected)
        assert image.get_extent() == [33.5, 40.5, 40.5, 33.5]
        assert to_hex(image.cmap(np.nan)) == bias_maps.HIDDEN.lower()
        if STAGES[stage] == "weights":
            assert isinstance(image.norm, LogNorm) and (image.norm.vmin, image.norm.vmax) == (1e-4, 1)
        else:
            assert image.norm.vmin == -image.norm.vmax
            assert image.norm.vmax == pytest.approx(np.nanquantile(np.abs(expected), 0.99))
    assert "layer 4" in texts(figure) and "also those before the first one shown" in texts(figure)
    assert panels[3].get_title() == "logits A + f([A; B])"


def test_an_image_of_nothing_but_zeros():
    maps = make()
    maps.images["f"][:] = np.where(np.tri(7) > 0, 0.0, np.nan)
    (image,) = image_figure(maps, 0).axes[2].images
    assert (image.norm.vmin, image.norm.vmax) == (-1, 1)


# All of them ---------------------------------------------------------------------------------------------------------


def test_which_figures_there_are():
    lines, by_layer = ["triples-sample1", "triples-sample2"], ["images-layer2", "images-layer4"]
    assert list(figures_of(make(samples=3))) == [*lines, "f-by-lag", "bias-by-lag", *by_layer]
    assert list(figures_of(make(samples=1, f="", bias=False))) == [*lines[:1], *by_layer]
    static = make(f="")
    assert list(figures_of(BiasMaps(static.facts, static.rows, None))) == [*lines, "bias-by-lag"]


def test_the_same_arrays_give_the_same_files(tmp_path):
    maps = make(samples=1, bias=False)
    maps.facts.update(layers=[2], heads=[1])
    rows = {stage: values[:, :1, :1] for stage, values in maps.rows.items()}
    small = BiasMaps(maps.facts, rows, {stage: values[:1, :1] for stage, values in maps.images.items()})
    heard = []
    written = draw_maps(small, tmp_path, watch=heard.append)
    assert heard == ["triples-sample1", "f-by-lag", "images-layer2"]
    assert [path.name for path in written] == [f"{name}.{ending}" for name in heard for ending in ("png", "svg")]
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in draw_maps(small, tmp_path)] == before
