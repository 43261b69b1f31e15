"""Two agents on hosts of their own: work is shared, a cable pulled and put back, a box killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler import Client
from tests.e2e.running_agent import RunningAgent
from tests.e2e.site import CAPACITY, TOKEN, SteadyLoad, seconds_until, start_box, states
from tests.hosts import Site, why_no_hosts
from tests.workers.onnx_models import relu, save

BACK_S = 15
"""Within this all is whole again after a link's return."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Site(2) as made:
        yield made


@pytest.fixture(scope="module")
def boxes(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningAgent]]:
    root = tmp_path_factory.mktemp("site")
    save(relu(), root / "models/relu/1/model.onnx")
    with ThreadPoolExecutor(2) as starting:
        futures = [
            starting.submit(start_box, root / name, root / "models", name, host, site.hosts)
            for name, host in zip(("box-a", "box-b"), site.hosts, strict=True)
        ]
    agents = [future.result() for future in futures if future.exception() is None]
    try:
        for future in futures:
            future.result()
        yield agents
    finally:
        for agent in agents:
            agent.close()


def test_work_is_shared_until_a_cable_is_cut_and_again_when_it_is_whole(
    site: Site, boxes: list[RunningAgent]
) -> None:
    a, b = boxes
    seconds_until(lambda: states(a.url) == {"box-b": "up"}, BACK_S)
    seconds_until(lambda: states(b.url) == {"box-a": "up"}, BACK_S)
    load = SteadyLoad(a.url, 1.4 * CAPACITY, deadline_ms=1000)
    seconds_until(lambda: load.targets["box-b/cpu:0"] > 10, BACK_S)

    site.hosts[1].cut()
    seconds_until(lambda: states(a.url)["box-b"] != "up", BACK_S)
    with Client(a.url, token=TOKEN) as client:
        assert client.status()["neighbours"]["alone"]
    seconds_until(lambda: any("going on alone" in line for line in a.lines), BACK_S)
    assert load.completed_within(2) > 0, "its own device goes on"
    with Client(b.url, token=TOKEN) as client:
        assert len(client.models()["models"]) == 1, "and so does the other side"

    site.hosts[1].restore()
    seconds_until(lambda: states(a.url) == {"box-b": "up"}, BACK_S)
    before = load.targets["box-b/cpu:0"]
    seconds_until(lambda: load.targets["box-b/cpu:0"] > before, BACK_S)

    b.process.kill()
    seconds_until(lambda: states(a.url)["box-b"] != "up", BACK_S)
    assert load.completed_within(2) > 0
    assert load.finish() > 0.3
