"""tritonclient over HTTP: binary tensors, classes, compression.

pip install 'tritonclient[http]'; LAXITY_HTTP=127.0.0.1:8700 python tritonclient_http.py
"""

import os

import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient(os.environ.get("LAXITY_HTTP", "127.0.0.1:8700"))
print(client.get_model_metadata("digits")["inputs"])

images = np.zeros((4, 1, 8, 8), np.float32)
tensor = triton.InferInput("image", list(images.shape), "FP32")
tensor.set_data_from_numpy(images)

answer = client.infer("digits", [tensor], timeout=2_000_000, priority=1)
print(answer.as_numpy("scores").shape, answer.get_response()["parameters"]["variant"])

top = triton.InferRequestedOutput("scores", class_count=3)
answer = client.infer(
    "digits",
    [tensor],
    outputs=[top],
    request_compression_algorithm="gzip",
    response_compression_algorithm="gzip",
)
print(answer.as_numpy("scores")[0])
client.close()
