"""Cases and searches asked again, each with its differences from the golden files."""

from collections.abc import Mapping
from typing import Any

from tests.golden.answers import answer_to, searched
from tests.golden.differences import RELATIVE, Difference, differences
from tests.golden.files import DEVICES, Case, golden_answers, golden_searches, reduced


def case_differences(device: str, case: Case) -> list[Difference]:
    """Where the code as it is answers otherwise; one with the error's name where it fails."""
    golden = golden_answers(device)[case.key]
    try:
        now = reduced(device, answer_to(device, case)[0])
    except Exception as error:  # shown as a difference: whoever compares wants to see the other cases too
        return [Difference(device, case.key, "refused", golden.get("refused", "answered"), f"{error!r:.120}")]
    return list(differences(device, case.key, golden, now))


def search_differences(question: Mapping[str, Any]) -> list[Difference]:
    """Where a search answers otherwise. Layouts of equal time may come in any order."""
    device, name = DEVICES[0], f"search: {question['name']}"
    golden, now = golden_searches()[question["name"]], searched(device, question)
    if "refused" in golden or "refused" in now:
        return list(differences(device, name, golden, now))
    return list(differences(device, name, _in_order(golden), _in_order(now)))


def _in_order(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Answer with its layouts sorted within equal scores; in the last group, which `top` may cut, only scores."""
    result = dict(answer)
    result["top"], result["front"] = (_sorted(answer[name], name == "top") for name in ("top", "front"))
    return result


def _sorted(ranked: list[dict[str, Any]], is_cut: bool) -> list[dict[str, Any]]:
    groups: list[list[dict[str, Any]]] = []
    for one in ranked:
        last = groups[-1][-1] if groups else None
        same = last is not None and abs(last["step_time_s"] / one["step_time_s"] - 1) < RELATIVE
        if same:
            groups[-1].append(one)
        else:
            groups.append([one])
    for group in groups:
        group.sort(key=lambda one: one["layout"])
    if is_cut and len(groups[-1]) > 1:
        groups[-1] = [{"step_time_s": one["step_time_s"]} for one in groups[-1]]
    return [one for group in groups for one in group]
