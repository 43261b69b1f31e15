"""Build a TensorRT engine in its own process: `python -m workers.runtimes.tensorrt_build`.

A build takes minutes and gigabytes and may crash, while the box keeps serving. The request is JSON
on stdin; each line on stdout is a JSON object with `progress`, `error` or `done`.

The calls follow TensorRT's Python API reference, versions 10.3 to 11.4. Networks are strongly
typed: version 11 has no others, and in version 10 this lets the file's own formats decide the
precision.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.files import replace_file
from workers.runtimes.base import ModelLoadError, Tell, one_line
from workers.runtimes.shape_plan import InputRange, Profile
from workers.runtimes.tensorrt_log import error_logger, last, register_plugins

_NICE = 10
"""The niceness of a build, which must not slow down serving."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """An engine to build.

    Attributes:
        model: The `.onnx` file.
        engine: The file to write.
        timing_cache: The file of kernel timings, shared by all models of a GPU.
        profiles: The shape ranges to serve.
        workspace_bytes: The most GPU memory that a layer may use besides its tensors.
        tf32: Whether float32 may be rounded to TF32.
    """

    model: str
    engine: str
    timing_cache: str
    profiles: tuple[Profile, ...]
    workspace_bytes: int
    tf32: bool

    def to_json(self) -> str:
        """The request as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BuildRequest:
        """Parse a request from one line."""
        fields = json.loads(text)
        fields["profiles"] = tuple(
            {
                name: InputRange(*(tuple(span[end]) for end in ("least", "best", "most")))
                for name, span in profile.items()
            }
            for profile in fields["profiles"]
        )
        return cls(**fields)


class BuildError(Exception):
    """TensorRT did not build an engine; the message has its error."""


def build_engine(trt: Any, request: BuildRequest, tell: Tell) -> bytes:
    """Build an engine from an ONNX file.

    Args:
        trt: The module `tensorrt`.
        request: The engine to build; the caller writes its file.
        tell: Called with progress messages.

    Returns:
        The serialised engine.

    Raises:
        BuildError: The message has TensorRT's error.
    """
    said: list[str] = []
    logger = error_logger(trt, said)
    register_plugins(trt)
    try:
        builder = trt.Builder(logger)
    except (TypeError, RuntimeError) as error:  # what its bindings make of a null pointer
        raise BuildError(last(said) or f"TensorRT could not start: {one_line(error)}") from error
    network = builder.create_network(_network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    tell("parsing")
    if not parser.parse_from_file(request.model):
        raise BuildError("; ".join(_parser_errors(parser)) or last(said) or "it was not parsed")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
    if not request.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    for profile in request.profiles:
        _add_profile(builder, config, profile)
    timings = _attach_timings(config, Path(request.timing_cache))
    monitor = _monitor(trt, tell)
    config.progress_monitor = monitor
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise BuildError(last(said) or "it gave no reason")
    replace_file(Path(request.timing_cache), bytes(timings.serialize()))
    return bytes(engine)


def build_apart(request: BuildRequest, tell: Tell) -> None:
    """Build an engine in its own process and wait for it.

    Raises:
        ModelLoadError: TensorRT did not build it, or its process died.
    """
    command = [sys.executable, "-m", "workers.runtimes.tensorrt_build"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    error = None
    with process:
        if process.stdin is None or process.stdout is None:
            raise ModelLoadError("TensorRT's build has no pipes")
        with process.stdin:
            process.stdin.write(request.to_json())
        for line in process.stdout:
            message = json.loads(line)
            if "progress" in message:
                tell(message["progress"])
            error = message.get("error", error)
    if error is not None:
        raise ModelLoadError(f"TensorRT does not build it: {error}")
    if process.returncode != 0:
        raise ModelLoadError(f"TensorRT's build ended with status {process.returncode}")


def _network_flags(trt: Any) -> int:
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def _add_profile(builder: Any, config: Any, profile: Profile) -> None:
    made = builder.create_optimization_profile()
    for name, span in profile.items():
        try:
            made.set_shape(name, span.least, span.best, span.most)
        except ValueError as error:
            raise BuildError(f"'{name}' of {span}: {one_line(error)}") from error
    if config.add_optimization_profile(made) < 0:
        raise BuildError(f"the shapes do not fit the network: {profile}")


def _attach_timings(config: Any, path: Path) -> Any:
    """Attach the timing cache in a file, or an empty one if it does not fit this GPU."""
    content = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(content)
    if cache is None or not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


def _monitor(trt: Any, tell: Tell) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            tell(f"building, {phase_name}")

        def step_complete(self, phase_name: str, step: int) -> bool:
            of = self._steps.get(phase_name, 0)
            tell(f"building, {phase_name} {step + 1}/{of}")
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()


def _parser_errors(parser: Any) -> Iterator[str]:
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        operator = error.node_operator() or "the file"
        yield f"{operator}: {one_line(error.desc())}"


def main(read: Callable[[], str], write: Callable[[str], object]) -> int:
    """Read and carry out one request; return 0 if the engine was built."""

    def say(**message: str) -> None:
        write(json.dumps(message) + "\n")

    os.nice(_NICE)
    request = BuildRequest.from_json(read())
    try:
        import tensorrt

        engine = build_engine(tensorrt, request, lambda text: say(progress=text))
        replace_file(Path(request.engine), engine)
    except (BuildError, ImportError, OSError) as error:
        say(error=one_line(error))
        return 1
    say(done=request.engine)
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        sys.exit(main(sys.stdin.read, partial(print, end="", file=answers, flush=True)))
