"""Logs that speak Kafka's protocol, as targets of the conformance kit: each promise gets names of its own on them."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import ClassVar, Protocol

import anyio.to_thread

from eventbus import EventBus
from eventbus.testing.conformance import Target
from tests.clients.serving import Served
from tests.kafka.urls import QUICK, bus_url
from tests.ports import kept_ports

__all__ = ["QUICK", "KillableServer", "Node", "OnNode", "bus_url", "on"]

_runs = itertools.count()


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

    @staticmethod
    def python() -> str:
        """Return an interpreter that has ended when `kill` returns; a fork of `tests.warm` ends a moment later."""
        return sys.executable

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
            self._complaints.close()


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


def on(server: Node, **settings: str) -> OnNode:
    """Return a target on that server; ``settings`` are librdkafka's."""

    class Here(OnNode):
        node = server

        def open(self) -> EventBus:
            return EventBus(bus_url(server.bootstrap, **settings))

    return Here()
