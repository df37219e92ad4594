"""The registry in a log's directory, read-only, while another process owns the log: ``file:///var/lib/app/data``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from eventbus.errors import ConfigError, EventBusError
from eventbus.forks import ForkLock
from eventbus.log.reader import LogReader
from eventbus.records import fetched_records
from schema_registry import errors
from schema_registry.embedded import registered, request_of, schema_with_id
from schema_registry.errors import RegistryError
from schema_registry.ledger import Ledger, Stored
from schema_registry.reading import Reads
from schema_registry.registry import TOPIC
from schema_registry.schemas import Schemas
from serdes.errors import SchemaRegistryError
from serdes.registry import Compatibility, RegisteredSchema, SchemaText

T = TypeVar("T")


class _Answers(Reads):
    """The state after all records of the topic."""

    def __init__(self) -> None:
        super().__init__()
        self._compatibility = "BACKWARD"
        self._max_schema_bytes = 1_000_000
        self.start_anew()

    @property
    def next(self) -> int:
        return self._ledger.next

    def start_anew(self) -> None:
        self._schemas = Schemas()
        self._ledger = Ledger(TOPIC, self._schemas)
        self._plain_generation = -1

    def take(self, data: bytes) -> None:
        found = fetched_records(data, TOPIC, 0, self.next)
        self._ledger.take(map(Stored, found.offsets, found.keys, found.values))
        self._ledger.advance(found.next_offset)


class LogDirectoryClient:
    """A `SchemaClient` of the registry in a log's directory. It takes no lock, and refuses to register."""

    def __init__(self, directory: str) -> None:
        """Open the log. Raises ConfigError if the directory contains none."""
        self._directory = directory
        self._reader = LogReader(directory)
        self._answers = _Answers()
        self._known: dict[tuple[int, str | None], RegisteredSchema] = {}
        self._reading = ForkLock()

    def __repr__(self) -> str:
        return f"LogDirectoryClient({self._directory!r})"

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        """Return the result of `by_id` if it is cached, else None. Never waits."""
        return self._known.get((schema_id, subject))

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        found = self.known(schema_id, subject)
        if found is None:
            found = self._ask(lambda answers: schema_with_id(answers, schema_id, subject))
            self._known[schema_id, subject] = found
        return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        def read(answers: Reads) -> RegisteredSchema:
            answers.schema_by_guid(guid)
            one = answers.ids_of_guid(guid)[0]
            return schema_with_id(answers, one.id, None if one.context == "." else f":{one.context}:")

        return self._ask(read)

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
        raise errors.not_permitted(
            f"the registry in {self._directory} is read here, not written: register where the log is open (a bus, or "
            "eventbus schema register)"
        )

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        request = request_of(text)
        return registered(self._ask(lambda one: one.lookup(subject, request, normalize=normalize, deleted=deleted)))

    def latest(self, subject: str) -> RegisteredSchema:
        return registered(self._ask(lambda answers: answers.version(subject, "latest"), newest=True))

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        return registered(self._ask(lambda answers: answers.version(subject, version, deleted=deleted)))

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility:
        request = request_of(text)
        answer = self._ask(lambda one: one.check(subject, version, request, verbose=True), newest=True)
        return Compatibility(answer.is_compatible, tuple(answer.messages or ()))

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self, read: Callable[[Reads], T], *, newest: bool = False) -> T:
        """Read on and look again: a missing schema may have been written a moment ago."""
        with self._reading.lock:
            if newest:
                self._catch_up()
            try:
                return read(self._answers)
            except RegistryError as error:
                if newest or error.status != 404 or not self._catch_up():
                    raise
                return read(self._answers)

    def _catch_up(self) -> bool:
        """Read what was published since; whether there was any."""
        try:
            first, stable = self._reader.offsets(TOPIC).get(0, (0, 0))
            answers = self._answers
            if stable < answers.next or (answers.next and first > answers.next):
                answers.start_anew()  # the topic was recreated, or truncated by another process
                self._known.clear()
            start = max(answers.next, first)
            if start >= stable:
                return False
            for data in self._reader.read(TOPIC, 0, start, stable):
                answers.take(data)
            return True
        except EventBusError as error:
            raise SchemaRegistryError(f"the registry in {self._directory} cannot be read: {error}") from error


def open_client(url: str) -> LogDirectoryClient:
    """Return the client for ``file``. Raises ConfigError if the directory contains no log."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    if parts.scheme != "file" or not path:
        raise ConfigError(f"registry={url!r}: name the directory of a log, as file:///var/lib/app/data")
    return LogDirectoryClient(path)
