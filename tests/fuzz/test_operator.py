"""Random calls of the operator against float64, within the bounds of docs/numerics.md."""

from hypothesis import event, given
from tests.fuzz.cases import fuzzed
from tests.fuzz.operator_cases import Case, cases, judge


@fuzzed(0.55)
@given(case=cases())
def test_any_call_is_within_the_bounds(case: Case):
    found = judge(case)
    event(f"{found.choice.impl}, {found.choice.kernel}")
    event(f"{case.dtype}")
