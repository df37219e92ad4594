"""A registry without a bus: requests are decided, stored in a list, and folded, all in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from schema_registry import deleting, names, registering, settings
from schema_registry.entities import Config, ConfigUpdate, Mode, Schema, SchemaRequest
from schema_registry.errors import RegistryError
from schema_registry.ledger import Ledger, Stored
from schema_registry.reading import Reads, VersionLike, version_number
from schema_registry.registering import Registration, entity
from schema_registry.schemas import Schemas
from schema_registry.state import State

T = TypeVar("T")

INT, STRING, LONG = '"int"', '"string"', '"long"'


def record(name: str = "R", *fields: str | dict[str, Any], **members: Any) -> str:
    """The text of a record; a field that is only a name is an int."""
    whole = [{"name": one, "type": "int"} if isinstance(one, str) else one for one in fields]
    return json.dumps({"type": "record", "name": name, "fields": whole, **members}, separators=(",", ":"))


class Lab(Reads):
    def __init__(self, stored: Iterable[CoordinatorRecord] = ()) -> None:
        super().__init__()
        self.log: list[CoordinatorRecord] = list(stored)
        self._schemas = Schemas()
        self._compatibility = "BACKWARD"
        self._max_schema_bytes = 1_000_000
        self._ledger = Ledger("_schemas", self._schemas)
        self._ledger.take(Stored(offset, *one) for offset, one in enumerate(self.log))
        self._ledger.loaded()

    @property
    def state(self) -> State:
        return self._ledger.settled

    @property
    def ahead(self) -> State:
        return self._ledger.ahead

    def decide(self, decide: Callable[[Registration], Decision[T]]) -> T:
        decision = decide(self._registration()._replace(state=self._ledger.ahead))
        self._ledger.propose(decision.records)
        first = len(self.log)
        self.log += decision.records
        self._ledger.settle(decision.records, first)
        return decision.reply

    def register(self, subject: str, schema: str | SchemaRequest, **options: Any) -> Schema:
        flags = {name: options.pop(name) for name in ("normalize", "force") if name in options}
        request = schema if isinstance(schema, SchemaRequest) else SchemaRequest(schema=schema, **options)
        return entity(
            self.decide(
                lambda registration: registering.register(registration, names.normalize(subject), request, **flags)
            )
        )

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        return self.decide(
            lambda registration: deleting.delete_subject(registration.state, subject, permanent=permanent)
        )

    def delete_version(self, subject: str, version: VersionLike, *, permanent: bool = False) -> int:
        number = version_number(version)
        return self.decide(
            lambda registration: deleting.delete_version(registration.state, subject, number, permanent=permanent)
        )

    def delete_context(self, context: str) -> None:
        self.decide(lambda registration: deleting.delete_context(registration.state, context))

    def configure(self, subject: str | None = None, **members: Any) -> ConfigUpdate:
        update = ConfigUpdate(**members)
        return self.decide(
            lambda registration: settings.update_config(registration.state, names.level(subject), update)
        )

    def delete_config(self, subject: str | None = None) -> Config:
        return self.decide(
            lambda registration: settings.delete_config(registration.state, names.level(subject), "BACKWARD")
        )

    def set_mode(self, mode: str | None, subject: str | None = None, *, force: bool = False) -> Mode:
        return self.decide(
            lambda registration: settings.update_mode(registration.state, names.level(subject), mode, force=force)
        )

    def delete_mode(self, subject: str | None = None, *, recursive: bool = False) -> Mode:
        return self.decide(
            lambda registration: settings.delete_mode(registration.state, names.level(subject), recursive=recursive)
        )

    # what there is afterwards ----------------------------------------------------------------------------------------

    def compacted(self) -> list[CoordinatorRecord]:
        """What compaction leaves of the log: the last record of each key, tombstones gone."""
        last = {key: number for number, (key, _) in enumerate(self.log)}
        return [one for number, one in enumerate(self.log) if last[one.key] == number and one.value is not None]

    def replayed(self) -> Lab:
        return Lab(self.log)

    def put(self, key: str, value: dict[str, Any] | str | None) -> None:
        """A record of somebody else's."""
        data = None if value is None else value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        offset = len(self.log)
        self.log.append(CoordinatorRecord(key.encode(), data))
        self._ledger.take([Stored(offset, key.encode(), data)])


@contextmanager
def refused(status: int, error_code: int, says: str = "") -> Generator[None]:
    """The block ends with this error of Confluent's."""
    with pytest.raises(RegistryError) as caught:
        yield
    assert (caught.value.status, caught.value.error_code) == (status, error_code), caught.value
    assert says in caught.value.message
