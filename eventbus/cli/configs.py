"""``eventbus configs describe | alter``: settings of topics, brokers, loggers, users and clients, as kafka-configs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, read_properties
from eventbus.cli.shell import open_log

if TYPE_CHECKING:
    from eventbus.backends.base import Backend

_RESOURCES = {"topics": 2, "brokers": 4, "broker-loggers": 8, "client-metrics": 16, "groups": 32}
"""Entities whose settings are configs: Kafka's numbers of resource types."""
QUOTA_ENTITIES = {"users": "user", "clients": "client-id", "ips": "ip"}
"""Entities whose settings are quotas (and, of users, SCRAM credentials): what Kafka calls each of them."""

_ENTITIES = (*_RESOURCES, *QUOTA_ENTITIES)
_ONE = {"topic": "topics", "broker": "brokers", "broker-logger": "broker-loggers", "client-metrics": "client-metrics",
        "group": "groups", "user": "users", "client": "clients", "ip": "ips"}  # fmt: skip
_DEFAULTS = {"broker-defaults": "brokers", "user-defaults": "users", "client-defaults": "clients", "ip-defaults": "ips"}
"""Flags that name an entity in one word: ``--topic orders`` is ``--entity-type topics --entity-name orders``."""

_SOURCES = {1: "DYNAMIC_TOPIC_CONFIG", 2: "DYNAMIC_BROKER_CONFIG", 3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
            4: "STATIC_BROKER_CONFIG", 5: "DEFAULT_CONFIG", 6: "DYNAMIC_BROKER_LOGGER_CONFIG",
            7: "DYNAMIC_CLIENT_METRICS_CONFIG", 8: "DYNAMIC_GROUP_CONFIG"}  # fmt: skip
_DYNAMIC = (1, 2, 3, 6, 7, 8)
_SET, _DELETE = 0, 1


class Entity(NamedTuple):
    """Whose settings: a type in Kafka's plural, and a name; None stands for all of the type, "" for the default."""

    type: str
    name: str | None

    def describe(self) -> str:
        singular = self.type.removesuffix("s") if self.type != "client-metrics" else self.type
        return f"default {self.type}" if self.name == "" else f"{singular} {self.name}"


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "configs",
        help="show and change settings of topics, brokers, users, clients",
        description="Settings of topics, brokers, their loggers, users and clients, as kafka-configs shows them.\n"
        "The broker's own are set when it starts (`eventbus serve`), and only shown here.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    describe = actions.add_parser("describe", help="what is set; with --all, defaults too")
    _add_entities(describe)
    describe.add_argument("--all", action="store_true", help="with what is not set, and what was set at the start")
    describe.set_defaults(run=describe_configs)

    alter = actions.add_parser("alter", help="set, or back to the default")
    _add_entities(alter)
    alter.add_argument(
        "--add-config", action="append", default=[], metavar="K=V,K=[V,V]", help="set; brackets hold values with commas"
    )
    alter.add_argument("--add-config-file", metavar="FILE", help="the same, from a properties file")
    alter.add_argument("--delete-config", action="append", default=[], metavar="K,K", help="back to the default")
    alter.add_argument("--force", action="store_true", help=argparse.SUPPRESS)  # nothing is asked back here
    alter.set_defaults(run=alter_configs)


def _add_entities(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--entity-type", action="append", default=[], choices=_ENTITIES, metavar="TYPE", help=", ".join(_ENTITIES)
    )
    parser.add_argument("--entity-name", action="append", default=[], metavar="NAME", help="default: all of the type")
    parser.add_argument(
        "--entity-default", action="append_const", dest="entity_name", const="", help="what holds for all others"
    )
    for flag in _ONE:
        parser.add_argument(f"--{flag}", metavar="NAME", help=argparse.SUPPRESS)
    for flag in _DEFAULTS:
        parser.add_argument(f"--{flag}", action="store_true", help=argparse.SUPPRESS)


def entities_of(args: argparse.Namespace, *, named: bool) -> list[Entity]:
    """Whose settings are meant: one entity, or a user and a client together. Raises UsageError."""
    types, names = list(args.entity_type), list(args.entity_name)
    if len(names) > len(types):
        raise UsageError(
            f"{args.program}: {len(names)} names for {len(types)} --entity-type: give a type for each name"
        )
    found = [
        Entity(kind, name) for kind, name in zip(types, [*names, *[None] * (len(types) - len(names))], strict=True)
    ]
    for flag, kind in _ONE.items():
        name: str | None = getattr(args, flag.replace("-", "_"))
        found += [] if name is None else [Entity(kind, name)]
    for flag, kind in _DEFAULTS.items():
        found += [Entity(kind, "")] if getattr(args, flag.replace("-", "_")) else []
    if not found:
        raise UsageError(f"{args.program}: whose? As in: {args.program} --entity-type topics --entity-name orders")
    if len(found) > 1 and {entity.type for entity in found} != {"users", "clients"}:
        raise UsageError(f"{args.program}: one entity, or a user and a client together, and no two others")
    if named and any(entity.name is None for entity in found):
        raise UsageError(f"{args.program}: which of the {found[0].type}? Give --entity-name, or --entity-default")
    return found


# describe -------------------------------------------------------------------------------------------------------------


async def describe_configs(args: argparse.Namespace) -> None:
    entities, out = entities_of(args, named=False), Output.of(args)

    bus, backend = open_log(args)
    async with bus:
        if entities[0].type in QUOTA_ENTITIES:
            from eventbus.cli.user_configs import describe_users

            await describe_users(backend, entities, out)
        else:
            await _describe_resource(backend, entities[0], args.all, out)


async def _describe_resource(backend: Backend, entity: Entity, all: bool, out: Output) -> None:
    from eventbus.cli.ask import ask, raise_error
    from eventbus.protocol import messages as m

    kind = _RESOURCES[entity.type]
    names = [entity.name] if entity.name is not None else await _names(backend, kind)
    shown: list[dict[str, Any]] = []
    for name in names:
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        answer: m.DescribeConfigsResponse = await ask(
            backend, m.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        )
        [result] = answer.results
        raise_error(result)
        configs = [one for one in result.configs if all or one.config_source in _DYNAMIC]
        shown.append({"entity_type": entity.type, "entity_name": name, "configs": [_as_json(one) for one in configs]})
        if not out.json:
            out.line(f"{'All' if all else 'Dynamic'} configs for {Entity(entity.type, name).describe()} are:")
            for one in configs:
                synonyms = ", ".join(f"{_SOURCES.get(s.source, '?')}:{s.name}={s.value}" for s in one.synonyms)
                out.line(f"  {one.name}={one.value} sensitive={str(one.is_sensitive).lower()} synonyms={{{synonyms}}}")
    if out.json:
        out.data(shown)


async def _names(backend: Backend, kind: int) -> list[str]:
    """All there are of a type, as the broker lists them."""
    from eventbus.cli.ask import ask
    from eventbus.protocol import messages as m

    answer: m.ListConfigResourcesResponse = await ask(backend, m.ListConfigResourcesRequest(resource_types=[kind]))
    return sorted(one.resource_name for one in answer.config_resources)


def _as_json(config: Any) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": _SOURCES.get(config.config_source, "UNKNOWN"),
        "read_only": config.read_only,
        "sensitive": config.is_sensitive,
    }


# alter ----------------------------------------------------------------------------------------------------------------


async def alter_configs(args: argparse.Namespace) -> None:
    entities, out = entities_of(args, named=True), Output.of(args)
    added = {} if args.add_config_file is None else read_properties(args.add_config_file)
    for text in args.add_config:
        added |= parse_configs(text)
    deleted = [name.strip() for text in args.delete_config for name in text.split(",") if name.strip()]
    if not added and not deleted:
        raise UsageError(f"{args.program}: nothing to change: give --add-config, --add-config-file or --delete-config")

    bus, backend = open_log(args)
    async with bus:
        if entities[0].type in QUOTA_ENTITIES:
            from eventbus.cli.user_configs import alter_users

            await alter_users(backend, entities, added, deleted)
        else:
            await _alter_resource(backend, entities[0], added, deleted)
    shown = " and ".join(entity.describe() for entity in entities)
    answer = [{"entity_type": entity.type, "entity_name": entity.name or None} for entity in entities]
    # Not the values: a password may be among them.
    out.answer(
        {"entities": answer, "set": sorted(added), "deleted": deleted}, f"Completed updating config for {shown}."
    )


async def _alter_resource(backend: Backend, entity: Entity, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    from eventbus.cli.ask import ask, raise_error
    from eventbus.protocol import messages as m

    change = m.IncrementalAlterConfigsRequest.AlterableConfig
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_RESOURCES[entity.type],
        resource_name=entity.name or "",
        configs=[
            *(change(name=name, config_operation=_SET, value=value) for name, value in added.items()),
            *(change(name=name, config_operation=_DELETE, value=None) for name in deleted),
        ],
    )
    answer: m.IncrementalAlterConfigsResponse = await ask(
        backend, m.IncrementalAlterConfigsRequest(resources=[resource])
    )
    raise_error(answer.responses[0])


def parse_configs(text: str) -> dict[str, str]:
    """``k1=v1,k2=[v1,v2],k3=v3``: brackets hold a value with commas. Raises UsageError."""
    found: dict[str, str] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--add-config {name!r} is not of the form key=value, as in: --add-config retention.ms=60000"
            )
        value = value.strip()
        bracketed = value.startswith("[") and value.endswith("]")
        found[name.strip()] = value[1:-1] if bracketed else value
    return found


def _split(text: str) -> list[str]:
    """Split a text at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
