"""Which forms inputs have over a way, and what is known of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.ways.shrinking import FORGET_NS, Shrinking, Shrinkings
from tests.daemon.shrunk_boxes import FLOAT16, JPEG, card
from workers.model import InputForms

BOTH = frozenset(("float16", "jpeg"))
HALF, SMALL = "image as float16", "image as jpeg"
MB = 1_000_000


def known(undone: frozenset[str] = BOTH) -> Shrinking:
    return Shrinking(card(), undone)


def test_the_forms_are_those_that_the_owner_allows_and_the_far_end_undoes():
    assert [form.name for form in known().forms] == [HALF, SMALL]
    assert [form.name for form in known(frozenset(("jpeg",))).forms] == [SMALL]
    assert known(frozenset()).forms == ()
    assert Shrinking(card(()), BOTH).forms == ()


def test_the_n_th_form_has_the_n_th_encoding_of_each_input_or_its_last():
    inputs = (*card().signature.inputs, TensorSpec("depth", "float32", (80, 80)))
    more = InputForms("depth", (FLOAT16,))
    two = replace(
        card((InputForms("image", (JPEG, FLOAT16)), more)), signature=Signature(inputs, (), True)
    )
    names = [form.name for form in Shrinking(two, BOTH).forms]
    assert names == ["image as jpeg, depth as float16", "image as float16, depth as float16"]


def test_what_is_expected_at_first_is_more_than_is_usual():
    half, small = known().forms
    assert (half.share, half.byte_ns) == (0.5, 2.0)
    assert 0.05 < small.share < 0.1
    assert small.byte_ns == 5.0


def test_what_was_measured_counts_from_a_few_samples_on():
    forms = known()
    assert not forms.moved()
    for _ in range(3):
        forms.learn(SMALL, MB, 20_000, 3 * MB)
    assert next(f for f in forms.forms if f.name == SMALL).share > 0.02
    for _ in range(3):
        forms.learn(SMALL, MB, 20_000, 3 * MB)
    assert forms.moved()
    small = next(form for form in forms.forms if form.name == SMALL)
    assert (small.share, small.byte_ns) == (0.02, 3.0)
    assert not forms.moved()
    forms.learn(SMALL, 0, 0, 1)
    assert not forms.moved()


def test_one_that_was_held_up_does_not_count_much():
    forms = known()
    forms.learn(HALF, MB, MB // 2, 5_000 * MB)
    assert forms.forms[0].byte_ns == 2.0


def test_a_form_that_was_found_too_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    forms = known()
    for _ in range(10):
        forms.learn(HALF, MB, MB // 2, 5_000 * MB)
    assert forms.forms[0].byte_ns == 5_000.0
    later_ns = time.monotonic_ns() + FORGET_NS + 1
    monkeypatch.setattr("time.monotonic_ns", lambda: later_ns)
    assert forms.moved()
    assert forms.forms[0].byte_ns == 2.0


def test_what_was_measured_stays_while_the_owner_and_the_far_end_say_the_same():
    every = Shrinkings()
    every.allow([card(), None], BOTH)
    first = every["m"]
    every.allow([card()], BOTH)
    assert every["m"] is first
    assert [told["form"] for told in every.describe()] == [HALF, SMALL]
    every.allow([card()], frozenset(("float16",)))
    assert [form.name for form in every.forms] == [HALF]
    every.allow([card(())], BOTH)
    assert every.forms == ()
