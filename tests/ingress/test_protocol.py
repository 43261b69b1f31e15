"""The Open Inference Protocol apart from sockets: tensors, deadlines, refusals, memory."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.outcomes import Outcome
from scheduler.core.signature import STRING
from scheduler.datatypes import (
    NATIVE,
    bytes_of,
    checked_shape,
    elements_of,
    for_model,
    from_bytes,
    from_list,
)
from scheduler.errors import (
    ERRORS,
    DeadlineExpired,
    DeadlineInfeasible,
    Forbidden,
    InvalidInput,
    LaxityError,
    ModelNotFound,
    Overloaded,
)
from scheduler.ingress.oip import shared_memory
from scheduler.ingress.oip.deadlines import LEAST_MS, Defaults, deadline_ms, priority
from scheduler.ingress.oip.inference import Inferred
from scheduler.ingress.oip.outcomes import TooLarge, refusal_of
from scheduler.ingress.oip.outputs import output_tensors
from scheduler.ingress.oip.request import InferRequest, Region, WantedOutput, flag, region_of
from scheduler.ingress.oip.shared_memory import SharedMemory
from scheduler.result import Timing
from scheduler.tenants import ANYONE, Tenant

DEFAULTS = Defaults(10_000.0, {"digits": 100.0})
HOURLY = Tenant(name="hourly", default_deadline_ms=250.0)


# -- tensors


@pytest.mark.parametrize("datatype", NATIVE)
def test_every_datatype_goes_in_as_bytes_and_as_json(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], NATIVE[datatype])
    raw = from_bytes("x", datatype, [2, 3], memoryview(array.tobytes()))
    listed = from_list("x", datatype, [2, 3], array.tolist())
    flat = from_list("x", datatype, [2, 3], array.ravel().tolist())
    for found in (raw, listed, flat):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1, max_size=20))
def test_bf16_widens_to_what_it_stands_for(values: list[float]) -> None:
    high = (np.array(values, np.float32).view(np.uint32) >> 16).astype("<u2")
    found = from_bytes("x", "BF16", [len(values)], memoryview(high.tobytes()))
    np.testing.assert_array_equal(found.view(np.uint32), high.astype(np.uint32) << 16)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_bytes_elements_survive_being_written(elements: list[bytes]) -> None:
    assert elements_of("x", bytes_of(elements)) == elements


def test_one_bytes_element_is_a_vector_of_its_bytes() -> None:
    for found in (
        from_bytes("x", "BYTES", [1], bytes_of([b"jpeg\0"])),
        from_list("x", "BYTES", [1, 1], [["jpeg\0"]]),
    ):
        assert for_model("x", found, "uint8").tobytes() == b"jpeg\0"
    with pytest.raises(InvalidInput, match="one, as a UINT8 vector"):
        for_model("x", from_list("x", "BYTES", [2], ["a", "b"]), "uint8")


def test_elements_are_counted_before_they_fill_the_memory() -> None:
    assert len(elements_of("x", bytes(4 << 20))) == 1 << 20
    with pytest.raises(InvalidInput, match="more than 1048576 elements"):
        elements_of("x", bytes((4 << 20) + 4))


def test_bytes_for_a_model_of_text_keep_shape_and_elements() -> None:
    raw = from_bytes("x", "BYTES", [2, 1], bytes_of([b"", "größer".encode()]))
    listed = from_list("x", "BYTES", [2, 1], [[""], ["größer"]])
    for found in (raw, listed):
        assert for_model("x", found, STRING).tolist() == [[b""], ["größer".encode()]]
    array = np.ones((2, 1), np.float32)
    assert for_model("x", array, STRING) is array


def test_an_output_of_text_is_bytes_and_has_no_classes() -> None:
    request = InferRequest("m", "", "", {}, {})
    (output,) = output_tensors(request, inferred(np.array([[b"ab", b""]])))
    assert (output.datatype, output.shape, output.texts) == ("BYTES", [1, 2], [b"ab", b""])
    assert elements_of("y", output.raw) == [b"ab", b""]
    wanted = InferRequest("m", "", "", {}, {}, (WantedOutput("y", classes=1),))
    with pytest.raises(InvalidInput, match="is text and has no classes"):
        output_tensors(wanted, inferred(np.array([b"ab"])))


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("UINT8", [1], [256]),
        ("UINT8", [1], [-1]),
        ("INT8", [1], [1.0]),
        ("INT64", [1], [2**63]),
        ("UINT64", [2], [2**63, -1]),
        ("UINT64", [2], [1, 2**64]),
        ("FP64", [2], [1, 10**400]),
        ("BOOL", [1], [1]),
        ("FP32", [1], [True]),
        ("FP32", [1], ["1"]),
        ("FP32", [1], [None]),
        ("FP32", [1], [{}]),
        ("FP32", [3], [[1, 2], [3]][:1]),
        ("FP32", [3], [1, [2, 3]]),
        ("FP32", [2], "12"),
        ("FP32", [1], [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]),
        ("BYTES", [1], [1]),
    ],
)
def test_data_that_does_not_fit_is_refused(datatype: str, shape: list[int], data: Any) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        from_list("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("UINT64", [1, 2**63]), ("UINT64", [2**64 - 1, 0]), ("FP64", [1, 2**64]), ("FP32", [10**30])],
)
def test_large_whole_numbers_are_taken_beside_small_ones(datatype: str, data: list[int]) -> None:
    found = from_list("x", datatype, [len(data)], data)
    assert found.tolist() == np.array(data, NATIVE[datatype]).tolist()
    assert found.dtype == NATIVE[datatype]


@given(st.sampled_from([*NATIVE, "BF16", "BYTES"]), st.binary(max_size=64), st.integers(0, 20))
def test_bytes_make_a_tensor_or_a_clear_no(datatype: str, raw: bytes, size: int) -> None:
    with contextlib.suppress(InvalidInput):
        assert from_bytes("x", datatype, [size], raw).ndim == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from([*NATIVE, "BF16", "BYTES"]), json_values, st.integers(0, 5))
def test_json_makes_a_tensor_or_a_clear_no(datatype: str, data: Any, size: int) -> None:
    with contextlib.suppress(InvalidInput):
        assert from_list("x", datatype, [size], data).ndim == 1


@pytest.mark.parametrize(("datatype", "value"), [("FP16", 65520), ("FP32", 1e39), ("BF16", -1e39)])
def test_a_number_beyond_its_datatype_is_refused(datatype: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"too large for {datatype}"):
        from_list("x", datatype, [2], [0.5, value])


@pytest.mark.parametrize("shape", [[2**40, 2**40, 0], [2**41], [-1], [1.5], "3", [1] * 17, [True]])
def test_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidInput, match="shape of 'x'"):
        checked_shape("x", shape)


# -- outputs


def inferred(array: Any, has_batch: bool = False) -> Inferred:
    timing = Timing(1, 2, 3, 6)
    outputs = {"y": np.asarray(array)}
    return Inferred(outputs, has_batch, Outcome.COMPLETED, "cpu:0", "v", "r", 1, timing, 5.0)


def test_classes_are_the_highest_values_of_each_item() -> None:
    request = InferRequest("m", "", "", {}, {}, (WantedOutput("y", classes=2),))
    (tensor,) = output_tensors(request, inferred([[0.5, 2.5, 1.0], [3, 3, 1]], has_batch=True))
    assert (tensor.datatype, tensor.shape) == ("BYTES", [2, 2])
    assert tensor.texts == [b"2.500000:1", b"1.000000:2", b"3.000000:0", b"3.000000:1"]
    (tensor,) = output_tensors(request, inferred(np.array([7, 9], np.int32)))
    assert (tensor.shape, tensor.texts) == ([2], [b"9:1", b"7:0"])
    large = np.array([2**63, 2**63 + 5, 2**63 + 5, 0], np.uint64)
    (tensor,) = output_tensors(request, inferred(large))
    assert tensor.texts == [b"9223372036854775813:1", b"9223372036854775813:2"]
    (tensor,) = output_tensors(request, inferred(np.array([-(2**63), 2**53, 2**53 + 1], np.int64)))
    assert tensor.texts == [b"9007199254740993:2", b"9007199254740992:1"]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,)])
def test_what_is_empty_has_no_classes(shape: tuple[int, ...]) -> None:
    request = InferRequest("m", "", "", {}, {}, (WantedOutput("y", classes=2),))
    with pytest.raises(InvalidInput, match="is empty and has no classes"):
        output_tensors(request, inferred(np.zeros(shape), has_batch=True))


def test_shared_memory_is_named_whole_or_not_at_all() -> None:
    assert region_of({}) is None
    whole = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    assert region_of(whole) == Region("r", 0, 4)
    for name in whole:
        with pytest.raises(InvalidInput):
            region_of({name: whole[name]})
    with pytest.raises(InvalidInput):
        region_of({**whole, "shared_memory_offset": -1})


# -- deadlines


@pytest.mark.parametrize(
    ("parameters", "headers", "grpc_s", "expected_ms"),
    [
        ({"timeout": 1500}, {"x-request-timeout-ms": "9"}, 9.0, 1.5),
        ({"timeout": 0}, {"x-request-timeout-ms": "9"}, 0.25, 250.0),
        ({}, {"x-request-timeout-ms": "9", "x-request-timeout-seconds": "1"}, None, 9.0),
        ({}, {"x-request-timeout-seconds": "0.5"}, None, 500.0),
        ({}, {"x-envoy-expected-rq-timeout-ms": "30", "prefer": "wait=1"}, None, 30.0),
        ({}, {"prefer": "respond-async, wait=2"}, None, 2000.0),
        ({}, {"prefer": "return=minimal"}, None, 10_000.0),
    ],
)
def test_the_first_convention_found_wins(
    parameters: dict[str, Any], headers: dict[str, str], grpc_s: float | None, expected_ms: float
) -> None:
    found = deadline_ms(parameters, headers, grpc_s, "m", ANYONE, DEFAULTS)
    assert found == pytest.approx(expected_ms)


def test_what_is_no_wish_of_the_callers_is_cut_to_what_the_box_allows() -> None:
    allows = Defaults(10_000.0, {}, longest_ms=3_600_000.0)
    for grpc_s, expected_ms in ((7_200.0, 3_600_000.0), (1e12, 3_600_000.0), (0.0, LEAST_MS)):
        assert deadline_ms({}, {}, grpc_s, "m", ANYONE, allows) == expected_ms
    assert deadline_ms({}, {}, None, "m", ANYONE, replace(allows, longest_ms=5.0)) == 5.0


@pytest.mark.parametrize(
    ("parameters", "headers", "said"),
    [
        ({"timeout": 7_200_000_000}, {}, "parameter 'timeout' asks for 7200 s"),
        ({}, {"x-request-timeout-ms": "3600001"}, "x-request-timeout-ms asks for 3600.001 s"),
        ({}, {"prefer": "wait=3601"}, "Prefer: wait asks for 3601 s"),
    ],
)
def test_who_asks_for_more_time_than_the_box_allows_is_told_so_in_its_words(
    parameters: dict[str, Any], headers: dict[str, str], said: str
) -> None:
    allows = Defaults(10_000.0, {}, longest_ms=3_600_000.0)
    with pytest.raises(InvalidInput, match=f"{said}; this box allows 3600 s"):
        deadline_ms(parameters, headers, None, "m", ANYONE, allows)


def test_no_default_is_refused_for_being_longer_than_the_box_allows() -> None:
    for defaults in (Defaults(10_000.0, {}, 5_000.0), Defaults(1.0, {"m": 10_000.0}, 5_000.0)):
        assert deadline_ms({}, {}, None, "m", ANYONE, defaults) == 5_000.0


def test_defaults_are_the_models_then_the_tenants_then_the_boxs() -> None:
    def default(model: str, tenant: Tenant) -> float:
        return deadline_ms({}, {}, None, model, tenant, DEFAULTS)

    assert [default("digits", HOURLY), default("m", HOURLY), default("m", ANYONE)] == [
        100.0,
        250.0,
        10_000.0,
    ]


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [
        ({"timeout": "1"}, {}),
        ({"timeout": True}, {}),
        ({"timeout": -5}, {}),
        ({}, {"x-request-timeout-ms": "soon"}),
        ({}, {"x-request-timeout-ms": "0"}),
        ({}, {"x-request-timeout-seconds": "nan"}),
        ({}, {"x-envoy-expected-rq-timeout-ms": "1e99"}),
        ({}, {"prefer": "wait=0"}),
    ],
)
def test_a_deadline_that_is_none_is_refused(
    parameters: dict[str, Any], headers: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput):
        deadline_ms(parameters, headers, None, "m", ANYONE, DEFAULTS)


@pytest.mark.parametrize(
    ("parameters", "headers", "expected"),
    [
        ({}, {}, None),
        ({"priority": 0}, {}, None),
        ({"priority": 1}, {"priority": "u=7"}, 0),
        ({"priority": 99}, {}, 7),
        ({}, {"priority": "u=2, i"}, 2),
        ({}, {"priority": "i, u=0"}, 0),
        ({}, {"priority": "u=9"}, None),
        ({}, {"priority": "urgent"}, None),
    ],
)
def test_priorities_of_both_conventions(
    parameters: dict[str, Any], headers: dict[str, str], expected: int | None
) -> None:
    assert priority(parameters, headers) == expected


# -- outcomes


@pytest.mark.parametrize(
    ("parameters", "header", "meant"),
    [
        ({}, None, False),
        ({"accept_late": True}, None, True),
        ({"accept_late": False}, "true", False),
        ({}, "true", True),
        ({}, "false", False),
    ],
)
def test_a_flag_is_its_parameter_or_else_its_header(
    parameters: dict[str, Any], header: str | None, meant: bool
) -> None:
    headers = {} if header is None else {"x-laxity-accept-late": header}
    assert flag(parameters, headers, "accept_late") is meant


def test_a_flag_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(InvalidInput, match="x-laxity-accept-late is true or false, not 'maybe'"):
        flag({}, {"x-laxity-accept-late": "maybe"}, "accept_late")
    with pytest.raises(InvalidInput, match="'accept_late' is true or false, not 'true'"):
        flag({"accept_late": "true"}, {}, "accept_late")


@pytest.mark.parametrize(
    ("error", "http", "grpc", "retry_after_s"),
    [
        (DeadlineInfeasible("x", {"earliest_budget_ms": {"cpu:0": 7}}), 429, "EXHAUSTED", 1),
        (Overloaded("x", {"retry_after_ms": 2500}), 429, "EXHAUSTED", 3),
        (DeadlineExpired("x"), 504, "DEADLINE_EXCEEDED", None),
        (CancelledError(), 499, "CANCELLED", None),
        (ModelNotFound("x"), 404, "NOT_FOUND", None),
        (Forbidden("x"), 403, "PERMISSION_DENIED", None),
        (InvalidInput("x"), 400, "INVALID_ARGUMENT", None),
        (ZeroDivisionError("secret"), 500, "INTERNAL", None),
    ],
)
def test_an_outcome_has_one_status_at_each_door(
    error: BaseException, http: int, grpc: str, retry_after_s: int | None
) -> None:
    refusal = refusal_of(error)
    assert (refusal.http, refusal.retry_after_s) == (http, retry_after_s)
    assert refusal.grpc.endswith(grpc)
    assert "secret" not in refusal.message
    if isinstance(error, DeadlineInfeasible):
        assert refusal.body["earliest_budget_ms"] == {"cpu:0": 7}
        assert refusal.body["earliest_ms"] == 7


@pytest.mark.parametrize("kind", ERRORS.values())
def test_every_code_of_the_wire_has_a_status(kind: type[LaxityError]) -> None:
    refusal = refusal_of(kind("why"))
    assert (refusal.code, refusal.message) == (kind.code, "why")
    assert 400 <= refusal.http < 600
    assert refusal.http != 500 or kind.code == "failed"


def test_triton_words_for_clients_that_match_on_them() -> None:
    said = refusal_of(ModelNotFound.unknown("it's"), "triton")
    assert (said.http, said.message) == (404, "Request for unknown model: 'it's' is not found")
    known = "variant 'fp16' is not in model 'm' (there are: int8)"
    said = refusal_of(ModelNotFound(known), "triton")
    assert (said.http, said.message) == (404, known)
    said = refusal_of(DeadlineInfeasible("x", {"earliest_budget_ms": {"a": 1}}), "triton")
    assert (said.http, said.grpc, said.message) == (503, "UNAVAILABLE", "Request timeout expired")
    assert said.body["earliest_ms"] == 1
    said = refusal_of(DeadlineExpired("x"), "triton")
    assert (said.http, said.retry_after_s) == (503, 1)
    said = refusal_of(Overloaded("x"), "triton")
    assert (said.http, said.message) == (503, "Exceeds maximum queue size")


# -- shared memory


@pytest.fixture
def key() -> Iterator[str]:
    path = Path(f"/dev/shm/laxity-test-{os.getpid()}")
    path.write_bytes(bytes(range(100)))
    yield f"/{path.name}"
    path.unlink(missing_ok=True)


def test_memory_is_read_and_written_within_its_region(tmp_path: Path, key: str) -> None:
    memory = SharedMemory(tmp_path / "registry")
    memory.register(ANYONE, "r", key, 10, 50)
    assert bytes(memory.read(ANYONE, Region("r", 2, 3))) == bytes([12, 13, 14])
    memory.write(ANYONE, Region("r", 0, 4), memoryview(b"abc"))
    assert bytes(memory.read(ANYONE, Region("r", 0, 4))) == b"abc" + bytes([13])
    for part in (Region("r", 0, 51), Region("r", 50, 1), Region("s", 0, 1)):
        with pytest.raises(InvalidInput):
            memory.read(ANYONE, part)
    with pytest.raises(InvalidInput, match="takes 5 bytes"):
        memory.write(ANYONE, Region("r", 0, 4), memoryview(b"abcde"))


def test_an_output_that_is_written_in_part_is_an_error(tmp_path: Path, key: str) -> None:
    memory = SharedMemory(tmp_path / "registry")
    memory.register(ANYONE, "r", key, 0, 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, before[1]))
    try:
        with pytest.raises(InvalidInput, match=r"took 20 bytes of 30; /dev/shm may be full"):
            memory.write(ANYONE, Region("r", 40, 30), memoryview(bytes(30)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_request_takes_no_more_from_memory_than_from_its_body(tmp_path: Path, key: str) -> None:
    """However large a region is by its own word, and however often it is named."""
    memory = SharedMemory(tmp_path / "registry")
    os.truncate(f"/dev/shm{key}", 1 << 50)  # a hole
    memory.register(ANYONE, "r", key, 0, 1 << 50)
    held: list[int] = []
    with pytest.raises(TooLarge, match="more than the 100 bytes"):
        memory.reader(ANYONE, 100, held.append)(Region("r", 0, 1 << 50))
    read = memory.reader(ANYONE, 100, held.append)
    assert [len(read(Region("r", 0, size))) for size in (60, 40, 0)] == [60, 40, 0]
    with pytest.raises(TooLarge):
        read(Region("r", 0, 1))
    assert held == [60, 40, 0]


def test_a_region_that_shrinks_is_an_error_and_no_crash(tmp_path: Path, key: str) -> None:
    memory = SharedMemory(tmp_path / "registry")
    memory.register(ANYONE, "r", key, 0, 100)
    os.truncate(f"/dev/shm{key}", 10)
    with pytest.raises(InvalidInput, match="has 10 bytes"):
        memory.read(ANYONE, Region("r", 0, 100))


def test_a_region_is_its_tenants_own_and_known_at_every_door(tmp_path: Path, key: str) -> None:
    one, other = SharedMemory(tmp_path / "registry"), SharedMemory(tmp_path / "registry")
    friend = Tenant(name="friend", scopes=("infer", "shared_memory"))
    one.register(ANYONE, "r", key, 0, 100)
    assert [region.name for region in other.status(ANYONE)] == ["r"]
    assert other.status(friend) == []
    with pytest.raises(InvalidInput, match="not registered"):
        other.read(friend, Region("r", 0, 1))
    with pytest.raises(InvalidInput, match="registered already"):
        other.register(ANYONE, "r", key, 0, 100)
    other.unregister(ANYONE)
    assert one.status(ANYONE) == []
    with pytest.raises(Forbidden):
        one.status(Tenant(name="nobody"))
    with pytest.raises(Forbidden, match=r"doors\.shared_memory"):
        SharedMemory(None).status(ANYONE)


def test_a_tenants_regions_take_no_room_from_others(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_MOST_REGIONS", 2)
    memory = SharedMemory(tmp_path / "registry")
    for name in ("r", "s"):
        memory.register(ANYONE, name, key, 0, 100)
    with pytest.raises(InvalidInput, match="'anyone' has 2 regions already"):
        memory.register(ANYONE, "t", key, 0, 100)
    memory.register(Tenant(name="friend", scopes=("shared_memory",)), "t", key, 0, 100)


@pytest.mark.parametrize(
    "wrong", ["", "/", "/..", "/a/b", "/../etc/passwd", "/\0", "/none", 7, "/" + "x" * 300]
)
def test_a_key_that_is_no_memory_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        SharedMemory(tmp_path / "registry").register(ANYONE, "r", wrong, 0, 1)


def test_a_link_out_of_the_memory_folder_is_not_followed(tmp_path: Path) -> None:
    link = Path(f"/dev/shm/laxity-link-{os.getpid()}")
    link.symlink_to("/etc/hostname")
    try:
        with pytest.raises(InvalidInput, match=re.escape("symbolic links")):
            SharedMemory(tmp_path / "registry").register(ANYONE, "r", link.name, 0, 1)
    finally:
        link.unlink()
