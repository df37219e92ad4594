"""Where a relay runs: so that one that was killed need not be waited for by its own successor.

Safe in any case, whoever is taken for dead is fenced; so it is only said of a process that surely is not there.
"""

from __future__ import annotations

import os
import socket
import zlib
from functools import cache
from pathlib import Path

from outbox.relay.slots import Other

_PROCESSES = Path("/proc")
_alive: set[str] = set()
"""Tokens of the relays in this process."""


@cache
def _machine() -> str:
    """What tells processes with one id apart: the boot, and the container. Empty where that cannot be known."""
    try:
        text = f"{Path('/proc/sys/kernel/random/boot_id').read_text()}{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
    return f"{zlib.crc32(text.encode()):08x}"


def this_host() -> str:
    """``name/process id@machine``, 255 characters at most."""
    return f"{socket.gethostname()[:200]}/{os.getpid()}@{_machine()}"


def lives(token: str) -> None:
    """A relay of this process holds a lease."""
    _alive.add(token)


def ends(token: str) -> None:
    """It does not any more."""
    _alive.discard(token)


def is_gone(other: Other) -> bool:
    """A relay of this machine whose process is not there."""
    name, _, machine = other.host.rpartition("@")
    host, _, process = name.rpartition("/")
    if not machine or machine != _machine() or host != socket.gethostname()[:200] or not process.isdecimal():
        return False
    if int(process) == os.getpid():
        return other.token not in _alive
    return not (_PROCESSES / process).exists()
