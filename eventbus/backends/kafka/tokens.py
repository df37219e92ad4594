"""Tokens for SASL/OAUTHBEARER (KIP-255, KIP-768), from the source that librdkafka's settings name."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from eventbus.errors import ConfigError, CoordinatorNotAvailable, EventBusError

CONFIG = "sasl.oauthbearer.config"
_UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_LIFE_SECONDS = 3_600
_EARLY_SECONDS = 30.0
"""A token is not used shortly before its end: it could expire in flight."""
_ANSWER_SECONDS = 10.0
_MOST_BYTES = 1 << 20
Callback = Callable[[str], Any]


class Token(msgspec.Struct, frozen=True):
    """A token for a broker, with its end."""

    text: str
    ends_at: float
    """The end in seconds since the epoch."""
    extensions: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Token(ends_at={self.ends_at})"


class Tokens:
    """The tokens of a bus: the latest until it expires, then a new one. Thread-safe."""

    def __init__(self, given: Mapping[str, str], callback: Callback | None) -> None:
        self._given = given
        self._callback = callback
        self._lock = threading.Lock()
        self._last: Token | None = None

    def take(self) -> Token:
        """Return a token. Raises ConfigError without a source, CoordinatorNotAvailable if the source does not
        answer."""
        with self._lock:
            last = self._last
            # Renewed early, so that the token does not expire between here and the broker.
            if last is None or last.ends_at - _EARLY_SECONDS < time.time():
                last = self._last = self._make()
            return last

    def _make(self) -> Token:
        if self._callback is not None:
            return _from_callback(self._callback, self._given.get(CONFIG, ""))
        if self._given.get("sasl.oauthbearer.method", "default").lower() == "oidc":
            return _from_server(self._given)
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER needs tokens: oauth_cb=, a function that returns one, or "
            "sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url, client.id and client.secret"
        )


def callback_of(given: Mapping[str, str], callback: Callback | None) -> Callback | None:
    """Return librdkafka's token callback; None if librdkafka makes tokens itself.

    Unsecured tokens are made here, because a librdkafka admin client would never make one.
    """
    if callback is None and given.get(_UNSECURED, "false").lower() == "true":
        return unsecured
    return callback


def without_unsecured(given: Mapping[str, str]) -> dict[str, str]:
    """Return settings for librdkafka, which accepts either a callback or its own tokens."""
    return {name: value for name, value in given.items() if name != _UNSECURED}


def unsecured(config: str) -> tuple[str, float, str, dict[str, str]]:
    """Return an unsigned token, as librdkafka makes it: only for tests. Raises ConfigError."""
    options = {name: value for name, _, value in (part.partition("=") for part in config.split())}
    principal = options.get("principal", "")
    if not principal:
        raise ConfigError(f"{CONFIG}={config!r}: an unsigned token needs principal=NAME in it")
    now = time.time()
    ends_at = now + int(options.get("lifeSeconds", _LIFE_SECONDS))
    claims: dict[str, Any] = {options.get("principalClaimName", "sub"): principal, "iat": now, "exp": ends_at}
    if "scope" in options:
        claims[options.get("scopeClaimName", "scope")] = options["scope"].split(",")
    text = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
    extensions = {name.removeprefix("extension_"): value for name, value in options.items() if "extension_" in name}
    return text, ends_at, principal, extensions


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _from_callback(callback: Callback, config: str) -> Token:
    """Call the user's callback, which returns ``(token, end)``, optionally followed by a principal and extensions."""
    try:
        found: Any = callback(config)
    except EventBusError:
        raise
    except Exception as error:  # raised by user code: the token service may be unavailable for a while
        raise CoordinatorNotAvailable(f"oauth_cb gives no token: {type(error).__name__}: {error}") from error
    try:
        text, ends_at, *more = found
        extensions = dict(more[1]) if len(more) > 1 else {}
        return Token(text, float(ends_at), extensions)
    except (TypeError, ValueError):
        raise ConfigError(
            f"oauth_cb returned {type(found).__name__}, not (token, its end in seconds since the epoch)"
        ) from None


def _from_server(given: Mapping[str, str]) -> Token:
    """Request a token by OAuth's client credentials grant (RFC 6749, 4.4)."""
    grant = given.get("sasl.oauthbearer.grant.type", "client_credentials")
    url = given.get("sasl.oauthbearer.token.endpoint.url", "")
    user, secret = (given.get(f"sasl.oauthbearer.client.{name}", "") for name in ("id", "secret"))
    if grant != "client_credentials" or "sasl.oauthbearer.metadata.authentication.type" in given:
        raise ConfigError(
            f"sasl.oauthbearer.grant.type={grant}: this administrative call is made without librdkafka, and gets "
            "tokens by client_credentials alone; give oauth_cb=, or use Kafka's own tool for it"
        )
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"sasl.oauthbearer.token.endpoint.url={url!r}: the https:// address that gives out tokens")
    form = {"grant_type": grant}
    if "sasl.oauthbearer.scope" in given:
        form["scope"] = given["sasl.oauthbearer.scope"]
    login = base64.b64encode(f"{user}:{secret}".encode()).decode()
    request = urllib.request.Request(
        url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=given.get("https.ca.location"), cadata=given.get("https.ca.pem"))
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=trusted) as response:
            answer = json.loads(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        error.close()  # the error is also a response
        raise ConfigError(f"{url} gives no token to {user!r}: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise CoordinatorNotAvailable(f"{url} gives no token: {error}") from None
    return _read(answer, url, given)


def _read(answer: Any, url: str, given: Mapping[str, str]) -> Token:
    text = cast("dict[str, Any]", answer).get("access_token") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f"{url} answered without an access_token")
    life_seconds = cast("dict[str, Any]", answer).get("expires_in", _LIFE_SECONDS)
    listed = given.get("sasl.oauthbearer.extensions", "")
    pairs = [part.strip().partition("=") for part in listed.split(",") if part.strip()]
    extensions = {name: value for name, _, value in pairs}
    return Token(text, time.time() + float(life_seconds), extensions)
