from __future__ import annotations

import random
import statistics
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.readers import Lines, TraceEntry, TraceError, open_trace, read_lines
from replay.readers.spread import spread_evenly

DATA = Path(__file__).parents[4] / "shared" / "data" / "traces"

few = settings(max_examples=30, deadline=None)


def read(text: str, seed: int = 0) -> list[TraceEntry]:
    return list(read_lines(Lines("trace", text.encode().splitlines(keepends=True)), seed=seed))


def real(path: str) -> Path:
    found = DATA / path
    if not found.exists():
        pytest.skip(f"the trace {path} is not on this machine")
    return found


class TestAzureLlm:
    def test_tokens_become_a_size_and_a_label(self):
        entries = read(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n"
            "2023-11-16 18:15:46.6805901,1313,142\n"
            "2023-11-16 18:16:00,4000,0\n"
        )
        assert [entry.size_bytes for entry in entries] == [1496, 5252, 16000]
        assert [entry.label for entry in entries] == ["small", "medium", "large"]
        assert [entry.tokens for entry in entries] == [(374, 44), (1313, 142), (4000, 0)]
        assert [after.at_ns - before.at_ns for before, after in pairwise(entries)] == [
            100,
            13_319_409_900,
        ]

    def test_the_form_of_2024_with_a_zone(self):
        first, second = read(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2024-05-10 00:00:00.009930+00:00,2162,5\n"
            "2024-05-10T02:00:00.009931+02:00,2399,6\n"
        )
        assert second.at_ns - first.at_ns == 1000

    def test_the_real_one(self):
        entries = list(open_trace(real("azure_llm_2023/AzureLLMInferenceTrace_conv.csv")))
        gaps = [after.at_ns - before.at_ns for before, after in pairwise(entries)]
        assert len(entries) == 19_366
        assert entries[0].at_ns == 0
        assert round(entries[-1].at_ns / 1e9) == 3502
        assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(1.09, abs=0.005)


class TestAzureFunctions:
    TEXT = (
        "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n"
        "o,a,f,http,2,0,1\n"
        "o,a,g,timer,1,0,0\n"
        "o,a,h,,0,0,4\n"
    )

    def test_calls_are_in_their_minutes_and_in_order(self):
        entries = read(self.TEXT)
        minutes = [(entry.at_ns // 60_000_000_000, entry.source) for entry in entries]
        assert Counter(minutes) == {
            (0, "o/a/f"): 2,
            (0, "o/a/g"): 1,
            (2, "o/a/f"): 1,
            (2, "o/a/h"): 4,
        }
        assert all(one.at_ns <= other.at_ns for one, other in pairwise(entries))

    def test_the_trigger_is_the_label(self):
        labels = {entry.source: entry.label for entry in read(self.TEXT)}
        assert labels == {"o/a/f": "http", "o/a/g": "timer", "o/a/h": None}

    def test_quotes_about_names_and_counts_are_no_part_of_them(self):
        quoted = self.TEXT.replace("o,a,f,http,2", '"o","a","f","http","2"')
        assert read(quoted) == read(self.TEXT)

    def test_the_seed_decides(self):
        assert read(self.TEXT, 1) == read(self.TEXT, 1)
        assert read(self.TEXT, 1) != read(self.TEXT, 2)

    def test_the_real_sample(self):
        entries = open_trace(real("azure_functions_2019/100_inv.csv"), slice_s=(0, 600))
        counts = Counter(entry.at_ns // 60_000_000_000 for entry in entries)
        assert [counts[minute] for minute in range(10)] == self.sums(
            real("azure_functions_2019/100_inv.csv")
        )

    def sums(self, path: Path) -> list[int]:
        rows = [line.split(",")[3:13] for line in path.read_text().splitlines()[1:]]
        return [sum(map(int, column)) for column in zip(*rows, strict=True)]


class TestRates:
    @few
    @given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.integers(0, 1000))
    def test_every_second_has_its_share(self, rates, seed):
        text = "".join(f"{rate!r}\n" for rate in rates)
        counts = Counter(entry.at_ns // 1_000_000_000 for entry in read(text, seed))
        due = sent = 0.0
        for second, rate in enumerate(rates):
            due += rate
            sent += counts[second]
            # Fractions are carried on, never dropped.
            assert abs(due - sent) < 1 + 1e-6

    def test_whole_rates_are_exact(self):
        counts = Counter(entry.at_ns // 1_000_000_000 for entry in read("3\n0\n5\n"))
        assert counts == {0: 3, 2: 5}
        assert [entry.at_ns // 10**9 for entry in read("\n1\n1\n\n")] == [0, 1]

    def test_a_huge_rate_is_not_held(self):
        lines = Lines("trace", [b"900000000\n"])
        assert len(list(islice(read_lines(lines), 100))) == 100


class TestTimestamps:
    def test_dates_are_counted_from_the_first(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text(
            "2023-11-16 18:15:46.6805900\n\n2023-11-16T19:15:46.6805901+01:00\n"
            "2023-11-16T19:15:47,5+0100\n"
            # as Java writes a time at second 0
            "2023-11-16T19:16+01:00\n2023-11-16 18:17\n"
        )
        assert [entry.at_ns for entry in open_trace(path)] == [
            *(0, 100, 819_410_000),
            *(13_319_410_000, 73_319_410_000),
        ]

    @pytest.mark.parametrize(
        "zoned",
        [
            "2023-11-16 18:15:46 UTC",  # as BigQuery writes it
            "2023-11-16 18:15:46.0+00",  # PostgreSQL
            "2023-11-16 13:15:46-05",
            "2023-11-16 20:15:46 +0200",  # git
            "2023-11-16 23:45:46 +05:30",
        ],
    )
    def test_a_zone_may_be_written_as_databases_do(self, zoned):
        assert read(f"{zoned}\n") == read("2023-11-16T18:15:46Z\n")

    @pytest.mark.parametrize(
        ("unit", "times"),
        [
            ("s", ["1700000000.5", "1700000000.500001", "1700000002"]),
            ("ms", ["1700000000500", "1700000000500.001", "1700000002000"]),
            ("us", ["1700000000500000", "1700000000500001.0", "1700000002000000"]),
            ("ns", ["1700000000500000000", "1700000000500001000", "1700000002000000000"]),
            ("s", ["0", "0.000001", "1.5"]),
        ],
    )
    def test_numbers_of_a_unit_are_exact(self, tmp_path, unit, times):
        for head in ("", f"timestamp_{unit}\n", f"arrival [{unit.upper()}]\n", "t\n"):
            path = tmp_path / "t.csv"
            path.write_text(head + "\n".join(times) + "\n")
            found = [entry.at_ns for entry in open_trace(path, f"timestamps-{unit}")]
            assert found == [0, 1_000, 1_500_000_000]
            if unit in head.lower() and head != "t\n":
                assert list(open_trace(path)) == list(open_trace(path, f"timestamps-{unit}"))

    @pytest.mark.parametrize(
        ("format", "text", "told"),
        [
            (
                "timestamps",
                "0.5\n",
                "trace:1: the time is '0.5', a number without a unit; expected",
            ),
            ("timestamps", "time\n0.5\n", "trace:2: the time is '0.5', a number without a unit"),
            (
                "timestamps",
                "time\nnoon\n",
                "trace:2: the time is 'noon'; expected one like 2023-11",
            ),
            ("timestamps", "2023-11-16 18:15:46\n7\n", "trace:2: the time is '7'; expected one"),
            ("timestamps", "2023-13-16 18:15:46\n", "trace:1: the time is not a valid time (month"),
            ("timestamps-s", "2023-11-16 18:15:46\n", "expected seconds from 0"),
            ("timestamps-s", "0.5\n1,5\n", "trace:2: the time is '1,5'; expected seconds from 0"),
            ("timestamps-ms", "0\n-5\n", "trace:2: the time is '-5'; expected milliseconds from"),
            ("timestamps-ms", "-5\n0\n", "trace:1: the time is '-5'; expected milliseconds from"),
            ("timestamps-s", ".5\n0.7\n", "trace:1: the time is '.5'; expected seconds from 0"),
            ("timestamps-s", "nan\n0.7\n", "trace:1: the time is 'nan'; expected seconds from 0"),
            ("timestamps-ms", "at_s\n5\n", "trace:1: 'at_s' above times that are said to be in ms"),
            ("timestamps-s", "a_s,b\n5,6\n", "trace:1: several columns, 'a_s,b'; expected one"),
            ("timestamps-s", "9999999999999\n", "expected one within 31,000 years"),
            ("rates", "1700000000.5\n", "at most 1e+09 per second (if these are times, give"),
            ("rates", "2\n\n3\n", "trace:3: a blank line before it; expected a rate for each"),
            (
                "timestamps",
                "2023-11-16 18:15:61\n",
                "trace:1: the time is not a valid time (second 61)",
            ),
        ],
    )
    def test_a_line_that_is_no_time_is_named(self, format, text, told):
        lines = Lines("trace", text.encode().splitlines(keepends=True))
        with pytest.raises(TraceError) as caught:
            list(read_lines(lines, format))
        assert told in str(caught.value)


class TestSpread:
    @few
    @given(st.integers(0, 300), st.integers(1, 10**10), st.integers(0, 1000))
    def test_it_is_in_order_and_in_its_interval(self, count, width, seed):
        times = list(spread_evenly(count, 77, width, random.Random(seed)))
        assert len(times) == count
        assert times == sorted(times)
        assert all(77 <= at_ns < 77 + width for at_ns in times)

    def test_it_is_uniform(self):
        times = list(spread_evenly(20_000, 0, 1_000_000, random.Random(1)))
        assert statistics.fmean(times) == pytest.approx(500_000, rel=0.02)
        assert statistics.pstdev(times) == pytest.approx(1_000_000 / 12**0.5, rel=0.02)


class TestDeadlines:
    def test_budgets_and_labels(self):
        first, second = read("arrival_ms,qos,deadline_ms\n0.0000015,gold,50\n1e3,,2.5\n")
        assert first == TraceEntry(1, 50_000_000, label="gold")
        assert second == TraceEntry(1_000_000_000, 2_500_000)

    def test_requests_that_are_all_alike_need_no_label(self):
        assert read("deadline_ms,arrival_ms\n50,1\n") == [TraceEntry(1_000_000, 50_000_000)]

    def test_a_column_may_name_models(self):
        assert read("arrival_ms,Model,deadline_ms\n1, faces ,2\n") == [
            TraceEntry(1_000_000, 2_000_000, model="faces")
        ]
        assert read("model,arrival_ms,deadline_ms,qos\nfaces,1,2,gold\n") == [
            TraceEntry(1_000_000, 2_000_000, label="gold", model="faces")
        ]
        with pytest.raises(TraceError, match=r":3: model is empty; expected the name of a model"):
            read("arrival_ms,model,deadline_ms\n1,faces,2\n2,,2\n")

    def test_quotes_about_cells_are_no_part_of_them(self):
        plain = "arrival_ms,qos,deadline_ms\n12.5,gold,50\n13,,1.5\n"
        lines = ([f'"{cell}"' for cell in line.split(",")] for line in plain.splitlines())
        assert read("\r\n".join(map(",".join, lines))) == read(plain)

    def test_times_since_1970_lose_nothing(self):
        (entry,) = read("arrival_ms,qos,deadline_ms\n1700000000123.456789,a,50\n")
        assert entry.at_ns == 1700000000123456789


class TestMooncake:
    def test_lengths_and_times(self):
        (entry,) = read(
            '{"timestamp": 105, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        )
        assert entry == TraceEntry(105_000_000, size_bytes=27032, label="large", tokens=(6758, 500))
