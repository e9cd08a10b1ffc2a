"""Formats that a device has no units for, and power limits."""

from dataclasses import replace

import pytest

from kernelcast.runtime import Estimator, Parallelism, UsageError, load_model
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import power_exponent, sustained_flops_per_s


@pytest.mark.parametrize(
    ("hardware", "recipe", "units"),
    [("h100-sxm", "mxfp8", "mxfp8"), ("a100-sxm", "tensorwise", "float8"), ("mi355x", "nvfp4", "nvfp4")],
)
def test_a_format_without_units_is_refused_with_the_devices_that_have_them(
    hardware: str, recipe: str, units: str
) -> None:
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1, fp8_recipe=recipe)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=rf"^fp8_recipe is '{recipe}', .* has no units for {units}; .*b200-sxm.* have$"
    ):
        Estimator.load(hardware).predict(model=load_model("llama-3-8b"), parallelism=layout)


def test_a_power_limit_scales_what_is_sustained_by_the_measured_law() -> None:
    of = device("h100-sxm")
    usual, limited = (sustained_flops_per_s(of, "bfloat16", limit) for limit in (0.0, 500.0))
    assert usual is not None
    assert limited is not None
    assert limited / usual == pytest.approx((500 / 700) ** power_exponent("Hopper"))
    model = load_model("llama-3-8b")
    times = [
        Estimator.load("h100-sxm")
        .predict(
            model=model,
            parallelism=Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1, power_limit_w=limit),
        )
        .step_time_s
        for limit in (0.0, 500.0)
    ]
    assert 1 < times[1] / times[0] <= usual / limited


def test_a_power_limit_slows_attention_as_products_and_no_copy() -> None:
    estimator, model = Estimator.load("h100-sxm"), load_model("llama-3-8b")
    usual, limited = (
        {
            (row.component, row.operator, row.direction): row.time_us
            for row in estimator.predict(
                model=model,
                parallelism=Parallelism(
                    pp=1,
                    tp=1,
                    dp=8,
                    micro_batch=1,
                    micro_batches=1,
                    power_limit_w=limit,
                    attention_kernel="flash-2",
                ),
            ).operators
        }
        for limit in (0.0, 500.0)
    )
    slower = (700 / 500) ** power_exponent("Hopper")
    for (_, operator, _), (before_us, after_us) in zip(
        usual, zip(usual.values(), limited.values(), strict=True), strict=True
    ):
        if operator == "flash_attention":
            assert after_us / before_us == pytest.approx(slower)
        elif operator in ("rms_norm", "residual_add", "adam"):
            assert after_us == before_us


@pytest.mark.parametrize(("hardware", "transposes"), [("h100-sxm", True), ("b200-sxm", False)])
def test_frozen_weights_in_8_bit_are_transposed_where_products_read_one_order(
    hardware: str, transposes: bool
) -> None:
    estimator, model = Estimator.load(hardware), load_model("llama-3-8b")
    layout = Parallelism(
        pp=1,
        tp=1,
        dp=8,
        micro_batch=1,
        micro_batches=1,
        kept_by="megatron",
        fp8_recipe="delayed",
        lora_rank=16,
    )
    kept, in_8_bit = (
        estimator.predict(model=model, parallelism=replace(layout, fp8_weights=one)).step_time_s
        for one in (False, True)
    )
    assert in_8_bit == pytest.approx(kept, rel=1e-6) if not transposes else in_8_bit > 1.005 * kept
