"""The row of a setting, and the one parser of its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from eventbus.durations import setting_ms
from eventbus.suggest import nearest

Kind = Literal["boolean", "int", "long", "double", "string", "list", "table", "object"]
"""Kafka's ``ConfigDef.Type``; "table" is a mapping, and "object" a Python value that its user checks."""
Scope = Literal[
    "bus", "function", "log", "producer", "consumer", "call", "handler", "decorator", "topic", "server",
    "librdkafka", "librdkafka producer", "librdkafka consumer",
]  # fmt: skip
"""The reader of a setting. "call": handlers, also of ``@bus.every``; "decorator": not a default of a router."""
Importance = Literal["high", "medium", "low"]

_LONG_MAX = (1 << 63) - 1
_LIMITS = {
    "int": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), _LONG_MAX),
    "double": (float("-inf"), float("inf")),
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_REPLICA = re.compile(r"\*|[0-9]+:[0-9]+")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_SECRET = ("password", "passphrase", "secret", "pem", ".key", "sasl.oauthbearer.config")


class Setting(NamedTuple):
    """One row of the table."""

    scope: Scope
    name: str
    """The keyword. Topic configs have Kafka's dotted names: they are given in mappings."""
    kind: Kind
    default: Any
    doc: str
    """One sentence that describes the setting."""
    low: float | None = 0
    """Smallest value, inclusive; None: the type's."""
    high: float | None = None
    also: int | None = None
    """A value outside the range."""
    choices: tuple[str, ...] = ()
    """The only values of a string, or of each element of a list."""
    importance: Importance = "low"
    own: bool = False
    """Each client's own: a bus has no default for it."""
    none: bool = False
    """None is a value: no limit, or not set."""
    kafka: str | None = None
    """Kafka's spelling; None: the name with dots; empty: Kafka lacks the setting. Of a topic config: the broker's key
    for topics that do not set it. Of a setting of librdkafka: the name that Kafka's Java client has for it."""
    librdkafka: str = ""
    """librdkafka's spelling, where it differs from Kafka's."""
    unit_ms: int = 1
    """How many milliseconds one of Kafka's units is: 60,000 for a key in minutes."""
    kafka_default: str | None = None
    """Kafka's default as text, where it differs."""
    hint: str = ""
    """The annotation of the keyword, where it is another than the kind's."""
    note: str = ""
    """Added to the error of a wrong value."""

    @property
    def dotted(self) -> str:
        """The name as Kafka spells it, or with dots if Kafka does not have the setting."""
        return self.kafka or self.name.replace("_", ".")

    @property
    def passed_as(self) -> str:
        """The name under which librdkafka gets the value."""
        return self.librdkafka or self.name.replace("_", ".")

    @property
    def is_secret(self) -> bool:
        return is_secret(self.dotted)

    @property
    def is_passed(self) -> bool:
        """True if librdkafka is the one that reads the value."""
        return self.scope.startswith("librdkafka")

    @property
    def no_effect(self) -> str:
        """Why the embedded log does not act on a topic config; empty if it does."""
        return self.doc if self.doc.startswith("stored only") else ""

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest value of a number."""
        least, most = _LIMITS[self.kind]
        return (least if self.low is None else self.low, most if self.high is None else self.high)

    @property
    def is_number(self) -> bool:
        return self.kind in _LIMITS

    @property
    def unit(self) -> str:
        """The unit of a number; empty if it has none."""
        return next((unit for end, unit in _UNITS.items() if as_keyword(self.name).endswith(end)), "")

    @property
    def takes(self) -> str:
        """The allowed values, in words."""
        match self.kind:
            case "boolean":
                words = "true or false"
            case "string" | "list" if self.choices:
                words = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}" if self.choices[1:] else self.choices[0]
                words = f"a list of {words}" if self.kind == "list" else words
            case "list":
                words = "a list of PARTITION:BROKER, or *"
            case "string":
                words = "a text"
            case "table":
                words = "a table of keys and values"
            case "object":
                words = ""
            case _:
                words = self._takes_numbers
        return f"{words}, or none" if self.none and words else words

    @property
    def _takes_numbers(self) -> str:
        number = "a number" if self.kind == "double" else "a whole number"
        unit = f" of {self.unit}" if self.unit else ""
        low, high = self.limits
        if high < _LONG_MAX:
            limits = f" from {low} to {high}"
        elif low > -_LONG_MAX:
            limits = f", at least {low}"
        else:
            limits = ""
        return f"{number}{unit}{limits}" + (f", or {self.also}" if self.also is not None else "")

    def read(self, value: Any) -> Any:
        """Return the value in the setting's type. Raises ValueError with what is allowed, in words.

        Settings whose names end in ``_ms`` also take durations: ``"5s"``, a timedelta. What librdkafka reads is
        returned as it was given.
        """
        if self.kind == "object" or (value is None and self.none):
            return value
        text = value.strip() if isinstance(value, str) and self.kind != "string" else value
        if self.none and isinstance(text, str) and text.lower() == "none" and self.kind != "string":
            return None
        if self.name.endswith("_ms"):
            text = setting_ms(text)
        if not self.is_passed:
            return self._read(text)
        if isinstance(value, (dict, list)):
            raise ValueError("one value, a text or a number")
        if self.kind in ("int", "long"):
            self._number(text)
        return text

    def _read(self, value: Any) -> Any:
        match self.kind:
            case "boolean":
                if isinstance(value, bool):
                    return value
                if (found := _FLAGS.get(str(value).lower())) is None:
                    raise ValueError(self.takes)
                return found
            case "string":
                if not isinstance(value, str) or (self.choices and value not in self.choices):
                    near = nearest(str(value), self.choices) if self.choices else ""
                    raise ValueError(f"{self.takes}{near}{self.note}")
                return value
            case "list":
                return self._items(value)
            case "table":
                if not isinstance(value, Mapping):
                    raise ValueError(self.takes)
                return dict(cast("Mapping[str, Any]", value))
            case _:
                return self._number(value)

    def _items(self, value: Any) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) and value else value or ()
        items = tuple(str(item).strip() for item in cast("list[object]", parts))
        for item in items:
            if items.count(item) > 1 or not (item in self.choices if self.choices else _REPLICA.fullmatch(item)):
                raise ValueError(self.takes)
        return items

    def _number(self, value: Any) -> Any:
        number: Any = value
        if isinstance(value, str) and self.kind == "double":
            try:
                number = float(value)
            except ValueError:
                number = None
        elif isinstance(value, str):
            number = int(value) if _INTEGER.fullmatch(value) else None
        elif isinstance(value, float) and self.kind != "double":
            number = int(value) if value.is_integer() else None
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError(f"{self.takes}{self.note}")
        low, high = self.limits
        if number != self.also and not low <= number <= high:  # false for a NaN, too
            too_large = number > high and str(high) not in self.takes
            raise ValueError(f"at most {high}" if too_large else f"{self.takes}{self.note}")
        return number


_UNITS = {
    "_ms": "milliseconds", "_kbytes": "kilobytes", "_bytes": "bytes", "_seconds": "seconds",
    "batch_size": "bytes", "request_size": "bytes", "buffer_memory": "bytes",
}  # fmt: skip
"""Units of numbers, by how the setting's name ends."""


def is_secret(name: str) -> bool:
    """True if the value of the setting is never shown."""
    return name.endswith(_SECRET)


def as_keyword(name: str) -> str:
    """Return ``linger.ms`` as Python's keyword arguments have it."""
    return name.replace(".", "_").replace("-", "_")


def as_text(value: object) -> str:
    """Return a value as librdkafka and Kafka's tools write it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, cast("list[object]", value)))
    return str(value).lower() if isinstance(value, bool) else str(value)
