from __future__ import annotations

from workers.choice import best_runtime, has_lost
from workers.profile_store import Profile


def profile(**median_ns: int) -> Profile:
    return Profile({int(batch[1:]): (ns, ns, ns) for batch, ns in median_ns.items()})


def test_the_fastest_alone_wins_when_the_others_are_much_slower():
    assert best_runtime({"slow": profile(b1=130, b8=140), "fast": profile(b1=100)}) == "fast"


def test_throughput_wins_among_those_about_as_fast_alone():
    assert best_runtime({"batches": profile(b1=120, b8=140), "alone": profile(b1=100)}) == "batches"


def test_of_equals_in_throughput_the_faster_alone_wins():
    profiles = {"a": profile(b1=110, b4=200), "b": profile(b1=100, b4=200)}

    assert best_runtime(profiles) == "b"


def test_the_rejected_never_win():
    rejected = Profile({}, rejected="off by 3")

    assert best_runtime({"a": rejected, "b": profile(b1=900)}) == "b"
    assert best_runtime({"a": rejected}) is None
    assert best_runtime({}) is None


def test_a_runtime_has_lost_that_is_too_slow_alone_to_win():
    rivals = [Profile({1: (100, 110, 120)}), Profile({1: (300,)}), Profile({}, rejected="off")]

    assert has_lost({1: (139,)}, rivals)
    assert not has_lost({1: (137,)}, rivals)
    assert not has_lost({1: (10**9,)}, [])
