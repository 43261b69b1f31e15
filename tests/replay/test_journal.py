"""Journals read again: verified against the core, played again, and damaged in every way."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import POLICIES, make_policy
from replay.fleet.sources import load_fleet
from replay.journal import arrivals, read_journal, read_on_one_clock, targets, verify
from replay.journal_files import JournalError, JournalFile, journal_files
from replay.readers import TraceError
from replay.simulator import Arrival, Simulator
from replay.sources import JournalSource
from scheduler.core.commands import Command
from scheduler.core.errors import PolicyFailed
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
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.policy import View
from scheduler.core.requests import Request, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.daemon.journal import Journal
from scheduler.daemon.journal_writer import JournalBounds
from scheduler.journal_format import Entry, Gap
from scheduler.policy_loading import NamedPolicy, load_policy
from tests.core.world import MS, offer, target

SPECS = (
    target("cpu:0", offer("a"), offer("b", item_ms=2), slots=2),
    target("gpu:0", offer("a", "int8", 0.5, 0.2, rank=1), offer("a", "fp32", 1, 0.5), slots=3),
)
KINDS = (
    RequestClass("a"),
    RequestClass("b"),
    RequestClass("a", "int8"),
    RequestClass("a", shapes=((3, 3),)),
)
LIMITS = Limits(requests=40, bytes=100_000)

Options = dict[str, Any]


class Moody:
    """Decides nothing, and raises at every third question."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, view: View) -> Sequence[Any]:
        self.asked += 1
        if not self.asked % 3:
            raise RuntimeError(f"not at {view.now_ns}")
        return ()


@pytest.fixture(autouse=True, scope="module")
def _moody() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "moody", Moody)
        yield


class JournalledBox:
    """A scheduler whose life chance decides, and its journal."""

    def __init__(self, folder: Path, policy: str, seed: int, **bounds: int) -> None:
        self.chance = random.Random(seed)
        self.policy = NamedPolicy(policy, {})
        self.now_ns = 10**12
        self.core = Scheduler(make_policy(policy), LIMITS)
        self.journal = Journal(
            folder, self.policy, LIMITS, JournalBounds(**bounds), lambda: self.now_ns
        )
        self.said: list[tuple[int, Event | Command]] = []
        self.next_id = 1
        for spec in SPECS:
            self.tell(TargetUp(spec))

    def tell(self, event: Event) -> None:
        failure = None
        try:
            commands = self.core.handle(event, self.now_ns)
        except PolicyFailed as failed:
            commands, failure = failed.commands, str(failed)
        self.journal.note(self.now_ns, event, commands, self.policy, failure)
        self.said += [(self.now_ns, what) for what in (event, *commands)]

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ns += self.chance.choice((0, 1_000, MS, 7 * MS))
            while self.core.alarm.armed_ns is not None and self.core.alarm.armed_ns <= self.now_ns:
                self.tell(Woken())
            self.chance.choices(
                (
                    self.submit,
                    self.finish,
                    self.cancel,
                    self.fail,
                    self.fall,
                    self.change,
                    self.swap,
                ),
                (8, 8, 1, 1, 0.4, 0.4, 0.3),
            )[0]()

    def submit(self) -> None:
        requests = []
        for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
            requests.append(
                Request(
                    self.next_id,
                    self.chance.choice(KINDS),
                    self.now_ns + self.chance.choice((0, 2, 10, 50)) * MS,
                    self.chance.choice((3, 3, 0, 7)),
                    self.chance.choice((1.0, 1.0, 2.5)),
                    self.chance.choice((0, 100, 9000)),
                    self.chance.random() < 0.2,
                )
            )
            self.next_id += self.chance.choice((1, 1, 4))
        self.tell(Submitted(tuple(requests)))

    def finish(self) -> None:
        if self.core.runs:
            run = self.chance.choice(list(self.core.runs.values()))
            bad = {i: "NaN" for i in run.request_ids if self.chance.random() < 0.05}
            self.tell(BatchDone(run.id, bad))

    def cancel(self) -> None:
        self.tell(Cancelled(self.chance.randrange(self.next_id + 5)))

    def fail(self) -> None:
        if self.core.runs:
            run_id = self.chance.choice(list(self.core.runs))
            self.tell(BatchFailed(run_id, "it fell over", self.chance.random() < 0.5))

    def fall(self) -> None:
        spec = self.chance.choice(SPECS)
        known = self.core.targets.get(spec.id)
        if known is not None and self.chance.random() < 0.1:
            self.tell(TargetDown(spec.id, "forgotten", removed=True))
        elif known is not None and known.up:
            back_ns = self.chance.choice((None, 5 * MS))
            self.tell(TargetDown(spec.id, "unplugged", back_ns))
        else:
            self.tell(TargetUp(dataclasses.replace(spec, offers=spec.offers[:1])))
            self.tell(TargetReport(spec.id, (spec.offers[1],)))

    def change(self) -> None:
        spec = self.chance.choice(SPECS)
        slots = self.chance.choice((1, 2, 9))
        changed = dataclasses.replace(spec, slots=slots, transfer_ns=(MS, 0.5), offers=())
        if spec.id in self.core.targets:
            self.tell(TargetChanged(changed, self.chance.choice((0, 9 * MS))))

    def swap(self) -> None:
        name = self.chance.choice(sorted(POLICIES))
        options: Options = {"quantile": 0.8} if name == "goodput" else {}
        self.policy = NamedPolicy(name, options)
        self.tell(PolicySwapped(name, make_policy(name, **options)))

    def close(self) -> None:
        self.journal.close()
        assert self.journal.dropped == 0


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of one life with everything in it."""
    box = JournalledBox(tmp_path / "journal", "goodput", 5)
    box.live(600)
    box.close()
    return tmp_path / "journal"


def no_note(text: str) -> None:
    raise AssertionError(text)


# -- sound journals


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["edf", "fcfs", "goodput", "moody"])
def test_any_life_replays_to_the_same_commands(tmp_path, policy, seed):
    box = JournalledBox(tmp_path, policy, seed, bytes=200_000, files=20)
    box.live(400)
    box.close()
    assert len(journal_files(tmp_path)) > 1
    (verdict,) = verify(tmp_path, no_note)
    assert (verdict.difference, verdict.unverified) == (None, None)
    assert verdict.requests > 200
    read = list(read_journal(tmp_path, no_note))
    assert [(at_ns, kind_of(what)) for at_ns, what in read] == [
        (at_ns, kind_of(what)) for at_ns, what in box.said
    ]
    assert verdict.events + verdict.commands == len(read)


def kind_of(what: Event | Command) -> Any:
    """The same for a policy and for what a journal knows of it."""
    return (PolicySwapped, what.name) if isinstance(what, PolicySwapped) else what


def test_a_run_is_read_file_by_file_too(journal):
    (file,) = journal_files(journal)
    assert list(read_journal(file)) == list(read_journal(journal))


def test_the_arrivals_play_again(journal):
    again = list(arrivals(journal, no_note))
    submitted = [
        (at_ns, request)
        for at_ns, what in read_journal(journal)
        if isinstance(what, Submitted)
        for request in what.requests
    ]
    start_ns = submitted[0][0]
    assert [
        (a.at_ns + start_ns, a.kind, a.priority, a.weight, a.accept_late, a.size_bytes)
        for a in again
    ] == [
        (at_ns, r.kind, r.priority, r.weight, r.accept_late, r.size_bytes) for at_ns, r in submitted
    ]
    assert {arrival.budget_ns // MS for arrival in again} == {0, 2, 10, 50}
    simulator = Simulator(make_policy("edf"), targets(journal), lambda run, _kind: 2 * MS)
    assert len(list(simulator.run(again))) == len(again)


def test_requests_that_are_repeated_come_between_the_others(journal):
    fleet = load_fleet(journal)

    def times_ns(rate_scale: float, seed: int) -> list[int]:
        source = JournalSource(journal, rate_scale=rate_scale)
        return [arrival.at_ns for arrival in source.arrivals(seed, fleet)]

    once, thrice = times_ns(1, 1), times_ns(3, 1)
    assert (len(thrice), thrice) == (3 * len(once), sorted(thrice))
    assert len(set(thrice)) > 2.5 * len(set(once))
    assert set(once) < set(thrice)
    assert times_ns(3, 2) != thrice == times_ns(3, 1)
    assert set(times_ns(0.5, 1)) < set(once)
    with pytest.raises(ValueError, match=r"rate_scale is .* at most 1,000,000, not 1e\+300"):
        times_ns(1e300, 1)


def test_a_slice_is_cut_before_it_is_repeated_and_sped_up(journal):
    fleet = load_fleet(journal)
    whole = [arrival.at_ns for arrival in JournalSource(journal).arrivals(1, fleet)]
    start_ns, end_ns = whole[-1] // 4, whole[-1] // 2
    source = JournalSource(journal, speed=2, rate_scale=3, slice_s=(start_ns / 1e9, end_ns / 1e9))
    played = [arrival.at_ns for arrival in source.arrivals(1, fleet)]
    kept = [at_ns for at_ns in whole if start_ns <= at_ns < end_ns]
    assert len(played) == 3 * len(kept) > 0
    assert {(at_ns - start_ns) // 2 for at_ns in kept} <= set(played)
    assert 0 <= min(played) <= max(played) <= (end_ns - start_ns) // 2


def test_the_targets_are_those_that_there_were(journal):
    assert {spec.id: Counter(spec.offers) for spec in targets(journal)} == {
        spec.id: Counter(spec.offers) for spec in SPECS
    }


def test_two_runs_are_verified_each_and_follow_each_other(tmp_path):
    for seed in range(2):
        box = JournalledBox(tmp_path, "edf", seed)
        box.live(100)
        box.close()
    verdicts = verify(tmp_path, no_note)
    assert [(v.difference, v.unverified) for v in verdicts] == [(None, None)] * 2
    again = list(arrivals(tmp_path))
    assert len(again) == sum(verdict.requests for verdict in verdicts)
    times = [arrival.at_ns for arrival in again]
    assert times == sorted(times)


def test_a_simulation_of_ten_thousand_requests_verifies(tmp_path):
    chance = random.Random(1)
    simulator = Simulator(make_policy("goodput"), (), lambda run, _kind: 2 * MS)
    core = simulator.scheduler
    writer = Journal(tmp_path, NamedPolicy("goodput", {}), core.limits, clock_ns=lambda: 0)
    handle = core.handle

    def handle_and_note(event: Event, now_ns: int) -> list[Command]:
        commands = handle(event, now_ns)
        writer.note(now_ns, event, commands, NamedPolicy("goodput", {}))
        return commands

    core.handle = handle_and_note  # type: ignore[method-assign]
    plan = [
        Arrival(5 + number * MS // 2, KINDS[0], chance.choice((5, 20, 60)) * MS)
        for number in range(10_000)
    ]
    for spec in SPECS:
        simulator.at(0, TargetUp(spec))
    simulator.at(900 * MS, TargetDown("gpu:0", "crashed", 90 * MS))
    simulator.at(990 * MS, TargetUp(SPECS[1]))
    assert len(list(simulator.run(plan))) == 10_000
    writer.close()
    (verdict,) = verify(tmp_path, no_note)
    assert (verdict.difference, verdict.unverified) == (None, None)
    assert verdict.requests == 10_000


# -- what can't be verified


def test_another_core_is_found_out_with_the_story(journal, monkeypatch):
    edf = POLICIES["edf"]
    monkeypatch.setitem(POLICIES, "goodput", lambda **_: edf())
    (verdict,) = verify(journal)
    assert verdict.difference is not None
    assert verdict.unverified is None
    assert "record " in verdict.difference
    assert "the journal says" in verdict.difference
    assert "the story of request" in verdict.difference
    assert "Submitted" in verdict.difference


def test_one_changed_reason_is_found_out(journal):
    (file,) = journal_files(journal)
    data = file.read_bytes()
    assert b"in time" in data
    file.write_bytes(data.replace(b"in time", b"in tame", 1))
    (verdict,) = verify(journal)
    assert verdict.difference is not None
    assert "in tame" in verdict.difference


def test_without_its_first_file_a_run_is_not_verified_and_says_why(tmp_path):
    box = JournalledBox(tmp_path, "goodput", 3, bytes=100_000, files=20)
    box.live(400)
    box.close()
    first, second, third, *_ = journal_files(tmp_path)
    whole = list(arrivals(tmp_path))
    second.rename(tmp_path / "aside")
    (verdict,) = verify(tmp_path, lambda _: None)
    assert verdict.difference is None
    assert verdict.events > 0
    assert "missing before record" in str(verdict.unverified)
    notes: list[str] = []
    assert 0 < len(list(arrivals(tmp_path, notes.append))) < len(whole)
    assert any("events are missing between" in note for note in notes)
    first.unlink()
    (verdict,) = verify(tmp_path, lambda _: None)
    assert verdict.events == 0
    assert "begins with file 3" in str(verdict.unverified)
    assert list(arrivals(third))


def test_code_that_a_journal_names_is_run_only_where_it_is_trusted(tmp_path):
    mine = Path(__file__).parents[2] / "examples" / "policies" / "shortest_job_first.py"
    box = JournalledBox(tmp_path, "goodput", 3)
    box.tell(PolicySwapped(str(mine), load_policy(str(mine))))
    box.live(50)
    box.close()
    (verdict,) = verify(tmp_path, no_note)
    assert f"policy '{mine}' is not one of laxity's own" in str(verdict.unverified)
    (verdict,) = verify(tmp_path, no_note, make=load_policy)
    assert (verdict.difference, verdict.unverified) == (None, None)


def test_a_policy_that_is_not_there_any_more_is_named(journal, monkeypatch):
    monkeypatch.delitem(POLICIES, "goodput")
    (verdict,) = verify(journal)
    assert "'goodput' is not known" in str(verdict.unverified)
    (verdict,) = verify(journal, make=lambda name, **_: make_policy("edf"))
    assert verdict.difference is not None
    assert len(list(arrivals(journal))) > 300


# -- damaged journals


def test_a_cut_off_end_is_noted_and_the_rest_is_read(journal):
    (file,) = journal_files(journal)
    data = file.read_bytes()
    whole = list(read_journal(journal, no_note))
    for cut in range(3, 300, 7):
        file.write_bytes(data[:-cut])
        notes: list[str] = []
        read = list(read_journal(journal, notes.append))
        assert read == whole[: len(read)]
        assert len(whole) - len(read) < cut + 20
        assert len(notes) <= 1
        assert all("is cut off" in note for note in notes)


def test_zeros_at_the_end_are_noted(journal):
    (file,) = journal_files(journal)
    whole = list(read_journal(journal, no_note))
    with file.open("ab") as end:
        end.write(bytes(5000))
    notes: list[str] = []
    assert list(read_journal(journal, notes.append)) == whole
    assert len(notes) == 1
    assert "ends in zeros" in notes[0]


@pytest.mark.parametrize("zeros", [4096, 70_000])
def test_a_record_that_zeros_begin_in_is_left_out(journal, zeros):
    """A loss of power leaves a file as long as it was to be, with zeros from some block on."""
    (file,) = journal_files(journal)
    whole = [repr(each) for each in read_journal(journal, no_note)]
    data = file.read_bytes()
    for size in range(len(data) - 60, len(data), 7):
        file.write_bytes(data[:size] + bytes(zeros))
        notes: list[str] = []
        found = [repr(each) for each in read_journal(journal, notes.append)]
        assert found == whole[: len(found)]
        assert ["ends in zeros" in note for note in notes] == [True]
    (verdict,) = verify(journal, notes.append)
    assert verdict.difference is None


def test_a_file_without_a_whole_header_is_passed_over(journal):
    (file,) = journal_files(journal)
    whole = list(read_journal(journal, no_note))
    data = file.read_bytes()
    later = file.with_name("30" + file.name)
    for size, zeros in ((0, 0), (5, 0), (17, 0), (40, 0), (200, 0), (0, 4096), (5, 99), (40, 4096)):
        later.write_bytes(data[:size] + bytes(zeros))
        notes: list[str] = []
        assert list(read_journal(journal, notes.append)) == whole
        assert len(notes) >= 1
        assert "cut off in its header" in notes[-1]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"arrival_ms,qos,deadline_ms\n1,2,3\n",
            "begins with b'arrival_ms,qos,de'; expected a journal, which",
        ),
        (b"laxity-journal 1\n\x80", "begins with b'laxity-journal 1"),
        (b"laxity-journal 2\n\x93\x01\x02\x03", "no header"),
        (b"laxity-journal 2\n\x81\xa1a\xa1b", "no header"),
        (b"laxity-journal 2\n\xc1", "no msgpack (FormatError); expected"),
    ],
)
def test_what_is_no_journal_is_refused_with_what_one_is(tmp_path, data, told):
    path = tmp_path / "x.journal"
    path.write_bytes(data)
    with pytest.raises(JournalError) as caught:
        list(read_journal(tmp_path))
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert "expected" in str(caught.value)


def test_what_can_not_be_looked_at_is_refused(tmp_path):
    with pytest.raises(JournalError, match=r"can't be read \(File name too long\)"):
        list(read_journal(tmp_path / ("n" * 300)))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"no file named \*\.journal"):
        list(arrivals(tmp_path))
    with pytest.raises(TraceError, match="No such file"):
        list(arrivals(tmp_path / "none"))


def test_a_damaged_record_is_named_by_its_number(journal):
    (file,) = journal_files(journal)
    records = sum(1 for _ in JournalFile(file))
    with file.open("ab") as end:
        end.write(b"\x92\x04\xa1x")
    with pytest.raises(JournalError) as caught:
        list(read_journal(journal))
    assert caught.value.record is not None
    assert caught.value.record > records
    assert f"{file}, record {caught.value.record}: no record of a journal" in str(caught.value)


def _spoil(file: Path, place: int) -> None:
    """From there on it is no msgpack."""
    file.write_bytes(file.read_bytes()[:place] + b"\xc1" * 50)


def _came(file: JournalFile) -> int:
    """How many requests came in it."""
    events = [step.event for step in file if isinstance(step, Entry)]
    return sum(len(event.requests) for event in events if isinstance(event, Submitted))


@pytest.fixture
def rotated(tmp_path: Path) -> list[Path]:
    """The files of one life."""
    box = JournalledBox(tmp_path, "goodput", 3, bytes=100_000, files=20)
    box.live(400)
    box.close()
    files = journal_files(tmp_path)
    assert len(files) > 4
    return files


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_file_that_cannot_be_read_is_left_out_where_that_is_asked_for(rotated, place):
    folder, bad = rotated[0].parent, rotated[place]
    lost = _came(JournalFile(bad))
    came = len(list(arrivals(folder, no_note)))
    _spoil(bad, 17)
    for read in (read_journal, arrivals, targets, verify):
        with pytest.raises(JournalError, match=bad.name):
            list(read(folder, lambda _: None))
    notes: list[str] = []
    assert len(list(arrivals(folder, notes.append, whole=False))) == came - lost
    assert lost
    assert f"{bad}, record 1: no msgpack" in notes[0]
    assert notes[0].endswith("the file is left out")
    assert {spec.id for spec in targets(folder, notes.append, whole=False)} == {"cpu:0", "gpu:0"}


def test_what_comes_after_a_damaged_record_of_a_file_is_left_out(rotated):
    folder, bad = rotated[0].parent, rotated[1]
    came, whole = len(list(arrivals(folder, no_note))), _came(JournalFile(bad))
    _spoil(bad, bad.stat().st_size * 3 // 4)
    with pytest.raises(JournalError, match=f"{bad.name}, record"):
        verify(folder, lambda _: None)
    notes: list[str] = []
    left = len(list(arrivals(folder, notes.append, whole=False)))
    assert came - whole < left < came
    told, gap = notes
    assert str(bad) in told
    assert told.endswith("the rest of the file is left out")
    assert gap == f"events are missing between {bad.name} and {rotated[2].name}"
    steps = read_on_one_clock(folder, lambda _: None, whole=False)
    assert sum(isinstance(step, Gap) for _, step in steps) == 1


def test_after_a_damaged_part_the_next_file_says_how_targets_are(tmp_path):
    box = JournalledBox(tmp_path, "edf", 3, bytes=100_000, files=20)
    more = target("npu:0", offer("a"))
    box.live(200)
    box.tell(TargetUp(more))
    box.live(200)
    box.close()
    (bad,) = (
        file
        for file in journal_files(tmp_path)[1:-1]
        if any(isinstance(s, Entry) and s.event == TargetUp(more) for s in JournalFile(file))
    )
    _spoil(bad, 17)
    assert more.id in {spec.id for spec in targets(tmp_path, lambda _: None, whole=False)}


def test_where_no_file_can_be_read_it_is_said(rotated):
    for file in rotated:
        _spoil(file, 17)
    for read in (arrivals, targets):
        with pytest.raises(JournalError, match=rotated[0].name):
            list(read(rotated[0].parent, no_note, whole=False))


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_no_damage_leads_to_anything_but_a_clear_error(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal")
    box = JournalledBox(folder, "edf", 1)
    box.live(40)
    box.close()
    (file,) = journal_files(folder)
    whole = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    file.write_bytes(whole)
    for read in (read_journal, arrivals, targets, verify):
        with contextlib.suppress(JournalError):
            list(read(file, lambda _: None))
    for mended in (arrivals, targets, read_on_one_clock):
        with contextlib.suppress(JournalError):
            list(mended(file, lambda _: None, whole=False))
