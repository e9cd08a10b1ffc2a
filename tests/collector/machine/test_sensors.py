"""Clock, power and temperature as a machine states them, from files and a driver that the test writes."""

import ctypes
from pathlib import Path

import pytest

from kernelcast.collector.machine import probe_gpu
from kernelcast.collector.machine.sensors import CpuSensors, GpuSensors, PowerMeter, Reading, Sensors


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def cpuinfo(*clocks: str, flags: str) -> str:
    return "\n\n".join(
        f"processor\t: {number}\ncpu MHz\t\t: {clock}\nflags\t\t: fpu {flags}"
        for number, clock in enumerate(clocks)
    )


def test_a_machine_that_states_nothing(tmp_path: Path) -> None:
    assert CpuSensors((0,), root=tmp_path).read() == Reading()
    assert Sensors().read() == Reading()


def test_the_clock_is_that_of_the_cores_that_measure(tmp_path: Path) -> None:
    for core, khz in enumerate((1_000_000, 2_400_000, 2_500_000)):
        write(tmp_path, **{f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": f"{khz}\n"})
    write(tmp_path, **{"proc/cpuinfo": cpuinfo("9", "9", "9", flags="aperfmperf")})
    assert CpuSensors((1, 2), root=tmp_path).read().clock_mhz == 2450.0


@pytest.mark.parametrize(("flags", "expected"), [("aperfmperf sse", 3100.5), ("sse", None)])
def test_a_nominal_rate_is_no_reading(tmp_path: Path, flags: str, expected: float | None) -> None:
    write(tmp_path, **{"proc/cpuinfo": cpuinfo("2600.000", "3100.500", flags=flags)})
    assert CpuSensors((1,), root=tmp_path).read().clock_mhz == expected


def test_the_temperature_is_the_hottest_of_the_cpus(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon1"
    write(
        tmp_path,
        **{
            "sys/class/hwmon/hwmon0/name": "nvme",
            "sys/class/hwmon/hwmon0/temp1_input": "99000",
            f"{chip}/name": "k10temp\n",
            f"{chip}/temp1_input": "61250",
            f"{chip}/temp2_input": "58000",
        },
    )
    assert CpuSensors((0,), root=tmp_path).read().temperature_c == 61.25
    zone = "sys/class/thermal/thermal_zone3"
    write(tmp_path, **{f"{zone}/type": "x86_pkg_temp\n", f"{zone}/temp": "70000\n"})
    assert CpuSensors((0,), root=tmp_path).read().temperature_c == 70.0


def test_power_is_the_energy_of_all_packages_over_the_time(tmp_path: Path) -> None:
    def state(first_uj: int, second_uj: int) -> None:
        for number, energy_uj in enumerate((first_uj, second_uj)):
            zone = f"sys/class/powercap/intel-rapl:{number}"
            write(tmp_path, **{f"{zone}/name": f"package-{number}\n", f"{zone}/energy_uj": f"{energy_uj}\n"})
        core = "sys/class/powercap/intel-rapl:0:0"
        write(tmp_path, **{f"{core}/name": "core\n", f"{core}/energy_uj": "1\n"})

    sensors = CpuSensors((0,), root=tmp_path)
    moments = iter((10.0, 12.0, 13.0, 14.0))
    sensors._meter._clock = lambda: next(moments)
    state(5_000_000, 1_000_000)
    assert sensors.read().power_w is None  # since when?
    state(105_000_000, 41_000_000)
    assert sensors.read().power_w == 70.0  # 100 J and 40 J in 2 s
    state(1_000_000, 50_000_000)
    assert sensors.read().power_w is None  # a counter restarted
    (tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    assert sensors.read().power_w is None  # one package alone is not the machine


def test_means_leave_out_what_was_not_read() -> None:
    readings = [Reading(clock_mhz=1000.0, power_w=300.0), Reading(clock_mhz=1100.0), Reading()]
    assert Reading.mean(readings) == Reading(clock_mhz=1050.0, power_w=300.0)
    assert Reading.mean([]) == Reading()


class Driver:
    """A library of the driver that answers with numbers, or a status; calls that are not there are an older one's."""

    def __init__(self, **answers: int) -> None:
        self.answers = answers
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> object:
        if name not in self.answers:
            raise AttributeError(name)

        def call(handle: object, *arguments: object) -> int:
            *given, place = arguments
            self.asked.append((name, tuple(one.value for one in given)))  # type: ignore[attr-defined]
            if self.answers[name] < 0:
                return -self.answers[name]
            place._obj.value = self.answers[name]  # type: ignore[attr-defined]
            return 0

        return call


def gpu(**answers: int) -> tuple[probe_gpu.Gpu, Driver]:
    driver = Driver(**answers)
    return probe_gpu.Gpu(driver, ctypes.c_void_p()), driver  # type: ignore[arg-type]


def test_what_a_driver_says_in_its_units() -> None:
    found, driver = gpu(
        nvmlDeviceGetClockInfo=1410,
        nvmlDeviceGetTemperature=67,
        nvmlDeviceGetPowerUsage=397_500,
        nvmlDeviceGetTotalEnergyConsumption=2**40,
    )
    assert (found.clock_mhz(), found.temperature_c(), found.power_w()) == (1410, 67, 397.5)
    assert found.energy_j() == 2**40 / 1000  # milliwatts and millijoules
    # The clock of the multiprocessors is number 1, the sensor of the chip number 0 (nvml.h).
    assert driver.asked[:2] == [("nvmlDeviceGetClockInfo", (1,)), ("nvmlDeviceGetTemperature", (0,))]


def test_a_driver_that_refuses_or_lacks_a_call() -> None:
    found, _ = gpu(nvmlDeviceGetPowerUsage=-3)  # NVML_ERROR_NOT_SUPPORTED
    assert (found.power_w(), found.energy_j(), found.clock_mhz()) == (None, None, None)
    assert GpuSensors(found).read() == Reading()


def test_power_of_a_gpu_is_counted_where_it_can_be() -> None:
    found, driver = gpu(nvmlDeviceGetTotalEnergyConsumption=1000, nvmlDeviceGetPowerUsage=90_000)
    sensors = GpuSensors(found)
    moments = iter((1.0, 3.0))
    sensors._meter = PowerMeter(found.energy_j, lambda: next(moments))
    assert sensors.read().power_w == 90.0  # the driver's mean, nothing counted yet
    driver.answers["nvmlDeviceGetTotalEnergyConsumption"] = 1_401_000
    assert sensors.read().power_w == 700.0
