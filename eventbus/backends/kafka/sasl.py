"""SASL for our own connections: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628), as Kafka frames them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from eventbus.backends.kafka.settings import ClientSettings
from eventbus.backends.kafka.tokens import Token, Tokens
from eventbus.errors import ConfigError
from eventbus.protocol import messages as m

_KNOWN = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_FEWEST_ITERATIONS = 4_096
_MOST_ITERATIONS = 1_000_000
"""A server that requests more iterations only keeps this process busy."""

Call = Callable[[Any, int], Any]


def authenticate(call: Call, settings: ClientSettings, tokens: Tokens) -> None:
    """Authenticate. Raises ConfigError if the broker refuses, or for a mechanism that only librdkafka supports."""
    given = settings.given
    mechanism = settings.mechanism
    user, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    if mechanism not in _KNOWN:
        raise ConfigError(
            f"sasl.mechanism={mechanism or '(none)'}: this administrative call is made without librdkafka, and knows "
            f"{', '.join(_KNOWN)}; use Kafka's own tool for it"
        )
    answer = call(m.SaslHandshakeRequest(mechanism=mechanism), 1)
    if answer.error_code:
        raise ConfigError(f"the broker does not know sasl.mechanism={mechanism}: it has {', '.join(answer.mechanisms)}")
    if mechanism == "PLAIN":
        _exchange(call, f"\0{user}\0{password}".encode())
    elif mechanism == "OAUTHBEARER":
        _bear(call, tokens.take())
    else:
        _scram(call, mechanism.removeprefix("SCRAM-").replace("-", "").lower(), user, password)


def _exchange(call: Call, data: bytes) -> bytes:
    answer = call(m.SaslAuthenticateRequest(auth_bytes=data), 1)
    if answer.error_code:
        raise ConfigError(f"the broker refused the login: {answer.error_message or answer.error_code}")
    return bytes(answer.auth_bytes or b"")


def _bear(call: Call, token: Token) -> None:
    pairs = {"auth": f"Bearer {token.text}", **token.extensions}
    listed = "".join(f"{name}={value}\x01" for name, value in pairs.items())
    refusal = _exchange(call, f"n,,\x01{listed}\x01".encode())
    if refusal:
        raise ConfigError(f"the broker refused the token: {refusal.decode(errors='replace')}")


def _scram(call: Call, digest: str, user: str, password: str) -> None:
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = _exchange(call, b"n,," + bare.encode()).decode()
    fields = dict(field.split("=", 1) for field in first.split(",") if "=" in field)
    iterations = int(fields.get("i", "0"))
    if not fields.get("r", "").startswith(nonce) or not _FEWEST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise ConfigError("the broker's SCRAM answer is not one to this login: another nonce, or too few iterations")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), iterations)
    without_proof = f"c=biws,r={fields['r']}"
    signed = f"{bare},{first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    last = _exchange(call, f"{without_proof},p={base64.b64encode(proof).decode()}".encode()).decode()
    expected = base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)).decode()
    if not hmac.compare_digest(last.partition("v=")[2].split(",")[0], expected):
        raise ConfigError("the broker does not know the password that it accepted: it may be an impostor")
