"""A directory for several workers: one process may have it, so the supervisor has it, and serves it to them.

Over Kafka's protocol, on a free port of the loopback interface; a password that only the workers are told keeps other
users of the machine out, as the directory's permissions do.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from eventbus.cli.running.control_channel import Loaded, Refused, Start
from eventbus.errors import EventBusError

if TYPE_CHECKING:
    from eventbus.server.server import Server

_USER = "worker"


class SharedLog:
    """Opened when the first worker needs it."""

    def __init__(self, on_failure: Callable[[str], object]) -> None:
        """``on_failure``: called in another thread when the log can serve no more, with the reason."""
        self._on_failure = on_failure
        self._open = ExitStack()
        self._go: Start | Refused | None = None

    def place(self, loaded: Loaded) -> Start | Refused:
        """Where a worker is to start its bus."""
        if loaded.kind == "shared":
            return Start()
        if loaded.kind == "memory":
            return Refused(
                f"--workers: each worker would have a {loaded.url} of its own, and none of them the others' records; "
                "use file://DIR or kafka://, or one worker with concurrency= in its handlers"
            )
        if self._go is None:
            self._go = self._serve(loaded)
        return self._go

    def _serve(self, loaded: Loaded) -> Start | Refused:
        if importlib.util.find_spec("confluent_kafka") is None:
            return Refused(
                f"--workers: {loaded.url} is one process's; workers reach it over kafka://, which needs the client "
                'library: pip install "eventbus-log[kafka]"'
            )
        from anyio.from_thread import start_blocking_portal

        from eventbus.server.config import Listener, ServerConfig
        from eventbus.server.security.config import PLAIN, SecurityConfig
        from eventbus.server.server import Server

        password = secrets.token_urlsafe()
        listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", host="127.0.0.1", port=0)
        security = SecurityConfig(users={_USER: password}, sasl_enabled_mechanisms=(PLAIN,))
        try:
            server = Server(loaded.url, ServerConfig(listeners=(listener,), security=security), loaded.settings)
            portal = self._open.enter_context(start_blocking_portal())
            self._open.enter_context(portal.wrap_async_context_manager(server))
        except EventBusError as error:
            return Refused(str(error))
        portal.start_task_soon(self._watch, server)
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": PLAIN,
            "sasl.username": _USER,
            "sasl.password": password,
        }
        return Start(f"kafka://{server.bootstrap}", settings)

    async def _watch(self, server: Server) -> None:
        try:
            await server.wait()
        except EventBusError as error:
            self._on_failure(f"the log cannot go on: {error}")

    def close(self) -> None:
        """When no worker is left."""
        self._open.close()
