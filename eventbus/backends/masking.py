"""What is never shown: the values of secret settings, and passwords inside URLs."""

from __future__ import annotations

import re
from typing import Any

from eventbus.backends.kafka.names import is_secret

HIDDEN = "***"

_USER = re.compile(r"(://)([^/@?#\s:]*):([^?\s]*)@")
"""The password up to the last @: with a / or # in it, which it should not have, it is a password still."""
_QUERY = re.compile(r"([?&])([^=&#\s]+)=([^&#\s]*)")


def is_secret_setting(name: str) -> bool:
    """The same as `is_secret`, for names with dots, underscores or dashes, and in capitals."""
    dotted = re.sub("[_-]", ".", name.lower())
    return is_secret(dotted) or dotted.endswith(("jaas.config", "token", "passwd"))


def shown_value(name: str, value: Any) -> Any:
    """What may be shown of a setting's value."""
    if value is not None and is_secret_setting(name):
        return HIDDEN
    return shown_url(value) if isinstance(value, str) and "://" in value else value


def shown_url(url: str) -> str:
    """A URL without the password before its host and without the values of secret settings in its query."""
    url = _USER.sub(rf"\1\2:{HIDDEN}@", url)
    return _QUERY.sub(lambda found: f"{found[1]}{found[2]}={HIDDEN if is_secret_setting(found[2]) else found[3]}", url)
