from __future__ import annotations

import gzip
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.links import LOST, Capacity, Delay, LinkTrace, join, open_link, open_links
from replay.readers import TraceError

DATA = Path(__file__).parents[4] / "shared" / "data" / "network"
MS = 1_000_000

few = settings(max_examples=60, deadline=None)


@pytest.fixture
def opened(tmp_path):
    def write(text: str, format: str | None = None, **options) -> LinkTrace:
        path = tmp_path / "link.txt"
        path.write_text(text)
        return open_link(path, format, **options)

    return write


def real(path: str) -> Path:
    found = DATA / path
    if not found.exists():
        pytest.skip(f"the recording {path} is not on this machine")
    return found


def delay_of(link: LinkTrace) -> Delay:
    assert link.delay is not None
    return link.delay


def capacity_of(link: LinkTrace) -> Capacity:
    assert link.capacity is not None
    return link.capacity


def reply(sequence: int, rtt_ms: float) -> str:
    return f"64 bytes from 192.0.2.1: icmp_seq={sequence} ttl=64 time={rtt_ms} ms\n"


BEGIN = "PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.\n"


class TestPing:
    def test_round_trips_follow_each_other_and_repeat(self, opened):
        link = opened(BEGIN + reply(1, 10) + reply(2, 20.5) + reply(3, 30))
        assert [link.rtt_ns(at * 10**9) for at in range(4)] == [
            10 * MS,
            20_500_000,
            30 * MS,
            10 * MS,
        ]
        assert link.rtt_ns(1_999_999_999) == 20_500_000
        assert link.loss == 0
        assert link.transfer_ns(0, 10**9) == 0

    def test_what_did_not_come_back_is_lost(self, opened):
        link = opened(
            BEGIN
            + reply(2, 10)
            + "no answer yet for icmp_seq=3\n"
            + "From 192.0.2.9 icmp_seq=4 Destination Host Unreachable\n"
            + reply(5, 20)
            + "\n--- 192.0.2.1 ping statistics ---\n"
            + "6 packets transmitted, 2 received, +1 errors, 66% packet loss, time 2500ms\n"
        )
        lost = [link.lost(at * delay_of(link).interval_ns) for at in range(6)]
        assert lost == [True, False, True, True, False, True]
        assert link.loss == pytest.approx(4 / 6)
        # While nothing comes back, the last round trip holds; before the first, the first.
        rtts = [link.rtt_ns(at * delay_of(link).interval_ns) // MS for at in range(6)]
        assert rtts == [10, 10, 10, 10, 20, 20]

    def test_the_summary_tells_the_interval(self, opened):
        text = BEGIN + reply(1, 10) + reply(2, 10) + "2 packets transmitted, 2 received, time 200ms"
        assert delay_of(opened(text)).interval_ns == 200 * MS
        assert delay_of(opened(text, interval_s=0.5)).interval_ns == 500 * MS

    def test_late_and_double_replies(self, opened):
        link = opened(BEGIN + reply(1, 1) + reply(3, 3) + reply(2, 2) + reply(3, 9) + reply(4, 4))
        assert [link.rtt_ns(at * 10**9) // MS for at in range(4)] == [1, 2, 3, 4]
        assert link.loss == 0

    def test_numbers_that_go_round(self, opened):
        link = opened(reply(65534, 1) + reply(65535, 2) + reply(0, 3) + reply(2, 5))
        assert len(delay_of(link)) == 5
        assert link.loss == pytest.approx(0.2)

    def test_runs_in_one_log_follow_each_other(self, opened):
        def run(*replies: str, sent: int, took_ms: int) -> str:
            return BEGIN + "".join(replies) + f"{sent} packets transmitted, time {took_ms}ms\n"

        first = run(reply(1, 10), reply(3, 30), sent=4, took_ms=300)
        second = run(reply(1, 50), reply(2, 60), sent=2, took_ms=110)
        link = opened(first + second)
        assert delay_of(link).interval_ns == 102_500_000
        times = [at * 102_500_000 for at in range(6)]
        assert [link.rtt_ns(at) // MS for at in times] == [10, 10, 30, 30, 50, 60]
        assert [link.lost(at) for at in times] == [False, True, False, True, False, False]
        with pytest.raises(TraceError, match=r":8: a run of ping with 1000 ms .* expected 100 ms"):
            opened(first + run(reply(1, 50), reply(2, 60), sent=2, took_ms=1000))

    def test_a_log_cut_at_its_start_has_no_losses_there(self, opened):
        assert opened(reply(4000, 1) + reply(4001, 2)).loss == 0

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "empty"),
            (BEGIN, "no reply of ping"),
            (BEGIN + reply(1, 10)[:-12], r"link\.txt:2: a reply .*cut short"),
            (BEGIN + reply(1, 10) + "99999999999 packets transmitted\n", r":3: .*probes"),
            ("hello\n", r":1: a first line 'hello'; expected the output of ping"),
        ],
    )
    def test_errors_name_the_line(self, opened, text, said):
        with pytest.raises(TraceError, match=said):
            opened(text)

    @pytest.mark.parametrize(
        ("name", "wanted"), [("MEC", (14.4, 17.2, 18.7)), ("cloud", (15.7, 78.4, 92.0))]
    )
    def test_the_real_logs(self, name, wanted):
        delay = delay_of(open_link(real(f"det6g/ping-{name}-cmWave.txt")))
        found = [delay.quantile_ns(quantile) / MS for quantile in (0.5, 0.95, 0.99)]
        assert found == pytest.approx(wanted, abs=0.06)
        assert delay.loss == 0
        assert delay.interval_ns == pytest.approx(1e9, rel=0.03)


class TestMahimahi:
    def test_bytes_flow_through_the_ms_that_ends_with_their_line(self, opened):
        link = opened("2\n2\n5\n", "mahimahi")
        assert capacity_of(link).period_ns == 5 * MS
        # Two packets from 1 to 2 ms, one from 4 to 5, and so on from 5.
        assert link.transfer_ns(0, 1500) == 1_500_000
        assert link.transfer_ns(0, 3000) == 2 * MS
        assert link.transfer_ns(0, 4500) == 5 * MS
        assert link.transfer_ns(0, 6000) == 6_500_000
        assert link.transfer_ns(2 * MS, 1500) == 3 * MS
        assert link.transfer_ns(7 * MS, 1500) == 3 * MS

    def test_time_0_is_the_end_of_the_round_before(self, opened):
        link = opened("0\n3\n", "mahimahi")
        assert capacity_of(link).period_bytes == 3000
        assert link.transfer_ns(0, 3000) == 3 * MS

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "empty"),
            ("0\n0\n", "no time above 0"),
            ("5\n4\n", ":2: 4 ms comes after 5 ms"),
            ("5\n5.5\n", ":2: the time is '5.5'"),
            ("5\n-6\n", ":2: the time is '-6'"),
        ],
    )
    def test_errors_name_the_line(self, opened, text, said):
        with pytest.raises(TraceError, match=said):
            opened(text, "mahimahi")

    @pytest.mark.parametrize("name", ["up", "down"])
    def test_the_real_files(self, name):
        path = real(f"mahimahi/Verizon-LTE-short.{name}")
        times = [int(line) for line in path.read_text().split()]
        link = open_link(path)
        assert capacity_of(link).period_ns == times[-1] * MS == 140_000 * MS
        assert capacity_of(link).period_bytes == len(times) * 1500
        started = [ms for ms in times if ms > 0]
        for packets in (1, 10, 1000):
            last_ns = started[packets - 1] * MS
            assert last_ns - MS < link.transfer_ns(0, packets * 1500) <= last_ns


class TestMbps:
    def test_a_bandwidth_holds_for_its_interval(self, opened):
        link = opened("8.0\n0\n4\n")
        assert link.transfer_ns(0, 500_000) == 500 * MS
        assert link.transfer_ns(0, 1_500_000) == 3000 * MS
        assert link.transfer_ns(0, 1_500_001) == 3_000_001_000
        assert capacity_of(link).mean_bps == pytest.approx(4e6)
        assert opened("8.0\n", interval_s=5).transfer_ns(0, 5_000_000) == 5000 * MS

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("0\n0\n", "carries nothing"),
            ("1\nfast\n", ":2: the bandwidth is 'fast'"),
            ("1\n-2\n", ":2: the bandwidth is '-2'"),
            ("1\n1e30\n", ":2: the bandwidth is '1e30'"),
        ],
    )
    def test_errors_name_the_line(self, opened, text, said):
        with pytest.raises(TraceError, match=said):
            opened(text, "mbps")

    def test_what_rates_have_beyond_whole_bytes_is_carried_on(self, opened):
        capacity = capacity_of(opened("0.01\n0.02\n" * 50, "mbps", interval_s=0.001))
        assert capacity.mean_bps == pytest.approx(15_000, rel=0.01)


class TestOpening:
    def test_numbers_that_may_be_both_have_to_be_named(self, opened):
        with pytest.raises(TraceError, match="expected its format to be given: mahimahi or mbps"):
            opened("10\n10\n12\n")

    def test_rising_whole_numbers_are_mahimahi(self, opened):
        text = "".join(f"{at * 2}\n" for at in range(100))
        assert capacity_of(opened(text)).period_ns == 198 * MS

    def test_a_step_back_is_of_bandwidths(self, opened):
        assert capacity_of(opened("10\n9\n")).period_ns == 2 * 10**9

    def test_gzip(self, tmp_path):
        path = tmp_path / "link.gz"
        path.write_bytes(gzip.compress(b"8.0\n"))
        assert open_link(path).transfer_ns(0, 1_000_000) == 10**9

    def test_unknown_names_and_intervals(self, opened):
        with pytest.raises(ValueError, match="known are ping, mahimahi, mbps"):
            opened("1\n", "pcap")
        with pytest.raises(ValueError, match="interval_s"):
            opened("1\n", "mbps", interval_s=0)

    def test_a_delay_and_a_capacity_make_a_link(self, opened):
        ping, rate = opened(BEGIN + reply(1, 10)), opened("8.0\n")
        both = join(ping, rate)
        assert (both.rtt_ns(0), both.transfer_ns(0, 1000)) == (10 * MS, MS)
        with pytest.raises(ValueError, match="one recording"):
            join(ping, ping)


@st.composite
def capacities(draw):
    widths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))
    sizes = draw(st.lists(st.integers(0, 40), min_size=len(widths), max_size=len(widths)))
    sizes[0] = sizes[0] or (1 if not any(sizes) else 0)
    starts = list(accumulate(widths, initial=0))
    return Capacity(starts[:-1], sizes, starts[-1])


class TestCapacity:
    @few
    @given(capacities(), st.integers(0, 500), st.integers(1, 300), st.integers(1, 300))
    def test_two_transfers_in_a_row_are_one(self, capacity, at_ns, first, second):
        one = capacity.transfer_ns(at_ns, first)
        both = one + capacity.transfer_ns(at_ns + one, second)
        # Rounding up after the first wastes what the link carries in a part of a ns.
        waste = max(capacity.period_bytes, 1)
        assert capacity.transfer_ns(at_ns, first + second) <= both
        assert both <= capacity.transfer_ns(at_ns, first + second + waste)

    @few
    @given(capacities(), st.integers(0, 500), st.integers(1, 300))
    def test_it_is_the_first_moment_at_which_enough_was_carried(self, capacity, at_ns, size):
        took = capacity.transfer_ns(at_ns, size)
        carried = [self.carried(capacity, at_ns, end) for end in (at_ns + took - 1, at_ns + took)]
        assert carried[0] < size - 1e-6 or took == 1
        assert carried[1] >= size - 1e-6

    def carried(self, capacity: Capacity, start_ns: int, end_ns: int) -> float:
        return sum(self.in_ns(capacity, at_ns) for at_ns in range(start_ns, end_ns))

    def in_ns(self, capacity: Capacity, at_ns: int) -> float:
        since_ns = at_ns % capacity.period_ns
        knots, sums = capacity._knots_ns, capacity._sums
        for piece in range(len(sums) - 1):
            if knots[piece] <= since_ns < knots[piece + 1]:
                return (sums[piece + 1] - sums[piece]) / (knots[piece + 1] - knots[piece])
        raise AssertionError(since_ns)

    @few
    @given(capacities(), st.integers(0, 500), st.integers(1, 300), st.integers(0, 5))
    def test_it_repeats(self, capacity, at_ns, size, rounds):
        later_ns = at_ns + rounds * capacity.period_ns
        assert capacity.transfer_ns(later_ns, size) == capacity.transfer_ns(at_ns, size)
        whole = size + rounds * capacity.period_bytes
        assert capacity.transfer_ns(at_ns, whole) == (
            capacity.transfer_ns(at_ns, size) + rounds * capacity.period_ns
        )

    def test_what_it_refuses(self):
        for starts, sizes, period in [([0], [0], 5), ([1], [5], 5), ([0, 5], [1, 1], 5)]:
            with pytest.raises(ValueError, match="needs"):
                Capacity(starts, sizes, period)
        with pytest.raises(ValueError, match="as many"):
            Capacity([0], [1, 2], 5)

    def test_a_delay_of_losses_alone_is_none(self):
        with pytest.raises(ValueError, match="came back"):
            Delay([LOST, LOST], 10)


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_recordings_the_format_is_that_of_the_one_that_is_not_pings(tmp_path, turned):
    ping, rates = tmp_path / "ping.txt", tmp_path / "rates.txt"
    ping.write_text(BEGIN + reply(1, 10))
    rates.write_text("8\n16\n")
    paths = (rates, ping) if turned else (ping, rates)
    for format, period_ns in (("mbps", 2 * 10**9), ("mahimahi", 16 * MS)):
        link = open_links(paths, format)
        assert (link.rtt_ns(0), capacity_of(link).period_ns) == (10 * MS, period_ns)
    with pytest.raises(ValueError, match=r"ping\.txt, .*ping\.txt: a link takes one recording"):
        open_links((ping, ping))
    for named in (None, "ping"):
        with pytest.raises(TraceError, match=r"rates\.txt: a list of numbers that may be"):
            open_links(paths, named)
