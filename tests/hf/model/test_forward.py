"""Our model's outputs in the transformers library: the decoder's own numbers, padded, packed and compiled."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.model.models import NAMES, decoder, tiny, tokens


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_decoder(name):
    model = tiny(name)
    with torch.no_grad():
        expected = decoder(model)(tokens(2, 30))
        assert torch.equal(model(tokens(2, 30), use_cache=False).logits, expected)
        torch.testing.assert_close(model(tokens(2, 30)).logits, expected)
        embedded = model.get_input_embeddings()(tokens(2, 30))
        torch.testing.assert_close(model(inputs_embeds=embedded).logits, expected)
        for keep in (1, 4, torch.tensor([3, 5])):
            rows = slice(-keep, None) if isinstance(keep, int) else keep
            torch.testing.assert_close(model(tokens(2, 30), logits_to_keep=keep).logits, expected[:, rows])


def test_the_loss_is_that_of_the_next_token():
    model, text = tiny(), tokens(2, 9)
    labels = text.clone()
    labels[0, :4] = -100
    out = model(text, labels=labels)
    nats = [
        -out.logits[row, i].log_softmax(-1)[text[row, i + 1]]
        for row in (0, 1)
        for i in range(8)
        if row == 1 or i + 1 >= 4
    ]
    torch.testing.assert_close(out.loss, torch.stack(nats).mean())
    torch.testing.assert_close(model(text, labels=labels, num_items_in_batch=26).loss, torch.stack(nats).sum() / 26)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_text_is_the_text_alone(name, side):
    model, lengths = tiny(name), (11, 4, 7)
    batch, mask = torch.zeros(3, 11, dtype=torch.long), torch.zeros(3, 11, dtype=torch.long)
    where = [slice(11 - n, 11) if side == "left" else slice(0, n) for n in lengths]
    texts = [tokens(1, n, seed=n) for n in lengths]
    for row, (text, place) in enumerate(zip(texts, where, strict=True)):
        batch[row, place], mask[row, place] = text[0], 1
    with torch.no_grad():
        found = model(batch, attention_mask=mask).logits
        for row, (text, place) in enumerate(zip(texts, where, strict=True)):
            torch.testing.assert_close(found[row, place], model(text).logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_are_the_documents_alone(name):
    model, lengths = tiny(name), (5, 1, 8)
    texts = [tokens(1, n, seed=n) for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad():
        found = model(torch.cat(texts, dim=1), position_ids=positions).logits
        alone = torch.cat([model(text).logits for text in texts], dim=1)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)


def test_positions_that_a_cache_cannot_keep_are_refused():
    model, positions = tiny(), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad(), pytest.raises(ValueError, match="possible only without a cache"):
        model(tokens(), position_ids=positions, use_cache=True)
    with pytest.raises(ValueError, match="7 tokens, but position_ids of shape"):
        model(tokens(), position_ids=positions[:, :4])


@pytest.mark.parametrize("at_padding", [0, 1, 99])
def test_positions_of_padding_do_not_matter(at_padding):
    """Programs fill in different numbers; those of text agree with the mask, also for a cache."""
    model, mask = tiny("dape-fire"), torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, at_padding)
    with torch.no_grad():
        expected = model(tokens(), attention_mask=mask, use_cache=True).logits
        found = model(tokens(), attention_mask=mask, position_ids=positions, use_cache=True).logits
    assert torch.equal(found, expected)


def test_masks_of_other_forms_are_refused():
    model = tiny()
    for mask in (torch.ones(2, 1, 7, 7), torch.ones(2, 6), torch.ones(1, 7)):
        with pytest.raises(ValueError, match=r"attention_mask must be \[batch, tokens\] = \[2, 7\]"):
            model(tokens(), attention_mask=mask)
    cache = model(tokens(), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"= \[2, 9\], 7 of them in the cache"):
        model(tokens(2, 2), attention_mask=torch.ones(2, 2), past_key_values=cache)


def test_either_tokens_or_embeddings():
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny()()
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        tiny()(tokens(), inputs_embeds=torch.zeros(2, 7, 32))


def test_hidden_states_and_tuples():
    model = tiny()
    with torch.no_grad():
        out = model(tokens(), output_hidden_states=True, logits_to_keep=2)
        assert [tuple(x.shape) for x in out.hidden_states] == [(2, 7, 32)] * 3
        torch.testing.assert_close(out.hidden_states[0], model.model.embedding(tokens()))
        torch.testing.assert_close(model.model.head(out.hidden_states[-1])[:, -2:], out.logits)
        assert model(tokens()).hidden_states is None
        (logits,) = model(tokens(), use_cache=False, return_dict=False)
        torch.testing.assert_close(logits[:, -2:], out.logits)
    with pytest.raises(ValueError, match=r"dape\.intermediates"):
        model(tokens(), output_attentions=True)


@pytest.mark.compile
@pytest.mark.parametrize(("name", "whole"), [("dape-kerple", True), ("dape-fire", False)])
def test_compiled(name, whole):
    """Tables over lags are part of the graph; tiles, which padding and FIRE need, are called between graphs."""
    model, mask = tiny(name), torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        for kwargs in ({}, {"attention_mask": mask}):
            compiled = torch.compile(model, backend="aot_eager", fullgraph=whole and not kwargs)
            found, expected = (m(tokens(), use_cache=False, **kwargs).logits for m in (compiled, model))
            text = mask.bool() if kwargs else torch.ones_like(mask).bool()
            torch.testing.assert_close(found[text], expected[text], rtol=1e-4, atol=1e-5)
