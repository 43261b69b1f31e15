"""The link emulator: real sockets through it, and its arithmetic without any."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.links import LinkEmulator, OneWay
from replay.links.one_way import SEGMENT_BYTES, Carrier
from replay.links.stream import reset
from scheduler.address import AddressError, parse_address
from tests.waiting import PATIENCE_S

MS = 1_000_000
FREE = "127.0.0.1:0"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that sends back what it gets, and ends when its caller does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def connect(link: LinkEmulator) -> Streams:
    address = parse_address(link.address)
    if address.scheme == "unix":
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


async def rtt_ns(streams: Streams, data: bytes = b"ping") -> int:
    reader, writer = streams
    began_ns = time.monotonic_ns()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return time.monotonic_ns() - began_ns


async def takes(least_ns: float, most_ns: float, measure: Callable[[], Awaitable[int]]) -> None:
    """Fails where one takes less, or of 200 none less than the most: a machine may be busy."""
    times: list[int] = []
    while len(times) < 200:
        times.append(await measure())
        assert times[-1] >= least_ns
        if times[-1] < most_ns:
            return
    pytest.fail(f"not once in less than {most_ns} ns: {times}")


async def hang_up() -> None:
    """Ends what still goes on, or Python complains of it in whatever test it finds it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)  # until transports that are closing have closed


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a test on a fresh loop of either kind."""
    make = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_it(test: Callable[[], Awaitable[None]]) -> None:
        loop = make()
        try:
            loop.run_until_complete(asyncio.wait_for(test(), PATIENCE_S))
        finally:
            loop.run_until_complete(hang_up())
            loop.close()

    return run_it


ways = st.builds(
    OneWay,
    delay_ms=st.sampled_from([0.0, 0.3, 4.0]),
    jitter_ms=st.sampled_from([0.0, 3.0]),
    mbps=st.sampled_from([None, 20.0, 300.0]),
    loss=st.sampled_from([0.0, 0.2]),
    stall_ms=st.just(2.0),
)


class TestBytes:
    # The fixture makes a loop for each example.
    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        up=ways, down=ways, sizes=st.lists(st.integers(1, 60_000), max_size=6), cut=st.booleans()
    )
    def test_they_arrive_unchanged_and_in_order(self, run, up, down, sizes, cut):
        async def test() -> None:
            async with echo() as place, LinkEmulator(FREE, place, up=up, down=down) as link:
                await asyncio.gather(*(exchange(link, sizes, seed) for seed in (1, 2)), shake(link))

        async def exchange(link: LinkEmulator, sizes: list[int], seed: int) -> None:
            chance = random.Random(seed)
            pieces = [chance.randbytes(size) for size in sizes]
            reader, writer = await connect(link)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.001)
            writer.write_eof()
            assert await reader.read() == b"".join(pieces)
            writer.close()

        async def shake(link: LinkEmulator) -> None:
            for direction in ("up", "both", "down") if cut else ():
                await asyncio.sleep(0.004)
                link.outage(direction)
                await asyncio.sleep(0.004)
                link.restore()

        run(test)

    def test_more_than_all_buffers_hold_waits_for_its_reader(self, run):
        async def test() -> None:
            total = 30 << 20
            taken = asyncio.Event()

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await taken.wait()
                size = 0
                while data := await reader.read(1 << 20):
                    size += len(data)
                writer.write(str(size).encode())
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with LinkEmulator(FREE, place) as link:
                reader, writer = await connect(link)
                writer.write(bytes(total))
                await asyncio.sleep(0.3)
                # The rest is at the sender: the link holds little, and the kernel some.
                assert writer.transport.get_write_buffer_size() > total // 3
                taken.set()
                writer.write_eof()
                assert await reader.read() == str(total).encode()
                writer.close()
            server.close()

        run(test)

    def test_tls_passes_as_it_is(self, run):
        async def test() -> None:
            authority = trustme.CA()
            server, client = (
                ssl.SSLContext(protocol)
                for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
            )
            authority.issue_cert("127.0.0.1").configure_cert(server)
            authority.configure_trust(client)
            way = OneWay(2, jitter_ms=1, mbps=100)
            async with echo(server) as place, LinkEmulator(FREE, place, up=way, down=way) as link:
                to = parse_address(link.address)
                streams = await asyncio.open_connection(to.host, to.port, ssl=client)
                await rtt_ns(streams, bytes(range(256)) * 200)
                streams[1].transport.abort()

        run(test)

    def test_unix_sockets_on_either_side(self, run, tmp_path):
        async def test() -> None:
            unix = f"unix://{tmp_path}/link.sock"
            async with (
                echo() as place,
                LinkEmulator(unix, place) as first,
                LinkEmulator(FREE, first.address) as second,
            ):
                assert first.address == unix
                streams = await connect(second)
                await rtt_ns(streams, b"by way of a socket")
                streams[1].close()

        run(test)
        assert list(tmp_path.iterdir()) == []

    def test_a_broken_connection_is_broken_at_the_other_end(self, run):
        async def test() -> None:
            ended = asyncio.get_running_loop().create_future()

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    await reader.read()
                except ConnectionError as error:
                    ended.set_result(error)
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with LinkEmulator(FREE, place, up=OneWay(5), down=OneWay(5)) as link:
                _, writer = await connect(link)
                writer.write(b"x")
                while not link.counters().up_bytes:
                    await asyncio.sleep(0.005)
                link.outage(reset=True)
                assert isinstance(await ended, ConnectionResetError)
                assert link.counters().open == 0
                reader, _ = await connect(link)
                with pytest.raises(ConnectionError):
                    await reader.readexactly(1)
            server.close()

        run(test)

    def test_connections_that_end_anyhow_take_no_other_with_them(self, run):
        async def test() -> None:
            up = OneWay(3, jitter_ms=2, loss=0.02, stall_ms=10, mbps=400)
            async with echo() as place, LinkEmulator(FREE, place, up=up, down=OneWay(1)) as link:
                await asyncio.gather(*(one(link, number) for number in range(60)))
                while link.counters().open:
                    await asyncio.sleep(0.01)
                assert link.counters().connections == 60

        async def one(link: LinkEmulator, number: int) -> None:
            data = random.Random(number).randbytes(40_000 + 999 * number)
            reader, writer = await connect(link)
            writer.write(data)
            if number % 4 == 0:
                writer.write_eof()
                assert await reader.read() == data
            elif number % 4 == 1:  # in the middle of what comes back
                await reader.readexactly(number * 300)
            elif number % 4 == 2:
                await asyncio.sleep(number * 0.0002)
            if number % 2:
                reset(cast(asyncio.Transport, writer.transport))
            else:  # an end first, and what comes back then breaks it
                writer.transport.abort()

        run(test)

    def test_nobody_at_the_other_end(self, run):
        async def test() -> None:
            async with echo() as place:
                pass
            async with LinkEmulator(FREE, place) as link:
                reader, writer = await connect(link)
                with pytest.raises(ConnectionError):
                    await reader.readexactly(1)
                writer.close()
                assert link.counters().refused == 1

        run(test)


class TestTimes:
    def test_a_round_trip_takes_what_both_ways_take(self, run):
        async def test() -> None:
            async with (
                echo() as place,
                LinkEmulator(FREE, place, up=OneWay(3), down=OneWay(9)) as link,
            ):
                streams = await connect(link)
                for _ in range(30):
                    await takes(12 * MS, 14 * MS, lambda: rtt_ns(streams))
                streams[1].close()

        run(test)

    def test_a_connection_opens_after_a_round_trip(self, run):
        async def test() -> None:
            way = OneWay(20)
            async with echo() as place, LinkEmulator(FREE, place, up=way, down=way) as link:
                began_ns = time.monotonic_ns()
                streams = await connect(link)
                await rtt_ns(streams)
                assert time.monotonic_ns() - began_ns >= 80 * MS
                assert await rtt_ns(streams) >= 40 * MS
                streams[1].close()

        run(test)

    def test_connections_share_the_rate(self, run):
        async def test() -> None:
            size, mbps = 250_000, 20
            async with echo() as place, LinkEmulator(FREE, place, up=OneWay(mbps=mbps)) as link:
                streams = [await connect(link) for _ in range(2)]

                async def both_ns() -> int:
                    began_ns = time.monotonic_ns()
                    await asyncio.gather(*(rtt_ns(each, bytes(size)) for each in streams))
                    return time.monotonic_ns() - began_ns

                least_ns = len(streams) * size * 8e3 / mbps
                await takes(0.99 * least_ns, 1.5 * least_ns, both_ns)
                for _, writer in streams:
                    writer.close()

        run(test)

    def test_changes_count_at_once(self, run):
        async def test() -> None:
            async with echo() as place, LinkEmulator(FREE, place, up=OneWay(200)) as link:
                streams = await connect(link)
                assert await rtt_ns(streams) >= 200 * MS
                assert link.rtt_ms == 200
                link.up = OneWay(1)
                await takes(1 * MS, 150 * MS, lambda: rtt_ns(streams))
                streams[1].close()

        run(test)


class Noted(LinkEmulator):
    """Notes when it lets nothing through, and when it does again."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turns: list[tuple[bool, float]] = []

    def outage(self, *arguments: Any, **options: Any) -> None:
        super().outage(*arguments, **options)
        self.turns.append((self.is_out, time.monotonic()))

    def restore(self, *arguments: Any, **options: Any) -> None:
        super().restore(*arguments, **options)
        self.turns.append((self.is_out, time.monotonic()))


class TestOutages:
    def test_connections_hang_and_go_on(self, run):
        async def test() -> None:
            async with echo() as place, LinkEmulator(FREE, place) as link:
                streams = await connect(link)
                await rtt_ns(streams)
                link.outage()
                assert link.is_out
                others = await connect(link)
                late = asyncio.gather(rtt_ns(streams), rtt_ns(others))
                await asyncio.sleep(0)  # until both have asked
                asked_ns = time.monotonic_ns()
                done, _ = await asyncio.wait([late], timeout=0.2)
                assert not done
                hung_ns = time.monotonic_ns() - asked_ns
                link.restore()
                assert all(took_ns >= hung_ns for took_ns in await late)
                streams[1].close()
                others[1].close()

        run(test)

    def test_one_direction_alone(self, run):
        async def test() -> None:
            async with echo() as place, LinkEmulator(FREE, place) as link:
                streams = await connect(link)
                await rtt_ns(streams)
                link.outage("down")
                late = asyncio.ensure_future(rtt_ns(streams))
                while link.counters().up_bytes < 8:
                    await asyncio.sleep(0.005)
                assert link.counters().down_bytes == 4
                link.restore("down")
                await late
                streams[1].close()

        run(test)

    def test_in_a_plan(self, run):
        async def test() -> None:
            plan = [(0.1, 0.2), (0.5, 0.1)]
            began = time.monotonic()
            async with echo() as place:
                link = Noted(FREE, place, outages=plan)
                assert not link.is_out
                async with link:
                    while len(link.turns) < 4:
                        await asyncio.sleep(0.005)
            assert [is_out for is_out, _ in link.turns] == [True, False, True, False]
            due = zip(link.turns, [0.1, 0.3, 0.5, 0.6], strict=True)
            # A timer may be early by what its clock can't tell.
            assert all(at_s - began >= due_s - 0.01 for (_, at_s), due_s in due)

        run(test)


class TestArithmetic:
    @given(way=ways, sends=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99_999))))
    def test_the_seed_decides(self, way, sends):
        def arrivals(seed: int) -> list[int]:
            carrier, chance = Carrier(way, 0), random.Random(seed)
            return [carrier.arrival_ns(at * MS, size, chance) for at, size in sends]

        assert arrivals(1) == arrivals(1)

    def test_a_loss_is_a_stall(self):
        carrier = Carrier(OneWay(10, loss=0.1, stall_ms=50), 0)
        times = [carrier.arrival_ns(0, 100, random.Random(seed)) // MS for seed in range(2000)]
        assert set(times) <= {10, 60, 110, 160, 210, 260}
        assert 0.08 < sum(time > 10 for time in times) / len(times) < 0.12
        assert carrier.stalls == sum((time - 10) // 50 for time in times)

    def test_each_packet_may_be_lost(self):
        carrier = Carrier(OneWay(loss=0.01), 0)
        size = 100 * SEGMENT_BYTES
        stalled = [carrier.arrival_ns(0, size, random.Random(seed)) > 0 for seed in range(1000)]
        assert 0.59 < sum(stalled) / len(stalled) < 0.68  # 1 - 0.99 ** 100 is 0.634

    def test_the_rate_is_kept_by_all_that_is_sent(self):
        carrier = Carrier(OneWay(1, mbps=8), 0)
        chance = random.Random(1)
        assert [carrier.arrival_ns(0, 1000, chance) for _ in range(3)] == [2 * MS, 3 * MS, 4 * MS]
        assert carrier.arrival_ns(100 * MS, 1000, chance) == 102 * MS

    def test_an_outage_stops_the_clock_of_what_is_on_its_way(self):
        carrier = Carrier(OneWay(mbps=8), 0)
        carrier.arrival_ns(0, 10_000, random.Random(1))
        carrier.cut(4 * MS)
        assert carrier.restore(104 * MS) == 100 * MS
        assert carrier.free_ns == 110 * MS
        assert carrier.restore(105 * MS) == 0

    def test_jitter_is_spread_about_the_delay(self):
        carrier, chance = Carrier(OneWay(10, jitter_ms=4), 0), random.Random(1)
        times = [carrier.arrival_ns(0, 1, chance) / MS for _ in range(2000)]
        assert 6 <= min(times) < 6.1
        assert 13.9 < max(times) <= 14
        assert sum(times) / len(times) == pytest.approx(10, abs=0.2)


class TestRecordings:
    def test_half_of_a_round_trip_each_way_and_again_from_the_start(self, tmp_path):
        log = tmp_path / "ping.txt"
        log.write_text("".join(f"64 bytes: icmp_seq={n} time={n}0 ms\n" for n in (1, 2)))
        log.write_text(
            "".join(f"64 bytes from 192.0.2.1: icmp_seq={n} time={n}0 ms\n" for n in (1, 2, 4))
        )
        carrier, chance = Carrier(OneWay.half(2, 0, log), 10**12), random.Random(1)

        def took_ms(at_s: float) -> float:
            sent_ns = 10**12 + round(at_s * 1e9)
            return (carrier.arrival_ns(sent_ns, 1, chance) - sent_ns) / MS

        assert [took_ms(at_s) for at_s in (0, 1, 3, 4)] == [6, 11, 21, 6]
        # The third probe was lost: so is what is sent then, until the fourth isn't.
        assert took_ms(6.9) == 200 + 21

    def test_opportunities_to_send(self, tmp_path):
        file = tmp_path / "link.mahi"
        file.write_text("".join(f"{ms}\n" for ms in range(1, 61)))
        way = OneWay.half(0, 0, file)
        assert way.bps == 12e6
        carrier, chance = Carrier(way, 0), random.Random(1)
        assert [carrier.arrival_ns(0, 3000, chance) for _ in range(2)] == [2 * MS, 4 * MS]
        assert carrier.arrival_ns(59 * MS, 3000, chance) == 61 * MS

    def test_the_real_ones(self):
        folder = Path(__file__).parents[3] / "shared" / "data" / "network"
        if not folder.exists():
            pytest.skip("the recordings are not on this machine")
        way = OneWay.half(
            0, 0, folder / "det6g/ping-MEC-cmWave.txt", folder / "mahimahi/Verizon-LTE-short.down"
        )
        carrier, chance = Carrier(way, 0), random.Random(1)
        for second in range(300):
            assert 0 < carrier.arrival_ns(second * 10**9, 1500, chance) - second * 10**9 < 10**9


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("numbers", "said"),
        [
            ({"delay_ms": -1}, "delay_ms is a number of milliseconds from 0, not -1"),
            ({"jitter_ms": float("nan")}, "jitter_ms is a number"),
            ({"mbps": 0}, "mbps is above 0, or None for no limit, not 0"),
            ({"loss": 1}, "loss is a share from 0 to below 1, not 1"),
            ({"stall_ms": 0}, "stall_ms is above 0"),
        ],
    )
    def test_numbers(self, numbers, said):
        with pytest.raises(ValueError, match=said):
            OneWay(**numbers)

    def test_two_rates(self, tmp_path):
        file = tmp_path / "list"
        file.write_text("1.5\n")
        with pytest.raises(ValueError, match="has a capacity, so mbps can't be given too"):
            OneWay.half(0, 0, file, mbps=3)

    @pytest.mark.parametrize(
        ("outages", "said"),
        [
            ([(1, 0)], r"lasts more than 0 s, not 1\+0"),
            ([(-1, 5)], r"not -1\+5"),
            ([(5, 3), (1, 5)], r"1\+5 isn't over at 5 s"),
        ],
    )
    def test_outages(self, outages, said):
        with pytest.raises(ValueError, match=said):
            LinkEmulator(FREE, "127.0.0.1:1", outages=outages)

    def test_places(self):
        with pytest.raises(AddressError, match="lacks a port"):
            LinkEmulator("127.0.0.1", "127.0.0.1:1")
        with pytest.raises(ValueError, match="TLS passes as it is, so give tcp://cloud:443"):
            LinkEmulator(FREE, "tls://cloud:443")
        with pytest.raises(ValueError, match="needs a port, 1 or more"):
            LinkEmulator(FREE, FREE)

    @pytest.mark.parametrize(
        ("place", "why"),
        [
            ("300.0.0.1:1", ".* not known"),
            # asyncio says the latter from 3.13 on
            ("192.0.2.1:1", "(Cannot assign requested address|could not bind on any address .*)"),
            ("unix:///proc/none/s", "No such file or directory"),
        ],
    )
    def test_a_place_that_can_not_be_had(self, run, place, why):
        async def test() -> None:
            with pytest.raises(OSError, match=rf"^can't listen on \S*{re.escape(place)}: {why}$"):
                async with LinkEmulator(place, "127.0.0.1:1"):
                    pass

        run(test)

    def test_a_place_that_is_taken(self, run):
        async def test() -> None:
            async with echo() as place:
                with pytest.raises(OSError, match="in use"):
                    async with LinkEmulator(place, "127.0.0.1:1"):
                        pass

        run(test)
