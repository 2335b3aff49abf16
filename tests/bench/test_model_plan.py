"""What ``dape bench model`` can run in the memory there is."""

from dataclasses import replace

from dape.bench.model_plan import bytes_needed, plan, shape_of
from dape.training.cost import dense_parameters, encoding_parameters

SHAPE = shape_of("6.7b")
WANTED = [(512, pass_) for pass_ in ("forward", "forward_backward", "step")]
CASE = {"encodings": ("rope", "dape-kerple"), "batch": 1, "half": False}


def test_sizes_are_the_papers():
    assert [shape_of(size).width for size in ("350m", "2.7b", "6.7b")] == [1024, 2560, 4096]
    assert (shape_of("6.7b").vocabulary, shape_of("tiny").vocabulary, shape_of("tiny", 5).vocabulary) == (50304, 257, 5)
    assert not shape_of("6.7b").checkpoint_activations


def test_weights_count_once_for_all_encodings():
    """2 x 201M of the layers and 2 x 206M of the vocabulary: weights, gradients and two moments, 4 bytes each."""
    step = bytes_needed(SHAPE, (1, 2), 512, "step", **CASE)
    own = sum(encoding_parameters(replace(SHAPE, encoding="dape-kerple", layers=n)) for n in (1, 2))
    weights = dense_parameters(replace(SHAPE, layers=2)) + own
    activations = 512 * (2 * 18 * 4 * 4096 + 3 * 4 * 50304)
    assert step == 16 * weights + activations and 13e9 < step < 14e9
    assert bytes_needed(SHAPE, (1, 2), 512, "forward_backward", **CASE) == 8 * weights + activations
    assert bytes_needed(SHAPE, (1, 2), 512, "forward", **CASE) == 4 * weights + 512 * (18 * 4 * 4096 + 12 * 50304)


def test_mixed_precision_needs_a_rounded_copy_of_the_weights():
    full, half = (bytes_needed(SHAPE, (1, 2), 512, "step", **{**CASE, "half": h}) for h in (False, True))
    saved = 512 * (2 * (72 - 48) * 4096 - 4 * 50304)  # activations are smaller, logits larger
    assert half - full == 2 * dense_parameters(replace(SHAPE, layers=2)) - saved


def test_what_fits_is_run_and_the_rest_is_named():
    fits, skipped = plan("6.7b", SHAPE, None, WANTED, limit=8e9, **CASE)
    assert (fits.depths, fits.cases) == ((1, 2), tuple(WANTED[:2]))
    assert skipped == ["6.7b, 2 layers, 512 tokens, step: not run, needs about 13.6 GB of 8 GB that may be used"]


def test_one_layer_if_two_never_fit():
    fits, skipped = plan("6.7b", SHAPE, None, WANTED, limit=3e9, **CASE)
    assert (fits.depths, fits.cases) == ((1,), ((512, "forward"),)) and len(skipped) == 5
    fits, skipped = plan("6.7b", SHAPE, (1, 2), WANTED, limit=3e9, **CASE)  # as asked
    assert (fits.depths, fits.cases, len(skipped)) == ((1, 2), (), 3)
