"""`python -m tests.e2e.made_up_requests URL CASES`: schemathesis against a running HTTP door.

A response is wrong if the document does not know its status or its shape, or if it is a 5xx other
than 503 and 504, which say that the box can't serve that model in that time.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

NAMES = {"model": ["relu", "relu", "noop", "pair", "none"], "version": ["1", "small", "9"]}
X = {"name": "x", "shape": [3], "datatype": "FP32", "data": [-1, 0, 2]}
GOOD = [
    {"inputs": [X]},
    {"inputs": [X], "outputs": [{"name": "y"}], "parameters": {}},
    {"inputs": [{**X, "shape": [2, 3], "data": [[1, 2, 3], [4, 5, 6]]}], "outputs": []},
]
"""What reaches a model when it is put in the place of a made-up request's part."""

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]


def try_out(operation: Any, is_infer: bool, cases: int, answers: Counter[str]) -> None:
    """Makes requests up for one operation, and checks how they are answered."""

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), data=st.data())
    def run(case: schemathesis.Case, data: st.DataObject) -> None:
        for name, values in NAMES.items():
            if name in case.path_parameters and data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(values))
        if is_infer and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body.update(data.draw(st.sampled_from(GOOD)))
        response = case.call(timeout=30)
        answers[f"{response.status_code}"] += 1
        checks = list(CHECKS)
        if response.status_code not in (503, 504):
            checks.append(not_a_server_error)
        case.validate_response(response, checks=checks)

    run()


def main(url: str, cases: int) -> None:
    """Tries about as many cases, and says how they were answered."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    infers = sum("infer" in operation.label for operation in operations)
    # Half of the cases go to inference, the rest evenly to all others.
    answers: Counter[str] = Counter()
    for operation in operations:
        is_infer = operation.label.endswith("infer")
        share = cases // 2 // infers if is_infer else cases // 2 // (len(operations) - infers)

        try_out(operation, is_infer, max(1, share), answers)
    print(sum(answers.values()), "cases:", dict(sorted(answers.items())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
