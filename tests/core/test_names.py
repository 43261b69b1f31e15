"""Names: in what order they are shown, and which was meant."""

from __future__ import annotations

from scheduler.core.names import did_you_mean, hint, natural


def test_numbers_in_names_are_in_order():
    names = ["site-10/cpu:0", "cpu:10", "gpu:0", "cpu:2", "site-2/cpu:0", "cpu:0"]
    wanted = ["cpu:0", "cpu:2", "cpu:10", "gpu:0", "site-2/cpu:0", "site-10/cpu:0"]
    assert sorted(names, key=natural) == wanted


def test_any_two_names_can_be_compared():
    assert sorted(["1", "a", "", "a1", "1a", "٣"], key=natural) == ["", "1", "1a", "٣", "a", "a1"]


def test_the_nearest_name_is_asked_for():
    known = ["goodput", "edf", "fcfs"]
    assert did_you_mean("goodputt", known) == "did you mean 'goodput'?"
    assert hint("efd", known) == " (did you mean 'edf'?)"


def test_where_none_is_near_it_says_which_there_are():
    assert did_you_mean("x", ["edf", "fcfs"]) == "there are edf, fcfs"
    assert did_you_mean("x", []) == "there are none"
    assert did_you_mean("x", ["edf"], "see the list") == "see the list"
    assert hint("x", ["edf"]) == ""
