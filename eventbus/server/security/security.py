"""The security state of a server: credentials, sessions, permissions, quotas."""

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
    """The security of one server; create it with `Security.from_config`."""

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
        """Create it. ``store`` is the log's (``broker.security``). Raises ConfigError."""
        config.check()
        return cls(config, store)

    # who -------------------------------------------------------------------------------------------------------------

    def new_session(self, listener: str) -> SaslSession:
        """Return a session for a connection to this listener, which has to authenticate."""
        return SaslSession(self, self.config.mechanisms_of(listener), secrets.token_hex, self._pretend_key)

    @property
    def users(self) -> Mapping[str, str]:
        """Passwords of the users in the server's settings."""
        return self.config.users

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return a user's credential. A stored credential takes precedence over the server's settings."""
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
        """True if the caller is allowed to perform the operation, or if ACLs are off.

        The metadata log is closed to all clients, even super users: it contains users' credentials.
        """
        if name == CLUSTER_METADATA and resource_type is ResourceType.TOPIC:
            return False
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows(
            call.principal, call.connection.peer_host, operation, resource_type, name
        )

    def allows_some(self, call: Call, operation: Operation, resource_type: ResourceType) -> bool:
        """True if the caller is allowed the operation on some resource of the type: see `Authorizer.allows_some`."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_some(
            call.principal, call.connection.peer_host, operation, resource_type
        )


class Failures:
    """Computes how long a refused client must wait: guessing must be slow."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._by_host: dict[str, tuple[int, int]] = {}
        """The number of failures in a row, and the time of the last, by host."""

    def failed(self, host: str, now_ms: int) -> int:
        """Count a failure; return how long to delay the answer, in milliseconds."""
        count, last_ms = self._by_host.pop(host, (0, now_ms))
        count = 1 if now_ms - last_ms > _FAILURES_KEPT_MS else count + 1
        if len(self._by_host) >= _HOSTS_KEPT:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = (count, now_ms)
        return self._delay_ms * (_SLOW_FACTOR if count >= _FAILURES_BEFORE_SLOW else 1)

    def succeeded(self, host: str) -> None:
        """Reset the count after a successful authentication."""
        self._by_host.pop(host, None)
