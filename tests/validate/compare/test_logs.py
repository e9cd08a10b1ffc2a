"""Step times out of the logs of training frameworks."""

from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.validate.compare.logs import logged_steps

# Steps of 16 samples and 65,536 tokens on 4 devices.
LOGS = {
    "Megatron-LM": (
        " [2026-01-01 10:00:00] iteration   {n}/  500 | consumed samples:   16 | elapsed time per iteration (ms): "
        "2000.5 | throughput per GPU (TFLOP/s/GPU): 300.1 | learning rate: 1E-05 |",
        2.0005,
    ),
    "torchtitan": (
        "[rank0]:\x1b[31mstep: {n}  \x1b[32mloss:  7.1  \x1b[38;2;180;60;0mmemory: 20.1GiB(25%)  \x1b[34mtps: 8,192"
        "  \x1b[36mtflops: 1.2  mfu: 40%\x1b[39m",
        2.0,
    ),
    "NeMo": (
        "Training epoch 0, iteration {n}/149 | lr: 3e-05 | global_step: {n} | train_step_timing in s: 2.5 | x: 1",
        2.5,
    ),
    "DeepSpeed": (
        "[INFO] [timer.py:199:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=4.0, "
        "CurrSamplesPerSec=8.0, MemAllocated=1.0GB, MaxMemAllocated=2.0GB",
        2.0,
    ),
    "Hugging Face Trainer": (" {n}%|█▎        | {n}/1000 [01:02<33:20,  2.06s/it]", 2.06),
    "Composer": ("\t Train throughput/batches_per_sec: 0.5000", 2.0),
}


def read(path: Path, text: str) -> tuple[str, float, int]:
    path.write_text(text)
    found = logged_steps(path, samples=16, tokens=65_536, devices=4)
    return found.framework, found.median_s, len(found.steps_s)


@pytest.mark.parametrize("framework", LOGS)
def test_a_log_of_every_framework(tmp_path: Path, framework: str) -> None:
    line, step_s = LOGS[framework]
    text = "starting\n" + "".join(line.format(n=n) + "\n" for n in range(1, 8)) + "done\n"
    assert read(tmp_path / "train.log", text) == (framework, pytest.approx(step_s), 5)


@pytest.mark.parametrize(
    ("text", "framework", "step_s"),
    [
        ("{'train_runtime': 9.1, 'train_samples_per_second': 4.1, 'train_steps_per_second': 0.25}",
         "Hugging Face Trainer", 4.0),
        ("50%|█ | 50/100 [00:10<00:10,  4.00it/s]", "Hugging Face Trainer", 0.25),
        ("throughput/tokens_per_sec: 65536.0", "Composer", 1.0),
        ("throughput/device/tokens_per_sec: 16384.0", "Composer", 1.0),
        ("steps=10, SamplesPerSec=16.0, MemAllocated=1GB", "DeepSpeed", 1.0),
        ("elapsed time per iteration (ms): 1.5e3", "Megatron-LM", 1.5),
    ],
)  # fmt: skip
def test_other_wordings(tmp_path: Path, text: str, framework: str, step_s: float) -> None:
    assert read(tmp_path / "train.log", text) == (framework, pytest.approx(step_s), 1)


def test_the_first_steps_warm_up(tmp_path: Path) -> None:
    times = [30_000, 4_000, 1_000, 1_100, 900]
    text = "".join(f"elapsed time per iteration (ms): {ms} |\n" for ms in times)
    assert read(tmp_path / "train.log", text) == ("Megatron-LM", 1.0, 3)
    # Of four none is left out.
    assert read(tmp_path / "train.log", text.rpartition("elapsed")[0]) == (
        "Megatron-LM",
        pytest.approx(2.55),
        4,
    )


@pytest.mark.parametrize("text", ["", "iteration 3: loss 2.5\n", "tps: 0\n"])
def test_a_log_without_step_times(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="tells no step time, expected a log of Megatron-LM, NeMo"):
        read(tmp_path / "train.log", text)


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.log: no such file, expected a training log"):
        logged_steps(tmp_path / "none.log", samples=1, tokens=1, devices=1)
