import pytest
import torch

import dape
from dape.conformance.make import featured
from dape.positional import catalogue

ROTATIONS = ["rope", "partial", "pi", "yarn", "ntk", "dynamic", "llama3", "longrope", "proportional"]
UNDER_DAPE = ["nope", *ROTATIONS, "t5", "alibi", "kerple", "kerple-power", "sandwich", "fire", "fox", "inkling"]
BASES = [*UNDER_DAPE, "sinusoidal", "learned", "transformer-xl", "cope"]
BASES += ["rerope", "self-extend", "talking-heads", "multi-token"]
PROMISED = {*BASES, *(f"{p}-{b}" for b in UNDER_DAPE for p in ("dape", "dape-v2"))}
SHIPPED = set(dape.encodings())  # at import, before any test registers its own


def test_every_encoding_asked_for_is_there():
    assert set(dape.encodings()) >= PROMISED
    assert all(entry.name == name for name, entry in dape.encodings().items())


def hooks_that_act(pe):
    """Which hooks change their input, tried out; parameters that start at zero are filled first."""
    with torch.no_grad():
        for p in pe.parameters():
            if not p.any():
                p.normal_()
    x, q, scores = torch.randn(2, 6, 32), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 6)
    grid = featured(dape.Grid.of_length(6, 6, causal=True), pe, x[0])
    acts = {
        "embed": not torch.equal(pe.embed(x, torch.arange(6)), x),
        "rotate": not torch.equal(pe.rotate(q, q, grid)[0], q),
        "logits": not torch.equal(pe.logits(scores, q, q, grid), scores),
    }
    return [hook for hook, does in acts.items() if does]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_line_says_what_the_class_does(make, name):
    entry, pe = dape.encodings()[name], make(name)
    acts = ", ".join(hooks_that_act(pe)) or "none"
    assert entry.hook == ("bias" if isinstance(pe, dape.AdditiveBias) else acts)
    assert (entry.learns == "nothing") == (not list(pe.parameters()))
    assert entry.dape == (pe.allows_dape() and not isinstance(pe, dape.Dape | dape.DapeV2))
    assert entry.bidirectional == pe.supports_bidirectional
    assert entry.features == pe.needs_features
    assert entry.equation and entry.extrapolates
    assert not hasattr(pe, "bias") or entry.hook in ("bias", "logits", "rotate, logits")


def test_which_encodings_allow_dape_and_both_directions():
    classes = {name: dape.encodings()[name].load() for name in BASES}
    assert {name for name, encoding in classes.items() if encoding.allows_dape()} == set(UNDER_DAPE)
    assert {name for name, encoding in classes.items() if not encoding.supports_bidirectional} == {
        "cope",
        "fox",
        "inkling",
        "rerope",
        "self-extend",
    }


def test_lines_of_wrapped_encodings_are_derived():
    entries = dape.encodings()
    assert entries["dape-kerple"].equation == "A + B + f([A; B]), B of kerple"
    assert entries["dape-kerple"].learns == "f 2h-32-h + r1, r2 (h)"
    assert entries["dape-alibi"].learns == "f 2h-32-h"
    assert entries["dape-rope"].equation == "A + f(A), A of rope"
    assert entries["dape-v2-nope"].equation == "A + conv(A), A of nope"
    assert entries["dape-v2-alibi"].equation == "A + B + conv([A; B]), B of alibi"
    assert entries["dape-v2-alibi"].learns == "conv 1x3 2h-32-h"


# register() ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_catalogue():
    """What a test registers is gone afterwards."""
    before = dict(catalogue.ENTRIES)
    yield
    catalogue.ENTRIES.clear()
    catalogue.ENTRIES.update(before)


class Flat(dape.RelativeBias):
    """b(i, j) = height"""

    def __init__(self, dims, *, height: float = 1.0):
        super().__init__(dims)
        self.height = height

    def bias_at(self, lag, *, causal):
        return torch.full((self.dims.num_heads, *lag.shape), self.height)


@pytest.mark.usefixtures("own_catalogue")
def test_a_registered_bias_is_built_wrapped_and_listed(make):
    dape.register("flat", Flat, extrapolates="perfectly")
    entry = dape.encodings()["flat"]
    assert (entry.hook, entry.equation, entry.extrapolates) == ("bias", "b(i, j) = height", "perfectly")
    assert entry.dape and entry.bidirectional

    n = torch.arange(3)
    assert make("flat", height=2.5).bias(n, n).unique().tolist() == [2.5]
    pe = make("dape-flat", height=2.5, zero_init_out=True)
    scores, q = torch.randn(1, 4, 3, 3), torch.randn(1, 4, 3, 8)
    torch.testing.assert_close(pe.logits(scores, q, q, dape.Grid.of_length(3, 3, causal=True)), scores + 2.5)
    for name in ("dape-flat", "dape-v2-flat"):
        assert name in dape.encodings()
    assert isinstance(make("randomized-dape-v2-flat"), dape.Randomized)


@pytest.mark.usefixtures("own_catalogue")
def test_names_that_are_taken_or_reserved_are_refused():
    dape.register("flat", Flat)
    for name in ("flat", "alibi", "dape-alibi", "dape-flat"):
        with pytest.raises(ValueError, match=f"'{name}' is taken"):
            dape.register(name, Flat)
    for name in ("dape-new", "dape-v2-new", "randomized-new"):
        with pytest.raises(ValueError, match="reserved prefix"):
            dape.register(name, Flat)
    dape.register("alibi", Flat, equation="flat", replace_existing=True)
    assert dape.encodings()["alibi"].equation == "flat"


@pytest.mark.usefixtures("own_catalogue")
def test_an_encoding_that_only_looks_back_is_listed_as_such():
    class OnlyBack(Flat):
        supports_bidirectional = False

    dape.register("only-back", OnlyBack)
    assert not dape.encodings()["only-back"].bidirectional
    assert not dape.encodings()["dape-only-back"].bidirectional


@pytest.mark.usefixtures("own_catalogue")
def test_names_that_cannot_be_typed_are_refused():
    for name in ("", "two words", "a/b", "tab\t"):
        with pytest.raises(ValueError, match="a name is letters, digits"):
            dape.register(name, Flat)
    dape.register("My_Flat-1.5", Flat)
    assert "dape-My_Flat-1.5" in dape.encodings()


@pytest.mark.usefixtures("own_catalogue")
@pytest.mark.parametrize(
    "wrong", [3, dict, dape.Grid, Flat(dape.AttentionDims(num_heads=1, head_dim=2, train_length=3, model_dim=2))]
)
def test_only_classes_of_encodings_can_be_registered(wrong):
    with pytest.raises(TypeError, match=r"subclass of dape\.PositionalEncoding"):
        dape.register("wrong", wrong)


@pytest.mark.usefixtures("own_catalogue")
def test_a_bias_without_its_method_is_refused():
    class Unfinished(dape.RelativeBias):
        pass

    with pytest.raises(TypeError, match="Unfinished is abstract: implement bias_at"):
        dape.register("unfinished", Unfinished)


@pytest.mark.usefixtures("own_catalogue")
def test_dape_is_not_offered_over_something_it_would_drop():
    """DAPE uses the rotation and the bias of its base: logits or embeddings of another kind would silently vanish."""

    class OwnLogits(dape.PositionalEncoding):
        def logits(self, scores, q, k, grid):
            return 2 * scores

    class OwnEmbedding(dape.PositionalEncoding):
        def embed(self, x, positions):
            return x + 1

    for name, encoding in (("own-logits", OwnLogits), ("own-embedding", OwnEmbedding)):
        dape.register(name, encoding)
        assert f"dape-{name}" not in dape.encodings()
    assert [dape.encodings()[name].hook for name in ("own-logits", "own-embedding")] == ["logits", "embed"]
    dape.register("own-nothing", type("OwnNothing", (dape.PositionalEncoding,), {}))
    assert dape.encodings()["own-nothing"].hook == "none"


def test_nothing_stays_registered():
    assert set(dape.encodings()) == SHIPPED


def test_names_that_would_collide_with_v2_are_refused():
    with pytest.raises(ValueError, match="reserved prefix"):
        dape.register("v2-alibi", dape.PositionalEncoding)
