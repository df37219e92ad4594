"""The place of a table: a local path, or a path in an object store with the same methods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from eventbus.errors import ConfigError

STORES = ("s3", "s3a", "gs", "az")
_URL = re.compile(r"(s3|s3a|gs|az)://([A-Za-z0-9._-]+)/((?:[A-Za-z0-9._~=+@,-]+/?)+)")
_REMOTE = re.compile(r"(\w+:)?(s3|s3a|gs|az)://")


class ObjectPath(NamedTuple):
    """A path in a bucket. ``options`` configure the client, as in ``?region=eu-west-1&endpoint=https://...``."""

    bucket: str
    """The URL of the bucket, such as ``s3://lake``."""
    key: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ObjectPath:
        """Raise `ConfigError` for a URL that names no path in a bucket."""
        url, _, query = text.partition("?")
        found = _URL.fullmatch(url)
        if not found or {".", ".."} & {*found[3].split("/")}:
            raise ConfigError(
                f"{url!r} names no table in an object store. Write s3://, gs:// or az://, a bucket, and a path of "
                f"ASCII letters, digits and . _ - = after it."
            )
        options = dict(parse_qsl(query, keep_blank_values=True))
        if options.get("endpoint", "").startswith("http:"):
            options.setdefault("allow_http", "true")
        return cls(
            f"{found[1].replace('s3a', 's3')}://{found[2]}", found[3].rstrip("/"), tuple(sorted(options.items()))
        )

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return self._replace(key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name

    def __truediv__(self, below: str) -> ObjectPath:
        return self._replace(key="/".join(part for part in (self.key, below) if part))

    def __str__(self) -> str:
        """Return the URL without options, which may be secrets."""
        return f"{self.bucket}/{self.key}"


Place = Path | ObjectPath


def place_of(text: str) -> Place:
    """Return the place of an absolute path, or of what `text_of` returned."""
    return ObjectPath.parse(text) if is_object(text) else Path(text)


def text_of(place: Place) -> str:
    """Return a place as text that leads back to it, options included. A task may run on another machine."""
    options = () if isinstance(place, Path) else place.options
    query = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in options)
    return f"{place}?{query}" if query else str(place)


def is_object(text: str) -> bool:
    """Return True for the URL of an object store."""
    return text.partition("://")[0] in STORES and "://" in text


def below(to: str, name: str) -> str:
    """Return the path or URL of ``name`` below another; the options of a URL stay at its end."""
    url, mark, options = to.partition("?") if _REMOTE.match(to) else (to, "", "")
    return f"{url.rstrip('/')}/{name}{mark}{options}"


def local_directory(to: str) -> Path:
    """Return the directory of a path or ``file://`` URL. Raises `ConfigError` if it is not on this machine."""
    if to.startswith("file:/"):
        to = unquote(to.removeprefix("file:").removeprefix("//"))
    elif "://" in to:
        raise ConfigError(f"to={to!r}: tables of files are in local directories, s3://, gs:// or az://")
    if not to:
        raise ConfigError("to= names no directory: say where the table goes, as in './warehouse/orders'")
    return Path(to).expanduser().absolute()


def table_place(to: str) -> Place:
    """Return the place that a path or URL of a user names."""
    return ObjectPath.parse(to) if is_object(to) else local_directory(to)
