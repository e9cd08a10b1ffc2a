"""The Host header of requests to a server on this machine: a page elsewhere must not ask it by a name of its own."""

import ipaddress
import re

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")


def names_this_machine(host: str) -> bool:
    """Whether a Host header is localhost or a loopback address, with any port (one may be forwarded).

    A browser that was told that another name has the address 127.0.0.1 (DNS rebinding) sends that other name.
    """
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = found["name"].strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
