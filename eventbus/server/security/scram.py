"""The server's half of SCRAM (RFC 5802, RFC 7677), without channel binding, as in Kafka (KIP-84).

    C: n,,n=alice,r=<client nonce>
    S: r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    C: c=biws,r=<client nonce><server nonce>,p=<proof>
    S: v=<the server's own proof>

For an unknown user the server continues with a made-up credential, which is always the same for the name, so that
neither the exchange nor the time that it takes reveals which users exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

from eventbus.coordinator.credentials import MIN_ITERATIONS, ScramCredential, ScramMechanism

_NAME = r"(?:[^=,\x00]|=2C|=3D)+"
_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\x00]+)*))"
)
_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\x00]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class AuthenticationFailed(Exception):
    """Raised if authentication fails. The text is sent to the peer; it contains no secret and does not reveal users."""


class ScramServer:
    """One exchange. `evaluate` its messages in turn; the peer is authenticated only if `user` is set afterwards."""

    __slots__ = (
        "_auth_message",
        "_claimed",
        "_credential",
        "_find",
        "_gs2",
        "_mechanism",
        "_new_nonce",
        "_nonce",
        "_pretend_key",
        "_step",
        "user",
    )

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        new_nonce: Callable[[], str],
        pretend_key: bytes,
    ) -> None:
        """``new_nonce``: unique printable ASCII without commas; ``pretend_key``: makes the salts of unknown users."""
        self._mechanism = mechanism
        self._find = find
        self._new_nonce = new_nonce
        self._pretend_key = pretend_key
        self._step = 0
        self._claimed = self._nonce = self._auth_message = ""
        self._gs2 = b""
        self._credential: ScramCredential | None = None
        self.user: str | None = None
        """The name of the authenticated user."""

    def evaluate(self, message: bytes) -> bytes:
        """Return the answer to the peer's next message. Raises AuthenticationFailed, and then for every later
        message."""
        step, self._step = self._step, -1
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._failed("a message that is not UTF-8") from None
        if step == 0:
            answer = self._first(text)
        elif step == 1:
            answer = self._final(text)
        else:
            raise self._failed("a message after the end of the exchange")
        self._step = step + 1
        return answer.encode()

    def _failed(self, what: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"Authentication failed during {self._mechanism.title}: {what}")

    def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise self._failed("invalid first message of the client")
        if ",tokenauth=true" in found["extensions"]:
            raise self._failed("delegation tokens are not known here")
        user = _unescape(found["user"])
        if found["authorization"] is not None and _unescape(found["authorization"]) != user:
            raise self._failed("the client asks to act as another user")
        credential = self._find(user) or self._pretended(user)
        self._claimed, self._credential, self._gs2 = user, credential, found["gs2"].encode()
        self._nonce = found["nonce"] + self._new_nonce()
        answer = f"r={self._nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
        self._auth_message = f"{found['bare']},{answer},"
        return answer

    def _pretended(self, user: str) -> ScramCredential:
        """Return a credential that no password fits: its keys are no hashes of anything."""
        salt, key = (
            hmac.digest(self._pretend_key, text.encode(), self._mechanism.hash_name) for text in (user, f"\0{user}")
        )
        return ScramCredential(salt[:20], key, key, MIN_ITERATIONS)

    def _final(self, text: str) -> str:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise self._failed("invalid final message of the client")
        try:
            binding = base64.b64decode(found["binding"], validate=True)
            proof = base64.b64decode(found["proof"], validate=True)
        except (binascii.Error, ValueError):
            raise self._failed("invalid final message of the client") from None
        if binding != self._gs2:
            raise self._failed("the channel binding is another one than at the start")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise self._failed("the nonce is another one than at the start")  # otherwise an old proof could be replayed
        credential, hash_name = self._credential, self._mechanism.hash_name
        auth_message = (self._auth_message + found["unproved"]).encode()
        assert credential is not None, "the first message sets it"
        if not _proves(credential, auth_message, proof, hash_name):
            raise AuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._mechanism.title
            )
        self.user = self._claimed
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, auth_message, hash_name)).decode()


def _proves(credential: ScramCredential, auth_message: bytes, proof: bytes, hash_name: str) -> bool:
    """True if the peer has the key whose hash is stored."""
    signature = hmac.digest(credential.stored_key, auth_message, hash_name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key)


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
