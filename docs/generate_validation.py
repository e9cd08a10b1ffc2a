"""Write docs/validation.md from the results that docs/keep_result.py keeps in docs/validation/ (`make validate`)."""

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast.docs.markdown import percent, table

signed = partial(percent, is_signed=True)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "validation"
PAGE = ROOT / "docs" / "validation.md"
TEXT = RESULTS / "page.md"
# Where in page.md each kind of result goes, by the format that it names.
PLACES = {
    "kernelcast.published_validation/2": "published",
    "kernelcast.steps/1": "steps of others",
    "kernelcast.effects/1": "options",
    "kernelcast.calibration/1": "calibration",
    "kernelcast.validation-run/2": "real steps",
}


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    text = (results / "page.md").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {place: [] for place in PLACES.values()}
    for path in sorted(results.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        place = PLACES[kept["result"]["format"]]
        sections[place] += [*_heading(kept), *_TABLES[place](kept["result"])]
    for place, lines in sections.items():
        found = "\n".join(lines).rstrip("\n") + "\n" if lines else _NOTHING
        text = text.replace(f"<!-- {place} -->\n", found)
    return text


# In the order of the paper's Table IX, the step last.
_COMPONENTS = (
    "Encoder_Fwd", "Encoder_Bwd", "Stage_Fwd_Max", "Stage_Bwd_Max", "DP_Allreduce", "DP_Allgather", "Max_Update",
    "MP_Allreduce", "PP_P2P", "Overall",
)  # fmt: skip
_NOTHING = "No result is kept in docs/validation/ yet.\n"


def _heading(kept: dict[str, Any]) -> Iterator[str]:
    yield f"`{kept['command']}`  "
    yield f"{kept['date']}, kernelcast {kept['version']}, on {kept['machine']}"
    yield ""


def _published(result: dict[str, Any]) -> Iterator[str]:
    """Steps, then components, of `validate published --json`."""
    yield f"{result['site']} ({result['hardware']}); measured: {result['source']}."
    yield ""
    heads = (
        "model (pp-tp-dp)", "measured", "closed form", "error", "90 % interval", "simulated", "error",
        "published error",
    )  # fmt: skip
    rows = [
        (
            run["label"],
            f"{run['measured_s']:.3f} s",
            f"{run['predicted_s']:.3f} s",
            signed(run["error"]),
            _interval_s(run),
            f"{run['simulated_s']:.3f} s",
            signed(run["simulated_error"]),
            signed(run["published_error"]),
        )
        for run in result["runs"]
    ]
    mean = (
        "mean of absolute errors",
        "",
        "",
        percent(result["mean_abs_error"]),
        f"{sum(bool(run['is_inside']) for run in result['runs'])} of {len(result['runs'])} inside",
        "",
        percent(result["mean_abs_simulated_error"]),
        percent(result["mean_abs_published_error"]),
    )
    yield from table(heads, [*rows, mean])
    if any(run["implied_step_s"] is not None for run in result["runs"]):
        yield ""
        yield "Errors of components, closed form; in brackets the published prediction's:"
        yield ""
        yield from _components(result["runs"])
    yield ""
    yield from _doubts(result["training"])
    yield ""


def _doubts(training: dict[str, Any]) -> Iterator[str]:
    """What a training left out, and how wide intervals are outside the measured range."""
    doubtful = training["doubtful"]
    yield (
        f"Of {training['samples']:,} samples {doubtful['impossible']:,} are impossible and {doubtful['outlier']:,} "
        "outliers; they train nothing ([trust.md](trust.md)):"
    )
    yield ""
    yield from (
        f"- {one['operator']} ({one['direction']}): {one['reason']}"
        for one in training["skipped"]
        if "flagged" in one["reason"]
    )
    yield ""
    yield (
        f"Mean error of the operators {percent(training['mean_validation_error'])}, of collectives "
        f"{percent(training['mean_collective_error'])}; held-out rows within their 90 % interval "
        f"{percent(training['mean_coverage'])}. Outside the fitted range, by distance:"
    )
    yield ""
    heads = ("held out", "distance, doublings", "rows", "within the interval")
    rows = []
    low = 0.0
    for one in training["held_out"]:
        low = low if one["kind"] == (rows[-1][0] if rows else "") else 0.0
        high = one["doublings"]
        distance = (
            "–" if one["kind"] == "role" else f"above {low:g}" if high is None else f"{low:g} to {high:g}"
        )
        rows.append((one["kind"], distance, f"{one['rows']:,}", percent(one["inside"])))
        low = high or low
    yield from table(heads, rows)
    yield ""
    yield "What a doubling adds to the interval, as a factor of the time; `role` is what a new role adds:"
    yield ""
    rows = [
        (
            f"{one['operator']} ({one['direction']})",
            factor(one["widening"]["size_per_doubling"]),
            factor(one["widening"]["layout_per_doubling"]) if one["layouts"] else "–",
            factor(one["widening"]["new_role"]) if len(one["roles"]) > 1 else "–",
        )
        for one in training["operators"]
    ]
    yield from table(("operator", "size", "layout", "role"), rows)


def _interval_s(run: dict[str, Any]) -> str:
    low_s, high_s = run["interval_s"]
    return f"{low_s:.2f} to {high_s:.2f} s, {'inside' if run['is_inside'] else 'outside'}"


def _components(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = [component["name"] for component in runs[0]["components"]]
    rows = []
    for index, name in enumerate(names):
        found = [run["components"][index] for run in runs]
        rows.append((name, *(f"{signed(c['error'])} ({signed(c['published_error'])})" for c in found)))
    steps = [
        signed(run["implied_step_s"] / run["measured_s"] - 1) if run["implied_step_s"] else "–"
        for run in runs
    ]
    rows.append(("step of the implied components", *steps))
    yield from table(("component", *(run["label"] for run in runs)), rows)


def _steps_of_others(result: dict[str, Any]) -> Iterator[str]:
    """Scores by model of every runs file, of `validate steps --json`."""
    heads = (
        "steps of", "model", "steps", "mean error", "mean absolute", "in interval", "half-width", "memory error",
        "largest", "least left", "predicted too large", "published error",
    )  # fmt: skip
    rows = [
        (
            file["site"],
            score["model"],
            str(score["steps"]),
            signed(score["mean_error"]),
            percent(score["mean_abs_error"]),
            f"{score['inside']} of {score['predicted']}",
            percent(score["median_half_width"]),
            signed(score["mean_memory_error"]),
            signed(score["largest_memory_error"]),
            "–" if score["least_margin_gib"] is None else f"{score['least_margin_gib']:.1f} GiB",
            str(score["too_large"] or "–"),
            percent(score["mean_abs_published_error"]),
        )
        for file in result["files"]
        for score in file["scores"]
    ]
    yield from table(heads, rows)
    yield ""
    for file in result["files"]:
        licence = f" ({file['licence']})" if file["licence"] else ""
        yield (
            f"- {file['site']}: {file['hardware']}; {file['stack']}. "
            f"Predicted as `{file['asked']}` over `{file['fabric']}`. Measured: {file['source']}{licence}."
        )
        yield from (
            f"  Not predicted: {step['label']}: {step['reason']}" for step in file["steps"] if step["reason"]
        )
    yield ""


def _options(result: dict[str, Any]) -> Iterator[str]:
    """Mean and mean absolute error of every source with each option, of `validate steps --effects --json`."""
    stated = result["options"][0]["effects"]
    heads = ("option", *(f"{effect['site']}, {effect['steps']}" for effect in stated))
    rows = [
        (
            "as stated" if one["field"] is None else f"`{one['field']}={_toml(one['value'])}`",
            *(
                f"{signed(effect['mean_error'])}, {percent(effect['mean_abs_error'])}"
                if effect["changed"] or one["field"] is None
                else "="
                for effect in one["effects"]
            ),
        )
        for one in result["options"]
    ]
    yield from table(heads, rows)
    yield ""


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _calibration(result: dict[str, Any]) -> Iterator[str]:
    """Errors before and after, of `calibrate --json`."""
    calibration, means = result["calibration"], result["mean_abs_error"]
    yield f"Timeline {calibration['timeline']}, {calibration['parameters']} parameter(s):"
    yield ""
    rows = [
        (
            run["label"],
            f"{run['measured_s']:.3f} s",
            signed(run["error_before"]),
            signed(run["error_left_out"]),
            signed(run["error_after"]),
        )
        for run in calibration["runs"]
    ]
    means_row = (
        "mean of absolute errors",
        "",
        *(percent(means[name]) for name in ("before", "left_out", "after")),
    )
    yield from table(("step", "measured", "before", "left out", "fitted"), [*rows, means_row])
    listed = ", ".join(f"{n}: {percent(error)}" for n, error in result["left_out_by_parameters"].items())
    factors = ", ".join(f"{one['class']} {one['factor']:.3f}" for one in result["classes"])
    yield ""
    yield f"Left out, by number of parameters: {listed}. Factors: {factors}."
    yield ""


def _real_steps(result: dict[str, Any]) -> Iterator[str]:
    """Steps, noise, then components, of `validate run --json`."""
    noise = result["noise"]
    yield (
        f"{result['hardware']}; {result['software']}; steps measured until {result['measured_at'][:10]}. "
        f"Predicted from {result['statistic']} times of operators."
    )
    yield ""
    heads = (
        "model", "pp-tp-dp", "b × m", "ZeRO, recompute", "predicted", "fastest", "10th percentile", "median", "error",
        "90 % interval", "noise",
    )  # fmt: skip
    rows = [
        (
            *_configuration(run),
            *(milliseconds(run[name]) for name in ("predicted_s", "measured_s", "p10_s", "median_s")),
            signed(run["error"]),
            _interval(run),
            percent(run["noise"]),
        )
        for run in result["runs"]
    ]
    yield from table(heads, rows)
    yield ""
    yield (
        f"Mean of absolute errors {percent(result['mean_abs_error'])} (closed form "
        f"{percent(result['closed_form_mean_abs_error'])}), worst {signed(result['worst_error'])}. "
        "Of each repetition (mean, worst): "
        + "; ".join(
            f"{percent(one['mean_abs_error'])}, {percent(one['worst_abs_error'])}"
            for one in result["repetitions"]
        )
        + f". Inside of the predicted interval: {result.get('inside', '–')} of {len(rows)}. "
        "The machine's own noise: the fastest steps of the rounds of one configuration lie "
        f"{percent(noise['steps'])} apart on average, {percent(noise['largest'])} at most; a reference product's quiet "
        f"times {percent(noise['reference'])}."
    )
    if traced := [run for run in result["runs"] if run.get("traced_s")]:
        longer = sorted(run["traced_s"] / run["measured_s"] - 1 for run in traced)
        gaps = sorted(run["traced_gaps_s"] / run["traced_s"] for run in traced)
        yield ""
        yield (
            f"Gaps between operators: within the passes of one process nothing ran in {percent(gaps[0])} to "
            f"{percent(gaps[-1])} of a traced step. The profiler itself makes steps {signed(longer[0])} to "
            f"{signed(longer[-1])} longer."
        )
    yield ""
    yield "Errors of components:"
    yield ""
    there = {one["name"] for run in result["runs"] for one in run["components"]}
    names = [name for name in _COMPONENTS if name in there]
    rows = []
    for run in result["runs"]:
        errors = {one["name"]: one["error"] for one in run["components"]}
        rows.append((*_configuration(run), *(signed(errors.get(name)) for name in names)))
    yield from table((*heads[:4], *names), rows)
    yield ""


def _interval(run: dict[str, Any]) -> str:
    """The predicted interval, and whether the fastest step lies in it."""
    if run.get("interval_s") is None:  # a result of before there were intervals
        return "–"
    low_s, high_s = run["interval_s"]
    return f"{1e3 * low_s:.1f} to {1e3 * high_s:.1f} ms, {'inside' if run['inside'] else 'outside'}"


def _configuration(run: dict[str, Any]) -> tuple[str, ...]:
    degrees = f"{run['pp']}-{run['tp']}-{run['dp']}"
    degrees += "".join(f", {name} {run[name]}" for name in ("cp", "ep") if run.get(name, 1) > 1)
    return (
        run["model"],
        degrees,
        f"{run['micro_batch']} × {run['micro_batches']}",
        f"{run['zero']}, {run['recompute']}",
    )


_TABLES = {
    "published": _published,
    "steps of others": _steps_of_others,
    "options": _options,
    "calibration": _calibration,
    "real steps": _real_steps,
}


def milliseconds(value_s: float) -> str:
    """`12.3 ms`."""
    return f"{1e3 * value_s:.1f} ms"


def factor(log_half_width: float) -> str:
    """`1.05×`."""
    return f"{math.exp(log_half_width):.2f}×"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
