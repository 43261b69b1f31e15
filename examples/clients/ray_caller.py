"""Call the scheduler from code that already runs in its Ray cluster.

`laxity status --json` shows RAY_ADDRESS as ray_address; the token is in the state folder:

    RAY_ADDRESS=… RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.local/state/laxity/ray_token \
        python ray_caller.py
"""

import os

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # a one-box cluster is on loopback

import numpy as np
import ray

ray.init(namespace="laxity", log_to_driver=False)
scheduler = ray.get_actor("scheduler")


@ray.remote(num_cpus=0)
def classify(image: np.ndarray) -> int:
    """A task somewhere in the cluster, with a deadline of its own for each inference."""
    result = ray.get(scheduler.infer.remote("digits", {"image": image}, deadline_ms=2000))
    return int(result["scores"].argmax())


images = np.zeros((3, 1, 8, 8), np.float32)
print(ray.get([classify.remote(image) for image in images]))
