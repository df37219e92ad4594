"""Wait an outage out in the record's place: the decisions for a handler without ``retry=``."""

from __future__ import annotations

import logging

from eventbus.outages import back_off_ms, is_outage
from eventbus.recovery import Again, Outgoing, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord

logger = logging.getLogger("eventbus.runner")

_AT_ONCE = 2
"""Immediate retries, as with ``dlq.Retry``: a pooled connection that the server has closed fails once, and the next
call opens a new connection."""


class OutagePolicy:
    """Implements `eventbus.recovery.Decides`. Everything but an outage is left to ``on_error``."""

    retry_topic = None

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._is_logged = False

    def decide(self, record: ConsumerRecord, error: Exception, tries: int, now_ms: int) -> Verdict:
        if not is_outage(error):
            return Stop()
        if tries <= _AT_ONCE:
            return Again()
        seconds = back_off_ms(tries - _AT_ONCE) / 1000
        if not self._is_logged:  # once until a record is handled: every partition may wait for the same database
            self._is_logged = True
            logger.warning(
                "handler %r: %s-%d offset %d waits in its place for the end of an outage: %s: %s. It is handled again, "
                "first in %g s, until the outage is over",
                self._handler, record.topic, record.partition, record.offset, type(error).__name__, error, seconds,
            )  # fmt: skip
        return WaitHere(seconds, f"an outage: {type(error).__name__}: {error}")

    def behind(self, record: ConsumerRecord, now_ms: int) -> Outgoing:
        raise AssertionError("records are set aside in a retry topic, and there is none")

    def admit(self, now_ms: int) -> float:
        return 0.0

    def handled(self, count: int, now_ms: int) -> None:
        self._is_logged = False
