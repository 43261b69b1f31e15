"""Nothing but the standard library: JSON, a deadline, and the counter-offer of a refusal.

LAXITY_HTTP=127.0.0.1:8700 python plain_http.py
"""

import json
import os
import time
from http.client import HTTPConnection

http = HTTPConnection(os.environ.get("LAXITY_HTTP", "127.0.0.1:8700"))


def ask(model, count, timeout_us):
    image = {"name": "image", "datatype": "FP32", "shape": [count, 1, 8, 8]}
    image["data"] = [0.0] * 64 * count
    body = json.dumps({"inputs": [image], "parameters": {"timeout": timeout_us}})
    http.request("POST", f"/v2/models/{model}/infer", body)
    response = http.getresponse()
    answer = json.loads(response.read())
    if response.status == 200:
        scores = answer["outputs"][0]["data"][:10]
        print("digit", scores.index(max(scores)), "on", answer["parameters"]["target"])
        print(response.headers["server-timing"])
    else:
        print(response.status, answer["code"], answer.get("earliest_budget_ms"))


ask("digits", 1, 2_000_000)

# A batch that takes a while, then the same in a quarter of the least time that it took: the refusal
# says what is possible.
took_s = []
for _ in range(3):
    began = time.monotonic()
    ask("digits/versions/large", 32, 20_000_000)
    took_s.append(time.monotonic() - began)
ask("digits/versions/large", 32, int(min(took_s) / 4 * 1e6))
