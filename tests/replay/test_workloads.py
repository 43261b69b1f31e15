from __future__ import annotations

import hashlib
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, islice, pairwise, takewhile
from operator import eq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import simulator
from replay.readers import TraceEntry
from replay.workloads import (
    Arrival,
    Bursts,
    Cameras,
    Constant,
    Diurnal,
    Fixed,
    Gamma,
    Mix,
    MixEntry,
    OneOf,
    Poisson,
    Process,
    Setting,
    Stream,
    Uniform,
    Workload,
    WorkloadError,
    load_workload,
    merge,
    mmpp_ns,
    parse_workload,
)
from scheduler.config.problems import ConfigError
from scheduler.core.requests import RequestClass

SEEDS = st.integers(0, 10_000)
RATES = st.floats(0.5, 5000)
PROCESSES = st.one_of(
    st.just(Constant()),
    st.just(Poisson()),
    st.builds(Gamma, st.floats(0.1, 2)),
    st.builds(Bursts, st.floats(1, 20), st.floats(0.1, 2), st.floats(0.1, 2)),
    st.builds(Diurnal, st.floats(0, 1), st.floats(0.5, 20), st.floats(0, 1)),
    st.builds(Cameras, st.integers(1, 20), st.floats(0, 0.49)),
)
DIGITS = MixEntry("digits", deadline_ms=Fixed(50))

few = settings(max_examples=30, deadline=None)


def times(process: Process, rate_per_s: float, count: int, seed: int = 0) -> list[int]:
    return [arrival.at_ns for arrival in islice(stream(process, rate_per_s, seed), count)]


def stream(process: Process, rate_per_s: float, seed: int) -> Iterator[Arrival]:
    return Workload((Stream(process, Mix([DIGITS]), rate_per_s),)).arrivals(seed)


def cv_of(at_ns: list[int]) -> float:
    gaps = [after - before for before, after in pairwise(at_ns)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


class TestProcesses:
    @few
    @given(PROCESSES, RATES, SEEDS)
    def test_times_rise_and_the_seed_decides_them(self, process, rate, seed):
        at_ns = times(process, rate, 200, seed)
        assert len(at_ns) == 200
        assert at_ns[0] >= 0
        assert all(type(at) is int for at in at_ns)
        assert at_ns == sorted(at_ns)
        assert at_ns == times(process, rate, 200, seed)
        if not isinstance(process, Constant):
            assert at_ns != times(process, rate, 200, seed + 1)

    @few
    @given(st.sampled_from([0.25, 1.0, 2.0]), st.floats(10, 2000), SEEDS)
    def test_gamma_keeps_its_rate_and_cv(self, cv, rate, seed):
        at_ns = times(Gamma(cv), rate, 20_000, seed)
        # Five standard errors of the mean.
        assert len(at_ns) / (at_ns[-1] / 1e9) == pytest.approx(rate, rel=5 * cv / 140)
        assert cv_of(at_ns) == pytest.approx(cv, rel=0.15)

    def test_a_cv_of_8_is_one(self):
        at_ns = times(Gamma(8), 100, 200_000)
        assert len(at_ns) / (at_ns[-1] / 1e9) == pytest.approx(100, rel=0.1)
        assert cv_of(at_ns) == pytest.approx(8, rel=0.15)

    @few
    @given(st.floats(10, 2000), SEEDS)
    def test_poisson_keeps_its_rate_and_a_cv_of_1(self, rate, seed):
        at_ns = times(Poisson(), rate, 10_000, seed)
        assert len(at_ns) / (at_ns[-1] / 1e9) == pytest.approx(rate, rel=0.06)
        assert cv_of(at_ns) == pytest.approx(1, rel=0.08)

    @given(st.floats(0.001, 1e6), st.integers(1, 500))
    def test_constant_never_drifts(self, rate, count):
        assert times(Constant(), rate, count)[-1] == pytest.approx(count * 1e9 / rate, abs=1)

    def test_bursts_have_their_mean_rate_and_more_spread_than_poisson(self):
        process = Bursts(factor=10, burst_s=0.5, quiet_s=2)
        at_ns = times(process, 100, 50_000)
        assert len(at_ns) / (at_ns[-1] / 1e9) == pytest.approx(100, rel=0.15)
        assert cv_of(at_ns) > 1.3
        per_s = Counter(at // 10**9 for at in at_ns)
        # In a burst 357 come per second, in the quiet 36.
        assert max(per_s.values()) > 250
        assert min(per_s[second] for second in range(at_ns[-1] // 10**9)) < 60

    def test_mmpp_divides_time_as_its_stays(self):
        at_ns = islice(mmpp_ns([0, 100, 1000], [1, 1, 2], random.Random(3)), 100_000)
        last_ns = list(at_ns)[-1]
        assert 100_000 / (last_ns / 1e9) == pytest.approx((0 + 100 + 2000) / 4, rel=0.2)

    @few
    @given(st.floats(0, 1), st.floats(0, 1), SEEDS)
    def test_diurnal_is_the_mean_over_periods_and_peaks_in_phase(self, amplitude, phase, seed):
        process = Diurnal(amplitude, period_s=10, phase=phase)
        at_ns = list(
            takewhile(
                lambda at: at < 100 * 10**9,
                (arrival.at_ns for arrival in stream(process, 100, seed)),
            )
        )
        assert len(at_ns) == pytest.approx(10_000, rel=0.06)
        phases = [(at / 1e10 + phase) % 1 for at in at_ns]
        rising = sum(part < 0.5 for part in phases) / len(phases)
        # The half period above the mean has 2 a / pi more than the mean.
        assert rising == pytest.approx(0.5 + amplitude / 3.14159, abs=0.03)

    @few
    @given(st.integers(1, 10), st.floats(1, 60), st.floats(0, 0.49), SEEDS)
    def test_cameras_keep_their_pace(self, count, fps, jitter, seed):
        for sender in Cameras(count, jitter).streams(count * fps, str(seed)):
            at_ns = list(islice(sender, 100))
            period_ns = 1e9 / fps
            for before, after in pairwise(at_ns[1:]):
                assert (1 - 2 * jitter) * period_ns - 2 <= after - before
                assert after - before <= (1 + 2 * jitter) * period_ns + 2

    @few
    @given(st.integers(1, 10), st.floats(1, 60), st.floats(0, 1), SEEDS)
    def test_cameras_begin_within_their_spread(self, count, fps, spread, seed):
        cameras = Cameras(count, spread=spread).streams(count * fps, str(seed))
        assert all(0 <= next(sender) <= spread * 1e9 / fps + 1 for sender in cameras)

    def test_same_seed_same_bytes_on_any_machine(self):
        digest = hashlib.sha256()
        for process in (Poisson(), Gamma(4), Bursts(8, 1, 3), Diurnal(0.8, 60), Cameras(7, 0.3)):
            digest.update(repr(times(process, 123.4, 2000, 7)).encode())
        assert digest.hexdigest()[:16] == "f3054f2abbe40ea9"

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: Gamma(0), "cv should be from 0.001 to 100; got 0"),
            (lambda: Gamma(1e-170), "cv should be from 0.001 to 100; got 1e-170"),
            (lambda: Bursts(0.5, 1, 1), "factor should be 1 or more"),
            (lambda: Bursts(2, 1e-320, 1), "burst_s should be 0.001 or more"),
            (lambda: Bursts(2, 1, 1e-320), "quiet_s should be 0.001 or more"),
            (lambda: Diurnal(1.5, 60), "amplitude should be from 0 to 1"),
            (lambda: Cameras(0), "cameras should be from 1 to 100,000; got 0"),
            (lambda: Cameras(10**9), "cameras should be from 1 to 100,000; got 1000000000"),
            (lambda: Cameras(1, spread=1.1), "spread should be from 0 to 1"),
            (lambda: Cameras(3, 0.5), "jitter should be from 0 to below 0.5"),
        ],
    )
    def test_what_they_refuse(self, make, said):
        with pytest.raises(ValueError, match=said):
            make()


class TestMix:
    ENTRIES = (
        MixEntry("digits", share=3, deadline_ms=Uniform(30, 100), size_bytes=Fixed(784)),
        MixEntry("faces", "int8", 1, OneOf((40, 80)), priority=1, weight=2.0, accept_late=True),
    )

    def drawn(self, count: int = 4000) -> list[Arrival]:
        return list(Mix(self.ENTRIES).arrivals(range(count), random.Random(1)))

    def test_kinds_come_by_their_shares(self):
        counts = Counter(arrival.kind for arrival in self.drawn())
        assert counts[RequestClass("digits")] == pytest.approx(3000, rel=0.05)
        assert counts[RequestClass("faces", "int8")] == pytest.approx(1000, rel=0.15)

    def test_a_kind_gives_what_it_says(self):
        digits = [arrival for arrival in self.drawn() if arrival.kind.model == "digits"]
        faces = [arrival for arrival in self.drawn() if arrival.kind.model == "faces"]
        assert all(30_000_000 <= arrival.budget_ns <= 100_000_000 for arrival in digits)
        assert statistics.fmean(arrival.budget_ns for arrival in digits) == pytest.approx(
            65e6, rel=0.05
        )
        assert {arrival.size_bytes for arrival in digits} == {784}
        assert {arrival.budget_ns for arrival in faces} == {40_000_000, 80_000_000}
        assert {
            (arrival.priority, arrival.weight, arrival.accept_late, arrival.size_bytes)
            for arrival in faces
        } == {(1, 2.0, True, 0)}

    def test_the_simulator_takes_them(self):
        assert all(isinstance(arrival, simulator.Arrival) for arrival in self.drawn(5))

    def test_a_camera_sends_one_kind_and_cameras_divide_by_the_shares(self):
        workload = Workload((Stream(Cameras(8), Mix(self.ENTRIES), 80.0),), seconds=2)
        kinds: Counter[tuple[str, int]] = Counter()
        for arrival in workload.arrivals():
            kinds[arrival.kind.model, arrival.budget_ns] += 1
        by_model = Counter(model for model, _ in kinds)
        # Budgets of cameras may coincide only where they are chosen from a list.
        assert by_model["digits"] == 6
        assert sum(count for (model, _), count in kinds.items() if model == "faces") == 40

    def test_a_mix_of_nothing_is_refused(self):
        with pytest.raises(WorkloadError, match="at least one"):
            Mix([])

    def test_a_deadline_can_be_a_multiple_of_the_base_latency(self):
        mix = Mix([MixEntry("digits", deadline_scale=Fixed(2.5))])
        (arrival,) = mix.arrivals([0], random.Random(0), {"digits": 4_000_000})
        assert arrival.budget_ns == 10_000_000
        with pytest.raises(WorkloadError, match="base latency isn't known"):
            list(mix.arrivals([0], random.Random(0), {"faces": 1}))


class TestTraces:
    def test_labels_choose_and_the_trace_fills_in(self):
        mix = Mix([MixEntry("big", label="large"), MixEntry("small", size_bytes=Fixed(7))])
        arrivals = list(
            mix.arrivals_of(
                [TraceEntry(1, 50, 400, "large"), TraceEntry(2, 60, 400, "tiny")], seed=0
            )
        )
        assert [(a.kind.model, a.at_ns, a.budget_ns, a.size_bytes) for a in arrivals] == [
            ("big", 1, 50, 400),
            ("small", 2, 60, 7),
        ]

    @pytest.mark.parametrize(
        ("mix", "asked"),
        [
            ([MixEntry("a"), MixEntry("b")], "abab"),
            ([MixEntry("a"), MixEntry("c", label="b")], "acac"),
            ([MixEntry("c")], "cccc"),  # all of one model, whatever the trace calls it
            ([MixEntry("a"), MixEntry("b"), MixEntry("d", label="gold")], "abab"),
            ([MixEntry("a", label="gold"), MixEntry("a"), MixEntry("b")], "abab"),
        ],
    )
    def test_models_that_a_trace_names_are_asked_for(self, mix, asked):
        trace = [TraceEntry(at, 1, model=model) for at, model in enumerate("abab")]
        arrivals = Mix(mix).arrivals_of(trace, seed=0)
        assert "".join(arrival.kind.model for arrival in arrivals) == asked

    def test_label_and_model_choose_together(self):
        kinds = [MixEntry("a", label="gold", priority=1), MixEntry("a"), MixEntry("b", priority=5)]
        trace = [TraceEntry(0, 1, label=label, model=m) for label in ("gold", "") for m in "ab"]
        found = Mix([*kinds, MixEntry("b", label="gold", priority=2)]).arrivals_of(trace, seed=0)
        asked = [(arrival.kind.model, arrival.priority) for arrival in found]
        assert asked == [("a", 1), ("b", 2), ("a", 3), ("b", 5)]

    def test_a_source_keeps_its_kind_and_many_sources_divide_by_the_shares(self):
        entries = [TraceEntry(at, 1, source=f"f{at % 2000}") for at in range(6000)]
        kinds = [
            arrival.kind.model
            for arrival in Mix([MixEntry("a", share=3), MixEntry("b")]).arrivals_of(entries, 5)
        ]
        assert kinds[:2000] == kinds[2000:4000] == kinds[4000:]
        assert Counter(kinds)["a"] == pytest.approx(4500, rel=0.05)

    def test_with_each_seed_other_sources_are_of_a_kind(self):
        entries = [TraceEntry(at, 1, source=f"{at:08}") for at in range(100)]
        mix = Mix([MixEntry("a"), MixEntry("b")])
        kinds = [[a.kind.model for a in mix.arrivals_of(entries, seed)] for seed in range(8)]
        for first, second in combinations(kinds, 2):
            assert 25 < sum(map(eq, first, second)) < 75

    def test_what_is_missing_is_said(self):
        with pytest.raises(WorkloadError, match=r"'m' has no deadline.*give it deadline_ms"):
            list(Mix([MixEntry("m")]).arrivals_of([TraceEntry(0)], 0))
        with pytest.raises(WorkloadError, match=r"labels 'odd'.*\(it has large\)"):
            list(Mix([MixEntry("m", label="large")]).arrivals_of([TraceEntry(0, 1, 1, "odd")], 0))
        mix = Mix([MixEntry("faces"), MixEntry("hands")])
        with pytest.raises(WorkloadError, match=r"trace's model 'yolo'.*there are faces, hands"):
            list(mix.arrivals_of([TraceEntry(0, 1, model="yolo")], 0))


class TestWorkload:
    def test_the_mix_leaves_the_times_as_they_are(self):
        other = Mix([DIGITS, MixEntry("faces", deadline_ms=Uniform(1, 9))])
        workload = Workload((Stream(Gamma(3), other, 100.0),), requests=300)
        assert [arrival.at_ns for arrival in workload.arrivals(4)] == times(Gamma(3), 100, 300, 4)

    @few
    @given(st.lists(PROCESSES, min_size=1, max_size=4), SEEDS, st.floats(0.1, 2))
    def test_streams_are_merged_in_order_and_none_is_lost(self, processes, seed, seconds):
        streams = tuple(
            Stream(process, Mix([MixEntry(f"m{at}", deadline_ms=Fixed(1))]), 50.0)
            for at, process in enumerate(processes)
        )
        merged = list(Workload(streams, seconds).arrivals(seed))
        assert all(one.at_ns <= other.at_ns for one, other in pairwise(merged))
        assert all(arrival.at_ns < seconds * 1e9 for arrival in merged)
        counts = Counter(arrival.kind.model for arrival in merged)
        for at in range(len(streams)):
            alone = takewhile(
                lambda arrival: arrival.at_ns < round(seconds * 1e9),
                streams[at].arrivals(Setting(seed), str(at)),
            )
            assert counts[f"m{at}"] == len(list(alone))

    def test_equal_times_keep_the_order_of_the_streams(self):
        one, other = (
            list(Mix([MixEntry(name, deadline_ms=Fixed(1))]).arrivals([5, 5], random.Random(0)))
            for name in ("one", "other")
        )
        merged = merge([iter(one), iter(other)])
        assert [arrival.kind.model for arrival in merged] == ["one", "one", "other", "other"]

    def test_a_load_is_a_share_of_the_capacity(self):
        workload = Workload((Stream(Constant(), Mix([DIGITS]), load=0.5),), seconds=2)
        assert len(list(workload.arrivals(capacity_per_s=200))) == pytest.approx(200, abs=1)
        with pytest.raises(WorkloadError, match="capacity, which isn't known"):
            workload.arrivals()

    def test_the_load_can_be_set(self):
        streams = (Stream(Poisson(), Mix([DIGITS]), 30.0), Stream(Poisson(), Mix([DIGITS]), 10.0))
        scaled = Workload(streams, 1).with_load(0.8)
        assert [stream.load for stream in scaled.streams if isinstance(stream, Stream)] == (
            pytest.approx([0.6, 0.2])
        )

    def test_a_stream_can_begin_later_and_end_earlier(self):
        surge = Stream(Constant(), Mix([DIGITS]), 100.0, start_s=1, end_s=2)
        at_ns = [arrival.at_ns for arrival in Workload((surge,)).arrivals()]
        assert at_ns[0] == 1_010_000_000
        assert len(at_ns) == 99


GAMMA = """
requests: 50
process: gamma
cv: 4
rate_per_s: 200
mix:
  - {model: digits, share: 3, deadline_ms: {uniform: [30, 100]}, size_bytes: 784}
  - {model: faces, variant: int8, deadline_ms: 50, priority: 1, weight: 2,
     size_bytes: {choice: [0, 9]}}
"""


class TestDescription:
    @pytest.fixture
    def described(self, tmp_path):
        def load(text: str) -> Workload:
            path = tmp_path / "load.yaml"
            path.write_text(text)
            return load_workload(path)

        return load

    def test_one_stream(self, described):
        workload = described(GAMMA)
        (stream,) = workload.streams
        assert isinstance(stream, Stream)
        assert (stream.process, stream.rate_per_s, stream.load) == (Gamma(4), 200, None)
        assert stream.mix.entries == (
            MixEntry("digits", None, 3, Uniform(30, 100), size_bytes=Fixed(784)),
            MixEntry("faces", "int8", 1, Fixed(50), priority=1, weight=2, size_bytes=OneOf((0, 9))),
        )
        assert len(list(workload.arrivals(1))) == 50

    def test_several_streams_and_a_trace(self, described, tmp_path):
        (tmp_path / "t.csv").write_text("arrival_ms,qos,deadline_ms\n0,a,50\n900,b,60\n")
        workload = described(
            "seconds: 1\n"
            "streams:\n"
            "- {process: cameras, cameras: 4, fps: 10, jitter: 0.1, "
            "mix: [{model: digits, deadline_ms: 33}]}\n"
            "- {process: trace, path: t.csv, speed: 2, mix: [{model: b, label: b}, {model: a}]}\n"
        )
        arrivals = list(workload.arrivals())
        assert Counter(arrival.kind.model for arrival in arrivals)["digits"] in range(38, 43)
        assert [
            (arrival.at_ns, arrival.kind.model, arrival.budget_ns)
            for arrival in arrivals
            if arrival.kind.model != "digits"
        ] == [(0, "a", 50_000_000), (450_000_000, "b", 60_000_000)]

    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            ("cv: 4", "cv: -1", r"load\.yaml: cv should be from 0.001 to 100; got -1"),
            ("cv: 4", "cv: many", "cv should be a number for gamma; got 'many'"),
            ("cv: 4", "", "cv should be a number for gamma; it is missing"),
            ("cv: 4", "cv: 1e308", r"load\.yaml: cv should be at most 1e\+12; got 1e\+308"),
            ("cv: 4", "cv: 4\ncv: 5", r"load\.yaml:5: cv: given twice; it is already on line 4"),
            ("cv: 4", "cv: 4\ncvs: 4", "cvs is no key; did you mean 'cv'"),
            ("cv: 4", "cv: 4\nburst_s: 4", "burst_s is no key; known here: .*process"),
            ("process: gamma", "process: gama", "not 'gama'; did you mean 'gamma'"),
            ("process: gamma", "", "process should be one of constant, poisson.*missing"),
            ("rate_per_s: 200", "", "should have one of rate_per_s, load; it has none"),
            (
                "rate_per_s: 200",
                "rate-per-sec: 200",
                "it has none, but there is 'rate-per-sec'; did you mean 'rate_per_s'?",
            ),
            (
                "rate_per_s: 200",
                "rate: 200",
                "it has none, but there is 'rate'; did you mean 'rate_per_s'?",
            ),
            ("rate_per_s: 200", "start_s: 1\nend_s: 4", "rate_per_s, load; it has none$"),
            ("rate_per_s: 200", "rate_per_s: 2\nload: 1", "it has rate_per_s and load"),
            ("rate_per_s: 200", "rate_per_s: 0", "rate_per_s should be a number above 0; got 0"),
            ("rate_per_s: 200", "rate_per_s: .inf", "rate_per_s should be a number above 0"),
            ("rate_per_s: 200", "rate_per_s: true", "rate_per_s should be .*; got True"),
            ("requests: 50", "", "has no end; give it seconds or requests"),
            ("requests: 50", "requests: 1.5", "requests should be a whole number from 1; got 1.5"),
            ("requests: 50", "seconds: 0", "seconds should be seconds above 0; got 0"),
            (
                "model: digits",
                "modle: digits",
                r"mix\[0\]\.model should be the name.*missing, .*'modle'; did you mean 'model'",
            ),
            ("share: 3", "shares: 3", r"mix\[0\]\.shares is no key; did you mean 'share'"),
            ("share: 3", "share: 0", r"mix\[0\]\.share should be a number above 0; got 0"),
            ("[30, 100]", "[100, 30]", r"mix\[0\]\.deadline_ms should be ms above 0, or {uniform"),
            ("uniform", "normal", r"deadline_ms should be .*; got {'normal': \[30, 100\]}"),
            ("deadline_ms: 50, ", "", r"mix\[1\] should have deadline_ms or .*; it has none"),
            ("priority: 1", "priority: 8", r"priority should be .* to 7; got 8"),
            ("priority: 1", "label: x", r"mix\[1\]\.label is no key"),
            ("priority: 1", "accept_late: 1", "accept_late should be true or false; got 1"),
            ("mix:", "mixes:", "mix should be a list .*; it is missing"),
            (GAMMA, "- 1", r"load\.yaml:1: should be a mapping of keys to values; this is a list"),
            (GAMMA, "a:\n  - [", r"^[^\n]*load\.yaml:2: not YAML: expected .* \(column 6\)$"),
            ("[30, 100]", "[30, 1e300]", r"mix\[0\]\.deadline_ms should be at most 1e\+12; got 1e"),
            ("requests: 50", "seconds: 1e13", r"seconds should be at most 1e\+12; got 1e\+13"),
            ("rate_per_s: 200", "rate_per_s: 1e-12", "rate_per_s should be at least 1e-06; got 1e"),
            (GAMMA, "", "load.yaml: process should be one of .*; it is missing"),
        ],
    )
    def test_a_mistake_is_named_with_its_key(self, described, before, after, said):
        assert before in GAMMA
        with pytest.raises((ConfigError, WorkloadError), match=f"(?s){said}"):
            described(GAMMA.replace(before, after))

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({}, "path should be the file of the trace; it is missing"),
            ({"path": "t", "format": "azurellm"}, "not 'azurellm'; did you mean 'azure-llm'"),
            ({"path": "t", "slice": [5, 2]}, r"slice should be \[START, END\].*; got \[5, 2\]"),
            (
                {"path": "t", "slice": [0, 1e300]},
                r"0 <= START < END <= 1e\+12; .*; got \[0, 1e\+300",
            ),
            ({"path": "t", "speed": 0}, "speed should be a number above 0; got 0"),
            ({"path": "t", "rate_per_s": 3}, "rate_per_s is no key; did you mean 'rate_scale'"),
        ],
    )
    def test_mistakes_of_traces(self, keys, said):
        with pytest.raises(WorkloadError, match=said):
            parse_workload({"process": "trace", "mix": [{"model": "m"}], **keys})

    def test_each_kind_needs_a_camera(self):
        shares = {"often": 30, "seldom": 1, "never": 1}
        mix = [{"model": model, "share": n, "deadline_ms": 9} for model, n in shares.items()]
        data = {"process": "cameras", "fps": 10, "seconds": 1, "mix": mix}
        said = "with 4, none would send seldom, never; 32 are enough"
        with pytest.raises(WorkloadError, match=f"cameras should be enough .*: {said}"):
            parse_workload({**data, "cameras": 4})
        came = parse_workload({**data, "cameras": 32}).arrivals(1)
        assert {arrival.kind.model for arrival in came} == set(shares)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"none\.yaml: can't be read: No such file"):
            load_workload(tmp_path / "none.yaml")

    def test_it_streams(self, described):
        endless = described(GAMMA.replace("requests: 50", "requests: 1000000000000"))
        assert len(list(islice(endless.arrivals(), 100))) == 100
