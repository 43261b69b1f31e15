"""Nothing but the standard library: JSON, a deadline, and the counter-offer of a refusal.

LAXITY_HTTP=127.0.0.1:8700 python plain_http.py
"""

import json
import os
from http.client import HTTPConnection

http = HTTPConnection(os.environ.get("LAXITY_HTTP", "127.0.0.1:8700"))
image = {"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.0] * 64}

for timeout_us in (200, 2_000_000):
    body = json.dumps({"inputs": [image], "parameters": {"timeout": timeout_us}})
    http.request("POST", "/v2/models/digits/infer", body)
    response = http.getresponse()
    answer = json.loads(response.read())
    if response.status == 200:
        scores = answer["outputs"][0]["data"]
        print("digit", scores.index(max(scores)), "on", answer["parameters"]["target"])
        print(response.headers["server-timing"])
    else:
        print(response.status, answer["code"], answer.get("earliest_budget_ms"))
