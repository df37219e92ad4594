"""The servers of a document: Kafka's, with the kind of authentication, and never with credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eventbus.backends.urls import split_url
from eventbus.settings.setting import as_keyword

JsonObject = dict[str, Any]

_MECHANISMS: dict[str, JsonObject] = {
    "PLAIN": {"type": "plain"},
    "SCRAM-SHA-256": {"type": "scramSha256"},
    "SCRAM-SHA-512": {"type": "scramSha512"},
    "GSSAPI": {"type": "gssapi"},
    "OAUTHBEARER": {"type": "http", "scheme": "bearer"},
}


def servers_of(url: str, settings: Mapping[str, Any]) -> tuple[JsonObject, JsonObject]:
    """Return ``(servers, securitySchemes)`` of a ``kafka://`` URL and the log's settings; none for other logs.

    Only hosts, protocol and mechanism are read, no names or passwords. Raises ConfigError for an invalid URL.
    """
    scheme, rest, query = split_url(url)
    if scheme != "kafka":
        return {}, {}
    known_settings = {as_keyword(key): str(value) for key, value in {**settings, **query}.items()}
    protocol = known_settings.get("security_protocol", "PLAINTEXT").upper()
    mechanism = known_settings.get("sasl_mechanism", known_settings.get("sasl_mechanisms", "")).upper()
    login: JsonObject | None = None
    if protocol.startswith("SASL"):
        login = _MECHANISMS.get(mechanism or "PLAIN", {"type": "plain"})
    elif protocol == "SSL" and (
        "ssl_certificate_location" in known_settings or "ssl_keystore_location" in known_settings
    ):
        login = {"type": "X509"}
    schemes: JsonObject = {} if login is None else {"login": login}
    servers: JsonObject = {}
    for number, host in enumerate(_hosts(rest), 1):
        servers["kafka" if number == 1 else f"kafka{number}"] = {
            "host": host,
            "protocol": "kafka-secure" if "SSL" in protocol.removeprefix("SASL_") else "kafka",
            **({"security": [{"$ref": "#/components/securitySchemes/login"}]} if schemes else {}),
        }
    return servers, schemes


def _hosts(rest: str) -> list[str]:
    """Remove the user from ``user:password@a:9092,b:9092/``; return the hosts."""
    return [host for host in rest.rpartition("@")[2].rstrip("/").split(",") if host]
