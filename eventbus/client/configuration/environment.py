"""Read ``EVENTBUS_LINGER_MS=5`` and other settings from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from eventbus.client.configuration.value import ConfiguredValue, Source, checked, content_of, merge
from eventbus.errors import ConfigError
from eventbus.settings.table import OF_A_BUS, advice, known
from eventbus.suggest import nearest

PREFIX = "EVENTBUS_"
CONFIG_VARIABLE = "EVENTBUS_CONFIG"
_OTHERS = re.compile(
    r"EVENTBUS_(CONFIG|DATABASE|KAFKA_HOME|REGISTRY|REGISTRY_TOKEN|SPARK_JARS|SUPERVISOR|WORKER|TEST_.*|HOSTILE_.*"
    # Set by Kubernetes and Docker for a service or container named "eventbus".
    r"|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?|NAME|ENV_.*)"
)
"""Variables with the prefix that are not settings of a bus, and no mistakes either."""


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, ConfiguredValue], dict[str, str]]:
    """Return settings by canonical name, and unknown variables, each with a message.

    An empty variable is ignored, because compose files pass on unset variables like that. ``EVENTBUS_X_FILE`` names a
    file that contains the value. Raises ConfigError for a wrong value, and for conflicting values of a setting.
    """
    given = [name for name in environ if name.startswith(PREFIX)]
    if not given:
        return {}, {}
    names = known(*OF_A_BUS)
    found: list[ConfiguredValue] = []
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
    return merge(found, _twice), unknown


def _twice(one: ConfiguredValue, other: ConfiguredValue) -> str:
    return (
        f"environment variables {one.source.place} and {other.source.place} set {one.key} to different values: "
        "unset one of them"
    )


def _unknown(variable: str, name: str) -> str:
    if name == "bootstrap_servers":
        return f"environment variable {variable} means nothing here: EVENTBUS_URL=kafka://host:9092"
    hint = advice(name, known(*OF_A_BUS))
    if hint:
        return f"environment variable {variable} is not a setting of a bus: {hint}"
    near = nearest(
        variable, {f"{PREFIX}{one.upper()}" for one in known(*OF_A_BUS)} | {CONFIG_VARIABLE, "EVENTBUS_REGISTRY"}
    )
    return f"environment variable {variable} is not a setting{near or '; eventbus config list shows what there is'}"


def file_named(environ: Mapping[str, str], keyword: str | None) -> tuple[str, str] | None:
    """Return the configuration file and the source that names it, or None. No file is searched for."""
    if keyword is not None:
        if not keyword:
            raise ConfigError("config_file='': the path of a .toml or .properties file")
        return keyword, f"config_file={keyword!r}"
    path = environ.get(CONFIG_VARIABLE)
    return (path, f"environment variable {CONFIG_VARIABLE}={path!r}") if path else None
