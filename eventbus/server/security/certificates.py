"""The principal of a client certificate, as Kafka writes it: ``User:CN=alice,OU=Payments,O=Example,C=DE``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eventbus.server.security.sasl import ANONYMOUS

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Keywords of RFC 2253 by OpenSSL's long names of attributes."""
_OIDS = {
    "description": "2.5.4.13",
    "dnQualifier": "2.5.4.46",
    "emailAddress": "1.2.840.113549.1.9.1",
    "givenName": "2.5.4.42",
    "serialNumber": "2.5.4.5",
    "surname": "2.5.4.4",
    "title": "2.5.4.12",
}
_STRING_TYPES = {"emailAddress": 0x16, "dnQualifier": 0x13, "serialNumber": 0x13}
"""The ASN.1 type of attributes without a keyword, if it is not UTF8String: RFC 2253 shows their bytes."""
_UTF8_STRING = 0x0C
_SPECIAL = ',+"\\<>;='


def principal_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the principal for the result of ``SSLObject.getpeercert()``, or ANONYMOUS without a certificate.

    It is the subject's distinguished name as Java's ``X500Principal.getName()`` writes it (RFC 2253): last part first.
    """
    subject: Iterable[Iterable[tuple[str, str]]] = (certificate or {}).get("subject", ())
    parts = ["+".join(_attribute(name, value) for name, value in part) for part in subject]
    return f"User:{','.join(reversed(parts))}" if parts else ANONYMOUS


def _attribute(name: str, value: str) -> str:
    keyword = _SHORT.get(name)
    if keyword is not None:
        return f"{keyword}={_escaped(value)}"
    data = value.encode()
    size = len(data).to_bytes((len(data).bit_length() + 7) // 8 or 1, "big")
    length = size if len(data) < 0x80 else bytes((0x80 | len(size),)) + size
    return f"{_OIDS.get(name, name)}=#{_STRING_TYPES.get(name, _UTF8_STRING):02x}{length.hex()}{data.hex()}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(value) > 1 else text
