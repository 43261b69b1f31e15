"""Names: in what order they are shown, and which was meant."""

from __future__ import annotations

from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import names as names_module
from scheduler.core.names import did_you_mean, hint, natural, near


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


def test_the_only_name_that_a_word_begins_is_meant():
    known = ["rate_per_s", "cost_per_s", "cost_per_request"]
    assert [near(word, known) for word in ("rate", "cost", "rat")] == ["rate_per_s", None, None]


def test_where_none_is_near_it_says_which_there_are():
    assert did_you_mean("x", ["edf", "fcfs"]) == "there are edf, fcfs"
    assert did_you_mean("x", []) == "there are none"
    assert did_you_mean("x", ["edf"], "see the list") == "see the list"
    assert hint("x", ["edf"]) == ""


WORDS = st.text("abc-", max_size=12)


@given(WORDS, st.lists(WORDS, max_size=6), st.sampled_from((0.3, 0.6, 0.9)))
def test_the_nearest_is_the_one_that_letters_tell(word, known, cutoff):
    assert [near(word, known, cutoff)] == (get_close_matches(word, known, 1, cutoff) or [None])


def test_the_letters_of_a_word_that_is_far_too_long_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delattr(names_module, "get_close_matches")
    assert near("resnet" * 10_000, ["resnet50", "digits"]) is None
