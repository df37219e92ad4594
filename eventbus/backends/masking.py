"""Hide secrets: the values of secret settings, and passwords inside URLs."""

from __future__ import annotations

import re
from typing import Any

from eventbus.settings.setting import is_secret

HIDDEN = "***"

_LOGIN = re.compile(r"(?<=://)(?![/.])(.*)@", re.DOTALL)
"""Matches the user and password before the host, up to the last @, even with unescaped / ? # @ in them."""
_HOSTS = re.compile(r"[^:@?#\s,/]*(:\d+)?(,[^:@?#\s,/]*(:\d+)?)*(/[^?#@]*)?")
_QUERY = re.compile(r"([?&])([^=&\s]+)=([^&]*(?:&[^&=]*(?![^&]))*)")
"""Matches a query parameter. A value continues after an & without a name, which should have been written %26."""


def is_secret_setting(name: str) -> bool:
    """True for names of secrets, as `is_secret`, also with dots, underscores, dashes or capitals."""
    dotted = re.sub("[_-]", ".", name.lower())
    return is_secret(dotted) or dotted.endswith(("jaas.config", "token", "passwd"))


def shown_value(name: str, value: Any) -> Any:
    """Return the value of a setting, hidden if it is secret."""
    if value is not None and is_secret_setting(name):
        return HIDDEN
    return shown_url(value) if isinstance(value, str) and "://" in value else value


def shown_url(url: str) -> str:
    """Return a URL without the password before its host and without the values of secret settings in its query."""
    if (login := _login(url)) is not None:
        name, colon, _ = login[1].partition(":")
        shown = f"{name}:{HIDDEN}" if colon and "?" not in name else HIDDEN if colon else name
        url = f"{url[: login.start()]}{shown}@{url[login.end() :]}"
    return _QUERY.sub(lambda found: f"{found[1]}{found[2]}={HIDDEN if is_secret_setting(found[2]) else found[3]}", url)


def has_login(url: str) -> bool:
    """True if there is a user, and usually a password, before the host."""
    return _login(url) is not None


def _login(url: str) -> re.Match[str] | None:
    found = _LOGIN.search(url)
    if found is None:
        return None
    hosts, question, query = found[1].partition("?")
    is_query = question and _HOSTS.fullmatch(hosts) and all("=" in piece for piece in query.split("&"))
    return None if is_query else found  # in kafka://host?client_id=me@here the @ does not belong to a login
