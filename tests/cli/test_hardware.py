"""Hardware that ships: listed, shown, answered, refused in one line."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.hardware import hardware
from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.catalogue import all_hardware, hardware_bundle, measured_hardware
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.operators import OPERATORS, Direction

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).parent.parent.parent
LAYOUT = ["--model", "llama-3-8b", "--tp", "4", "--dp", "16", "--micro-batch", "1", "--global-batch", "256"]


def run(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)  # type: ignore[arg-type]


def test_it_is_listed() -> None:
    text = run(hardware).stdout
    assert [name for name in all_hardware() if re.search(rf"^{name} .* yes\b", text, re.MULTILINE)] == list(
        measured_hardware()
    )
    assert all(re.search(rf"^{name} .* (?:yes|no)\b", text, re.MULTILINE) for name in all_hardware())
    values = json.loads(run(hardware, "--json").stdout)
    assert [one["name"] for one in values["hardware"]] == list(all_hardware())
    assert [one["name"] for one in values["hardware"] if one["is_measured"]] == list(measured_hardware())


@pytest.mark.parametrize("name", all_hardware())
def test_each_answers_with_its_memory_and_peak(name: str) -> None:
    result = run(predict, "--hardware", name, *LAYOUT, "--json")
    assert result.exit_code == 0
    estimate = json.loads(result.stdout)
    # Over PCIe, sums of the tensor-parallel group take most of a step.
    assert 0.03 < estimate["mfu"] < 0.7
    assert estimate["memory"]["gpu_memory_bytes"] == devices()[all_hardware()[name].device].memory_bytes
    low_s, high_s = estimate["interval_s"]
    assert 1.2 < high_s / low_s < 3
    # Collectives come from the named fabric, whatever they were measured over.
    assert estimate["provenance"]["collectives"]["name"] == all_hardware()[name].fabric
    assert estimate["provenance"]["collectives"]["kind"] == "described"
    # It says how much of it was measured where, and by whom.
    known = estimate["known"]
    assert sum(known.values()) == pytest.approx(1)
    # Matrix products of the A100 PCIe are the SXM's, corrected by a few rows.
    assert (known["measured"] > 0.2) == (name in measured_hardware() and name != "a100-pcie")
    assert any("github.com" in text or ": " in text for text in estimate["provenance"]["data"])


def test_measured_bundles_hold_what_computes_on_them() -> None:
    for row in measured_hardware().values():
        assert row.bundle is not None
        bundle = Estimator.load(row.bundle).bundle
        assert bundle.entries
        assert not any(OPERATORS[operator].is_collective for operator, _ in bundle.entries)
        # What another device's measurements answer is not in it, unless rows of this one correct them.
        assert all(entry.transfer.correction for entry in bundle.entries.values() if entry.transfer)


def test_what_a_device_lacks_is_carried_over() -> None:
    values = json.loads(run(hardware, "h200-sxm", "--json").stdout)
    known = {(one["operator"], one["direction"]): one for one in values["operators"]}
    assert known["gemm", "forward"]["how"] == "measured"
    assert known["flash_attention", "forward"]["how"] == "transferred"
    assert known["flash_attention", "forward"]["origin"] == "h100-sxm"
    assert known["gelu", "forward"]["origin"] == "gh200"
    assert known["gelu", "forward"]["transfer_error"] > 1
    assert known["swiglu", "forward"]["how"] == "substituted"
    text = run(hardware, "h200-sxm").stdout
    for (operator, direction), one in known.items():
        assert re.search(rf"^{operator} +{direction} .* {one['rows']:,} +[0-9.]+ %", text, re.MULTILINE)
    # It moves as many bytes over a memory that is 1.2 times as fast.
    sizes = [[8, 4096, 8192]]
    on_gh200, on_h200 = (
        Estimator.load(f"hardware:{name}").predictor.answers("gelu", Direction.FORWARD, sizes)[0]
        for name in ("gh200", "h200-sxm")
    )
    assert on_gh200[0] / on_h200[0] == pytest.approx(4800 / 4000, rel=0.01)
    assert on_h200[2] / on_h200[1] > on_gh200[2] / on_gh200[1]


def test_it_says_which_attention_kernel_was_measured_and_takes_another() -> None:
    shown = {
        name: " ".join(run(hardware, name).stdout.split()) for name in ("h100-sxm", "b200-sxm", "a100-pcie")
    }
    assert (
        "attention kernel measured: forward flash-3, backward flash-3; --attention-kernel flash-2, flash-3, cudnn"
        in shown["h100-sxm"]
    )
    assert (
        "attention kernel measured: forward not stated, backward cudnn; no other can be selected"
        in shown["b200-sxm"]
    )
    assert "forward not stated, backward not stated" in shown["a100-pcie"]
    known = {
        (one["operator"], one["direction"]): one["kernel"]
        for one in json.loads(run(hardware, "h100-sxm", "--json").stdout)["operators"]
    }
    assert known["flash_attention", "forward"] == known["flash_attention", "backward"] == "flash-3"
    assert known["gemm", "forward"] is None
    asked = ["--hardware", "h100-sxm", *LAYOUT]
    text = " ".join(run(predict, *asked, "--attention-kernel", "flash-2").stdout.split())
    assert (
        "attention flash-2: forward 1.81 × flash-3, backward 1.76 × flash-3 (measured), by published ratios"
        in text
    )
    assert "attention flash-3, as measured" in " ".join(
        run(predict, *asked, "--attention-kernel", "flash-3").stdout.split()
    )
    assert "as measured" not in run(predict, *asked).stdout
    explained = run(predict, *asked, "--attention-kernel", "flash-2", "--explain", "flash_attention").stdout
    assert "kernel     × 1.808 (flash-2 instead of the measured flash-3)" in explained
    values = json.loads(run(predict, *asked, "--attention-kernel", "flash-2", "--json").stdout)
    assert values["parallelism"]["attention_kernel"] == "flash-2"
    [forward, _] = [one for one in values["warnings"] if one.get("kind") == "attention_kernel"]
    assert (forward["asked"], forward["measured"], round(forward["factor"], 2)) == (
        "flash-2",
        "flash-3",
        1.81,
    )


@pytest.mark.slow
def test_it_says_how_well_measured_steps_on_it_were_predicted() -> None:
    values = json.loads(run(hardware, "a100-sxm-40gb", "--json").stdout)
    [scored] = values["steps"]
    assert scored["steps"] == 78
    assert 0 < scored["mean_abs_error"] < 0.15
    assert "of 78 inside the interval" in " ".join(run(hardware, "a100-sxm-40gb").stdout.split())
    assert "predictions have not been validated" in run(hardware, "l40s").stdout


def test_it_warns_where_the_job_s_software_is_not_that_of_the_measurements() -> None:
    asked = ["--hardware", "h100-sxm", *LAYOUT, "--software", "sglang 0.5.14, TransformerEngine 2.11"]
    printed = " ".join(run(predict, *asked).stdout.split())
    assert "warning: software: not measured with TransformerEngine 2.11, but with " in printed
    assert json.loads(run(predict, *asked, "--json").stdout)["other_software"] == ["TransformerEngine 2.11"]
    assert isinstance(run(predict, *asked[:-1], " , ").exception, UsageError)


def test_a_device_can_be_written_as_one_bundle(tmp_path: Path) -> None:
    output = tmp_path / "h200.kcast"
    assert run(hardware, "h200-sxm", "-o", str(output)).exit_code == 0
    named, written = (
        json.loads(run(predict, *given, *LAYOUT, "--json").stdout)
        for given in (("--hardware", "NVIDIA H200"), ("--bundle", str(output)))
    )
    assert written["step_time_s"] == named["step_time_s"]
    assert written["interval_s"] == named["interval_s"]
    assert written["known"] == named["known"]
    assert hardware_bundle("h200-sxm").files.keys() == Estimator.load(output).bundle.files.keys()


def test_a_search_takes_it_too() -> None:
    result = run(
        search_, "--hardware", "a100-sxm", "--model", "llama-2-7b", "--gpus", "16", "--global-batch", "64"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("step ")
    assert "hardware  16 × NVIDIA A100-SXM4-80GB, 80 GiB, 8 per node" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "tpu-v5"], "hardware 'tpu-v5' is unknown, known are a100-sxm, gh200, h100-sxm, "),
        ([], "neither --bundle nor --hardware is given, expected one of them"),
        (
            ["--hardware", "gh200", "--bundle", "a.kcast"],
            "--bundle and --hardware are both given, expected one of them",
        ),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], message: str) -> None:
    result = run(predict, *arguments, *LAYOUT)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(message)
