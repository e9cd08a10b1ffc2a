"""`kernelcast predict` without a layout: the best one, several hardware, the fewest devices, the largest sizes."""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.runtime import DataError, UsageError
from tests.cli.printed import ended, next_commands, without_next

pytestmark = pytest.mark.usefixtures("wide")

MODEL = ["--model", "llama-2-7b"]
A100 = ["--hardware", "a100-sxm", *MODEL]
BOTH = ["--hardware", "gh200,a100-sxm", *MODEL]
BATCH = ["--gpus", "16", "--global-batch", "64"]


@cache
def text(*arguments: str) -> str:
    """What `predict` prints; several tests look at the same answer."""
    result = CliRunner().invoke(kernelcast, ["predict", *arguments])
    assert result.exit_code == 0, result.exception
    return result.stdout


def values(*arguments: str) -> dict[str, Any]:
    """The same as JSON."""
    found: dict[str, Any] = json.loads(text(*arguments, "--json"))
    return found


def refusal(*arguments: str) -> Exception:
    result = CliRunner().invoke(predict, arguments)
    assert result.stdout == ""
    assert isinstance(result.exception, UsageError | DataError)
    return result.exception


def test_the_best_layout_is_that_of_search() -> None:
    found = values(*A100, *BATCH)
    best = json.loads(CliRunner().invoke(search_, [*A100, *BATCH, "--json"]).stdout)["best"]
    assert found["format"] == "kernelcast.estimate/2"
    assert found["step_time_s"] == best["step_time_s"]
    assert found["interval_s"] == best["interval_s"]
    assert found["memory"]["largest_bytes"] == best["memory_bytes"]
    assert found["cluster"]["source"] == "bundle"
    assert best["parallelism"].items() <= found["parallelism"].items()
    assert len(found["runners_up"]) == 2
    assert all(one["slower"] >= 0 and one["differs_in"] for one in found["runners_up"])


def test_it_shows_what_a_given_layout_shows() -> None:
    lines = without_next(text(*A100, *BATCH, "--tokens", "1T", "--price", "2")).splitlines()
    layout = values(*A100, *BATCH)["parallelism"]
    names = (
        "pp",
        "tp",
        "dp",
        "micro_batch",
        "micro_batches",
        "recompute",
        "schedule",
        "virtual_stages",
        "zero",
    )
    given = [part for name in names for part in (f"--{name.replace('_', '-')}", str(layout[name]))]
    given += ["--sequence-parallel"] if layout["sequence_parallel"] else []
    alone = without_next(text(*A100, *given)).splitlines()
    assert set(alone) <= set(lines)
    added = [line for line in lines if line not in alone]
    assert [line.split(" ")[0] for line in added if re.match(r"\w", line)] == [
        "training",
        "searched",
        "Runners-up",
    ]


def test_given_degrees_are_fixed() -> None:
    found = values(*A100, *BATCH, "--tp", "4", "--recompute", "full")["parallelism"]
    assert (found["tp"], found["recompute"], found["world_size"], found["global_batch"]) == (
        4,
        "full",
        16,
        64,
    )


@pytest.mark.parametrize(
    "layout", [BATCH, ["--tp", "4", "--dp", "4", "--micro-batch", "1", "--global-batch", "64"]]
)
def test_tokens_take_days(layout: list[str]) -> None:
    found = values(*A100, *layout, "--tokens", "1.5T", "--price", "2.50")
    assert found["tokens"] == 1.5e12
    assert found["days"] == pytest.approx(1.5e12 / found["tokens_per_s"] / 86_400)
    low, high = found["days_interval"]
    assert [low, high] == pytest.approx(
        [found["days"] * end / found["step_time_s"] for end in found["interval_s"]]
    )
    assert found["cost"] == pytest.approx(2.5 * found["gpu_hours"])
    assert found["gpu_hours"] == pytest.approx(16 * 24 * found["days"])
    assert found["energy_kwh"] is None


def test_samples_and_epochs_are_steps_and_padding_costs_time() -> None:
    of = ("--samples", "10k", "--epochs", "3", "--price", "2")
    plain = values(*A100, *BATCH, *of)
    length, batch = plain["model"]["sequence_length"], plain["parallelism"]["global_batch"]
    # A sample fills a sequence unless its tokens are given.
    assert (plain["tokens"], plain["steps"]) == (30_000 * length, -(-30_000 // batch))
    assert plain["samples_per_s"] == pytest.approx(batch / plain["step_time_s"])
    as_tokens = values(*A100, *BATCH, "--tokens", str(30_000 * length), "--price", "2")
    assert {**plain, "search": as_tokens["search"]} == as_tokens
    # Two samples in a sequence without padding, then with a fifth of it.
    half = ("--sample-tokens", str(length // 2))
    packed = values(*A100, *BATCH, *of, *half)
    padded = values(*A100, *BATCH, *of, *half, "--packing-efficiency", "0.8")
    assert packed["days"] == pytest.approx(plain["days"] / 2)
    assert padded["days"] == pytest.approx(packed["days"] / 0.8)
    assert padded["cost"] == pytest.approx(packed["cost"] / 0.8)
    assert padded["step_time_s"] == packed["step_time_s"] == plain["step_time_s"]
    for name in ("samples_per_s", "useful_tokens_per_s"):
        assert padded[name] == pytest.approx(0.8 * packed[name])
    shown = text(*A100, *BATCH, *of, *half, "--packing-efficiency", "0.8")
    assert f"{padded['steps']:,} steps" in shown


def test_padding_needs_more_devices() -> None:
    days = ("--global-batch", "256", "--tokens", "100B", "--days", "10", "--recompute", "none")
    plain, padded = (
        values(*A100, *days, *more)["fewest_gpus"] for more in ((), ("--packing-efficiency", "0.5"))
    )
    assert padded["step_time_s"] == pytest.approx(plain["step_time_s"] / 2)
    assert padded["gpus_by_median"] > plain["gpus_by_median"]


def test_a_sample_fits_into_its_sequence() -> None:
    long = CliRunner().invoke(predict, [*A100, *BATCH, "--samples", "9", "--sample-tokens", "1e6"])
    assert "sample_tokens is 1000000.0, expected at most the length of a sample (" in str(long.exception)


def test_a_search_takes_tokens_too() -> None:
    arguments = [*A100, *BATCH, "--tokens", "300B", "--top", "2"]
    lines = CliRunner().invoke(search_, arguments).stdout.splitlines()
    assert any(line.startswith("training  300B tokens in ") for line in lines)
    at = lines.index("Best layouts")
    assert "days" in " ".join(lines[at : at + 5]).split()
    [first, _] = json.loads(CliRunner().invoke(search_, [*arguments, "--json"]).stdout)["top"]
    assert first["days"] == pytest.approx(3e11 / first["tokens_per_s"] / 86_400)
    of = ("--samples", "10k", "--epochs", "3", "--packing-efficiency", "0.8")
    [best] = json.loads(CliRunner().invoke(search_, [*A100, *BATCH, *of, "--top", "1", "--json"]).stdout)[
        "top"
    ]
    same = values(*A100, *BATCH, *of)
    assert best["days"] == pytest.approx(same["days"] * best["step_time_s"] / same["step_time_s"])
    assert best["steps"] == same["steps"]
    shown = CliRunner().invoke(search_, [*A100, *BATCH, *of, "--top", "1"]).stdout
    assert f"{same['steps']:,} steps of" in " ".join(shown.split())


def test_what_a_reference_model_takes() -> None:
    layout = ("--tp", 4, "--dp", 4, "--micro-batch", 1, "--global-batch", 64)
    asked = (*A100, *map(str, layout), "--samples", "10k")
    sft, dpo, precomputed = (
        values(*asked, "--objective", name) for name in ("next_token", "dpo", "dpo_precomputed")
    )
    length = sft["model"]["sequence_length"]
    assert [one["tokens"] for one in (sft, dpo, precomputed)] == [10_000 * length] + 2 * [20_000 * length]
    assert sft["steps"] == dpo["steps"] == precomputed["steps"]
    assert 1.8 < precomputed["days"] / sft["days"] < 2.1
    assert 1.2 < dpo["days"] / precomputed["days"] < 1.5
    line = "reference  its pass over the data before training is not included"
    assert line in text(*asked, "--objective", "dpo_precomputed")
    assert line not in text(*asked, "--objective", "dpo")


def test_the_rate_between_nodes_is_named() -> None:
    layout = ["--tp", "4", "--micro-batch", "1", "--global-batch", "64"]
    [line] = [line for line in text(*A100, *layout, "--dp", "4").splitlines() if line.startswith("network")]
    assert re.fullmatch(
        r"network   200 Gbit/s per device between nodes; "
        r"step \+[\d.]+ % at half, −[\d.]+ % at double that rate",
        line,
    )
    found = values(*A100, *layout, "--dp", "4", "--fabric", "a100-400g")["fabric_rate_sensitivity"]
    assert (found["fabric"], found["gbit_per_s_per_device"]) == ("a100-400g", 50)
    assert found["at_half"] > 0 > found["at_double"]
    one_node = text(*A100, *layout, "--dp", "2")
    assert "fabric  " in one_node
    assert "network" not in one_node


def test_several_hardware_are_ranked() -> None:
    tokens = ["--tokens", "1T", "--price", "a100-sxm=1,gh200=100"]
    by_time = values(*BOTH, *BATCH)
    by_cost = values(*BOTH, *BATCH, *tokens, "--rank-by", "cost")
    assert (by_time["format"], by_time["rank_by"]) == ("kernelcast.comparison/1", "time")
    assert [one["hardware"] for one in by_time["hardware"]] == ["gh200", "a100-sxm"]
    assert [one["hardware"] for one in by_cost["hardware"]] == ["a100-sxm", "gh200"]
    for one in by_cost["hardware"]:
        alone = values("--hardware", one["hardware"], *MODEL, *BATCH)
        assert one["best"]["step_time_s"] == alone["step_time_s"]
        assert one["cost"] == pytest.approx(one["gpu_hours"] * {"a100-sxm": 1, "gh200": 100}[one["hardware"]])
    shown = text(*BOTH, *BATCH, *tokens, "--rank-by", "step-time")
    lines = shown.splitlines()
    assert lines[0] == "best by step time: gh200"
    assert re.split(r"  +", lines[2]) == [
        "hardware", "step", "90 % interval", "grade", "tokens/s", "MFU", "memory", "training", "GPU-hours", "cost",
        "P(best)",
    ]  # fmt: skip
    assert [line.split("  ")[0] for line in lines[7:9]] == ["gh200", "a100-sxm"]
    [alone_command] = next_commands(shown)
    words = shlex.split(alone_command)[1:]
    assert words == ["predict", *MODEL, *BATCH, "--tokens", "1T", "--hardware", "gh200", "--price", "100"]
    assert (
        json.loads(text(*words[1:], "--json"))["step_time_s"] == by_time["hardware"][0]["best"]["step_time_s"]
    )


def test_hardware_that_cannot_be_asked_for_a_kernel_says_why_beside_the_others() -> None:
    asked = [*BATCH, "--attention-kernel", "flash-3", "--zero", "1", "--recompute", "none"]
    gh200, a100 = values(*BOTH, *asked)["hardware"]
    assert gh200["problem"] is None
    assert gh200["best"]["parallelism"]["attention_kernel"] == "flash-3"
    assert a100["hardware"] == "a100-sxm"
    assert a100["problem"].endswith(": flash-3 does not run on Ampere (NVIDIA A100 SXM4 80 GB)")


def test_energy_is_known_where_power_was_measured() -> None:
    layout = ["--gpus", "16", "--global-batch", "64", "--tokens", "1T"]
    found = values("--hardware", "h200-sxm", *MODEL, *layout)
    steps = found["days"] * 86_400 / found["step_time_s"]
    assert found["energy_kwh"] == pytest.approx(steps * found["energy"]["step_kwh"])
    lines = text("--hardware", "h200,gh200", *MODEL, *layout).splitlines()
    known = {line.split()[0]: "kWh" in line for line in lines[4:6]}
    assert known == {"h200-sxm": True, "gh200": False}


def test_hardware_without_a_layout_comes_last() -> None:
    # Heads are a multiple of tp; a GH200 node has one device, so its tp is 1.
    found = values(*BOTH, "--gpus", "2", "--global-batch", "2", "--pp", "1", "--dp", "1")
    assert [one["hardware"] for one in found["hardware"]] == ["a100-sxm", "gh200"]
    assert found["hardware"][1]["best"] is None
    assert "has no valid layout on 2 device(s)" in found["hardware"][1]["problem"]


def test_the_fewest_devices() -> None:
    arguments = [*A100, "--global-batch", "64", "--tokens", "10B", "--days", "3", "--recompute", "none"]
    found = values(*arguments)
    median = found["fewest_gpus"]["gpus_by_median"]
    assert found["parallelism"]["world_size"] == median
    assert found["days"] <= 3
    assert found["fewest_gpus"]["gpus_by_95th_percentile"] >= median
    assert f"devices   fewest: {median} by the median step, " in text(*arguments)


def test_the_largest_sizes() -> None:
    sequence = [*A100, "--gpus", "8", "--global-batch", "8", "--largest", "sequence-length"]
    found = values(*sequence)
    assert found["largest"]["field"] == "sequence_length"
    assert found["model"]["sequence_length"] == found["largest"]["value"]
    assert found["memory"]["fits"]
    found = values(*A100, "--gpus", "8", "--micro-batches", "2", "--largest", "global-batch")
    assert found["parallelism"]["global_batch"] == found["largest"]["value"]
    assert found["parallelism"]["micro_batches"] == 2
    assert f"sequence length {values(*sequence)['largest']['value']:,} is the largest that fits" in text(
        *sequence
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*A100, *BATCH, "--tp", "2", "--pp", "2", "--dp", "2"],
            "gpus is 16, expected pp · tp · dp (2 · 2 · 2 = 8)",
        ),
        (
            [*A100, *BATCH, "--tokens", "15X"],
            "--tokens is '15X', expected a whole number from 1 to 1e18, such as",
        ),
        ([*A100, *BATCH, "--tokens", "1.5"], "--tokens is '1.5', expected a whole number from 1"),
        (
            [*A100, *BATCH, "--tokens", "1T", "--price", "x"],
            "--price is 'x', expected a price of a device for one hour",
        ),
        (
            [*A100, *BATCH, "--tokens", "1T", "--price", "1,2"],
            "--price is '1,2', expected a price of a device",
        ),
        (
            [*BOTH, *BATCH, "--tokens", "1T", "--rank-by", "cost"],
            "rank_by cost is given without price of gh200, ",
        ),
        (
            [*BOTH, *BATCH, "--tokens", "1T", "--rank-by", "energy"],
            "rank_by is 'energy', expected another: the energy on ",
        ),
        (
            [*BOTH, *BATCH, "--tokens", "1T", "--price", "b200=1"],
            "price names hardware 'b200-sxm', expected one of gh200, a100-sxm",
        ),
        (
            ["--hardware", "gh200,tpu-v5", *MODEL, *BATCH],
            "hardware 'tpu-v5' is unknown, known are a100-sxm, gh200",
        ),
        (
            [*A100, "--gpus", "16"],
            "global_batch is not given, which a search for a layout needs",
        ),
        (
            [*A100, "--global-batch", "16"],
            "micro_batch is not given; to search for a layout, give gpus and global_batch",
        ),
        ([*A100, *BATCH, "--gpu-memory", "1GB"], "none of "),
        ([*BOTH, *BATCH, "--gpu-memory", "1GB"], "gh200: none of "),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    error = str(refusal(*arguments))
    assert error.startswith(message)
    assert len(error.splitlines()) == 1


def test_a_bundle_without_nodes_needs_them(make_bundle: Callable[..., Path]) -> None:
    arguments = [
        "--bundle",
        str(make_bundle()),
        *MODEL,
        "--global-batch",
        "8",
        "--tokens",
        "1B",
        "--days",
        "3",
    ]
    assert str(refusal(*arguments)) == ("gpus_per_node is neither given nor in the bundle, which days needs")


def test_what_one_device_is_asked_for_is_refused_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "predict --hardware h100-sxm,b200-sxm --model llama-3-8b --gpus 8 --global-batch 64 --software x"
    assert ended(*asked.split()) == 2
    assert (
        capsys.readouterr().err
        == "kernelcast: error: --hardware names 2 devices with --software, expected one\n"
    )
