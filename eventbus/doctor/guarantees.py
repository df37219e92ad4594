"""The guarantees of a handler, in words: pure functions of its facts."""

from __future__ import annotations

from eventbus.doctor.facts import Facts, HandlerFacts, RetryFacts
from eventbus.format import format_setting


def delivery(one: HandlerFacts) -> str:
    if one.tx:
        return "once in its database: what it writes there and the record's offset are one transaction (tx=)"
    match one.delivery:
        case "exactly-once":
            return (
                "exactly once in the log: what it publishes and the offsets of its records are one "
                "transaction, of up to "
                f"{one.transaction_records:,} records"
            )
        case "at-most-once":
            return "at most once: committed before the handler is called"
        case _ if one.ack == "manual":
            return "at least once: finished when record.ack() was called, committed after that"
        case _:
            return "at least once: committed after the handler, once what it published is stored"


def order(one: HandlerFacts) -> str:
    several = one.concurrency or 1
    unit = "batches" if one.batch else "records"
    match one.order:
        case "key":
            return f"{unit} of a key in order, up to {several} keys side by side; a record without a key waits for none"
        case "none":
            return f"none: up to {several} {unit} side by side"
        case "global":
            return f"all {unit} of the topic in order: it has one partition"
        case _:
            if not one.is_async and several == 1:
                return f"{unit} of a partition in order; one at a time in total, in one thread"
            parallelism = (
                "partitions side by side" if one.concurrency is None else f"up to {several} partitions side by side"
            )
            return f"{unit} of a partition in order, {parallelism}"


def duplicates(one: HandlerFacts) -> str:
    if one.tx:
        return "none in the database; what it does elsewhere (mails, requests) again for the record in flight"
    if one.delivery == "at-most-once":
        return f"none; a crash loses what was committed and not handled yet, up to {one.commit_every or 500:,} records"
    if one.delivery == "exactly-once":
        return (
            "none in the log, for readers of committed records; what it does elsewhere (databases, mails, requests) "
            f"again for up to {one.transaction_records:,} records of each partition"
        )
    since = f"finished in the last {format_setting(one.commit_interval_ms)}"
    if one.commit_every is not None:
        since += f", at most {one.commit_every:,} records"
    if one.is_ordered and one.ack == "auto":
        return f"after a crash: what was {since}, and what was in flight; after a clean stop: none"
    return (
        f"after a crash: what was {since}, and what was finished after a record that was not, up to "
        f"{one.max_unfinished:,} records of each partition"
    )


def failure(one: HandlerFacts) -> str:
    """Describe what happens to a record whose handler raises."""
    last = {
        "stop": "its partition stops, loudly; the others go on",
        "skip": "it is logged, and called at its next time"
        if one.is_firing
        else "it is logged and skipped: the record is lost",
        "crash": "the bus ends with the error",
    }[one.on_error]
    if one.problem:
        return f"cannot be said: {one.problem}"
    if one.retry is None:
        waits = one.delivery != "at-most-once" and not (one.is_firing and one.on_error == "skip")
        return f"{last}; an outage is waited for in its place" if waits else last
    steps = _ladder(one.retry)
    if one.retry.dead_letter_topic is not None:
        back = one.retry.redrive_topic
        steps.append(f"then to {one.retry.dead_letter_topic}{f' (redriven letters come in {back})' if back else ''}")
    else:
        steps.append(f"then {last}")
    return ", ".join(steps)


def _ladder(retry: RetryFacts) -> list[str]:
    if retry.at_once is None:
        return [f"as {retry.policy} decides"]
    steps = [f"{retry.at_once} more {'try' if retry.at_once == 1 else 'tries'} at once"] if retry.at_once else []
    if retry.decides_by_function:
        steps.append(f"then when its function of delays says, in {retry.retry_topic}")
    elif retry.delays_ms is not None:
        steps.append(f"then after {', '.join(map(format_setting, retry.delays_ms))} in {retry.retry_topic}")
    return steps or ["no further try"]


def crash(one: HandlerFacts) -> dict[str, str]:
    """Describe the effect of a crash of the process on a record: before its handler, in it, and after it."""
    again = "handled by the next owner of the partition"
    if one.delivery == "at-most-once" and not one.tx:
        lost = "lost, if its slice is committed"
        return {"before": lost, "in": "lost: it is committed", "after": "nothing: it is committed"}
    effects = {
        "before": again,
        "in": f"{again}: the handler begins again",
        "after": "handled again, unless its offset is committed",
    }
    if one.tx:
        effects["in"] = f"the database rolls back; {again}"
        effects["after"] = "nothing: its transaction holds the offset"
    elif one.delivery == "exactly-once":
        effects["in"] = f"its transaction is aborted, what it published stays invisible; {again}"
        effects["after"] = "nothing, once its transaction is committed; before that as in the handler"
    elif one.ack == "manual":
        effects["after"] = "handled again, unless it was acknowledged and committed"
    if one.retry is not None and one.retry.crashes is not None:
        effects["in"] += f"; after {one.retry.crashes} crashes it counts as failed"
    return effects


def rebalance(one: HandlerFacts) -> str:
    drain = format_setting(one.drain_timeout_ms)
    wait = f"a partition that moves is finished first: the record in flight has {drain} to end, then "
    fate = "lost, the rest of its slice is given back" if one.delivery == "at-most-once" else "handled again"
    wait += f"it is cancelled and {fate}" if one.is_async else f"it is not waited for, and {fate}"
    rest = "the others go on" if one.cooperative else "the others stop for that time"
    if one.group_instance_id is not None:
        return f"{wait}; {rest}; a restart within {format_setting(one.session_timeout_ms)} moves none (static member)"
    return f"{wait}; {rest}"


def commits(one: HandlerFacts) -> str:
    if one.tx:
        return "with each call, in the database; to the log only for show"
    if one.delivery == "exactly-once":
        return f"with each transaction, within {format_setting(one.transaction_timeout_ms)}"
    if one.delivery == "at-most-once":
        return f"before each slice of {one.commit_every or 500:,} records"
    every = f", or as soon as {one.commit_every:,} records are finished" if one.commit_every is not None else ""
    every = f"every {format_setting(one.commit_interval_ms)}{every}"
    return f"{every}; the finished beginning of each partition, never past a gap"


def durability(facts: Facts) -> str:
    """Describe what an acknowledged record survives."""
    if facts.scheme == "memory":
        return "in memory: nothing survives the process"
    if facts.acks == "0":
        return "acks=0: sends do not wait for records to be stored; a crash loses records in flight, unnoticed"
    if facts.scheme != "file":
        waits = "all replicas in sync have it" if facts.acks == "all" else "the leader has it; a failover may lose it"
        return f"acks={facts.acks}: acknowledged when {waits}"
    if facts.acks == "1":
        return "acks=1: acknowledged when written; a power cut loses the last moments"
    return {
        "commit": "fsync=commit: an acknowledged record survives a power cut",
        "interval": f"fsync=interval: a power cut loses at most the last {facts.fsync_interval_ms} ms",
    }.get(facts.fsync, "fsync=os: a power cut loses what the system had not written yet, 5 to 30 s")
