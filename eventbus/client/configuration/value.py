"""A setting from outside of the program: its value and its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from eventbus.backends.masking import shown_value
from eventbus.client.config import check_value
from eventbus.errors import ConfigError, InvalidRequiredAcks
from eventbus.settings.table import OF_A_BUS, canonical, rows

Kind = Literal["environment", "file"]
MOST_SECRET_BYTES = 65_536
"""Maximum size of a file with a single value. A certificate with its chain has a few thousand bytes."""


class Source(NamedTuple):
    """The source of a value."""

    kind: Kind
    place: str
    """``EVENTBUS_LINGER_MS``, or ``eventbus.toml, line 7``."""

    def of(self, key: str, value: Any) -> str:
        """Return the beginning of a message about the value, which hides secrets."""
        shown = shown_value(key, value)
        if self.kind == "environment":
            return f"environment variable {self.place}={shown!r}"
        return f"{self.place}: {key}={shown!r}"


class ConfiguredValue(msgspec.Struct, frozen=True):
    """A setting whose value was checked and converted."""

    name: str
    """The name as a keyword. If a setting has several names, it is the one that was used."""
    value: Any
    source: Source

    @property
    def key(self) -> str:
        return canonical(self.name)

    def __repr__(self) -> str:
        return f"ConfiguredValue({self.name}={shown_value(self.name, self.value)!r}, {self.source.place})"


def checked(name: str, value: Any, source: Source, spelled_as: str) -> ConfiguredValue:
    """Convert and check a value; ``spelled_as`` is the key as it was spelled. Raises ConfigError with the source."""
    key = canonical(name)
    try:
        value = rows(*OF_A_BUS)[key].read(value)
        check_value(key, value)
    except ValueError as error:
        raise ConfigError(f"{source.of(spelled_as, value)}: {error}") from None
    except (ConfigError, InvalidRequiredAcks) as error:
        raise type(error)(f"{source.of(spelled_as, value)}: {error}") from None
    return ConfiguredValue(name, value, source)


def content_of(path: str, source: Source, spelled_as: str) -> str:
    """Return the value in a file, such as a secret of Docker or Kubernetes, without a trailing newline.

    Raises ConfigError for a file that is missing, not text, empty, or too large.
    """
    where = f"{source.of(spelled_as, path)}"
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_SECRET_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise ConfigError(f"{where}: {reason}; it names the file that holds the value") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: the file is not UTF-8 text") from None
    if len(data) > MOST_SECRET_BYTES:
        raise ConfigError(f"{where}: the file has more than {MOST_SECRET_BYTES:,} bytes: name the one with the value")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{where}: the file is empty; it holds the value")
    return text


def merge(
    entries: list[ConfiguredValue], on_twice: Callable[[ConfiguredValue, ConfiguredValue], str]
) -> dict[str, ConfiguredValue]:
    """Return settings by canonical name. Raises ConfigError for conflicting values of a setting."""
    found: dict[str, ConfiguredValue] = {}
    for entry in entries:
        before = found.setdefault(entry.key, entry)
        if before is not entry and before.value != entry.value:
            raise ConfigError(on_twice(before, entry))
    return found
