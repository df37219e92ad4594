"""``eventbus config``: what a service goes by and where each value stands; which settings there are."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError

if TYPE_CHECKING:
    from eventbus.client.configuration.display import Row
    from eventbus.settings.setting import Setting

_IMPORTANCE = ("high", "medium", "low")


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "config",
        help="settings: where each value comes from, which there are",
        description="Settings of a bus come from keywords, the URL's query, EVENTBUS_* variables, the file that\n"
        "EVENTBUS_CONFIG names, and defaults, in this order. Secrets are not shown.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    show = commands.add_parser("show", help="each setting, its value, and where it stands")
    show.add_argument(
        "target", nargs="?", metavar="MODULE:BUS", help="a service; without it: the environment and the file"
    )
    show.add_argument("--changed", action="store_true", help="leave out what is at its default")
    show.set_defaults(run=_show)
    listed = commands.add_parser("list", help="the settings there are")
    listed.add_argument("--importance", choices=_IMPORTANCE, help="only those of this importance, or a higher one")
    listed.add_argument("--kafka", action="store_true", help="librdkafka's too")
    listed.set_defaults(run=_list)
    explain = commands.add_parser("explain", help="what a setting means")
    explain.add_argument("keys", nargs="+", metavar="KEY", help="as in linger_ms, linger.ms or EVENTBUS_LINGER_MS")
    explain.set_defaults(run=_explain)


def _show(args: argparse.Namespace) -> int:
    from eventbus.client.configuration.display import rows_of, rows_outside
    from eventbus.client.configuration.resolution import outside

    out = Output.of(args)
    if args.target is None:
        found = outside()
        rows = rows_outside(found)
        for problem in found.unknown.values():
            out.note(f"warning: {problem}")
        if not rows and not out.json:
            out.line("nothing is set: no EVENTBUS_* variable of a setting, and EVENTBUS_CONFIG names no file")
            return 0
    else:
        from eventbus.cli.run import load_bus

        bus = load_bus(args.target)
        bus.context.handlers_in_force()  # what the file says of a handler is checked, too
        rows = rows_of(bus.context.configuration)
    _print(out, [row for row in rows if not args.changed or row.source != "default"])
    return 0


def _print(out: Output, rows: list[Row]) -> None:
    values = [row.value if out.json or row.value is not None else "none" for row in rows]
    columns = ("setting", "value", "source", "importance")
    out.table(
        columns,
        [
            (row.setting, value if out.json else str(value), row.source, row.importance)
            for row, value in zip(rows, values, strict=True)
        ],
    )


def _list(args: argparse.Namespace) -> int:
    from eventbus.settings.table import OF_A_BUS, rows

    most = _IMPORTANCE.index(args.importance or "low")
    found = [
        one
        for one in rows(*OF_A_BUS).values()
        if _IMPORTANCE.index(one.importance) <= most and (args.kafka or not one.is_passed)
    ]
    Output.of(args).table(
        ("setting", "of", "default", "importance"),
        [(one.name, _of(one), _default(one), one.importance) for one in found],
    )
    return 0


def _of(one: Setting) -> str:
    return "kafka" if one.is_passed else one.scope


def _explain(args: argparse.Namespace) -> int:
    out = Output.of(args)
    found = [_setting(key) for key in args.keys]
    if out.json:
        out.data(
            [
                {
                    "name": one.name,
                    "kafka": _kafka(one),
                    "of": _of(one),
                    "default": _default(one),
                    "takes": one.takes,
                    "importance": one.importance,
                    "meaning": one.doc,
                }
                for one in found
            ]
        )
        return 0
    for one in found:
        out.line(f"{one.name}  ({one.importance}; of {_OF[_of(one)]})")
        out.line(f"  {one.doc}")
        if one.takes:
            out.line(f"  takes        {one.takes}")
        out.line(f"  default      {_default(one)}")
        out.line(f"  keyword      EventBus({one.name}=...)")
        out.line(f"  environment  EVENTBUS_{one.name.upper()}")
        if _kafka(one):
            out.line(f"  Kafka        {_kafka(one)}")
    return 0


_OF = {
    "bus": "the bus",
    "log": "the log, memory:// and file://",
    "producer": "its producers",
    "consumer": "its consumers",
    "kafka": "kafka://, librdkafka's",
}


def _kafka(one: Setting) -> str:
    """Kafka's or librdkafka's spelling; empty if neither has the setting."""
    return one.passed_as if one.is_passed else "" if one.kafka == "" else one.dotted


def _setting(key: str) -> Setting:
    from eventbus.client.configuration.environment import PREFIX
    from eventbus.settings.table import OF_A_BUS, advice, canonical, rows
    from eventbus.suggest import nearest_setting

    among = rows(*OF_A_BUS)
    found = among.get(canonical(key.removeprefix(PREFIX).lower() if key.startswith(PREFIX) else key))
    if found is None:
        hint = advice(key, among)
        text = f": {hint}" if hint else nearest_setting(key, among) or "; see: eventbus config list --kafka"
        raise UsageError(f"eventbus config explain: there is no setting {key!r}{text}")
    return found


def _default(one: Setting) -> str:
    from eventbus.client.configuration.display import plain

    value = plain(one.name, one.default)
    if value is None:
        return "librdkafka's" if one.is_passed else "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"
