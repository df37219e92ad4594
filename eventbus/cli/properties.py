"""Properties: ``key=value`` flags, files as Java writes them, and settings of Kafka's clients among them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence

from eventbus.cli.parser import UsageError, key_values, read_properties


def properties_of(args: argparse.Namespace, files: Sequence[str] = (), flags: Sequence[str] = ()) -> dict[str, str]:
    """What property files and ``key=value`` flags say together; a flag wins over a file, as in Kafka's tools.

    Those of every command (``--command-config``, ``--command-property``) and those of this one: ``files`` and
    ``flags`` name attributes of ``args``. Raises UsageError.
    """
    result: dict[str, str] = {}
    for name in (*files, "command_config"):
        file: str | None = getattr(args, name, None)
        result |= {} if file is None else read_properties(file)
    for name in (*flags, "command_property"):
        pairs: list[str] | None = getattr(args, name, None)
        result |= key_values(pairs, f"--{name.replace('_', '-')}")
    return result


def java_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's Java clients under the names that librdkafka has for them; those they share stay.

    A login module's line becomes user and password; PEM stores become the files they are. Raises UsageError for
    stores of Java's own formats.
    """
    result: dict[str, str] = {}
    for key, value in properties.items():
        match key:
            case "sasl.jaas.config":
                result |= _login(value)
            case "ssl.truststore.location" | "ssl.keystore.location":
                kind = properties.get(key.replace("location", "type"), "JKS")
                if kind.upper() != "PEM":
                    raise UsageError(
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
        raise UsageError('sasl.jaas.config: no username="..." and password="..." in it')
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in found}
