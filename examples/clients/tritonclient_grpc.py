"""tritonclient over gRPC: one call, and a stream of them.

LAXITY_GRPC=127.0.0.1:8701 python tritonclient_grpc.py
"""

import os
import queue

import numpy as np
import tritonclient.grpc as triton

image = np.zeros((1, 1, 8, 8), np.float32)
tensor = triton.InferInput("image", list(image.shape), "FP32")
tensor.set_data_from_numpy(image)

with triton.InferenceServerClient(os.environ.get("LAXITY_GRPC", "127.0.0.1:8701")) as client:
    answer = client.infer("digits", [tensor], client_timeout=2.0)  # the gRPC deadline counts too
    print(int(answer.as_numpy("scores").argmax()))

    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    for number in range(10):
        client.async_stream_infer("digits", [tensor], request_id=str(number))
    print([answers.get(timeout=30).get_response().id for _ in range(10)])
    client.stop_stream()
