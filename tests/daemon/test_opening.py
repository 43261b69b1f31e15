"""What a scheduler says of itself, also to whoever comes in while it still opens its doors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ports import free_port
from tests.edge_agent.test_listening import needs_ipv6

PATIENCE_S = 60

LIFE = """
import json, sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
import ray
from scheduler import Client
from scheduler.config.box import Config
from scheduler.daemon.actor import SchedulerProcess

folder, told = Path(sys.argv[1]), []

class Asked(SchedulerProcess):
    async def _listen(self, address):
        door = await super()._listen(address)
        if address.path is not None:  # the other address is not open yet
            await self._loop.run_in_executor(None, ask)
        return door

def ask():
    with Client(f"unix://{folder}/s") as client:
        told.append(client.status())

ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
listen = {"native": [f"unix://{folder}/s", "tcp://127.0.0.1:0"]}
config = Config.model_validate({"listen": listen, "state_dir": str(folder / "state")})
life = Asked(config, None, {}, {}, (), folder / "doors")
metadata.version = lambda _: "what was installed since"
told.append(life.status())
print(json.dumps([told, life.addresses()]))
life.drain(0)
"""


def test_a_status_tells_what_is_open_so_far_and_the_version_that_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    (early, late), addresses = json.loads(done.stdout.splitlines()[-1])
    assert (early["listening"], early["neighbours"]) == ([], None)
    assert late["listening"] == addresses
    assert late["version"] == early["version"]


LISTENS = """
import json, socket, sys
from pathlib import Path
from scheduler.config.box import Config
from scheduler.daemon.actor import SchedulerProcess

folder = Path(sys.argv[1])
native = [f"tcp://[::]:{sys.argv[2]}", *sys.argv[3:]]
config = Config.model_validate(
    {"listen": {"native": native}, "state_dir": str(folder), "token_file": str(folder / "token")}
)
life = SchedulerProcess(config, None, {}, {}, (), folder / "doors")
for host in ("::1", "127.0.0.1"):
    socket.create_connection((host, int(sys.argv[2])), timeout=5).close()
print(json.dumps(life.addresses()))
life.drain(0)
"""


@needs_ipv6
@pytest.mark.parametrize("beside", [False, True])
def test_every_address_means_those_of_ipv4_too(tmp_path: Path, beside: bool) -> None:
    port = free_port()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("the token of this box")
    other = [f"tcp://0.0.0.0:{port}"] if beside else []
    done = subprocess.run(
        [sys.executable, "-c", LISTENS, str(tmp_path), str(port), *other],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [f"tcp://[::]:{port}", *other]
