from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from typing import Any

import numpy as np
import pytest

import scheduler
from scheduler import (
    AsyncClient,
    Client,
    DeadlineExpired,
    DeadlineInfeasible,
    InvalidInput,
    ModelNotFound,
    ProtocolError,
    Unavailable,
    wire,
)
from scheduler.client.late_endings import in_callers_terms
from scheduler.errors import ERRORS
from tests.fake_box import IMAGE, Peer, ignore, image
from tests.waiting import PATIENCE_S, eventually

MINUTE_MS = 60_000
HUGE = 10**400


class WithGrad:
    """What a tensor of PyTorch says that takes part in a gradient."""

    def __array__(self, *_args: Any, **_options: Any) -> Any:
        raise RuntimeError("use tensor.detach().numpy() instead")


def short(value: Any) -> str:
    return repr(value)[:8]


@pytest.fixture
def client(box):
    with Client(box.url) as client:
        yield client


class TestInfer:
    def test_the_result_says_how_it_went(self, client):
        result = client.infer("digits", image(1, 2), deadline_ms=MINUTE_MS, variant="int8")
        assert result["image"].tolist() == [1, 2]
        assert (result.target, result.variant, result.runtime, result.batch, result.late) == (
            ("cpu:0", "int8", "echo", 1, False)
        )
        assert result.timing == (1, 2, 3, 6)
        assert result.timing.total_ns == 6

    def test_an_output_that_is_not_there_is_named(self, client):
        result = client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        with pytest.raises(KeyError, match="no output 'scores'; there are 'image'"):
            result["scores"]
        assert "image" in result
        assert "scores" not in result
        assert list(result) == ["image"]

    def test_large_tensors_go_through(self, client):
        x = np.arange(150_000, dtype=np.float32)
        result = client.infer("digits", {"image": x}, deadline_ms=MINUTE_MS)
        np.testing.assert_array_equal(result["image"], x)

    def test_what_is_asked_for_is_on_the_wire(self, box, client):
        client.infer(
            "digits",
            {"image": [[1, 2]]},
            deadline_ms=MINUTE_MS,
            priority=0,
            weight=2.5,
            accept_late=True,
            exact=True,
        )
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        (_, first), (_, second) = box.wait("infer", 2)
        assert first["in"] == [["image", "int64", [1, 2]]]
        assert (first["priority"], first["weight"], first["late"]) == (0, 2.5, True)
        assert first["exact"] is True
        assert not {"priority", "weight", "late", "exact", "variant"} & set(second)
        assert 0 < second["budget_ns"] <= MINUTE_MS * 1e6
        assert first["id"] != second["id"]

    def test_at_most_half_of_the_budget_is_kept_for_the_way(self, box, client):
        box.on_infer = ignore
        client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        ((_, header),) = box.wait("infer")
        assert header["budget_ns"] >= MINUTE_MS * 1e6 / 2 - 10e9

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            ("infeasible", DeadlineInfeasible),
            ("model_not_found", ModelNotFound),
            ("unavailable", Unavailable),
            ("cancelled", CancelledError),
        ],
    )
    def test_errors_of_the_box_are_typed(self, box, client, code, error):
        box.on_infer = lambda peer, header: peer.refuse(header, code, "why", a=1)
        with pytest.raises(error, match="why") as caught:
            client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        if code != "cancelled":
            assert caught.value.detail == {"a": 1}

    def test_inputs_over_the_box_limit_are_not_sent(self, box, client):
        x = np.zeros(300_000, np.float32)
        with pytest.raises(
            InvalidInput, match=r"1200000 bytes.* accepts up to 1000000 \(limits.body_mb\)"
        ):
            client.infer("digits", {"image": x}, deadline_ms=MINUTE_MS)
        with pytest.raises(
            InvalidInput, match=r"header takes .* bytes.* accepts up to 65536 \(limits.header_kb\)"
        ):
            client.infer("x" * 70_000, image(1), deadline_ms=MINUTE_MS)
        assert not box.messages("infer")

    @pytest.mark.parametrize("fields", [{}, {"timing": [1, 2]}, {"timing": [1, 2, 3, "4"]}])
    def test_a_malformed_result_fails_its_request_alone(self, box, client, fields):
        box.on_infer = lambda peer, header: peer.send({"t": "result", "id": header["id"], **fields})
        with pytest.raises(ProtocolError, match="does not follow the protocol"):
            client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        box.on_infer = Peer.answer
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        assert len(box.messages("hello")) == 1

    def test_models_and_status(self, client):
        assert client.models()["models"][0]["inputs"] == [IMAGE]
        assert client.status() == {"site": "test"}


def test_every_error_that_a_box_answers_with_has_a_name_in_the_package():
    assert {error.__name__ for error in ERRORS.values()} <= set(scheduler.__all__)


def test_all_that_is_raised_or_given_has_a_name_in_the_package():
    assert all(getattr(scheduler, name).__name__ == name for name in scheduler.__all__)
    with pytest.raises(scheduler.AddressError):
        Client("http://box")


def test_what_a_notebook_shows(box, client):
    result = client.infer("digits", {"image": np.zeros((1000, 1, 1))}, deadline_ms=MINUTE_MS)
    assert repr(client) == f"Client({box.url!r})"
    assert repr(result) == (
        "<Result completed in 6e-06 ms by 'fp32' on cpu:0, {'image': float64 [1000, 1, 1]}>"
    )
    result.timing = result.timing._replace(total_ns=1_234_567_890)
    assert repr(result).startswith("<Result completed in 1,235 ms by")
    result.outputs = {"label": np.array(b"cat")}
    assert repr(result).endswith("{'label': string []}>")
    result.notes = {"shrunk": "image as float16"}
    assert repr(result).endswith("}, {'shrunk': 'image as float16'}>")
    assert f"{result.outcome}" == "completed" == result.outcome
    assert result.outcome is scheduler.Outcome.COMPLETED


def test_a_type_checker_knows_the_options(client: Client) -> None:
    """It is mypy that fails where one of these comments is not needed."""
    with pytest.raises(TypeError, match="prio"):
        client.infer("digits", image(1), deadline_ms=MINUTE_MS, prio=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="prio"):
        list(client.map("digits", [image(1)], deadline_ms=1, prio=3))  # type: ignore[call-overload]


class TestArguments:
    @pytest.mark.parametrize(
        "deadline_ms", [0, -1, math.nan, math.inf, -math.inf, True, "50", 86_400_001, 1e300]
    )
    def test_a_deadline_is_a_number_of_milliseconds(self, client, deadline_ms):
        with pytest.raises(InvalidInput, match="deadline_ms is"):
            client.submit("digits", image(1), deadline_ms=deadline_ms)

    def test_every_request_has_a_deadline(self, client):
        with pytest.raises(InvalidInput, match="every request has a deadline, because"):
            client.submit("digits", image(1), deadline_ms=None)

    def test_numpy_numbers_are_numbers(self, client):
        client.infer(
            "digits",
            image(1),
            deadline_ms=np.float32(60_000),
            priority=np.int64(2),
            weight=np.float64(2),
        )

    def test_a_numpy_number_meets_bounds_that_its_dtype_has_no_room_for(self, client):
        with np.errstate(all="raise"):
            client.infer("digits", image(1), deadline_s=np.float16(60), weight=np.float32(2))
            client.infer("digits", image(1), deadline_ms=np.float16(60_000))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"priority": 8}, "priority is an integer from 0"),
            ({"priority": True}, "priority is an integer from 0"),
            ({"priority": 1.5}, "priority is an integer from 0"),
            ({"priority": np.timedelta64(1, "s")}, "priority is an integer from 0"),
            ({"weight": 0}, "weight is a number from 1e-09 to 1e"),
            ({"weight": math.nan}, "weight is a number from 1e-09 to 1e"),
            ({"weight": HUGE}, "weight is a number from 1e-09 to 1e"),
            ({"weight": np.timedelta64(1, "s")}, "weight is a number from 1e-09 to 1e"),
            ({"weight": np.array([1, 2])}, "weight is a number from 1e-09 to 1e"),
            (
                {"weight": np.array([1, 2]), "durable": True},
                "weight is a number from 1e-09 to 1e",
            ),
            ({"id": "a"}, "only a durable task has an id: give durable=True"),
            ({"variant": 3}, "variant is the name"),
            ({"model": ""}, "model is the name"),
            ({"model": 7}, "model is the name"),
            ({"inputs": {}}, "inputs are a dict"),
            ({"inputs": [1]}, "inputs are a dict"),
            ({"inputs": {1: [1]}}, "an input's name is a str"),
            ({"inputs": {"x": object()}}, "'x' is of objects and holds <obj"),
            (
                {"inputs": {"x": None}},  # as cv2.imread says that there is no such file
                "holds None; accepted are str and bytes, or an array that has a dtype of numbers",
            ),
            ({"inputs": {"x": [1j]}}, "'x' has dtype complex128"),
            ({"inputs": {"x": [[1], [1, 2]]}}, "'x' does not make an array"),
            ({"inputs": {"x": WithGrad()}}, "'x' does not make an array: use tensor.detach"),
            ({"inputs": {"x": np.ma.masked_equal([1.0, 2.0], 2)}}, r"'x' .*: pass x\.filled\("),
        ],
    )
    def test_the_error_says_what_is_right(self, client, options, message):
        arguments: dict[str, Any] = {"model": "digits", "inputs": image(1), **options}
        with pytest.raises(InvalidInput, match=message):
            client.submit(deadline_ms=MINUTE_MS, **arguments)

    @pytest.mark.parametrize(
        "deadline_s", ["1", HUGE, -HUGE, math.nan, True, np.timedelta64(1, "s")], ids=short
    )
    def test_a_deadline_may_be_in_seconds(self, client, deadline_s):
        client.submit("digits", image(1), deadline_s=60).result()
        with pytest.raises(InvalidInput, match=r"deadline_m?s is"):
            client.submit("digits", image(1), deadline_s=deadline_s)

    @pytest.mark.parametrize(("durable", "most"), [(False, "86400 s"), (True, "864000000 s")])
    def test_a_range_of_seconds_is_told_in_seconds(self, client, durable, most):
        for wrong in (0, -1.5, 10**10):
            with pytest.raises(
                InvalidInput, match=f"^deadline_s is .* at most {most}.*, not {wrong}"
            ):
                client.submit("digits", image(1), deadline_s=wrong, durable=durable)

    def test_every_way_to_ask_takes_seconds_and_says_that_a_deadline_is_needed(self, client):
        assert client.infer("digits", image(1), deadline_s=60)["image"] == [1]
        assert [r["image"] for r in client.map("digits", [image(2)], deadline_s=60)] == [[2]]
        for ask in (client.infer, lambda *given: next(client.map(given[0], given[1:]))):
            with pytest.raises(InvalidInput, match="every request has a deadline, because"):
                ask("digits", image(1))

    @pytest.mark.parametrize("timeout_s", [0, -1, None, "1", [1], math.nan, 1e9, HUGE], ids=short)
    def test_a_timeout_is_a_number_of_seconds(self, client, timeout_s):
        with pytest.raises(InvalidInput, match=r"^timeout_s is"):
            client.status(timeout_s)
        with pytest.raises(InvalidInput, match=r"^connect_timeout_s is"):
            Client(client.url, connect_timeout_s=timeout_s)

        async def connect() -> None:
            await AsyncClient(client.url).connect(timeout_s)

        with pytest.raises(InvalidInput, match=r"^timeout_s is"):
            asyncio.run(connect())

    def test_what_no_message_can_hold_fails_alone(self, box, client):
        # What a file's name or an argument of a shell that is not UTF-8 is in Python.
        name = os.fsdecode(b"\xff")
        with ThreadPoolExecutor(8) as pool:
            ends = [
                pool.submit(client.submit, model, image(1), deadline_ms=MINUTE_MS)
                for _ in range(20)
                for model in (name, "digits")
            ]
            futures = [end.result() for end in ends]
        for bad, good in zip(futures[::2], futures[1::2], strict=True):
            with pytest.raises(InvalidInput, match="surrogates not allowed"):
                bad.result(30)
            assert good.result(30)["image"].item() == 1
        with pytest.raises(InvalidInput, match="surrogates not allowed"):
            client.infer("digits", {name: [1]}, deadline_ms=MINUTE_MS)
        for count in (np.int64(5), 2**70):
            with pytest.raises(InvalidInput, match="can't be written in a message"):
                client.tasks(count)


class TestDeadline:
    def test_no_answer_is_said_at_the_deadline_and_the_box_is_told(self, box, client):
        box.on_infer = ignore
        later = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        future = client.submit("digits", image(2), deadline_ms=900)
        with pytest.raises(DeadlineExpired, match="deadline of 900 ms passed; no answer from unix"):
            future.result()
        ((_, cancel),) = box.wait("cancel")
        ((_, infer),) = [e for e in box.wait("infer", 2) if e[1]["budget_ns"] < 1e9]
        assert cancel["id"] == infer["id"]
        assert not later.done()

    def test_a_deadline_shorter_than_the_way_is_said_to_be_that(self, client):
        with pytest.raises(DeadlineExpired, match=r"1e-06 ms passed; the round trip to .* takes"):
            client.infer("digits", image(1), deadline_ms=1e-6)

    def test_each_of_many_deadlines_is_kept(self, box, client):
        box.on_infer = ignore
        futures = [client.submit("digits", image(1), deadline_ms=30 - n % 30) for n in range(600)]
        for future in futures:
            assert isinstance(future.exception(), DeadlineExpired)

    def test_a_late_answer_is_delivered_where_it_was_accepted(self, box, client):
        box.on_infer = ignore
        late = client.submit("digits", image(1), deadline_ms=900, accept_late=True)
        other = client.submit("digits", image(2), deadline_ms=950)
        with pytest.raises(DeadlineExpired):
            other.result()
        assert not late.done()
        for peer, header in box.wait("infer", 2):
            peer.answer(header)
        assert late.result().late
        assert late.result()["image"].tolist() == [1]

    def test_long_times_are_said_in_full(self, box, client, monkeypatch):
        def answer_half_an_hour_later(peer, header):
            now_ns = time.monotonic_ns
            monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + 1_800_000_000_000)
            peer.answer(header)

        box.on_infer = answer_half_an_hour_later
        said = r"came \d+(\.\d{1,3})? ms after the deadline of 1500000 ms"
        with pytest.raises(DeadlineExpired, match=said):
            client.infer("digits", image(1), deadline_ms=1_500_000)

    def test_timing_out_does_not_end_the_connection(self, box, client):
        box.on_infer = ignore
        with pytest.raises(DeadlineExpired):
            client.infer("digits", image(1), deadline_ms=2)
        box.on_infer = Peer.answer
        client.infer("digits", image(1), deadline_ms=MINUTE_MS)
        assert len(box.messages("hello")) == 1


class TestCancel:
    def test_cancelling_the_future_tells_the_box(self, box, client):
        box.on_infer = ignore
        first = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        second = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        assert first.cancel()
        assert client.cancel(second)
        sent = {header["id"] for _, header in box.wait("infer", 2)}
        assert {header["id"] for _, header in box.wait("cancel", 2)} == sent
        with pytest.raises(CancelledError):
            first.result()

    def test_what_has_ended_can_not_be_cancelled(self, client):
        future = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        future.result()
        assert not client.cancel(future)

    def test_an_answer_to_a_cancelled_request_is_dropped(self, box, client):
        box.on_infer = ignore
        future = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        ((peer, header),) = box.wait("infer")
        future.cancel()
        peer.answer(header)
        assert client.status()
        assert future.cancelled()

    def test_closing_cancels_what_is_in_flight(self, box):
        box.on_infer = ignore
        client = Client(box.url)
        future = client.submit("digits", image(1), deadline_ms=MINUTE_MS)
        client.close()
        with pytest.raises(CancelledError):
            future.result()
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.submit("digits", image(1), deadline_ms=MINUTE_MS)

    @pytest.mark.parametrize(
        ("count", "ask"),
        [
            (1, lambda client: client.infer("digits", image(1), deadline_s=3600)),
            (3, lambda client: list(client.map("digits", [image(1)] * 3, deadline_s=3600))),
        ],
        ids=["infer", "map"],
    )
    def test_an_interrupted_wait_cancels_the_request(self, box, client, count, ask):
        def interrupt(peer, header):
            while (
                sys._current_frames()[threading.main_thread().ident or 0].f_code.co_name != "wait"
            ):
                time.sleep(0.001)
            box.on_infer = ignore
            signal.raise_signal(signal.SIGINT)  # on this thread, which leaves the other asleep

        box.on_infer = interrupt
        with pytest.raises(KeyboardInterrupt):
            ask(client)
        sent = {header["id"] for _, header in box.wait("infer", count)}
        assert {header["id"] for _, header in box.wait("cancel", count)} == sent

    def test_who_waits_for_several_hears_of_the_cancelled_ones(self, box):
        box.on_infer = ignore
        client = Client(box.url)
        futures = [client.submit("digits", image(1), deadline_ms=MINUTE_MS) for _ in range(3)]
        assert futures[0].cancel()
        assert futures[0].cancel()
        assert wait(futures, PATIENCE_S, FIRST_COMPLETED).done == {futures[0]}
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(lambda: list(as_completed(futures, PATIENCE_S)))
            client.close()
            assert set(waiting.result()) == set(futures)

    def test_a_dropped_client_ends_its_thread(self, box):
        client = Client(box.url)
        del client
        gc.collect()
        box.wait("lost")
        assert not [t for t in threading.enumerate() if t.name == "laxity-client"]

    def test_a_request_of_a_dropped_client_has_its_answer(self, box):
        box.on_infer = ignore
        future = Client(box.url).submit("digits", image(1), deadline_ms=MINUTE_MS)
        gc.collect()
        ((peer, header),) = box.wait("infer")
        assert not future.done()
        peer.answer(header)
        assert future.result()["image"] == [1]
        del future
        gc.collect()
        box.wait("lost")
        eventually(lambda: "laxity-client" not in {t.name for t in threading.enumerate()})

    def test_the_interpreter_exits_with_requests_in_flight(self, box):
        box.on_infer = ignore
        script = (
            "import numpy, sys; from scheduler import Client; client = Client(sys.argv[1]); "
            "client.submit('digits', {'image': numpy.zeros(3)}, deadline_ms=3.6e6)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, box.url], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


class TestMap:
    def test_results_come_in_order_whatever_the_box_does(self, box, client):
        held: list[tuple[Peer, wire.Header]] = []

        def swap(peer, header):
            held.append((peer, header))
            if len(held) == 4:
                for peer, header in reversed(held):
                    peer.answer(header)
                held.clear()

        box.on_infer = swap
        frames = [np.array([n], np.float32) for n in range(40)]
        results = client.map("digits", frames, deadline_ms=MINUTE_MS, concurrency=4)
        # With a window of four the box always has the four that it waits for, or none.
        assert [next(results)["image"].item() for _ in range(4)] == [0, 1, 2, 3]
        results.close()

    def test_the_window_is_bounded(self, box, client):
        drawn = 0

        def frames() -> Iterator[wire.Tensors]:
            nonlocal drawn
            for n in range(100):
                drawn += 1
                yield image(n)

        results = client.map("digits", frames(), deadline_ms=MINUTE_MS, concurrency=8)
        assert drawn == 0
        for n, result in enumerate(results):
            assert result["image"].item() == n
            assert drawn <= n + 8
        assert drawn == 100

    def test_the_name_of_the_only_input_is_asked_once(self, box, client):
        for _ in range(2):
            list(client.map("digits", [np.zeros(2), [1, 2]], deadline_ms=MINUTE_MS))
        assert len(box.messages("models")) == 1

    def test_a_model_with_several_inputs_needs_their_names(self, client):
        with pytest.raises(InvalidInput, match="has the inputs a, b: frames are dicts"):
            list(client.map("pair", [np.zeros(2)], deadline_ms=MINUTE_MS))
        with pytest.raises(ModelNotFound, match="did you mean 'digits'"):
            list(client.map("digit", [np.zeros(2)], deadline_ms=MINUTE_MS))

    def test_an_error_ends_it_and_cancels_the_rest(self, box, client):
        def refuse_first(peer, header):
            if header["tensors"]["image"].item() == 0:
                peer.refuse(header, "failed")

        box.on_infer = refuse_first
        frames = [image(n) for n in range(10)]
        with pytest.raises(Exception, match="no"):
            list(client.map("digits", frames, deadline_ms=MINUTE_MS, concurrency=3))
        box.wait("cancel", 2)

    def test_errors_can_be_results(self, box, client):
        def refuse_odd(peer, header):
            if header["tensors"]["image"].item() % 2:
                peer.refuse(header, "overloaded")
            else:
                peer.answer(header)

        box.on_infer = refuse_odd
        frames = [image(n) for n in range(10)]
        results = client.map("digits", frames, deadline_ms=MINUTE_MS, return_exceptions=True)
        assert [isinstance(result, Exception) for result in results] == [False, True] * 5

    def test_a_frame_that_is_none_has_its_turn(self, client):
        frames = [image(0), {"image": None}, image(2)]
        first, bad, last = client.map(
            "digits", frames, deadline_ms=MINUTE_MS, return_exceptions=True
        )
        assert (first["image"].item(), type(bad), last["image"].item()) == (0, InvalidInput, 2)
        results = client.map("digits", frames, deadline_ms=MINUTE_MS)
        assert next(results)["image"].item() == 0
        with pytest.raises(InvalidInput, match="holds None"):
            next(results)

    def test_concurrency_is_checked_at_once(self, client):
        with pytest.raises(InvalidInput, match="concurrency is an integer from 1"):
            client.map("digits", [], deadline_ms=1, concurrency=0)

    def test_a_single_frame_is_not_taken_for_many(self, client):
        with pytest.raises(InvalidInput, match=r"frames are many, .* single dict is for submit"):
            client.map("digits", image(1), deadline_ms=MINUTE_MS)

    def test_frames_do_not_share_the_id_of_one_task(self, client):
        with pytest.raises(InvalidInput, match="submit each frame with an id of its own"):
            client.map("digits", [image(1)], deadline_ms=1, durable=True, id="night")


class TestCallbacks:
    """They run on the thread on which a client's answers come."""

    @pytest.mark.parametrize(
        "wait",
        [
            lambda client: client.infer("digits", image(2), deadline_ms=MINUTE_MS),
            lambda client: client.status(),
            lambda client: client.submit("digits", image(2), deadline_ms=MINUTE_MS).result(1),
            lambda client: client.submit("digits", image(2), deadline_ms=MINUTE_MS).exception(),
            lambda client: client.submit("digits", image(2), deadline_s=60, durable=True),
        ],
    )
    def test_one_that_would_wait_for_itself_is_told(self, box, client, wait):
        told: Future[str] = Future()

        def callback(_: Any) -> None:
            with pytest.raises(RuntimeError) as error:
                wait(client)
            told.set_result(str(error.value))

        with box.changed:  # no answer comes before there is a callback to run
            client.submit("digits", image(1), deadline_ms=MINUTE_MS).add_done_callback(callback)
        assert "a callback can't wait for another answer of its client" in told.result(30)
        assert client.infer("digits", image(3), deadline_ms=MINUTE_MS)["image"].item() == 3

    def test_one_may_submit_and_read_what_is_there(self, client):
        last: Future[float] = Future()

        def second(future: Any) -> None:
            last.set_result(future.result()["image"].item())

        def first(future: Any) -> None:
            more = future.result()["image"] + 1
            again = client.submit("digits", {"image": more}, deadline_ms=MINUTE_MS)
            again.add_done_callback(second)

        client.submit("digits", image(1), deadline_ms=MINUTE_MS).add_done_callback(first)
        assert last.result(30) == 2


def test_threads_share_a_client(box, client):
    def work(thread: int) -> list[float]:
        results = []
        for n in range(200):
            value = thread * 1000 + n
            result = client.infer("digits", image(value), deadline_ms=MINUTE_MS)
            results.append(result["image"].item() - value)
        return results

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8)):
            assert results == [0.0] * 200


def test_importing_it_is_light():
    script = (
        "import sys, scheduler.core; assert 'numpy' not in sys.modules; "
        "from scheduler import Client; "
        "assert not {'ray', 'openvino', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_offer_is_told_to_the_microsecond_and_is_enough():
    refusal = DeadlineInfeasible("no", {"earliest_budget_ms": {"cpu:0": 84.3874589, "far": 12.0}})
    in_callers_terms(refusal, lambda budget_ms: budget_ms + 0.1)
    assert refusal.detail["earliest_budget_ms"] == {"cpu:0": 84.488, "far": 12.1}
    assert 84.3874589 + 0.1 <= 84.488


def test_a_deadline_as_long_as_the_offer_is_met(client, box):
    def admit(peer, header):
        if header["budget_ns"] < 20_000_000_000:
            peer.refuse(header, "infeasible", earliest_budget_ms={"cpu:0": 20_000.0})
        else:
            peer.answer(header)

    box.on_infer = admit
    deadline_ms = 10_000.0
    for _ in range(10):  # a busy machine may keep a call longer than the one before
        try:
            client.infer("digits", image(1), deadline_ms=deadline_ms)
            return
        except DeadlineInfeasible as refusal:
            deadline_ms = refusal.earliest_ms or 0.0
    pytest.fail(f"{deadline_ms} ms was offered, and refused")
