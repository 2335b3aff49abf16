"""Padding and packed documents: every text of a batch comes out as it does alone, with any encoding."""

from functools import partial

import pytest
import torch
from tests.growing import stretch_grows
from tests.thinned import few
from torch.utils.checkpoint import checkpoint

from dape.models.cache import Cache
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.models.places import Places, reads_distances_only
from dape.ops.attention import attention
from dape.positional.catalogue import encodings

NAMES = [*encodings(), "randomized-rope", "randomized-learned", "randomized-dape-fire"]
LENGTHS = (13, 6, 1)


def tiny(encoding: str) -> DecoderLM:
    torch.manual_seed(0)
    config = DecoderConfig(layers=2, width=16, heads=2, vocabulary=11, encoding=encoding, train_length=8)
    return DecoderLM(config).double().eval()


def texts() -> list[torch.Tensor]:
    return [torch.randint(11, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def batch(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts at the given places of a row, and where padding is."""
    tokens = torch.full((len(rows), max(max(row) for row in rows) + 1), 7)
    padding = torch.ones_like(tokens, dtype=torch.bool)
    for index, (text, row) in enumerate(zip(texts(), rows, strict=True)):
        tokens[index, row], padding[index, row] = text, False
    return tokens, padding


LEFT = [list(range(13 - n, 13)) for n in LENGTHS]
RIGHT = [list(range(n)) for n in LENGTHS]
BROKEN = [[*range(1, 5), *range(7, 16)], [0, 2, 3, 5, 8, 12], [3]]


def bears_gaps(name: str) -> bool:
    """Convolutions read neighbouring keys as they are stored: padding inside of a text is a gap to them."""
    return "v2" not in name and name != "multi-token"


CASES = [(name, rows) for name in NAMES for rows in (LEFT, RIGHT, BROKEN) if rows != BROKEN or bears_gaps(name)]


@pytest.mark.parametrize(("name", "rows"), few(34, CASES))
def test_a_padded_text_is_the_text_alone(name, rows):
    model, (tokens, padding) = tiny(name), batch(rows)
    drawn = model.drawn_encodings(20, torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(tokens, places=Places.beside(padding), encodings=drawn)
        for index, text in enumerate(texts()):
            torch.testing.assert_close(found[index, rows[index]], model(text[None], encodings=drawn)[0])


CACHED = [name for name in NAMES if not stretch_grows(name)]


@pytest.mark.parametrize(
    ("name", "rows"), [(name, rows) for name in CACHED for rows in (LEFT, BROKEN) if rows == LEFT or bears_gaps(name)]
)
def test_padded_texts_are_continued_with_a_cache(name, rows):
    model, (tokens, padding) = tiny(name), batch(rows)
    drawn = model.drawn_encodings(20, torch.Generator().manual_seed(0))
    more = torch.randint(11, (3, 4), generator=torch.Generator().manual_seed(9))
    cache, parts = Cache(2), []
    with torch.no_grad():
        for part in (tokens, *more.split([1, 2, 1], dim=1)):
            padding = padding if part is tokens else torch.nn.functional.pad(padding, (0, part.shape[1]))
            parts.append(model(part, places=Places.beside(padding), cache=cache, encodings=drawn))
        for index, text in enumerate(texts()):
            alone = model(torch.cat([text, more[index]])[None], encodings=drawn)[0]
            torch.testing.assert_close(torch.cat(parts[1:], dim=1)[index], alone[-4:])


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_do_not_see_each_other(name):
    model, drawn_for = tiny(name), 20
    drawn = model.drawn_encodings(drawn_for, torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with torch.no_grad():
        found = model(torch.cat(texts())[None], places=Places.packed(positions), encodings=drawn)[0]
        alone = [model(text[None], encodings=drawn)[0] for text in texts()]
    torch.testing.assert_close(found, torch.cat(alone))


def test_the_last_rows_of_a_padded_batch():
    model, (tokens, padding) = tiny("dape-fire"), batch(LEFT)
    places = Places.beside(padding)
    with torch.no_grad():
        whole = model.hidden(tokens, places=places)
        torch.testing.assert_close(model.hidden(tokens, places=places, last=2), whole[:, -2:])


def test_which_encodings_need_no_positions():
    """Those stay on the fast paths of the operator."""
    fast = {name for name in encodings() if reads_distances_only(tiny(name).encodings[0])}
    assert {"nope", "rope", "alibi", "kerple", "t5", "dape-kerple", "dape-rope"} <= fast
    assert {"cope", "transformer-xl", "dape-v2-kerple"} <= fast
    assert not {"fire", "dape-fire", "dape-v2-fire", "pi", "yarn"} & fast


def test_left_padding_keeps_the_tables_over_lags():
    _, padding = batch(LEFT)
    pe = tiny("dape-kerple").encodings[0].float()
    q, k, v = torch.randn(3, 3, 2, 13, 8).unbind()
    _, choice = attention(q, k, v, pe, **Places.beside(padding).for_attention(pe, 13), explain=True)
    assert choice.kernel == "lag tables"


def test_embeddings_in_place_of_tokens_and_what_blocks_see():
    model, seen = tiny("learned"), []
    tokens = texts()[1][None]
    with torch.no_grad():
        whole = model.hidden(tokens, seen=seen)
        torch.testing.assert_close(model.hidden(model.embedding(tokens)), whole)
        torch.testing.assert_close(seen[0], model.embedding(tokens) + model.encodings[0].table[:6])
        torch.testing.assert_close(model.norm(model.blocks[1](seen[1], model.encodings[0])), whole)
    assert len(seen) == 2


def test_recomputing_blocks_gives_the_same_gradients():
    tokens, grads, calls = texts()[0][None], [], []

    def counted(block, *args):
        calls.append(block)
        return checkpoint(block, *args, use_reentrant=False)

    for recompute in (None, counted, partial(checkpoint, use_reentrant=False)):
        model = tiny("dape-kerple").train()
        model.hidden(tokens, recompute=recompute).square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(calls) == 2
    for one, other, third in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32])
def test_positions_of_any_width(dtype):
    """255 + 1 is 0 in 8 bits: a new document that begins there must be seen."""
    top = torch.iinfo(dtype).max if dtype.itemsize == 1 else 255
    positions = torch.tensor([[top - 1, top, 0, 1, 0]]).to(dtype)
    packed = Places.packed(positions)
    assert packed.documents is not None and packed.documents.tolist() == [[0, 0, 1, 1, 2]]
    assert packed.positions.dtype == torch.int64
    model, tokens = tiny("dape-fire"), torch.arange(5)[None]
    assert torch.equal(model(tokens, places=packed), model(tokens, places=Places.packed(positions.long())))
