"""A real `kernelcast explore` in a process of its own."""

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 1200


@dataclass(kw_only=True)
class Explorer:
    """A running explorer; `address` is what it printed."""

    process: "subprocess.Popen[str]"
    address: str

    @property
    def port(self) -> int:
        """Of 127.0.0.1."""
        found = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)/.*", self.address)
        assert found is not None, self.address
        return int(found[1])

    @property
    def home(self) -> str:
        """The address of the page of layouts."""
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with names in lower case, and body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return (
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def stop(self) -> int:
        """End it as Ctrl-C does; its status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


Explore = Callable[..., Explorer]


@contextmanager
def exploring(*arguments: str | Path, port: int = 0) -> Iterator[Explorer]:
    """An explorer that ends with the block."""
    command = [sys.executable, "-m", "kernelcast.cli.main", "explore", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KERNELCAST_SITE": ""},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    explorer = Explorer(process=process, address=line.split(" ")[0])
    try:
        assert line.endswith("(Ctrl-C ends it)\n"), line
        yield explorer
    finally:
        if process.poll() is None:
            explorer.stop()


@pytest.fixture
def explore() -> Iterator[Explore]:
    """Starts explorers, and ends them."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda *arguments, port=0: stack.enter_context(exploring(*arguments, port=port))


@pytest.fixture(scope="session")
def explorer() -> Iterator[Explorer]:
    """One explorer of what ships, for all tests that leave it as it is."""
    with exploring() as found:
        yield found
