"""The page of steps of today is what is kept, and every published step is on it."""

from collections import Counter

from kernelcast.docs.generate_today import PAGE, TEXT, kept, page
from kernelcast.validate.runs import RunsFile
from kernelcast.validate.steps import TODAY, shipped_runs


def test_the_page_is_current() -> None:
    assert page(TEXT.read_text(encoding="utf-8"), kept()) == PAGE.read_text(encoding="utf-8")


def test_every_published_step_is_asked_or_named_with_the_reason() -> None:
    counts = Counter(row["source"] for row in kept())
    assert counts["NVIDIA-NeMo/Megatron-Bridge"] + counts["pytorch/torchtitan"] == 169
    assert counts["MLCommons"] == 141
    assert all(row["predicted_s"] or row["note"] for row in kept())


def test_what_is_kept_is_of_the_runs_files_as_they_are() -> None:
    steps = Counter(row["step"] for row in kept())
    for path in shipped_runs(names=TODAY):
        file = RunsFile.read(path)
        assert not Counter(run.label for run in file.runs) - steps
        assert not Counter(text.rpartition(": ")[0] for text in file.left_out) - steps
