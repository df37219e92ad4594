"""Authentication and authorization of requests."""

from __future__ import annotations

import enum
import hashlib
import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from eventbus.errors import ConfigError


class Access(enum.IntEnum):
    NONE = 0
    READ = 1
    """Reads, lookups and compatibility checks."""
    WRITE = 2


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of a request. ``scheme``: ``basic`` or ``bearer``."""

    scheme: str
    user: str = ""
    secret: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.scheme!r}, {self.user!r}, '***')"


Authenticate: TypeAlias = "Callable[[Credentials], Access | Awaitable[Access]]"
"""Maps credentials to access: `Users`, or a custom function, which may be asynchronous."""


class Users:
    """Users with passwords, and static bearer tokens. ``readers`` are users and tokens that may only read.

    A secret may be given as ``sha256:`` and the hex digest of a long random one. Compared in constant time, and as
    slowly for a user that there is not.
    """

    def __init__(
        self,
        passwords: Mapping[str, str] | None = None,
        *,
        tokens: Sequence[str] = (),
        readers: Collection[str] = (),
    ) -> None:
        self._passwords = {user: _digest_of(secret) for user, secret in (passwords or {}).items()}
        self._tokens = [(_digest_of(token), token in readers) for token in tokens]
        self._readers = frozenset(readers)
        unknown = self._readers - set(self._passwords) - set(tokens)
        if unknown:
            raise ConfigError(f"{len(unknown)} of the readers are neither users nor tokens: name them there too")

    @classmethod
    def from_file(cls, path: str | Path) -> Users:
        """Read a file with a user per line: ``alice: secret``, ``bob: secret, read``, ``bearer: token``, ``# comment``.

        Raises ConfigError naming the line; it never shows what stands there.
        """
        passwords: dict[str, str] = {}
        tokens: list[str] = []
        readers: set[str] = set()
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"users file {path}: {error}") from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            user, colon, rest = (part.strip() for part in text.partition(":"))
            secret, _, role = (part.strip() for part in rest.partition(","))
            if not user or not colon or not secret or role not in ("", "read", "write"):
                raise ConfigError(f"users file {path}, line {number}: write 'name: password' or 'name: password, read'")
            if user == "bearer":
                tokens.append(secret)
            else:
                passwords[user] = secret
            if role == "read":
                readers.add(secret if user == "bearer" else user)
        return cls(passwords, tokens=tokens, readers=readers)

    def __call__(self, credentials: Credentials) -> Access:
        told = hashlib.sha256(credentials.secret.encode()).digest()
        if credentials.scheme == "basic":
            expected = self._passwords.get(credentials.user, b"\0" * 32)
            if not hmac.compare_digest(told, expected) or credentials.user not in self._passwords:
                return Access.NONE
            return Access.READ if credentials.user in self._readers else Access.WRITE
        found = Access.NONE
        for expected, only_reads in self._tokens:  # all of them: how long it takes says nothing
            if hmac.compare_digest(told, expected):
                found = Access.READ if only_reads else Access.WRITE
        return found


def credentials_of(header: bytes) -> Credentials | None:
    """Parse an ``Authorization`` header. Return None if it is malformed or neither basic nor bearer."""
    scheme, _, value = header.decode("latin-1").strip().partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return Credentials("bearer", secret=value)
    if scheme.lower() == "basic":
        try:
            user, colon, password = b64decode(value, validate=True).decode().partition(":")
        except ValueError:  # no base64, or no UTF-8 in it
            return None
        return Credentials("basic", user, password) if colon else None
    return None


def _digest_of(secret: str) -> bytes:
    name, _, digest = secret.partition(":")
    if name == "sha256" and len(digest) == 64:
        try:
            return bytes.fromhex(digest)
        except ValueError:
            pass  # a password that happens to begin so
    return hashlib.sha256(secret.encode()).digest()
