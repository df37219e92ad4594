"""The dashboard and the alerts name only what the code emits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from eventbus.cli import main
from eventbus.client.metrics import Sample
from eventbus.telemetry.dashboard import ALERTS, ROWS, alert_rules, dashboard, dashboard_json
from tests.telemetry.everything import everything

pytestmark = pytest.mark.system

OF_PROMETHEUS = {"job", "instance"}
"""Labels that whoever scrapes adds."""
METRIC = re.compile(r"\b(eventbus_[a-z0-9_]+)(?:\{([^}]*)\})?")
NAMED = re.compile(r"\bby \(([^)]*)\)")
SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}")


def queries() -> list[tuple[str, str]]:
    """PromQL, each with what names its lines."""
    of_panels = [query for _, row in ROWS for panel in row for query in panel.queries]
    return of_panels + [(alert.expression, alert.summary.replace("{{ $value", "{{ VALUE")) for alert in ALERTS]


def emitted() -> dict[str, Sample]:
    return {one.name: one for one in everything()}


def unknown_in(query: str, shown: str, samples: dict[str, Sample]) -> list[str]:
    """Metrics that are not emitted, labels that they have not, and names of lines that the query does not keep."""
    found = METRIC.findall(query)
    wrong = [name for name, _ in found if name not in samples]
    labels = {label for name, _ in found if name in samples for label in samples[name].labels} | OF_PROMETHEUS
    for _, selected in found:
        wrong += [label for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected) if label not in labels]
    kept = {label.strip() for names in NAMED.findall(query) for label in names.split(",")}
    wrong += sorted(kept - labels)
    wrong += [label for label in SHOWN.findall(shown) if label not in kept]
    assert found, query
    return wrong


def test_every_metric_and_label_of_the_dashboard_and_the_alerts_is_emitted() -> None:
    samples = emitted()
    assert {query: wrong for query, shown in queries() if (wrong := unknown_in(query, shown, samples))} == {}
    of_variables = [one["query"]["query"] for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    for query in of_variables:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert found is not None and found[2] in samples[found[1]].labels


@pytest.mark.parametrize(
    ("query", "shown", "wrong"),
    [
        ("sum(eventbus_handler_lags)", "", ["eventbus_handler_lags"]),
        ('eventbus_handler_at_work{topic="a"}', "", ["topic"]),
        ("sum by (outbox) (eventbus_handler_at_work)", "", ["outbox"]),
        ("sum by (handler) (eventbus_handler_at_work)", "{{handler}} {{group}}", ["group"]),
    ],
)
def test_what_is_not_emitted_is_found(query: str, shown: str, wrong: list[str]) -> None:
    assert unknown_in(query, shown, emitted()) == wrong


def test_only_buckets_are_asked_for_quantiles_and_only_counters_for_rates() -> None:
    samples = emitted()
    for query, _ in queries():
        for metric in re.findall(r"(?:rate|increase)\((\w+)", query):
            assert samples[metric].kind in ("counter", "histogram"), query
        if "histogram_quantile" in query:
            assert all(name.endswith("_bucket") for name, _ in METRIC.findall(query)) and "by (le" in query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board: dict[str, Any] = json.loads(dashboard_json())
    assert board["schemaVersion"] >= 36 and board["uid"] == "eventbus" and "id" not in board
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "timeseries":
            assert panel["targets"] and panel["datasource"]["uid"] == "${source}"
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert [one["name"] for one in board["templating"]["list"]] == ["source", "handler", "group"]


def test_the_metrics_that_a_service_is_run_by_are_on_the_dashboard() -> None:
    shown = {name for query, _ in queries() for name, _ in METRIC.findall(query)}
    for metric in (
        "handler_lag_records", "handler_oldest_unfinished_age_seconds", "handler_at_work",
        "handler_call_seconds_bucket", "handler_commit_seconds_bucket", "group_rebalances_total",
        "log_flush_seconds_bucket", "outbox_backlog_events",
        "handler_retry_waiting_records", "handler_dead_lettered_records_total", "handler_circuit_open_ratio",
    ):  # fmt: skip
        assert f"eventbus_{metric}" in shown


def test_the_command_writes_both_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["telemetry", "dashboard"]) == 0
    assert json.loads(capsys.readouterr().out) == dashboard()
    assert main(["telemetry", "alerts"]) == 0
    written = capsys.readouterr().out
    assert written == alert_rules()
    (group,) = json.loads(written)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [one.name for one in ALERTS]
    assert all(re.fullmatch(r"\d+m", rule["for"]) and rule["annotations"]["summary"] for rule in group["rules"])
