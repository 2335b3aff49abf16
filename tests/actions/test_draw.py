"""``dape.draw`` and ``dape draw``: that the pictures show what encodings compute."""

import numpy as np
import pytest
import torch

import dape
from dape.cli import main
from dape.evaluation.effects import Effect, effect

DIMS = {"num_heads": 4, "head_dim": 8, "train_length": 16}


def effect_of(pe, length: int = 40, draws: int = 2) -> Effect:
    return effect("x", pe, length=length, draws=draws, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["alibi", "kerple", "t5", "fire"])
def test_of_an_additive_encoding_it_is_the_bias(name):
    pe = dape.build(name, **DIMS)
    places = torch.arange(40)
    bias = pe.bias(places, places).detach().numpy()
    found = effect_of(pe)
    below = np.tril_indices(40)
    assert np.allclose(found.causal[:, *below], bias[:, *below], atol=1e-4)
    assert np.isnan(found.causal[:, *np.triu_indices(40, 1)]).all()
    assert np.allclose(found.by_distance, bias[:, -1, ::-1], atol=1e-4)


def test_of_dape_it_is_bias_and_f():
    pe = dape.build("dape-kerple", **DIMS)
    plain = effect_of(pe.base).causal
    assert not np.allclose(effect_of(pe).causal, plain, equal_nan=True, atol=1e-2)
    last = [parameter for name, parameter in pe.named_parameters() if "second" in name]
    assert last
    for parameter in last:
        torch.nn.init.zeros_(parameter)
    assert np.allclose(effect_of(pe).causal, plain, equal_nan=True, atol=1e-4)


def test_a_rotated_token_is_most_similar_to_itself():
    near = effect_of(dape.build("rope", **DIMS)).by_distance
    assert np.allclose(near[:, 0], 0, atol=1e-5) and (near[:, 1:] < 0).all()
    assert np.allclose(effect_of(dape.build("nope", **DIMS)).by_distance, 0, atol=1e-5)


def test_randomised_positions_are_farther_apart():
    found = effect_of(dape.build("alibi", **DIMS))
    assert len(found.draws) == 2 and not np.array_equal(*(np.nan_to_num(draw) for draw in found.draws))
    for draw in found.draws:
        assert (draw[:, -1, 0] < found.causal[:, -1, 0]).all() and np.allclose(draw[:, -1, -1], 0)


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "cope", "transformer-xl", "randomized-rope", "dape-v2-fire"])
def test_every_kind_of_encoding_can_be_drawn(name):
    figure = dape.draw(name, heads=2, head_dim=8, train_length=8, draws=1)
    assert len(figure.axes) == 4  # three pictures and a scale of colours


def test_several_are_also_drawn_together(tmp_path):
    module = dape.build("dape-v2-kerple", **DIMS)
    figure = dape.draw("alibi", module, heads=4, head_dim=8, train_length=16, length=24, out=tmp_path / "x.png")
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["alibi", "dape-v2-kerple"]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_options_of_one_encoding(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["draw", "alibi", "dape-alibi", "--options", "dape-alibi.hidden=4", "--length", "12", "--train-length", "8"]
    assert main([*argv, "--heads", "2", "--head-dim", "8", "--out", "both"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.png", "both.svg"]
    assert "wrote both.png and both.svg: alibi, dape-alibi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("nix", "unknown positional encoding 'nix'"),
        ("alibi --out x.pdf", ".png or .svg"),
        ("alibi --length 0", "--length must be at least 1"),
        ("alibi --length 100000", "at most 2048 tokens can be drawn"),
        ("alibi --out nix/x.png", "does not exist"),
        ("alibi --options hidden=4", "alibi"),
    ],
)
def test_what_cannot_be_drawn(argv, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", *argv.split()]) == 2
    assert told in capsys.readouterr().err and list(tmp_path.iterdir()) == []
