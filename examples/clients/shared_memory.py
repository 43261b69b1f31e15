"""Large tensors through shared memory; the box needs `doors: {shared_memory: true}`.

LAXITY_GRPC=127.0.0.1:8701 python shared_memory.py
"""

import os

import numpy as np
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm

images = np.zeros((4, 1, 8, 8), np.float32)
out_bytes = 4 * 10 * 4
region = shm.create_shared_memory_region("images", "/laxity-example", images.nbytes + out_bytes)
client = triton.InferenceServerClient(os.environ.get("LAXITY_GRPC", "127.0.0.1:8701"))
try:
    shm.set_shared_memory_region(region, [images])
    client.register_system_shared_memory("images", "/laxity-example", images.nbytes + out_bytes)
    try:
        tensor = triton.InferInput("image", list(images.shape), "FP32")
        tensor.set_shared_memory("images", images.nbytes)
        scores = triton.InferRequestedOutput("scores")
        scores.set_shared_memory("images", out_bytes, offset=images.nbytes)
        client.infer("digits", [tensor], outputs=[scores], timeout=2_000_000)
        found = shm.get_contents_as_numpy(region, np.float32, [4, 10], images.nbytes)
        print(found.argmax(axis=1))
    finally:
        client.unregister_system_shared_memory("images")
finally:
    client.close()
    shm.destroy_shared_memory_region(region)
