"""KServe's SDK over HTTP (pip install kserve).

LAXITY_HTTP=127.0.0.1:8700 python kserve_sdk.py
"""

import asyncio
import os

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

URL = "http://" + os.environ.get("LAXITY_HTTP", "127.0.0.1:8700")


async def main() -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    ready = await client.is_server_ready(URL), await client.is_model_ready(URL, "digits")
    print("ready", *ready)
    image = InferInput("image", [1, 1, 8, 8], "FP32")
    image.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32), binary_data=True)
    request = InferRequest("digits", [image])
    answer = await client.infer(URL, request, model_name="digits", timeout=5)
    print(answer.outputs[0].as_numpy().argmax())


asyncio.run(main())
