"""NVIDIA's TensorRT, versions 10 and 11, used natively."""

from __future__ import annotations

from pathlib import Path

from workers.device_options import device_options
from workers.memory import available_bytes
from workers.model import Model, Variant
from workers.runtimes.base import DeviceSpec, ModelLoadError, Tell, one_line, refuse_text
from workers.runtimes.cuda import Cuda, gpu_fault, gpu_identity, gpu_loss
from workers.runtimes.shape_plan import plan_profiles
from workers.runtimes.tensorrt_build import BuildRequest, build_apart
from workers.runtimes.tensorrt_session import TensorRtSession, open_engine

ENGINE = "model.engine"
_MIN_VERSION = (10, 3)
"""The version in JetPack 6.1, which has everything used here."""

_WORKSPACE_SHARE = 0.25
"""The share of the usable GPU memory for a layer's scratch space during a build."""


class TensorRt:
    """Loads `.onnx` files by building an engine for this GPU."""

    name = "tensorrt"
    kinds = frozenset({"gpu"})
    suffixes = frozenset({".onnx"})

    def missing(self) -> str | None:
        """Why the library cannot be imported, or None."""
        try:
            import tensorrt
        except ImportError as error:
            return (
                f"tensorrt cannot be imported ({one_line(error)}); on a Jetson make the venv with "
                "--system-site-packages, elsewhere pip install 'laxity[tensorrt]'"
            )
        except OSError as error:  # its module loads its libraries by path
            return f"tensorrt's libraries cannot be loaded: {one_line(error)}"
        found = tuple(int(part) for part in str(tensorrt.__version__).split(".")[:2])
        if found < _MIN_VERSION:
            wanted = ".".join(map(str, _MIN_VERSION))
            return f"tensorrt is {tensorrt.__version__}, and {wanted} or later is needed"
        return None

    def unreachable(self, device: DeviceSpec) -> str | None:
        """Why no NVIDIA GPU is available, or None."""
        return gpu_fault()

    def lost(self) -> str | None:
        """See `Losable.lost`."""
        return gpu_loss()

    def processor(self, device: DeviceSpec) -> str | None:
        """The GPU and its driver, for which engines are built."""
        return str(gpu_identity())

    def version(self) -> str:
        """The library's version."""
        import tensorrt

        return str(tensorrt.__version__)

    def is_built(self, cache_dir: Path) -> bool:
        """Whether there is an engine; see `Builder.is_built`."""
        return (cache_dir / ENGINE).is_file()

    def build(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path, tell: Tell
    ) -> None:
        """Build an engine; see `Builder.build`."""
        refuse_text(model, "TensorRT")
        version = self.version()
        request = BuildRequest(
            model=str(variant.path),
            engine=str(cache_dir / ENGINE),
            timing_cache=str(cache_dir.parent / f"tensorrt-{version}.timings"),
            profiles=tuple(plan_profiles(model, variant, model.max_batch)),
            workspace_bytes=int(_allowed(gpu_identity().memory_bytes, device) * _WORKSPACE_SHARE),
            tf32=device_options(device).tf32,
        )
        build_apart(request, tell)

    def load(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path
    ) -> TensorRtSession:
        """Load the engine that `build` has written; see `Runtime.load`.

        An engine is a program, so the host loads only from folders that this box has sealed.
        """
        import tensorrt

        path = cache_dir / ENGINE
        if not path.is_file():
            raise ModelLoadError(f"there is no engine in {cache_dir} yet")
        profiles = plan_profiles(model, variant, model.max_batch)
        max_batch = 1 if variant.fixed_batch else model.max_batch
        _require_room(path, _free_bytes(), device)
        cuda = Cuda()
        cuda.sleep_while_waiting()
        engine = open_engine(tensorrt, path.read_bytes())
        return TensorRtSession(tensorrt, cuda, engine, model, profiles, max_batch)


def _free_bytes() -> int:
    """The memory that the GPU can still get.

    On an integrated GPU, CUDA counts what is "free according to the OS" (cuMemGetInfo), without
    the files that the kernel has cached and would drop.
    """
    free = Cuda().free_bytes()
    if not gpu_identity().is_integrated:
        return free
    return max(free, available_bytes(Path("/")) or 0)


def _allowed(memory_bytes: int, device: DeviceSpec) -> int:
    limit_mb = device_options(device).gpu_memory_mb
    return memory_bytes if limit_mb is None else min(memory_bytes, limit_mb * 10**6)


def _require_room(engine: Path, free_bytes: int, device: DeviceSpec) -> None:
    """Refuse an engine whose file is larger than the usable GPU memory."""
    size, left = engine.stat().st_size, _allowed(free_bytes, device)
    if size > left:
        raise ModelLoadError(
            f"too large for the GPU's memory: the engine takes {size / 1e6:,.1f} MB and "
            f"{left / 1e6:,.1f} MB are left"
        )
