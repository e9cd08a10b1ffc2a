"""A warm predictor: a bundle kept in memory, asked over HTTP by schedulers and other programs (docs/serve.md)."""

from kernelcast.serve.application import run
from kernelcast.serve.http_server import Listener, tcp_listener, unix_listener
from kernelcast.serve.limits import Limits
from kernelcast.serve.warm import Warm

__all__ = ["Limits", "Listener", "Warm", "run", "tcp_listener", "unix_listener"]
