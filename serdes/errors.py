"""The error of a schema registry. This module imports nothing heavy, because `eventbus.errors` imports it."""

from __future__ import annotations

from typing import Protocol


class SchemaRegistryError(Exception):
    """The schema registry refused the request, or did not answer (``status`` 0): the message has its reason."""

    def __init__(self, message: str, *, status: int = 0, error_code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status of the answer; 0 without an answer."""
        self.error_code = error_code
        """Confluent's error code; 0 without one."""

    @property
    def is_retriable(self) -> bool:
        """True if the same request may succeed later."""
        return self.status in (0, 408, 429) or self.status >= 500

    @property
    def is_missing(self) -> bool:
        """True if the registry does not have it. A 404 of a proxy or of a wrong address does not count."""
        return self.status == 404 and self.error_code != 404

    @property
    def is_final(self) -> bool:
        """True if the schema is missing or invalid. Other errors, such as a wrong password, may be temporary."""
        return self.is_missing or self.status == 422


class SchemaFinding(Protocol):
    """One reason why a schema is incompatible: Confluent's rule, the place, the effect, and the change to make."""

    @property
    def rule(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def explanation(self) -> str: ...
    @property
    def fix(self) -> str: ...
