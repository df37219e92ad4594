"""Authentication of a connection: SASL with PLAIN or SCRAM (KIP-43, KIP-152), and re-authentication (KIP-368).

The session has a principal only after a mechanism has succeeded. Every failure ends the connection.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Protocol

from eventbus.coordinator.credentials import SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from eventbus.server.security.config import PLAIN
from eventbus.server.security.scram import AuthenticationFailed, ScramServer

ANONYMOUS = "User:ANONYMOUS"
_MOST_BYTES = 8_192
"""The limit for one message, which holds names, a password or a nonce. Larger messages only keep the server busy."""


class Mechanism(Protocol):
    """One exchange of a SASL mechanism."""

    @property
    def user(self) -> str | None:
        """The authenticated user; None until the exchange has succeeded."""
        ...

    def evaluate(self, message: bytes) -> bytes:
        """Return the answer to the peer's next message. Raises AuthenticationFailed."""
        ...


class PlainServer:
    """RFC 4616: one message, ``[authorization id] NUL user NUL password``, in clear."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.user: str | None = None

    def evaluate(self, message: bytes) -> bytes:
        try:
            authorization, user, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is a ValueError
            raise AuthenticationFailed("Authentication failed during PLAIN: invalid message of the client") from None
        if authorization not in ("", user):
            raise AuthenticationFailed("Authentication failed during PLAIN: the client asks to act as another user")
        expected = self._users.get(user)
        right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not right or not user:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        self.user = user
        return b""


class Credentials(Protocol):
    """The source of users and credentials."""

    @property
    def users(self) -> Mapping[str, str]: ...
    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None: ...


class Timer(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


class SaslSession:
    """The authentication state of a peer. `begin` a mechanism, `evaluate` its messages; then `principal` is the
    result."""

    __slots__ = (
        "_credentials",
        "_exchange",
        "_new_nonce",
        "_pretend_key",
        "expiry",
        "has_failed",
        "mechanism",
        "mechanisms",
        "principal",
    )

    def __init__(
        self,
        credentials: Credentials,
        mechanisms: tuple[str, ...],
        new_nonce: Callable[[], str],
        pretend_key: bytes,
    ) -> None:
        self._credentials = credentials
        self.mechanisms = mechanisms
        """The mechanisms that the listener offers."""
        self._new_nonce = new_nonce
        self._pretend_key = pretend_key
        self._exchange: Mechanism | None = None
        self.mechanism = ""
        """The mechanism of the last handshake."""
        self.principal = ANONYMOUS
        """The principal that was authenticated last."""
        self.has_failed = False
        """True if the peer was refused: nothing more is accepted from it."""
        self.expiry: Timer | None = None
        """The timer that ends the session's lifetime."""

    @property
    def is_under_way(self) -> bool:
        """True after a handshake whose exchange is not complete."""
        return self._exchange is not None

    def begin(self, mechanism: str) -> None:
        """Start an exchange. Raises KeyError if the mechanism is not offered, AuthenticationFailed if it differs
        from the mechanism by which the peer authenticated before."""
        if mechanism not in self.mechanisms:
            raise KeyError(mechanism)
        if self.principal != ANONYMOUS and mechanism != self.mechanism:
            self.has_failed = True
            raise AuthenticationFailed(
                f"SASL mechanism {mechanism} requested by client is not the one it authenticated by before, "
                f"{self.mechanism}"
            )
        self.mechanism = mechanism
        if mechanism == PLAIN:
            self._exchange = PlainServer(self._credentials.users)
            return
        kind = SCRAM_MECHANISMS[mechanism]
        self._exchange = ScramServer(
            kind, lambda user: self._credentials.scram_credential(kind, user), self._new_nonce, self._pretend_key
        )

    def evaluate(self, message: bytes) -> tuple[bytes, bool]:
        """Return the answer, and True if the peer is now authenticated. Raises AuthenticationFailed."""
        exchange = self._exchange
        assert exchange is not None, "nothing was begun"
        self.has_failed = True  # until it has succeeded
        if len(message) > _MOST_BYTES:
            raise AuthenticationFailed(f"Authentication failed: a message of {len(message):,} bytes")
        answer = exchange.evaluate(message)
        principal = f"User:{exchange.user}"
        if exchange.user is not None and self.principal not in (ANONYMOUS, principal):
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {self.principal} to {principal}"
            )
        self.has_failed = False
        if exchange.user is None:
            return answer, False
        self._exchange = None
        self.principal = principal
        return answer, True
