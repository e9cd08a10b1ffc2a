"""`kernelcast db serve`: really started, read over HTTP, and stopped."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kernelcast.explore import database_server
from kernelcast.store.querying import questions

SMALL = Path(__file__).parent.parent / "data" / "small.db"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a server on a free port."""
    command = [sys.executable, "-u", "-m", "kernelcast.cli.main", "db", "serve", str(SMALL), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"{SMALL}: http://127.0.0.1:"), process.communicate()
    url = line.split()[1].rstrip("/")
    for _ in range(3000):
        try:
            urllib.request.urlopen(f"{url}/-/versions.json", timeout=60).close()
            break
        except OSError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
    yield url
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=300) as response:
        return str(response.read().decode())


def test_the_database_s_page_lists_tables_and_questions(address: str) -> None:
    html = page(f"{address}/small")
    assert "kernelcast: small.db" in html
    assert "operator_time" in html
    assert all(question.name in html for question in questions("questions.sql"))


def test_a_table_has_descriptions_and_units(address: str) -> None:
    html = page(f"{address}/small/sample")
    assert "One measurement of an operator at a workload." in html
    assert "10th percentile over all repetitions" in html
    assert "µs" in html


def test_a_question_is_answered(address: str) -> None:
    rows = json.loads(page(f"{address}/small/coverage.json?_shape=array"))
    assert {row["operator"] for row in rows} >= {"gelu", "gemm"}
    html = page(f"{address}/small/step_accuracy")
    assert "How far is the prediction from the real training step?" in html
    assert "tiny-gpt" in html


def test_nothing_can_be_written(address: str) -> None:
    before = SMALL.read_bytes()
    with pytest.raises(urllib.error.HTTPError, match="400"):
        page(f"{address}/small.json?sql=delete+from+sample")
    assert SMALL.read_bytes() == before


@pytest.mark.parametrize(
    "sql",
    [
        "select zeroblob(500000000)",
        "select hex(randomblob(900000)) from (select 1 union all select 2)",
        "select randomblob(900000) from sample, sample",
        "select group_concat(hex(randomblob(100000))) from sample",
    ],
)
def test_a_large_answer_is_refused_without_the_memory(address: str, sql: str) -> None:
    for form in ("small.json", "small"):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            page(f"{address}/{form}?{urllib.parse.urlencode({'sql': sql})}")
    status = Path(f"/proc/{_process(address)}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib < 1_000_000


@pytest.mark.slow
def test_a_query_ends_in_time(address: str) -> None:
    sql = "with recursive n(i) as (select 1 union all select i+1 from n) select max(i) from n"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        page(f"{address}/small.json?{urllib.parse.urlencode({'sql': sql})}")


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org:8001", "[fe80::1]", ""])
def test_a_foreign_host_is_refused(address: str, host: str) -> None:
    request = urllib.request.Request(f"{address}/small.json?sql=select+1", headers={"Host": host})
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(request, timeout=300)
    assert json.load(caught.value) == {"error": f"Host is {host!r}, expected localhost or 127.0.0.1"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_starts_no_query(address: str, site: str) -> None:
    request = urllib.request.Request(f"{address}/small.json?sql=select+1", headers={"Sec-Fetch-Site": site})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=300)
    request = urllib.request.Request(f"{address}/small.json?sql=select+1", headers={"Sec-Fetch-Site": "none"})
    assert urllib.request.urlopen(request, timeout=300).status == 200


def test_it_is_only_read(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"{address}/small", data=b"sql=select+1", timeout=300)


def test_unfinished_heads_keep_nobody_out(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as opened:
        for _ in range(200):
            client = opened.enter_context(socket.create_connection((host, int(port)), timeout=300))
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert "kernelcast: small.db" in page(f"{address}/small")


def test_slow_queries_keep_no_page_waiting(address: str) -> None:
    sql = (
        "with recursive n(i) as (select 1 union all select i+1 from n where i < 1500000) select max(i) from n"
    )
    url = f"{address}/small.json?{urllib.parse.urlencode({'sql': sql})}"
    answered: list[int] = []
    refused: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                with urllib.request.urlopen(url, timeout=300) as response:
                    answered.append(response.status)
            except urllib.error.HTTPError as error:
                if error.code == 503:
                    refused.append(json.load(error)["error"])
                    stop.wait(0.3)
                else:  # it takes longer than a query may, on a busy machine
                    answered.append(error.code)

    asking = [threading.Thread(target=ask) for _ in range(14)]
    for one in asking:
        one.start()
    while len(refused) < 4:  # more ask than are answered or wait
        time.sleep(0.05)
    before = len(answered)
    assert "One measurement of an operator at a workload." in page(f"{address}/small/sample")
    during = len(answered) - before
    stop.set()
    for one in asking:
        one.join()
    assert during < 10  # it waited for all of them
    assert set(refused) == {"10 queries are answered or wait"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]:8001"])
def test_names_of_this_machine_are_answered(address: str, host: str) -> None:
    request = urllib.request.Request(f"{address}/small.json?sql=select+1", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=300) as response:
        assert response.status == 200


def _process(address: str) -> int:
    """The server's process id: of this process's children the one with the port."""
    port = int(address.rpartition(":")[2])
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port and fields[3] == "0A":
            inode = f"socket:[{fields[9]}]"
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if any(os.readlink(file) == inode for file in Path(f"/proc/{child}/fd").iterdir()):
            return int(child)
    raise AssertionError("no server")


def test_an_answer_is_counted_by_the_bytes_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one query at a time: texts by their length, all else as eight."""
    with closing(sqlite3.connect(":memory:")) as connection:
        asked, other = (connection.execute("SELECT 1, 2, 3, 4") for _ in range(2))
        monkeypatch.setattr(database_server, "_LARGEST_ANSWER_BYTES", 2 * (3 + 2 + 8 + 8))
        row = database_server._counted_rows()
        for _ in range(3):
            for cursor in (asked, other):
                assert tuple(row(cursor, ("abc", b"de", 1, None))) == ("abc", b"de", 1, None)
                row(cursor, ("abc", b"de", 1.5, 2))
        with pytest.raises(sqlite3.OperationalError, match=r"^the answer is larger than 42 bytes$"):
            row(other, ("a",))
        row(other, ("a" * 42,))  # the next query
