from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import pickle
import threading
import tracemalloc
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.readers import FORMATS, Lines, TraceError, open_trace, read_lines
from replay.readers.lines import LONGEST_LINE

HEADER = "arrival_ms,qos,deadline_ms\n"
LLM = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FUNCTIONS = "HashOwner,HashApp,HashFunction,Trigger,1,2\n"

few = settings(max_examples=30, deadline=None)


@pytest.fixture
def trace(tmp_path):
    def write(content: str | bytes, name: str = "trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def plain(times_ms) -> str:
    return HEADER + "".join(f"{at_ms},gold,50\n" for at_ms in times_ms)


def read_times(path, **options) -> list[int]:
    return [entry.at_ns for entry in open_trace(path, **options)]


class TestRecognition:
    @pytest.mark.parametrize(
        ("content", "name"),
        [
            (HEADER + "0,gold,50\n", "deadlines"),
            (LLM + "2023-11-16 18:15:46.6805900,374,44\n", "azure-llm"),
            (FUNCTIONS + "a,b,c,http,1,0\n", "azure-functions"),
            ("HashFunction,HashApp,HashOwner,minute_1\na,b,c,1\n", "azure-functions"),
            ('{"timestamp": 0, "input_length": 1, "output_length": 2}\n', "mooncake"),
            ("3\n2\n", "rates"),
            ("2023-11-16 18:15:46.6805900\n2023-11-16T18:15:47Z\n", "timestamps"),
            ('"2023-11-16 18:15:46.6805900"\n', "timestamps"),
            ("2023-11-16 18:15\n", "timestamps"),
            ("Timestamp\n2023-11-16 18:15:46\n", "timestamps"),
            ("timestamp_ms\n0.5\n", "timestamps"),
            ("arrival_ms\n0.5\n", "timestamps"),
            ("time (s)\n0.5\n", "timestamps"),
        ],
    )
    def test_the_first_line_tells(self, trace, content, name):
        path = trace(content)
        assert list(open_trace(path)) == list(open_trace(path, name))

    def test_an_unknown_first_line_names_the_known_formats(self, trace):
        with pytest.raises(TraceError, match=r"trace\.csv:1: .*'a,b'") as caught:
            list(open_trace(trace("a,b\n")))
        assert all(name in str(caught.value) for name in FORMATS)

    @pytest.mark.parametrize("header", ["rate_per_s", "requests_1s", "qps (1s)"])
    def test_numbers_below_a_rate_are_no_times(self, trace, header):
        with pytest.raises(TraceError, match=r"\n  rates: requests per second"):
            list(open_trace(trace(f"{header}\n10\n20\n")))

    @pytest.mark.parametrize(("mark", "told"), [(";", "';'"), ("\t", r"'\\t'"), ("|", r"'\|'")])
    def test_other_marks_between_columns_are_told(self, trace, mark, told):
        file = trace("arrival_ms,qos,deadline_ms\n1,a,40\n".replace(",", mark))
        said = (
            rf":1: columns of deadlines with {told} between them; expected commas: arrival_ms,qos"
        )
        with pytest.raises(TraceError, match=said):
            next(open_trace(file))

    def test_a_name_overrides(self, trace):
        with pytest.raises(TraceError, match="no column TIMESTAMP"):
            list(open_trace(trace(plain([0])), "azure-llm"))

    def test_an_unknown_name_is_an_error_at_once(self, trace):
        with pytest.raises(ValueError, match="unknown trace format 'csv'; known are azure-llm,"):
            open_trace(trace(plain([0])), "csv")


BAD = {
    "empty": ("", None, "empty"),
    "blank": ("\n \n", None, "empty"),
    "header alone": (HEADER, None, "no arrivals"),
    "binary": (b"\x89PNG\r\n\x1a\n\0\0", 1, "binary data"),
    "binary later": (HEADER.encode() + b"0,\xff\xfe,50\n", 2, "binary data.*UTF-8"),
    "wrong columns": ("arrival_ms,qos,deadline\n0,gold,50\n", 1, "no column deadline_ms"),
    "row too short": (HEADER + "0,gold,50\n1,gold\n", 3, "2 columns.*expected 3"),
    "row too long": (HEADER + "0,gold,50,9\n", 2, "4 columns.*expected 3"),
    "cut short": (HEADER + "0,gold,50\n1,go", 3, "cut short"),
    "unsorted": (plain([5, 9, 8]), 4, "0.001 s before.*sort window"),
    "negative time": (plain([-5]), 2, "arrival_ms is '-5'.*from 0"),
    "no number": (plain(["soon"]), 2, "arrival_ms is 'soon'"),
    "nan": (plain(["nan"]), 2, "arrival_ms is 'nan'"),
    "too large": (plain(["1e16"]), 2, r"arrival_ms is '1e16'; expected .* from 0 to 1e\+15"),
    "too far": (plain([0, 10**14]), 3, "an arrival 146 years after the start or later"),
    "due too late": (f"{HEADER}0,gold,{10**14}\n", 2, "a deadline 146 years after the start"),
    "no budget": (HEADER + "0,gold,0\n", 2, "deadline_ms is 0"),
    "endless line": (HEADER + "9" * (LONGEST_LINE + 9), 2, "longer line"),
    "timestamp": (LLM + "yesterday,1,2\n", 2, "TIMESTAMP is 'yesterday'.*2023-11-16"),
    "impossible time": (LLM + "2023-13-16 18:15:46,1,2\n", 2, "TIMESTAMP is not a valid time"),
    "negative tokens": (LLM + "2023-11-16 18:15:46,-1,2\n", 2, "ContextTokens is '-1'"),
    "part of a token": (LLM + "2023-11-16 18:15:46,1.5,2\n", 2, "whole number"),
    "back in time": (
        LLM + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n",
        3,
        "1 s before",
    ),
    "no JSON": ('{"timestamp": 0,\n', 1, "no JSON"),
    "no object": ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[]\n', 2, "no JSON ob"),
    "no length": ('{"timestamp": 0, "input_length": 1}\n', 1, "no 'output_length'"),
    "large": ('{"timestamp": 1e16, "input_length": 1, "output_length": 1}\n', 1, r"to 1e\+15"),
    "true": ('{"timestamp": true, "input_length": 1, "output_length": 1}\n', 1, "is 'true'"),
    "NaN": ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', 1, "is 'NaN'"),
    "negative rate": ("3\n-1\n", 2, "the rate is '-1'"),
    "rate of infinity": ("3\ninf\n", 2, "the rate is 'inf'"),
    "absurd rate": ("3\n1e12\n", 2, "at most"),
    "only zeros": ("0\n0\n", None, "no arrivals"),
    "minutes": ("HashFunction,1,3\nf,1,1\n", 1, "the minutes 1,2"),
    "no minutes": ("HashFunction\nf\n", 1, "the minutes 1,2"),
    "calls": (FUNCTIONS + "a,b,c,http,1,x\n", 2, "the count of minute 2 is 'x'"),
    "absurd calls": (FUNCTIONS + "a,b,c,http,1,99999999999\n", 2, "calls in minute 2"),
    "functions cut short": (FUNCTIONS + "a,b,c,http,1,1\na,b,c,ht", 3, "cut short"),
}


class TestErrors:
    @pytest.mark.parametrize(("content", "line", "said"), BAD.values(), ids=BAD)
    def test_a_bad_file_is_named_with_its_line(self, trace, content, line, said):
        path = trace(content)
        with pytest.raises(TraceError, match=f"(?s){said}") as caught:
            list(open_trace(path))
        assert caught.value.line == line
        place = str(path) if line is None else f"{path}:{line}"
        assert str(caught.value).startswith(f"{place}: ")
        assert "; expected " in str(caught.value)

    @few
    @given(
        st.sampled_from([HEADER, LLM, FUNCTIONS, '{"timestamp": ', "3\n", ""]),
        st.binary(max_size=200) | st.text('0123456789,.-e:{}[]"\n ', max_size=200),
        st.sampled_from([None, *FORMATS]),
    )
    def test_garbage_is_a_trace_error_and_nothing_else(self, head, garbage, name):
        content = head.encode() + (garbage if isinstance(garbage, bytes) else garbage.encode())
        lines = Lines("garbage", content.splitlines(keepends=True))
        with contextlib.suppress(TraceError):
            # A rate may be high and right.
            list(islice(read_lines(lines, name), 1000))

    def test_a_date_before_all_dates_is_named_with_its_line(self, trace):
        path = trace("TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01 00:00:00+14:00,1,1\n")
        with pytest.raises(TraceError, match="TIMESTAMP is not a valid time") as caught:
            list(open_trace(path))
        assert caught.value.line == 2

    def test_good_entries_come_before_the_error(self, trace):
        entries = open_trace(trace(plain([1, 2, "x"])))
        assert [entry.at_ns for entry in islice(entries, 2)] == [0, 1_000_000]
        with pytest.raises(TraceError, match=":4:"):
            next(entries)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(TraceError, match=r"none\.csv: can't be opened \(No such file"):
            list(open_trace(tmp_path / "none.csv"))

    def test_a_name_that_no_file_can_have(self, tmp_path):
        with pytest.raises(TraceError, match=r"can't be opened \(embedded null byte\)"):
            list(open_trace(tmp_path / "a\0b"))

    def test_a_folder(self, tmp_path):
        with pytest.raises(TraceError, match="Is a directory"):
            list(open_trace(tmp_path))

    def test_it_survives_pickling(self):
        error = TraceError("file", 3, "this", "that")
        assert str(pickle.loads(pickle.dumps(error))) == "file:3: this; expected that"

    @pytest.mark.parametrize(
        "options",
        [
            {"speed": 0},
            {"speed": float("nan")},
            {"rate_scale": -1},
            {"rate_scale": 1e300},
            {"sort_window_s": -1},
            {"slice_s": (5, 5)},
            {"slice_s": (-1, None)},
            {"slice_s": (0, 1e300)},
            {"slice_s": (1e300, None)},
        ],
    )
    def test_an_option_out_of_range_is_an_error_at_once(self, tmp_path, options):
        with pytest.raises(ValueError, match=r", not "):
            open_trace(tmp_path / "none.csv", **options)


class TestTolerance:
    def test_gzip_by_its_bytes(self, trace):
        content = plain(range(5))
        zipped = gzip.compress(content.encode())
        assert read_times(trace(zipped, "named.csv")) == read_times(trace(content, "other"))
        assert read_times(trace(zipped, "named.csv.gz")) == read_times(trace(content, "other"))

    def test_truncated_gzip(self, trace):
        zipped = gzip.compress(plain(range(5000)).encode())
        cut = trace(zipped[:-20], "t.gz")
        with pytest.raises(TraceError, match=r"\.gz:\d+: the compressed data end too early"):
            read_times(cut)
        assert read_times(cut, slice_s=(0, 0.5)) == read_times(
            trace(zipped, "whole.gz"), slice_s=(0, 0.5)
        )

    def test_damaged_gzip(self, trace):
        zipped = bytearray(gzip.compress(plain(range(5000)).encode()))
        zipped[40:60] = bytes(20)
        with pytest.raises(TraceError, match=r"gzip|binary|columns|arrival_ms"):
            read_times(trace(bytes(zipped), "t.gz"))

    def test_a_wrong_checksum(self, trace):
        zipped = bytearray(gzip.compress(plain(range(5)).encode()))
        zipped[-6] ^= 1
        with pytest.raises(TraceError, match="damaged gzip data"):
            read_times(trace(bytes(zipped), "t.gz"))

    def test_named_gzip_and_is_none(self, trace):
        with pytest.raises(TraceError, match="not gzip"):
            read_times(trace(plain([1]), "t.gz"))

    @pytest.mark.parametrize(
        "mend",
        [
            lambda text: text.removesuffix("\n"),
            lambda text: text.replace("\n", "\r\n"),
            lambda text: "\ufeff" + text,
            lambda text: "\n" + text + "\n\n",
            lambda text: text.replace("arrival_ms", " Arrival_MS "),
        ],
    )
    def test_what_editors_and_exports_do_to_text(self, trace, mend):
        assert read_times(trace(mend(plain([3, 5])))) == [0, 2_000_000]

    @pytest.mark.parametrize("window_s", [0, 5])
    def test_clocks_that_were_not_set_are_counted_from_the_first_too(self, trace, window_s):
        times = "1900-01-01 00:00:00", "1900-01-01 00:00:01.5"
        rows = "".join(f"{time},1,1\n" for time in times)
        path = trace(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
        found = [entry.at_ns for entry in open_trace(path, sort_window_s=window_s)]
        assert found == [0, 1_500_000_000]

    def test_a_window_below_a_nanosecond_is_none(self, trace):
        assert read_times(trace(plain([3, 5])), sort_window_s=1e-10) == [0, 2_000_000]

    def test_commas_in_quotes_are_part_of_a_cell(self, trace):
        path = trace('"arrival_ms", "qos","from, to",deadline_ms\n"7","a ""b"", c","x,y", "50"\n')
        (entry,) = open_trace(path)
        assert (entry.budget_ns, entry.label) == (50_000_000, 'a "b", c')

    def test_a_column_that_is_there_twice_is_not_chosen_from(self, trace):
        path = trace("arrival_ms,qos,deadline_ms,Deadline_ms\n0,a,40,4000\n")
        with pytest.raises(TraceError, match=r":1: two columns deadline_ms in .*; expected one"):
            read_times(path)

    def test_columns_in_any_order_among_others(self, trace):
        path = trace("x,deadline_ms,arrival_ms,qos\n9,50,7,gold\n")
        (entry,) = open_trace(path)
        assert (entry.budget_ns, entry.label) == (50_000_000, "gold")


class TestStreaming:
    @pytest.mark.parametrize(
        ("name", "head", "line"),
        [
            ("deadlines", HEADER, "{0},gold,50\n"),
            ("rates", "", "3\n"),
            ("azure-llm", LLM, "2023-11-16 18:15:46.6805900,374,44\n"),
            ("mooncake", "", '{{"timestamp": {0}, "input_length": 1, "output_length": 2}}\n'),
        ],
    )
    def test_a_trace_without_end_gives_its_first_entries(self, name, head, line):
        endless = (line.format(at).encode() for at in itertools.count())
        lines = Lines("endless", itertools.chain([head.encode()] if head else [], endless))
        assert len(list(islice(read_lines(lines), 500))) == 500
        assert lines.number <= 502

    def test_a_pipe_is_read_as_it_comes(self, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)

        def fill() -> None:
            # Until the reader goes away.
            with contextlib.suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as out:
                out.write(HEADER.encode())
                for at_ms in itertools.count():
                    out.write(b"%d,gold,50\n" % at_ms)

        writer = threading.Thread(target=fill)
        writer.start()
        entries = open_trace(pipe)
        assert [entry.at_ns for entry in islice(entries, 1000)][-1] == 999_000_000
        entries.close()  # type: ignore[attr-defined]
        writer.join()

    def test_memory_is_flat(self):
        def peak(count: int) -> int:
            rows = (b"%d,gold,50\n" % at_ms for at_ms in range(count))
            lines = Lines("long", itertools.chain([HEADER.encode()], rows))
            tracemalloc.start()
            for _ in read_lines(lines, "deadlines"):
                pass
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return most

        assert peak(20_000) < peak(500) + 20_000

    def test_a_slice_reads_no_further(self, trace):
        path = trace(plain([0, 1000, 2000, "garbage"]))
        assert read_times(path, slice_s=(0.5, 1.5)) == [500_000_000]


TIMES = st.lists(st.integers(0, 100_000), min_size=1, max_size=60)


def entries_of(times_ms, tmp_path_factory, **options):
    path = tmp_path_factory.mktemp("trace") / "t.csv"
    path.write_text(plain(times_ms))
    return list(open_trace(path, **options))


class TestTiming:
    @few
    @given(TIMES, st.floats(0.01, 100))
    def test_speed_divides_times_and_leaves_budgets(self, tmp_path_factory, times, speed):
        times.sort()
        for slow, fast in zip(
            entries_of(times, tmp_path_factory),
            entries_of(times, tmp_path_factory, speed=speed),
            strict=True,
        ):
            assert fast.at_ns == pytest.approx(slow.at_ns / speed, abs=1.01)
            assert fast.budget_ns == slow.budget_ns

    @few
    @given(TIMES, st.integers(0, 20_000))
    def test_a_window_sorts_what_fits_it_and_refuses_the_rest(self, tmp_path_factory, times, ms):
        back = max((max(times[: at + 1]) - time for at, time in enumerate(times)), default=0)
        options = {"sort_window_s": ms / 1e3}
        if back > ms:
            with pytest.raises(TraceError, match="before an earlier line's"):
                entries_of(times, tmp_path_factory, **options)
        else:
            entries = entries_of(times, tmp_path_factory, **options)
            assert [entry.at_ns for entry in entries] == [
                (time - min(times)) * 1_000_000 for time in sorted(times)
            ]

    @few
    @given(TIMES, st.floats(0, 50), st.floats(0.1, 60))
    def test_a_slice_is_what_lies_in_it(self, tmp_path_factory, times, start_s, length_s):
        times.sort()
        start_ns, end_ns = round(start_s * 1e9), round((start_s + length_s) * 1e9)
        wanted = [
            (time - times[0]) * 1_000_000 - start_ns
            for time in times
            if start_ns <= (time - times[0]) * 1_000_000 < end_ns
        ]
        cut = (start_s, start_s + length_s)
        if wanted:
            entries = entries_of(times, tmp_path_factory, slice_s=cut)
            assert [entry.at_ns for entry in entries] == wanted
        else:
            with pytest.raises(TraceError, match="no arrivals from"):
                entries_of(times, tmp_path_factory, slice_s=cut)

    @few
    @given(st.floats(0.1, 5), st.integers(0, 1000))
    def test_scaling_keeps_order_and_span_and_multiplies(self, tmp_path_factory, factor, seed):
        times = list(range(0, 20_000, 10))
        options = {"rate_scale": factor, "seed": seed}
        entries = entries_of(times, tmp_path_factory, **options)
        share = factor % 1
        errors = (2000 * share * (1 - share)) ** 0.5
        assert len(entries) == pytest.approx(2000 * factor, abs=6 * errors + 1)
        assert all(one.at_ns <= other.at_ns for one, other in pairwise(entries))
        assert entries[-1].at_ns <= 19_990_000_000
        assert entries_of(times, tmp_path_factory, **options) == entries

    def test_nothing_that_is_left_is_told_as_such(self, tmp_path_factory):
        with pytest.raises(TraceError, match=r"no arrivals that a rate scale of 0\.001 leaves"):
            entries_of(range(5), tmp_path_factory, rate_scale=0.001, seed=1)

    def test_a_whole_factor_is_exact(self, tmp_path_factory):
        assert len(entries_of(range(50), tmp_path_factory, rate_scale=3)) == 150
