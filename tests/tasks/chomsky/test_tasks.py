"""Targets against DeepMind's own samples and against plain Python, inputs against the distribution they should have."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from dape.errors import UsageError
from dape.tasks.chomsky.base import Task
from dape.tasks.chomsky.catalogue import TASKS, find, load

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 20, 39, 40, 41)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def written(tokens: Sequence[int], symbols: Sequence[str]) -> str:
    return " ".join(symbols[token] for token in tokens)


# Against DeepMind's samples ------------------------------------------------------------------------------------------


def test_golden_targets_follow_from_golden_inputs(original, golden):
    task = load(original, "deepmind")
    for length in golden["lengths"]:
        inputs, targets, mask = (golden[f"{original}__L{length}__{what}"] for what in ("in", "out", "mask"))
        found = task.solve(inputs)
        np.testing.assert_array_equal(found, targets.reshape(found.shape))
        np.testing.assert_array_equal(task.counted(found), mask.reshape(found.shape).astype(bool))


def test_sizes_are_those_of_the_original(original, golden):
    task, meta = load(original), golden[f"{original}__meta"]
    assert (len(task.inputs), len(task.outputs)) == tuple(meta[:2])
    assert find(original).level == ("regular", "context-free", "context-sensitive")[meta[4]]
    assert [task.output_length(n) for n in range(1, 513)] == golden[f"{original}__outlen_1_to_512"].tolist()
    for length in golden["lengths"]:
        assert golden[f"{original}__L{length}__in"].shape[1] == task.input_length(int(length))


def test_all_tasks_are_there(golden):
    names = list(golden["task_names"])
    assert list(TASKS)[: len(names)] == names
    assert {entry.name for entry in TASKS.values() if entry.in_paper} == {*names} - {"binary_multiplication"}


# Against plain Python ------------------------------------------------------------------------------------------------


def arithmetic(tokens: Sequence[int], task: Task) -> int:
    return eval(written(tokens, task.inputs)) % 5


def left_of_stack(tokens: Sequence[int], length: int) -> list[int]:
    stack: list[int] = []
    for token in tokens:
        if token == 2:
            stack = stack[:-1]
        else:
            stack.append(token % 3 if token > 2 else token)
    return padded(stack[::-1], length + 1)


def padded(bits: Sequence[int], length: int) -> list[int]:
    return [*bits, 2, *[0] * (length - len(bits) - 1)]


def lowest_first(number: int) -> list[int]:
    return [int(bit) for bit in f"{number:b}"[::-1]]


def operated(tokens: Sequence[int], sign: int, operation: Callable[[int, int], int], length: int) -> list[int]:
    place = list(tokens).index(sign)
    first, second = (int("".join(map(str, bits[::-1])), 2) for bits in (tokens[:place], tokens[place + 1 :]))
    assert first > 0 and second > 0
    return padded(lowest_first(operation(first, second)), length)


def unknowns(tokens: Sequence[int], task: Task) -> list[int]:
    """All digits that solve the equation."""
    left, right = written(tokens, task.inputs).split("=")
    return [x for x in range(5) if (eval(left, {"x": x}) - int(right)) % 5 == 0]


def halves(tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    n = len(tokens) // 2
    return list(tokens[:n]), list(tokens[n : 2 * n])


ORACLES: dict[str, Callable[[list[int], Task], list[int]]] = {
    "even_pairs": lambda x, task: [sum(a != b for a, b in pairwise(x)) % 2],
    "modular_arithmetic": lambda x, task: [arithmetic(x, task)],
    "parity_check": lambda x, task: [sum(x) % 2],
    "cycle_navigation": lambda x, task: [(x.count(2) - x.count(0)) % 5],
    "stack_manipulation": lambda x, task: left_of_stack(x, len(x)),
    "reverse_string": lambda x, task: x[::-1],
    "modular_arithmetic_brackets": lambda x, task: [arithmetic(x, task)],
    "solve_equation": lambda x, task: unknowns(x, task) if len(x) > 2 else [0],
    "duplicate_string": lambda x, task: x * 2,
    "missing_duplicate_string": lambda x, task: (
        [b if a == 2 else a for a, b in zip(*halves(x), strict=True) if a != b] if len(x) > 1 else [1]
    ),
    "odds_first": lambda x, task: x[0::2] + x[1::2],
    "binary_addition": lambda x, task: (
        operated(x, 2, lambda a, b: a + b, len(x) + 1)
        if len(x) > 2
        else padded(lowest_first(int("".join(map(str, x[::-1])), 2)), len(x) + 1)
    ),
    "binary_multiplication": lambda x, task: (
        operated(x, 2, lambda a, b: a * b, len(x)) if len(x) > 2 else padded([0] * (len(x) - 1), len(x))
    ),
    "compute_sqrt": lambda x, task: [
        int(b) for b in f"{math.isqrt(int(''.join(map(str, x)), 2)):0{(len(x) + 1) // 2}b}"
    ],
    "bucket_sort": lambda x, task: sorted(x),
}


@pytest.mark.parametrize("length", [*LENGTHS, 200, 499])
@pytest.mark.parametrize("name", TASKS)
def test_targets_are_what_plain_python_finds(name, length):
    task = load(name)
    sample = task.sample(generator(length), 16, length)
    assert sample.inputs.shape == (16, task.input_length(length))
    assert sample.targets.shape == sample.mask.shape == (16, task.output_length(length))
    assert sample.inputs.min() >= 0 and sample.inputs.max() < len(task.inputs)
    if length > 60 and name.startswith(("modular", "solve")):
        return  # deeper than Python's own parser goes
    for inputs, targets in zip(sample.inputs.tolist(), sample.targets.tolist(), strict=True):
        assert name in ORACLES, f"{name} needs a line in ORACLES: the same answer in plain Python"
        assert targets == ORACLES[name](inputs, task)


@pytest.mark.parametrize("name", ["stack_manipulation", "binary_addition", "binary_multiplication"])
def test_accuracy_counts_up_to_the_terminator(name):
    sample = load(name).sample(generator(), 64, 12)
    for targets, mask in zip(sample.targets.tolist(), sample.mask, strict=True):
        assert mask.tolist() == [True] * (targets.index(2) + 1) + [False] * (len(targets) - targets.index(2) - 1)


WORKED = {
    "even_pairs": ("1 1 0 0 1", "even"),
    "parity_check": ("1 0 1 1", "odd"),
    "cycle_navigation": ("> > < . >", "2"),
    "modular_arithmetic": ("3 - 2 * 2 - 2", "2"),
    "stack_manipulation": ("1 0 0 push1 pop pop push0", "0 0 1 $ 0 0 0 0"),
    "reverse_string": ("1 1 0 1 0", "0 1 0 1 1"),
    "modular_arithmetic_brackets": ("( ( - 4 ) + 3 )", "4"),
    "solve_equation": ("( 3 - - x ) = 2", "4"),
    "duplicate_string": ("1 0 0", "1 0 0 1 0 0"),
    "missing_duplicate_string": ("1 0 1 1 0 ?", "1"),
    "odds_first": ("0 0 0 1 0 0", "0 0 0 0 1 0"),
    "binary_addition": ("1 1 + 1 0 1", "0 0 0 1 $ 0 0"),
    "binary_multiplication": ("0 1 * 1 1", "0 1 1 $ 0"),
    "compute_sqrt": ("1 0 0 0 1 0", "1 0 1"),
    "bucket_sort": ("4 2 1 3 0 2", "0 1 2 2 3 4"),
}


@pytest.mark.parametrize("name", TASKS)
def test_worked_example(name):
    assert name in WORKED, f"{name} needs a line in WORKED: an example that its module's docstring has too"
    task, (inputs, answer) = load(name), WORKED[name]
    tokens = np.array([[task.inputs.index(word) for word in inputs.split()]])
    assert written(task.solve(tokens)[0].astype(int), task.outputs) == answer
    documented = " ".join((type(task).solve.__globals__["__doc__"] or "").split())
    assert inputs in documented or name == "stack_manipulation"


def test_odds_first_in_deepminds_order():
    tokens = np.array([[0, 1, 2, 3, 4]])
    assert load("odds_first", "deepmind").solve(tokens).tolist() == [[1, 3, 0, 2, 4]]
    assert load("odds_first").solve(tokens).tolist() == [[0, 2, 4, 1, 3]]


# The distribution of inputs ------------------------------------------------------------------------------------------


def assert_uniform(values: np.ndarray, choices: Sequence[int]) -> None:
    """A chi-squared test that fails by chance once in about ten thousand seeds; the seed is fixed."""
    counts = np.array([(values == choice).sum() for choice in choices])
    assert counts.sum() == values.size
    expected = values.size / len(choices)
    freedom = len(choices) - 1
    statistic = ((counts - expected) ** 2).sum() / expected
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 8, dict(zip(choices, counts, strict=True))


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize(
    ("name", "alphabet"),
    [
        *((name, 2) for name in ("even_pairs", "parity_check", "reverse_string", "duplicate_string", "odds_first")),
        ("cycle_navigation", 3),
        ("bucket_sort", 5),
    ],
)
def test_symbols_are_independent_and_uniform(name, alphabet, length):
    inputs = load(name).sample(generator(), 4000, length).inputs
    whole = (inputs[:, :2] * alphabet ** np.arange(min(length, 2))).sum(axis=1)
    assert_uniform(whole, range(alphabet ** min(length, 2)))
    assert_uniform(inputs[:, -1], range(alphabet))


def test_digits_and_operators_are_uniform():
    inputs = load("modular_arithmetic").sample(generator(), 3000, 8).inputs
    assert inputs.shape == (3000, 7)
    for column, choices in enumerate([range(5), range(5, 8)] * 3):
        assert_uniform(inputs[:, column], choices)


def test_stack_begins_with_any_length():
    inputs = load("stack_manipulation").sample(generator(), 4000, 6).inputs
    initial = (inputs < 2).sum(axis=1)
    assert_uniform(initial, range(1, 6))
    assert np.all((inputs < 2) == (np.arange(6) < initial[:, None]))
    assert_uniform(inputs[inputs < 2], (0, 1))
    assert_uniform(inputs[inputs >= 2], (2, 3, 4))


@pytest.mark.parametrize("length", [8, 9])
def test_hole_is_anywhere(length):
    inputs = load("missing_duplicate_string").sample(generator(), 4000, length).inputs
    assert_uniform((inputs == 2).argmax(axis=1), range(8))
    assert np.all((inputs == 2).sum(axis=1) == 1) and np.all((inputs == 3).sum(axis=1) == length % 2)
    assert_uniform(inputs[inputs < 2], (0, 1))


def test_hidden_bit_of_length_one_is_one():
    sample = load("missing_duplicate_string").sample(generator(), 5, 1)
    assert sample.inputs.tolist() == sample.targets.tolist() == [[1]] * 5


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_operands_are_uniform_above_zero(name):
    inputs = load(name).sample(generator(), 6000, 6).inputs
    place = (inputs == 2).argmax(axis=1)
    assert_uniform(place, range(1, 5))
    for width in range(1, 5):
        of_width = inputs[place == width]
        first = (of_width[:, :width] << np.arange(width)).sum(axis=1)
        second = (of_width[:, width + 1 :] << np.arange(5 - width)).sum(axis=1)
        assert_uniform(first, range(1, 2**width))
        assert_uniform(second, range(1, 2 ** (5 - width)))


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_numbers_without_operator(name):
    assert load(name).sample(generator(), 50, 1).inputs.tolist() == [[0]] * 50
    assert_uniform(load(name).sample(generator(), 3000, 2).inputs @ [1, 2], range(3))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_radicands_are_uniform_above_zero(length):
    inputs = load("compute_sqrt").sample(generator(), 4000, length).inputs
    assert_uniform((inputs << np.arange(length)[::-1]).sum(axis=1), range(1, 2**length))


def left_lengths(tokens: np.ndarray, opening: int, closing: int) -> np.ndarray:
    """Length of the left part of ( L o R ), per row."""
    return np.array([_left_length(row, opening, closing) for row in tokens.tolist()])


def _left_length(tokens: list[int], opening: int, closing: int) -> int:
    """The left part ends with the first digit at its own depth, or with the bracket that closes its own."""
    depth = 0
    for place, token in enumerate(tokens[1:], 1):
        depth += (token == opening) - (token == closing)
        if depth == 0 and (token < 5 or token == closing):
            return place
    raise AssertionError("brackets do not match")


@pytest.mark.parametrize("length", [5, 9, 12])
def test_brackets_split_anywhere(length):
    inputs = load("modular_arithmetic_brackets").sample(generator(), 3000, length).inputs
    left = left_lengths(inputs, 8, 9)
    assert_uniform(left, range(1, length - 3))
    assert_uniform(np.take_along_axis(inputs, left[:, None] + 1, axis=1), (5, 6, 7))
    assert_uniform(inputs[inputs < 5], range(5))
    assert not (inputs == 10).any()


@pytest.mark.parametrize(("length", "written_as"), [(1, "d"), (2, "-d"), (3, "(d)"), (4, "(-d)")])
def test_small_expressions(length, written_as):
    ids = {"-": 6, "(": 8, ")": 9}
    inputs = load("modular_arithmetic_brackets").sample(generator(), 1000, length).inputs
    for column, symbol in zip(inputs.T, written_as, strict=True):
        if symbol == "d":
            assert_uniform(column, range(5))
        else:
            assert np.all(column == ids[symbol])


def test_unknown_is_the_next_digit_from_a_random_place():
    """In ( d o d ) places ) ( and its own lead to the first digit, two to the second."""
    inputs = load("solve_equation").sample(generator(), 5000, 7).inputs
    assert np.all((inputs == 9).sum(axis=1) == 1) and np.all(inputs[:, -2] == 10)
    share = (inputs[:, 1] == 9).mean()
    assert abs(share - 3 / 5) < 0.03


def test_equations_too_short_are_zeros():
    for length in (1, 2):
        sample = load("solve_equation").sample(generator(), 3, length)
        assert not sample.inputs.any() and not sample.targets.any()


# Randomness and wrong input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_a_function_of_the_generator(name):
    before = np.random.get_state()[1].copy()
    one, two, other = (load(name).sample(generator(seed), 32, 11) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.inputs, two.inputs)
    np.testing.assert_array_equal(one.targets, two.targets)
    assert not np.array_equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(("batch", "length", "words"), [(4, 0, "at least 1, got 0"), (0, 4, "at least one example")])
def test_nothing_cannot_be_sampled(batch, length, words):
    with pytest.raises(ValueError, match=words):
        load("even_pairs").sample(generator(), batch, length)


@pytest.mark.parametrize(
    ("given", "found"),
    [("missing_duplicate", "missing_duplicate_string"), ("modular_arithmetic",) * 2, ("odds", "odds_first")],
)
def test_beginning_of_a_name_is_enough(given, found):
    assert find(given).name == found


@pytest.mark.parametrize(
    ("given", "hint"),
    [("evn_pairs", "Did you mean even_pairs"), ("binary", "binary_addition or binary_mult"), ("", "There are: even")],
)
def test_unknown_task_suggests_the_nearest(given, hint):
    with pytest.raises(UsageError, match=hint):
        find(given)
