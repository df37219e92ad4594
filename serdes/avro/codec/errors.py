"""Errors in a message or a value, with the field and the reason."""

from __future__ import annotations


class AvroDataError(ValueError):
    """Raised for bytes or a value that do not match the schema. ``path`` is the field, as in ``legs[3].price``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"field {path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class AvroTypeError(TypeError):
    """A schema and a Python type that do not fit: said when they are bound, not at the first message."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"field {path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path
