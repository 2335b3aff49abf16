"""Decoding: with the cache the same as without, one token at a time, and choices that follow their definition."""

import math

import pytest
import torch
from tests.growing import GROWING
from tests.thinned import few

from dape.models.cache import Cache
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.models.generate import Sampling, choose, generate
from dape.positional.catalogue import encodings
from dape.positional.names import parse
from dape.positional.rope import Rope

VOCABULARY, TRAIN_LENGTH = 13, 8
NAMES = [*encodings(), "randomized-rope", "randomized-sinusoidal", "randomized-dape-fire"]


def tiny(encoding: str = "dape-kerple", **settings) -> DecoderLM:
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocabulary": VOCABULARY, "train_length": TRAIN_LENGTH}
    model = DecoderLM(DecoderConfig(encoding=encoding, **{**sizes, **settings})).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)  # choices are clear, and depend on the context
    return model


def texts(model: DecoderLM, prompt: torch.Tensor, tokens: int, *, seed: int = 0, **settings) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(list(generate(model, prompt, tokens, generator=generator, **settings)), dim=1)


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(1))


# The cache -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(12, NAMES))
def test_cached_equals_uncached_beyond_the_training_length(name, prompt):
    model = tiny(name, encoding_options=GROWING.get(parse(name).base, {}))
    for sampling in (Sampling(temperature=0), Sampling(temperature=1.3, top_k=9, top_p=0.95)):
        cached, whole = (texts(model, prompt, 12, sampling=sampling, cached=c) for c in (True, False))
        assert cached.shape == (2, 12) and torch.equal(cached, whole)


@pytest.mark.parametrize("name", ["pi", "yarn"])
def test_a_growing_stretch_changes_nothing_up_to_the_training_length(name, prompt):
    model = tiny(name)
    greedy = Sampling(temperature=0)
    assert torch.equal(*(texts(model, prompt, TRAIN_LENGTH - 5, sampling=greedy, cached=c) for c in (True, False)))


def test_long_texts_and_prompts(prompt):
    """The cache doubles its room at 64 tokens; the prompt is longer than the training length."""
    model, greedy = tiny(), Sampling(temperature=0)
    long = prompt.repeat(1, 9)
    cached, whole = (texts(model, long, 22, sampling=greedy, cached=c) for c in (True, False))
    assert long.shape[1] + 22 > 64 and torch.equal(cached, whole)
    assert len(cached.unique()) > 2


def test_greedy_is_the_most_likely_token_of_the_whole_pass(prompt):
    model, text = tiny("kerple"), prompt
    for token in generate(model, prompt, 12, sampling=Sampling(temperature=0)):
        with torch.no_grad():
            assert torch.equal(token, model(text)[:, -1].argmax(-1))
        text = torch.cat([text, token[:, None]], dim=1)


def test_rows_do_not_see_each_other(prompt):
    model, greedy = tiny(), Sampling(temperature=0)
    both = texts(model, prompt, 12, sampling=greedy)
    alone = [texts(model, row[None], 12, sampling=greedy)[0] for row in prompt]
    assert torch.equal(both, torch.stack(alone))


def test_each_new_token_costs_one_token(prompt, monkeypatch):
    model, calls = tiny(), []
    real = model.hidden

    def spy(tokens, **kwargs):
        calls.append(tuple(tokens.shape))
        return real(tokens, **kwargs)

    monkeypatch.setattr(model, "hidden", spy)
    texts(model, prompt, 6)
    assert calls == [(2, 5)] + [(2, 1)] * 5
    calls.clear()
    texts(model, prompt, 3, cached=False)
    assert calls == [(2, 5), (2, 6), (2, 7)]


def test_only_the_last_token_is_projected(prompt):
    model, seen = tiny(), []
    model.head.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    texts(model, prompt, 3)
    assert seen == [(2, VOCABULARY)] * 3


def test_tokens_come_one_by_one(prompt):
    new = generate(tiny(), prompt, 10**9)
    assert [next(new).shape for _ in range(3)] == [(2,)] * 3


def test_nothing_of_the_model_changes(prompt):
    model = tiny("randomized-rope")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    texts(model, prompt, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_beyond_a_table_there_is_nothing(prompt):
    model = tiny("learned", encoding_options={"max_positions": 8})
    new = generate(model, prompt, 9)
    assert len([next(new) for _ in range(4)]) == 4  # positions 0 ... 7
    with pytest.raises(ValueError, match="learned positions reach from 0 to 7, but position 8 was asked for"):
        next(new)


def test_a_cache_starts_empty_and_knows_the_positions():
    cache = Cache(2)
    assert cache.length == 0 and cache.positions(3, torch.device("cpu")).tolist() == [0, 1, 2]
    k = torch.randn(1, 2, 70, 4)
    keys = values = None
    for piece in k.split([1, 64, 5], dim=2):
        for layer in cache.layers:
            keys, values = layer.append(piece, -piece)
    assert cache.length == 70 and cache.positions(2, torch.device("cpu")).tolist() == [70, 71]
    assert keys is not None and values is not None
    assert torch.equal(keys, k) and torch.equal(values, -k)


# Choices -------------------------------------------------------------------------------------------------------------


def literal_probabilities(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """By the definition: the k most likely, and of those the fewest that reach the share p of all probability."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    everything = sum(weights)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept, reached = [], 0.0
    for place, i in enumerate(order):
        if place and ((top_k and place >= top_k) or reached >= top_p - 1e-12):
            break
        kept.append(i)
        reached += weights[i] / everything
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def probabilities(monkeypatch, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What the choice is drawn from."""
    seen = []

    def multinomial(given, count, *, generator=None):
        seen.append(given)
        return torch.zeros(len(given), 1, dtype=torch.long)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        choose(logits, sampling)
    return seen[0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 4, 9, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 1e-9])
def test_probabilities(monkeypatch, temperature, top_k, top_p):
    logits = 3 * torch.randn(5, 9, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    found = probabilities(monkeypatch, logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    expected = [literal_probabilities(row, temperature, top_k, top_p) for row in logits.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double))


def test_top_p_worked_out_by_hand(monkeypatch):
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.double).log()
    for top_p, expected in (
        (0.39, [0, 1, 0, 0]),
        (0.41, [0, 4 / 7, 0, 3 / 7]),
        (0.69, [0, 4 / 7, 0, 3 / 7]),
        (0.71, [0, 4 / 9, 2 / 9, 3 / 9]),
        (0.95, [0.1, 0.4, 0.2, 0.3]),
    ):
        found = probabilities(monkeypatch, logits, Sampling(top_p=top_p))
        torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.double))


def test_equally_likely_tokens(monkeypatch):
    """Exactly k are kept, the first ones."""
    found = probabilities(monkeypatch, torch.zeros(1, 5), Sampling(top_k=2))
    assert found.tolist() == [[0.5, 0.5, 0, 0, 0]]


def test_choices_are_drawn_with_the_generator():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=0.7, top_k=5)
    expected = torch.tensor([literal_probabilities(row, 0.7, 5, 1.0) for row in logits.tolist()])
    for seed in range(5):
        found = choose(logits, sampling, torch.Generator().manual_seed(seed))
        drawn = torch.multinomial(expected, 1, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(found, drawn[:, 0])


def test_seeds(prompt):
    model = tiny()
    first, again, other = (texts(model, prompt, 15, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-320, 1e-40, 1e-38, 1e-3])
def test_low_temperatures_take_the_most_likely(temperature):
    logits = torch.tensor([[1.0, 3.0, 2.0], [50.0, -50.0, 49.0]])
    assert choose(logits, Sampling(temperature=temperature)).tolist() == [1, 0]


def test_a_high_temperature_forgets_the_logits(monkeypatch):
    found = probabilities(monkeypatch, torch.tensor([[1.0, 30.0, -2.0]]), Sampling(temperature=1e30))
    torch.testing.assert_close(found, torch.full((1, 3), 1 / 3))


def test_ids_without_meaning_are_never_chosen(prompt):
    model = tiny()
    with torch.no_grad():
        model.head.weight[7:] *= 100  # the most likely by far
    for sampling in (Sampling(temperature=0), Sampling(temperature=5.0)):
        assert texts(model, prompt, 20, sampling=sampling, allowed=7).max() < 7
    assert texts(model, prompt, 20, sampling=Sampling(temperature=0)).max() >= 7


@pytest.mark.parametrize(("encoding", "most"), [("rope", 20), ("dape-rope", 20), ("yarn", 29)])
def test_keys_are_rotated_once(encoding, most, monkeypatch):
    """A prompt of 20 tokens, then 9 steps: only a rotation that changes with the length turns old keys again."""
    seen = []
    real = Rope.rotate
    monkeypatch.setattr(Rope, "rotate", lambda self, q, k, grid: seen.append(k.shape[2]) or real(self, q, k, grid))
    prompt = torch.arange(20).remainder(VOCABULARY).unsqueeze(0)
    assert texts(tiny(encoding, layers=1), prompt, 10).shape == (1, 10)
    assert seen[0] == 20 and max(seen) == most and len(seen) == 10
