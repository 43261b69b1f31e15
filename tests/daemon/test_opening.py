"""What a scheduler says of itself, also to whoever comes in while it still opens its doors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
