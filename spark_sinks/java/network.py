"""Give Java the network settings of Python: its proxy and its trusted certificate authorities.

A Java from a wheel knows neither the machine's proxy nor a company's certificate authority.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

_PASSWORD = "changeit"
_WHITENER = b"Mighty Aphrodite"
"""A constant of the JKS format."""


def java_network(store: Path) -> list[str]:
    """Return Java's options. Writes the authorities, if any, to ``store`` in Java's own format."""
    options: list[str] = []
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    if authorities:
        store.write_bytes(_key_store(authorities))
        options += [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]
        options += [f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]
    return options


def _key_store(certificates: list[bytes]) -> bytes:
    """Return trusted certificates (DER) as a JKS file."""
    entries = b"".join(
        struct.pack(">i", 2) + _text(f"ca-{number}") + struct.pack(">q", 0) + _text("X.509") + _block(certificate)
        for number, certificate in enumerate(certificates)
    )
    content = struct.pack(">Iii", 0xFEEDFEED, 2, len(certificates)) + entries
    return content + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _WHITENER + content).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def _block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
