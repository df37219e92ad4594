"""All that a server knows of security: credentials, sessions, permissions, quotas."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from eventbus.broker import CLUSTER_METADATA
from eventbus.coordinator.credentials import ScramCredential, ScramMechanism, from_password
from eventbus.server.security.acls import Authorizer, Operation, ResourceType
from eventbus.server.security.config import SecurityConfig
from eventbus.server.security.quotas import Quotas
from eventbus.server.security.sasl import SaslSession

if TYPE_CHECKING:
    from eventbus.broker.security_admin import SecurityAdmin
    from eventbus.server.call import Call

_FAILURES_BEFORE_SLOW = 5
_SLOW_FACTOR = 10
_FAILURES_KEPT_MS = 60_000
_HOSTS_KEPT = 10_000


class Security:
    """One of a server. Make it with `Security.from_config`."""

    def __init__(self, config: SecurityConfig, store: SecurityAdmin) -> None:
        self.config = config
        self.store = store
        self.authorizer: Authorizer | None = None
        """None: everybody may do everything."""
        if config.acls:
            self.authorizer = Authorizer(store, config.super_users, config.allow_everyone_if_no_acl_found)
        self.quotas = Quotas(store.quotas, config.quota_window_num, config.quota_window_size_seconds * 1_000)
        self.failures = Failures(config.connection_failed_authentication_delay_ms)
        self._derived: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        self._pretend_key = secrets.token_bytes(32)

    @classmethod
    def from_config(cls, config: SecurityConfig, store: SecurityAdmin) -> Security:
        """``store``: the log's (``broker.security``). Raises ConfigError."""
        config.check()
        return cls(config, store)

    # who -------------------------------------------------------------------------------------------------------------

    def new_session(self, listener: str) -> SaslSession:
        """For a connection to the listener of that name, which has to say who it is."""
        return SaslSession(self, self.config.mechanisms_of(listener), secrets.token_hex, self._pretend_key)

    @property
    def users(self) -> Mapping[str, str]:
        """Passwords of the users in the server's settings."""
        return self.config.users

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What is stored of a user goes before what the server's settings say."""
        stored = self.store.scram_credential(mechanism, user)
        if stored is not None:
            return stored
        password = self.config.users.get(user)
        if password is None:
            return None
        derived = self._derived.get((mechanism, user))
        if derived is None:
            derived = self._derived[mechanism, user] = from_password(mechanism, password, secrets.token_bytes(20))
        return derived

    # what ------------------------------------------------------------------------------------------------------------

    def allows(self, call: Call, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether who asks may do that; always, while ACLs are off.

        But nobody, super users neither, may do anything to the metadata log: users' credentials are in it.
        """
        if name == CLUSTER_METADATA and resource_type is ResourceType.TOPIC:
            return False
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows(
            call.principal, call.connection.peer_host, operation, resource_type, name
        )

    def allows_some(self, call: Call, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether who asks may do that to some resource of the type: see `Authorizer.allows_some`."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_some(
            call.principal, call.connection.peer_host, operation, resource_type
        )


class Failures:
    """How long to let a refused client wait: guessing must be slow."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._by_host: dict[str, tuple[int, int]] = {}
        """How many in a row, and when the last one was."""

    def failed(self, host: str, now_ms: int) -> int:
        """Count one; returns how long to wait with the answer, in milliseconds."""
        count, last_ms = self._by_host.pop(host, (0, now_ms))
        count = 1 if now_ms - last_ms > _FAILURES_KEPT_MS else count + 1
        if len(self._by_host) >= _HOSTS_KEPT:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = (count, now_ms)
        return self._delay_ms * (_SLOW_FACTOR if count >= _FAILURES_BEFORE_SLOW else 1)

    def succeeded(self, host: str) -> None:
        """Somebody there knows a password: start over."""
        self._by_host.pop(host, None)
