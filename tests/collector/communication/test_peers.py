"""What is said when torch.distributed fails: one line, without the place in its source."""

import re

import pytest
import torch

from kernelcast.collector.communication.peers import LostPeersError, _losses


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "[/src/gloo/pair.cc:534] Connection closed by peer 127.0.0.1:80",
            "Connection closed by peer 127.0.0.1:80",
        ),
        ("\n  [a.cc:1] [b.cc:2] timed out\nstack of\nlines", "timed out"),
        ("Timed out [5 s] at once\nmore", "Timed out [5 s] at once"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
    ],
)
@pytest.mark.parametrize(("place", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_the_reason_is_the_first_line_without_its_place(
    said: str, reason: str, place: str, backend: str
) -> None:
    line = f"collect comm: another process ended or cannot be reached ({backend}: {reason}); measured points are stored"
    for kind in (RuntimeError, ValueError):
        with pytest.raises(LostPeersError, match=f"^{re.escape(line)}$"), _losses(torch.device(place)):
            raise kind(said)
