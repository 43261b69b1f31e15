"""What became of a request is told from the journal as the core tells it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from replay.explaining import Brief, explain, recent
from replay.journal_files import JournalError
from scheduler.core.commands import Finish
from scheduler.core.events import BatchFailed, Cancelled, Submitted, TargetDown, TargetUp
from scheduler.core.policy import Wake
from scheduler.core.requests import Request, RequestClass
from tests.core.world import MS
from tests.fake_box import FakeBox, Peer
from tests.replay.test_journal import SPECS, JournalledBox


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path):
    box = JournalledBox(tmp_path, "goodput", 3, bytes=100_000, files=20)
    box.live(400)
    box.close()
    first, *_ = sorted(tmp_path.iterdir())
    last = recent(tmp_path, 3, note=complain)
    first.write_bytes(first.read_bytes()[:17] + b"\xc1")
    notes: list[str] = []
    assert recent(tmp_path, 3, note=notes.append) == last
    assert [str(first) in note for note in notes] == [True]


TASK = {
    "task": "8f2c",
    "model": "a",
    "variant": None,
    "state": "ended",
    "outcome": "failed",
    "reason": "failed 3 times: too hot",
    "attempts": 3,
    "priority": 3,
    "left_ms": 1000,
    "submitted_unix_ms": 0,
    "ended_unix_ms": 1000,
}


def complain(text: str) -> None:
    raise AssertionError(text)


class StatusBox(FakeBox):
    """Answers `status` with what a test says."""

    def __init__(self, path: Path, status: Any) -> None:
        super().__init__(path)
        self.status = status

    def take(self, peer: Peer, header: Any) -> None:
        if header["t"] == "status":
            peer.send({"t": "reply", "id": header["id"], "value": self.status})
        else:
            super().take(peer, header)


@pytest.fixture
def box(tmp_path):
    box = JournalledBox(tmp_path / "journal", "goodput", 0)
    yield box
    box.journal.close()


def submit(box: JournalledBox, *, budget_ms: float = 50) -> int:
    request_id = box.next_id
    box.next_id += 1
    box.tell(Submitted((Request(request_id, RequestClass("a"), box.now_ns + int(budget_ms * MS)),)))
    return request_id


@pytest.mark.parametrize("seed", range(3))
def test_every_tale_is_the_story_of_the_core(tmp_path, seed):
    policy = ("goodput", "hedge", "edf")[seed]
    box = JournalledBox(tmp_path, policy, seed, bytes=200_000, files=40)
    box.live(300)
    box.journal.close()
    ended = {what.request_id: what for _, what in box.said if isinstance(what, Finish)}
    ids = [r.id for _, what in box.said if isinstance(what, Submitted) for r in what.requests]
    assert len(ids) > 50
    for request_id in ids[::5]:
        tale = explain(tmp_path, request_id, note=complain)
        story = [each for each in box.core.story(request_id) if not isinstance(each.what, Wake)]
        while not isinstance(story[0].what, Submitted):  # called off before it came
            del story[0]
        told = [step for step in tale.steps if step.what != "policy failed"]
        came_ns = story[0].at_ns
        times = [each.at_ns - came_ns for each in story]
        assert [step.after_ns for step in told] == times[: len(told)]
        # A caller may call off what has ended.
        assert all(isinstance(each.what, Cancelled) for each in story[len(told) :])
        end = ended.get(request_id)
        assert (tale.brief and tale.brief.outcome) == (end and end.outcome.value)


class TestALife:
    def test_a_worker_that_falls_and_a_second_attempt(self, box, tmp_path):
        request_id = submit(box)
        box.now_ns += 2 * MS
        (run,) = box.core.runs.values()
        box.tell(TargetDown(run.target_id, "unplugged", 5 * MS))
        box.tell(TargetUp(next(spec for spec in SPECS if spec.id == run.target_id)))
        while box.core.runs:
            box.now_ns += MS
            box.finish()
        box.journal.close()
        tale = explain(tmp_path / "journal", request_id, note=complain)
        words = [step.what for step in tale.steps]
        assert words[:3] == ["came", "sent", "lost"]
        assert words[3:] == ["sent", "ran", "completed"]
        assert tale.steps[0].text.startswith("a, 50 ms to its deadline, priority 3, 0 bytes; goodp")
        assert "unplugged" in tale.steps[2].text
        assert tale.brief is not None
        assert tale.brief.budget_ns == 50 * MS

    def test_one_that_fails_and_one_that_is_cancelled(self, box, tmp_path):
        failed = submit(box)
        while box.core.runs:
            box.now_ns += MS
            box.tell(BatchFailed(next(iter(box.core.runs)), "it fell over"))
        cancelled = submit(box)
        box.tell(Cancelled(cancelled))
        withdrawn = submit(box)
        box.tell(Cancelled(withdrawn, "a task made way"))
        waits = submit(box, budget_ms=60)
        box.journal.close()
        journal = tmp_path / "journal"
        steps = explain(journal, failed, note=complain).steps
        assert steps[-1].what == "failed"
        assert any("it fell over" in step.text for step in steps)
        steps = explain(journal, cancelled, note=complain).steps
        assert ("cancelled", "its caller no longer waits") in [(s.what, s.text) for s in steps]
        steps = explain(journal, withdrawn, note=complain).steps
        assert ("cancelled", "a task made way") in [(step.what, step.text) for step in steps]
        assert steps[-1].text.startswith("a task made way (")
        assert explain(journal, waits, note=complain).brief is None


class TestRecent:
    def test_times_are_said_as_people_write_them(self, box, tmp_path):
        distant = submit(box, budget_ms=10_000_000)
        hopeless = submit(box, budget_ms=1 / 1000)
        box.tell(Cancelled(distant))
        box.journal.close()
        journal = tmp_path / "journal"
        came = explain(journal, distant, note=complain).steps[0]
        assert "10,000,000 ms to its deadline" in came.text
        refused = explain(journal, hopeless, note=complain).steps[-1]
        assert refused.what == "infeasible"
        assert re.search(r"; would do: ([0-9.]+ ms at \w+:0(, |(?= \()))+", refused.text)

    def test_the_newest_come_first_and_may_be_chosen(self, box, tmp_path):
        box.live(120)
        box.journal.close()
        journal = tmp_path / "journal"
        ended = [what for _, what in box.said if isinstance(what, Finish)]
        found = recent(journal, 10, note=complain)
        assert [brief.id for brief in found] == [end.request_id for end in reversed(ended)][:10]
        expired = recent(journal, 1000, "expired", "a", note=complain)
        assert expired
        assert {(brief.outcome, brief.model) for brief in expired} == {("expired", "a")}

    def test_what_is_not_there_is_said(self, box, tmp_path):
        submit(box)
        box.journal.close()
        journal = tmp_path / "journal"
        with pytest.raises(JournalError, match="no request 7 in run 2"):
            explain(journal, 7, note=complain)
        with pytest.raises(JournalError, match="no run yesterday; expected one of 2"):
            explain(journal, 1, "yesterday", note=complain)
        with pytest.raises(JournalError, match="no file named"):
            recent(tmp_path, 5, note=complain)

    def test_a_file_that_was_removed_is_said(self, tmp_path):
        box = JournalledBox(tmp_path, "edf", 3, bytes=20_000, files=4)
        box.live(600)
        box.journal.close()
        with pytest.raises(
            JournalError, match=r"request 1 of run .* is in a file that was removed"
        ):
            explain(tmp_path, 1, note=complain)


class TestCommand:
    @pytest.fixture
    def journal(self, box, tmp_path):
        submit(box)
        box.now_ns += MS
        box.finish()
        box.journal.close()
        return tmp_path / "journal"

    def test_ids_are_found_and_explained(self, laxity, journal):
        status, out, _ = laxity("explain", "--journal", str(journal))
        assert status == 0
        assert "completed" in out
        status, out, _ = laxity("explain", "1", "--journal", str(journal))
        assert status == 0
        assert [line.split()[2] for line in out.splitlines()[1:]] == (
            ["came", "sent", "ran", "completed"]
        )

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--model", "digit"], "has no request for model 'digit' that ended\n"),
            (["--outcome", "late"], "has no request that ended late\n"),
        ],
    )
    def test_that_there_is_none_of_a_kind_is_said(self, laxity, journal, words, said):
        status, out, err = laxity("explain", *words, "--journal", str(journal))
        assert (status, out) == (0, "")
        assert err.endswith(said)

    def test_after_a_restart_the_runs_before_are_named(self, laxity, journal):
        before = recent(journal, 1)[0]
        JournalledBox(journal, "goodput", 0).journal.close()
        _, out, err = laxity("explain", "--journal", str(journal))
        assert out == ""
        told, _, run = err.strip().rpartition(": ")
        assert told.endswith("that ended in the latest run; --run takes an earlier one")
        _, out, _ = laxity("explain", "--journal", str(journal), "--run", run, "--json")
        assert [each["id"] for each in json.loads(out)] == [before.id]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["8f2c"], "--journal is for requests, and '8f2c' is a durable task's id"),
            (["1", "--model", "m"], "goes without an ID"),
        ],
    )
    def test_an_option_that_would_do_nothing_is_refused(self, laxity, journal, words, said):
        status, _, err = laxity("explain", *words, "--journal", str(journal))
        assert status == 2
        assert said in err

    def test_what_was_before_a_crash_is_found_by_its_run(self, laxity, box, journal):
        (first,) = journal.glob("*")
        box.now_ns += MS
        later = JournalledBox(journal, "edf", 1)
        later.journal.close()
        where = ["--journal", str(journal)]
        (run,) = re.findall(r"^(.*Z-\d+)-\d+\.", first.name)
        assert laxity("explain", *where)[1] == ""
        status, _, err = laxity("explain", "1", *where)
        assert (status, f"or another run: {run}" in err) == (1, True)
        for words in (["1"], []):
            status, out, _ = laxity("explain", *words, *where, "--run", run)
            assert (status, "completed" in out) == (0, True)

    def test_the_id_of_a_durable_task_says_how_that_is(self, laxity, tmp_path):
        box = StatusBox(tmp_path / "s", {}).start()
        box.on_task = lambda peer, header: peer.send(
            {"t": "reply", "id": header["id"], "value": TASK}
        )
        status, out, err = laxity("explain", "8f2c", "--url", box.url)
        told = json.loads(laxity("explain", "8f2c", "--url", box.url, "--json")[1])
        box.close()
        assert (status, "reason     failed 3 times: too hot\n" in out) == (0, True)
        assert "laxity explain --model" in err
        assert told["reason"] == "failed 3 times: too hot"

    def test_scripts_get_json(self, laxity, journal):
        status, out, _ = laxity("explain", "--journal", str(journal), "--json")
        (brief,) = json.loads(out)
        assert Brief(**brief).outcome == "completed"
        status, out, _ = laxity("explain", "1", "--journal", str(journal), "--json")
        tale = json.loads(out)
        assert status == 0
        assert tale["brief"] == brief
        assert tale["steps"][0]["what"] == "came"

    @pytest.mark.parametrize(
        ("folder", "status", "words"),
        [
            ("journal", 0, "completed"),
            ("nowhere", 1, "the journal is on the box, in "),
            (None, 1, "keeps no journal"),
        ],
    )
    def test_the_running_box_says_where_its_journal_is(
        self, laxity, journal, tmp_path, folder, status, words
    ):
        said = folder and {"folder": str(tmp_path / folder)}
        box = StatusBox(tmp_path / "s", {"journal": said}).start()
        found, out, err = laxity("explain", "--url", box.url)
        box.close()
        assert found == status
        assert words in out + err

    def test_mistakes_are_named(self, laxity, journal):
        status, _, err = laxity("explain", "--outcome", "lost")
        assert (status, "there are completed, late" in err) == (2, True)
        status, _, err = laxity("explain", "9", "--journal", str(journal))
        assert (status, "no request 9" in err) == (1, True)
