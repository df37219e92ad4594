"""A librdkafka producer, and the thread that receives its reports."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer

from eventbus.backends.kafka.failures import client_error
from eventbus.backends.kafka.settings import config_refused
from eventbus.forks import never_free, watch_forks

logger = logging.getLogger("eventbus.producer")

_POLL_SECONDS = 0.1
"""How long the thread waits for reports before it checks whether it must stop."""
_PURGE_SECONDS = 1.0
"""How long the reports of purged records may take: librdkafka's own threads create them."""
_CAUSE_SECONDS = 1.0
"""How long it may take until the cause of a fatal error is queued."""


OnFatal = Callable[["ProducerClient", ClientError], object]


class ProducerClient:
    """A producer whose handle is used by the event loop's thread, which only passes records on and never waits."""

    def __init__(self, settings: dict[str, Any], on_fatal: OnFatal) -> None:
        """``on_fatal`` is called, in any thread, with an error that makes the client useless. Raises ConfigError."""
        self.on_fatal = on_fatal
        try:
            self.handle = Producer(settings)
        except KafkaException as failure:
            raise config_refused(failure) from None
        self.is_stopped = False
        self.fatal: ClientError | None = None
        """The cause of the error that made the client useless."""
        self._may_poll = threading.Event()
        self._may_poll.set()
        self._patience_seconds = 0.0
        self._when_gone: Callable[[], object] | None = None
        self.thread = threading.Thread(target=self._serve, name="eventbus-kafka-producer", daemon=True)
        self.thread.start()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        never_free(getattr(self, "handle", None))

    def __len__(self) -> int:
        """The number of records without an outcome; 0 once the client is gone."""
        handle: Producer | None = getattr(self, "handle", None)
        return 0 if handle is None else len(handle)

    def __bool__(self) -> bool:
        return True

    def claim(self) -> None:
        """Let the event loop take the reports while it sends many records, until `rest`.

        In the loop it costs nothing; the thread would have to acquire the interpreter's lock from the loop for each
        report.
        """
        self._may_poll.clear()

    def rest(self) -> None:
        """Let the thread take the reports again."""
        self._may_poll.set()

    def look(self, wait_seconds: float = 0) -> None:
        """Take the available reports."""
        try:
            self.handle.poll(wait_seconds)
        except KafkaException as failure:  # it reports a fatal error in this way
            logger.debug("librdkafka: %s", failure)
            error = client_error(failure)
            self.fatal = self.fatal or error
            self.on_fatal(self, error)

    def cause_of(self, error: ClientError) -> ClientError:
        """Return the cause of a fatal error, from the event loop; any other error is its own cause.

        librdkafka refuses records with "Local: Fatal error" and gives the cause only to the next poll. It refuses them
        before it has queued the cause, and this client's thread may just have taken it from the queue.
        """
        if error.code() != ClientError._FATAL:
            return error
        deadline = time.monotonic() + _CAUSE_SECONDS
        while self.fatal is None and not self.is_stopped and time.monotonic() < deadline:
            self.look(_POLL_SECONDS)
        return self.fatal or error

    def _serve(self) -> None:
        while not self.is_stopped:
            # Cleared while the event loop takes the reports itself, see `claim`.
            self._may_poll.wait()
            self.look(_POLL_SECONDS)
        self._until_empty(self._patience_seconds)
        with contextlib.suppress(KafkaException):
            # Whatever has no outcome by now gets one: its handles must not wait forever.
            self.handle.purge()
        self._until_empty(_PURGE_SECONDS)
        del self.handle  # it waits for its threads to end: here, not in the event loop
        if self._when_gone is not None:
            self._when_gone()

    def _until_empty(self, wait_seconds: float) -> None:
        self.look()
        deadline = time.monotonic() + wait_seconds
        while len(self.handle) and time.monotonic() < deadline:
            self.look(_POLL_SECONDS)

    def stop(self, patience_seconds: float = 0.0, when_gone: Callable[[], object] | None = None) -> None:
        """Drop records without an outcome after ``patience_seconds``; then call ``when_gone``, in the thread."""
        self._patience_seconds = patience_seconds
        self._when_gone = when_gone
        self.is_stopped = True
        # The thread may be waiting for the event loop to return the reports.
        self._may_poll.set()
