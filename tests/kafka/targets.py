"""Logs that speak Kafka's protocol, as targets of the conformance kit: each promise gets names of its own on them."""

from __future__ import annotations

import itertools
import os
import socket
import weakref
from pathlib import Path
from typing import ClassVar, Protocol

import anyio.to_thread

from eventbus import EventBus
from eventbus.testing.conformance import Target
from tests.clients.serving import Served

_runs = itertools.count()

QUICK = {
    "heartbeat.interval.ms": "100",
    "session.timeout.ms": "6000",
    "topic.metadata.refresh.interval.ms": "300",
    "fetch.wait.max.ms": "100",
    "coordinator.query.interval.ms": "100",
    "reconnect.backoff.max.ms": "200",
}
"""What takes seconds by default."""


class Node(Protocol):
    """A server in a process of its own, which comes back with what it had, at the same address."""

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class KillableServer(Served):
    """``eventbus serve``, always at the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        (self.port,) = kept_ports(self, 1)
        super().__init__(folder, "--listener", f"PLAINTEXT://127.0.0.1:{self.port}", *options)

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
            self._complaints.close()


def kept_ports(owner: object, count: int) -> list[int]:
    """Ports that nobody else is given as long as ``owner`` lives, also while nobody listens there.

    They stay bound: another program could take one meanwhile, or a client that connects to it in vain be given the very
    port, meet itself there, and keep the server out. Servers, which set SO_REUSEADDR, may bind them.
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
        weakref.finalize(owner, each.close)
    return [each.getsockname()[1] for each in sockets]


def free_ports(count: int) -> list[int]:
    """The same, as long as this process lives."""
    return kept_ports(free_ports, count)


class OnNode(Target):
    """A log that goes on for all promises."""

    can = frozenset({"restart", "kill"})
    node: ClassVar[Node]

    def __init__(self) -> None:
        self.prefix = f"p{os.getpid()}-{next(_runs)}-"

    def open(self) -> EventBus:
        return EventBus(bus_url(self.node.bootstrap))

    async def restart(self) -> None:
        await anyio.to_thread.run_sync(self._restart)

    def _restart(self) -> None:
        self.node.stop()
        self.node.start()

    async def kill(self) -> None:
        await anyio.to_thread.run_sync(self._kill)

    def _kill(self) -> None:
        self.node.kill()
        self.node.start()


def on(server: Node) -> OnNode:
    """A target on that server."""

    class Here(OnNode):
        node = server

    return Here()


def bus_url(bootstrap: str, **more: str) -> str:
    """Of a bus that does not wait for long. ``more``: librdkafka's settings, with underscores."""
    settings = "&".join(f"{name}={value}" for name, value in {**QUICK, **more}.items())
    return f"kafka://{bootstrap}?{settings}"
