"""Choose a program's log where it is started, not where it is written."""

from __future__ import annotations

import sys

from eventbus.client.configuration.resolution import url_outside
from eventbus.errors import ConfigError


def log_url(default: str = "file://./data") -> str:
    """Return the log's URL: ``--url`` of the command line, else ``EVENTBUS_URL``, else ``url`` of the configuration
    file in ``EVENTBUS_CONFIG``, else ``default``.

    The same program thus runs on ``memory://``, ``file://./data`` and ``kafka://host:9092``: ``python app.py --url
    ...``, or ``eventbus run app:bus --url ...``. If the default is in memory too, a bare ``memory://`` means the
    default, because only the program knows whether its buses should share a log (``memory://name``).

    Raises ConfigError for ``--url`` without a value, and for invalid settings outside of the program.
    """
    url = _from_command_line() or url_outside() or default
    return default if url == "memory://" and default.startswith(url) else url


def _from_command_line() -> str | None:
    words = iter(sys.argv[1:])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--url":
            value = value if equals else next(words, "")
            if not value:
                raise ConfigError("--url needs a log, as in: --url file://./data, --url kafka://localhost:9092")
            return value
    return None
