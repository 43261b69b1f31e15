"""A scheduler answers whoever comes in while it is still opening its doors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 60

LIFE = """
import json, sys
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
(early,) = told
print(json.dumps([early["listening"], early["neighbours"], life.addresses()]))
life.drain(0)
"""


def test_a_status_asked_before_all_doors_are_open_is_answered(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    listening, neighbours, addresses = json.loads(done.stdout.splitlines()[-1])
    assert (listening, neighbours) == ([], None)
    assert addresses[0] == f"unix://{tmp_path}/s"
