"""``EVENTBUS_LINGER_MS=5``: settings of the environment, and what else begins with EVENTBUS_."""

from __future__ import annotations

import re
from collections.abc import Mapping

from eventbus.client.configuration.said import Said, Source, checked, content_of, unite
from eventbus.errors import ConfigError
from eventbus.settings.table import OF_A_BUS, advice, known
from eventbus.suggest import nearest

PREFIX = "EVENTBUS_"
CONFIG_VARIABLE = "EVENTBUS_CONFIG"
_OTHERS = re.compile(
    r"EVENTBUS_(CONFIG|DATABASE|KAFKA_HOME|REGISTRY|REGISTRY_TOKEN|SPARK_JARS|SUPERVISOR|WORKER|TEST_.*|HOSTILE_.*"
    # What Kubernetes and Docker say of a service or a container that is called "eventbus".
    r"|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?|NAME|ENV_.*)"
)
"""Not settings of a bus, and no mistakes."""


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Said], dict[str, str]]:
    """Settings by canonical name; and variables that mean nothing, with what to say about each.

    An empty variable says nothing, as one that a compose file passes on from nowhere. ``EVENTBUS_X_FILE`` names a file
    that holds the value. Raises ConfigError for a wrong value, and for a setting that is said twice, differently.
    """
    given = [name for name in environ if name.startswith(PREFIX)]
    if not given:
        return {}, {}
    names = known(*OF_A_BUS)
    found: list[Said] = []
    unknown: dict[str, str] = {}
    for variable in sorted(given):
        value = environ[variable]
        if not value or _OTHERS.fullmatch(variable):
            continue
        name = variable.removeprefix(PREFIX).lower()
        source = Source("environment", variable)
        if name in names:
            found.append(checked(name, value, source, name))
        elif name.endswith("_file") and name.removesuffix("_file") in names:
            name = name.removesuffix("_file")
            found.append(checked(name, content_of(value, source, f"{name}_path"), source, name))
        else:
            unknown[variable] = _unknown(variable, name)
    return unite(found, _twice), unknown


def _twice(one: Said, other: Said) -> str:
    return (
        f"environment variables {one.source.place} and {other.source.place} say {one.key} twice, differently: "
        "unset one of them"
    )


def _unknown(variable: str, name: str) -> str:
    if name == "bootstrap_servers":
        return f"environment variable {variable} means nothing here: EVENTBUS_URL=kafka://host:9092"
    hint = advice(name, known(*OF_A_BUS))
    if hint:
        return f"environment variable {variable} is no setting of a bus: {hint}"
    near = nearest(
        variable, {f"{PREFIX}{one.upper()}" for one in known(*OF_A_BUS)} | {CONFIG_VARIABLE, "EVENTBUS_REGISTRY"}
    )
    return f"environment variable {variable} is no setting{near or '; eventbus config list shows what there is'}"


def file_named(environ: Mapping[str, str], keyword: str | None) -> tuple[str, str] | None:
    """The configuration file, and who named it; None: nobody did, and none is looked for."""
    if keyword is not None:
        if not keyword:
            raise ConfigError("config_file='': the path of a .toml or .properties file")
        return keyword, f"config_file={keyword!r}"
    path = environ.get(CONFIG_VARIABLE)
    return (path, f"environment variable {CONFIG_VARIABLE}={path!r}") if path else None
