"""`kernelcast db serve`: really started, read over HTTP, and stopped."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.store.questions import QUESTIONS

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
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}/-/versions.json", timeout=10).close()
            break
        except OSError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
    yield url
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


def test_the_database_s_page_lists_tables_and_questions(address: str) -> None:
    html = page(f"{address}/small")
    assert "kernelcast: small.db" in html
    assert "operator_time" in html
    assert all(question.name in html for question in QUESTIONS)


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
