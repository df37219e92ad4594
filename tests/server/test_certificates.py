"""Names of client certificates; the expected ones were written by Java's X500Principal for the same certificates."""

from __future__ import annotations

import pytest

from eventbus.server.security.certificates import principal_of


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            [("countryName", "DE"), ("stateOrProvinceName", "Hessen"), ("localityName", "Frankfurt"),
             ("organizationName", "Example, Inc."), ("organizationalUnitName", "Pay")],
            r"OU=Pay,O=Example\, Inc.,L=Frankfurt,ST=Hessen,C=DE",
        ),
        (
            [("domainComponent", "org"), ("domainComponent", "example"), ("userId", "u1"), ("commonName", "a=b;c")],
            r"CN=a\=b\;c,UID=u1,DC=example,DC=org",
        ),
        ([("commonName", " lead")], r"CN=\ lead"),
        ([("commonName", "#hash")], r"CN=\#hash"),
        ([("commonName", "trail ")], "CN=trail\\ "),
        ([("commonName", 'a"q<x>')], r"CN=a\"q\<x\>"),
        ([("commonName", "m\\ü")], r"CN=m\\ü"),
        (
            [("organizationName", "x"), ("emailAddress", "a@b.c"), ("commonName", "é日本")],
            "CN=é日本,1.2.840.113549.1.9.1=#16056140622e63,O=x",
        ),
        ([("organizationName", "x"), ("serialNumber", "12")], "2.5.4.5=#13023132,O=x"),
        ([("emailAddress", "a" * 200)], f"1.2.840.113549.1.9.1=#1681c8{'61' * 200}"),
    ],
)  # fmt: skip
def test_names(subject: list[tuple[str, str]], name: str) -> None:
    assert principal_of({"subject": tuple(((key, value),) for key, value in subject)}) == f"User:{name}"


def test_parts_with_several_attributes() -> None:
    subject = ((("organizationName", "x"),), (("commonName", "a"), ("userId", "b")))
    assert principal_of({"subject": subject}) == "User:CN=a+UID=b,O=x"


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}])
def test_a_peer_without_a_name(certificate: dict[str, object] | None) -> None:
    assert principal_of(certificate) == "User:ANONYMOUS"
