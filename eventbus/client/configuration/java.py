"""Translate settings of Kafka's Java clients to those of librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping

from eventbus.errors import ConfigError


def java_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Rename settings of Kafka's Java clients to librdkafka's names. Shared names are kept.

    The line of a login module becomes user and password, and PEM stores become files. Raises ConfigError for stores in
    Java's own formats.
    """
    result: dict[str, str] = {}
    for key, value in properties.items():
        match key:
            case "sasl.jaas.config":
                result |= _login(value)
            case "ssl.truststore.location" | "ssl.keystore.location":
                kind = properties.get(key.replace("location", "type"), "JKS")
                if kind.upper() != "PEM":
                    raise ConfigError(
                        f"{key}: a {kind} store is Java's own format; export it as PEM and set {key[:-8]}type=PEM"
                    )
                names = ("ssl.ca.location",) if "trust" in key else ("ssl.certificate.location", "ssl.key.location")
                result |= dict.fromkeys(names, value)
            case "ssl.truststore.certificates":
                result["ssl.ca.pem"] = value
            case "ssl.keystore.certificate.chain":
                result["ssl.certificate.pem"] = value
            case "ssl.keystore.key":
                result["ssl.key.pem"] = value
            case _ if not key.startswith(("ssl.truststore.", "ssl.keystore.")):
                result[key] = value
            case _:
                pass
    return result


def _login(text: str) -> dict[str, str]:
    found: list[tuple[str, str]] = re.findall(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"', text)
    if {name for name, _ in found} != {"username", "password"}:
        raise ConfigError('sasl.jaas.config: no username="..." and password="..." in it')
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in found}
