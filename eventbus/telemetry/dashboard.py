"""A dashboard for Grafana and alert rules for Prometheus, on the metrics of `eventbus.telemetry.prometheus`.

``eventbus telemetry dashboard > eventbus.json`` and ``eventbus telemetry alerts > eventbus-alerts.yml`` write them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

_SCHEMA_VERSION = 39
_WIDTH, _HEIGHT, _PANELS_PER_ROW = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_OF_HANDLER = 'handler=~"$handler", group=~"$group"'


class Panel(NamedTuple):
    """A plot: a title, PromQL with the names of its lines, and Grafana's unit."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    about: str = ""


def _of(how: str, by: str, metric: str) -> str:
    return f"{how} by ({by}) ({metric}{{{_OF_HANDLER}}})"


def _rate(metric: str, by: str, where: str = _OF_HANDLER) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, by: str, where: str = _OF_HANDLER) -> str:
    of = ", ".join(name for name in ("le", by) if name)
    return f"histogram_quantile({share}, sum by ({of}) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


def _quantiles(metric: str, by: str = "handler", where: str = _OF_HANDLER) -> tuple[tuple[str, str], ...]:
    name = f"{{{{{by}}}}} " if by else ""
    return tuple((_quantile(share, metric, by, where), f"{name}p{share * 100:.0f}") for share in (0.5, 0.99))


def _mean(metric: str, by: str, where: str) -> str:
    return f"{_rate(f'{metric}_sum', by, where)} / {_rate(f'{metric}_count', by, where)}"


_LETTERS = "eventbus_handler_dead_letters_last_minute_records"
_CIRCUIT = "eventbus_handler_circuit_open_ratio"
_OLDEST = "eventbus_handler_oldest_unfinished_age_seconds"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Handlers", (
        Panel("Lag", ((_of("sum", "handler, topic", "eventbus_handler_lag_records"), "{{handler}} {{topic}}"),),
              about="Records that are not finished. It grows for longer than a burst: add members, or look below."),
        Panel("Age of the oldest unfinished record", ((_of("max", "handler", _OLDEST), "{{handler}}"),), "s",
              "How late events are. A partition that has stopped shows here, however small its lag is."),
        Panel("Handled", ((_rate("eventbus_handler_handled_records_total", "handler"), "{{handler}}"),), "cps"),
        Panel("Time of a call", _quantiles("eventbus_handler_call_seconds"), "s"),
        Panel("At work", ((_of("sum", "handler", "eventbus_handler_at_work"), "{{handler}}"),)),
        Panel("Records of a fetch", _quantiles("eventbus_handler_fetch_records")),
    )),
    ("Failures", (
        Panel("Failed", tuple(
            (_rate(f"eventbus_handler_{what}_records_total", "handler"), f"{{{{handler}}}} {what}")
            for what in ("failed", "timed_out", "skipped", "retried", "dead_lettered")
        ), "cps"),
        Panel("Waiting for their next try",
              ((_of("sum", "handler", "eventbus_handler_retry_waiting_records"), "{{handler}}"),)),
        Panel("Dead letters that are still open",
              (('sum by (topic) (eventbus_dead_letters{status="open"})', "{{topic}}"),),
              about="Of services that include dlq.DeadLetterMetrics()."),
        Panel("Dead letters, and circuits", (
            (_of("sum", "handler", _LETTERS), "{{handler}} last minute"),
            (_of("max", "handler", _CIRCUIT), "{{handler}} circuit"),
        ), about="A circuit at 1 is open: nothing is tried until it is 0.5 (one try) or 0 (closed)."),
    )),
    ("Groups and commits", (
        Panel("Rebalances by cause", (
            (_rate("eventbus_group_rebalances_total", "group, cause", 'group=~"$group"'), "{{group}} {{cause}}"),
        ), "cps"),
        Panel("Partitions that move",
              ((_rate("eventbus_handler_partition_moves_total", "handler, move"), "{{handler}} {{move}}"),), "cps"),
        Panel("Time of a commit", _quantiles("eventbus_handler_commit_seconds"), "s"),
    )),
    ("Producers and the log", (
        Panel("Records of a batch", (
            (_mean("eventbus_producer_batch_records", "job", 'job=~".+"'), "{{job}}"),
            ("avg by (client_id, topic) (eventbus_client_batch_records)", "{{client_id}} {{topic}}"),
        )),
        Panel("Queued by producers", (
            ("sum by (job) (eventbus_producer_queued_bytes)", "{{job}}"),
            ('sum by (client_id) (eventbus_client_queued_bytes{kind="producer"})', "{{client_id}}"),
        ), "bytes"),
        Panel("Time of a flush to disk", _quantiles("eventbus_log_flush_seconds", "", 'job=~".+"'), "s"),
        Panel("Size of topics", (("sum by (topic) (eventbus_topic_size_bytes)", "{{topic}}"),), "bytes"),
        Panel("Round trips to brokers", (
            ("max by (client_id, broker) (eventbus_broker_round_trip_p99_seconds)", "{{client_id}} {{broker}}"),
        ), "s"),
        Panel("Brokers connected", (("sum by (client_id, kind) (eventbus_broker_up)", "{{client_id}} {{kind}}"),)),
    )),
    ("Outbox", (
        Panel("Backlog", (("max by (outbox) (eventbus_outbox_backlog_events)", "{{outbox}}"),)),
        Panel("Age of the oldest event",
              (("max by (outbox) (eventbus_outbox_oldest_age_seconds)", "{{outbox}}"),), "s"),
        Panel("From event to log", _quantiles("eventbus_outbox_lag_seconds", "outbox", 'outbox=~".+"'), "s"),
    )),
)  # fmt: skip
"""The rows and panels of the dashboard."""


class Alert(NamedTuple):
    """A rule: a PromQL condition, its duration, and the message."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "EventbusEventsAreLate",
        "max by (handler, group) (eventbus_handler_oldest_unfinished_age_seconds) > 300", "5m", "page",
        "{{ $labels.handler }}: the oldest record that is not handled is {{ $value | humanizeDuration }} old",
    ),
    Alert(
        "EventbusLagGrows",
        "sum by (handler, group) (eventbus_handler_lag_records) > 1000 and "
        "sum by (handler, group) (deriv(eventbus_handler_lag_records[15m])) > 0", "15m", "ticket",
        "{{ $labels.handler }}: {{ $value }} records wait, and they become more",
    ),
    Alert(
        "EventbusDeadLetters",
        "sum by (handler, group) (increase(eventbus_handler_dead_lettered_records_total[10m])) > 0", "0m", "ticket",
        "{{ $labels.handler }}: {{ $value }} records went to the dead letters: eventbus dlq groups",
    ),
    Alert(
        "EventbusCircuitIsOpen",
        "max by (handler, group) (eventbus_handler_circuit_open_ratio) == 1", "5m", "page",
        "{{ $labels.handler }}: nothing is handled while its circuit is open",
    ),
    Alert(
        "EventbusGroupRebalancesAllTheTime",
        "sum by (group) (increase(eventbus_group_rebalances_total[15m])) > 10", "0m", "ticket",
        "{{ $labels.group }}: {{ $value }} rebalances in 15 minutes; their causes are on the dashboard",
    ),
    Alert(
        "EventbusDiskIsSlow",
        "histogram_quantile(0.99, sum by (le, job) (rate(eventbus_log_flush_seconds_bucket[5m]))) > 0.5",
        "10m", "ticket",
        "{{ $labels.job }}: 1 of 100 flushes takes {{ $value | humanizeDuration }}",
    ),
    Alert(
        "EventbusOutboxIsLate",
        "max by (outbox) (eventbus_outbox_oldest_age_seconds) > 60", "5m", "page",
        "{{ $labels.outbox }}: the oldest event waits for {{ $value | humanizeDuration }}: eventbus outbox status",
    ),
    Alert(
        "EventbusBrokerIsAway",
        "max by (client_id, broker) (eventbus_broker_up) == 0", "5m", "ticket",
        "{{ $labels.client_id }} has no connection to broker {{ $labels.broker }}",
    ),
)  # fmt: skip
"""Alerts to check during the day, and those that justify waking a person."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard, for Grafana's import, which prompts for the Prometheus to use."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        for place, panel in enumerate(row):
            down, across = divmod(place, _PANELS_PER_ROW)
            panels.append(_panel(len(panels) + 1, panel, across * _WIDTH, top + down * _HEIGHT))
        top += -(-len(row) // _PANELS_PER_ROW) * _HEIGHT
    return {
        "title": "eventbus",
        "uid": "eventbus",
        "tags": ["eventbus"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": [_source(), _variable("handler"), _variable("group")]},
        "panels": panels,
    }


def _row(id: int, title: str, top: int) -> dict[str, Any]:
    place = {"h": 1, "w": _WIDTH * _PANELS_PER_ROW, "x": 0, "y": top}
    return {"id": id, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(id: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query, "legendFormat": name, "range": True}
            for place, (query, name) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(label: str) -> dict[str, Any]:
    query = f"label_values(eventbus_handler_handled_records_total, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def dashboard_json() -> str:
    """Return the dashboard as the file that Grafana imports."""
    return msgspec.json.format(msgspec.json.encode(dashboard()), indent=2).decode() + "\n"


def alert_rules() -> str:
    """Return the rules as a file for Prometheus's ``rule_files``. It is JSON, because every JSON document is YAML."""
    rules = [
        {
            "alert": one.name,
            "expr": one.expression,
            "for": one.lasting,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary},
        }
        for one in ALERTS
    ]
    groups = {"groups": [{"name": "eventbus", "rules": rules}]}
    return msgspec.json.format(msgspec.json.encode(groups), indent=2).decode() + "\n"
