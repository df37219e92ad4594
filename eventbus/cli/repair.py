"""``eventbus log repair DIR``: show what giving up damaged bytes costs, and do it when asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from eventbus.cli.output import Output
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.log.repair import KnownTransaction, PartitionPlan, Plan
    from eventbus.log.storage import Storage

_STATES: dict[str, Literal["open", "committed", "aborted", "none"]] = {
    "ONGOING": "open",
    "PREPARE_COMMIT": "open",  # the next start writes its markers
    "PREPARE_ABORT": "open",
    "PREPARE_EPOCH_FENCE": "open",
    "COMPLETE_COMMIT": "committed",
    "COMPLETE_ABORT": "aborted",
}


def repair(directory: str, out: Output, *, execute: bool) -> int:
    """Plan the repair of a directory, or carry it out. Return the exit code."""
    from eventbus.log import repair as log_repair
    from eventbus.log.storage import FileStorage, storage_error

    storage = FileStorage(directory, read_only=not execute)
    if not storage.exists(""):
        raise ConfigError(f"There is no directory {storage.root}. Name the directory of a log.")
    side = ""
    if execute:
        storage.lock()
    try:
        transactions = _transactions(storage)
        if execute:
            plan, side = log_repair.execute(storage, transactions)
        else:
            plan = log_repair.plan(storage, transactions)
    except OSError as error:
        raise storage_error(error, f"repairing {storage.root}") from error
    finally:
        storage.unlock()
    if out.json:
        out.data({**msgspec.to_builtins(plan), "executed": execute, "side_folder": side or None})
    else:
        _show(out, plan, side, execute=execute)
    return 1 if not (execute or plan.is_empty) else 0


def _show(out: Output, plan: Plan, side: str, *, execute: bool) -> None:
    if plan.is_empty:
        out.line(f"{plan.directory}: no damage, nothing to repair")
        return
    out.table(
        ["partition", "places", "lost offsets", "cut bytes", "transactions"],
        [
            (
                str(each.topic_partition), len(each.holes), each.lost_offsets, each.cut_bytes, len(each.transactions),
            )
            for each in plan.partitions
        ],
    )  # fmt: skip
    for each in plan.partitions:
        for text in _remarks(each):
            out.note(text)
    for name, why in plan.files.items():
        out.note(f"{name} is moved to the side folder: {why}")
    if execute:
        out.line(f"{plan.directory} is repaired. What was cut is in {plan.directory}/{side}")
    else:
        out.line(
            f"Nothing was changed. Copy {plan.directory} first; then `eventbus log repair {plan.directory} --execute` "
            "does what is shown above, with the log stopped"
        )


def _remarks(partition: PartitionPlan) -> list[str]:
    remarks = [
        f"{hole.path} at position {hole.position}: {hole.what}; "
        + (
            f"offsets {hole.first_offset} to {hole.end_offset - 1} are lost"
            if hole.end_offset > hole.first_offset
            else "no offset is lost"
        )
        for hole in partition.holes
    ]
    remarks += [f"{path} replaces nothing, and is moved to the side folder" for path in partition.leftovers]
    if partition.missing:
        remarks.append(f"{partition.topic_partition}: {partition.missing}; the log goes on without them")
    return remarks + partition.transactions


def _transactions(storage: Storage) -> dict[int, KnownTransaction]:
    """Read the last record of every producer id from ``__transaction_state``, as far as it can be read."""
    from eventbus.coordinator.transaction_codec import decode_transaction_key, decode_transaction_value
    from eventbus.log.inspect import BatchLine, dump_segment
    from eventbus.log.metadata import parse_directory
    from eventbus.log.repair import KnownTransaction

    known: dict[int, KnownTransaction] = {}
    for directory in storage.listdir(""):
        where = parse_directory(directory)
        if where is None or where.topic != "__transaction_state":
            continue
        for name in storage.listdir(directory):
            if not name.endswith(".log") or not name[:-4].isdecimal():
                continue
            for line in dump_segment(f"{storage.describe()}/{directory}/{name}", records=True):
                for record in (line.records or ()) if isinstance(line, BatchLine) else ():
                    try:
                        transactional_id = decode_transaction_key(record.key or b"")
                        value = decode_transaction_value(record.value) if record.value is not None else None
                    except ValueError:
                        continue  # damaged, or of a newer version
                    if value is not None:
                        state = _STATES.get(value.state.name, "none")
                        known[value.producer_id] = KnownTransaction(transactional_id, value.producer_epoch, state)
    return known
