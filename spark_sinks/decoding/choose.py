"""Choose how the values of a topic are decoded."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from eventbus.errors import ConfigError, SchemaUnavailable
from eventbus.log.reader import LogReader
from serdes.errors import SchemaRegistryError
from serdes.registry import SchemaClient, schema_client
from spark_sinks.decoding.values import Values, ValueSettings

_SCHEMAS = "_schemas"
"""The topic in which a log's schema registry is stored."""


def open_values(settings: ValueSettings, *, url: str) -> Values:
    """Return what decodes the values of a topic of the log at ``url``.

    With ``auto``, and neither a schema nor a registry, a topic that has an Avro schema in the registry of a local log
    is read by that schema. Raises `ConfigError` for settings that contradict each other.
    """
    kind = settings.value
    registry = settings.registry
    is_open = kind == "auto" and settings.schema is None and registry is None
    if is_open and _has_avro(url, settings.topic):
        registry = "log"
    if kind == "auto":
        kind = "json" if settings.schema is not None else "bytes" if registry is None else "avro"
    if kind == "json":
        if settings.schema is None:
            raise ConfigError(
                "value='json' needs the columns: schema= a msgspec.Struct type, a pyarrow schema or Spark's DDL "
                "('name string, delay double'); or value='text' for one column of JSON"
            )
        from spark_sinks.decoding.json_rows import JsonValues

        return JsonValues(settings)
    if settings.schema is not None:
        raise ConfigError(f"schema= is of JSON values, and value={kind!r} was asked for: leave one of them out")
    if kind == "avro":
        client = _client(registry, url)
        from spark_sinks.decoding.avro.values import AvroValues

        return AvroValues(settings, client)
    from spark_sinks.decoding.raw import RawPlan, RawValues

    def decoded() -> Values | None:
        """Check again for a schema: a landing may start before the service that registers it with its first record."""
        if is_open and _has_avro(url, settings.topic):
            return open_values(settings._replace(registry="log"), url=url)
        return None

    return RawValues(RawPlan(settings.key, kind, settings.tombstones), decoded)


def _client(registry: str | SchemaClient | None, url: str) -> SchemaClient:
    if registry is None or registry == "log":
        directory = _directory(url)
        if directory is None:
            raise ConfigError(
                "value='avro' needs the schema registry: registry='http://host:8081' ('log' is the one in a log's own "
                "directory, and this log is on a cluster)"
            )
        registry = Path(directory).absolute().as_uri()
    try:
        return schema_client(registry)
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from None


def _has_avro(url: str, topic: str) -> bool:
    """Return True if the directory of the log has an Avro schema for the values of a topic."""
    directory = _directory(url)
    if directory is None or not Path(directory).is_dir() or _SCHEMAS not in LogReader(directory).topics():
        return False
    client = _client("log", url)
    try:
        return client.latest(f"{topic}-value").text.schema_type == "AVRO"
    except SchemaRegistryError as error:
        if error.is_final:
            return False
        raise SchemaUnavailable(error.message) from error
    finally:
        client.close()


def _directory(url: str) -> str | None:
    """Return the directory of a log, or None for a log on a cluster."""
    if "://" not in url:
        return str(Path(url).expanduser())
    parts = urlsplit(url)
    return unquote(parts.netloc + parts.path) if parts.scheme == "file" else None
