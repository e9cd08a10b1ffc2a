"""The generic CSV: both forms of a workload, what describes it, and everything that can be wrong with it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.errors import DataError, KernelcastError, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database
from kernelcast.store.importers import Description, Parsed, read_csv_files, store_parsed

DEVICE = Description(hardware={"device_name": "Example GPU"}, fabric={"gpus_per_node": 4})
HEAD = "operator,direction,dtype,b,l,d,h,tp,time_us\n"
GOOD = "layer_norm,forward,float16,4,128,64,,,10.5\n"


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, text: str, *, strict: bool = False) -> Parsed:
    return read_csv_files([write(folder, text)], described=DEVICE, strict=strict)


def test_raw_parameters_vectors_repetitions_and_collectives(made: Path) -> None:
    parsed = read_csv_files([made / "times.csv"])
    compute, comm = parsed.runs
    found = {(s.operator, s.role, s.direction.value): (s.vector, s.time_us) for s in compute.samples}
    assert found == {
        ("gemm", "qkv", "forward"): ((8192, 4096, 6144), 412.5),
        ("gemm", "qkv", "backward"): ((8192, 4096, 6144), 830.1),
        ("layer_norm", "", "forward"): ((4, 2048, 4096), 96.4),
        ("cross_entropy", "", "forward"): ((4, 2048, 25216), 702.9),
        ("gelu", "", "forward"): ((4, 2048, 8192), 86.4),  # third to seventh of ten
    }
    (reduced,) = comm.samples
    assert (reduced.operator, reduced.role, reduced.direction, reduced.vector) == (
        "all_reduce",
        "tensor",
        Direction.ONCE,
        (33554432, 1, 2),
    )
    assert reduced.dtype == "bfloat16"
    assert reduced.statistic == "median of 50"
    assert reduced.moved_bytes == OPERATORS["all_reduce"].moved_bytes(Direction.ONCE, reduced.vector, 2)
    repeated = next(s for s in compute.samples if s.operator == "gelu")
    assert (repeated.repetition_count, repeated.statistic) == (10, "middle five of ten")
    assert repeated.quiet_us is not None
    assert compute.fabric is None
    assert comm.fabric is not None
    assert comm.fabric.gpus_per_node == 4
    assert comm.fabric.links == ("NVLink 3",)
    assert compute.compute.device_name == "Example GPU 40GB"
    assert (compute.software.torch, compute.software.driver) == ("2.9.1", "")
    assert compute.run.conditions == {"processes_per_node": 4}
    assert (compute.run.source.kind, compute.run.source.name) == ("import", "times.csv")
    assert (compute.run.source.licence, len(compute.run.source.file_digest)) == ("CC-BY-4.0", 64)
    assert (compute.run.started_at, compute.run.kernelcast_version, compute.run.site) == (
        None,
        "",
        "Example site",
    )


@pytest.mark.parametrize(("more", "value", "kv_heads"), [("", "", 8), (",kv_heads", ",2", 2)])
def test_kv_heads_are_heads_unless_stated(tmp_path: Path, more: str, value: str, kv_heads: int) -> None:
    head = f"operator,direction,dtype,b,l,heads,head_size,time_us{more}\n"
    parsed = read(tmp_path, head + f"flash_attention,forward,float16,2,64,8,32,10.5{value}\n", strict=True)
    [sample] = parsed.runs[0].samples
    assert (sample.vector, sample.repetition_count) == ((2, 64, 8, kv_heads, 32), 0)


def test_importing_again_adds_nothing(made: Path, tmp_path: Path) -> None:
    with Database.open(tmp_path / "a.db", create=True) as database:
        first = store_parsed(database, read_csv_files([made / "times.csv"]))
        again = store_parsed(database, read_csv_files([made / "times.csv"]))
        assert (first.added, first.already_there) == (6, 0)
        assert (again.added, again.already_there) == (0, 6)
        (row,) = database.query("SELECT count(*) AS samples FROM operator_time WHERE source = 'times.csv'")
        assert row["samples"] == 6


def test_options_go_before_the_file_beside(made: Path) -> None:
    stated = Description(hardware={"device_name": "Other GPU"}, rows={"dtype": "float16"})
    parsed = read_csv_files([made / "times.csv"], described=stated)
    assert parsed.runs[0].compute.device_name == "Other GPU"
    assert parsed.runs[0].compute.memory_gib == 40
    assert {s.dtype for b in parsed.runs for s in b.samples} == {"float16"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("layer_norm,forward,float16,4,128,64,,,", "time_us is empty"),
        ("layer_norm,forward,float16,4,128,64,,,fast", "time_us: found 'fast', expected a number above 0"),
        ("layer_norm,forward,float16,4,128,64,,,-3", "time_us: found '-3'"),
        ("layer_norm,forward,float16,4,128,64,,,nan", "time_us: found 'nan'"),
        ("layer_norm,forward,float16,4,128,64,,,1e-9", "time_us 0.0"),
        ("layer_norm,forward,float16,4.5,128,64,,,10", "b: found '4.5', expected a whole number from 1"),
        ("layer_norm,forward,float16,0,128,64,,,10", "b: found '0'"),
        ("layer_norm,forward,float16,1e300,128,64,,,10", "b: found '1e300'"),
        ("layer_norm,forward,float16,4,128,,,,10", "layer_norm needs d"),
        ("layer_norm,forward,float16,4,128,64,,10", "found 8 cells, expected 9 columns"),
        (
            "layer_norm,once,float16,4,128,64,,,10",
            "direction: found 'once', layer_norm has forward or backward",
        ),
        ("layer_norm,,float16,4,128,64,,,10", "direction: found ''"),
        ("layer_norm,forward,half,4,128,64,,,10", "dtype: found 'half', expected one of float64"),
        ("layer_norm,forward,,4,128,64,,,10", "dtype: found ''"),
        ("layernorm,forward,float16,4,128,64,,,10", "operator 'layernorm' is unknown"),
        (",forward,float16,4,128,64,,,10", "operator is empty"),
        ("rope,forward,float16,4,128,64,3,,10", "d=64 is not divisible by h=3"),
        ("gemm,forward,float16,4,128,64,,,10", "gemm needs its workload vector (m, k, n), or a role of qkv,"),
        ('"layer_norm"x,forward,float16,4,128,64,,,10', "expected after"),
    ],
)
def test_malformed_lines(tmp_path: Path, line: str, message: str) -> None:
    text = HEAD + GOOD + line + "\n" + GOOD.replace("10.5", "11.5")
    parsed = read(tmp_path, text)
    assert [(p.path.name, p.line) for p in parsed.problems] == [("rows.csv", 3)]
    assert message in parsed.problems[0].text
    assert parsed.sample_count == 2
    with pytest.raises(DataError, match=r"rows\.csv:3: .*; nothing was imported"):
        read(tmp_path, text, strict=True)


def test_line_numbers_count_the_marker_and_blank_lines(tmp_path: Path) -> None:
    parsed = read(tmp_path, "# kernelcast.csv/1\n" + HEAD + "\n" + GOOD + "\nbad\n")
    assert [p.line for p in parsed.problems] == [6]


def test_a_role_is_one_of_the_operator(tmp_path: Path) -> None:
    head = "operator,role,direction,dtype,m,k,n,time_us\n"
    parsed = read(
        tmp_path, head + "gemm,,forward,float16,4,8,16,5\ngemm,mlp_up,weight_gradient,float16,4,8,16,5\n"
    )
    assert [(s.role, s.direction) for b in parsed.runs for s in b.samples] == [
        ("", Direction.FORWARD),
        ("mlp_up", Direction.WEIGHT_GRADIENT),
    ]
    with pytest.raises(DataError, match="role: found 'rotor', expected of gemm: qkv, attention_output"):
        read(tmp_path, head + "gemm,rotor,forward,float16,4,8,16,5\n", strict=True)


def test_columns_by_the_names_of_the_paper(tmp_path: Path) -> None:
    head = "operator,role,direction,dtype,mp,b,l,d,h,encoders,parameters,time_us\n"
    parsed = read(
        tmp_path,
        head + "gemm,qkv,forward,float16,2,4,2048,4096,32,,,5\nadam,last_stage,,float16,,,,,,3,1000,5\n",
    )
    assert [sample.vector for batch in parsed.runs for sample in batch.samples] == [
        (8192, 4096, 6144),
        (1000, 3),
    ]


def test_vector_and_raw_parameters_must_agree(tmp_path: Path) -> None:
    head = "operator,direction,dtype,b,l,d,tp,width,time_us\n"
    parsed = read(tmp_path, head + "gelu,forward,float16,4,128,64,2,128,5\n")
    assert parsed.runs[0].samples[0].vector == (4, 128, 128)
    head = "operator,direction,dtype,b,l,d,h,tp,heads,time_us\n"
    with pytest.raises(DataError, match="heads: found 8, but the raw parameters give 4"):
        read(tmp_path, head + "rope,forward,float16,4,128,64,8,2,8,5\n", strict=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a;b;c\n1;2;3\n", "is not a kernelcast.csv/1 file: no column 'operator'"),
        ("operator,b\nlayer_norm,3\n", "no column 'time_us'"),
        ("operator,time_us,time_us\nlayer_norm,3,4\n", "two columns are called 'time_us'"),
        ("operator,time_us,colour\nlayer_norm,3,red\n", "column 'colour' is unknown"),
        (
            "# kernelcast.csv/9\n" + HEAD + GOOD,
            "found format 'kernelcast.csv/9', expected 'kernelcast.csv/1'",
        ),
        (HEAD, "holds no usable row"),
        (HEAD + "bad\n", "malformed line(s) and no usable one"),
        ('"' + "x" * 200_000, "is not CSV"),
        ("operator\0", "is a binary file"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "rows.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_csv_files([tmp_path / "none.csv"], described=DEVICE)
    with pytest.raises(DataError, match="is not a file"):
        read_csv_files([tmp_path], described=DEVICE)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(HEAD.encode() + b"caf\xe9\n")
    with pytest.raises(DataError, match=r"latin\.csv:2: is not UTF-8"):
        read_csv_files([latin], described=DEVICE)


def test_a_file_over_the_limit_is_refused_by_it(tmp_path: Path) -> None:
    from kernelcast.store.importers import tables

    huge = tmp_path / "huge.csv"
    with huge.open("wb") as stream:
        stream.truncate(tables.MAX_FILE_BYTES + 1)  # sparse
    with pytest.raises(DataError, match="is larger than 32 MiB, the limit for one file"):
        read_csv_files([huge], described=DEVICE)


def test_an_import_over_the_limit_is_refused_by_it(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelcast.store.importers import parsed

    monkeypatch.setattr(parsed, "MAX_SAMPLES", 11)
    read_csv_files([made / "times.csv"])
    with pytest.raises(DataError, match="more than 11 samples, the limit for one import"):
        read_csv_files([made / "times.csv", made / "times.csv"])


def test_what_nobody_says(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + GOOD)
    with pytest.raises(UsageError, match="give --device-name"):
        read_csv_files([path])
    collective = "operator,dtype,entries,nodes,gpus_per_node,time_us\nall_reduce,float16,64,1,2,9\n"
    only_device = Description(hardware={"device_name": "Example GPU"})
    with pytest.raises(UsageError, match="give --gpus-per-node"):
        read_csv_files([write(tmp_path, collective)], described=only_device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1", "format is 1, expected 'kernelcast.import/1'"),
        ('format = "kernelcast.import/1"\n[colour]\n', "[colour] is unknown"),
        ('format = "kernelcast.import/1"\nrows = 3\n', "rows is 3, expected a table"),
        ('format = "kernelcast.import/1"\n[hardware]\nname = "x"\n', "hardware: field 'name' is unknown"),
        ('format = "kernelcast.import/1"\n[hardware]\ndevice_name = 4\n', "expected a text"),
        ('format = "kernelcast.import/1"\n[hardware]\nmemory_gib = true\n', "expected a whole number"),
        ('format = "kernelcast.import/1"\n[hardware]\nkind = "abacus"\n', "expected cpu, cuda or rocm"),
        ('format = "kernelcast.import/1"\n[fabric]\nlinks = "NVLink"\n', "expected a list of texts"),
        ('format = "kernelcast.import/1"\n[fabric]\ngpus_per_node = 0\n', "expected at least 1"),
        ("format =", "not valid TOML"),
        ((2**20 + 1) * "#", "is larger than 1 MiB"),
    ],
)
def test_descriptions_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, HEAD + GOOD)
    write(tmp_path, text, "rows.toml")
    with pytest.raises(DataError) as caught:
        read_csv_files([path], described=DEVICE)
    assert message in str(caught.value)
    assert "rows.toml" in str(caught.value)


def test_all_or_nothing(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelcast.store import write as module

    calls = []
    write_samples = module.write_samples

    def fails_the_second_time(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write_samples(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_samples", fails_the_second_time)
    with Database.open(tmp_path / "a.db", create=True) as database:
        with pytest.raises(KeyboardInterrupt):
            store_parsed(database, read_csv_files([made / "times.csv"]))
        assert database.query("SELECT * FROM sample") == []
        assert database.run_list() == []


CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["layer_norm", "forward", "float16", "1", "2048", "10.5", '"', "all_reduce", "1e400", "-1"]
)


@given(rows=st.lists(st.lists(CELLS, min_size=0, max_size=10), max_size=5))
def test_whatever_stands_there_is_rows_or_one_line(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "rows.csv"
    body = "\n".join(",".join(row) for row in rows)
    path.write_text(HEAD + GOOD + body, encoding="utf-8", newline="")
    try:
        parsed = read_csv_files([path], described=DEVICE)
    except KernelcastError as error:
        message = str(error)
    else:
        message = ""
        assert parsed.sample_count >= 1
        assert all("\n" not in str(problem) for problem in parsed.problems)
    assert "\n" not in message
