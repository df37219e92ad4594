"""``eventbus acls``: flags as Kafka's kafka-acls."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.cli.shell import open_bus
from eventbus.coordinator.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from eventbus.suggest import nearest

if TYPE_CHECKING:
    from eventbus.backends.security import SecurityDoor

_EPILOG = """\
as in:
  eventbus acls add --allow-principal User:alice --producer --topic orders
  eventbus acls add --allow-principal User:bob --consumer --topic orders --group billing
  eventbus acls list --principal User:alice

they bind who comes through `eventbus serve --acls`; a program that opens the log itself is bound by the files' owner.
"""
_OPERATIONS = {operation.name.replace("_", "").lower(): operation for operation in Operation if operation >= 2}
_PATTERNS = {pattern.name.lower(): pattern for pattern in PatternType if pattern is not PatternType.UNKNOWN}
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
_COLUMNS = ("resource-type", "name", "pattern", "principal", "host", "operation", "permission")
Resource = tuple[ResourceType, str]


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("acls", help="who may do what: add, remove and list ACLs", epilog=_EPILOG)
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    add = actions.add_parser("add", help="allow or deny", epilog=_EPILOG)
    _add_resources(add)
    _add_rules(add)
    add.set_defaults(run=add_acls)

    remove = actions.add_parser("remove", help="remove those named, or without principals all of the resources")
    _add_resources(remove)
    _add_rules(remove)
    remove.add_argument("--force", action="store_true", help="do not ask")
    remove.set_defaults(run=remove_acls)

    listing = actions.add_parser("list", help="those of the resources named, or all")
    _add_resources(listing)
    listing.add_argument("--principal", action="append", metavar="User:NAME", help="only of these; repeatable")
    listing.set_defaults(run=list_acls)


def _add_resources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("resources, each repeatable; * stands for all")
    group.add_argument("--topic", action="append", metavar="NAME")
    group.add_argument("--group", action="append", metavar="NAME")
    group.add_argument("--transactional-id", action="append", metavar="ID")
    group.add_argument("--cluster", action="store_true")
    group.add_argument("--delegation-token", action="append", metavar="ID", help=argparse.SUPPRESS)
    group.add_argument("--user-principal", action="append", metavar="User:NAME", help=argparse.SUPPRESS)
    group.add_argument(
        "--resource-pattern-type", type=_pattern, default=PatternType.LITERAL, metavar="TYPE",
        help="literal (default), prefixed; to list and remove also any, match (all that matches the name)",
    )  # fmt: skip


def _add_rules(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who, from where, what; each repeatable")
    group.add_argument("--allow-principal", action="append", metavar="User:NAME")
    group.add_argument("--deny-principal", action="append", metavar="User:NAME")
    group.add_argument("--allow-host", action="append", metavar="ADDRESS", help="default: from everywhere")
    group.add_argument("--deny-host", action="append", metavar="ADDRESS", help="default: from everywhere")
    group.add_argument("--operation", action="append", type=_operation, metavar="OPERATION", help="default: All")
    group.add_argument("--producer", action="store_true", help="what producing needs: Write, Describe, Create")
    group.add_argument("--idempotent", action="store_true", help="with --producer, for clients before 2.8")
    group.add_argument(
        "--consumer", action="store_true", help="what consuming needs: Read, Describe; Read of the group"
    )


def _operation(text: str) -> Operation:
    operation = _OPERATIONS.get(text.replace("_", "").lower())
    if operation is None:
        names = [_title(one) for one in _OPERATIONS.values()]
        raise argparse.ArgumentTypeError(
            f"there is no operation {text!r}; there are {', '.join(names)}{nearest(text, names)}"
        )
    return operation


def _pattern(text: str) -> PatternType:
    pattern = _PATTERNS.get(text.lower())
    if pattern is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_PATTERNS)}")
    return pattern


def _title(operation: Operation) -> str:
    return operation.name.title().replace("_", "")


# what is meant -------------------------------------------------------------------------------------------------------


def _resources(args: argparse.Namespace) -> list[Resource]:
    named = [(kind, name.strip()) for option, kind in _RESOURCES.items() for name in getattr(args, option) or ()]
    return [*named, (ResourceType.CLUSTER, CLUSTER_NAME)] if args.cluster else named


def _rules(args: argparse.Namespace) -> list[tuple[Resource, list[Acl]]]:
    """For each resource the ACLs that the flags describe; none where they name nobody. Raises UsageError."""
    _check(args)
    resources = _resources(args)
    if not (args.producer or args.consumer):
        return [(resource, _acls(args, resource, args.operation or [Operation.ALL])) for resource in resources]
    wanted: dict[Resource, dict[Operation, None]] = {}
    for resource in resources:
        kind, operations = resource[0], wanted.setdefault(resource, {})
        if args.producer and kind is ResourceType.TOPIC:
            operations.update(dict.fromkeys((Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)))
        elif args.producer and kind is ResourceType.TRANSACTIONAL_ID:
            operations.update(dict.fromkeys((Operation.WRITE, Operation.DESCRIBE)))
        if args.consumer and kind is ResourceType.TOPIC:
            operations.update(dict.fromkeys((Operation.READ, Operation.DESCRIBE)))
        elif args.consumer and kind is ResourceType.GROUP:
            operations[Operation.READ] = None
    if args.idempotent:
        wanted.setdefault((ResourceType.CLUSTER, CLUSTER_NAME), {})[Operation.IDEMPOTENT_WRITE] = None
    return [(resource, _acls(args, resource, operations)) for resource, operations in wanted.items() if operations]


def _acls(args: argparse.Namespace, resource: Resource, operations: Iterable[Operation]) -> list[Acl]:
    kind, name = resource
    pattern = PatternType.LITERAL if kind is ResourceType.CLUSTER else args.resource_pattern_type
    return [
        Acl(kind, name, pattern, principal, host, operation, permission)
        for permission, principals, hosts in (
            (Permission.ALLOW, args.allow_principal, args.allow_host),
            (Permission.DENY, args.deny_principal, args.deny_host),
        )
        for principal in principals or ()
        for host in hosts or ("*",)
        for operation in operations
    ]


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for flags that do not go together, as Kafka's tool does."""
    roles = [f"--{role}" for role in ("producer", "consumer") if getattr(args, role)]
    if roles and (args.operation or args.deny_principal or args.deny_host):
        raise UsageError(f"{args.program}: {roles[0]} says itself what is allowed: no --operation, no --deny-...")
    if args.producer and not args.topic:
        raise UsageError(f"{args.program}: --producer of what? Give a --topic")
    if args.idempotent and not args.producer:
        raise UsageError(f"{args.program}: --idempotent goes with --producer")
    if args.consumer and not (args.topic and args.group):
        raise UsageError(f"{args.program}: --consumer needs a --topic and a --group")
    if args.consumer and not args.producer and (args.cluster or args.transactional_id):
        raise UsageError(f"{args.program}: --consumer needs neither --cluster nor --transactional-id")
    if not _resources(args):
        raise UsageError(f"{args.program}: of what? Give a --topic, --group, --transactional-id or --cluster")
    for option, kind in (("allow_host", "allow_principal"), ("deny_host", "deny_principal")):
        if getattr(args, option) and not getattr(args, kind):
            raise UsageError(f"{args.program}: --{option} needs a --{kind}".replace("_", "-"))


def _check_operations(args: argparse.Namespace, acls: Sequence[Acl]) -> None:
    for acl in acls:
        supported = SUPPORTED_OPERATIONS[acl.resource_type]
        if acl.operation is not Operation.ALL and acl.operation not in supported:
            raise UsageError(
                f"{args.program}: {acl.resource_type.name.lower()} {acl.name!r} knows no {_title(acl.operation)}; "
                f"there are {', '.join(_title(one) for one in supported)}, All"
            )


# the commands --------------------------------------------------------------------------------------------------------


async def add_acls(args: argparse.Namespace) -> None:
    out = Output.of(args)
    if args.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError(f"{args.program}: --resource-pattern-type is literal or prefixed when something is added")
    rules = _rules(args)
    acls = [acl for _, of_resource in rules for acl in of_resource]
    if not acls:
        raise UsageError(f"{args.program}: whom? Give an --allow-principal or --deny-principal, as User:alice")
    _check_operations(args, acls)

    async with open_bus(args) as bus:
        for error in await bus.admin.security.create_acls(acls):
            if error is not None:
                raise error
    _show(out, acls)


async def remove_acls(args: argparse.Namespace) -> int:
    out = Output.of(args)
    filters: list[AclFilter] = []
    for (kind, name), acls in _rules(args):
        pattern = PatternType.LITERAL if kind is ResourceType.CLUSTER else args.resource_pattern_type
        if not acls:
            filters.append(AclFilter(kind, name, pattern))
        filters += [
            AclFilter(kind, name, pattern, acl.principal, acl.host, acl.operation, acl.permission) for acl in acls
        ]

    async with open_bus(args) as bus:
        door = bus.admin.security
        doomed = await _found(door, filters)
        if not doomed:
            out.note("no ACL is meant: nothing is removed")
            return 0
        if not args.force:
            for acl in doomed:
                out.note(f"  {' '.join(_row(acl))}")
            if not confirmed(out, f"Remove these {len(doomed)}?", flag="--force"):
                return 1
        for result in await door.delete_acls(filters):
            if not isinstance(result, list):
                raise result
    _show(out, doomed)
    return 0


async def list_acls(args: argparse.Namespace) -> None:
    out = Output.of(args)
    pattern = args.resource_pattern_type
    filters = [
        AclFilter(kind, name, PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern)
        for kind, name in _resources(args)
    ] or [AclFilter()]

    async with open_bus(args) as bus:
        found = await _found(bus.admin.security, filters)
    _show(out, [acl for acl in found if not args.principal or acl.principal in args.principal])


async def _found(door: SecurityDoor, filters: Iterable[AclFilter]) -> list[Acl]:
    found: set[Acl] = set()
    for acl_filter in filters:
        found.update(await door.find_acls(acl_filter))
    return sorted(found)


def _show(out: Output, acls: Iterable[Acl]) -> None:
    out.table(_COLUMNS, [_row(acl) for acl in acls])


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        acl.resource_type.name,
        acl.name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )
