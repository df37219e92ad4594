"""Settings for authentication, authorization and quotas of a server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from eventbus.errors import ConfigError
from eventbus.settings import server
from eventbus.settings.table import read_value
from eventbus.suggest import nearest

PLAIN = "PLAIN"
SASL_MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
_AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Kafka's own authorizers, by their present and former names."""
_JAAS_SUFFIX = "sasl.jaas.config"
_JAAS_OPTION = re.compile(r"""([^\s=]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")
_LISTENER_MECHANISMS = re.compile(r"listener\.name\.([a-z0-9_]+)\.sasl\.enabled\.mechanisms")
_MASK = "[hidden]"


class SecurityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for access to a server; the numbers are described by `eventbus.settings.server`."""

    users: dict[str, str] = {}
    """Passwords by user, for every mechanism. Users with SCRAM credentials set by administrators are added to these."""
    sasl_enabled_mechanisms: tuple[str, ...] = SASL_MECHANISMS
    listener_mechanisms: dict[str, tuple[str, ...]] = {}
    """Mechanisms by lower-case listener name, for listeners that differ from the default."""
    acls: bool = False
    """Deny what no ACL allows (Kafka's ``authorizer.class.name``). Off: everybody may do everything."""
    super_users: tuple[str, ...] = ()
    """Principals to whom ACLs do not apply: ``User:admin``."""
    allow_everyone_if_no_acl_found: bool = False
    connections_max_reauth_ms: int = 0
    connection_failed_authentication_delay_ms: int = 100
    quota_window_num: int = 11
    quota_window_size_seconds: int = 1

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "users"}
        users = {name: _MASK for name in self.users}
        return f"SecurityConfig(users={users}, {', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def check(self) -> None:
        """Raise ConfigError for invalid settings."""
        offered = [self.sasl_enabled_mechanisms, *self.listener_mechanisms.values()]
        for mechanism in (mechanism for mechanisms in offered for mechanism in mechanisms):
            if mechanism not in SASL_MECHANISMS:
                raise ConfigError(
                    f"SASL mechanism {mechanism!r} is not known here; there are {', '.join(SASL_MECHANISMS)}"
                    f"{nearest(mechanism, SASL_MECHANISMS)}"
                )
        for name, password in self.users.items():
            if not name or not password or "\0" in name + password:
                raise ConfigError(f"user {name!r}: a user has a name and a password, neither of them empty")
        for principal in self.super_users:
            kind, colon, name = principal.partition(":")
            if not (kind and colon and name):
                raise ConfigError(f"super user {principal!r}: write User:NAME")

    def mechanisms_of(self, listener: str) -> tuple[str, ...]:
        """Return the mechanisms that a listener offers."""
        return self.listener_mechanisms.get(listener.lower(), self.sasl_enabled_mechanisms)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> SecurityConfig:
        """Return the settings among the properties that `is_security_key` selects. Raises ConfigError."""
        settings: dict[str, object] = {"users": _users(properties)}
        mechanisms = properties.get("sasl.enabled.mechanisms")
        if mechanisms is not None:
            settings["sasl_enabled_mechanisms"] = tuple(_items(mechanisms, ","))
        settings["listener_mechanisms"] = {
            found[1]: tuple(_items(value, ","))
            for key, value in properties.items()
            if (found := _LISTENER_MECHANISMS.fullmatch(key))
        }
        authorizer = properties.get("authorizer.class.name", "").strip()
        if authorizer and authorizer not in _AUTHORIZERS:
            raise ConfigError(f"authorizer.class.name={authorizer}: only Kafka's own is known here, {_AUTHORIZERS[0]}")
        settings["acls"] = bool(authorizer)
        settings["super_users"] = tuple(_items(properties.get("super.users", ""), ";"))
        for key, row in _ROWS.items():
            if key in properties:
                settings[row.name] = read_value(row, key, properties[key], "server setting")
        try:
            config = msgspec.convert(settings, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"security settings: {error}") from error
        config.check()
        return config


_ROWS = {row.dotted: row for row in server.ROWS if row.name in SecurityConfig.__struct_fields__}
_KEYS = {*_ROWS, "sasl.enabled.mechanisms", "authorizer.class.name", "super.users"}


def is_security_key(key: str) -> bool:
    """True if `SecurityConfig.from_properties` reads this key of a ``server.properties``."""
    if key in _KEYS or key == _JAAS_SUFFIX or key.endswith("." + _JAAS_SUFFIX):
        return True
    return _LISTENER_MECHANISMS.fullmatch(key) is not None


def _users(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the users of every ``*.sasl.jaas.config``: Kafka's ``user_NAME="PASSWORD"`` of its PlainLoginModule."""
    users: dict[str, str] = {}
    for key, text in properties.items():
        if key != _JAAS_SUFFIX and not key.endswith("." + _JAAS_SUFFIX):
            continue
        for found in _JAAS_OPTION.finditer(text):
            option, double, single, bare = found.groups()
            if not option.startswith("user_"):
                continue  # the module's class, and the identity of a Kafka broker towards other brokers
            name = option.removeprefix("user_")
            password = bare if bare is not None else re.sub(r"\\(.)", r"\1", single if double is None else double)
            if users.setdefault(name, password) != password:
                raise ConfigError(f"{key}: user {name!r} has another password elsewhere; users are the same everywhere")
    return users


def _items(text: str, separator: str) -> Iterable[str]:
    return [item.strip() for item in text.split(separator) if item.strip()]
