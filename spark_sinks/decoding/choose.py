"""Which kind of values a topic has."""

from __future__ import annotations

from eventbus.errors import ConfigError
from spark_sinks.decoding.values import Values, ValueSettings


def open_values(settings: ValueSettings, *, url: str) -> Values:
    """What reads the values of a topic of the log at ``url``.

    Raises `ConfigError` for settings that do not go together. Nothing waits: a registry is asked at the first plan.
    """
    kind = settings.value
    if kind == "auto":
        kind = "json" if settings.schema is not None else "bytes"
    if kind == "json":
        if settings.schema is None:
            raise ConfigError(
                "value='json' needs the columns: schema= a msgspec.Struct type, a pyarrow schema or Spark's DDL "
                "('name string, delay double'); or value='text' for one column of JSON"
            )
        from spark_sinks.decoding.json_rows import JsonValues

        return JsonValues(settings)
    if settings.schema is not None:
        raise ConfigError(
            f"schema= is of JSON values, and value={settings.value!r} was asked for: leave one of them out"
        )
    if kind == "avro":
        raise ConfigError("value='avro' needs a registry=")
    from spark_sinks.decoding.raw import RawPlan, RawValues

    return RawValues(RawPlan(settings.key, kind, settings.tombstones))
