"""The explorer's pages over HTTP: what is answered, to whom, with which policy."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.explore import material
from kernelcast.explore.material import FOLDER
from kernelcast.store import trace_report

Explorer, Explore = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ROOT = Path(__file__).parent.parent.parent
SMALL = ROOT / "tests" / "data" / "small.db"
VENDOR = FOLDER / "vendor" / "uplot"


class Links(HTMLParser):
    """What a page refers to, and what a policy would not let it have."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.inline: list[str] = []
        self.labels: set[str] = set()
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        values = dict(attrs)
        self.found |= {value for name in ("src", "href") if (value := values.get(name))}
        self.inline += [name for name in values if name.startswith("on") or name == "style"]
        if tag in ("script", "style") and not values.get("src"):
            self.inline.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))


def test_the_page_and_all_that_it_refers_to(explorer: Explorer) -> None:
    status, headers, body = explorer.get("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = Links()
    links.feed(body.decode())
    assert links.inline == []
    assert len(set(links.ids)) == len(links.ids)
    modules = {f"/assets/js/{path.name}" for path in (FOLDER / "js").iterdir()}
    for path in {link for link in links.found if link.startswith("/")} | modules:
        status, headers, body = explorer.get(path)
        assert (status, bool(body)) == (200, True), path
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        again, _, nothing = explorer.get(path, {"If-None-Match": headers["etag"]})
        assert (again, nothing) == (304, b"")
    assert not [link for link in links.found if "//" in link]


def test_modules_import_only_each_other() -> None:
    for path in (FOLDER / "js").glob("*.js"):
        text = path.read_text()
        for name in re.findall(r'(?:from|import)\s+"([^"]+)"', text):
            assert (FOLDER / "js" / name).resolve().is_file(), (path.name, name)
        assert not re.search(
            r"\beval\(|new Function|innerHTML|document\.write|https?://(?!www\.w3\.org/2000/svg)", text
        ), path.name


def test_nothing_else_is_given_out(explorer: Explorer) -> None:
    for path in ("/assets/", "/assets/../files.py", "/assets/%2e%2e/files.py", "/assets/SHA256SUMS",
                 "/assets//etc/passwd", "/assets/vendor/uplot/LICENSE", "/database", "/traces"):  # fmt: skip
        status, _, body = explorer.get(path)
        assert (status, b"expected" in body) == (404, True), path


def test_only_this_machine_s_names(explorer: Explorer) -> None:
    for path in ("/", "/assets/js/main.js", "/catalogue", "/pages"):
        for host, expected in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 400)):
            assert explorer.get(path, {"Host": host})[0] == expected, (path, host)


def test_the_library_is_as_published() -> None:
    listed = dict(reversed(line.split("  ")) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    assert set(listed) == {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (VENDOR / "LICENSE").read_text()


def test_a_database(explore: Explore) -> None:
    explorer = explore(SMALL)
    assert explorer.address.endswith("/database")
    status, headers, body = explorer.get("/database")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    text = body.decode()
    for heading in ("small.db", "Coverage", "Noise", "Doubtful samples", "Hardware side by side"):
        assert heading in text
    assert "<script" in text  # which sorts
    # The four points of gemm that two kinds of hardware have: 0.39 is the geometric mean of their ratios.
    assert re.search(r"<td>gemm</td><td>backward</td>.{0,300}0\.39 ×.{0,100}0\.22 ×.{0,100}0\.62 ×", text)
    assert json.loads(explorer.get("/pages")[2]) == [
        {"path": "/", "title": "Layouts"}, {"path": "/database", "title": "Database"},
    ]  # fmt: skip
    assert explorer.get("/")[0] == 200
    assert explorer.stop() == 0


def test_options_open_a_question(explore: Explore, tmp_path: Path) -> None:
    options = [
        "--model",
        "meta-llama/Llama-2-7b",
        "--gpus",
        "8",
        "--global-batch",
        "16",
        "--framework",
        "nemo",
    ]
    explorer = explore(*options, SMALL)
    asked = "gpus=8&batch=16&framework=nemo&model=llama-2-7b"
    assert explorer.address == f"http://127.0.0.1:{explorer.port}/#{asked}"
    model = tmp_path / "mine.json"
    fields = {"name": "mine", "hidden_size": 64, "sequence_length": 32, "attention_heads": 4, "layers": 2}
    model.write_text(json.dumps(fields | {"vocabulary_size": 100}))
    fragment = explore("--model", model).address.partition("#")[2]
    assert json.loads(dict(parse_qsl(fragment))["config"]).items() >= fields.items()


def write_trace(path: Path, *, duration: int = 400) -> None:
    """A step with one matrix product of `duration` µs on an H100."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 1000},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 50,
         "args": {"External id": 7, "Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 20, "dur": 5,
         "args": {"correlation": 3, "External id": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm_kernel", "pid": 0, "tid": 7, "ts": 30, "dur": duration,
         "args": {"correlation": 3, "stream": 7, "device": 0, "External id": 7}},
    ]  # fmt: skip
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}))


def test_traces(explore: Explore, tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    write_trace(trace)
    explorer = explore(trace)
    assert explorer.address.endswith("/traces")
    status, _, body = explorer.get("/traces")
    assert status == 200
    assert "gemm_kernel" in body.decode()
    assert explorer.get("/traces/nothing")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.db"], "missing.db"),
        (["--bundle", "missing.kcast"], "missing.kcast"),
        (["--hardware", "h1000"], "hardware 'h1000' is unknown, nearest are h100-sxm, "),
        (["--bundle", "a.kcast", "--hardware", "gh200"], "--bundle and --hardware are both given"),
    ],
)
def test_wrong_use(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(kernelcast, ["explore", "--no-browser", *arguments])
    assert result.exit_code != 0
    assert expected in (result.output or str(result.exception))


def test_a_port_that_is_taken(explorer: Explorer) -> None:
    command = [
        sys.executable,
        "-m",
        "kernelcast.cli.main",
        "explore",
        "--no-browser",
        "--port",
        str(explorer.port),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"kernelcast: error: address 127.0.0.1:{explorer.port}: cannot be listened on"
    )


def test_the_browser_is_opened(tmp_path: Path) -> None:
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelcast.cli.main", "explore"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": str(browser), "KERNELCAST_SITE": ""},
    )
    assert process.stdout is not None
    address = process.stdout.readline().split(" ")[0]
    end = time.monotonic() + 600
    while not seen.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 0
    process.stdout.close()
    assert seen.read_text() == f"{address}\n"


def test_a_bundle_of_the_user_s(explore: Explore, make_bundle: Callable[..., Path]) -> None:
    explorer = explore("--bundle", make_bundle())
    assert json.loads(explorer.get("/catalogue")[2])["bundle"] == "test.kcast"


def test_two_traced_runs_are_listed(explore: Explore, tmp_path: Path) -> None:
    database = tmp_path / "traces.db"
    for run in (1, 2):
        trace = tmp_path / f"run{run}.json"
        write_trace(trace, duration=400 * run)
        result = CliRunner().invoke(kernelcast, ["ingest", str(trace), "--db", str(database)])
        assert result.exit_code == 0, result.output
    explorer = explore(database)
    pages = [one["path"] for one in json.loads(explorer.get("/pages")[2])]
    assert pages == ["/", "/database", "/traces"]
    links = Links()
    links.feed(explorer.get("/traces")[2].decode())
    runs = [link for link in links.found if link.startswith("/traces/")]
    assert len(runs) == 2
    for run in runs:
        assert "gemm_kernel" in explorer.get(run)[2].decode()


def test_several_traced_runs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "a" * 32: ("One <GPU>", (), {"compute": 1200.25, "idle": 34.5}),
        "b" * 32: ("Another", (0, 3), {"compute": 2.0}),
    }
    monkeypatch.setattr(trace_report, "traced_runs", lambda database: list(found))
    monkeypatch.setattr(
        trace_report, "trace_report",
        lambda database, run, top: SimpleNamespace(hardware=found[run][0], ranks=found[run][1], parts_ms=found[run][2]),
    )  # fmt: skip
    page = material._traces(SMALL)
    rows = re.findall(r"<tr><td>(.*?)</td></tr>", page)
    cells = [re.sub(r"<[^>]*>", "|", row) for row in rows]
    assert cells == [
        "|aaaaaaaaaaaa|||One &lt;GPU&gt;||1||1,234.750 ms",
        "|bbbbbbbbbbbb|||Another||2||2.000 ms",
    ]
    assert [re.findall(r'href="([^"]*)"', row) for row in rows] == [[f"/traces/{run}"] for run in found]
