"""Counts how often clients authenticate again (KIP-368)."""

from __future__ import annotations

import threading

from eventbus.server.security.sasl import SaslSession
from eventbus.testing import KafkaServer


class Again:
    """Counts authentications on connections that had authenticated before."""

    def __init__(self, running: KafkaServer, wanted: int) -> None:
        self.enough = threading.Event()
        self._wanted = wanted
        self._count = 0
        self._security = running.node.security
        self._new_session, self._succeeded = self._security.new_session, self._security.failures.succeeded
        self._security.new_session = self._begun
        self._security.failures.succeeded = self._done

    def _begun(self, listener: str) -> SaslSession:
        self._count -= 1
        return self._new_session(listener)

    def _done(self, host: str) -> None:
        self._count += 1
        if self._count >= self._wanted:
            self.enough.set()
        self._succeeded(host)
