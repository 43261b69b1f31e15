"""A runtime of MLServer for what is served here; its settings name an entry of `served`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput
from served import served

_DATATYPES = {"float32": "FP32", "int64": "INT64", "bytes": "BYTES"}


def settings_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What MLServer is to know of a model: its tensors are told, not found out."""
    model = served(spec)
    inputs, outputs = (
        [{"name": n, "datatype": _DATATYPES[d], "shape": [-1, *s]} for n, d, s in tensors]
        for tensors in (model.inputs, model.outputs)
    )
    return {
        "name": model.name,
        "implementation": "mlserver_runtime.Runtime",
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"extra": dict(spec)},
    }


class Runtime(MLModel):  # type: ignore[misc]
    """One model, whose batches run in threads."""

    async def load(self) -> bool:
        """Opens it."""
        self._served = served(self.settings.parameters.extra)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Runs one batch."""
        arrays = {tensor.name: _decoded(tensor) for tensor in payload.inputs}
        answers: Any = await asyncio.to_thread(self._served.run, arrays)
        outputs = [_encoded(name, array) for name, array in answers.items()]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)


def _decoded(tensor: RequestInput) -> Any:
    """An array; the library's own codec for arrays joins the elements of text."""
    if tensor.datatype != "BYTES":
        return NumpyCodec.decode_input(tensor)
    return np.array(StringCodec.decode_input(tensor)).reshape(tensor.shape)


def _encoded(name: str, array: Any) -> ResponseOutput:
    if array.dtype.kind != "S":
        return NumpyCodec.encode_output(name, array)
    texts = np.char.decode(array, "utf-8").ravel().tolist()
    return ResponseOutput(name=name, datatype="BYTES", shape=list(array.shape), data=texts)
