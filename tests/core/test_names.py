"""Names: in what order they are shown."""

from __future__ import annotations

from scheduler.core.names import natural


def test_numbers_in_names_are_in_order():
    names = ["site-10/cpu:0", "cpu:10", "gpu:0", "cpu:2", "site-2/cpu:0", "cpu:0"]
    wanted = ["cpu:0", "cpu:2", "cpu:10", "gpu:0", "site-2/cpu:0", "site-10/cpu:0"]
    assert sorted(names, key=natural) == wanted


def test_any_two_names_can_be_compared():
    assert sorted(["1", "a", "", "a1", "1a", "٣"], key=natural) == ["", "1", "1a", "٣", "a", "a1"]
