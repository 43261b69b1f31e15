"""The writer of the journal: bounded, self-contained files, and never in the scheduler's way."""

from __future__ import annotations

import asyncio
import shutil
import stat
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from replay.journal import arrivals, targets, verify
from replay.journal_files import JournalFile, journal_files
from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
    Woken,
)
from scheduler.core.forms import Form
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import Request, RequestClass
from scheduler.core.target_specs import TargetSpec, Tensors
from scheduler.daemon import journal_writer
from scheduler.daemon.driver import Driver
from scheduler.daemon.journal import Journal
from scheduler.daemon.journal_writer import JournalBounds, open_part
from scheduler.daemon.submission import Submission
from scheduler.journal_format import (
    EVENTS,
    MAGIC,
    Decoder,
    Encoder,
    Entry,
    Gap,
    Header,
    JournalledPolicy,
    Target,
    decode_header,
    encode_header,
    fingerprint,
)
from scheduler.policy_loading import NamedPolicy
from tests.waiting import PATIENCE_S, eventually

GOODPUT = NamedPolicy("goodput", {"quantile": 0.9})
MS = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def on_a_slow_machine() -> Iterator[None]:
    """Tests read the files that a journal has written by its end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_writer, "CLOSE_S", PATIENCE_S)
        yield


# -- the format

NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(max_size=8)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    int | None: st.none() | NUMBERS,
    str: TEXTS,
    str | None: st.none() | TEXTS,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    float | None: st.none() | st.floats(allow_nan=False),
    tuple[int, float]: st.tuples(NUMBERS, st.floats(0, 9)),
    tuple[int, ...]: st.lists(NUMBERS, max_size=4).map(tuple),
    tuple[tuple[int, ...], ...]: st.lists(st.lists(NUMBERS, max_size=3).map(tuple), max_size=3).map(
        tuple
    ),
    tuple[tuple[str, str], ...]: st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    tuple[Tensors, ...]: st.lists(
        st.tuples(TEXTS, st.lists(st.lists(NUMBERS, max_size=3).map(tuple), max_size=3).map(tuple)),
        max_size=2,
    ).map(tuple),
    Outcome: st.sampled_from(Outcome),
}
"""Values for fields of each type; a field that the format forgets makes the round trip fail."""


def built(made: Any, /, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(made)
    fields = {n: given[n] if n in given else PLAIN[hint] for n, hint in hints.items()}
    return st.fixed_dictionaries(fields).map(lambda values: made(**values))


CLASSES = built(RequestClass, model=st.sampled_from("ab"))
DETAILS = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OFFERS = built(
    Offer,
    latency_ns=st.dictionaries(
        st.integers(2, 64), st.lists(st.integers(1, 10**12), min_size=1).map(tuple), max_size=2
    ).map(lambda ladder: {1: (7,), **ladder}),
    energy_uj=st.dictionaries(st.integers(1, 64), st.integers(0, 10**9), max_size=2),
    item_shapes=st.lists(st.lists(st.integers(1, 512), max_size=2).map(tuple)).map(tuple),
)
FORMS = built(Form, name=st.text(min_size=1), share=st.floats(0.01, 1), byte_ns=st.floats(0, 9))
SPECS = built(
    TargetSpec,
    slots=st.integers(3, 9),
    width=st.integers(1, 3),
    cost_per_request=st.floats(0, 9),
    cost_per_s=st.floats(0, 9),
    cost_per_kwh=st.floats(0, 9),
    offers=st.lists(OFFERS, max_size=2).map(tuple),
    forms=st.lists(FORMS, max_size=2).map(tuple),
)
COMMANDS = st.one_of(
    built(Dispatch),
    built(Finish, detail=st.dictionaries(TEXTS, DETAILS, max_size=3)),
    built(CancelRun),
    built(WakeAt),
)
OTHER_EVENTS = st.one_of(
    built(Cancelled),
    built(BatchDone, errors=st.dictionaries(NUMBERS, TEXTS, max_size=2)),
    built(BatchFailed),
    built(TargetUp, target=SPECS),
    built(TargetDown),
    built(TargetChanged, target=SPECS),
    built(TargetReport, offers=st.lists(OFFERS, max_size=2).map(tuple)),
    built(TargetWithdrew),
    st.builds(
        lambda name, options: PolicySwapped(name, JournalledPolicy(name, options)),
        TEXTS,
        st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=2),
    ),
    st.just(Woken()),
)


@st.composite
def steps(draw: st.DrawFn) -> list[Entry]:
    found, at_ns, last_id = [], draw(st.integers(0, 10**15)), 0
    for _ in range(draw(st.integers(0, 6))):
        at_ns += draw(st.integers(0, 10**10))
        if draw(st.booleans()):
            requests = []
            for _ in range(draw(st.integers(0, 4))):
                last_id += draw(st.integers(1, 3))
                requests.append(draw(built(Request, id=st.just(last_id), kind=CLASSES)))
            event: Event = Submitted(tuple(requests))
        else:
            event = draw(OTHER_EVENTS)
        commands = draw(st.lists(COMMANDS, max_size=3).map(tuple))
        found.append(Entry(at_ns, event, commands, draw(st.none() | TEXTS)))
    return found


def header(**changes: Any) -> Header:
    usual = {"version": "1", "run": "r", "part": 1, "wall_ns": 5, "at_ns": 0, "last_id": 0}
    policy = JournalledPolicy("p", {})
    return Header(**{**usual, "policy": policy, "limits": Limits(), "targets": (), **changes})


def unpacked(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    return list(unpacker)


def options_of(event: Event) -> dict[str, Any]:
    if isinstance(event, PolicySwapped) and isinstance(event.policy, JournalledPolicy):
        return event.policy.options
    return {}


@settings(deadline=None)
@given(steps())
def test_what_is_written_is_what_is_read(entries):
    encoder, decoder = Encoder(0, 0), Decoder(header())
    for entry in entries:
        data = encoder.entry(
            entry.at_ns, entry.event, entry.commands, options_of(entry.event), entry.failure
        )
        *names, step = [decoder.record(record) for record in unpacked(data)]
        assert names == [None] * len(names)
        assert isinstance(step, Entry)
        assert step == entry
        assert repr(step) == repr(entry)
        assert fingerprint(step.commands) == fingerprint(entry.commands)


@given(st.lists(SPECS, max_size=2), built(Limits))
def test_a_header_is_read_as_it_was_written(specs, limits):
    wanted = header(
        limits=limits,
        targets=tuple(Target(spec, up=True) for spec in specs),
        policy=JournalledPolicy("x", {"a": [1, None, "b"]}),
    )
    data = encode_header(wanted)
    assert data.startswith(MAGIC)
    (value,) = unpacked(data[len(MAGIC) :])
    assert decode_header(value) == wanted


def test_every_event_and_command_has_a_record():
    assert set(EVENTS) == set(typing.get_args(Event))
    for command in typing.get_args(Command):
        assert command in Encoder(0, 0)._commands


# -- the writer


def offer(variant: str = "v") -> Offer:
    return Offer("m", variant, "runtime", {1: (2 * MS, 3 * MS)})


def request(number: int) -> Request:
    return Request(number, RequestClass("m"), (number + 50) * MS)


def note_requests(journal: Journal, first: int, count: int) -> None:
    """Each is submitted and answered at once."""
    for number in range(first, first + count):
        finish = Finish(number, Outcome.OVERLOADED, f"because of {number}")
        journal.note(number * MS, Submitted((request(number),)), [finish], GOODPUT)


def submitted(folder: Path) -> list[int]:
    files = [JournalFile(path) for path in journal_files(folder)]
    return [
        request.id
        for file in files
        for step in file
        if isinstance(step, Entry) and isinstance(step.event, Submitted)
        for request in step.event.requests
    ]


def gaps(folder: Path) -> list[Gap]:
    files = [JournalFile(path) for path in journal_files(folder)]
    return [step for file in files for step in file if isinstance(step, Gap)]


class SlowDisk:
    """Files that take nothing until the disk is let go, and nothing while it is broken."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.broken = False

    def open(self, path: Path) -> BinaryIO:
        file: Any = open_part(path)
        write = file.write

        class Slow:
            close = file.close

            def write(_, data: Any) -> int:
                self.free.wait()
                if self.broken:
                    raise OSError(28, "No space left on device")
                count: int = write(data[:100])
                return count

        slow: Any = Slow()
        return slow  # type: ignore[no-any-return]


def test_a_file_that_can_neither_be_written_nor_removed_ends_no_journal(tmp_path, monkeypatch):
    disk = SlowDisk()
    disk.free.set()
    disk.broken = True
    journal = Journal(tmp_path / "j", GOODPUT, Limits(), clock_ns=lambda: 0, open_part=disk.open)

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_only)
        note_requests(journal, 1, 5)
        eventually(lambda: journal.status()["problem"] is not None)
    disk.broken = False

    def is_well() -> bool:
        note_requests(journal, 6, 1)
        return journal.status()["problem"] is None

    eventually(is_well)
    journal.close()


def test_files_are_the_owners_alone_and_their_number_and_size_are_bounded(tmp_path):
    bounds = JournalBounds(bytes=40_000, files=4)
    journal = Journal(tmp_path / "j", GOODPUT, Limits(), bounds, clock_ns=lambda: 0)
    for start in range(1, 10_001, 1000):
        note_requests(journal, start, 1000)
        eventually(lambda: not journal.status()["waiting_bytes"])
        files = journal_files(tmp_path / "j")
        assert len(files) <= 4
        assert sum(file.stat().st_size for file in files) <= 41_000
    journal.close()
    assert journal.dropped == 0
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    kept = submitted(tmp_path / "j")
    assert kept == list(range(10_001 - len(kept), 10_001))
    assert len(kept) > 300


def test_a_file_whose_header_exceeds_its_share_still_holds_events(tmp_path):
    bounds = JournalBounds(bytes=100_000, files=20)
    journal = Journal(tmp_path, GOODPUT, Limits(), bounds, clock_ns=lambda: 0)
    many = tuple(offer(f"variant-{number}") for number in range(100))
    journal.note(0, TargetUp(TargetSpec("cpu:0", many)), [], GOODPUT)
    note_requests(journal, 1, 200)
    journal.close()
    files = journal_files(tmp_path)
    assert len(encode_header(JournalFile(files[-1]).header)) > bounds.bytes // bounds.files
    assert submitted(tmp_path) == list(range(1, 201))
    assert journal.dropped == 0
    assert sum(file.stat().st_size for file in files) <= bounds.bytes


def test_an_older_runs_files_make_room_too(tmp_path):
    for run in range(3):
        journal = Journal(tmp_path, GOODPUT, Limits(), JournalBounds(files=2))
        note_requests(journal, 1, 10)
        journal.close()
        assert len(journal_files(tmp_path)) == min(run + 1, 2)


def test_files_of_a_clock_that_was_set_back_are_not_the_newest(tmp_path):
    for number in range(4):
        (tmp_path / f"29990101T000000.000000Z-1-{number:06d}.journal").write_bytes(b"later")
    bounds = JournalBounds(bytes=60_000, files=3)
    journal = Journal(tmp_path, GOODPUT, Limits(), bounds, clock_ns=lambda: 0)
    note_requests(journal, 1, 5_000)
    journal.close()
    kept = submitted(tmp_path)
    assert kept[-1] == 5_000
    assert kept == list(range(5_001 - len(kept), 5_001))
    assert not [file for file in journal_files(tmp_path) if file.name.startswith("2999")]


def test_each_file_stands_for_itself(tmp_path):
    journal = Journal(
        tmp_path, GOODPUT, Limits(requests=77), JournalBounds(bytes=80_000, files=40), lambda: 0
    )
    journal.note(1, TargetUp(TargetSpec("cpu:0", (offer(),))), [], GOODPUT)
    journal.note(2, TargetUp(TargetSpec("gpu:0", (offer(),))), [], GOODPUT)
    journal.note(3, TargetReport("cpu:0", (offer("w"), offer("x"))), [], GOODPUT)
    journal.note(3, TargetWithdrew("cpu:0", (("m", "x"), ("m", "y")), "replaced"), [], GOODPUT)
    journal.note(4, TargetDown("gpu:0", "unplugged"), [], GOODPUT)
    journal.note(4, TargetUp(TargetSpec("box", (offer(),))), [], GOODPUT)
    journal.note(4, TargetDown("box", "forgotten", removed=True), [], GOODPUT)
    edf = NamedPolicy("edf", {})
    journal.note(5, PolicySwapped("edf", policies.make_policy("edf")), [], edf)
    note_requests(journal, 1, 200)
    journal.close()
    files = journal_files(tmp_path)
    assert len(files) > 3
    head = JournalFile(files[-1]).header
    assert (head.policy, head.limits) == (JournalledPolicy("edf", {}), Limits(requests=77))
    assert [(t.spec.id, len(t.spec.offers), t.up) for t in head.targets] == [
        ("cpu:0", 2, True),
        ("gpu:0", 1, False),
    ]
    last = list(arrivals(files[-1]))
    assert last
    assert last[0].at_ns == 0
    assert {arrival.budget_ns for arrival in last} == {50 * MS}
    assert [spec.id for spec in targets(files[-1])] == ["cpu:0", "gpu:0"]
    assert JournalFile(files[-1]).header.last_id == 200 - len(last)


def test_what_a_slow_disk_cannot_take_is_counted_and_marked_and_nobody_waits(tmp_path):
    disk = SlowDisk()
    bounds = JournalBounds(waiting_bytes=5_000)
    journal = Journal(tmp_path, GOODPUT, Limits(), bounds, lambda: 0, disk.open)
    note_requests(journal, 1, 1000)
    dropped = journal.dropped
    assert 0 < dropped < 1000
    disk.free.set()
    eventually(lambda: not journal.status()["waiting_bytes"])
    note_requests(journal, 1001, 10)
    journal.close()
    assert journal.dropped == dropped
    kept = submitted(tmp_path)
    assert kept == [*range(1, 1001 - dropped), *range(1001, 1011)]
    assert gaps(tmp_path) == [Gap(1001 * MS, dropped)]
    notes: list[str] = []
    (verdict,) = verify(tmp_path, notes.append)
    assert verdict.difference or verdict.unverified
    assert len(list(arrivals(tmp_path, notes.append))) == len(kept)
    assert any(f"{dropped} events are missing" in note for note in notes)


def test_a_full_disk_costs_records_and_no_more_than_those(tmp_path):
    disk = SlowDisk()
    disk.free.set()
    journal = Journal(tmp_path, GOODPUT, Limits(), JournalBounds(), lambda: 0, disk.open)
    note_requests(journal, 1, 10)
    eventually(lambda: not journal.status()["waiting_bytes"])
    disk.broken = True
    for number in range(11, 14):
        note_requests(journal, number, 1)
        eventually(lambda: not journal.status()["waiting_bytes"])
    assert journal.status()["problem"] == "No space left on device"
    disk.broken = False
    note_requests(journal, 14, 1)
    eventually(lambda: not journal.status()["waiting_bytes"])
    note_requests(journal, 15, 1)
    journal.close()
    assert journal.status()["problem"] is None
    kept = submitted(tmp_path)
    assert kept[:10] == list(range(1, 11))
    assert kept[-1] == 15
    missing = sum(gap.count for gap in gaps(tmp_path))
    assert missing == journal.dropped >= 3
    assert len(journal_files(tmp_path)) == 2


def test_a_disk_that_takes_nothing_is_in_the_status_no_later_than_in_the_log(tmp_path, monkeypatch):
    told: list[Any] = []

    class Log:
        def error(self, *_: Any, **__: Any) -> None:
            told.append(journal.status()["problem"])

    disk = SlowDisk()
    disk.broken = True
    monkeypatch.setattr(journal_writer, "log", Log())
    journal = Journal(tmp_path, GOODPUT, Limits(), JournalBounds(), lambda: 0, disk.open)
    disk.free.set()
    eventually(lambda: told)
    journal.close()
    assert told == ["No space left on device"]


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    folder = tmp_path / "j"
    journal = Journal(folder, GOODPUT, Limits(), JournalBounds(bytes=8_000, files=2), lambda: 0)
    note_requests(journal, 1, 10)
    eventually(lambda: not journal.status()["waiting_bytes"])
    shutil.rmtree(folder)
    note_requests(journal, 11, 100)
    journal.close()
    assert journal.status()["problem"] is None
    assert submitted(folder)[-1] == 110


def test_it_begins_once_its_folder_can_be_had(tmp_path):
    folder = tmp_path / "disk" / "j"
    (tmp_path / "disk").write_text("")
    journal = Journal(folder, GOODPUT, Limits(), clock_ns=lambda: 0)
    for number in range(1, 4):
        note_requests(journal, number, 1)
        eventually(lambda: not journal.status()["waiting_bytes"])
    assert journal.status()["problem"] == "Not a directory"
    (tmp_path / "disk").unlink()
    note_requests(journal, 4, 1)
    eventually(lambda: not journal.status()["waiting_bytes"])
    note_requests(journal, 5, 1)
    journal.close()
    assert journal.status()["problem"] is None
    kept = submitted(folder)
    assert kept[-1] == 5
    assert len(kept) + journal.dropped == 5


def test_what_cannot_be_written_down_does_not_disturb(tmp_path):
    journal = Journal(tmp_path, GOODPUT, Limits(), clock_ns=lambda: 0)
    note_requests(journal, 1, 3)
    journal.note(4 * MS, Cancelled(-(2**70)), [], GOODPUT)
    note_requests(journal, 5, 3)
    journal.close()
    assert submitted(tmp_path) == [1, 2, 3, 5, 6, 7]
    assert [gap.count for gap in gaps(tmp_path)] == [1]


def test_options_that_a_journal_can_not_hold_are_spelled_out(tmp_path):
    odd: dict[str, Any] = {"seed": 2**70, "name": "\ud800", "at": {2**64: None}, "quantile": 0.9}
    journal = Journal(tmp_path, NamedPolicy("own", odd), Limits(), clock_ns=lambda: 0)
    swapped = PolicySwapped("own", policies.make_policy("edf"))
    journal.note(1 * MS, swapped, [], NamedPolicy("own", {**odd, "seed": -(2**70)}))
    note_requests(journal, 2, 1)
    journal.close()
    assert journal.dropped == 0
    (file,) = journal_files(tmp_path)
    header = JournalFile(file).header
    kept = {"seed": str(2**70), "name": "\\ud800", "at": {str(2**64): None}, "quantile": 0.9}
    assert header.policy == JournalledPolicy("own", kept)
    (swap,) = [
        entry.event
        for entry in JournalFile(file)
        if isinstance(entry, Entry) and isinstance(entry.event, PolicySwapped)
    ]
    assert isinstance(swap.policy, JournalledPolicy)
    assert swap.policy.options["seed"] == str(-(2**70))


# -- with the driver


class Broken:
    """Fails at the first request that it sees."""

    def decide(self, view: Any) -> Any:
        raise RuntimeError("out of ideas")


LINE = Broken.decide.__code__.co_firstlineno + 1
FAULT = f"RuntimeError: out of ideas, at {__file__}:{LINE}"


def test_a_policy_that_fails_is_part_of_the_journal(tmp_path, monkeypatch):
    monkeypatch.setitem(policies.POLICIES, "broken", Broken)
    clock = iter(range(1, 10**6))

    async def scene() -> list[Any]:
        limits = Limits()
        journal = Journal(tmp_path / "j", NamedPolicy("broken", {}), limits, clock_ns=lambda: 0)
        driver = Driver(NamedPolicy("broken", {}), limits, lambda: next(clock), journal)
        driver.add_device("cpu:0", tmp_path / "nobody.sock")
        driver.on_up(TargetSpec("cpu:0", (offer(),)))
        answers: list[Any] = []
        asked = Submission(
            RequestClass("m"), [], memoryview(b""), 10**12, 3, 1.0, False, answers.append
        )
        driver.submit([asked])
        await asyncio.sleep(0)
        assert driver.policy.name == policies.DEFAULT
        assert driver.status()["policy_problem"] == f"broken: {FAULT}"
        driver.submit([asked])
        driver.swap_policy("edf", {})
        assert driver.status()["policy_problem"] is None
        await driver.drain(0)
        await driver.close()
        journal.close()
        return answers

    answers = asyncio.run(scene())
    assert [answer.outcome for answer in answers] == [Outcome.CANCELLED] * 2
    (file,) = journal_files(tmp_path / "j")
    entries = [step for step in JournalFile(file) if isinstance(step, Entry)]
    assert [entry.failure for entry in entries][:2] == [None, FAULT]
    (verdict,) = verify(tmp_path / "j")
    assert (verdict.difference, verdict.unverified) == (None, None)
    assert verdict.requests == 2


def test_a_policy_that_failed_and_was_swapped_at_once_makes_no_way_for_the_default(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(policies.POLICIES, "broken", Broken)

    async def scene() -> None:
        driver = Driver(NamedPolicy("broken", {}))
        driver.add_device("cpu:0", tmp_path / "nobody.sock")
        driver.on_up(TargetSpec("cpu:0", (offer(),)))
        asked = Submission(
            RequestClass("m"), [], memoryview(b""), 2**62, 3, 1.0, False, lambda _: None
        )
        driver.submit([asked])
        driver.swap_policy("edf", {})
        await asyncio.sleep(0)
        assert driver.policy == ("edf", {})
        assert driver.status()["policy_problem"] is None
        assert driver.status()["policy_swaps"] == 1
        await driver.drain(0)
        await driver.close()

    asyncio.run(scene())


def test_without_room_for_a_journal_there_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "j", GOODPUT, Limits(), clock_ns=lambda: 0)
    note_requests(journal, 1, 10)
    journal.close()
    assert journal.status()["problem"] == "Not a directory"
    assert journal.dropped == 10
