"""`dape.verify`: right is right, every mistake of the catalogue is found as itself, and whose error it is."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.thinned import few

import dape
from dape.cli import main
from dape.conformance import files
from dape.conformance.mistakes import MISTAKES, Setting, mistakes_of
from dape.conformance.recipes import reference
from dape.errors import UsageError

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


def wrong():
    import wrong

    return wrong


NAMES = [
    "alibi_of_the_text",
    "alibi_transposed",
    "KerpleBeforeScaling",
    "KerpleOffByOne",
    "KerpleRaw",
    "FireNotNormalised",
    "T5Bidirectional",
    "yarn_without_range",
    "DapeMaskedFirst",
    "DapeBiasFirst",
    "sandwich_swapped",
]


def test_all_wrong_ones_are_tried():
    assert list(wrong().WRONG) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_known_mistake_is_named(name):
    encoding, says, how = wrong().WRONG[name]
    verdict = dape.verify(getattr(wrong(), name), encoding, **how)
    assert not verdict and any(says in each.mistake.says and each.whole for each in verdict.likely), str(verdict)
    assert "off: in the case" in str(verdict) or "hidden cells" in str(verdict)


# Each mistake, given as an implementation, is found ------------------------------------------------------------------


class Made(dape.PositionalEncoding):
    """Gives what a mistake gives."""

    def __init__(self, name, mistake, case):
        super().__init__(case.dims)
        self.pe, self.mistake, self.case = reference(name, case), mistake, case

    def named_parameters(self, *args, **kwargs):
        return self.pe.named_parameters()

    def logits(self, scores, q, k, grid):
        return scores * 0 + self.mistake.output(Setting(self.case, self.pe))

    def embed(self, x, positions):
        return x * 0 + self.mistake.output(Setting(self.case, self.pe))


def pairs() -> list[tuple[str, str]]:
    """Encodings and their mistakes: all of those that few encodings have, and of those that are made in dozens of them,
    such as a transposed matrix, one encoding in five, each time others."""
    names: dict[str, list[str]] = {}
    for name in dape.encodings():
        for mistake in mistakes_of(name):
            names.setdefault(mistake.name, []).append(name)
    every = ((mistake, list(dict.fromkeys(of))) for mistake, of in names.items())
    return [
        (name, mistake) for n, (mistake, of) in enumerate(every) for name in (of if len(of) <= 6 else of[n % 5 :: 5])
    ]


PAIRS = pairs()


def test_every_encoding_and_every_mistake_is_tried():
    assert {name for name, _ in PAIRS} == set(dape.encodings())
    assert {mistake for _, mistake in PAIRS} == {each.name for name in dape.encodings() for each in mistakes_of(name)}


@pytest.mark.parametrize("name, mistake", few(4, PAIRS))
def test_a_mistake_is_found_by_what_it_gives(name, mistake):
    made = next(each for each in mistakes_of(name) if each.name == mistake)
    possible, cases = False, []
    for case in files.read(name):
        out = made.output(Setting(case, reference(name, case)))
        if out is not None:
            cases.append(case)
            right = Setting(case, reference(name, case)).right()
            cells = torch.ones_like(right, dtype=torch.bool) if case.x is not None else case.visible.expand_as(right)
            cells = cells if made.masks else torch.ones_like(cells)
            possible |= bool(((out - right).abs()[cells] > 1e-4 * right.abs().max().clamp(min=1)).any())
    if not possible:
        return  # lags of a bias that knows no direction, positions from 1 where only lags are read, ...
    by_shape = {(c.dims, c.length, c.causal, tuple(c.parameters)): c for c in cases}

    def build(num_heads, head_dim, train_length, model_dim, length):
        return next(Made(name, made, c) for c in by_shape.values() if built_for(c, num_heads, length))

    def built_for(case, heads, length):
        return case.dims.num_heads == heads and case.length == length

    verdict = dape.verify(build, name, cases=[case.name for case in cases])
    assert not verdict, made.name
    assert made.says in [each.mistake.says for each in verdict.likely], str(verdict)


def test_names_of_mistakes_are_their_own():
    said = {}
    for each in MISTAKES:
        assert said.setdefault(each.name, each.says) == each.says


@pytest.mark.parametrize(
    "name", ["rope", "yarn", "fire", "sandwich", "transformer-xl", "cope", "dape-kerple", "dape-v2-t5"]
)
def test_what_mistakes_are_made_of_is_right_if_nothing_is_changed(name):
    """The parts that mistakes replace are a second implementation: unchanged they give the right logits."""
    from dape.conformance.mistakes import adaptive, biases, rotary
    from dape.positional.angles import angles

    parts = {
        "rope": rotary._turned,
        "yarn": rotary._turned,
        "fire": lambda s: biases._fire(s, s.base.normalised_distance(s.case.grid)),
        "sandwich": lambda s: biases._sandwich(s, lambda w: angles(s.case.lag, w).cos().sum(-1)),
        "transformer-xl": adaptive._xl,
        "cope": lambda s: adaptive._cope(s, adaptive._counted(s, s.scores.sigmoid())),
        "dape-kerple": lambda s: (sum(adaptive._read(s)) + adaptive._f(s, *adaptive._read(s))).squeeze(0),
        "dape-v2-t5": adaptive._v2,
    }
    for case in files.read(name):
        found = parts[name](Setting(case, reference(name, case)))
        assert ((found - case.expected)[case.visible.expand_as(found)].abs() < 1e-12 * case.expected.abs().max()).all()


# What else is said ---------------------------------------------------------------------------------------------------


def test_gradients_alone_are_found():
    verdict = dape.verify(wrong().KerpleDetached, "kerple", cases=["short"])
    assert not verdict and verdict.off < 1e-12
    assert "gradients are off: r2" in str(verdict) and "r1 by" not in str(verdict)


def test_where_it_is_off():
    text = str(dape.verify(wrong().KerpleOffByOne, "kerple", cases=["short"]))
    assert "all heads; all lags (off by, at lag 0" in text
    assert "Lengths: right within the training length, off beyond it." in str(
        dape.verify(lambda q, k, v: rope(q, k, v), "pi")
    )
    heads = dape.verify(lambda num_heads: lambda q_pos, k_pos: of_the_text(q_pos, k_pos, num_heads), "alibi")
    assert "off at 12" in str(heads) and heads.likely[0].mistake.name == "slopes-of-the-text"


def of_the_text(q_pos, k_pos, num_heads):
    return wrong().alibi_of_the_text(q_pos, k_pos, num_heads)


def rope(q, k, v):
    from plain import Rotary

    return Rotary(q.shape[-1], 8)(q, k, v)


def test_attention_without_a_mask_leaks():
    verdict = dape.verify(wrong().leaky_attention, "nope")
    assert not verdict and "the future leaks in" in str(verdict)


def test_whose_error_it_is():
    verdict = dape.verify(wrong().Raises, "kerple")
    assert (
        not verdict and "your code raised AttributeError" in str(verdict.raised) and "wrong.py:" in str(verdict.raised)
    )
    verdict = dape.verify(wrong().GivesNothing, "dape-nope")
    assert "your code must give a tensor or an array, and gave nothing" in str(verdict.raised)
    verdict = dape.verify(lambda q, k: q @ k.mT[..., :2], "nope")
    assert "must give the shape [4, 5, 5]" in str(verdict.raised)


def test_arrays_of_numpy():
    import numpy as np

    def alibi(num_heads):
        slopes = 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)
        return lambda q_pos, k_pos: -slopes[:, None, None] * np.abs(q_pos[:, None] - k_pos)

    verdict = dape.verify(alibi, "alibi", arrays="numpy", cases=["short", "long", "far"])
    assert verdict and "gradients were not compared" in str(verdict)


def test_options_are_computed_by_the_reference():
    def interleaved(q, k):
        angle = torch.arange(q.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, q.shape[-1], 2) / q.shape[-1])
        turn = lambda x: torch.view_as_real(  # noqa: E731
            torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            * torch.polar(torch.ones(()).double(), angle.double())
        ).flatten(-2)
        return turn(q) @ turn(k).mT / q.shape[-1] ** 0.5

    verdict = dape.verify(interleaved, "rope")
    assert not verdict and "interleaved=true" in str(verdict)
    assert dape.verify(interleaved, "rope", options={"interleaved": True})


def test_own_encodings_are_right_and_float32_is_near():
    from dape.positional.kerple import Kerple

    assert dape.verify(Kerple, "kerple", tolerance=1e-13)
    verdict = dape.verify(Kerple, "kerple", precision="float32")
    assert verdict and verdict.off > 1e-9


@pytest.mark.parametrize(
    "target, encoding, how, says",
    [
        ("nothing", "kerple", {}, "MODULE:NAME"),
        ("no_such_module:K", "kerple", {}, "no module"),
        ("no/such/file.py:K", "kerple", {}, "there is no file"),
        ("wrong:K", "kerple", {}, "has no 'K'"),
        ("wrong:KerpleRaw", "kerpel", {}, "Did you mean 'kerple'"),
        ("wrong:KerpleRaw", "randomized-kerple", {}, "drawn anew"),
        ("wrong:KerpleRaw", "kerple", {"cases": ["middle"]}, "it has short, long"),
        ("wrong:KerpleRaw", "kerple", {"names": {"p": "r1"}}, "no parameter 'p'"),
        ("wrong:KerpleRaw", "kerple", {"names": {"r1": "r3"}}, "have no parameter 'r3'"),
        ("wrong:KerpleRaw", "dape-kerple", {}, "do not match by name"),
        ("wrong:KerpleRaw", "kerple", {"kind": "any"}, "choose one of"),
        ("wrong:KerpleRaw", "kerple", {"tolerance": 2.0}, "between 0 and 1"),
        ("wrong:KerpleRaw", "kerple", {"options": {"scale": 2}}, "has no option"),
        ("wrong:lags", "kerple", {"init": {"a": 1}}, "for classes and factories"),
        ("wrong:KerpleRaw.bias", "kerple", {"kind": "auto"}, "what it takes cannot be told"),
        ("wrong:leaky_attention", "sinusoidal", {}, "compared by `embed`"),
    ],
)
def test_arguments_that_do_not_fit(target, encoding, how, says):
    with pytest.raises(UsageError) as error:
        dape.verify(target, encoding, **how)
    assert says in str(error.value)


def test_the_constructor_is_told_what_it_cannot_know():
    class Odd(wrong().Kerple):
        def __init__(self, n, half):
            super().__init__(n)

    with pytest.raises(UsageError, match="must say what n, half is"):
        dape.verify(Odd, "kerple")
    assert dape.verify(Odd, "kerple", init={"n": "num_heads", "half": 0.5})


def test_exit_codes(capsys, monkeypatch):
    monkeypatch.chdir(HERE)
    assert main(["verify", "plain.py:Kerple", "--as", "kerple", "--cases", "short", "clamp"]) == 0
    assert "right: off by at most" in capsys.readouterr().out
    assert main(["verify", "wrong:KerpleRaw", "--as", "kerple", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["mistakes"][0]["name"] == "parameters-not-clamped" and not record["right"]
    assert main(["verify", "wrong:Raises", "--as", "kerple"]) == 1
    assert "While computing the case short, your code raised AttributeError" in capsys.readouterr().out
    assert main(["verify", "wrong:KerpleRaw", "--as", "kerpel"]) == 2
    assert main(["verify", "wrong:KerpleRaw", "--as", "dape-kerple"]) == 2
    assert "Say by --names which is which" in capsys.readouterr().err


def test_vectors_are_listed_and_described(capsys):
    assert main(["vectors"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(dape.encodings()) + 1
    assert main(["vectors", "kerple"]) == 0
    assert "Known mistakes:" in capsys.readouterr().out
    assert main(["vectors", "kerpel"]) == 2
    assert "Did you mean 'kerple'?" in capsys.readouterr().err
