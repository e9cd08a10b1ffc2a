"""Predictions over HTTP for schedulers and other programs, from a bundle kept in memory (docs/serve.md)."""

from kernelcast.serve.application import run
from kernelcast.serve.http_server import Listener, tcp_listener, unix_listener
from kernelcast.serve.limits import Limits
from kernelcast.serve.loaded import Loaded

__all__ = ["Limits", "Listener", "Loaded", "run", "tcp_listener", "unix_listener"]
