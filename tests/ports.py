"""Ports of 127.0.0.1 for servers that come back at the same address, and for addresses where nothing listens."""

from __future__ import annotations

import socket
import weakref


def kept_ports(owner: object, count: int) -> list[int]:
    """Return ports that no other program gets as long as ``owner`` lives, also while nothing listens there.

    The sockets stay bound. Otherwise another program could take a port meanwhile, or a client that connects to it in
    vain could get the very port as its own, connect to itself, and keep the server out. Servers set SO_REUSEADDR, so
    they may bind the port.
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
        weakref.finalize(owner, each.close)
    return [each.getsockname()[1] for each in sockets]


def free_ports(count: int) -> list[int]:
    """Return ports that no other program gets as long as this process lives."""
    return kept_ports(free_ports, count)
