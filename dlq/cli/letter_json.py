"""A dead letter for programs: one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventbus.cli.output import text_or_base64

if TYPE_CHECKING:
    from dlq.letters import DeadLetter


def letter_as_json(letter: DeadLetter, status: str) -> dict[str, Any]:
    """All that a letter says, with what became of it."""
    source = None
    if letter.source is not None:
        source = {"topic": letter.source.topic, "partition": letter.source.partition, "offset": letter.source_offset}
    names = (
        "family", "service", "handler", "group", "error_class", "message", "stack", "top_frame", "reason", "attempts",
        "first_failed_ms", "last_failed_ms", "timestamp_ms", "hops", "has_payload",
    )  # fmt: skip
    return {
        "id": letter.id,
        "status": status,
        "case": letter.case,
        "source": source,
        **{name: getattr(letter, name) for name in names},
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in letter.headers],
        **text_or_base64("key", letter.key),
        **text_or_base64("value", letter.value),
    }
