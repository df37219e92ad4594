"""SCRAM credentials (RFC 5802, KIP-554). Pure.

A password is never stored: only its salt, the number of iterations, and two keys, with which a server checks a client's
proof and proves its own identity. With these keys one can test guesses, but not log in.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 16_384
"""The largest iteration count that Kafka allows (``ScramMechanism``)."""


class ScramMechanism(IntEnum):
    """SCRAM mechanisms, with Kafka's numbers on the wire and in stored records."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """The mechanism's name in SASL: ``SCRAM-SHA-256``."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The hash function's name in hashlib."""
        return "sha512" if self is ScramMechanism.SCRAM_SHA_512 else "sha256"


SCRAM_MECHANISMS = {kind.title: kind for kind in ScramMechanism if kind is not ScramMechanism.UNKNOWN}
"""Mechanisms by their SASL names."""


class ScramCredential(msgspec.Struct, frozen=True):
    """The stored form of a user's password, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"  # never log the keys: they help to guess passwords


def from_salted_password(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a password that a client salted."""
    import hashlib
    import hmac

    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash_name)
    return ScramCredential(salt, stored_key, server_key, iterations)


def from_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Return the credential of a password. Takes a millisecond or more, on purpose. Like Kafka, does not apply
    SASLprep."""
    salted_password = salt_password(mechanism, password, salt, iterations)
    return from_salted_password(mechanism, salted_password, salt, iterations)


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's ``SaltedPassword``, which an administrator's client sends instead of the password."""
    import hashlib

    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
