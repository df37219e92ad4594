"""A registry behind HTTP, as the commands ask it: Confluent's endpoints, decoded into our entities."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
import msgspec

from schema_registry.cli.doors import PAGE, all_pages
from schema_registry.client import RegistryClient, segment
from schema_registry.entities import Config, Exported, Schema, SchemaRequest
from serdes.registry import SchemaRegistryError

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    async def export(self, *, prefix: str, deleted: bool) -> Exported:
        """Asked for subject by subject; a registry tells its configs and modes no other way."""
        found = await self.schemas(prefix=prefix, deleted=deleted, latest_only=False)
        alive = {(each.subject, each.version) for each in found}
        if deleted:
            left = await self.schemas(prefix=prefix, deleted=False, latest_only=False)
            alive = {(each.subject, each.version) for each in left}
        records = [
            msgspec.to_builtins(msgspec.structs.replace(each, deleted=(each.subject, each.version) not in alive))
            for each in references_first(found)
        ]
        configs: dict[str, dict[str, Any]] = {}
        modes: dict[str, str] = {}
        for subject in ("", *dict.fromkeys(each.subject for each in found)):
            tail = f"/{segment(subject)}" if subject else ""
            config = await self._ask_if_there(f"/config{tail}")
            if config:
                level = config.pop("compatibilityLevel", None)
                configs[subject] = config | ({"compatibility": level} if level else {})
            mode = await self._ask_if_there(f"/mode{tail}")
            if mode:
                modes[subject] = str(mode["mode"])
        return Exported(schemas=records, configs=configs, modes=modes)

    async def _ask_if_there(self, path: str) -> dict[str, Any]:
        try:
            return await self._ask(dict[str, Any], "GET", path)
        except SchemaRegistryError as error:
            if error.status == 404:
                return {}
            raise

    async def restore(self, exported: Exported) -> int:
        """Each subject is set to IMPORT while it is written, which needs a registry that allows it."""
        records = [msgspec.convert(record, Schema, strict=False) for record in exported.schemas]
        there = {(each.subject, each.version): each for each in await self.schemas(
            prefix=":*:", deleted=True, latest_only=False)}  # fmt: skip
        new = [each for each in records if not _is_there(each, there.get((each.subject, each.version)))]
        for subject in dict.fromkeys(each.subject for each in new):
            await self._ask(dict[str, Any], "PUT", f"/mode/{segment(subject)}", {"mode": "IMPORT"}, force=True)
        try:
            for each in new:
                await self._ask(dict[str, Any], "POST", f"{_of(each.subject)}/versions", _request(each))
            for each in new:
                if each.deleted:
                    await self.delete_version(each.subject, each.version, permanent=False)
        finally:
            for subject in dict.fromkeys(each.subject for each in new):
                await self._ask(dict[str, Any], "DELETE", f"/mode/{segment(subject)}")
        for subject, config in exported.configs.items():
            await self._ask(dict[str, Any], "PUT", f"/config{f'/{segment(subject)}' if subject else ''}", config)
        for subject, mode in exported.modes.items():
            if subject and mode:
                await self._ask(dict[str, Any], "PUT", f"/mode/{segment(subject)}", {"mode": mode}, force=True)
        return len(new)


def _of(subject: str) -> str:
    return f"/subjects/{segment(subject)}"


def _request(schema: Schema) -> SchemaRequest:
    return SchemaRequest(
        id=schema.id,
        version=schema.version,
        schema_type=schema.schema_type,
        references=list(schema.references) or None,
        metadata=schema.metadata,
        rule_set=schema.rule_set,
        schema=schema.schema,
    )


def _is_there(wanted: Schema, found: Schema | None) -> bool:
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
    """The same schemas, each behind those it refers to, else in the order of their ids."""
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
