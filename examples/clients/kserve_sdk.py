"""KServe's SDK over HTTP and gRPC (pip install kserve).

LAXITY_HTTP=127.0.0.1:8700 LAXITY_GRPC=127.0.0.1:8701 python kserve_sdk.py
"""

import asyncio
import os

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    InferResponse,
    RESTConfig,
)

URL = "http://" + os.environ.get("LAXITY_HTTP", "127.0.0.1:8700")
GRPC = os.environ.get("LAXITY_GRPC", "127.0.0.1:8701")


def request() -> InferRequest:
    image = InferInput("image", [1, 1, 8, 8], "FP32")
    image.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32), binary_data=True)
    return InferRequest("digits", [image])


def show(door: str, ready: bool, answer: InferResponse) -> None:
    print(door, ready, answer.outputs[0].as_numpy().argmax())


async def main() -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        ready = await client.is_server_ready(URL) and await client.is_model_ready(URL, "digits")
        show("http", ready, await client.infer(URL, request(), model_name="digits", timeout=5))
    async with InferenceGRPCClient(GRPC, retries=0) as client:
        ready = await client.is_server_ready() and await client.is_model_ready("digits")
        show("grpc", ready, await client.infer(request(), timeout=5))


asyncio.run(main())
