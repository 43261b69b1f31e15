"""An MLServer runtime for the models of `served`; its settings hold a model's entry."""

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
    """MLServer's settings for a model, with its tensors declared."""
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
        """Load the model."""
        self._served = served(self.settings.parameters.extra)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run one batch."""
        arrays = {tensor.name: _decoded(tensor) for tensor in payload.inputs}
        answers: Any = await asyncio.to_thread(self._served.run, arrays)
        outputs = [_encoded(name, array) for name, array in answers.items()]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)


def _decoded(tensor: RequestInput) -> Any:
    """Decode a tensor; text apart, because the library's array codec joins its elements."""
    if tensor.datatype != "BYTES":
        return NumpyCodec.decode_input(tensor)
    return np.array(StringCodec.decode_input(tensor)).reshape(tensor.shape)


def _encoded(name: str, array: Any) -> ResponseOutput:
    if array.dtype.kind != "S":
        return NumpyCodec.encode_output(name, array)
    texts = np.char.decode(array, "utf-8").ravel().tolist()
    return ResponseOutput(name=name, datatype="BYTES", shape=list(array.shape), data=texts)
