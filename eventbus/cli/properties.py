"""Properties: ``key=value`` flags, files as Java writes them, and settings of Kafka's clients among them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from eventbus.cli.parser import UsageError, key_values, read_properties
from eventbus.errors import ConfigError
from eventbus.properties import check_dotted


def properties_of(args: argparse.Namespace, files: Sequence[str] = (), flags: Sequence[str] = ()) -> dict[str, str]:
    """What property files and ``key=value`` flags say together; a flag wins over a file, as in Kafka's tools.

    Those of every command (``--command-config``, ``--command-property``) and those of this one: ``files`` and
    ``flags`` name attributes of ``args``. Raises UsageError.
    """
    result: dict[str, str] = {}
    for name in (*files, "command_config"):
        file: str | None = getattr(args, name, None)
        result |= {} if file is None else _dotted(file, read_properties(file))
    for name in (*flags, "command_property"):
        pairs: list[str] | None = getattr(args, name, None)
        flag = f"--{name.replace('_', '-')}"
        result |= _dotted(flag, key_values(pairs, flag))
    return result


def _dotted(where: str, properties: dict[str, str]) -> dict[str, str]:
    """Return the properties. Raises UsageError for a name that is spelt as in Python."""
    try:
        for name in properties:
            check_dotted(where, name)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return properties


def java_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's Java clients under the names that librdkafka has for them; those they share stay.

    A login module's line becomes user and password; PEM stores become the files they are. Raises UsageError for
    stores of Java's own formats.
    """
    from eventbus.client.configuration import java

    try:
        return java.java_settings(properties)
    except ConfigError as error:
        raise UsageError(str(error)) from None
