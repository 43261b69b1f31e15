from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.latency import STALE_NS, WINDOW, LatencyCurve
from scheduler.core.offers import Offer

MS = 1_000_000
SAMPLES = st.lists(st.integers(1, 10**9), min_size=1, max_size=150).map(tuple)


@given(
    profile=st.dictionaries(st.integers(2, 64), SAMPLES, max_size=4),
    one=SAMPLES,
    seen=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10**9)), max_size=80),
)
def test_predictions_rise_with_batch_and_quantile_whatever_was_seen(profile, one, seen):
    curve = LatencyCurve(Offer("m", "v", "r", {1: one, **profile}))
    largest = curve.batch_sizes[-1]
    for batch, sample in seen:
        curve.observe(min(batch, largest), sample, 0)
    for low, high in ((0.1, 0.5), (0.5, 0.99)):
        for batch in range(1, largest + 1):
            assert curve.predict(batch, low) <= curve.predict(batch, high)
            if batch > 1:
                assert curve.predict(batch - 1, high) <= curve.predict(batch, high)


@given(
    one=SAMPLES,
    two=SAMPLES,
    seen=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 10**9), st.booleans()), max_size=80),
)
def test_a_glance_tells_what_would_be_said_and_changes_nothing(one, two, seen):
    offer = Offer("m", "v", "r", {1: one, 2: two})
    curve, unseen = LatencyCurve(offer), LatencyCurve(offer)
    for batch, sample, is_asked in seen:
        told = curve.glance(0.5)
        if is_asked:
            assert told == curve.ladder(0.5) == unseen.ladder(0.5)
        for each in (curve, unseen):
            each.observe(batch, sample, 0)
        assert curve.calibration() == unseen.calibration()
    assert curve.glance(0.5) == unseen.ladder(0.5)


def test_a_quantile_is_the_share_that_is_done():
    curve = LatencyCurve(Offer("m", "v", "r", {1: tuple(range(1, 61))}))
    for quantile in (0.05, 0.5, 0.95):
        done = sum(sample <= curve.predict(1, quantile) for sample in range(1, 61))
        assert done == pytest.approx(60 * quantile, abs=1)


def test_new_samples_replace_the_profile_and_the_bad_do_not_outlive_the_window():
    curve = LatencyCurve(Offer("m", "v", "r", {1: tuple(range(100, 100 + WINDOW))}))
    for _ in range(WINDOW):
        curve.observe(1, 1_000, 0)
    assert curve.predict(1, 0.01) == 1_000


def test_while_it_is_replaced_a_profile_keeps_its_shape():
    """A window that dropped its smallest samples first would look too slow meanwhile."""
    curve = LatencyCurve(Offer("m", "v", "r", {1: tuple(range(1, WINDOW + 1))}))
    for _ in range(WINDOW // 2):
        curve.observe(1, WINDOW // 2, 0)
    assert curve.predict(1, 0.5) == WINDOW // 2
    assert curve.predict(1, 0.05) < WINDOW // 4
    assert curve.predict(1, 0.97) > 3 * WINDOW // 4


def test_what_nothing_confirms_is_stale_and_can_be_forgotten():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (10,)}))
    assert curve.stale_ns() is None
    for at_ns in range(WINDOW):
        curve.observe(1, 99, at_ns)
    assert curve.stale_ns() == WINDOW + STALE_NS
    assert curve.predict(1, 0.5) == 99
    curve.forget()
    assert curve.stale_ns() is None
    assert curve.predict(1, 0.5) == 10


def test_a_model_of_seconds_is_learned_from_although_its_batches_end_seconds_apart():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (3_000 * MS,) * 3}))
    curve.predict(1, 0.95)
    for done_ms in range(6_000, 66_000, 6_000):  # it takes twice as long by now
        curve.forget_stale(done_ms * MS - 1)
        curve.observe(1, 6_000 * MS, done_ms * MS)
    assert curve.predict(1, 0.5) == 6_000 * MS
    assert curve.stale_ns() == (60_000 + 30_000) * MS + 1


def slowed(level_ns: int, now_ns: int, curve: LatencyCurve) -> None:
    """Some batches that take so long, the last of which is done now."""
    for _ in range(20):
        curve.observe(1, level_ns, now_ns)


def test_what_is_refused_in_vain_is_tried_soon_and_ever_more_seldom():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (2 * MS,)}))
    curve.predict(1, 0.95)
    now_ns, waits_ms = 0, []
    for _ in range(5):
        slowed(30 * MS, now_ns, curve)
        curve.refused(20 * MS)
        stale_ns = curve.stale_ns()
        assert stale_ns is not None
        waits_ms.append((stale_ns - now_ns) // MS)
        now_ns = stale_ns
        assert curve.forget_stale(now_ns)
        assert curve.predict(1, 0.95) == 2 * MS
    assert waits_ms == [300, 600, 1200, 2000, 2000]
    for _ in range(64):
        curve.observe(1, 2 * MS, now_ns)
    slowed(30 * MS, now_ns, curve)
    curve.refused(20 * MS)
    assert curve.stale_ns() == now_ns + 300 * MS + 1, "it was fast meanwhile"


def test_what_is_refused_for_another_reason_is_believed_as_long_as_before():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (2 * MS,)}))
    curve.predict(1, 0.95)
    slowed(30 * MS, 0, curve)
    curve.refused(40 * MS)
    assert curve.stale_ns() == STALE_NS + 1
    curve.refused(20 * MS)
    assert curve.stale_ns() == 300 * MS + 1
    curve.observe(1, 30 * MS, 5)
    assert curve.stale_ns() == STALE_NS + 6, "it ran"


@pytest.mark.parametrize("batch", [0, 3, -1])
def test_a_batch_that_was_never_measured_can_not_be_predicted(batch):
    curve = LatencyCurve(Offer("m", "v", "r", {1: (10,), 2: (15,)}))
    with pytest.raises(ValueError, match="1 to 2 items"):
        curve.predict(batch, 0.5)


def test_a_ladder_knows_the_best_rate_so_far():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (10,), 2: (40,), 4: (40,)}))
    assert curve.ladder(0.5).rate == (0.1, 0.1, 0.1)
    assert LatencyCurve(Offer("m", "v", "r", {1: (10,), 4: (20,)})).ladder(0.5).rate == (0.1, 0.2)


def test_a_size_that_is_not_filled_pays_if_no_smaller_batch_does_as_much_in_the_same_time():
    curve = LatencyCurve(Offer("m", "v", "r", {1: (10,), 2: (12,), 4: (18,), 8: (36,)}))
    ladder = curve.ladder(0.5)
    assert [ladder.pays(2, count) for count in (1, 2, 3, 4)] == [False, False, False, True]
    quick = LatencyCurve(Offer("m", "v", "r", {1: (10,), 2: (12,), 4: (17,), 8: (36,)}))
    assert quick.ladder(0.5).pays(2, 3)
    assert not any(ladder.pays(3, count) for count in range(5, 8)), "8 are no faster than twice 4"
    assert [quick.ladder(0.5).largest(n) for n in (1, 2, 3, 4, 7, 8, 9)] == [
        (0, 1), (1, 2), (2, 3), (2, 4), (2, 4), (3, 8), (3, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ladder", "complaint"),
    [
        ({}, "batch size 1 was not measured .measured: none."),
        ({2: (5,), 4: (9,)}, "batch size 1 was not measured .measured: 2, 4."),
        ({1: ()}, "batch size 1 needs latencies above 0"),
        ({1: (5,), 2: (0, 3)}, "batch size 2 needs latencies above 0"),
        ({1: (5,), 0: (1,)}, "batch size 0"),
    ],
)
def test_an_offer_that_could_not_be_scheduled_is_refused(ladder, complaint):
    with pytest.raises(ValueError, match=f"offer of 'm' variant 'v': {complaint}"):
        Offer("m", "v", "r", ladder)
