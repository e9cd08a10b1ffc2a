"""What plans measure, to the number: `planned_points.txt`, which WRITE_PLANNED_POINTS=1 pytest THIS_FILE writes again.

A change of these points is a change of what is measured under the same name of a plan.
"""

import os
from pathlib import Path

from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_for import plan_for, plan_text

POINTS = Path(__file__).with_name("planned_points.txt")
PAIR = ["llama-2-7b", "deepseek-v3"]


def told() -> str:
    """Of every operator and role of three plans, one of them for models, the number of its points and some of them."""
    lines = []
    of_models = plan_for(PAIR, "tp2,tp8,cp2,ep8,pp4")
    for name, plan, operators in (
        ("quick", load_plan("quick"), ()),
        ("modern", load_plan("modern"), ()),
        ("two models", of_models, ("adam", "gradient_zero", "gradient_clip", "gemm")),
    ):
        vectors: dict[tuple[str, str], list[str]] = {}
        for point in compute_points(plan, operators):
            vectors.setdefault((point.operator, point.role), []).append("×".join(map(str, point.vector)))
        for (operator, role), found in vectors.items():
            lines.append(f"{name} {operator} {role}: {len(found)}, {', '.join(found[:4])} … {found[-1]}")
        lines.append(f"{name} all_gather: {plan.entries('all_gather', processes=8, element_bytes=4)}")
    return "\n".join([*lines, plan_text(of_models, PAIR)])


def test_what_is_measured() -> None:
    if "WRITE_PLANNED_POINTS" in os.environ:
        POINTS.write_text(told(), encoding="utf-8")
    assert told() == POINTS.read_text(encoding="utf-8")
