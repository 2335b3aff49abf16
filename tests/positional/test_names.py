"""Names of encodings and their parts."""

import pytest

from dape.positional.catalogue import encodings, find
from dape.positional.names import BIAS_ONLY, DAPE, DAPE_V2, LOGN, RANDOMIZED, SINK, Name, base_of, parse


@pytest.mark.parametrize(
    ("text", "parts", "base"),
    [
        ("kerple", Name("kerple"), None),
        ("dape-kerple", Name("kerple", DAPE), "kerple"),
        ("dape-v2-kerple-power", Name("kerple-power", DAPE_V2), "kerple-power"),
        ("randomized-rope", Name("rope", randomized=True), None),
        ("randomized-dape-fire", Name("fire", DAPE, True), "randomized-fire"),
        ("sink-logn-kerple", Name("kerple", modifiers=(SINK, LOGN)), None),
        ("logn-kerple", Name("kerple", modifiers=(LOGN,)), None),
        ("randomized-logn-dape-fire", Name("fire", DAPE, True, (LOGN,)), "randomized-logn-fire"),
        ("bias-only-dape-kerple", Name("kerple", BIAS_ONLY), "kerple"),
        ("randomized-bias-only-dape-fire", Name("fire", BIAS_ONLY, True), "randomized-fire"),
        ("randomized-dape-v2-t5", Name("t5", DAPE_V2, True), "randomized-t5"),
    ],
)
def test_parts(text, parts, base):
    assert parse(text) == parts and base_of(text) == base


def test_every_name_is_put_together_again():
    for name in encodings():
        for whole in (name, RANDOMIZED + name, LOGN + name, RANDOMIZED + LOGN + name):
            assert str(parse(whole)) == whole and find(whole) == encodings()[name]


def test_randomized_stands_once():
    for name in ("randomized-randomized-rope", "logn-randomized-rope", "logn-logn-rope"):
        with pytest.raises(ValueError, match="may each stand in front of a name once, in this order"):
            find(name)
