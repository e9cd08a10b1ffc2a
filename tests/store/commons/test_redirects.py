"""Servers that redirect: on their own host they are followed, to another only with --other-hosts."""

from pathlib import Path

import pytest

from kernelcast.store.commons.pull import pull

from .conftest import Handler, Serving
from .test_pull import refused, source


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://localhost:{port}{path}", r"redirects to the host localhost:\d+, expected 127\.0\.0\.1:\d+"),
        ("file:///etc/passwd", r"cannot be fetched \(302 .*file:///etc/passwd"),
        ("ftp://127.0.0.1/x", r"redirects to ftp:"),
        ("http://127.0.0.1:{port}{path}", r"cannot be fetched \(30[12] .*infinite loop"),
    ],
)  # fmt: skip
def test_redirects(public: Path, serving: Serving, tmp_path: Path, location: str, message: str) -> None:
    def act(handler: Handler) -> bool:
        if handler.headers["Host"].startswith("localhost"):
            return False
        handler.answer(b"", 302, Location=location.format(port=handler.server.server_port, path=handler.path))  # type: ignore[attr-defined]
        return True

    with serving(public, act) as server:
        refused(source(server.address), tmp_path / "new.db", message)
        if "localhost" in location:
            assert pull(source(server.address, other_hosts=True), tmp_path / "new.db").rows


def test_redirects_on_the_same_host_are_followed_and_cut_files_continued(
    public: Path, serving: Serving, tmp_path: Path
) -> None:
    def act(handler: Handler) -> bool:
        if handler.path.startswith("/old/"):
            handler.answer(b"", 301, Location=handler.path.removeprefix("/old"))
            return True
        if not handler.path.startswith("/parts/") or handler.headers.get("Range"):
            return False
        content = Path(handler.translate_path(handler.path)).read_bytes()
        handler.cut(content, len(content) // 2)
        return True

    with serving(public, act) as server:
        pulled = pull(source(f"{server.address}/old"), tmp_path / "new.db")
        assert pulled.rows
        continued = [path for path, asked in server.asked if asked and not path.startswith("/old/")]
        assert len(continued) == len(pulled.parts)
