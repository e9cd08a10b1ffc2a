"""Runs files: what they may say, and what is said of a file that says something else."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, DataError, KernelcastError, Parallelism, UsageError, load_model
from kernelcast.runtime.dataclass import replace
from kernelcast.validate.runs import RUN_FIELDS, MeasuredRun, RunModels, RunsFile, _run, kind_of

HEAD = 'site = "here"\nhardware = "two cores"\nsource = "measured by hand"\n'
RUN = """
[[runs]]
model = "llemma-7b"
pp = 4
tp = 2
dp = 2
micro_batch = 4
micro_batches = 8
measured_s = 9.57
"""


def read_runs(path: Path) -> tuple[MeasuredRun, ...]:
    return RunsFile.read(path).runs


def write(folder: Path, text: str) -> Path:
    path = folder / "runs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_run_needs_a_model_a_layout_and_a_time(tmp_path: Path) -> None:
    [run] = read_runs(write(tmp_path, HEAD + RUN))
    assert run.label == "llemma-7b (4-2-2)"
    assert run.model.layers == 32
    assert (run.parallelism.pp, run.parallelism.recompute, run.parallelism.zero) == (4, "none", 1)
    assert run.cluster is None
    assert run.bucket_entries == 1_260_000_000
    assert run.measured_s == 9.57
    assert run.published_error is run.published_components is run.measured_components is None


@pytest.mark.parametrize(
    ("fields", "layout", "kind"),
    [
        ({}, {}, "16 bit, dense"),
        ({"experts": 4, "experts_per_token": 2}, {}, "16 bit, experts"),
        ({}, {"lora_rank": 8}, "16 bit, adapters"),
        ({"experts": 4, "experts_per_token": 2}, {"lora_rank": 8, "fp8_recipe": "mxfp8"}, "mxfp8, experts"),
        ({}, {"offload_activations": 1.0}, "16 bit, dense, offload"),
        ({"sequence_length": 32_767}, {}, "16 bit, dense"),
        ({"sequence_length": 32_768}, {"fp8_recipe": "rowwise"}, "rowwise, dense, long"),
        ({"sequence_length": 32_769}, {}, "16 bit, dense, long"),
    ],
)
def test_kinds_of_steps(fields: dict[str, Any], layout: dict[str, Any], kind: str) -> None:
    model = replace(load_model("llemma-7b"), **fields)
    assert kind_of(model, Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1, **layout)) == kind


def test_defaults_hold_where_a_run_says_nothing(tmp_path: Path) -> None:
    defaults = '[defaults]\nrecompute = "full"\nzero = 0\ngpus_per_node = 4\nbucket_entries = 1000\n'
    path = write(tmp_path, HEAD + defaults + RUN + "zero = 2\n" + RUN + "gpus_per_node = 8\n")
    first, second = read_runs(path)
    assert (first.parallelism.recompute, first.parallelism.zero, first.bucket_entries) == ("full", 2, 1000)
    assert (second.parallelism.zero, second.cluster) == (0, Cluster(gpus_per_node=8))
    assert first.cluster == Cluster(gpus_per_node=4)


def test_a_file_says_where_it_was_measured_and_its_digest(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + RUN)
    file = RunsFile.read(path)
    assert (file.site, file.hardware, file.source) == ("here", "two cores", "measured by hand")
    assert len(file.digest) == 64
    write(tmp_path, HEAD + RUN + "\n")
    assert RunsFile.read(path).digest != file.digest


def test_components_and_errors_are_kept(tmp_path: Path) -> None:
    more = """name = "night run"
published_error = -0.05
[runs.published_components]
Encoder_Fwd = 0.5
[runs.measured_components]
PP_P2P = 1
"""
    [run] = read_runs(write(tmp_path, HEAD + RUN + more))
    assert run.label == "night run"
    assert run.published_error == -0.05
    assert run.published_components == {"Encoder_Fwd": 0.5}
    assert run.measured_components == {"PP_P2P": 1.0}


@pytest.mark.parametrize("name", ["small", "small.toml", "sub/small.json"])
def test_models_come_from_the_file_or_from_beside_it(tmp_path: Path, name: str) -> None:
    fields = {"hidden_size": 64, "sequence_length": 32, "attention_heads": 4, "layers": 8}
    table = "".join(f"{key} = {value}\n" for key, value in (fields | {"vocabulary_size": 100}).items())
    inline = ""
    if name == "small":
        inline = "[models.small]\n" + table
    elif name.endswith(".toml"):
        (tmp_path / name).write_text(table)
    else:
        (tmp_path / "sub").mkdir()
        json = "{" + ", ".join(f'"{k}": {v}' for k, v in (fields | {"vocabulary_size": 100}).items()) + "}"
        (tmp_path / name).write_text(json)
    run = RUN.replace("llemma-7b", name) + "sequence_length = 16\n"
    [found] = read_runs(write(tmp_path, HEAD + inline + run))
    assert (found.model.name, found.model.hidden_size, found.model.sequence_length) == ("small", 64, 16)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "runs is missing, expected at least one table [[runs]]"),
        (HEAD, "runs is missing"),
        (HEAD + "runs = []", "runs is [], expected at least one"),
        (HEAD + "runs = [1]", "runs is [1], expected at least one"),
        (HEAD + "defaults = 1" + RUN, "defaults is 1, expected a table [defaults]"),
        (
            HEAD + "[defaults]\nmeasured_s = 1" + RUN,
            "field 'defaults.measured_s' is unknown, known are model",
        ),
        (HEAD + "speed = 1\n" + RUN, "field 'speed' is unknown, known are site, hardware"),
        (HEAD + '"a b" = 1\n' + RUN, "field 'a b' is unknown"),
        (HEAD.replace('"here"', "1") + RUN, "site is 1, expected a text"),
        (HEAD.replace('source = "measured by hand"', "") + RUN, "source is missing, expected a text"),
        (HEAD.replace("two cores", " ") + RUN, "hardware is ' ', expected a text on one line"),
        (HEAD + "models = 1\n" + RUN, "models is 1, expected tables [models.NAME]"),
        (HEAD + "[models]\nx = 1\n" + RUN, "models.x is 1, expected a table of fields"),
        (
            HEAD + "[models.gpt-20b]\n" + RUN,
            "models.'gpt-20b': a built-in model has this name, expected another",
        ),
        (HEAD + "[models.x]\n" + RUN, "models.x: field hidden_size is missing"),
        (
            HEAD + RUN.replace('"llemma-7b"', '"gpt-5"'),
            "run 1: model 'gpt-5' is unknown, ",
        ),
        (HEAD + RUN.replace('"llemma-7b"', "7"), "run 1: model is 7, expected a model's name or file"),
        (HEAD + RUN.replace('model = "llemma-7b"', ""), "run 1: model is missing"),
        (HEAD + RUN + RUN.replace("pp = 4", "pp = 0"), "run 2: pp is 0, expected a whole number"),
        (HEAD + RUN.replace("pp = 4", ""), "run 1: pp is missing, expected a whole number"),
        (
            HEAD + RUN.replace("tp = 2", "tp = 5"),
            "run 1: tp is 5, expected a divisor of attention_heads (32)",
        ),
        (HEAD + RUN.replace("pp = 4", "pp = 64"), "run 1: pp is 64, expected from 1 to 32"),
        (
            HEAD + RUN + "layer_counts = [1, 1]",
            "run 1: layer_counts is (1, 1), expected one number per stage",
        ),
        (HEAD + RUN + "layer_counts = 3", "run 1: layer_counts is 3, expected one number per stage"),
        (HEAD + RUN.replace("9.57", "0"), "run 1: measured_s is 0.0, expected seconds, a number above 0"),
        (HEAD + RUN.replace("9.57", "nan"), "run 1: measured_s is nan, expected seconds"),
        (HEAD + RUN.replace("9.57", '"9"'), "run 1: measured_s is '9', expected a number"),
        (HEAD + RUN.replace("9.57", "true"), "run 1: measured_s is true, expected a number"),
        (HEAD + RUN.replace("9.57", "1" + "0" * 400), "run 1: measured_s is inf, expected seconds"),
        (HEAD + RUN.replace("measured_s = 9.57", ""), "run 1: measured_s is missing, expected a number"),
        (HEAD + RUN + "gpus_per_node = 0", "run 1: gpus_per_node is 0, expected a whole number from 1"),
        (HEAD + RUN + "bucket_entries = 1.5", "run 1: bucket_entries is 1.5, expected a whole number"),
        (HEAD + RUN + 'recompute = "some"', "run 1: recompute is 'some', expected none, selective or full"),
        (HEAD + RUN + "steps = 5", "run 1: field 'steps' is unknown, known are name, model"),
        (HEAD + RUN + "name = 5", "run 1: name is 5, expected a text on one line"),
        (HEAD + RUN + 'name = "x"\nzero = 9', "run 1 (x): zero is 9, expected a whole number from 0 to 3"),
        (HEAD + RUN + "published_error = -1", "run 1: published_error is -1.0, expected a fraction above -1"),
        (HEAD + RUN + "published_components = 3", "run 1: published_components is 3, expected a table"),
        (
            HEAD + RUN + "published_components = {Encoder = 1}",
            "run 1: field 'published_components.Encoder' is unknown, known are Encoder_Fwd",
        ),
        (
            HEAD + RUN + "measured_components = {PP_P2P = 0}",
            "run 1: measured_components is {'PP_P2P': 0.0}, expected of each component seconds",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_runs(path)
    message = str(caught.value)
    assert message.startswith(f"runs file {path}: {complaint}")
    assert "\n" not in message


def test_the_largest_values_and_what_is_steady(tmp_path: Path) -> None:
    largest = RUN.replace("9.57", "1e9") + "published_error = 1e9\nmemory_gib = [1, 2, 3, 1e9]\n"
    [run] = read_runs(write(tmp_path, HEAD + largest))
    assert (run.measured_s, run.published_error, run.memory_gib) == (1e9, 1e9, (1.0, 2.0, 3.0, 1e9))
    for text in (
        largest.replace("1e9", "1.001e9", 1),
        largest.replace("error = 1e9", "error = 1.001e9"),
        (largest.replace("3, 1e9", "3, 1.001e9")),
    ):
        with pytest.raises(UsageError, match=r"1001000000\.0"):
            read_runs(write(tmp_path, HEAD + text))
    for mean_s, is_steady in ((3.0, True), (3.01, False)):
        [run] = read_runs(write(tmp_path, HEAD + RUN.replace("9.57", "2.0") + f"mean_s = {mean_s}\n"))
        assert run.is_steady is is_steady
    text = HEAD + RUN
    for size_bytes in (1 << 20, (1 << 20) + 1):
        path = write(tmp_path, text + "#" * (size_bytes - len(text.encode())))
        if size_bytes == 1 << 20:
            assert len(read_runs(path)) == 1
            continue
        with pytest.raises(DataError, match="larger than 1048576 bytes"):
            read_runs(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml: no such file, expected measured steps"):
        read_runs(tmp_path / "none.toml")
    with pytest.raises(DataError, match="cannot be read"):
        read_runs(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        read_runs(Path("a\0b"))
    with pytest.raises(DataError, match=r"not TOML \(Invalid value"):
        read_runs(write(tmp_path, "site = "))
    (tmp_path / "latin.toml").write_bytes('site = "é"'.encode("latin-1"))
    with pytest.raises(DataError, match="not TOML"):
        read_runs(tmp_path / "latin.toml")
    with pytest.raises(DataError, match="larger than 1048576 bytes"):
        read_runs(write(tmp_path, "#" * 2_000_000))
    missing = RUN.replace("llemma-7b", "none.toml")
    with pytest.raises(DataError, match=r"runs\.toml: run 1: model file .*none\.toml: no such file"):
        read_runs(write(tmp_path, HEAD + missing))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(field=st.sampled_from(RUN_FIELDS), value=values)
def test_no_value_of_a_field_gives_anything_but_a_run_or_one_line(field: str, value: object) -> None:
    run = {
        "model": "llemma-7b",
        "pp": 4,
        "tp": 2,
        "dp": 2,
        "micro_batch": 4,
        "micro_batches": 8,
        "measured_s": 1.0,
    }
    try:
        found = _run(1, run | {field: value}, {}, RunModels.of({}, folder=Path()))
    except KernelcastError as error:
        said = str(error)
    else:
        said = found.label
        assert 0 < found.measured_s < math.inf
    assert "\n" not in said
