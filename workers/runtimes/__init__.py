"""The runtimes: one file per library, and the table of them."""

from __future__ import annotations

from collections.abc import Callable

from workers.runtimes.base import Runtime
from workers.runtimes.emulated import Emulated
from workers.runtimes.onnxruntime import OnnxRuntime
from workers.runtimes.onnxruntime_gpu import OnnxRuntimeCuda, OnnxRuntimeTensorRt
from workers.runtimes.openvino import OpenVino
from workers.runtimes.tensorrt import TensorRt

RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "onnxruntime-cuda": OnnxRuntimeCuda,
    "onnxruntime-tensorrt": OnnxRuntimeTensorRt,
    "tensorrt": TensorRt,
    "emulated": Emulated,
}
"""Factories by name. The first runtime, that of the ONNX format itself, is the reference."""
