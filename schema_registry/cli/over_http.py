"""A registry reached over HTTP, for the commands: Confluent's endpoints, decoded into our entities."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
import msgspec

from schema_registry import backup, records
from schema_registry.cli.registry_access import PAGE, all_pages
from schema_registry.client import RegistryClient, segment
from schema_registry.entities import Config, Schema, SchemaRequest
from schema_registry.records import Key
from serdes.errors import SchemaRegistryError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

T = TypeVar("T")


class OverHttp:
    """Blocking questions, asked in worker threads."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self.shown = repr(client).partition("'")[2].rpartition("'")[0]

    async def _ask(self, kind: type[T], method: str, path: str, body: Any = None, **query: Any) -> T:
        answer = await anyio.to_thread.run_sync(partial(self._client.request, method, path, query=query, body=body))
        try:
            return msgspec.convert(answer, kind, strict=False)
        except msgspec.ValidationError as error:
            raise SchemaRegistryError(f"{method} {path}: the answer is not a registry's: {error}") from None

    async def subjects(self, *, prefix: str, deleted: bool) -> list[str]:
        return await self._ask(list[str], "GET", "/subjects", subjectPrefix=prefix, deleted=deleted or None)

    async def schemas(self, *, prefix: str, deleted: bool, latest_only: bool) -> list[Schema]:
        ask = partial(
            self._ask, list[Schema], "GET", "/schemas",
            subjectPrefix=prefix, deleted=deleted or None, latestOnly=latest_only or None, limit=PAGE,
        )  # fmt: skip
        return await all_pages(lambda offset: ask(offset=offset))

    async def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        return await self._ask(list[int], "GET", f"{_of(subject)}/versions", deleted=deleted or None)

    async def version(self, subject: str, version: int | str, *, deleted: bool = False) -> Schema:
        return await self._ask(Schema, "GET", f"{_of(subject)}/versions/{version}", deleted=deleted or None)

    async def by_id(self, id: int) -> Schema:
        answer = await self._ask(dict[str, Any], "GET", f"/schemas/ids/{id}")
        return msgspec.convert({"subject": "", "version": 0, **answer, "id": id}, Schema)

    async def lookup(self, subject: str, request: SchemaRequest) -> Schema:
        return await self._ask(Schema, "POST", _of(subject), request)

    async def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> Schema:
        path = f"{_of(subject)}/versions"
        answer = await self._ask(dict[str, Any], "POST", path, request, normalize=normalize or None)
        if "version" not in answer:  # as of old registries, which answer the id alone
            return await self.lookup(subject, request)
        return msgspec.convert({"schema": request.schema, **answer, "subject": subject}, Schema, strict=False)

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        return await self._ask(list[int], "DELETE", _of(subject), permanent=permanent or None)

    async def delete_version(self, subject: str, version: int | str, *, permanent: bool) -> int:
        path = f"{_of(subject)}/versions/{version}"
        return await self._ask(int, "DELETE", path, permanent=permanent or None)

    async def config(self, subject: str) -> Config:
        return await self._ask(Config, "GET", f"/config/{segment(subject)}", defaultToGlobal=True)

    # backup ----------------------------------------------------------------------------------------------------------

    async def export_lines(self, *, prefix: str, deleted: bool) -> list[bytes]:
        """Request configs and modes for each subject, because no endpoint lists them."""
        found = await self.schemas(prefix=prefix, deleted=deleted, latest_only=False)
        alive = await self.schemas(prefix=prefix, deleted=False, latest_only=False) if deleted else found
        places = {(each.subject, each.version) for each in alive}
        written = [
            records.put(Key(records.SCHEMA, each.subject, each.version), _value(each, places))
            for each in references_first(found)
        ]
        for subject in (None, *dict.fromkeys(each.subject for each in found)):
            tail = "" if subject is None else f"/{segment(subject)}"
            if config := await self._if_there(records.ConfigValue, f"/config{tail}"):
                config.subject = subject
                written.append(records.put(Key(records.CONFIG, subject), config))
            if mode := await self._if_there(records.ModeValue, f"/mode{tail}"):
                mode.subject = subject
                written.append(records.put(Key(records.MODE, subject), mode))
        return [b'{"key":%b,"value":%b}' % (record.key, record.value or b"null") for record in written]

    async def _if_there(self, kind: type[T], path: str) -> T | None:
        try:
            return await self._ask(kind, "GET", path)
        except SchemaRegistryError as error:
            if error.status == 404:
                return None
            raise

    async def import_lines(self, lines: Sequence[str]) -> int:
        """Each subject is set to IMPORT while it is written: the registry has to allow that."""
        read = backup.read_lines(lines)
        wanted = [value for _, value in read if isinstance(value, records.SchemaValue)]
        found = await self.schemas(prefix=":*:", deleted=True, latest_only=False)
        there = {(each.subject, each.version): each for each in found}
        new = [value for value in wanted if not _is_there(value, there.get((value.subject or "", value.version)))]
        modes: dict[str, records.ModeValue | None] = {}
        for subject in dict.fromkeys(value.subject or "" for value in new):
            modes[subject] = await self._if_there(records.ModeValue, f"/mode/{segment(subject)}")
            await self._ask(dict[str, Any], "PUT", f"/mode/{segment(subject)}", {"mode": "IMPORT"}, force=True)
        try:
            for value in new:
                path = f"{_of(value.subject or '')}/versions"
                await self._ask(
                    dict[str, Any], "POST", path, msgspec.convert(value, SchemaRequest, from_attributes=True)
                )
            for value in new:
                if value.deleted is True:
                    await self.delete_version(value.subject or "", value.version, permanent=False)
        finally:
            for subject, mode in modes.items():
                path = f"/mode/{segment(subject)}"
                if mode is None:
                    await self._ask(dict[str, Any], "DELETE", path)
                else:
                    await self._ask(dict[str, Any], "PUT", path, {"mode": mode.mode}, force=True)
        for key, value in read:
            tail = f"/{segment(key.subject)}" if key.subject else ""
            if isinstance(value, records.ConfigValue):
                await self._configure(tail, value)
            elif isinstance(value, records.ModeValue) and tail:
                there = await self._if_there(records.ModeValue, f"/mode{tail}")
                if there is None or there.mode != value.mode:
                    await self._ask(dict[str, Any], "PUT", f"/mode{tail}", {"mode": value.mode}, force=True)
        return len(new)

    async def _configure(self, tail: str, value: records.ConfigValue) -> None:
        """Unless it is so already: a subject that is READONLY now takes no config, not even its own."""
        there = await self._if_there(records.ConfigValue, f"/config{tail}")
        if there is not None and msgspec.structs.replace(there, subject=value.subject) == value:
            return
        body = msgspec.to_builtins(value)
        body.pop("subject", None)
        if "compatibilityLevel" in body:
            body["compatibility"] = body.pop("compatibilityLevel")
        await self._ask(dict[str, Any], "PUT", f"/config{tail}", body)


def _of(subject: str) -> str:
    return f"/subjects/{segment(subject)}"


def _value(schema: Schema, alive: Container[tuple[str, int]]) -> records.SchemaValue:
    return records.SchemaValue(
        subject=schema.subject,
        version=schema.version,
        id=schema.id,
        schema_type=None if schema.schema_type == "AVRO" else schema.schema_type,
        references=list(schema.references) or None,
        metadata=schema.metadata,
        rule_set=schema.rule_set,
        schema=schema.schema,
        deleted=(schema.subject, schema.version) not in alive,
    )


def _is_there(wanted: records.SchemaValue, found: Schema | None) -> bool:
    """Raises SchemaRegistryError when something else is in its place."""
    if found is None:
        return False
    if (found.id, found.schema) != (wanted.id, wanted.schema):
        raise SchemaRegistryError(
            f"version {wanted.version} of {wanted.subject!r} is there already, as another schema (id {found.id}, not "
            f"{wanted.id}): import into an empty registry, or delete the subject there",
            status=409,
        )
    return True


def references_first(schemas: Sequence[Schema]) -> list[Schema]:
    """Return the schemas sorted by id, but each after the schemas that it refers to."""
    by_place = {(each.subject, each.version): each for each in schemas}
    done: dict[tuple[str, int], Schema] = {}

    def place(schema: Schema) -> None:
        key = schema.subject, schema.version
        if key in done:
            return
        for reference in schema.references:
            needed = by_place.get((reference.subject, reference.version))
            if needed is not None and needed is not schema:
                place(needed)
        done[key] = schema

    for each in sorted(schemas, key=lambda schema: (schema.id, schema.subject, schema.version)):
        place(each)
    return list(done.values())
