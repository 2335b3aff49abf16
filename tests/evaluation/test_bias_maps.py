# pyright: reportOperatorIssue=false
"""Bias maps are what the model computes: against its own attention output, and against the equations written out."""

import math

import numpy as np
import pytest
import torch

from dape.evaluation import bias_maps
from dape.evaluation.bias_maps import last_rows, stages, terms_of
from dape.evaluation.map_files import STAGES
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.positional.dape import Dape

LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = 3, 3, 24, 31, 13
ALL = {"layers": range(1, LAYERS + 1), "heads": range(1, HEADS + 1)}
STATIC = ["alibi", "kerple", "kerple-power", "t5", "sandwich", "fire"]
PLAIN = ["nope", "sinusoidal", "learned", "rope", "pi", "yarn"]
CONTENT = ["cope", "transformer-xl"]
VARIANTS = ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"]
DAPES = ["dape-kerple", "dape-fire", "dape-rope", "dape-nope", "dape-v2-kerple", "dape-v2-rope"]
CASES = [
    *((name, {}) for name in [*STATIC, *PLAIN, *CONTENT, *DAPES, "randomized-dape-kerple", "randomized-rope"]),
    *(("dape-kerple", {"variant": variant}) for variant in VARIANTS[1:]),
    ("dape-v2-alibi", {"mask_hidden": False}),
]


def make(name: str, **options) -> DecoderLM:
    """A model whose parameters all matter: larger queries and keys, and nothing left at zero."""
    torch.manual_seed(0)
    config = DecoderConfig(
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        vocabulary=VOCABULARY,
        encoding=name,
        encoding_options=options,
        train_length=8,
    )
    model = DecoderLM(config).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(4)
            block.attention.qkv.bias.normal_()
        for parameter in model.encodings.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model


def windows(samples: int = 2, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (samples, length))


def observed(model: DecoderLM, window: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per layer, what went into attention and what came out of it: [t, m] each."""
    seen = []
    handles = [
        block.attention.register_forward_hook(lambda _, args, out: seen.append((args[0][0], out[0])))
        for block in model.blocks
    ]
    with torch.no_grad():
        model.hidden(torch.from_numpy(window)[None], encodings=bias_maps.drawn_once(model, len(window)))
    for handle in handles:
        handle.remove()
    return seen


def projected(model: DecoderLM, layer: int, x: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values by hand: [h, t, d] each."""
    qkv = model.blocks[layer].attention.qkv
    return [part.reshape(len(x), HEADS, -1).transpose(0, 1) for part in (x @ qkv.weight.T + qkv.bias).chunk(3, dim=-1)]


def assert_near(actual, expected, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


# Against the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, LENGTH])
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: x if isinstance(x, str) else str(x or ""))
@torch.no_grad()
def test_weights_times_values_is_what_the_model_computes(name, options, length):
    model, text = make(name, **options), windows(length=length)
    found = last_rows(model, text, **ALL)
    assert {stage: found[stage].shape for stage in STAGES} == dict.fromkeys(STAGES, (2, LAYERS, HEADS, length))
    assert all(found[stage].dtype == np.float32 and np.isfinite(found[stage]).all() for stage in STAGES)
    for sample, window in enumerate(text):
        for layer, (x, out) in enumerate(observed(model, window)):
            _, _, v = projected(model, layer, x)
            mixed = (torch.from_numpy(found["weights"][sample, layer])[:, None] @ v).transpose(0, 1).flatten(1)
            attention = model.blocks[layer].attention
            assert_near(mixed @ attention.out.weight.T + attention.out.bias, out[-1:], 2e-5)
            logits = torch.from_numpy(found["logits"][sample, layer])
            assert_near(logits.softmax(-1), found["weights"][sample, layer])


@pytest.mark.parametrize("name", ["dape-kerple", "kerple", "nope", "cope", "dape-alibi"])
@torch.no_grad()
def test_scores_are_scaled_and_before_bias_and_mask(name):
    model, (window,) = make(name), windows(1)
    found = last_rows(model, window[None], **ALL)
    for layer, (x, _) in enumerate(observed(model, window)):
        q, k, _ = projected(model, layer, x)
        assert_near(found["scores"][0, layer], (q[:, -1:] @ k.mT)[:, 0] / math.sqrt(WIDTH // HEADS))


# Against the equations -----------------------------------------------------------------------------------------------


def f_by_hand(pe: Dape, x: np.ndarray) -> np.ndarray:
    """[heads in, key] to [heads, key], in double precision."""
    w1, b1, w2, b2 = (
        p.detach().double().numpy() for p in (pe.f.first.weight, pe.f.first.bias, pe.f.second.weight, pe.f.second.bias)
    )
    z = w1 @ x + b1[:, None]
    return w2 @ np.where(z > 0, z, 0.01 * z) + b2[:, None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_dape_by_hand(variant):
    model, text = make("dape-kerple", variant=variant), windows()
    found = last_rows(model, text, **ALL)
    lag = np.arange(LENGTH - 1, -1, -1)
    for sample in range(2):
        for layer in range(LAYERS):
            pe = model.encodings[layer]
            a = found["scores"][sample, layer].astype(np.float64)
            r1, r2 = ({n.removeprefix("base."): p for n, p in pe.named_parameters()}[n].detach() for n in ("r1", "r2"))
            b = -r1.double().numpy()[:, None] * np.log1p(r2.double().numpy()[:, None] * lag)
            inputs = {"add_residual": a + b, "bias_only": b, "bias_map": b}.get(variant, np.concatenate([a, b]))
            f = f_by_hand(pe, inputs)
            assert_near(found["bias"][sample, layer], b)
            assert_near(found["f"][sample, layer], f)
            assert_near(found["logits"][sample, layer], a + f + (0 if variant in ("concat", "bias_map") else b))
    if variant in ("bias_only", "bias_map"):
        assert (found["f"][0] == found["f"][1]).all()
    else:
        assert np.abs(found["f"][0] - found["f"][1]).max() > 1e-3


def test_dape_without_bias():
    model = make("dape-rope")
    found = last_rows(model, windows(), **ALL)
    assert (found["bias"] == 0).all()
    for layer in range(LAYERS):
        assert_near(found["f"][0, layer], f_by_hand(model.encodings[layer], found["scores"][0, layer]))
    assert_near(found["logits"], found["scores"] + found["f"])


@pytest.mark.parametrize("name", STATIC)
def test_a_static_bias_has_no_f(name):
    model = make(name)
    found = last_rows(model, windows(), **ALL)
    assert (found["f"] == 0).all() and (found["bias"][0] == found["bias"][1]).all()
    positions = torch.tensor([LENGTH - 1]), torch.arange(LENGTH)
    for layer in range(LAYERS):
        pe = model.encodings[layer % len(model.encodings)]
        assert_near(found["bias"][0, layer], pe.bias(*positions).detach()[:, 0])
    assert_near(found["logits"], found["scores"] + found["bias"])


@pytest.mark.parametrize("name", PLAIN)
def test_no_bias_at_all(name):
    found = last_rows(make(name), windows(), **ALL)
    assert (found["f"] == 0).all() and (found["bias"] == 0).all()
    assert (found["logits"] == found["scores"]).all()


@pytest.mark.parametrize("name", CONTENT)
def test_what_content_adds(name):
    found = last_rows(make(name), windows(), **ALL)
    assert (found["bias"] == 0).all()
    assert_near(found["f"], found["logits"] - found["scores"])
    assert np.abs(found["f"][0] - found["f"][1]).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("kerple", {}, (True, "", "A + B", "")),
        ("rope", {}, (False, "", "A", "")),
        ("dape-kerple", {}, (True, "f([A; B])", "A + B + f([A; B])", "concat_residual")),
        ("dape-kerple", {"variant": "concat"}, (True, "f([A; B])", "A + f([A; B])", "concat")),
        ("dape-kerple", {"variant": "add_residual"}, (True, "f(A + B)", "A + B + f(A + B)", "add_residual")),
        ("dape-kerple", {"variant": "bias_only"}, (True, "f(B)", "A + B + f(B)", "bias_only")),
        ("dape-kerple", {"variant": "bias_map"}, (True, "f(B)", "A + f(B)", "bias_map")),
        ("dape-rope", {}, (False, "f(A)", "A + f(A)", "")),
        ("dape-v2-kerple", {}, (True, "conv([A; B])", "A + B + conv([A; B])", "")),
        ("dape-v2-nope", {}, (False, "conv(A)", "A + conv(A)", "")),
        ("randomized-dape-kerple", {}, (True, "f([A; B])", "A + B + f([A; B])", "concat_residual")),
        ("cope", {}, (False, "P(A, q, k)", "A + P(A, q, k)", "")),
    ],
)
def test_terms_in_words(name, options, expected):
    terms = terms_of(make(name, **options).encodings[0])
    assert (terms.bias, terms.f, terms.logits, terms.variant) == expected


# Which part of it ----------------------------------------------------------------------------------------------------


def test_chosen_layers_and_heads():
    model, text = make("dape-kerple"), windows()
    whole = last_rows(model, text, **ALL)
    part = last_rows(model, text, layers=[1, 3], heads=[2])
    for stage in STAGES:
        assert_near(part[stage], whole[stage][:, [0, 2]][:, :, [1]])


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "cope", "dape-v2-kerple", "rope"])
def test_a_row_of_an_image_is_the_last_row_of_a_shorter_text(name):
    model, (window,) = make(name), windows(1)
    image = stages(model, window, **ALL, queries=6, keys=6)
    for row in range(6):
        position = LENGTH - 6 + row
        shorter = last_rows(model, window[None, : position + 1], **ALL)
        for stage in STAGES:
            assert image[stage].shape == (LAYERS, HEADS, 6, 6)
            assert_near(image[stage][:, :, row, : row + 1], shorter[stage][0][..., LENGTH - 6 :], 2e-5)
            assert np.isnan(image[stage][:, :, row, row + 1 :]).all()


@pytest.mark.parametrize("name", ["dape-kerple", "transformer-xl", "dape-fire"])
def test_blocks_of_rows_change_nothing(name, monkeypatch):
    model, (window,) = make(name), windows(1)
    whole = stages(model, window, **ALL, queries=LENGTH)
    monkeypatch.setattr(bias_maps, "CELLS_AT_ONCE", 4 * LENGTH)
    for stage, blocks in stages(model, window, **ALL, queries=LENGTH).items():
        assert_near(blocks, whole[stage])


def test_memory_is_linear_in_the_length(monkeypatch):
    """The last query is computed as one row, images in blocks of rows; nothing is ever as large as the matrix."""
    seen = []

    def recorded(q, k, pe, **kwargs):
        found = original(q, k, pe, **kwargs)
        seen.append(found.scores.shape[2:])
        return found

    original = bias_maps.intermediates
    monkeypatch.setattr(bias_maps, "intermediates", recorded)
    model, (window,) = make("dape-kerple"), windows(1, 37)
    last_rows(model, window[None], **ALL)
    assert seen == [(1, 37)] * LAYERS
    seen.clear()
    monkeypatch.setattr(bias_maps, "CELLS_AT_ONCE", 5 * 37 + 1)
    stages(model, window, layers=[2], heads=[1], queries=12, keys=12)
    assert seen == [(5, 37), (5, 37), (2, 37)]


def test_randomised_positions_are_drawn_once():
    model = make("randomized-dape-kerple")
    before = torch.get_rng_state()
    found = last_rows(model, windows(3), **ALL)
    assert torch.equal(before, torch.get_rng_state())
    assert (found["bias"][0] == found["bias"][1]).all() and (found["bias"][0] == found["bias"][2]).all()
    assert_near(last_rows(model, windows(3), **ALL)["bias"], found["bias"])


def test_the_model_is_left_as_it_was():
    model, text = make("dape-kerple"), windows(1)
    before = model(torch.from_numpy(text))
    last_rows(model, text, **ALL)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)
    assert torch.equal(model(torch.from_numpy(text)), before)


def test_progress_is_told():
    heard = []
    last_rows(make("rope"), windows(3), **ALL, watch=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


class Doubled(Dape):
    def logits(self, scores, q, k, grid):
        return 2 * super().logits(scores, q, k, grid)


def test_logits_of_other_terms_are_refused():
    model = make("dape-kerple")
    pe = model.encodings[1]
    model.encodings[1] = Doubled(pe.dims, pe.base)
    with pytest.raises(ValueError, match=r"dape-kerple: its logits are not A \+ B \+ f.*Possible are additive biases"):
        last_rows(model, windows(1), **ALL)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)
    last_rows(model, windows(1), layers=[1, 3], heads=[1])
