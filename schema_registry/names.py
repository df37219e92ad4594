"""Subjects and their contexts: ``orders-value``, ``:.staging:orders-value``.

A context is a separate registry (ids, subjects, config, mode). The default context is ``.`` and is omitted from names.
"""

from __future__ import annotations

from functools import lru_cache

DEFAULT_CONTEXT = "."
EVERYWHERE = ":*:"
"""The prefix that means all contexts."""
GLOBAL_CONTEXT = ":.__GLOBAL:"
"""Its config and mode hold where a context has none."""
_RESERVED = ("__GLOBAL", "__EMPTY")


@lru_cache(maxsize=4_096)
def split(subject: str) -> tuple[str, str]:
    """Return the context and the name within it: ``(".staging", "orders-value")``."""
    if subject.startswith(":."):
        context, _, name = subject[1:].partition(":")
        return context, name
    if subject.startswith(EVERYWHERE):
        return "*", subject[len(EVERYWHERE) :]
    return DEFAULT_CONTEXT, subject


def context_of(subject: str | None) -> str:
    return DEFAULT_CONTEXT if subject is None else split(subject)[0]


def join(context: str, name: str) -> str:
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def prefix_of(subject: str | None) -> str:
    """Return the context of a subject as errors and configs name it: ``:.staging:``, empty for the default one."""
    return join(context_of(subject), "")


def normalize(subject: str) -> str:
    """Return one spelling: ``:.:orders`` is ``orders``, ``:.staging`` is ``:.staging:``."""
    return join(*split(subject))


def level(subject: str | None) -> str | None:
    """Return the owner of a config or mode; None is the global one, which is that of the default context."""
    normal = None if subject is None else normalize(subject)
    return normal or None


def within(parent: str, subject: str) -> str:
    """Return a subject as one of ``parent``'s context means it: qualified, if it is not and the parent is."""
    context, name = split(subject)
    return join(context_of(parent), name) if context == DEFAULT_CONTEXT else normalize(subject)


def is_valid(subject: str, *, is_setting: bool = False) -> bool:
    """May it be registered under (or, for a setting, configured)?"""
    if any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in subject):  # no text, or half of it
        return False
    context, name = split(subject)
    if name in _RESERVED or "\ufffd" in subject:
        return False
    if is_setting:
        return True
    return name != "" and context != "*" and join(context, "") != GLOBAL_CONTEXT


def belongs(subject: str, to: str | None) -> bool:
    """Is the subject meant by a setting of ``to``: itself, its context, or all?"""
    if to is None or to in (subject, GLOBAL_CONTEXT):
        return True
    return split(to)[1] == "" and context_of(subject) == context_of(to)
