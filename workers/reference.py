"""A variant's answers on the CPU, with which other processors are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workers.batches import ItemRunner
from workers.judging import Answers
from workers.model import Model, Variant
from workers.runtimes.base import DeviceSpec, Runtime, one_line, spell
from workers.runtimes.onnxruntime import OnnxRuntime
from workers.runtimes.openvino import OpenVino
from workers.tensors import Item


def reference_runtimes(device: DeviceSpec) -> tuple[Runtime, ...]:
    """The runtimes with which a device's answers are compared, the most trusted first.

    Empty for a CPU, whose runtimes are compared with its own first one, and for an emulated device,
    which answers zeros.
    """
    if device.kind == "cpu" or "emulated" in device.runtimes:
        return ()
    found: tuple[Runtime, ...] = (OnnxRuntime(), OpenVino())
    return tuple(runtime for runtime in found if runtime.missing() is None)


def reference_answers(
    model: Model,
    variant: Variant,
    items: Sequence[Item],
    device: DeviceSpec,
    cache_dir: Path,
    report: Callable[[str, str], None],
) -> Answers | None:
    """Run items one by one on the CPU.

    Args:
        model: The variant's model.
        variant: The variant to run.
        items: Items without a batch dimension.
        device: The device whose host asks; its cores are used.
        cache_dir: An existing folder for what the runtimes compile.
        report: Called with a runtime's name and why it could not answer.

    Returns:
        The answers, or None where no runtime can give them.
    """
    cpu = replace(device, id="cpu:0", kind="cpu", runtimes=(), options={})
    for runtime in reference_runtimes(device):
        if variant.path.suffix not in runtime.suffixes:
            continue
        try:
            session = runtime.load(model, variant, cpu, cache_dir)
        except Exception as error:  # a library's failure must not lose the device
            report(runtime.name, f"cannot be compared with: {spell(error)}")
            continue
        try:
            runner = ItemRunner(session, model.signature.batched)
            return [runner.run_batch([item])[0] for item in items]
        except Exception as error:  # as above
            report(runtime.name, f"cannot be compared with: {one_line(error)}")
        finally:
            session.close()
    return None
