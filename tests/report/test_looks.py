from dape.report.looks import COLOURS, looks


def test_a_pair_shares_its_colour_and_differs_in_stroke():
    found = looks(["kerple", "dape-kerple", "dape-v2-kerple", "randomized-kerple", "alibi"])
    assert len({look.colour for name, look in found.items() if "kerple" in name}) == 1
    assert len({look.marker for name, look in found.items() if "kerple" in name}) == 1
    assert len({str(look.stroke) for name, look in found.items() if "kerple" in name}) == 4
    assert found["alibi"].colour != found["kerple"].colour
    assert found["dape-kerple"].stroke == "-"
    assert found["kerple"].stroke == found["alibi"].stroke != "-"
    assert [name for name, look in found.items() if look.adapted] == ["dape-kerple", "dape-v2-kerple"]


def test_a_method_looks_the_same_whatever_else_is_drawn():
    alone, among = looks(["dape-fire"]), looks(["rope", "my-own", "fire", "dape-fire", "alibi"])
    assert alone["dape-fire"] == among["dape-fire"]


def test_more_encodings_than_colours_still_differ():
    names = ["alibi", *(f"mine-{n}" for n in range(2 * len(COLOURS)))]
    found = looks(names)
    assert len({(look.colour, look.marker) for look in found.values()}) == len(names)
