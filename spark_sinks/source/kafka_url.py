"""Translate the bus's URL of a cluster (``kafka://host:9092?security.protocol=SSL``) for Spark's Java client.

The settings are librdkafka's, as everywhere in the bus. Java's client has most of them under the same name; those that
it names differently (certificates, passwords) are translated here. Settings of the bus's own producers and consumers
have no meaning for a reader of offsets and are skipped, so that the same URL works everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from eventbus.errors import ConfigError

_PORT = 9092
_SAME = frozenset(
    {
        *("client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms", "connections.max.idle.ms"),
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"),
        *("security.protocol", "sasl.mechanism", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
    }
)
"""Settings with the same name and meaning in librdkafka and in Java."""
_SAID_DIFFERENTLY = frozenset(
    {
        *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
        *("ssl.key.pem", "ssl.keystore.location", "ssl.keystore.password", "sasl.username", "sasl.password"),
    }
)
_OTHER_NAMES = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")


class ClusterUrl(NamedTuple):
    """``bootstrap``: ``host:port,host:port``. ``settings``: librdkafka's, those that matter for reading."""

    bootstrap: str
    settings: dict[str, str]

    def shown(self) -> str:
        """The URL without its query, which may hold a password."""
        return f"kafka://{self.bootstrap}"

    def for_spark(self, given: Mapping[str, str]) -> dict[str, str]:
        """Options of Spark's Kafka source. ``given`` ones (``kafka.sasl.jaas.config``) win.

        Certificates are handed on as text, so that executors on other machines need no files. Raises `ConfigError`
        when a file cannot be read, and for security that is not put into Java's words here.
        """
        own = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
        java = {name: value for name, value in self.settings.items() if name in _SAME}
        java |= self._certificates()
        if "sasl.jaas.config" not in own:
            java |= self._login(own)
        java["bootstrap.servers"] = self.bootstrap
        return {f"kafka.{name}": value for name, value in {**java, **own}.items()}

    def _certificates(self) -> dict[str, str]:
        java: dict[str, str] = {}
        if trusted := self._pem("ssl.ca"):
            java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
        if location := self.settings.get("ssl.keystore.location"):
            java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": location}
            java |= {"ssl.keystore.password": self.settings.get("ssl.keystore.password", "")}
        chain, key = self._pem("ssl.certificate"), self._pem("ssl.key")
        if chain and key:
            java |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
        return java

    def _pem(self, name: str) -> str | None:
        text, location = self.settings.get(f"{name}.pem"), self.settings.get(f"{name}.location")
        if text is not None or location is None:
            return text
        try:
            return Path(location).expanduser().read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}.location={location!r} of {self.shown()} is no PEM file: {error}") from error

    def _login(self, own: Mapping[str, str]) -> dict[str, str]:
        protocol = own.get("security.protocol", self.settings.get("security.protocol", "PLAINTEXT")).upper()
        if not protocol.startswith("SASL"):
            return {}
        mechanism = own.get("sasl.mechanism", self.settings.get("sasl.mechanism", "GSSAPI")).upper()
        if mechanism not in _LOGINS:
            raise ConfigError(
                f"{self.shown()}: for sasl.mechanism={mechanism} Spark's Kafka source wants Java's words: give "
                f"options={{'kafka.sasl.jaas.config': '...'}}; of itself it knows {', '.join(_LOGINS)}"
            )
        user, password = (_quoted(self.settings.get(f"sasl.{name}", "")) for name in ("username", "password"))
        return {"sasl.jaas.config": f"{_LOGINS[mechanism]} required username={user} password={password};"}


def parse_cluster_url(url: str) -> ClusterUrl:
    """Take ``kafka://`` apart. Raises `ConfigError` for no broker, and for a setting that looks misspelt."""
    rest, _, query = url.removeprefix("kafka://").partition("?")
    brokers = [broker.strip() for broker in rest.strip("/").split(",") if broker.strip()]
    if not brokers:
        raise ConfigError("kafka:// needs a broker: kafka://host:9092, or several: kafka://one:9092,two:9092")
    settings: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        name = key.replace("_", ".")
        name = _OTHER_NAMES.get(name, name)
        if name in _SAME or name in _SAID_DIFFERENTLY or name.startswith(("enable.ssl.", "sasl.oauthbearer.")):
            settings[name] = value
        elif near := difflib.get_close_matches(name, [*_SAME, *_SAID_DIFFERENTLY], 1, 0.85):
            raise ConfigError(f"unknown setting {key!r} of kafka://; did you mean {near[0]!r}?")
        elif name.startswith(_SECURITY):
            raise ConfigError(
                f"setting {key!r} of kafka:// is not known to Spark sinks; for Spark's Kafka source itself give it "
                f"with its Java name as options={{'kafka.<name>': ...}}"
            )
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise ConfigError(
            "enable.ssl.certificate.verification=false: Java's client always verifies; name the broker's authority "
            "with ssl.ca.location"
        )
    return ClusterUrl(",".join(map(_with_port, brokers)), settings)


def _with_port(broker: str) -> str:
    host, separator, port = broker.rpartition(":")
    return broker if separator and port.isdecimal() and not host.endswith(":") else f"{broker}:{_PORT}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
