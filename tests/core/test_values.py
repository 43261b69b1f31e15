"""Immutable values: told apart by what they hold, whoever holds them to it; and pickled."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from scheduler.core.commands import CancelRun, Dispatch, WakeAt
from scheduler.core.events import BatchDone, Cancelled
from scheduler.core.offers import Offer
from scheduler.core.requests import Request, RequestClass
from scheduler.core.target_specs import TargetSpec

REQUEST = Request(1, RequestClass("m"), 5, weight=2.0)


def test_equal_values_are_equal_and_hash_alike():
    again = Request(1, RequestClass("m"), 5, weight=2.0)
    assert again == REQUEST
    assert {REQUEST, again} == {REQUEST}
    assert Request(1, RequestClass("m"), 6, weight=2.0) != REQUEST


def test_values_of_two_types_are_never_equal():
    assert len({Cancelled(1), CancelRun(1), WakeAt(1), (1,)}) == 4


def test_defaults_are_not_shared():
    assert BatchDone(1).errors is not BatchDone(1).errors


def test_a_field_that_does_not_exist_can_not_be_set():
    with pytest.raises(AttributeError):
        REQUEST.urgency = 1  # type: ignore[attr-defined]


def test_values_go_through_pickle():
    run = Dispatch(1, "cpu:0", "m", "v", (1, 2), 9, "why")
    assert pickle.loads(pickle.dumps(run)) == run


def test_sealed_values_can_not_be_changed_and_go_through_pickle():
    spec = TargetSpec("cpu:0", (Offer("m", "v", "openvino", {1: (5, 6)}),))
    with pytest.raises(FrozenInstanceError):
        spec.id = "gpu:0"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(spec)) == spec
