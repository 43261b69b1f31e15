"""tritonclient over HTTP with asyncio: many requests in flight on one connection pool.

pip install 'tritonclient[http]'; LAXITY_HTTP=127.0.0.1:8700 python tritonclient_http_aio.py
"""

import asyncio
import os

import numpy as np
import tritonclient.http.aio as triton


async def main() -> None:
    image = np.zeros((1, 1, 8, 8), np.float32)
    tensor = triton.InferInput("image", list(image.shape), "FP32")
    tensor.set_data_from_numpy(image)
    url = os.environ.get("LAXITY_HTTP", "127.0.0.1:8700")
    async with triton.InferenceServerClient(url) as client:
        asked = [client.infer("digits", [tensor], timeout=2_000_000) for _ in range(20)]
        answers = await asyncio.gather(*asked)
    print(len(answers), "answers,", {int(a.as_numpy("scores").argmax()) for a in answers})


asyncio.run(main())
