from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.core.offers import Offer
from tests.workers import onnx_models
from tests.workers.conftest import QUICK, SLOW, StartOn
from tests.workers.onnx_models import save
from workers import measuring_again
from workers.batches import ItemRunner
from workers.device_host import DeviceHost
from workers.link import offer_from, offer_header
from workers.loading import Loader
from workers.reference import reference_answers
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceError, DeviceSpec, RunError
from workers.runtimes.onnxruntime import OnnxRuntime, OnnxRuntimeSession
from workers.tensors import Item

CPU_RUNTIMES = [name for name in ("openvino", "onnxruntime") if RUNTIMES[name]().missing() is None]
needs_both = pytest.mark.skipif(
    len(CPU_RUNTIMES) < 2, reason="compares OpenVINO with ONNX Runtime; both must be installed"
)


@pytest.fixture
def start(start_on: StartOn) -> StartOn:
    def start_host(*runtimes: str, max_batch: int = 4, **options) -> DeviceHost:
        spec = DeviceSpec("cpu:0", "cpu", runtimes=runtimes, options=options)
        return start_on(spec, max_batch)

    return start_host


@pytest.fixture(params=CPU_RUNTIMES)
def prepared(request, start):
    """Starts a host with one runtime and makes everything ready."""

    def prepare() -> DeviceHost:
        host: DeviceHost = start(request.param)
        list(host.prepare())
        return host

    return prepare


def xs(*rows: float) -> list[Item]:
    return [{"x": np.full(3, row, np.float32)} for row in rows]


def test_an_empty_repository_offers_nothing(start):
    host = start()

    assert list(host.prepare()) == []
    assert host.problems == []
    with pytest.raises(KeyError, match="it serves nothing yet"):
        host.run("relu", "1", [])


def test_what_the_packages_counter_rises_by_is_offered_as_energy(root, add, tmp_path, monkeypatch):
    add("relu", onnx_models.relu())
    zone = tmp_path / "box/sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    counter, drawn = zone / "energy_uj", [0]
    run_batch = ItemRunner.run_batch

    def draws(*args):
        drawn[0] += 5_000
        counter.write_text(f"{drawn[0]}\n")
        return run_batch(*args)

    counter.write_text("0\n")
    monkeypatch.setattr(ItemRunner, "run_batch", draws)
    spec = DeviceSpec("cpu:0", "cpu")
    host = DeviceHost(spec, root, tmp_path / "state", 2, QUICK, system_root=tmp_path / "box")
    (offer,) = host.prepare()
    host.close()

    assert sorted(offer.energy_uj) == [1, 2]
    assert all(5_000 <= energy_uj <= 10_000 for energy_uj in offer.energy_uj.values())
    assert offer_from(offer_header(offer)) == offer


def test_an_offer_says_at_which_shapes_items_were_measured(start, add):
    one = "variants: {a: {file: model.onnx}}"
    add("ids", onnx_models.sequence(), one)
    add("long", onnx_models.sequence(), f"profile_shapes: {{ids: [7]}}\n{one}")
    add("relu", onnx_models.relu())

    offers = {offer.model: offer for offer in start().prepare()}

    shapes = {model: offer.item_shapes for model, offer in offers.items()}
    assert shapes == {"ids": ((1,),), "long": ((7,),), "relu": ()}
    assert offer_from(offer_header(offers["long"])) == offers["long"]


def say_it_took(profiles: Path, ns: int) -> None:
    """Has it that every batch that was measured took so long."""
    for path in profiles.glob("*.json"):
        document = json.loads(path.read_text())
        for entry in document["profiles"].values():
            for samples in entry["latency_ns"].values():
                samples[:] = [ns] * len(samples)
        path.write_text(json.dumps(document))


def sizes_run(monkeypatch) -> list[int]:
    """The size of each batch that runs from now on."""
    run_batch, sizes = ItemRunner.run_batch, list[int]()

    def counted(runner, items):
        sizes.append(len(items))
        return run_batch(runner, items)

    monkeypatch.setattr(ItemRunner, "run_batch", counted)
    return sizes


class TestMeasuredAgain:
    def test_what_was_measured_in_a_bad_moment_is_offered_and_stored_anew(
        self, start, add, tmp_path
    ):
        add("relu", onnx_models.relu())
        list(start().prepare())
        say_it_took(tmp_path / "state/profiles", 10**9)
        host = start()
        (bad,) = host.prepare()
        assert bad.latency_ns[1][0] == 10**9

        offer = host.measure_again("relu", "1")

        assert offer is not None
        assert offer.latency_ns[1][-1] < 10**9
        assert host.run("relu", "1", xs(1.0))[0]["y"].tolist() == [1, 1, 1]
        (stored,) = start().prepare()
        assert stored.latency_ns == offer.latency_ns

    def test_larger_batches_that_do_not_pay_for_a_moment_are_offered_on(
        self, start, add, tmp_path, monkeypatch
    ):
        add("relu", onnx_models.relu())
        list(start().prepare())
        say_it_took(tmp_path / "state/profiles", 10**9)
        host = start()
        (before,) = host.prepare()
        monkeypatch.setattr(measuring_again, "measure_ladder", lambda *_, **__: {1: (1000,)})

        offer = host.measure_again("relu", "1")

        assert max(before.latency_ns) == 4
        assert offer is not None
        assert offer.latency_ns == {**before.latency_ns, 1: (1000,)}
        (stored,) = start().prepare()
        assert stored.latency_ns == offer.latency_ns

    @pytest.mark.parametrize(("known_ns", "runs"), [(10**9, 4), (1, 2)])
    def test_while_others_are_served_a_few_single_items_tell(
        self, known_ns, runs, start, add, tmp_path, monkeypatch
    ):
        add("relu", onnx_models.relu())
        add("other", onnx_models.relu())
        list(start().prepare())
        say_it_took(tmp_path / "state/profiles", known_ns)
        host = start()
        before = {offer.model: offer for offer in host.prepare()}["relu"]
        monkeypatch.setattr(measuring_again, "_IDLE_S", 3_600)
        host.run("other", "1", xs(1.0))
        sizes = sizes_run(monkeypatch)

        offer = host.measure_again("relu", "1")

        assert sizes == [1] * runs
        if known_ns == 1:
            assert offer is None
        else:
            assert offer is not None
            assert offer.latency_ns.keys() == before.latency_ns.keys()
            assert all(ns < known_ns for samples in offer.latency_ns.values() for ns in samples)
        (stored, _) = sorted(start().prepare(), key=lambda offer: offer.model != "relu")
        assert stored == before, "larger batches were not measured, so it is not kept"

    def test_what_is_no_faster_changes_nothing(self, start, add, tmp_path):
        add("relu", onnx_models.relu())
        list(start().prepare())
        say_it_took(tmp_path / "state/profiles", 1)
        host = start()
        (good,) = host.prepare()
        assert host.measure_again("relu", "1") is None
        (stored,) = start().prepare()
        assert stored == good

    @pytest.mark.parametrize(("known_ms", "runs"), [(1, 1), (10_000, 1 + 2 * 3)])
    def test_a_slow_model_that_is_no_faster_keeps_requests_waiting_for_one_run(
        self, known_ms, runs, start_on, add, tmp_path, monkeypatch
    ):
        add("relu", onnx_models.relu())
        spec = DeviceSpec("cpu:0", "cpu", runtimes=("emulated",), options={"base_ms": 1})
        list(start_on(spec, 2, SLOW).prepare())
        say_it_took(tmp_path / "state/profiles", known_ms * 10**6)
        host = start_on(spec, 2, SLOW)
        list(host.prepare())
        sizes = sizes_run(monkeypatch)

        offer = host.measure_again("relu", "1")

        assert (offer is None) == (known_ms == 1)
        assert len(sizes) == runs

    def test_what_is_not_served_or_fails_by_now_is_left(self, start, add, monkeypatch):
        add("relu", onnx_models.relu())
        host = start()
        list(host.prepare())

        def fail(*_):
            raise RuntimeError

        monkeypatch.setattr(ItemRunner, "run_batch", fail)
        assert host.measure_again("relu", "2") is None
        assert host.measure_again("relu", "1") is None


def test_every_variant_is_offered_with_its_measured_latency(start, add):
    add(
        "relu",
        onnx_models.relu(),
        "variants: {a: {file: model.onnx, accuracy: 0.5}, b: {file: model.onnx}}",
    )

    offers = list(start().prepare())

    assert [(o.model, o.variant, o.rank, o.accuracy) for o in offers] == [
        ("relu", "a", 0, 0.5),
        ("relu", "b", 1, None),
    ]
    for offer in offers:
        assert offer.runtime in CPU_RUNTIMES
        assert {1, 2} <= offer.latency_ns.keys() <= {1, 2, 4}
        for samples in offer.latency_ns.values():
            assert list(samples) == sorted(samples)
            assert samples[0] > 0


def test_an_offer_is_served_as_soon_as_it_is_made(start, add):
    add("a", onnx_models.relu())
    add("b", onnx_models.relu())
    host = start()
    offers = host.prepare()

    assert next(offers).model == "a"
    assert isinstance(host.run("a", "1", xs(1))[0], dict)
    with pytest.raises(KeyError, match="does not serve b/1; it serves a/1"):
        host.run("b", "1", xs(1))
    assert next(offers).model == "b"


def test_progress_rises_to_its_total(start, add):
    add("a", onnx_models.relu())
    add("b", onnx_models.dense())
    seen: list[tuple[int, int, str]] = []

    list(start().prepare(lambda *step: seen.append(step)))

    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert {step[1] for step in seen} == {2 * len(CPU_RUNTIMES)}
    assert seen[-1][0] == seen[-1][1]
    assert any("batch 2" in text for _, _, text in seen)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_items_come_back_in_order(prepared, add, count):
    add("two", onnx_models.two_by_two())
    host = prepared()
    items = [
        {"a": np.full(3, i, np.float32), "b": np.arange(i, i + 3, dtype=np.int32)}
        for i in range(count)
    ]

    for index, result in enumerate(host.run("two", "1", items)):
        assert isinstance(result, dict)
        assert isinstance(result["total"], np.ndarray)
        assert result["total"].shape == ()
        np.testing.assert_array_equal(result["sum"], index + np.arange(index, index + 3))
        assert result["total"] == 3 * index


def test_a_batch_larger_than_the_session_takes_still_answers(prepared, add):
    add("relu", onnx_models.relu(batch=1))

    results = prepared().run("relu", "1", xs(1, -2, 3))

    assert [r["y"].tolist() for r in results if isinstance(r, dict)] == [[1] * 3, [0] * 3, [3] * 3]


def test_a_model_without_a_batch_dimension_runs_items_one_by_one(prepared, add):
    add("found", onnx_models.found_objects())
    items = [
        {"x": np.array([[0, 1, 0], [1, 0, 0]], np.float32)},
        {"x": np.array([[0, 0, 0], [0, 0, 1]], np.float32)},
    ]

    first, second = prepared().run("found", "1", items)

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["y"].tolist() == [[0, 1], [1, 0]]
    assert second["y"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "bad",
    [
        {"x": np.zeros(4, np.float32)},
        {"x": np.zeros(3, np.float64)},
        {"x": np.zeros((1, 3), np.float32)},
        {"z": np.zeros(3, np.float32)},
        {"x": np.zeros(3, np.float32), "z": np.zeros(3, np.float32)},
        {},
    ],
    ids=["shape", "dtype", "rank", "name", "too many", "empty"],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_item_fails_alone(prepared, add, bad, place):
    add("relu", onnx_models.relu())
    items = xs(1, 2, 3)
    items[place] = bad

    results = prepared().run("relu", "1", items)

    for index, result in enumerate(results):
        if index == place:
            assert isinstance(result, RunError)
        else:
            assert isinstance(result, dict)
            assert result["y"].tolist() == [index + 1] * 3


@pytest.mark.parametrize("bad", [np.zeros(4, np.float32), np.zeros(3, np.float64)])
def test_items_that_fail_leave_no_tensors_in_cycles(prepared, add, bad):
    add("relu", onnx_models.relu())
    host = prepared()

    def run() -> weakref.ref[Any]:
        x = bad.copy()
        results = host.run("relu", "1", [{"x": x}])
        assert isinstance(results[0], RunError)
        return weakref.ref(x)

    gc.disable()  # it counts objects, and these could fill the memory before it runs
    try:
        assert run()() is None
    finally:
        gc.enable()


@pytest.mark.skipif("onnxruntime" not in CPU_RUNTIMES, reason="onnxruntime is not installed")
def test_an_item_that_the_runtime_fails_on_fails_alone(start, add):
    add("gather", onnx_models.gather(rows=4))
    host = start("onnxruntime")
    list(host.prepare())

    good, bad, also_good = host.run("gather", "1", [{"index": np.array(i)} for i in (1, 9, 3)])

    assert isinstance(bad, RunError)
    assert "indices element out of data bounds" in str(bad)
    assert isinstance(good, dict)
    assert isinstance(also_good, dict)
    assert (good["row"].tolist(), also_good["row"].tolist()) == ([2, 3], [6, 7])


def test_a_model_that_mixes_its_items_is_served_one_at_a_time(start, add):
    add("mixes", onnx_models.mixes_items("N"))
    host = start()

    (offer,) = host.prepare()

    assert offer.max_batch == 1
    assert "served one item at a time: item 0 of a batch of 2 differs" in host.problems[0].reason


@needs_both
def test_a_runtime_that_fails_leaves_the_variant_to_the_others(start, add):
    # Sampled integers are 0 or 1: ONNX Runtime refuses row 1 of 1, OpenVINO answers zeros.
    add("gather", onnx_models.gather(rows=1))
    host = start("onnxruntime", "openvino")

    (offer,) = host.prepare()

    assert offer.runtime == "openvino"
    (problem,) = host.problems
    assert (problem.model, problem.variant, problem.runtime) == ("gather", "1", "onnxruntime")
    assert "failed on random inputs" in problem.reason


@pytest.mark.parametrize(
    ("runtime", "most", "told"),
    [("onnxruntime", 8, True), ("onnxruntime", 1, False), ("openvino", 8, False)],
)
def test_a_file_that_takes_one_item_at_a_time_is_told_of(start, add, runtime, most, told):
    yaml = f"max_batch: {most}\nvariants: {{a: {{file: model.onnx}}}}"
    add("relu", onnx_models.relu(batch=1), yaml)
    for _ in range(2):  # measured, and as measured before
        host = start(runtime)
        list(host.prepare())
        reasons = [problem.reason for problem in host.problems]
        assert [reason.partition(";")[0] for reason in reasons] == [
            "served in batches of at most 1: the file fixes its batch dimension at 1"
        ] * told


@needs_both
@pytest.mark.parametrize("first", CPU_RUNTIMES)
def test_a_runtime_that_disagrees_with_the_first_is_rejected(start, add, first):
    yaml = "tolerance: {rtol: 0.0, atol: 0.0}\nvariants: {a: {file: model.onnx}}"
    add("dense", onnx_models.dense(), yaml)
    (other,) = set(CPU_RUNTIMES) - {first}
    host = start(first, other)

    (offer,) = host.prepare()

    assert offer.runtime == first
    (problem,) = host.problems
    assert problem.runtime == other
    assert problem.reason.startswith("rejected: 'y' is off by")


@needs_both
def test_a_runtime_that_cannot_load_leaves_the_variant_to_the_others(start, add):
    add("doubles", onnx_models.passes_on("float64"))
    host = start("openvino", "onnxruntime")

    (offer,) = host.prepare()

    assert offer.runtime == "onnxruntime"
    assert [problem.runtime for problem in host.problems] == ["openvino"]


def test_a_model_that_nothing_may_run_is_a_problem(start, add):
    add("relu", onnx_models.relu(), "runtimes: [emulated]\nvariants: {a: {file: model.onnx}}")
    add("other", onnx_models.relu())
    host = start(*CPU_RUNTIMES)

    assert [offer.model for offer in host.prepare()] == ["other"]
    (problem,) = host.problems
    assert "model.yaml allows emulated" in problem.reason


def test_a_device_serves_only_the_models_that_it_lists(start_on, add):
    for name in ("relu", "line-1", "line-2", "other"):
        add(name, onnx_models.relu())
    host = start_on(DeviceSpec("cpu:0", "cpu", models=("relu", "line-*")), 4)
    steps: list[tuple[int, int]] = []

    offers = host.prepare(lambda done, total, text: steps.append((done, total)))
    assert sorted(offer.model for offer in offers) == ["line-1", "line-2", "relu"]
    assert steps[-1][0] == steps[-1][1]
    assert "other" in host.repository.models  # what it takes is known all the same
    assert host.problems == []


def prepare(host: DeviceHost) -> tuple[list[Offer], list[str]]:
    texts: list[str] = []
    return list(host.prepare(lambda done, total, text: texts.append(text))), texts


def test_a_restart_takes_the_stored_profile(start, add):
    add("relu", onnx_models.relu())
    first, measured = prepare(start())
    again, taken = prepare(start())

    assert again == first
    assert measured[0].endswith(", loading")
    assert measured[1].endswith(", first answers")
    assert measured[2].endswith(", batch 1")
    assert not any("batch 1" in text for text in taken)
    assert any("as measured before" in text for text in taken)


@pytest.mark.parametrize("change", ["file", "max_batch", "device", "corruption"])
def test_what_a_profile_depends_on_makes_it_measured_again(start, add, tmp_path, change):
    file = add("relu", onnx_models.relu())
    prepare(start())
    settings = {}
    if change == "file":
        save(onnx_models.relu(width=5), file)
    elif change == "max_batch":
        settings = {"max_batch": 8}
    elif change == "device":
        settings = {"tf32": True}
    else:
        for profile in (tmp_path / "state" / "profiles").iterdir():
            profile.write_text(profile.read_text()[:50])

    host = start(**settings)
    _, texts = prepare(host)

    assert any("batch 1" in text for text in texts)
    assert any("measuring again" in p.reason for p in host.problems) == (change == "corruption")


@needs_both
def test_a_rejection_is_remembered(start, add, tmp_path):
    yaml = "tolerance: {rtol: 0.0, atol: 0.0}\nvariants: {a: {file: model.onnx}}"
    add("dense", onnx_models.dense(), yaml)
    prepare(start("openvino", "onnxruntime"))
    ((offer,), texts) = prepare(start("openvino", "onnxruntime"))

    assert offer.runtime == "openvino"
    assert texts[0] == "dense/a: openvino, as measured before"
    stored = [json.loads(p.read_text()) for p in (tmp_path / "state" / "profiles").iterdir()]
    reasons = [entry["rejected"] for d in stored for entry in d["profiles"].values()]
    assert sum(reason is not None for reason in reasons) == 1


def test_an_emulated_device_serves_whatever_a_model_asks_for(start, add):
    add("relu", onnx_models.relu(), "runtimes: [openvino]\nvariants: {a: {file: model.onnx}}")
    host = start("emulated", base_ms=0.01)

    (offer,) = host.prepare()

    assert offer.runtime == "emulated"
    (result,) = host.run("relu", "a", xs(7))
    assert isinstance(result, dict)
    assert result["y"].tolist() == [0, 0, 0]
    assert "emulated" in host.describe()


@needs_both
def test_a_missing_library_is_a_problem_and_the_other_serves(start, add, monkeypatch):
    add("relu", onnx_models.relu())
    monkeypatch.setitem(sys.modules, "openvino", None)
    host = start()

    assert [offer.runtime for offer in host.prepare()] == ["onnxruntime"]
    (problem,) = host.problems
    assert (problem.runtime, problem.model) == ("openvino", "*")
    assert "openvino cannot be imported" in problem.reason


def test_an_emulated_device_that_fails_requests_is_measured_all_the_same(start, add):
    add("relu", onnx_models.relu())
    host = start("emulated", base_ms=0.01, fail_rate=1.0)

    (offer,) = host.prepare()

    assert (offer.runtime, host.problems) == ("emulated", [])
    assert {str(answer) for answer in host.run("relu", "1", xs(1.0, 2.0))} == {
        "emulated failure on cpu:0"
    }


def test_fast_models_do_not_wait_for_slow_ones_to_warm_up_after_a_restart(start, add):
    for name in ("a", "b", "c"):
        add(name, onnx_models.relu())
    settings = {"base_ms": 0.01, "models": {"a": {"base_ms": 30}, "b": {"base_ms": 10}}}
    first = start("emulated", **settings)
    assert [offer.model for offer in first.prepare()] == ["a", "b", "c"]
    add("aa", onnx_models.times(2))  # was never measured
    again = start("emulated", **settings)
    assert [offer.model for offer in again.prepare()] == ["c", "b", "a", "aa"]


def test_copies_of_a_file_with_emulated_latencies_of_their_own_are_measured_each(start, add):
    add("fast", onnx_models.relu())
    add("slow", onnx_models.relu())
    settings = {"base_ms": 0.01, "models": {"slow": {"base_ms": 20}}}
    for host in (start("emulated", **settings), start("emulated", **settings)):
        took_ns = {offer.model: offer.latency_ns[1][0] for offer in host.prepare()}
        assert took_ns["fast"] < 20_000_000 <= took_ns["slow"]


def test_nothing_is_emulated_unless_asked_for(start):
    assert "emulated" not in start().describe()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (DeviceSpec("cpu:0", "cpu", runtimes=("openvin",)), "did you mean 'openvino'"),
        (DeviceSpec("cpu:0", "cpu", runtimes=("openvino", "emulated")), "must be alone"),
        (DeviceSpec("npu:7", "npu", runtimes=("openvino",)), "finds no NPU.7 here; it finds CPU"),
        (DeviceSpec("gpu:0", "gpu", runtimes=("onnxruntime",)), "computes on cpu, not on a gpu"),
        (DeviceSpec("cpu:0", "cpu", options={"tf23": True}), "did you mean .tf32."),
        (DeviceSpec("cpu:0", "cpu", cores=(100_000,)), "cannot run on cores"),
        (DeviceSpec("cpu:0", "cpu", cores=(0, 1023)), "only .0. are available"),
    ],
)
def test_a_device_that_cannot_be_had_is_an_error(root, tmp_path, spec, said):
    def start() -> None:
        DeviceHost(spec, root, tmp_path / "state", 4, QUICK)

    # In a thread of its own, so that its pinning ends with it.
    with ThreadPoolExecutor(1) as pool, pytest.raises(DeviceError, match=said):
        pool.submit(start).result()


def test_emulated_latencies_of_a_model_that_is_not_there_are_an_error(root, start, add):
    add("relu", onnx_models.relu())
    (root / "broken").mkdir()  # known, though nothing can run it
    own = {"base_ms": 1.0}
    host = start("emulated", base_ms=0.1, models={"relu": own, "broken": own})
    assert [offer.model for offer in host.prepare()] == ["relu"]
    with pytest.raises(DeviceError, match=r"no model is called 'rellu' .did you mean 'relu'"):
        start("emulated", base_ms=0.1, models={"rellu": own})


def test_each_thread_that_runs_is_pinned_to_the_devices_cores(root, tmp_path, add):
    add("relu", onnx_models.relu())
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)

    def start() -> tuple[DeviceHost, set[int]]:
        host = DeviceHost(DeviceSpec("cpu:0", "cpu", (core,)), root, tmp_path / "s", 1, QUICK)
        list(host.prepare())
        return host, os.sched_getaffinity(0)

    def run(host: DeviceHost) -> set[int]:
        host.run("relu", "1", xs(1))
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        host, pinned = first.submit(start).result()
        assert pinned == {core}
        assert second.submit(run, host).result() == {core}
    assert os.sched_getaffinity(0) == before


def test_closing_frees_everything(start, add):
    add("relu", onnx_models.relu())
    host = start()
    list(host.prepare())

    host.close()

    with pytest.raises(KeyError):
        host.run("relu", "1", xs(1))


DIES = """
import os, sys
from pathlib import Path
from workers.device_host import DeviceHost
from workers.profiling import Effort
from workers.runtimes.base import DeviceSpec

spec = DeviceSpec("cpu:0", "cpu", runtimes=("emulated",), options={"base_ms": 0.01})
host = DeviceHost(spec, Path(sys.argv[1]), Path(sys.argv[2]), 4, Effort())
list(host.prepare(lambda done, total, text: os._exit(1) if "batch 1" in text else None))
"""


def test_a_variant_that_the_worker_keeps_dying_of_is_left_out(start, root, add, tmp_path):
    add("deadly", onnx_models.relu())
    for _ in range(3):
        command = [sys.executable, "-c", DIES, root, tmp_path / "state"]
        assert subprocess.run(command, check=False).returncode == 1
    add("good", onnx_models.dense())
    host = start("emulated", base_ms=0.01)

    offers, _ = prepare(host)

    assert [offer.model for offer in offers] == ["good"]
    (problem,) = host.problems
    assert (problem.model, problem.runtime) == ("deadly", "emulated")
    assert "the worker died 3 times" in problem.reason


@pytest.mark.parametrize(
    "deadly", ["judging.sample_items", "judging.Judge.warm_up", "trials.reference_answers"]
)
def test_what_the_worker_may_die_of_is_an_attempt(start, add, tmp_path, monkeypatch, deadly):
    add("relu", onnx_models.relu())
    if "warm_up" in deadly:
        list(start("onnxruntime").prepare())
    monkeypatch.setattr("workers.trials.reference_runtimes", lambda _: (OnnxRuntime(),))
    attempts: list[int] = []

    def fail(*_: Any) -> None:
        attempts.append(len(list((tmp_path / "state/attempts").iterdir())))
        raise MemoryError

    monkeypatch.setattr(f"workers.{deadly}", fail)
    list(start("onnxruntime").prepare())
    assert set(attempts) == {1}


def test_what_devices_of_a_kind_try_at_the_same_time_is_no_death(root, add, tmp_path, monkeypatch):
    add("relu", onnx_models.relu())
    specs = [DeviceSpec(f"cpu:{n}", "cpu", options={"threads": 1}) for n in range(4)]
    hosts = [DeviceHost(spec, root, tmp_path / "state", 2, QUICK) for spec in specs]
    waiting = list(hosts)
    offered: list[str] = []
    open_session = Loader.open

    def open_beside_others(*arguments):
        """While one is loading, the next begins."""
        if waiting:
            offered.extend(offer.model for offer in waiting.pop().prepare())
        return open_session(*arguments)

    monkeypatch.setattr(Loader, "open", open_beside_others)
    offered.extend(offer.model for offer in waiting.pop().prepare())

    assert offered == ["relu"] * 4
    for host in hosts:
        assert host.problems == []
        host.close()


def test_a_profile_that_cannot_be_stored_is_a_problem_and_served(start, add, monkeypatch):
    add("relu", onnx_models.relu())
    host = start(CPU_RUNTIMES[0])

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    (offer,) = host.prepare()

    assert offer.model == "relu"
    reasons = " ".join(problem.reason for problem in host.problems)
    assert "could not be stored: [Errno 28] No space left on device" in reasons
    assert "could not be stored: [Errno 28] No space left on device" in reasons


def test_a_folder_that_cannot_be_used_is_a_problem_and_ends_nothing(start, add, tmp_path):
    add("relu", onnx_models.relu())
    host = start(CPU_RUNTIMES[0])
    (tmp_path / "state/compiled/box.key").unlink()
    (tmp_path / "state/compiled").rmdir()
    (tmp_path / "state/compiled").touch()

    assert list(host.prepare()) == []
    (problem,) = host.problems
    assert "the folder for its compiled models cannot be used: [Errno 20]" in problem.reason


@pytest.mark.parametrize(
    ("width", "said"),
    [(10**14, "Unable to allocate"), (2**62, "array is too big")],
    ids=["for memory", "for an address"],
)
def test_an_item_that_is_too_big_leaves_the_other_models(start, add, width, said):
    add("huge", onnx_models.relu(width=width))
    add("relu", onnx_models.relu())
    host = start()

    assert [offer.model for offer in host.prepare()] == ["relu"]
    (problem,) = host.problems
    assert (problem.model, problem.runtime) == ("huge", "*")
    assert "could not be tried: MemoryError: " in problem.reason
    assert said in problem.reason


def test_a_device_can_be_kept_busy_and_timed(start, add):
    host = start()
    assert (host.occupy(0.01), host.typical_ns(0.01)) == (0, {})
    add("relu", onnx_models.relu())
    add("lazy", onnx_models.relu(), "variants: {v: {file: model.onnx}}\nresidency: lazy")
    host = start()
    list(host.prepare())
    assert host.occupy(0.02) > 0
    # What is out of memory is left there.
    assert host.typical_ns(0.02).keys() == {"relu/1"}
    assert "throttled" in host.telemetry()


def test_a_model_that_takes_longer_keeps_no_device_busy(start, add):
    """Ten models of 3 s took half a minute, while requests waited for each run."""
    add("fast", onnx_models.relu())
    add("slow", onnx_models.relu())
    host = start("emulated", base_ms=200, models={"fast": {"base_ms": 0.1}})
    list(host.prepare())
    assert host.typical_ns(0.02).keys() == {"fast/1"}
    add("fast", onnx_models.relu(), "variants: {v: {file: model.onnx}}\nresidency: lazy")
    host = start("emulated", base_ms=200, models={"fast": {"base_ms": 0.1}})
    list(host.prepare())
    assert host.typical_ns(0.02).keys() == {"slow/1"}, "rather than none"


@needs_both
def test_all_that_was_measured_is_told_with_who_serves(start, add):
    add("relu", onnx_models.relu())
    host = start()
    assert list(host.measured()) == []
    (offer,) = host.prepare()
    found = {measured.runtime: measured for measured in host.measured()}
    assert found.keys() == set(CPU_RUNTIMES)
    assert [name for name, measured in found.items() if measured.chosen] == [offer.runtime]
    assert found[offer.runtime].profile.latency_ns == offer.latency_ns


@pytest.mark.parametrize("method", ["load", "run"])
def test_what_served_before_a_restart_and_fails_now_is_said(start, add, monkeypatch, method):
    add("relu", onnx_models.relu())
    list(start("onnxruntime").prepare())

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    owner = OnnxRuntime if method == "load" else OnnxRuntimeSession
    monkeypatch.setattr(owner, method, fail)
    host = start("onnxruntime")
    assert list(host.prepare()) == []
    assert any("the disk is gone" in problem.reason for problem in host.problems)


def test_a_library_that_fails_to_load_the_reference_is_told(tmp_path, add, load, monkeypatch):
    """Of any kind: left to pass, it would end the worker at each of its starts."""

    def fail(*_):
        raise RuntimeError("no infer request")

    add("relu", onnx_models.relu())
    model = load("relu")
    told: list[tuple[str, str]] = []
    ask = (DeviceSpec("gpu:0", "gpu"), tmp_path, lambda *why: told.append(why))
    monkeypatch.setattr(OnnxRuntime, "load", fail)
    assert reference_answers(model, model.variants[0], xs(1), *ask) is not None  # OpenVINO's
    said = "cannot be compared with: RuntimeError: no infer request"
    assert told == [("onnxruntime", said)]


def test_an_accelerators_reference_is_told_when_there_is_none(root, tmp_path, add, load):
    add("relu", onnx_models.relu())
    model = load("relu")
    damaged = replace(model.variants[0], path=root / "relu" / "1" / "odd.onnx")
    (root / "relu" / "1" / "odd.onnx").write_bytes(b"no model")
    told: list[tuple[str, str]] = []
    gpu = DeviceSpec("gpu:0", "gpu")
    (tmp_path / "cache").mkdir()
    ask = (gpu, tmp_path / "cache", lambda *why: told.append(why))
    assert reference_answers(model, damaged, xs(1), *ask) is None
    assert [runtime for runtime, _ in told] == ["onnxruntime", "openvino"]
    wrong: list[Item] = [{"x": np.zeros((2, 2), np.float32)}]
    assert reference_answers(model, model.variants[0], wrong, *ask) is None
    assert all(why.startswith("cannot be compared with: ") for _, why in told)
    answers = reference_answers(model, model.variants[0], xs(2), *ask)
    assert answers is not None
    assert [answer["y"].tolist() for answer in answers] == [[2, 2, 2]]
