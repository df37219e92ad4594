"""One setting that was said outside of the program: its value, and where it stands."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec

from eventbus.backends.kafka.names import OF_ALL
from eventbus.backends.masking import shown_value
from eventbus.client.config import check_value
from eventbus.client.configuration.known import canonical, type_of
from eventbus.durations import setting_ms
from eventbus.errors import ConfigError, InvalidRequiredAcks

Kind = Literal["environment", "file"]
MOST_SECRET_BYTES = 65_536
"""Of a file that holds one value: a certificate with its chain is a few thousand."""

_NUMBER = re.compile(r"-?[0-9]+")


class Source(NamedTuple):
    """Where a value stands."""

    kind: Kind
    place: str
    """``EVENTBUS_LINGER_MS``, or ``eventbus.toml, line 7``."""

    def of(self, key: str, value: Any) -> str:
        """The beginning of a message about it, without what is secret."""
        shown = shown_value(key, value)
        if self.kind == "environment":
            return f"environment variable {self.place}={shown!r}"
        return f"{self.place}: {key}={shown!r}"


class Said(msgspec.Struct, frozen=True):
    """A setting, its value checked and in its type."""

    name: str
    """As a keyword; which of several names of one setting is left as it was said."""
    value: Any
    source: Source

    @property
    def key(self) -> str:
        return canonical(self.name)

    def __repr__(self) -> str:
        return f"Said({self.name}={shown_value(self.name, self.value)!r}, {self.source.place})"


def checked(name: str, value: Any, source: Source, said_as: str) -> Said:
    """The value in the setting's type. ``said_as``: the key as it was written. Raises ConfigError naming the source."""
    key = canonical(name)
    try:
        value = _typed(key, value)
    except ValueError as error:
        raise ConfigError(f"{source.of(said_as, value)}: {error}") from None
    except (ConfigError, InvalidRequiredAcks) as error:
        raise type(error)(f"{source.of(said_as, value)}: {error}") from None
    return Said(name, value, source)


def _typed(key: str, value: Any) -> Any:
    """Raises ValueError with what it should be, ConfigError for what a client's settings refuse."""
    if isinstance(value, str):
        value = value.strip() if type_of(key) is not str else value
    if key in ("acks", "compression_type", "partitioner", "partition_assignment_strategy"):
        check_value(key, value)
        return value
    wanted = type_of(key)
    if key.endswith("_ms"):
        value = setting_ms(value)
    if wanted is None:
        return _as_librdkafka_takes_it(key, value)
    if key == "slow_loop_ms" and isinstance(value, str) and value.lower() == "none":
        return None
    try:
        value = msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(in_words(wanted, str(error))) from None
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise ValueError("must not be negative")
    return value


def _as_librdkafka_takes_it(key: str, value: Any) -> Any:
    if isinstance(value, (dict, list)):
        raise ValueError("one value, a text or a number")
    name = OF_ALL.get(key, key)
    if name.endswith((".ms", ".bytes", ".kbytes")) and (
        isinstance(value, bool) or not _NUMBER.fullmatch(str(cast("object", value)))
    ):
        raise ValueError("a whole number")
    return value


def in_words(wanted: Any, problem: str) -> str:
    """What a value should have been. ``problem``: how msgspec puts it."""
    if typing.get_origin(wanted) is typing.Annotated:
        bound = re.search(r">= (\d+)|<= (\d+)", problem)
        rest = "" if bound is None else f", at {'least' if bound[1] else 'most'} {bound[1] or bound[2]}"
        return in_words(typing.get_args(wanted)[0], "") + rest
    if typing.get_origin(wanted) is Literal:
        words = [str(word) for word in typing.get_args(wanted)]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        inner = [one for one in typing.get_args(wanted) if one is not type(None)]
        return f"{in_words(inner[0], '')}, or none"
    names = {int: "a whole number", bool: "true or false", str: "a text", float: "a number"}
    return names.get(wanted, f"a table of keys and values ({problem})" if problem else "a table of keys and values")


def content_of(path: str, source: Source, said_as: str) -> str:
    """The value that stands alone in a file, as a secret of Docker or Kubernetes; a last line feed is not part of it.

    Raises ConfigError for a file that is not there, not text, empty, or larger than any value.
    """
    where = f"{source.of(said_as, path)}"
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


def unite(entries: list[Said], on_twice: Callable[[Said, Said], str]) -> dict[str, Said]:
    """By canonical name. Raises ConfigError for one that is said twice, differently."""
    found: dict[str, Said] = {}
    for entry in entries:
        before = found.setdefault(entry.key, entry)
        if before is not entry and before.value != entry.value:
            raise ConfigError(on_twice(before, entry))
    return found
