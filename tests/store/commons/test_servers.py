"""Pulling from web servers as sites run them, nginx with TLS and Python's own, and killed again and again meanwhile."""

import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store.commons.index import INDEX_FILE
from kernelcast.store.commons.pull import pull, refresh

from .conftest import Serving
from .test_pull import digest, refused, source

KILLS = 60

_PULL = """
import sys
from pathlib import Path
from kernelcast.store.commons.pull import pull
from kernelcast.store.commons.sources import Source
print("ready", flush=True)
pull(Source(name="a", address=sys.argv[1]), Path(sys.argv[2]))
"""
_NGINX = """
daemon off; master_process off; pid {0}/nginx.pid; error_log stderr;
events {{}}
http {{ access_log off; client_body_temp_path {0}/t1; proxy_temp_path {0}/t2; fastcgi_temp_path {0}/t3;
  uwsgi_temp_path {0}/t4; scgi_temp_path {0}/t5;
  server {{ listen 127.0.0.1:{1} ssl; root {2}; limit_rate {3};
    ssl_certificate {0}/server.pem; ssl_certificate_key {0}/server.key; }} }}
"""


def authority(folder: Path) -> Path:
    """A test authority, and a certificate of 127.0.0.1 by it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test authority")
    openssl("req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=loopback")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")
    return folder


@contextmanager
def nginx(folder: Path, public: Path, *, bytes_per_s: int = 0) -> Iterator[str]:
    """Debian's nginx with a certificate of a test authority, `folder/ca.pem`; its address."""
    for program in ("nginx", "openssl"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed (make tools)")
    authority(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(_NGINX.format(folder, port, public, bytes_per_s))
    command = [
        "/usr/sbin/nginx" if shutil.which("nginx") is None else "nginx",
        "-e",
        "stderr",
        "-c",
        str(folder / "nginx.conf"),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(6000):
                with socket.socket() as probe:
                    if process.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_by_an_authority(
    public: Path, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = authority(tmp_path)
    with serving(public) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made / "server.pem", made / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        asked = source(server.address.replace("http:", "https:"))
        refused(asked, tmp_path / "new.db", r"cannot be fetched \(.*certificate verify failed")
        monkeypatch.setenv("SSL_CERT_FILE", str(made / "ca.pem"))
        assert pull(asked, tmp_path / "new.db").rows


@pytest.fixture
def server_folder(tmp_path: Path) -> Path:
    """Readable by the user that nginx becomes where root starts it."""
    folder = tmp_path / "server"
    folder.mkdir()
    for one in (folder, *folder.parents[:3]):
        one.chmod(0o755)
    return folder


def test_nginx_with_tls_continues_a_part(
    public: Path, keys: Path, server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nginx(server_folder, public) as address:
        asked = source(address, keys)
        refused(asked, tmp_path / "new.db", r"cannot be fetched \(.*certificate verify failed")
        monkeypatch.setenv("SSL_CERT_FILE", str(server_folder / "ca.pem"))
        index, _ = refresh(asked)
        one = index.parts[0]
        asked.cache.mkdir(parents=True, exist_ok=True)
        (asked.cache / f"{one.digest}.xz").write_bytes((public / one.path).read_bytes()[:1000])
        pulled = pull(asked, tmp_path / "new.db")
        assert pulled.signer == "site-a"
        received = sum(part.size_bytes for part in pulled.parts) - 1000 + (public / INDEX_FILE).stat().st_size
        assert pulled.received_bytes == received  # nginx has ranges
        assert pull(asked, tmp_path / "new.db").requests == 1
        (public / pulled.parts[0].path).unlink()
        refused(asked, tmp_path / "other.db", r"is missing on the server \(404\)$")
    with pytest.raises(DataError, match=r"cannot be fetched|interrupted"):
        pull(asked, tmp_path / "other.db")


@pytest.mark.slow(minutes=4)
def test_killed_sixty_times_it_continues_and_nothing_is_half_merged(
    public: Path, server_folder: Path, tmp_path: Path
) -> None:
    into, moments, kills = tmp_path / "new.db", random.Random(33), 0
    pull(source(public), tmp_path / "whole.db")
    whole, seen, ended, mid_transfer = digest(tmp_path / "whole.db"), set[str | None](), 0, 0
    own = [tmp_path / "cache" / "kernelcast", tmp_path / "config" / "kernelcast"]
    for folder in own:
        shutil.rmtree(folder)

    def fetched_bytes() -> int:
        sizes_bytes = 0
        for path in own[0].glob("commons/a/*.xz"):
            with suppress(FileNotFoundError):  # the pull removes a part that is merged
                sizes_bytes += path.stat().st_size
        return sizes_bytes

    with nginx(server_folder, public, bytes_per_s=200_000) as address:
        command = [sys.executable, "-c", _PULL, address, str(into)]
        environment = os.environ | {"SSL_CERT_FILE": str(server_folder / "ca.pem")}
        while kills < KILLS or min(ended, mid_transfer) < 3:
            until_bytes, until_s = fetched_bytes() + moments.randrange(1, 150_000), moments.uniform(0, 4)
            # How fast the machine is decides what a kill meets: some end in the middle of a part, some never.
            if kills % 10 == 9 and ended <= kills // 10:
                until_bytes, until_s = 1 << 40, 600
            elif kills % 3 == 0:
                until_s = 600
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None
            process.stdout.readline()
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < until_s:
                if fetched_bytes() >= until_bytes:
                    mid_transfer += 1
                    break
                time.sleep(0.002)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            _, said = process.communicate()
            seen.add(digest(into) if into.exists() else None)
            if process.returncode != -signal.SIGKILL:
                assert process.returncode == 0, said
                ended += 1
                for file in tmp_path.glob("new.db*"):  # reading it leaves its log
                    file.unlink()
                for folder in own:
                    shutil.rmtree(folder)
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    assert digest(into) == whole
    assert seen <= {None, whole}
    assert not list(own[0].glob("commons/a/*.xz"))
