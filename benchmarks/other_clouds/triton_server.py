"""Triton through nvidia-pytriton: python triton_server.py MODELS.json HTTP GRPC [CERT KEY]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor
from pytriton.triton import Triton, TritonConfig
from served import Served, read_models

QUEUE = 6
"""The queue length of each model; a request beyond it is refused."""


def bound(model: Served) -> dict[str, Any]:
    """The arguments that bind a model to Triton."""

    @batch
    def infer(**arrays: Any) -> Any:
        return dict(model.run(arrays))

    tensors = {
        side: [Tensor(name=n, dtype=np.dtype(d).type, shape=tuple(s)) for n, d, s in described]
        for side, described in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    # A request's own timeout applies: one that has waited longer is refused.
    policy = QueuePolicy(allow_timeout_override=True, max_queue_size=QUEUE)
    batcher = DynamicBatcher(default_queue_policy=policy)
    config = ModelConfig(max_batch_size=8, batcher=batcher)
    return {"model_name": model.name, "infer_func": infer, "config": config, **tensors}


def main() -> None:
    """Serve until ended."""
    models, http, grpc, *pair = sys.argv[1:]
    tls = dict(zip(("grpc_server_cert", "grpc_server_key"), pair, strict=False))
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(http),
        grpc_address="127.0.0.1",
        grpc_port=int(grpc),
        allow_metrics=False,
        grpc_use_ssl=bool(pair),
        **tls,
    )
    with Triton(config=config) as triton:
        for model in read_models(Path(models)):
            triton.bind(**bound(model))
        triton.serve()


if __name__ == "__main__":
    main()
