import re

import pytest

from dape.report.figures import heat_map_figure, save_figure
from dape.report.heat_maps import maps_of


@pytest.fixture
def accuracy_rows(make_rows):
    """Accuracy 0.5 for kerple everywhere, two seeds; for rope less with depth 0; one cell of rope is missing."""

    def make(axis: str = "depth", places: tuple = (0, 0.5, 1)) -> list:
        rows = []
        for place in places:
            common = {"metric": "accuracy", "protocol": "passkey", "extra": {axis: place, "commit": "1"}}
            rows += make_rows({"rope": {128: 1.0, 256: place / max(places)}}, **common)
            rows += make_rows({"kerple": {128: [1.0, 1.0], 256: [0.4, 0.6]}}, **common)
        return [
            row for row in rows if not (row.method == "rope" and row.length == 256 and row.extra[axis] == places[-1])
        ]

    return make


def numbers(panel) -> list[str]:
    return [text.get_text() for text in panel.texts]


def test_means_over_seeds_by_length_and_depth(accuracy_rows):
    maps = maps_of(accuracy_rows())
    assert (maps.axis, maps.methods, maps.lengths, maps.places) == (
        "depth",
        ("rope", "kerple"),
        (128, 256),
        (0.0, 0.5, 1.0),
    )
    assert maps.values["kerple"] == {(n, p): 1.0 if n == 128 else 0.5 for n in (128, 256) for p in (0.0, 0.5, 1.0)}
    assert maps.values["rope"][256, 0.5] == 0.5
    assert (256, 1.0) not in maps.values["rope"]


def test_one_map_per_method_with_numbers(accuracy_rows):
    figure = heat_map_figure(accuracy_rows(), methods=["kerple", "rope"], title="Passkey")
    kerple, rope, _bar = figure.axes
    assert (kerple.get_title(loc="left"), rope.get_title(loc="left")) == ("kerple", "rope")
    assert numbers(kerple) == ["100"] * 3 + ["50"] * 3
    assert numbers(rope) == ["100", "100", "100", "0", "50", "x"]
    assert [t.get_text() for t in kerple.get_xticklabels()] == ["128", "256"]
    assert [t.get_fontweight() for t in kerple.get_xticklabels()] == ["bold", "normal"]
    assert [t.get_text() for t in kerple.get_yticklabels()] == ["0", "0.5", "1"]
    assert kerple.get_ylim()[0] > kerple.get_ylim()[1]  # depth 0, the beginning, is on top
    caption = " ".join(" ".join(t.get_text() for t in figure.texts).split())
    assert "mean over seeds 0 and 1; bold: training length (128)" in caption
    assert "x: not measured" in caption


def test_the_same_rows_give_the_same_file(accuracy_rows, tmp_path):
    figures = (heat_map_figure(accuracy_rows(), methods=["rope"]) for _ in range(2))
    (first,), (second,) = (save_figure(figure, tmp_path / f"{n}.svg") for n, figure in enumerate(figures))
    assert first.read_bytes() == second.read_bytes()


def test_lighter_is_better(accuracy_rows):
    figure = heat_map_figure(accuracy_rows(), methods=["rope"])
    shades = {
        int(t.get_text()): sum(b.get_facecolor()[0][:3])
        for t, b in zip(figure.axes[0].texts[3:5], figure.axes[0].collections[3:5], strict=True)
    }
    assert shades[0] < shades[50]


def test_numbers_of_pairs(accuracy_rows):
    figure = heat_map_figure(accuracy_rows("pairs", (4, 8)))
    assert re.search("pairs", figure.axes[0].get_ylabel())
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["4", "8"]


def test_maps_lie_within_the_figure(accuracy_rows):
    rows = accuracy_rows()
    many = [type(row)(**{**row.as_dict(), "method": f"m{n}", "run": f"m{n}"}) for n in range(7) for row in rows]
    figure = heat_map_figure(many)
    boxes = [panel.get_position() for panel in figure.axes[:-1]]
    assert len(boxes) == 7
    assert all(0 < box.x0 < box.x1 < 1 and 0 < box.y0 < box.y1 < 1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_rows_without_a_place_are_refused(make_rows, accuracy_rows):
    with pytest.raises(ValueError, match="these have none"):
        heat_map_figure(make_rows({"rope": {128: 1.0}}, metric="accuracy"))
    with pytest.raises(ValueError, match="these have depth and pairs"):
        heat_map_figure([*accuracy_rows(), *accuracy_rows("pairs", (4, 8))])
