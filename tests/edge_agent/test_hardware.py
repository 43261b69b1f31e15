"""Probing a box. The fixture trees hold the files of two real kinds of box, in their formats.

`/proc` follows proc(5); `/sys/devices/system/cpu` the kernel's Documentation/admin-guide/
cputopology.rst; `cpu.max` its cgroup-v2.rst and `cpu.cfs_quota_us` its scheduler/sched-bwc.rst;
`/proc/device-tree` the Devicetree Specification 0.4, section 2.3, with the strings of the kernel's
tegra234-p3768-0000+p3767-0005.dts; `/etc/nv_tegra_release` NVIDIA's Jetson Linux Developer Guide.
"""

import json
import os
import sys
from dataclasses import asdict, replace

import pytest

from edge_agent.accelerators import Accelerator, Found, nvidia_gpus, openvino_devices
from edge_agent.hardware import default_devices, describe, probe, scheduler_cores

ORIN_NANO_CORE = """\
processor\t: {cpu}
BogoMIPS\t: 62.50
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd42
CPU revision\t: 1
"""

INTEL_THREAD = """\
processor\t: {cpu}
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Core(TM) i5-1145G7E @ 2.60GHz
flags\t\t: fpu sse4_2 avx2 fma f16c avx512f avx512_vnni
"""

INTEL_GPU = Accelerator("gpu", "intel", "Intel(R) Iris(R) Xe Graphics (iGPU)", device_id="gpu:0")
NVIDIA_GPU = Accelerator(
    "gpu",
    "nvidia",
    "NVIDIA RTX A2000",
    memory_bytes=6 * 2**30,
    driver="580.65.06",
    compute_capability="8.6",
)


def write_tree(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def kernel_files(cpuinfo, siblings, memory_kb, allowed):
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {
        "proc/cpuinfo": "\n".join(cpuinfo.format(cpu=cpu) for cpu in range(len(siblings))),
        "proc/meminfo": f"MemTotal:       {memory_kb} kB\nMemFree:        1024 kB\n",
        "proc/self/status": f"Name:\tpython3\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n",
        "proc/self/cgroup": "0::/system.slice/laxity.service\n",
        **{topology.format(cpu): f"{group}\n" for cpu, group in enumerate(siblings)},
    }


@pytest.fixture
def orin_nano(tmp_path):
    files = kernel_files(ORIN_NANO_CORE, list("012345"), memory_kb=7802856, allowed="0-5")
    files["proc/device-tree/model"] = b"NVIDIA Jetson Orin Nano Developer Kit\0"
    files["proc/device-tree/compatible"] = (
        b"nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0"
    )
    files["etc/nv_tegra_release"] = (
        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, "
        "DATE: Wed Jan  8 01:49:37 UTC 2025\n"
    )
    return write_tree(tmp_path, files)


@pytest.fixture(autouse=True)
def _all_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def intel_box(tmp_path):
    siblings = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]
    return write_tree(tmp_path, kernel_files(INTEL_THREAD, siblings, 16265324, "0-7"))


def probe_tree(root, intel=(), nvidia=(), cuda=()):
    return probe(
        root,
        openvino=lambda: Found(tuple(intel)),
        nvidia=lambda: Found(tuple(nvidia)),
        cuda=lambda: cuda,
    )


def test_an_orin_nano(orin_nano):
    found = probe_tree(orin_nano)
    assert found.cpu.model == "Arm Cortex-A78AE"
    assert found.cpu.architecture == "aarch64"
    assert found.cpu.usable == (0, 1, 2, 3, 4, 5)
    assert found.cpu.isa == ("asimd", "asimdhp", "asimddp")
    assert found.memory_bytes == 7802856 * 1024
    assert found.tegra is not None
    assert (found.tegra.chip, found.tegra.l4t) == ("tegra234", "36.4.3")
    (gpu,) = found.accelerators
    assert (gpu.vendor, gpu.compute_capability, gpu.device_id) == ("nvidia", "8.7", None)


def test_a_tegra_gpu_that_its_driver_reports_is_not_listed_twice(orin_nano):
    assert probe_tree(orin_nano, nvidia=[NVIDIA_GPU]).accelerators == (NVIDIA_GPU,)


def test_a_tegra_without_jetson_linux_has_no_release(orin_nano):
    (orin_nano / "etc/nv_tegra_release").unlink()
    tegra = probe_tree(orin_nano).tegra
    assert tegra is not None
    assert tegra.l4t is None


def test_another_boards_device_tree_is_no_tegra(orin_nano):
    (orin_nano / "proc/device-tree/compatible").write_bytes(
        b"raspberrypi,5-model-b\0brcm,bcm2712\0"
    )
    found = probe_tree(orin_nano)
    assert found.tegra is None
    assert found.accelerators == ()


def test_an_intel_box(intel_box):
    found = probe_tree(intel_box, intel=[INTEL_GPU], nvidia=[NVIDIA_GPU])
    assert found.cpu.model == "Intel(R) Core(TM) i5-1145G7E @ 2.60GHz"
    assert found.cpu.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.cpu.isa == ("avx2", "fma", "f16c", "avx512f", "avx512_vnni")
    assert found.cpu.quota_cores is None
    assert found.tegra is None
    assert found.accelerators == (INTEL_GPU, NVIDIA_GPU)


def test_the_scheduler_gets_a_physical_core_and_cpu_0_the_rest(intel_box):
    found = probe_tree(intel_box, intel=[INTEL_GPU], nvidia=[NVIDIA_GPU])
    assert scheduler_cores(found) == (0, 4)
    devices = default_devices(found)
    assert [device.id for device in devices] == ["cpu:0", "gpu:0"]
    assert devices[0].cores == (1, 2, 3, 5, 6, 7)
    assert devices[1].runtimes == ("openvino",)


@pytest.mark.parametrize(
    ("cores", "scheduler", "device"),
    [(((0,),), (), (0,)), (((3, 7),), (3,), (7,)), (((0,), (1,)), (0,), (1,))],
)
def test_small_boxes_share_what_they_have(intel_box, cores, scheduler, device):
    found = probe_tree(intel_box)
    small = replace(found, cpu=replace(found.cpu, cores=cores))
    assert scheduler_cores(small) == scheduler
    assert default_devices(small)[0].cores == device


def test_affinity_hides_cores(intel_box):
    write_tree(intel_box, {"proc/self/status": "Cpus_allowed_list:\t1,5-6\n"})
    assert probe_tree(intel_box).cpu.cores == ((1, 5), (6,))


def test_cores_that_are_switched_off_are_not_used(orin_nano):
    # As `nvpmodel` leaves them; the mask still has them all.
    write_tree(orin_nano, {"sys/devices/system/cpu/online": "0-3\n"})
    assert probe_tree(orin_nano).cpu.usable == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/system.slice/laxity.service/cpu.max": "250000 100000\n"},
        {
            "sys/fs/cgroup/system.slice/laxity.service/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "250000 100000\n",
        },
        {
            "proc/self/cgroup": "3:memory:/box\n4:cpu,cpuacct:/docker/0a1b\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["own group", "group around it", "version 1 in a container"],
)
def test_a_cgroup_limit_leaves_whole_cores_on_separate_physical_ones(intel_box, files):
    write_tree(intel_box, files)
    cpu = probe_tree(intel_box).cpu
    assert cpu.quota_cores == 2.5
    assert cpu.cores == ((0,), (1,))


def test_a_limit_under_one_core_still_leaves_one(intel_box):
    write_tree(intel_box, {"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert probe_tree(intel_box).cpu.usable == (0,)


def test_a_cgroup_of_version_1_without_a_limit(intel_box):
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert probe_tree(write_tree(intel_box, files)).cpu.quota_cores is None


@pytest.mark.parametrize("text", ["max", "", "0 100000", "100000 0", "-1 100000", "100000 ?"])
def test_a_limit_that_makes_no_sense_is_none(intel_box, text):
    write_tree(intel_box, {"sys/fs/cgroup/cpu.max": f"{text}\n"})
    assert probe_tree(intel_box).cpu.quota_cores is None


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/system.slice/laxity.service/memory.max": "1073741824\n"},
        {
            "sys/fs/cgroup/system.slice/laxity.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/memory.max": "1073741824\n",
        },
        {
            "proc/self/cgroup": "3:memory:/docker/0a1b\n4:cpu,cpuacct:/docker/0a1b\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        },
    ],
    ids=["own group", "group around it", "version 1 in a container"],
)
def test_the_memory_is_what_the_control_group_may_use(orin_nano, files):
    found = probe_tree(write_tree(orin_nano, files))
    assert found.memory_bytes == 2**30
    assert "Memory  1.0 GiB" in describe(found)


def test_a_limit_above_the_memory_that_there_is_adds_none(orin_nano):
    files = {
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert probe_tree(write_tree(orin_nano, files)).memory_bytes == 7802856 * 1024


def test_an_unknown_arm_core_is_told_by_its_numbers(orin_nano):
    text = ORIN_NANO_CORE.format(cpu=0).replace("0xd42", "0xfff")
    write_tree(orin_nano, {"proc/cpuinfo": text})
    assert probe_tree(orin_nano).cpu.model == "Arm CPU (implementer 0x41, part 0xfff)"


@pytest.mark.parametrize("name", ["proc/meminfo", "proc/self/status"])
def test_a_kernel_file_without_its_line_is_named(intel_box, name):
    write_tree(intel_box, {name: "Other: 1\n"})
    with pytest.raises(ValueError, match=f"{name} has no line"):
        probe_tree(intel_box)


def test_the_lines_for_people(orin_nano):
    lines = describe(probe_tree(orin_nano))
    assert "CPU     Arm Cortex-A78AE (aarch64)" in lines
    assert "        6 cores, 6 threads usable: 0-5" in lines
    assert "Memory  7.4 GiB" in lines
    assert "Board   NVIDIA Jetson Orin Nano Developer Kit (tegra234, L4T 36.4.3)" in lines
    assert (
        "GPU     tegra234 integrated GPU: compute capability 8.7, "
        "not used: its runtime comes with the extra laxity[gpu]"
    ) in lines


def test_what_a_driver_could_not_say_is_told(intel_box):
    note = "NVIDIA's driver could not be asked for its GPUs: Unknown Error"
    found = probe(intel_box, openvino=Found, nvidia=lambda: Found(notes=(note,)))
    assert f"Note    {note}" in describe(found)


def test_the_values_for_programs_are_json(intel_box):
    found = probe_tree(intel_box, intel=[INTEL_GPU])
    values = json.loads(json.dumps(asdict(found)))
    assert values["cpu"]["cores"][0] == [0, 4]
    assert values["accelerators"][0]["device_id"] == "gpu:0"


def test_this_machine():
    found = probe()
    assert set(found.cpu.usable) <= os.sched_getaffinity(0)
    assert found.memory_bytes > 0
    assert default_devices(found)[0].id == "cpu:0"
    for listed in (openvino_devices(), nvidia_gpus()):
        assert all(accelerator.name for accelerator in listed.accelerators)


def test_nvidias_gpus_come_after_intels_and_go_by_their_uuid(intel_box):
    card = replace(NVIDIA_GPU, uuid="GPU-5f2c")

    found = probe_tree(intel_box, intel=[INTEL_GPU], nvidia=[card], cuda=("onnxruntime-cuda",))

    assert [gpu.device_id for gpu in found.accelerators] == ["gpu:0", "gpu:1"]
    device = default_devices(found)[2]
    assert (device.id, device.runtimes) == ("gpu:1", ("onnxruntime-cuda",))
    assert device.options == {"cuda": "GPU-5f2c"}


def test_a_jetsons_gpu_is_a_device_where_a_runtime_computes_on_it(orin_nano):
    devices = default_devices(probe_tree(orin_nano, cuda=("tensorrt",)))

    assert [device.id for device in devices] == ["cpu:0", "gpu:0"]
    assert (devices[1].runtimes, devices[1].options) == (("tensorrt",), {"cuda": 0})


class Nvml:
    """What of `pynvml` is asked, on a box with an A2 and an A100 of two MIG instances."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    class NVMLError_DriverNotLoaded(NVMLError):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    NVML_DEVICE_MIG_ENABLE = 1
    shut_down = False

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self):
        return "580.65.06"

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return ["A2", "A100"][index]

    def nvmlDeviceGetMigMode(self, card):
        if card == "A2":
            raise self.NVMLError_NotSupported
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):
        if index > 1:
            raise self.NVMLError_NotFound
        return f"{card} MIG {index}"

    def nvmlDeviceGetMemoryInfo(self, instance):
        return type("Memory", (), {"total": 2**34})

    def nvmlDeviceGetCudaComputeCapability(self, card):
        return {"A2": (8, 6), "A100": (8, 0)}[card]

    def nvmlDeviceGetName(self, instance):
        return f"NVIDIA {instance}"

    def nvmlDeviceGetUUID(self, instance):
        return f"{'MIG' if 'MIG' in instance else 'GPU'}-5f2c of {instance}"


def test_each_mig_instance_is_a_device_of_its_own():
    nvml = Nvml()

    found = nvidia_gpus(nvml).accelerators

    assert [(gpu.name, gpu.uuid, gpu.compute_capability) for gpu in found] == [
        ("NVIDIA A2", "GPU-5f2c of A2", "8.6"),
        ("NVIDIA A100 MIG 0", "MIG-5f2c of A100 MIG 0", "8.0"),
        ("NVIDIA A100 MIG 1", "MIG-5f2c of A100 MIG 1", "8.0"),
    ]
    assert nvml.shut_down


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("", []),
        ("-1", []),
        ("0", ["A2"]),
        (" 1 ", ["A100 MIG 0", "A100 MIG 1"]),
        ("MIG-5f2c of A100 MIG 1,GPU-5f2c of A2", ["A2", "A100 MIG 1"]),
        ("GPU-5f2c of A1", ["A100 MIG 0", "A100 MIG 1"]),
        ("G", []),
    ],
)
def test_a_gpu_that_cuda_visible_devices_does_not_name_is_left_out(monkeypatch, named, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)

    found = nvidia_gpus(Nvml())

    assert [gpu.name for gpu in found.accelerators] == [f"NVIDIA {name}" for name in expected]
    assert len(found.notes) == 3 - len(expected)
    if "A2" not in expected:
        assert found.notes[0] == "CUDA_VISIBLE_DEVICES leaves out GPU 0: NVIDIA A2"


@pytest.mark.parametrize(("named", "there"), [("", False), ("0", True), ("0,1", True)])
def test_a_jetsons_gpu_can_be_left_out_too(monkeypatch, orin_nano, named, there):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)

    assert bool(probe_tree(orin_nano).accelerators) == there


def test_nvmls_names_are_those_of_the_module():
    import pynvml

    wanted = [name for name in vars(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(wanted) > 12
    assert all(hasattr(pynvml, name) for name in wanted)


def test_a_tegras_gpu_shares_the_memory_of_its_box_and_may_have_no_uuid():
    class Tegra(Nvml):
        def nvmlDeviceGetCount(self):
            return 1

        def nvmlDeviceGetMemoryInfo(self, instance):
            raise self.NVMLError_NotSupported

        nvmlDeviceGetUUID = nvmlDeviceGetMemoryInfo

    (gpu,) = nvidia_gpus(Tegra()).accelerators
    assert (gpu.memory_bytes, gpu.uuid, gpu.driver) == (None, None, "580.65.06")


def test_a_tegras_gpu_goes_by_its_number_since_cuda_does_not_take_its_uuid(orin_nano):
    class Orin(Nvml):
        def nvmlDeviceGetCount(self):
            return 1

        def nvmlDeviceGetUUID(self, instance):
            return "54d0709b-558d-5a59-9c65-0c5fc14a21a4"  # as nvidia-smi -L of JetPack 6 shows it

    found = probe_tree(orin_nano, nvidia=nvidia_gpus(Orin()).accelerators, cuda=("tensorrt",))

    assert default_devices(found)[-1].options == {"cuda": 0}


def test_a_driver_that_does_not_answer_is_a_note_and_one_that_is_absent_is_none():
    class Silent(Nvml):
        def nvmlSystemGetDriverVersion(self):
            raise self.NVMLError("GPU is lost")

    class Barred(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("Insufficient Permissions")

    class Absent(Nvml):
        def nvmlInit(self):
            raise self.NVMLError_LibraryNotFound

    assert nvidia_gpus(Silent()).notes == (
        ("NVIDIA's driver could not describe its GPUs: GPU is lost",)
    )
    assert nvidia_gpus(Barred()).notes == (
        ("NVIDIA's driver could not be asked for its GPUs: Insufficient Permissions",)
    )
    assert nvidia_gpus(Absent()) == Found()


def test_a_gpu_that_is_lost_leaves_the_others():
    class OneLost(Nvml):
        def nvmlDeviceGetHandleByIndex(self, index):
            if index == 0:
                raise self.NVMLError("GPU is lost")
            return super().nvmlDeviceGetHandleByIndex(index)

    found = nvidia_gpus(OneLost())

    assert [gpu.name for gpu in found.accelerators] == ["NVIDIA A100 MIG 0", "NVIDIA A100 MIG 1"]
    assert found.notes == ("NVIDIA's driver could not describe GPU 0: GPU is lost",)


def test_a_box_without_openvino_is_described_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    found = openvino_devices()
    assert found.accelerators == ()
    assert "without OpenVINO" in found.notes[0]


def test_openvinos_gpus_and_npus_are_devices_of_their_own(monkeypatch):
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

        def get_property(self, name, key):
            assert key == "FULL_DEVICE_NAME"
            return f"Intel {name}"

    monkeypatch.setattr("openvino.Core", Core)
    found = openvino_devices().accelerators
    assert [(each.kind, each.device_id, each.name) for each in found] == [
        ("gpu", "gpu:0", "Intel GPU.0"),
        ("gpu", "gpu:1", "Intel GPU.1"),
        ("npu", "npu:0", "Intel NPU"),
    ]

    class Broken(Core):
        def get_property(self, name, key):
            raise RuntimeError("Level Zero is gone")

    monkeypatch.setattr("openvino.Core", Broken)
    assert openvino_devices() == Found(
        (), ("OpenVINO could not describe its devices: Level Zero is gone",)
    )
