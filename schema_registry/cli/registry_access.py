"""Access to the registry of a command: in the log of ``--url``, or over HTTP at ``--registry``."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from eventbus.backends.masking import shown_url
from eventbus.cli.parser import UsageError
from eventbus.cli.shell import open_bus, run_async
from eventbus.errors import ConfigError, EventBusError, LogLocked
from serdes.errors import SchemaRegistryError

if TYPE_CHECKING:
    from schema_registry.entities import Config, Schema, SchemaRequest
    from schema_registry.registry import Registry

T = TypeVar("T")
VARIABLE = "EVENTBUS_REGISTRY"


class RegistryFailed(EventBusError):
    """A registry said no to a command."""


class RegistryAccess(Protocol):
    """The requests of the commands to a registry in a log or over HTTP. Raise SchemaRegistryError."""

    shown: str
    """Its name in messages, without passwords."""

    async def subjects(self, *, prefix: str, deleted: bool) -> list[str]: ...
    async def schemas(self, *, prefix: str, deleted: bool, latest_only: bool) -> list[Schema]: ...
    async def versions(self, subject: str, *, deleted: bool = False) -> list[int]: ...
    async def version(self, subject: str, version: int | str, *, deleted: bool = False) -> Schema: ...
    async def by_id(self, id: int) -> Schema: ...
    async def lookup(self, subject: str, request: SchemaRequest) -> Schema: ...
    async def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> Schema: ...
    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]: ...
    async def delete_version(self, subject: str, version: int | str, *, permanent: bool) -> int: ...
    async def config(self, subject: str) -> Config: ...
    async def export_lines(self, *, prefix: str, deleted: bool) -> list[bytes]: ...
    async def import_lines(self, lines: Sequence[str]) -> int: ...


def add_registry_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where the registry is."""
    group = parser.add_argument_group("the registry (default: the one in the log of --url)")
    group.add_argument(
        "--registry", metavar="URL", help=f"http(s)://[user:password@]host:8081, or log (default: ${VARIABLE}, if set)"
    )
    group.add_argument("--token", metavar="TOKEN", help="a bearer token for it ($EVENTBUS_REGISTRY_TOKEN)")
    group.add_argument("--ca-file", metavar="FILE", help="whose certificates are trusted (default: the system's)")


def with_registry(
    args: argparse.Namespace, work: Callable[[RegistryAccess], Awaitable[int | None]], *, create: bool = False
) -> int:
    """Do ``work`` with an open registry, for commands that import programs, which may start an event loop."""

    async def main() -> int | None:
        async with open_registry(args, create=create) as registry:
            return await work(registry)

    return run_async(main)


def registry_url(args: argparse.Namespace) -> str | None:
    """Return the URL of a registry reached over HTTP, or None for the registry in the log (also ``--registry log``)."""
    given: str | None = args.registry
    if given == "log":
        return None
    if given is None and args.url_is_default:
        given = os.environ.get(VARIABLE) or None
    return given


@asynccontextmanager
async def open_registry(args: argparse.Namespace, *, create: bool = False) -> AsyncGenerator[RegistryAccess]:
    """Open the registry. ``create``: a new log, too. Raises RegistryFailed for what the registry refuses."""
    async with _open_registry(args, create=create) as registry:
        try:
            yield registry
        except SchemaRegistryError as error:
            if isinstance(error, EventBusError):
                raise
            raise RegistryFailed(f"{registry.shown}: {error}") from error


@asynccontextmanager
async def _open_registry(args: argparse.Namespace, *, create: bool) -> AsyncGenerator[RegistryAccess]:
    url = registry_url(args)
    if url is None:
        try:
            async with _inside(args, create) as registry:
                yield registry
        except LogLocked as error:
            raise RegistryFailed(
                f"{error}. If that process serves the schemas, ask it: --registry http://localhost:8081"
            ) from error
        return
    if "://" not in url:
        raise UsageError(f"--registry {url!r} is not the URL of a registry, as in: --registry http://localhost:8081")
    try:
        from schema_registry.cli.over_http import OverHttp
        from schema_registry.client import RegistryClient
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'--registry needs a library that is not installed ({error.name}): pip install "eventbus-log[avro]"'
        ) from error

    token = args.token or os.environ.get("EVENTBUS_REGISTRY_TOKEN") or None
    try:
        client = RegistryClient(url, token=token, ca_file=args.ca_file)
    except ValueError as error:
        raise UsageError(f"--registry: {error}") from None
    try:
        yield OverHttp(client)
    finally:
        client.close()


@asynccontextmanager
async def _inside(args: argparse.Namespace, create: bool) -> AsyncGenerator[RegistryAccess]:
    from schema_registry.registry import TOPIC, Registry

    async with open_bus(args, create=create) as bus:
        if not create and TOPIC not in await bus.admin.list_topics():  # a command that only reads creates no topic
            raise RegistryFailed(
                f"there are no schemas in {shown_url(bus.url)} (it has no topic {TOPIC}): name another log with --url, "
                "a registry with --registry, or register one: eventbus schema register orders-value order.avsc"
            )
        async with Registry(bus) as registry:
            yield _Inside(registry, bus.url)


class _Inside:
    """The registry of a log, opened in this process."""

    def __init__(self, registry: Registry, url: str) -> None:
        self._registry = registry
        self.shown = url
        self.register = registry.register
        self.delete_subject = registry.delete_subject
        self.delete_version = registry.delete_version
        self.import_lines = registry.import_lines

    async def subjects(self, *, prefix: str, deleted: bool) -> list[str]:
        return self._registry.subjects(subject_prefix=prefix, deleted=deleted)

    async def schemas(self, *, prefix: str, deleted: bool, latest_only: bool) -> list[Schema]:
        ask = partial(self._registry.schemas, subject_prefix=prefix, deleted=deleted, latest_only=latest_only)
        return await all_pages(lambda offset: _at_once(ask(offset=offset, limit=PAGE)))

    async def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        return self._registry.versions(subject, deleted=deleted)

    async def version(self, subject: str, version: int | str, *, deleted: bool = False) -> Schema:
        return self._registry.version(subject, version, deleted=deleted)

    async def by_id(self, id: int) -> Schema:
        from schema_registry.entities import Schema

        found = self._registry.schema_by_id(id)
        return Schema(
            subject=found.subject or "", version=found.version or 0, id=id, guid=found.guid,
            schema_type=found.schema_type, references=found.references, schema=found.schema,
        )  # fmt: skip

    async def lookup(self, subject: str, request: SchemaRequest) -> Schema:
        return self._registry.lookup(subject, request)

    async def config(self, subject: str) -> Config:
        return self._registry.config(subject, default_to_global=True)

    async def export_lines(self, *, prefix: str, deleted: bool) -> list[bytes]:
        return [*self._registry.export_lines(subject_prefix=prefix, deleted=deleted)]


PAGE = 1_000
"""How many schemas a registry gives at once."""


async def all_pages(page: Callable[[int], Awaitable[list[T]]]) -> list[T]:
    """Return the items of all pages; ``page`` gives those from an offset on."""
    items: list[T] = []
    while True:
        found = await page(len(items))
        items += found
        if len(found) < PAGE:
            return items


async def _at_once(value: Any) -> Any:
    return value
