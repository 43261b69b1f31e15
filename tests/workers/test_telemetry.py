"""Telemetry on file trees modelled on documented layouts; none is a recording.

`orin_nano` and `orin_agx` follow NVIDIA's Jetson Linux Developer Guide 36.3, "Jetson Orin Nano
Series, Jetson Orin NX Series and Jetson AGX Orin Series": the rails VDD_IN, VDD_CPU_GPU_CV and
VDD_SOC of Orin Nano and NX, and VDD_GPU_SOC, VDD_CPU_CV and VIN_SYS_5V0 of AGX Orin. The sensors'
files follow the kernel's hwmon/ina3221.rst, thermal zones and cooling devices its
thermal/sysfs-api.rst. `intel_box` follows power/powercap/powercap.rst (RAPL), proc(5),
admin-guide/pm/cpufreq.rst, the i915 driver's `gt/gt0` files and
ABI/testing/sysfs-driver-intel-i915-hwmon.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clock import Clock
from workers import telemetry
from workers.device_watch import DeviceWatch, state_of
from workers.kernel_files import number_of
from workers.runtimes.base import DeviceSpec
from workers.telemetry import NvmlProbe, Reading, probe_for
from workers.telemetry.cpu import CpuProbe
from workers.telemetry.intel import IntelGpuProbe, IntelNpuProbe
from workers.telemetry.nvidia import nvml_probe
from workers.telemetry.reading import Rate
from workers.telemetry.tegra import TegraGpuProbe, rails

Files = dict[str, str]

CPU = DeviceSpec("cpu:0", "cpu", cores=(1, 2))
GPU = DeviceSpec("gpu:0", "gpu")


def near(value: float) -> Any:
    return pytest.approx(value)


def write(root: Path, files: Files) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def stat(*busy_and_idle: tuple[int, int]) -> str:
    lines = ["cpu  0 0 0 0 0 0 0 0 0 0"]
    for core, (busy, idle) in enumerate(busy_and_idle):
        lines.append(f"cpu{core} {busy} 0 0 {idle} 0 0 0 0 0 0")
    return "\n".join(lines)


def sensor(number: int, *channels: tuple[str, int, int]) -> Files:
    folder = f"sys/class/hwmon/hwmon{number}"
    files = {f"{folder}/name": "ina3221", f"{folder}/in7_label": "sum of shunt voltages"}
    for channel, (label, millivolts, milliamperes) in enumerate(channels, 1):
        files[f"{folder}/in{channel}_label"] = label
        files[f"{folder}/in{channel}_input"] = str(millivolts)
        files[f"{folder}/curr{channel}_input"] = str(milliamperes)
    return files


def zone(number: int, kind: str, millidegrees: int) -> Files:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": kind, f"{folder}/temp": str(millidegrees)}


def cooler(number: int, kind: str, state: int) -> Files:
    folder = f"sys/class/thermal/cooling_device{number}"
    return {f"{folder}/type": kind, f"{folder}/cur_state": str(state)}


@pytest.fixture
def orin_nano(tmp_path):
    write(
        tmp_path,
        {
            "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
            "proc/meminfo": "MemTotal: 7802856 kB\nMemAvailable: 5802856 kB",
            "proc/stat": stat((10, 90), (20, 80), (30, 70)),
            "var/lib/nvpmodel/status": "pmode:0001",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1510400",
            "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "schedutil",
            "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq": "729600",
            "sys/devices/platform/gpu.0/load": "437",
            "sys/class/devfreq/17000000.gpu/cur_freq": "624750000",
            "sys/class/hwmon/hwmon3/name": "soctherm_oc",
            "sys/class/hwmon/hwmon3/oc1_event_cnt": "0",
            "sys/class/hwmon/hwmon3/oc3_event_cnt": "4",
            **sensor(
                1, ("VDD_IN", 5040, 1200), ("VDD_CPU_GPU_CV", 5040, 400), ("VDD_SOC", 5040, 300)
            ),
            **zone(0, "cpu-thermal", 51250),
            **zone(1, "gpu-thermal", 48500),
            **zone(2, "tj-thermal", 51500),
            **cooler(0, "pwm-fan", 3),
            **cooler(1, "cpufreq-cpu0", 0),
            **cooler(2, "devfreq-17000000.gpu", 0),
        },
    )
    return tmp_path


@pytest.fixture
def orin_agx(tmp_path):
    write(
        tmp_path,
        {
            "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0",
            "var/lib/nvpmodel/status": "pmode:0003",
            "sys/devices/platform/bus@0/17000000.gpu/load": "1000",
            **sensor(
                3,
                ("VDD_GPU_SOC", 20000, 400),
                ("VDD_CPU_CV", 20000, 100),
                ("VIN_SYS_5V0", 5000, 800),
            ),
            **sensor(4, ("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5000, 200), ("NC", 0, 0)),
        },
    )
    return tmp_path


@pytest.fixture
def intel_box(tmp_path):
    rapl = "sys/class/powercap"
    card = "sys/class/drm/card0"
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB",
            "proc/stat": stat((100, 900), (200, 800), (300, 700)),
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2600000",
            f"{rapl}/intel-rapl:0/name": "package-0",
            f"{rapl}/intel-rapl:0/energy_uj": "262143000000",
            f"{rapl}/intel-rapl:0/max_energy_range_uj": "262143328850",
            f"{rapl}/intel-rapl:0:0/name": "core",
            f"{rapl}/intel-rapl:0:0/energy_uj": "1",
            f"{card}/device/vendor": "0x8086",
            f"{card}/gt/gt0/rps_act_freq_mhz": "1350",
            f"{card}/gt/gt0/rc6_residency_ms": "1000",
            f"{card}/gt/gt0/throttle_reason_status": "0",
            f"{card}/gt/gt0/throttle_reason_pl1": "0",
            f"{card}/gt/gt0/throttle_reason_thermal": "0",
            f"{card}/device/hwmon/hwmon2/energy1_input": "5000000",
            "sys/class/accel/accel0/device/npu_busy_time_us": "1000000",
            "sys/class/accel/accel0/device/npu_current_frequency_mhz": "1400",
            **zone(0, "x86_pkg_temp", 64000),
            **cooler(0, "Processor", 0),
        },
    )
    return tmp_path


def waited(root: Path, **threads: tuple[int, int]) -> None:
    """For how many ms each thread has run, and waited for a core."""
    shutil.rmtree(root / "proc/self/task", ignore_errors=True)
    told = {f"proc/self/task/{name}/schedstat": times for name, times in threads.items()}
    write(root, {path: f"{ran}000000 {wait}000000 7" for path, (ran, wait) in told.items()})


def test_how_long_a_worker_waits_for_a_core(tmp_path):
    waited(tmp_path, t1=(5000, 700), t2=(1000, 0), t3=(40, 80))
    probe = CpuProbe((), tmp_path)
    assert probe.read().core_wait is None
    waited(tmp_path, t1=(5600, 800), t2=(1200, 100), t4=(9999, 9999))
    assert probe.read().core_wait == 0.2
    # An idle worker's is no news, and neither is that of a kernel that does not count.
    waited(tmp_path, t1=(5601, 890), t2=(1200, 100))
    assert probe.read().core_wait is None
    write(tmp_path, {"proc/self/task/t1/schedstat": "0 0"})
    assert probe.read().core_wait is None


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count")
def test_a_real_wait_for_a_core():
    probe = CpuProbe((), Path("/"))
    probe.read()
    while (share := probe.read().core_wait) is None:
        sum(range(20_000_000))
    assert 0 <= share < 1


def test_an_orin_nanos_cpu(orin_nano):
    probe = CpuProbe((1, 2), orin_nano)
    first = probe.read()
    write(orin_nano, {"proc/stat": stat((900, 91), (25, 95), (75, 85))})

    assert first == Reading(
        memory_used_bytes=2000000 * 1024,
        memory_total_bytes=7802856 * 1024,
        temperature_c=51.5,
        clock_hz=1_120_000_000,
        power_w=near(6.048),
        energy_j=0.0,
        power_mode="pmode:0001 schedutil",
    )
    # Of 20 + 60 ticks of its two cores, 5 + 45 were busy.
    assert probe.read().utilisation == pytest.approx(50 / 80)


def test_an_orin_nanos_gpu(orin_nano):
    clock = Clock()
    probe = TegraGpuProbe(orin_nano, clock)
    probe.read()
    clock.now_ns = 2_000_000_000

    assert probe.read() == Reading(
        utilisation=0.437,
        temperature_c=51.5,
        clock_hz=624_750_000,
        power_w=near(6.048),
        energy_j=near(12.096),
        power_mode="pmode:0001",
        over_current_events=4,
    )


def test_heat_that_slows_a_jetson_is_told_and_a_fan_is_not(orin_nano):
    write(orin_nano, {**cooler(1, "cpufreq-cpu0", 2), **cooler(2, "devfreq-17000000.gpu", 1)})

    assert CpuProbe((1,), orin_nano).read().throttled == ("thermal: cpufreq-cpu0",)
    assert TegraGpuProbe(orin_nano).read().throttled == ("thermal: devfreq-17000000.gpu",)


def test_an_agx_orin_has_no_rail_for_all_of_it(orin_agx):
    assert dict(rails(orin_agx)) == {
        "VDD_GPU_SOC": 8.0,
        "VDD_CPU_CV": 2.0,
        "VIN_SYS_5V0": 4.0,
        "VDDQ_VDD2_1V8AO": 1.0,
    }
    reading = TegraGpuProbe(orin_agx).read()
    assert (reading.power_w, reading.utilisation) == (15.0, 1.0)
    assert reading.power_mode == "pmode:0003"


def test_a_thors_gpu_has_its_load_in_nvml_and_its_clock_under_another_name(tmp_path, monkeypatch):
    """As on an AGX Thor with JetPack 7.2, where NVML answers and there is no `load`."""
    write(
        tmp_path,
        {
            "proc/device-tree/compatible": "nvidia,p3971-0089+p3834-0008\0nvidia,tegra264\0",
            "sys/class/devfreq/gpu-gpc-0/cur_freq": "1575000000",
            "sys/class/devfreq/gpu-nvd-0/cur_freq": "1692000000",
        },
    )

    reading = TegraGpuProbe(tmp_path, nvml=lambda: Reading(utilisation=0.97)).read()

    assert (reading.utilisation, reading.clock_hz) == (0.97, 1_575_000_000)
    assert TegraGpuProbe(tmp_path).read().utilisation is None

    assert probe_for(GPU, tmp_path).read().utilisation is None  # no driver here
    answers = SimpleNamespace(read=lambda: Reading(utilisation=0.5))
    monkeypatch.setattr(telemetry, "nvml_probe", lambda device: answers)
    assert probe_for(GPU, tmp_path).read().utilisation == 0.5


def test_an_intel_boxs_cpu_and_the_wrap_of_its_energy_counter(intel_box):
    clock = Clock()
    probe = CpuProbe((1,), intel_box, clock)
    first = probe.read()
    write(intel_box, {"sys/class/powercap/intel-rapl:0/energy_uj": "14671150"})
    clock.now_ns = 1_000_000_000
    second = probe.read()

    assert (first.power_w, first.power_mode) == (None, "powersave")
    assert first.temperature_c == 64.0
    assert first.clock_hz == 2_600_000_000
    # 262143328850 - 262143000000 + 14671150 microjoules in a second.
    assert second.power_w == pytest.approx(15.0)
    assert second.energy_j is not None
    assert first.energy_j is not None
    assert second.energy_j - first.energy_j == pytest.approx(15.0)


def test_an_energy_counter_that_only_root_may_read_is_unknown(intel_box):
    counter = intel_box / "sys/class/powercap/intel-rapl:0/energy_uj"
    counter.unlink()
    counter.mkdir()  # unreadable, whoever runs the tests

    reading = CpuProbe((1,), intel_box).read()
    assert (reading.energy_j, reading.power_w) == (None, None)


def test_an_intel_gpu(intel_box):
    clock = Clock()
    probe = IntelGpuProbe(intel_box, clock)
    probe.read()
    gt = "sys/class/drm/card0/gt/gt0"
    write(
        intel_box,
        {
            f"{gt}/rc6_residency_ms": "1250",
            f"{gt}/throttle_reason_status": "1",
            f"{gt}/throttle_reason_pl1": "1",
            f"{gt}/throttle_reason_thermal": "1",
            "sys/class/drm/card0/device/hwmon/hwmon2/energy1_input": "17000000",
        },
    )
    clock.now_ns = 1_000_000_000
    reading = probe.read()

    assert reading.utilisation == pytest.approx(0.75)
    assert reading.clock_hz == 1_350_000_000
    assert reading.power_w == pytest.approx(12.0)
    assert reading.throttled == ("pl1", "thermal: thermal")
    assert state_of(reading).throttled == "thermal: thermal"


def test_an_intel_gpu_of_the_driver_xe(tmp_path):
    card = "sys/class/drm/card0/device"
    gt = f"{card}/tile0/gt0"
    files = {
        f"{card}/vendor": "0x8086",
        f"{card}/hwmon/hwmon3/energy1_input": "5000000",
        f"{gt}/gtidle/idle_residency_ms": "9000",
        f"{gt}/freq0/act_freq": "2400",
        f"{gt}/freq0/throttle/status": "1",
        f"{gt}/freq0/throttle/reason_pl2": "1",
        f"{gt}/freq0/throttle/reason_thermal": "1",
        f"{gt}/freq0/throttle/reason_vr_tdc": "0",
    }
    write(tmp_path, files)
    clock = Clock()
    probe = IntelGpuProbe(tmp_path, clock)
    probe.read()
    write(tmp_path, {f"{gt}/gtidle/idle_residency_ms": "9400"})
    clock.now_ns = 1_000_000_000

    reading = probe.read()

    assert reading.utilisation == pytest.approx(0.6)
    assert reading.clock_hz == 2_400_000_000
    assert reading.energy_j == 5.0
    assert reading.throttled == ("pl2", "thermal: thermal")


def test_an_intel_npu(intel_box):
    clock = Clock()
    probe = IntelNpuProbe(intel_box, clock)
    probe.read()
    write(intel_box, {"sys/class/accel/accel0/device/npu_busy_time_us": "1300000"})
    clock.now_ns = 1_000_000_000

    assert probe.read() == Reading(utilisation=near(0.3), clock_hz=1_400_000_000)


@pytest.mark.parametrize("device", [CPU, GPU, DeviceSpec("npu:0", "npu")])
def test_a_box_that_tells_nothing_is_no_error(tmp_path, device):
    reading = probe_for(device, tmp_path).read()

    assert reading.utilisation is None
    assert reading.throttled == ()


def test_each_device_has_its_probe(orin_nano, intel_box):
    assert isinstance(probe_for(CPU, orin_nano), CpuProbe)
    assert isinstance(probe_for(GPU, orin_nano), TegraGpuProbe)
    assert isinstance(probe_for(DeviceSpec("npu:0", "npu"), intel_box), IntelNpuProbe)


class Nvml(SimpleNamespace):
    """The functions of `pynvml` that are asked, for a card without an energy counter."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=80, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=6 << 30, used=1 << 30)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1500

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 83

    def nvmlDeviceGetPowerUsage(self, handle):
        return 69_500

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return 70_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x44


def test_an_nvidia_card():
    reading = NvmlProbe(Nvml(), "handle").read()

    assert reading == Reading(
        utilisation=0.8,
        memory_used_bytes=1 << 30,
        memory_total_bytes=6 << 30,
        temperature_c=83.0,
        clock_hz=1_500_000_000,
        power_w=69.5,
        power_mode="limit 70 W",
        throttled=("power cap", "thermal: hardware"),
    )
    assert state_of(reading).throttled == "thermal: hardware"


def test_what_a_mig_instance_does_not_know_is_asked_of_its_card():
    class Partitioned(Nvml):
        def of_the_card(self, handle, *_):
            if handle == "instance":
                raise self.NVMLError("Not Supported")
            return 60_000

        nvmlDeviceGetPowerUsage = nvmlDeviceGetPowerManagementLimit = of_the_card

        def nvmlDeviceGetTemperature(self, handle, sensor):
            return self.of_the_card(handle) / 1000

        def nvmlDeviceGetUtilizationRates(self, handle):
            assert handle == "instance", "the card's is that of all its instances"
            raise self.NVMLError("Not Supported")

        def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
            return 0x40 * bool(self.of_the_card(handle))

    reading = NvmlProbe(Partitioned(), "instance", "card").read()

    assert (reading.power_w, reading.temperature_c, reading.power_mode) == (60, 60, "limit 60 W")
    assert reading.throttled == ("thermal: hardware",)
    assert (reading.utilisation, reading.memory_total_bytes) == (None, 6 << 30)


def test_nvmls_names_are_those_of_the_module():
    pynvml = pytest.importorskip("pynvml")
    from workers.telemetry import nvidia

    for name in nvidia._REASONS:
        assert isinstance(getattr(pynvml, name), int)
    for name in vars(Nvml):
        if name.startswith(("nvml", "NVML_")):
            assert hasattr(pynvml, name)


def test_only_what_lasts_two_looks_changes_the_state(orin_nano):
    watch = DeviceWatch(TegraGpuProbe(orin_nano))
    hot, cool = cooler(2, "devfreq-17000000.gpu", 1), cooler(2, "devfreq-17000000.gpu", 0)

    looks = []
    for files in (hot, cool, hot, hot, hot, cool, cool):
        write(orin_nano, files)
        looks.append((watch.look(), watch.state.throttled))

    hot_state = "thermal: devfreq-17000000.gpu"
    assert looks == [
        (False, "no"),
        (False, "no"),
        (False, "no"),
        (True, hot_state),
        (False, hot_state),
        (False, hot_state),
        (True, "no"),
    ]


def test_looks_that_differ_from_each_other_change_nothing(orin_nano):
    write(orin_nano, cooler(3, "gpu-balanced", 0))
    watch = DeviceWatch(TegraGpuProbe(orin_nano))

    for first, second in ((1, 0), (0, 1), (1, 1), (1, 0)):
        write(orin_nano, cooler(2, "devfreq-17000000.gpu", first))
        write(orin_nano, cooler(3, "gpu-balanced", second))
        assert not watch.look()

    assert watch.look()
    assert watch.state.throttled == "thermal: devfreq-17000000.gpu"


def test_a_look_is_cheap():
    probe = probe_for(CPU, Path("/"))
    probe.read()
    began_ns = time.thread_time_ns()
    for _ in range(10):
        probe.read()
    assert (time.thread_time_ns() - began_ns) / 10 < 5_000_000


class TestNvmlProbe:
    @pytest.fixture
    def pynvml(self, monkeypatch):
        module = pytest.importorskip("pynvml")
        monkeypatch.setattr(module, "nvmlInit", lambda: None)
        monkeypatch.setattr(module, "nvmlDeviceGetHandleByIndex", lambda index: f"card {index}")
        monkeypatch.setattr(module, "nvmlDeviceGetHandleByUUID", lambda uuid: f"card {uuid}")
        monkeypatch.setattr(
            module, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", lambda of: f"parent of {of}"
        )
        return module

    @pytest.mark.parametrize(
        ("options", "handle", "card"),
        [
            ({}, "card 1", None),
            ({"cuda": "GPU-5"}, "card GPU-5", None),
            ({"cuda": "MIG-7"}, "card MIG-7", "parent of card MIG-7"),
        ],
    )
    def test_a_card_is_found_as_cuda_finds_it(self, pynvml, options, handle, card):
        probe = nvml_probe(DeviceSpec("gpu:1", "gpu", options=options))
        assert probe is not None
        assert (probe._handle, probe._card) == (handle, card)

    def test_a_box_without_the_driver_has_no_probe(self, pynvml, monkeypatch):
        def absent():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "nvmlInit", absent)
        assert nvml_probe(DeviceSpec("gpu:0", "gpu")) is None

    def test_a_card_that_nothing_slows_is_not_throttled(self):
        class Free(Nvml):
            def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
                return 0

        assert NvmlProbe(Free(), "handle").read().throttled == ()


def test_only_what_is_known_is_told():
    assert Reading(power_w=3.5).known() == {"power_w": 3.5, "throttled": []}


def test_what_is_told_has_no_digits_that_mean_nothing():
    reading = Reading(utilisation=2 / 3, power_w=12.1 + 1e-15, clock_hz=1_234_567_891)
    assert reading.power_w != 12.1
    told = {"utilisation": 0.667, "power_w": 12.1, "clock_hz": 1_234_567_891, "throttled": []}
    assert reading.known() == told


def test_a_rate_needs_two_looks_at_a_counter_that_rises():
    clock = Clock()
    rate = Rate(clock)
    assert (rate.of(None), rate.of(5.0)) == (None, None)
    clock.now_ns += 2_000_000_000
    assert rate.of(9.0) == 2.0
    assert rate.of(9.5) is None  # no time has passed
    clock.now_ns += 1_000_000_000
    assert rate.of(1.0) is None  # begun anew, and nobody knows where it wraps


def test_a_file_that_holds_no_number_is_unknown(tmp_path):
    (tmp_path / "temp").write_text("hot")
    assert number_of(tmp_path / "temp") is None
    assert number_of(tmp_path / "absent") is None
