"""Gather the facts of a bus that is declared and not started. Sends no requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eventbus.backends.masking import shown_url
from eventbus.backends.urls import split_url
from eventbus.client.bus import EventBus
from eventbus.client.config import consumer_settings, producer_settings
from eventbus.client.configuration.resolution import about_handlers, query_of
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.coordinator.strategies import make_assignors
from eventbus.doctor.blocking import blocking_calls
from eventbus.doctor.facts import Facts, HandlerFacts, ProducerFacts, RetryFacts
from eventbus.errors import ConfigError
from eventbus.recovery import FailurePolicy, Handling, ShowsTries, redrive_topic_of
from eventbus.settings.setting import as_keyword
from eventbus.settings.table import rows


def facts_of(bus: EventBus) -> Facts:
    """Return the facts of a bus that does not run. Errors that would prevent its start are included, not raised."""
    configuration = bus.context.configuration
    log = {name: row.default for name, row in rows("log").items()}
    log |= {as_keyword(key): value for key, value in configuration.settings.log.items()} | query_of(bus.url)
    problems: list[str] = []
    handlers = list(bus.context.handlers)
    try:
        handlers = bus.context.handlers_in_force()
    except ConfigError as error:
        problems.append(str(error))
    for check in (bus.context.check_names, bus.context.schema_uses):
        try:
            check()
        except ConfigError as error:
            problems.append(str(error))
    names = [handler.__name__ for handler in handlers]
    return Facts(
        url=shown_url(bus.url),
        scheme=split_url(bus.url)[0],
        client_id=bus.context.client_id,
        acks=_acks(configuration.settings.producers),
        fsync=str(log["fsync"]),
        fsync_interval_ms=int(rows("log")["fsync_interval_ms"].read(log["fsync_interval_ms"])),
        auto_create_topics=rows("log")["auto_create_topics"].read(log["auto_create_topics"]),
        slow_loop_ms=configuration.slow_loop_ms,
        security_protocol=str(log.get("security_protocol", "")).upper(),
        mechanism=str(log.get("sasl_mechanism", "")).upper(),
        verifies_certificates=str(log.get("enable_ssl_certificate_verification", True)).lower() not in ("false", "0"),
        secret_in_url="url" in configuration.keywords and shown_url(bus.url) != bus.url,
        handlers=tuple(_handler(bus, handler) for handler in handlers),
        producers=tuple(_producer(one, configuration.settings.producers) for one in bus.context.producer_functions),
        topics={name: spec.partitions for name, spec in bus.context.topics.items()},
        notes=(*configuration.outside.unknown.values(), *about_handlers(configuration.outside.handlers, names)),
        problems=tuple(problems),
    )


def _acks(config: Mapping[str, Any]) -> str:
    return {-1: "all"}.get(acks := producer_settings(config).config.acks, str(acks))


def _producer(function: ProducerFunction[..., Any, Any], config: Mapping[str, Any]) -> ProducerFacts:
    spec = function.spec
    return ProducerFacts(
        name=function.__name__,
        topic=spec.topic,
        has_key=spec.key is not None,
        acks=_acks({**config, **spec.config}),
    )


_OPTIONS = (
    "topics", "pattern", "order", "concurrency", "delivery", "ack", "commit_every", "commit_interval_ms",
    "max_unfinished", "transaction_records", "transaction_timeout_ms", "drain_timeout_ms", "is_firing", "on_error",
)  # fmt: skip
"""Options of handlers that are facts without conversion."""


def _handler(bus: EventBus, handler: Handler[Any, Any]) -> HandlerFacts:
    spec, signature, group = handler.spec, handler.signature, bus.context.group_of(handler)
    retry, problem = None, ""
    try:
        consumer = consumer_settings(
            {**bus.context.configuration.settings.consumers, "group": group, **spec.consumer_options()}
        )
        retry = None if spec.retry is None else _retry(spec.retry, bus, handler, group)
    except ConfigError as error:
        problem = str(error)
        consumer = consumer_settings({"group": group})
    assignors = make_assignors(consumer.assignors)
    return HandlerFacts(
        **{option: getattr(spec, option) for option in _OPTIONS},
        name=handler.__name__,
        place=_place(handler),
        group=group,
        group_is_said=spec.group is not None,
        publishes=None if handler.producer is None else handler.producer.spec.topic,
        takes_transaction=signature.transaction_name is not None,
        is_async=signature.is_async,
        batch=bool(spec.batch),
        timeout_seconds=spec.timeout,
        tx=spec.tx is not None,
        retry=retry,
        problem=problem,
        session_timeout_ms=consumer.session_timeout_ms,
        max_poll_interval_ms=consumer.max_poll_interval_ms,
        group_instance_id=consumer.group_instance_id,
        cooperative=all(assignor.protocol == "cooperative" for assignor in assignors),
        starts_at=str(spec.start),
        blocking_calls=blocking_calls(handler.undecorated) if signature.is_async else (),
    )


def _place(handler: Handler[Any, Any]) -> str:
    code = getattr(handler.undecorated, "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _retry(policy: FailurePolicy, bus: EventBus, handler: Handler[Any, Any], group: str) -> RetryFacts:
    """Return what the policy decides at a start, and its tries if it shows them."""
    recovery = policy.open(Handling.of(handler, group, bus.context.client_id))
    tries = policy.retry if isinstance(policy, ShowsTries) else None
    is_alone = [bus.context.group_of(one) for one in bus.context.handlers].count(group) == 1
    return RetryFacts(
        at_once=None if tries is None else tries.immediate,
        delays_ms=None if tries is None else tries.delays_ms,
        decides_by_function=tries is not None and tries.delay_function is not None,
        retry_topic=recovery.retry_topic,
        redrive_topic=redrive_topic_of(policy, group) if is_alone else None,
        dead_letter_topic=recovery.dead_letter_topic,
        order=recovery.order,
        crashes=recovery.crashes,
        policy=repr(policy) if tries is None else "",
    )
