"""What the last hour leaves of a budget."""

from __future__ import annotations

import pytest

from policies.parts.budget import HOUR_NS, STEP_NS, HourlyBudget


@pytest.mark.parametrize("count", [4, 5, 6, 10])  # with `sum`, 10 differs from Python 3.12 on
def test_a_budget_covers_the_same_number_of_equal_costs_in_every_hour(count):
    budget = HourlyBudget(count / 10)
    for at_ns in range(0, count * STEP_NS, STEP_NS):
        budget.look(at_ns)
        assert budget.pays(0.1)
    assert not budget.covers(0.1)
    budget.look(HOUR_NS + STEP_NS)  # the first is an hour old
    assert budget.pays(0.1)
    assert not budget.covers(0.1)
