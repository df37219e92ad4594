"""librdkafka's admin client, from its creation until it is closed."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from eventbus.backends.kafka.settings import config_refused
from eventbus.errors import ConfigError
from eventbus.forks import never_free, watch_forks


class AdminHandle:
    """The only reference to an admin client that outlives a call.

    A client is destroyed when nothing refers to it, and then waits for its threads. An exception refers to everything
    that the frames of its traceback use, often in a cycle. A client in such a cycle is destroyed by the garbage
    collector, in whichever thread it runs: the event loop would block, or librdkafka would abort the process, if the
    thread belongs to the client and has called back. So `close` drops the client, and a running call in an abandoned
    thread keeps it until the call returns.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """Create the client. Raises ConfigError for a setting that librdkafka refuses."""
        try:
            self._client: AdminClient | None = AdminClient(settings)
        except KafkaException as failure:
            raise config_refused(failure) from None
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        never_free(self._client)

    @property
    def client(self) -> Any:
        """The client, for a single call; do not keep it. Raises ConfigError after `close`."""
        if self._client is None:
            raise ConfigError("The bus was closed during this call. Use it inside `async with bus:`.")
        return self._client

    def close(self) -> None:
        """Destroy the client, in this thread, or, if calls are running, in their threads when they have returned."""
        self._client = None
