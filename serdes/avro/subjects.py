"""Subject name strategies: Confluent's, or a custom function."""

from __future__ import annotations

from collections.abc import Callable

SubjectStrategy = Callable[[str | None, bool, str], str | None]
"""(topic or None, is it a key, full name of the record) -> subject, or None if it depends on an unknown topic."""


def topic_name(topic: str | None, is_key: bool, record: str) -> str | None:
    """``flights-value``: a topic holds one kind of records."""
    return None if topic is None else f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str | None, is_key: bool, record: str) -> str | None:
    """``com.example.Flight``: a record evolves as one, in whatever topics it is."""
    return record


def topic_record_name(topic: str | None, is_key: bool, record: str) -> str | None:
    """``flights-com.example.Flight``: a topic holds several kinds of records, each on its own."""
    return None if topic is None else f"{topic}-{record}"


STRATEGIES: dict[str, SubjectStrategy] = {
    "topic_name": topic_name,
    "record_name": record_name,
    "topic_record_name": topic_record_name,
}


def strategy(subject: str | SubjectStrategy) -> SubjectStrategy:
    """Raises ValueError for a name that is none."""
    if not isinstance(subject, str):
        return subject
    if subject not in STRATEGIES:
        raise ValueError(f"subject={subject!r}: one of {', '.join(STRATEGIES)}, or a function (topic, is_key, record)")
    return STRATEGIES[subject]
