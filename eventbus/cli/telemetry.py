"""``eventbus telemetry``: a dashboard and alert rules for the metrics of a service."""

from __future__ import annotations

import argparse

from eventbus.cli.parser import Subcommands


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("telemetry", help="a Grafana dashboard and alert rules for /metrics")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    board = actions.add_parser(
        "dashboard", help="JSON for Grafana's import: eventbus telemetry dashboard > eventbus.json"
    )
    board.set_defaults(run=write_dashboard)
    rules = actions.add_parser("alerts", help="rules for Prometheus: eventbus telemetry alerts > eventbus-alerts.yml")
    rules.set_defaults(run=write_alerts)


def write_dashboard(args: argparse.Namespace) -> int:
    from eventbus.telemetry.dashboard import dashboard_json

    print(dashboard_json(), end="")
    return 0


def write_alerts(args: argparse.Namespace) -> int:
    from eventbus.telemetry.dashboard import alert_rules

    print(alert_rules(), end="")
    return 0
