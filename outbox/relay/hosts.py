"""Identify the host of a relay, so that the successor of a killed relay need not wait for its lease to end.

A wrong answer would be safe because the other relay is fenced, but a relay is only called dead if its process certainly
does not exist.
"""

from __future__ import annotations

import os
import socket
import zlib
from functools import cache
from pathlib import Path

from outbox.relay.shard_leases import OtherRelay

_PROCESSES = Path("/proc")
_alive: set[str] = set()
"""Tokens of the leases held by relays in this process."""


@cache
def _machine() -> str:
    """Return an id of the boot and the PID namespace, which make process ids comparable. "" if unknown."""
    try:
        text = f"{Path('/proc/sys/kernel/random/boot_id').read_text()}{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
    return f"{zlib.crc32(text.encode()):08x}"


def this_host() -> str:
    """Return ``name/process id@machine``, at most 255 characters."""
    return f"{socket.gethostname()[:200]}/{os.getpid()}@{_machine()}"


def lives(token: str) -> None:
    """Register a lease held by a relay of this process."""
    _alive.add(token)


def ends(token: str) -> None:
    """Unregister a lease that was released or lost."""
    _alive.discard(token)


def is_gone(other: OtherRelay) -> bool:
    """True if a relay ran on this machine and its process no longer exists."""
    name, _, machine = other.host.rpartition("@")
    host, _, process = name.rpartition("/")
    if not machine or machine != _machine() or host != socket.gethostname()[:200] or not process.isdecimal():
        return False
    if int(process) == os.getpid():
        return other.token not in _alive
    return not (_PROCESSES / process).exists()
