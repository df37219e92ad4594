"""Why a schema text is refused."""

from __future__ import annotations

from eventbus.errors import EventBusError


class InvalidSchema(EventBusError):
    """Raised if the text is not a schema of its type, or exceeds a limit. ``path`` is the place, ``reason`` the cause
    and the fix."""

    def __init__(self, reason: str, path: str = "", schema_type: str = "AVRO") -> None:
        self.reason = reason
        self.path = path
        self.schema_type = schema_type
        where = f" at {path}" if path else ""
        super().__init__(f"invalid {schema_type} schema{where}: {reason}")


class UnknownSchemaType(EventBusError):
    """The schema's type is none of AVRO, JSON and PROTOBUF."""

    def __init__(self, schema_type: str) -> None:
        self.schema_type = schema_type
        super().__init__(f"unknown schema type {schema_type!r}: use AVRO, JSON or PROTOBUF")
