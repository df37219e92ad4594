"""The Avro types that a bus declares for its topics: the subjects that it writes and reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from schema_registry.tools.judge import Declared
from schema_registry.tools.places import relative
from schema_registry.tools.problems import Place
from schema_registry.tools.recorded import parse_alone
from serdes.avro.schema import Schema, Union
from serdes.avro.serde import Avro
from serdes.avro.text import to_text

if TYPE_CHECKING:
    from eventbus import EventBus


def declared_of(bus: EventBus) -> tuple[list[Declared], int]:
    """Return the uses of Avro with a schema of their own, and how many others there are. Nothing is opened or asked."""
    declared: list[Declared] = []
    passed_over = 0
    for use in bus.context.schema_uses():
        serde = use.serde
        found = list(_subjects(serde, use.topic)) if isinstance(serde, Avro) else []
        passed_over += not found
        declared += [
            Declared(
                subject=subject,
                schema=parse_alone(to_text(schema)),
                type=use.type,
                place=place_of_function(use.function),
                group=use.group or "",
                handler=use.name if use.direction == "reads" else "",
            )
            for subject, schema in found
        ]
    return declared, passed_over


def _subjects(serde: Avro, topic: str | None) -> Iterator[tuple[str, Schema]]:
    """Yield the subjects of what is written or read; where they are named after records, one for each kind."""
    schema = serde.schema
    if schema is None:
        return
    branches = schema.branches if isinstance(schema, Union) else (schema,)
    names = {serde.subject(topic, branch) for branch in branches}
    for branch in branches if len(names) > 1 else (schema,):
        subject = serde.subject(topic, branch)
        if subject is not None:
            yield subject, branch


def place_of_function(function: Any) -> Place | None:
    """Return the place of a handler or producer in the source."""
    try:
        file = inspect.getsourcefile(function)
        _, line = inspect.getsourcelines(function)
    except (TypeError, OSError):
        return None
    return None if file is None else Place(relative(file), line)
