"""The rules: contradictions in a bus's facts, probable mistakes, and useful information. One function each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from eventbus.doctor.facts import Facts, HandlerFacts
from eventbus.doctor.report import Finding, Severity
from eventbus.format import format_setting
from eventbus.suggest import nearest
from eventbus.topic_patterns import matches

Rule = Callable[[Facts], Iterator[Finding]]
_LONG_WINDOW_MS = 5_000
_LITTLE_SPACE, _VERY_LITTLE_SPACE = 0.10, 0.01
_ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "info": 2}


def findings_of(facts: Facts) -> list[Finding]:
    """Apply all rules; return their findings, the most severe first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda one: _ORDER[one.severity])


def _reads(one: HandlerFacts, topic: str) -> bool:
    if one.pattern is None:
        return topic in one.topics
    return matches(one.pattern, topic)


# start errors --------------------------------------------------------------------------------------------------------


def problems(facts: Facts) -> Iterator[Finding]:
    for problem in facts.problems:
        yield Finding("error", "cannot-start", "bus", problem)
    for one in facts.handlers:
        if one.problem:
            yield Finding("error", "cannot-start", one.name, one.problem)
    for note in facts.notes:
        yield Finding("warning", "unknown-name", "configuration", note)


def shared_topics(facts: Facts) -> Iterator[Finding]:
    known = {*facts.topics, *(topic for one in facts.handlers for topic in one.topics)}
    for one, other in combinations(facts.handlers, 2):
        if one.group != other.group:
            continue
        both = sorted(topic for topic in known if _reads(one, topic) and _reads(other, topic))
        if both or (one.pattern is not None and one.pattern == other.pattern):
            yield Finding(
                "error", "shared-group", f"{one.name}, {other.name}",
                f"both read {both[0] if both else one.reads} as the group {one.group}: each would get the "
                "records of some "
                "partitions only. Give each a separate group, or share the work with concurrency= in one",
            )  # fmt: skip


def names_twice(facts: Facts) -> Iterator[Finding]:
    for name, count in Counter(one.name for one in facts.handlers).items():
        if count > 1:
            own = " (also of the groups that are named after them)" if any(
                one.name == name and not one.group_is_said for one in facts.handlers
            ) else ""  # fmt: skip
            yield Finding(
                "warning", "name-twice", name,
                f"{count} handlers have this name{own}: metrics, logs and the configuration file cannot tell "
                "them apart; "
                "say name= in the decorator",
            )  # fmt: skip


def static_members(facts: Facts) -> Iterator[Finding]:
    instance_counts = Counter(
        (one.group, one.group_instance_id) for one in facts.handlers if one.group_instance_id is not None
    )
    for (group, instance), count in instance_counts.items():
        if count > 1:
            yield Finding(
                "error", "static-id-twice", f"group {group}",
                f"{count} handlers are its member group_instance_id={instance!r}: each would fence the other",
            )  # fmt: skip
    for one in facts.handlers:
        if one.group_instance_id is not None:
            yield Finding(
                "info", "static-member", one.name,
                f"group_instance_id={one.group_instance_id!r} has to be another one in each process of the "
                "service: two "
                "with the same fence each other",
            )  # fmt: skip


def global_order(facts: Facts) -> Iterator[Finding]:
    topics = {**facts.topics, **(facts.log.topics if facts.log else {})}
    for one in facts.handlers:
        for topic, partitions in topics.items():
            if one.order == "global" and partitions > 1 and _reads(one, topic):
                yield Finding(
                    "error", "global-order", one.name,
                    f"order='global', and {topic} has {partitions} partitions, which have no order among them: one "
                    "partition, or order='partition' with the key that must be in order",
                )  # fmt: skip


# loss and duplicates ------------------------------------------------------------------------------------------------


def acks(facts: Facts) -> Iterator[Finding]:
    strict = [one.name for one in facts.handlers if one.delivery == "exactly-once"]
    if facts.acks != "all":
        what = "is not waited for" if facts.acks == "0" else "is not stored everywhere when it is acknowledged"
        yield Finding(
            "warning", "weak-acks", "acks", f"acks={facts.acks}: what the bus sends {what}, and may be lost; "
            "leave it out",
        )  # fmt: skip
        if strict:
            yield Finding(
                "warning", "acks-and-exactly-once", ", ".join(strict),
                f"exactly_once publishes with acks='all' whatever the bus says; acks={facts.acks} holds for the rest "
                "of what it sends. Leave it out: the two contradict each other",
            )  # fmt: skip
    for one in facts.producers:
        if one.acks != "all" and facts.acks == "all":
            yield Finding("warning", "weak-acks", one.name, f"acks={one.acks}: what it publishes may be lost")


def flushes(facts: Facts) -> Iterator[Finding]:
    if facts.scheme != "file" or facts.fsync == "commit":
        return
    careful = [one.name for one in facts.handlers if one.delivery == "exactly-once" or one.tx]
    text = f"fsync={facts.fsync}: a power cut loses records that were acknowledged"
    if careful:
        yield Finding(
            "warning", "weak-fsync", ", ".join(careful),
            f"{text}, so neither exactly once nor a database's transaction holds over it; fsync='commit' is "
            "the default",
        )  # fmt: skip
    else:
        yield Finding("info", "weak-fsync", "fsync", f"{text}; the process's own death loses none")


def failures(facts: Facts) -> Iterator[Finding]:
    for one in facts.handlers:
        retry = one.retry
        dead = None if retry is None else retry.dead_letter_topic
        if retry is not None and dead is not None and retry.at_once == 0 and retry.retry_topic is None:
            yield Finding(
                "warning", "dead-letters-without-retry", one.name,
                "dead_letter= without retry=: the first failure is the last one, also where a database was away for a "
                "second; say retry=Retry(), or a number of tries",
            )  # fmt: skip
        if dead is None and one.on_error == "skip" and not one.is_firing:
            yield Finding(
                "warning", "skips", one.name,
                "on_error='skip' without dead letters: a record that fails is lost but for a line in the log; "
                "dead_letter=True keeps it",
            )  # fmt: skip
        if retry is not None and retry.retry_topic is not None and retry.order == "none" and one.is_ordered:
            yield Finding(
                "warning", "retry-overtaken", one.name,
                f"order={one.order!r}, and records that wait for a later try are overtaken (order 'none' of "
                "its retry); "
                'Retry(order="key") keeps the order of keys',
            )  # fmt: skip


def windows(facts: Facts) -> Iterator[Finding]:
    for one in facts.handlers:
        is_windowed = one.delivery == "at-least-once" and not one.tx and one.commit_every is None
        if is_windowed and one.commit_interval_ms > _LONG_WINDOW_MS:
            yield Finding(
                "warning", "long-window", one.name,
                f"commit_interval_ms={one.commit_interval_ms:,}: a crash repeats the work of "
                f"{format_setting(one.commit_interval_ms)}; 100 is the default and costs next to nothing",
            )  # fmt: skip
        if one.delivery == "exactly-once" and one.publishes is None and not one.takes_transaction:
            yield Finding(
                "info", "exactly-once-of-nothing", one.name,
                "exactly_once=True, and nothing declares that it publishes. What it sends with bus.send counts once. "
                "What it does outside of the log may happen again: use tx= for a database",
            )  # fmt: skip
        if one.delivery == "at-least-once" and one.publishes is not None and not one.tx:
            yield Finding(
                "info", "outputs-twice", one.name,
                f"after a crash some of what it publishes to {one.publishes} is there twice; "
                "exactly_once=True prevents it",
            )  # fmt: skip


# order and time ------------------------------------------------------------------------------------------------------


def keys(facts: Facts) -> Iterator[Finding]:
    by_topic: dict[str, list[bool]] = {}
    for producer in facts.producers:
        by_topic.setdefault(producer.topic, []).append(producer.has_key)
    for one in facts.handlers:
        for topic, keyed in by_topic.items():
            if not _reads(one, topic):
                continue
            if one.order == "key" and not any(keyed):
                yield Finding(
                    "warning", "order-without-keys", one.name,
                    f"order='key', and no @producer of {topic} sets a key: a record without one waits for "
                    "none, so they "
                    "have no order; say key= there",
                )  # fmt: skip
            if one.order == "none" and all(keyed) and (one.concurrency or 1) > 1:
                yield Finding(
                    "warning", "keys-without-order", one.name,
                    f"order='none' with concurrency={one.concurrency}, and {topic} has keys: records of a key are "
                    "handled side by side, the last one to finish wins; order='key' keeps each key's order",
                )  # fmt: skip


def times(facts: Facts) -> Iterator[Finding]:
    for one in facts.handlers:
        if one.drain_timeout_ms > one.max_poll_interval_ms:
            yield Finding(
                "warning", "drain-too-long", one.name,
                f"drain_timeout_ms={one.drain_timeout_ms:,} is more than max_poll_interval_ms="
                f"{one.max_poll_interval_ms:,}, as long as a rebalance waits: its partitions would go while the record "
                "is at work, and it is handled twice",
            )  # fmt: skip
        seconds = one.timeout_seconds
        if seconds is None:
            continue
        if seconds * 1_000 > one.max_poll_interval_ms:
            yield Finding(
                "warning", "timeout-too-long", one.name,
                f"timeout={seconds:g} s is more than max_poll_interval_ms={one.max_poll_interval_ms:,}: a rebalance "
                "waits no longer than that for a call; shorten the former or lengthen the latter",
            )  # fmt: skip
        elif seconds * 1_000 > one.drain_timeout_ms:
            yield Finding(
                "info", "timeout-and-drain", one.name,
                f"timeout={seconds:g} s is more than drain_timeout_ms={one.drain_timeout_ms:,}: when its "
                "partition moves "
                "a call is cancelled earlier than by its own limit",
            )  # fmt: skip
        if one.delivery == "exactly-once" and seconds * 1_000 > one.transaction_timeout_ms:
            yield Finding(
                "warning", "timeout-and-transaction", one.name,
                f"timeout={seconds:g} s is more than transaction_timeout_ms={one.transaction_timeout_ms:,}: the log "
                "aborts the transaction before the call is given up",
            )  # fmt: skip


def threads(facts: Facts) -> Iterator[Finding]:
    for one in facts.handlers:
        for call in one.blocking_calls:
            yield Finding(
                "warning", "blocks-the-loop", one.name,
                f"calls {call} in an async def: every handler of the process stands still meanwhile. Use what can be "
                "awaited, or make it a plain def: that runs in a thread",
            )  # fmt: skip
        if not one.is_async and one.concurrency is None:
            yield Finding(
                "info", "one-thread", one.name,
                "a plain def without concurrency= runs in one thread: one record at a time over all partitions",
            )  # fmt: skip
    if facts.slow_loop_ms is None:
        yield Finding("info", "slow-loop-off", "slow_loop_ms", "None: code that blocks the event loop is not reported")


# topics and groups --------------------------------------------------------------------------------------------------


def ends(facts: Facts) -> Iterator[Finding]:
    """Find topics that this bus only reads or only writes. The other side may be in another service."""
    produced = {one.topic for one in facts.producers}
    for one in facts.handlers:
        for topic in one.topics:
            if topic in produced or one.is_firing:
                continue
            slip = nearest(topic, produced - set(one.topics))
            if slip and topic not in facts.topics:
                yield Finding(
                    "warning", "misspelt-topic", one.name, f"reads {topic}, which nobody here publishes{slip}"
                )
            else:
                yield Finding(
                    "info", "nobody-produces", topic, f"{one.name} reads it; no @producer of this bus writes it"
                )
    for topic in sorted(produced):
        if not any(_reads(one, topic) for one in facts.handlers):
            yield Finding("info", "nobody-consumes", topic, "published here; no handler of this bus reads it")
    if facts.auto_create_topics:
        yield Finding(
            "info",
            "auto-create",
            "auto_create_topics",
            "True: a mistyped topic is created and stays empty, not refused",
        )
    if facts.scheme == "memory":
        yield Finding("info", "memory", "url", "memory:// is gone with the process; file://DIR keeps it")


def security(facts: Facts) -> Iterator[Finding]:
    if facts.secret_in_url:
        yield Finding(
            "warning", "secret-in-url", "url",
            "the URL in the program contains a password: EVENTBUS_SASL_PASSWORD_FILE=/run/secrets/... "
            "keeps it out",
        )  # fmt: skip
    if facts.scheme != "kafka":
        return
    if facts.security_protocol == "SASL_PLAINTEXT" and facts.mechanism in ("", "PLAIN", "OAUTHBEARER"):
        yield Finding(
            "warning", "password-in-clear", "security_protocol",
            "SASL_PLAINTEXT sends the password unencrypted over the network: SASL_SSL",
        )  # fmt: skip
    if not facts.verifies_certificates:
        yield Finding(
            "warning", "certificates", "enable_ssl_certificate_verification",
            "false: anybody between the service and the cluster may read and change everything",
        )  # fmt: skip


# facts of the log ---------------------------------------------------------------------------------------------------


def asked(facts: Facts) -> Iterator[Finding]:
    log = facts.log
    if log is None:
        return
    if log.problem:
        yield Finding("error", "log", facts.url, log.problem)
        return
    yield from _directory(facts)
    made = {*facts.topics}
    for one in facts.handlers:
        for topic in one.topics:
            if topic not in log.topics and topic not in made and not facts.auto_create_topics:
                near = nearest(topic, log.topics)
                yield Finding(
                    "error", "missing-topic", one.name,
                    f"there is no topic {topic}{near}; declare it with bus.topic({topic!r}), or create it: eventbus "
                    f"topics create {topic}",
                )  # fmt: skip
        yield from _room(facts, one)
    for topic, partitions in facts.topics.items():
        there = log.topics.get(topic)
        if there is not None and partitions not in (-1, there):
            yield Finding(
                "warning", "other-partitions", topic,
                f"declared with {partitions} partitions, and it has {there}: an existing topic is left unchanged",
            )  # fmt: skip


def _room(facts: Facts, one: HandlerFacts) -> Iterator[Finding]:
    """Check that there are enough partitions for the concurrency."""
    assert facts.log is not None
    counts = [count for topic, count in facts.log.topics.items() if _reads(one, topic)]
    if not counts:
        return
    if one.is_ordered and one.concurrency is not None and one.concurrency > sum(counts):
        yield Finding(
            "warning", "idle-concurrency", one.name,
            f"concurrency={one.concurrency}, and {one.reads} has {sum(counts)} partition(s), whose records "
            "are handled in order: no more than that are in flight; order='key', or more partitions",
        )  # fmt: skip
    members = facts.log.members.get(one.group, 0)
    if members >= sum(counts):
        yield Finding(
            "warning", "idle-members", one.name,
            f"group {one.group} has {members} member(s) now, and {one.reads} has {sum(counts)} partition(s): one more "
            "would have nothing to do",
        )  # fmt: skip


def _directory(facts: Facts) -> Iterator[Finding]:
    log = facts.log
    assert log is not None
    if not log.directory:
        return
    if not log.writable:
        yield Finding("error", "permissions", log.directory, "this user may not write there, and a log is written to")
    if not log.exists:
        yield Finding("info", "new-log", log.directory, "does not exist yet; the bus makes it when it starts")
    if log.locked_by:
        yield Finding(
            "warning", "locked", log.directory,
            f"{log.locked_by}. A second bus in another process cannot start on it; `eventbus serve` shares a log",
        )  # fmt: skip
    if log.free_bytes is not None and log.total_bytes:
        share = log.free_bytes / log.total_bytes
        if share < _LITTLE_SPACE:
            severity: Severity = "error" if share < _VERY_LITTLE_SPACE else "warning"
            yield Finding(
                severity, "disk-almost-full", log.directory,
                f"{log.free_bytes / 1e9:.1f} GB free, {share:.0%} of the disk: a full one refuses records "
                "until there is "
                "room; retention.bytes bounds a topic",
            )  # fmt: skip


RULES: Final[tuple[Rule, ...]] = (
    problems,
    shared_topics,
    names_twice,
    static_members,
    global_order,
    acks,
    flushes,
    failures,
    windows,
    keys,
    times,
    threads,
    ends,
    security,
    asked,
)
