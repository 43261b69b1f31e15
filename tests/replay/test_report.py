from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from itertools import combinations, pairwise
from operator import mul
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from replay.report import print_table, summary, write_chart, write_report
from replay.report.cases import differences, study
from replay.report.figures import ENDINGS, figures, timelines
from replay.report.lines import Point
from replay.report.notes import notes
from replay.report.rows import Dots, dot_chart
from replay.report.statistics import Estimate, estimate
from replay.report.svg import WIDTH, count_axis, spread, ticks
from replay.report.table import cells, columns, folded, money, percent, points
from replay.results import LATE_ITSELF, Row, Rows, RunResult, Sample, SendLag

VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}
OUTCOMES = ("completed", "late", "infeasible", "overloaded", "expired", "cancelled", "failed")


def row(at_ms: float, latency_ms: float, outcome: str = "completed", **changes: object) -> Row:
    at_ns, budget_ns = int(at_ms * 1e6), 50_000_000
    values: dict[str, object] = {
        "intended_ns": at_ns,
        "model": "digits",
        "variant": "int8",
        "target": "cpu:0",
        "priority": 1,
        "weight": 1.0,
        "budget_ns": budget_ns,
        "outcome": outcome,
        "ended_ns": at_ns + int(latency_ms * 1e6),
        "on_time": outcome == "completed",
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def result(policy: str, seed: int = 1, load: float | None = 0.9, requests: int = 60) -> RunResult:
    chance = random.Random(f"{policy}/{seed}/{load}")
    run = RunResult("cameras", policy, seed, load, bound=0.95, cost=0.001 * seed)
    for index in range(requests):
        outcome = "completed" if chance.random() < 0.7 else chance.choice(OUTCOMES)
        latency_ms = chance.uniform(5, 50) if outcome == "completed" else chance.uniform(51, 90)
        model, priority = chance.choice(("digits", "faces")), chance.choice((0, 1))
        run.add(row(index * 10, latency_ms, outcome, model=model, priority=priority))
        run.timeline.append(Sample(index * 10_000_000, index % 7, {"cpu:0": index % 2}))
    run.calibration = [(0.9, 0.88, 40), (0.95, 0.93, 20)]
    return run


def sweep(*policies: str) -> list[RunResult]:
    return [result(p, seed, load) for p in policies for load in (0.5, 0.9, 1.5) for seed in (1, 2)]


def written(results: list[RunResult], tmp_path: Path, **options: object) -> str:
    path = tmp_path / "report.html"
    write_report(results, path, **options)  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


def printed(results: list[RunResult], width: int = 160, **options: object) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    print_table(results, console, **options)  # type: ignore[arg-type]
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


class Tags(HTMLParser):
    """Every element is closed, in order, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "xlink:href", "srcset", "style"}
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "base"}
    assert not re.search(r"https?://|url\(|@import", page)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.S):
        numbers = ElementTree.fromstring(drawing).iter()
        assert not [e for e in numbers if "nan" in e.attrib.values() or "inf" in e.attrib.values()]
    assert "NaN" not in page
    assert not re.search(r"[ML ]-?(nan|inf)\b", page)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_what_failed_is_shown_however_narrow_the_terminal_is(width):
    failed, well = RunResult("cameras", "goodput", 1), RunResult("cameras", "goodput", 1)
    for index in range(20):
        failed.add(row(index, 1, "model_not_found", on_time=False))
        well.add(row(index, 1))
    in_column, in_line = r"failed.*\n.*\n +goodput .*100\.0", r"\nfailed %: goodput 100\.0\n"
    assert re.search(in_column if width >= 100 else in_line, printed([failed], width))
    assert ("failed" in printed([well], width)) == (width >= 100)


@pytest.mark.parametrize("width", [40, 80])
def test_a_title_has_the_whole_width(width):
    runs = [RunResult("AzureLLMInferenceTrace", policy, 1) for policy in ("edf", "goodput")]
    for run in runs:
        run.add(row(0, 1))
    lines = printed(runs, width).splitlines()
    if width == 80:
        assert lines[0] == "AzureLLMInferenceTrace · 1 request · shares in %"
        assert "edf less goodput: on time, percentage points" in lines
    assert all(len(line) <= width for line in lines)


def test_accuracy_has_a_column_where_variants_differ_in_it(tmp_path):
    runs = sweep("goodput", "slackfit")
    assert "accuracy" not in printed(runs) + written(runs, tmp_path)
    for run in runs:
        run.accuracy_share = 0.981
    for width in (80, 160):
        assert re.search(r"accuracy.*\n.*\n +goodput .*98\.1", printed(runs, width))
    page = written(runs, tmp_path)
    check_page(page)
    assert "<dt>accuracy</dt>" in page
    assert "98.1 ± 0.0" in page


def test_a_note_on_several_cases_is_said_once():
    runs = [result("edf", 1, load) for load in (0.5, 1.0, 1.5) for _ in range(2)]
    for run in runs:
        run.notes = ["the fleet is small", f"cameras, load {run.load:g}: it ended early"]
    assert notes(study(runs))[:2] == [
        "the fleet is small",
        "cameras, load 0.5 and 2 other cases: it ended early",
    ]
    both = "cameras, load 0.5 and cameras, load 1: it ended early"
    assert notes(study(runs[:4]))[1] == both
    assert notes(study(runs[:1]))[1] == "cameras, load 0.5: it ended early"


def test_that_the_load_generator_was_late_in_several_runs_is_said_once():
    runs = [result("edf", seed) for seed in (1, 2, 3)]
    for run in runs:
        run.notes = [f"{LATE_ITSELF} by {run.seed} ms", f"policy on seed {run.seed} failed"]
    assert notes(study(runs))[:4] == [
        f"{LATE_ITSELF} by 1 ms (likewise in other runs: 2 more)",
        *(f"policy on seed {seed} failed" for seed in (1, 2, 3)),
    ]
    assert notes(study(runs[:1]))[0] == f"{LATE_ITSELF} by 1 ms"


def test_how_far_sending_was_behind_the_schedule_is_told_of_live_runs():
    live = [result("goodput", seed) for seed in (1, 2)]
    assert {row["send_lag_max_ms"] for row in summary(live)} == {None}
    assert "after they were due" not in printed(live)
    live[0].send_lag, live[1].send_lag = SendLag(0.2, 1.5, 40.0), SendLag(0.3, 0.9, 120.0)
    assert [row["send_lag_p99_ms"] for row in summary(live)] == [1.5, 0.9]
    said = "Requests were sent 0.30 ms (median), 1.50 ms (99 %) and at most 120.00 ms after they"
    assert said in printed(live)
    assert [RunResult.from_data(run.to_data()) for run in live] == live


class TestPage:
    def test_it_is_whole_and_needs_nothing_else(self, tmp_path):
        page = written(sweep("goodput", "edf_admit", "ect"), tmp_path)
        check_page(page)
        for heading in ("On time, over load", "Calibration", "Cost", "Latency against deadline"):
            assert heading in page
        for heading in ("By model", "By priority", "Over time", "Case by case"):
            assert heading in page

    def test_scenarios_that_are_named_after_their_loads_are_lines(self, tmp_path):
        runs = [result("goodput", 1, load) for load in (0.5, 0.9, 1.5)]
        for run in runs:
            run.scenario = f"load-{run.load}".replace(".", "_")
        runs.append(result("goodput", 1, 0.9))
        page = written(runs, tmp_path)
        check_page(page)
        assert "On-time share over load in load" in page
        assert "On-time share of each policy in each case" in page

    def test_a_chart_is_whole_and_needs_nothing_else(self, tmp_path):
        write_chart(sweep("goodput", "edf_admit"), tmp_path / "c.svg")
        drawn = (tmp_path / "c.svg").read_text(encoding="utf-8")
        names = {e.tag.rpartition("}")[2] for e in ElementTree.fromstring(drawn).iter()}
        assert {"path", "text"} <= names <= {
            "svg", "style", "rect", "text", "title", "line", "path", "circle", "polygon", "g"
        }  # fmt: skip
        assert not re.search(r"url\(|@import|href", drawn)

    def test_lines_of_long_names_are_told_apart_by_their_labels(self, tmp_path):
        """Alone in a chart by itself, which has no table beside it."""
        asked = [f"goodput?quantile={q}" for q in ("0.9", "0.95", "0.99")]
        write_chart(sweep(*asked), tmp_path / "c.svg")
        drawn = ElementTree.parse(tmp_path / "c.svg").iter()
        labels = [e.text or "" for e in drawn if e.get("class") == "name"]
        cut = [label.split("…") for label in labels if label != "bound"]
        fitting = [
            [name for name in asked if name.startswith(begin) and name.endswith(end)]
            for begin, end in cut
        ]
        assert sorted(fitting) == [[name] for name in asked]

    def test_what_would_say_nothing_is_left_out(self, tmp_path):
        plain = RunResult("plain", "goodput", 1, 0.9)
        plain.add(row(0, 5))
        page = written([plain], tmp_path)
        check_page(page)
        for part in ("By model", "By priority", "Cost</h2>", "bound</dt>", "The bound (dashed",
                     "of bound", "Whiskers"):  # fmt: skip
            assert part not in page
        assert "of bound" not in printed([plain])
        assert "Latency against deadline" in page

    def test_the_line_at_zero_keeps_off_the_words(self, tmp_path):
        page = written(sweep("a", "b"), tmp_path)
        drawing = re.search(r"<svg[^>]*less that of.*?</svg>", page, re.S)
        assert drawing is not None
        parts = list(ElementTree.fromstring(drawing.group()))
        lines = [e for e in parts if e.get("class") == "deadline"]
        heads = [float(e.get("y", "")) for e in parts if e.get("class") == "head"]
        assert len(lines) == len(heads) > 1
        for drawn in lines:
            assert not [
                y for y in heads if float(drawn.get("y1", "")) < y < float(drawn.get("y2", ""))
            ]

    def test_intervals_at_one_load_do_not_hide_each_other(self, tmp_path):
        """And each stays nearer to its own load than to another."""
        policies = [f"policy-{number}" for number in range(9)]
        write_chart(sweep(*policies), tmp_path / "c.svg")
        drawn = list(ElementTree.parse(tmp_path / "c.svg").iter())
        whiskers = [list(e) for e in drawn if e.get("class") == "whiskers"]
        marks = [float(e.get("cx", "")) for e in drawn if e.get("cx")]
        assert len(whiskers) == len(policies)
        places = [float(e.get("x1", "")) for each in whiskers for e in each]
        assert len(set(places)) == len(places) == 3 * len(policies)
        assert max(min(abs(x - mark) for mark in marks) for x in places) < 4.1

    def test_the_word_at_the_deadline_keeps_off_the_curves(self, tmp_path):
        page = written(sweep("a", "b"), tmp_path)
        drawing = re.search(r"<svg[^>]*Share of requests answered.*?</svg>", page, re.S)
        assert drawing is not None
        parts = list(ElementTree.fromstring(drawing.group()))
        (top,) = (float(e.get("y1", "")) for e in parts if e.get("class") == "deadline")
        (word,) = (e for e in parts if e.text == "deadline")
        assert float(word.get("y", "")) < top

    def test_the_requests_of_all_models_are_those_of_a_run(self, tmp_path):
        """Of several seeds, the mean: the most of each model are more than any run had."""
        first, second = result("a", 1), result("a", 2)
        for run, faces in ((first, 10), (second, 30)):
            for index in range(faces):
                run.add(row(index, 5, model="faces", priority=1))
        counts = [Counter(each.model for each in run.rows) for run in (first, second)]
        page = written([first, second], tmp_path)
        for model in ("digits", "faces"):
            mean = sum(count[model] for count in counts) / 2
            assert f"{model} · {mean:,.0f} requests per run" in page

    def test_of_a_long_case_the_name_is_cut_and_not_its_figures(self, tmp_path):
        runs = sweep("a", "b")
        for run in runs:
            run.scenario = "a-scenario-with-a-name-that-is-longer-than-the-picture-is-wide"
        page = written(runs, tmp_path)
        drawing = re.search(r"<svg[^>]*less that of.*?</svg>", page, re.S)
        assert drawing is not None
        heads = [e.text or "" for e in ElementTree.fromstring(drawing.group()) if e.text]
        figures = re.compile(r"^a-.*….*: [+-]\d+\.\d\d ± \d+\.\d\d, (clear|within chance)$")
        assert len([each for each in heads if figures.match(each)]) > 1

    @pytest.mark.parametrize(
        ("policies", "names", "title"),
        [
            (["edf"], ["cameras"], "edf on cameras"),
            (["edf", "a", "b"], ["hall", "yard"], "edf, a and b on hall and yard"),
            (["edf", "a", "b", "c"], list("wxyz"), "4 policies on 4 scenarios"),
        ],
    )
    def test_its_title_tells_what_was_played(self, policies, names, title, tmp_path):
        runs = [result(policy, load=load) for policy in policies for load in (0.5, 1.0)]
        played = [replace(run, scenario=name) for name in names for run in runs]
        page = written(played, tmp_path)
        check_page(page)
        assert f"<h1>{title}</h1>" in page
        assert f"<title>{title} · laxity replay</title>" in page

    def test_what_is_of_a_run_is_said_to_be(self, tmp_path):
        runs = [result("edf"), result("goodput")]
        assert "Cost of a run." in written(runs, tmp_path)
        assert "cost of a run" in printed(runs)
        for run in runs:
            run.energy_j = 3.0
        assert "Cost and joules of a run." in written(runs, tmp_path)
        for run in runs:
            run.cost = run.energy_j = 0.0
        assert "of a run" not in written(runs, tmp_path) + printed(runs)

    def test_the_same_results_give_the_same_bytes(self, tmp_path):
        assert written(sweep("a", "b"), tmp_path) == written(sweep("a", "b"), tmp_path)

    def test_words_of_others_are_only_words(self, tmp_path):
        evil = '</title></svg><script>alert("1")</script>&{{ 7001 * 7001 }}'
        run = RunResult(evil, evil, 1, 0.5, notes=[evil])
        run.add(row(1, 5, model=evil))
        run.timeline.append(Sample(2_000_000, 1, {evil: 1}))
        run.calibration = [(0.9, 0.9, 1)]
        page = written([run, result("b")], tmp_path)
        check_page(page)
        assert "<script" not in page
        assert str(7001 * 7001) not in page

    def test_without_runs_it_says_so(self, tmp_path):
        page = written([], tmp_path)
        check_page(page)
        assert "There are no runs to report." in page
        assert "There are no runs to report." in printed([])

    @pytest.mark.parametrize("rows", [[], [row(0, 0)], [row(0, 5)], [row(3, 80, "expired")]])
    def test_a_run_of_nothing_or_of_one_request(self, rows, tmp_path):
        run = RunResult("tiny", "goodput", 1)
        for each in rows:
            run.add(each)
        check_page(written([run], tmp_path))
        assert "goodput" in printed([run])

    def test_a_long_run_gives_a_small_file(self, tmp_path):
        count = 100_000
        run = result("goodput", requests=1)
        run.rows = Rows.from_data(
            {
                "limit": count,
                "stride": 4,
                "seen": 4 * count,
                "shapes": [["digits", "int8", "cpu:0", 1, outcome] for outcome in OUTCOMES],
                "shape": [index * 7919 % len(OUTCOMES) for index in range(count)],
                "intended_ns": [index * 1000 for index in range(count)],
                "ended_ns": [index * 1000 + index * 6007 % 90_000_000 for index in range(count)],
                "budget_ns": [50_000_000] * count,
                "weight": [1.0] * count,
                "on_time": [index * 7919 % len(OUTCOMES) == 0 for index in range(count)],
            }
        )
        run.timeline = [Sample(i * 2000, i % 50, {"cpu:0": i % 3}) for i in range(count // 2)]
        page = written([run], tmp_path)
        check_page(page)
        assert len(page) < 100_000
        assert "one request in 4 was kept" in page

    def test_many_policies_and_cases_stay_below_a_megabyte(self, tmp_path):
        runs = [
            RunResult(f"case {case}", f"policy-{policy}(wrapped)", 1, None, rows=run.rows)
            for case in range(30)
            for policy in range(13)
            for run in [result("any", requests=80)]
        ]
        for run in runs:
            for each in run.rows:
                run.add(each)
            run.timeline = result("any", requests=80).timeline
        page = written(runs, tmp_path)
        check_page(page)
        assert len(page) < 1_000_000
        assert "2 of 30 cases" in page

    def test_a_table_wider_than_the_screen_shows_that_more_follows(self, tmp_path):
        """On a phone it was cut between two columns, and looked whole."""
        page = written([result("goodput")], tmp_path)
        assert re.search(r"\.scroll \{[^}]* no-repeat local,[^}]* no-repeat scroll;", page)

    def test_simulated_and_live_runs_stand_apart(self, tmp_path):
        live = result("goodput")
        live.against = "live"
        page = written([result("goodput"), live], tmp_path)
        assert "goodput (sim)" in page
        assert "goodput (live)" in page


class TestNumbers:
    def test_a_run_is_told_as_its_rows_have_it(self):
        for run in sweep("a", "b"):
            rows = list(run.rows)
            said = figures(run)
            assert said.on_time == sum(r.on_time for r in rows) / len(rows)
            assert said.p50_ms == run.p50_ms()
            assert said.p99_ms == run.p99_ms()
            assert said.endings["expired"] == sum(r.outcome == "expired" for r in rows)
            assert said.endings["late"] == sum(r.outcome == "late" for r in rows)
            assert sum(said.endings.values()) == len(rows)
            assert float(said.within[100]) == pytest.approx(said.on_time)

    def test_a_result_that_came_too_late_is_late_whatever_the_door_said(self):
        run = RunResult("live", "a", 1)
        run.add(row(0, 60, "completed", on_time=False))
        assert figures(run).endings == {**dict.fromkeys(ENDINGS, 0), "late": 1}

    def test_over_time_nothing_is_lost(self):
        run = result("a", requests=500)
        (shown,) = timelines([figures(run)])
        assert shown is not None
        assert float(shown.endings.sum()) * shown.bin_s == pytest.approx(500)
        assert max(shown.queue_high) == 6

    def test_the_same_traffic_looks_the_same_however_long_a_policy_took(self):
        soon, late = result("a"), result("a")
        late.timeline.append(Sample(1_200_000_000, 0, {"cpu:0": 0}))
        short, long = timelines([figures(soon), figures(late)])
        assert short is not None
        assert long is not None
        assert (short.endings.shape[1], long.endings.shape[1]) == (48, 96)
        assert short.endings.tolist() == long.endings[:, :48].tolist()
        assert not long.endings[:, 48:].any()

    def test_what_a_live_run_can_not_know_is_left_out(self, tmp_path):
        run = RunResult("s", "goodput", 1, against="live")
        run.add(row(96, 1))
        text = written([run], tmp_path)
        assert "requests per second" in text
        assert "waited" not in text
        assert "waiting:" not in text
        assert "Nothing was promised" not in text
        said = summary([run])[0]
        assert said["cost"] is said["energy_j"] is None
        assert "cost" not in printed([run])
        assert '<th scope="col">cost</th>' not in text

    def test_the_queue_between_samples_is_what_it_was_at_the_last(self):
        run = RunResult("s", "a", 1)
        run.add(row(96, 1))
        run.timeline = [Sample(0, 4, {"cpu:0": 2}), Sample(48_000_000, 0, {"cpu:0": 0})]
        (shown,) = timelines([figures(run)])
        assert shown is not None
        assert shown.queue_mean.tolist() == pytest.approx([4.0] * 48 + [0.0] * 48)
        assert shown.busy["cpu:0"].tolist() == pytest.approx([1.0] * 48 + [0.0] * 48)

    def test_a_device_that_is_down_is_told_from_an_idle_one(self, tmp_path):
        run = RunResult("s", "a", 1)
        run.add(row(96, 1))
        run.timeline = [Sample(0, 0, {"cpu:0": 0, "gpu:0": 1})]
        page = written([run], tmp_path)
        assert "dashes: down" not in page
        assert 'class="down"' not in page
        run.timeline.append(Sample(48_000_000, 0, {"cpu:0": 0, "gpu:0": None}))
        (shown,) = timelines([figures(run)])
        assert shown is not None
        assert shown.down["gpu:0"].tolist() == pytest.approx([0.0] * 48 + [1.0] * 48)
        assert not shown.down["cpu:0"].any()
        page = written([run], tmp_path)
        check_page(page)
        assert "dashes: down" in page
        assert page.count('class="down"') == 1
        assert "gpu:0: busy 50 % of the time, down 50 %" in page

    def test_whiskers_are_explained_where_there_are_some(self, tmp_path):
        assert "Whiskers" not in written([result("a", 1), result("b", 1)], tmp_path)
        assert "Whiskers" in written([result("a", 1), result("a", 2)], tmp_path)

    def test_where_nothing_was_on_time_nothing_on_time_cost_anything(self, tmp_path):
        run = RunResult("s", "fcfs", 1, cost=3.0)
        run.add(row(0, 90, "late"))
        assert "Cost per thousand" not in written([run], tmp_path)

    def test_a_batch_counts_once_however_many_promises_it_is_held_against(self, tmp_path):
        runs = [result("edf", seed) for seed in (1, 2)]
        for run in runs:
            run.calibration = [(0.5, 0.4, 40), (0.9, 0.88, 40), (0.95, 0.94, 40)]
        assert "<td>-4.3</td><td>80</td>" in written(runs, tmp_path)

    def test_the_table_is_the_mean_over_seeds(self, tmp_path):
        runs = [result("goodput", seed) for seed in (1, 2, 3)]
        shares = [run.on_time_share() for run in runs]
        mean = sum(shares) / 3
        deviation = (sum((share - mean) ** 2 for share in shares) / 2) ** 0.5
        cell = f"{mean * 100:.1f} ± {4.303 * deviation / 3**0.5 * 100:.1f}"
        assert f"<td>{cell}</td>" in written(runs, tmp_path)
        assert cell in printed(runs)

    def test_rows_for_programs(self):
        runs = sweep("goodput")
        rows = summary(runs)
        assert len(rows) == len(runs)
        for run, said in zip(runs, rows, strict=True):
            assert (said["scenario"], said["policy"], said["seed"]) == (
                "cameras",
                "goodput",
                run.seed,
            )
            assert said["on_time_share"] == run.on_time_share()
            assert said["bound_share"] == run.bound_share()
            assert said["p99_ms"] == run.p99_ms()
            assert said["outcomes"] == dict(run.outcomes())

    def test_unlike_seeds_give_a_mean_without_an_interval(self):
        found = study([result("a", 1, 0.5), result("a", 2, 0.5), result("a", 1, 0.9)])
        whole = found.overall(lambda run: run.on_time, "a")
        assert whole is not None
        assert whole.half_width is None

    def test_policies_that_played_other_cases_are_warned_of(self, tmp_path):
        assert "did not all play" in written([result("a"), result("b", load=1.5)], tmp_path)
        assert "did not all play" not in written([result("a"), result("b")], tmp_path)

    def test_a_run_that_much_outlives_its_last_request_is_said_to_be_short(self, tmp_path):
        def queued(requests: int) -> RunResult:
            run = RunResult("s", "fcfs", 1)
            for index in range(requests):
                run.add(row(index, 49.5))
            return run

        for run, told in ((queued(100), True), (queued(2000), False), (queued(1), False)):
            assert ("s is short: 49% of what fcfs has on time" in printed([run])) is told
            assert ("s is short" in written([run], tmp_path)) is told
        assert summary([queued(100)])[0]["after_last_share"] == 0.49


class TestCompare:
    def test_differences_are_paired_by_seed(self):
        runs = [result(policy, seed) for policy in ("a", "b") for seed in (1, 2, 3)]
        (said,) = differences(study(runs), "a", "b")
        gaps = [runs[i].on_time_share() - runs[i + 3].on_time_share() for i in range(3)]
        expected = estimate(gaps)
        assert said.estimate == expected

    def test_seeds_of_one_alone_are_left_out(self):
        runs = [result("a", 1), result("a", 2), result("b", 2), result("b", 3)]
        (said,) = differences(study(runs), "a", "b")
        assert said.estimate.count == 1
        assert not said.clear

    def test_two_policies_are_compared_and_three_only_when_asked(self, tmp_path):
        assert "a against b" in written(sweep("a", "b"), tmp_path)
        assert "a less b" in printed(sweep("a", "b"))
        assert "against b" not in written(sweep("a", "b", "c"), tmp_path)
        assert "c against a" in written(sweep("a", "b", "c"), tmp_path, compare=("c", "a"))

    def test_an_unknown_policy_is_named(self, tmp_path):
        with pytest.raises(ValueError, match=r"'x' to compare \(there are: a, b\)"):
            written(sweep("a", "b"), tmp_path, compare=("a", "x"))


class TestTerminal:
    @pytest.mark.parametrize("width", [80, 110, 160])
    def test_every_figure_is_whole_at_any_width(self, width):
        text = printed(sweep("goodput", "edf_admit"), width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert "mean of 3 cases" in text

    @pytest.mark.parametrize("width", [80, 100, 110, 120, 139, 140, 150, 160, 200])
    @pytest.mark.parametrize("other", ["edf", "edf_admit"])
    def test_nothing_is_cut_off_where_energy_is_told_and_intervals_are_wide(self, other, width):
        runs = sweep("goodput", other)
        for run in runs:
            run.energy_j, run.cost = 12_345.6 * run.seed, 123.4 / run.seed
        found = study(runs)
        titles = {word for column in columns(found) for word in column.title.split()}
        unit = " · shares in %" if "expired %" not in printed(runs, width) else ""
        billed = "cost and joules" if "joules" in printed(runs, width) else "cost"
        *_, means = printed(runs, width).partition(f"mean of 3 cases{unit} · {billed} of a run\n")
        heads, *rows = [line.split() for line in means.splitlines() if re.search(r"\w", line)][:3]
        assert {"time", "expired", "cost"} <= set(heads) <= titles | {"policy"}
        for policy, *told in rows:
            assert set(told) <= {word for cell in cells(found, policy) for word in cell.split()}

    def test_a_long_name_goes_on_in_the_next_line_and_costs_no_column(self):
        text = printed(sweep("spill?budget_per_hour=0.5", "edf"), 80)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        assert all(title in text for title in ("refused", "expired", "cost"))
        assert "spill?" in text

    @given(st.text("ab .:&?=_/{", min_size=1), st.integers(1, 30))
    def test_a_folded_name_is_all_there_and_never_wider(self, name, width):
        lines = folded(name, width).split("\n")
        assert "".join(lines).replace(" ", "") == name.replace(" ", "")
        assert max(map(len, lines)) <= width

    @pytest.mark.parametrize("width", [80, 100, 140])
    def test_a_name_is_folded_between_its_parts_and_after_the_spaces_are_gone(self, width):
        name = "hedge?inner={name: spill, inner: goodput}&extra=0.1"
        text = printed(sweep(name, "policies.edf:Edf"), width)
        *_, means = text.partition("mean of 3 cases")
        assert any(line.strip().startswith("policies.edf:Edf") for line in means.splitlines())
        assert "inner: goodput}&" in means
        assert max(map(len, text.splitlines())) <= width

    @pytest.mark.parametrize("width", [30, 36, 40, 44, 50])
    def test_no_figure_is_cut_where_there_is_hardly_room(self, width):
        runs = sweep("spill?budget_per_hour=0.5", "edf")
        found = study(runs)
        *_, means = printed(runs, width).partition("mean of 3 cases")
        told = [line.split() for line in means.splitlines() if line.startswith(" edf")]
        whole = {word for cell in cells(found, "edf") for word in cell.split()}
        assert set(told[0][1:]) <= whole

    @pytest.mark.parametrize("width", [30, 40, 60, 100])
    def test_a_difference_stands_in_one_line(self, width):
        runs = [result(p, seed, 0.5) for p in ("goodput", "edf") for seed in (1, 2, 3)]
        _, _, table = printed(runs, width).partition("goodput less edf")
        (found,) = differences(study(runs), "goodput", "edf")
        assert re.search(r" difference +seeds +\n", table)
        assert points(found.estimate) in table
        assert max(map(len, table.splitlines())) <= width

    def test_half_a_terminal_has_whole_figures(self):
        """What does not fit is left out; a figure without its last digits is another one."""
        runs = sweep("goodput", "edf")
        wide, narrow = printed(runs, 80).split(), printed(runs, 50).split()
        figures = [word for word in narrow if word.replace(".", "").isdigit()]
        assert figures
        assert set(figures) <= set(wide)
        assert {"goodput", "time", "p99", "refused"} <= set(narrow)
        assert "cost" not in narrow

    def test_words_of_others_are_not_markup(self):
        assert "[red]x" in printed([result("[red]x")])


class TestDrawing:
    @given(st.floats(1e-6, 1e9), st.integers(1, 8))
    def test_an_axis_reaches_what_it_shows(self, high, wanted):
        axis = count_axis("", high, wanted)
        assert axis.low == 0
        assert axis.high >= high * (1 - 1e-6)
        assert 2 <= len(axis.ticks) <= wanted + 2

    @given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
    def test_ticks_are_within(self, low, span):
        for value, _ in ticks(low, low + span):
            assert low - 1e-6 * span <= value <= low + span * (1 + 1e-6)

    @pytest.mark.parametrize("policies", [1, 2, 5, 10])
    def test_marks_of_a_case_keep_off_one_another(self, policies):
        row = Dots("case", [(0, Point(0.5, 0.0))] * policies)
        drawing = ElementTree.fromstring(dot_chart("", [row], count_axis("", 1.0)))
        places = sorted(float(e.get("cy", "")) for e in drawing.iter("circle"))
        assert len(places) == policies
        assert all(b - a >= 6 for a, b in pairwise(places))

    @given(st.lists(st.floats(0, 200), max_size=16))
    def test_labels_keep_off_one_another(self, wanted):
        placed = sorted(spread(wanted, 12.5, 0.0, 200.0))
        assert all(b - a >= 12.5 - 1e-6 for a, b in pairwise(placed))
        assert all(-1e-6 <= place <= 200 + 1e-6 for place in placed)


SEEN_AS = {
    "by most": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "without green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "without blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""Linear red, green and blue as seen by people who lack a kind of cone (Machado et al., 2009)."""


def seen(colour: str, people: str) -> tuple[float, float, float]:
    """A colour in CIELAB, where the distance is how unlike two colours look."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    r, g, b = (min(1.0, max(0.0, sum(map(mul, weights, linear)))) for weights in SEEN_AS[people])
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("people", SEEN_AS)
def test_endings_have_colours_that_everybody_can_tell_apart(people, tmp_path):
    """They have no other mark; both by light and in the dark."""
    page = written([result("goodput")], tmp_path)
    themes = re.findall(
        r"--e0: #(\w+); --e1: #(\w+); --e2: #(\w+); --e3: #(\w+); --e4: #(\w+)", page
    )
    assert len(themes) == 2
    for theme in themes:
        colours = [seen(colour, people) for colour in theme]
        assert min(math.dist(a, b) for a, b in combinations(colours, 2)) > 15


def test_what_costs_next_to_nothing_has_figures_all_the_same():
    assert money(Estimate(0.0, None, 1)) == "0"
    assert money(Estimate(0.0000123, 0.0000045, 3)) == "0.0000123 ± 0.0000045"
    assert money(Estimate(3.21e-9, 4e-10, 3)) == "3.21e-09 ± 4.00e-10"


def test_nearly_all_is_not_shown_as_all():
    assert percent(Estimate(0.99964, None, 1)) == "99.96"
    assert percent(Estimate(0.99964, 0.0004, 3)) == "99.96 ± 0.0"
    assert percent(Estimate(1.0, None, 1)) == "100.0"
    assert percent(Estimate(0.0001, None, 1)) == "< 0.1"


def test_a_fleet_without_prices_has_no_costs():
    run = result("edf")
    run.cost = 0.0
    assert "cost" not in printed([run])


def test_students_t_is_that_of_the_tables():
    known = {1: 12.706, 2: 4.303, 10: 2.228, 11: 2.201, 30: 2.042, 100: 1.984}
    for freedom, value in known.items():
        mean = estimate([-1.0, *[0.0] * (freedom - 1), 1.0])
        assert mean is not None
        of_one = math.sqrt(2 / freedom / (freedom + 1))
        assert mean.half_width == pytest.approx(value * of_one, abs=0.001)


def test_a_run_in_which_nothing_came_says_nothing_of_what_is_on_time():
    some, none = result("edf"), RunResult("s", "edf", 2, 0.9)
    assert [each["on_time_share"] for each in summary([some, none])] == [
        some.on_time_share(),
        None,
    ]
    others = [result("fcfs"), RunResult("s", "fcfs", 2, 0.9)]
    (difference,) = differences(study([some, none, *others]), "edf", "fcfs")
    assert difference.estimate.count == 1


def test_what_happened_when_is_right_over_years():
    run = RunResult("s", "edf", 1, 0.9)
    for number in range(300):
        run.add(row(number * 5 * 86_400_000, 1.0))
    (timeline,) = timelines([figures(run)])
    assert timeline is not None
    assert (timeline.endings.sum(axis=0) > 0).all()


def test_a_policy_s_name_is_wrapped_between_its_parts(tmp_path):
    page = written([result("proactive_drop?inner=edf&quantile=0.9"), result("<b>")], tmp_path)
    check_page(page)
    wrapped = "proactive_<wbr>drop?<wbr>inner=<wbr>edf&amp;<wbr>quantile=<wbr>0.9"
    assert f"<h2>{wrapped} against &lt;b&gt;</h2>" in page
    assert f"<span>{wrapped}</span>" in page


def test_headings_of_charts_fit_a_phone(tmp_path):
    letter = 6.74  # the mean width of a bold one, in DejaVu Sans at 11 pixels
    run = result("edf")
    for at_ms in range(600, 10_000):
        run.add(row(at_ms, 1.0, model="a-very-long-name-of-a-model-" * 3))
    page = written([run], tmp_path)
    heads = re.findall(r'class="head"[^>]*>([^<]*)<', page)
    assert any("requests per run" in head for head in heads)
    runs = sweep("edf")
    for each in runs:
        each.scenario = "a-very-long-name-of-a-workload-" * 3
    write_chart(runs, tmp_path / "c.svg")
    drawn = list(ElementTree.parse(tmp_path / "c.svg").iter())
    (above,) = [e.text or "" for e in drawn if e.get("class") == "head"]
    assert "…" in above
    assert max(map(len, [*heads, above])) * letter <= WIDTH
    assert runs[0].scenario in [e.text for e in drawn], "whole where the pointer rests on it"


def test_a_name_that_can_not_be_encoded_takes_no_report_away(tmp_path):
    runs = [RunResult("m\udce9", "edf", 1, load) for load in (0.5, 1.0)]
    for run in runs:
        run.add(row(0, 1.0))
    write_report(runs, tmp_path / "page.html")
    write_chart(runs, tmp_path / "chart.svg")
    assert "m?" in (tmp_path / "page.html").read_text()
    assert "m?" in (tmp_path / "chart.svg").read_text()
