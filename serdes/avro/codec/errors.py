"""What is wrong with a message or a value: which field, and why."""

from __future__ import annotations


class AvroDataError(ValueError):
    """Bytes that are no message of their schema, or a value that is none. ``path``: the field, as ``legs[3].price``."""

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
