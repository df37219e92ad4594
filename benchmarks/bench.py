"""Measure the figures of docs/internals/reports/benchmarks.md beside their peers and print one table.

python benchmarks/bench.py [--wire | --kafka | --registry | --failures | --outbox | --spark]
                                  [--quick] [--only E1,G4] [--rounds 5] [--dir FOLDER] [--markdown PAGE]
                                  [--against [COMMIT]] [--history FILE]

Each run appends a JSON line with its figures to the history, `benchmarks/history.jsonl`.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import bus
import core
import groups
import growth
import handlers
import history
import kafka_consume
import kafka_mirror
import kafka_produce
import opening
import peers
import transactions
import wire
from bench_avro import AVRO_FIGURES
from bench_compat import COMPAT_FIGURES
from bench_dead_letters import DEAD_LETTER_FIGURES
from bench_failures import FAILURE_FIGURES
from bench_registry import REGISTRY_FIGURES
from bench_retries import RETRY_FIGURES
from figures import FIGURES, KAFKA_FIGURES, WIRE_FIGURES
from harness import CASES, Row, judge, markdown_table, plain_table, run_cases, run_here
from kafka_broker import one_broker
from outbox_databases import database_servers
from outbox_inbox import INBOX_FIGURES
from outbox_latency import LATENCY_FIGURES
from outbox_relay import RELAY_FIGURES
from outbox_writing import WRITING_FIGURES
from programs import PROGRAM_FIGURES
from scheduling import SCHEDULING_FIGURES
from spark_databases import DATABASE_FIGURES
from spark_decoding import DECODING_FIGURES
from spark_kafka import SPARK_KAFKA_FIGURES
from spark_landing import LANDING_FIGURES
from telemetry import TELEMETRY_FIGURES

OWN_FIGURES = FIGURES + TELEMETRY_FIGURES + SCHEDULING_FIGURES
CLUSTER_FIGURES = KAFKA_FIGURES + PROGRAM_FIGURES
SCHEMA_FIGURES = AVRO_FIGURES + REGISTRY_FIGURES + COMPAT_FIGURES
LOOP_FIGURES = sorted(FAILURE_FIGURES + RETRY_FIGURES + DEAD_LETTER_FIGURES, key=lambda figure: figure.id)
OUTBOX_FIGURES = sorted(WRITING_FIGURES + RELAY_FIGURES + LATENCY_FIGURES + INBOX_FIGURES, key=lambda figure: figure.id)
SPARK_FIGURES = sorted(
    LANDING_FIGURES + SPARK_KAFKA_FIGURES + DECODING_FIGURES + DATABASE_FIGURES, key=lambda figure: figure.id
)
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def machine() -> str:
    cores = os.cpu_count()
    processor = platform.processor() or platform.machine()
    names = Path("/proc/cpuinfo")
    if names.exists():
        found = [
            line.partition(":")[2].strip() for line in names.read_text("utf-8").splitlines() if "model name" in line
        ]
        processor = found[0] if found else processor
    return f"{cores} cores, {processor}, {platform.system()} {platform.release()}, CPython {platform.python_version()}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: does it all run?")
    parser.add_argument("--only", default="", help="figures to measure, by id: E1,G4")
    parser.add_argument("--wire", action="store_true", help="the figures of `eventbus serve`, beside Apache Kafka")
    parser.add_argument("--registry", action="store_true", help="the figures of the schema registry")
    parser.add_argument("--failures", action="store_true", help="the figures of retries and dead letters")
    parser.add_argument("--outbox", action="store_true", help="the figures of outbox and inbox, on three databases")
    parser.add_argument("--spark", action="store_true", help="the figures of Spark's source and sinks")
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="the figures of kafka:// and of whole programs, compared with clients of a Kafka",
    )
    parser.add_argument("--rounds", type=int, help="rounds of every case (default: 5; 1 with --quick)")
    parser.add_argument(
        "--dir", help="folder to write in; name a disk, not a memory file system (default: the system's)"
    )
    parser.add_argument("--markdown", type=Path, help="write the table between the marks of this page")
    parser.add_argument(
        "--against", nargs="?", const="", metavar="COMMIT",
        help="print the figures that moved by more than 10 %% relative to their peer since they were last measured, or "
        "since they were measured at a commit",
    )  # fmt: skip
    parser.add_argument("--history", type=Path, default=history.HISTORY, help="the file of former runs (%(default)s)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_page(path: Path, rows: list[Row], head: str) -> None:
    """Replace what stands between the marks; the rest of the page is written by hand."""
    before, begin, rest = path.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{path} has no line {BEGIN} and {END}: put them where the table belongs")
    path.write_text(f"{before}{BEGIN}\n{head}\n\n{markdown_table(rows)}\n{END}{after}", "utf-8")


def main() -> None:
    chosen = options()
    if chosen.dir:
        os.environ["BENCH_DIR"] = str(Path(chosen.dir).resolve())
    if chosen.child:
        run_here(chosen.child, chosen.n)
        return
    wanted = {name.strip().lower() for name in chosen.only.split(",") if name.strip()}
    known = CLUSTER_FIGURES if chosen.kafka else WIRE_FIGURES if chosen.wire else OWN_FIGURES
    known = SCHEMA_FIGURES if chosen.registry else LOOP_FIGURES if chosen.failures else known
    known = OUTBOX_FIGURES if chosen.outbox else SPARK_FIGURES if chosen.spark else known
    figures = [figure for figure in known if not wanted or figure.id.lower() in wanted]
    if not figures:
        sys.exit(f"no figure {chosen.only!r}; there are {', '.join(figure.id for figure in known)}")
    places = [place for figure in figures for place in (figure.ours, figure.beside) if place]
    names = list(dict.fromkeys(place.rpartition(":")[0] for place in places))
    unknown = [name for name in names if name not in CASES]
    if unknown:
        sys.exit(f"figures.py names cases that do not exist: {unknown}")
    rounds = chosen.rounds or (1 if chosen.quick else 5)

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif ", 1/" in text:
            print(text, file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers end with the run, however it ends
    begin = time.monotonic()
    with_kafka = chosen.kafka or "spark beside Kafka" in names
    with one_broker() if with_kafka else nullcontext(), database_servers(names):
        outcomes = run_cases(__file__, names, rounds, chosen.quick, say)
    rows = [judge(figure, outcomes) for figure in figures]
    say("")
    size = "small sizes (--quick)" if chosen.quick else "full sizes"
    head = (
        f"{time.strftime('%Y-%m-%d')}, {machine()}; {rounds} round(s), {size}, {time.monotonic() - begin:.0f} s; "
        f"load of the machine at the end {os.getloadavg()[0]:.1f}."
    )
    print(f"{head}\n\n{plain_table(rows)}")
    if chosen.against is not None:
        changes = list(history.moved(chosen.history, rows, chosen.against, chosen.quick))
        print("\nmoved by more than 10 % relative to the peer:", *(changes or ["nothing"]), sep="\n  ")
    run = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": machine(), "load": round(os.getloadavg()[0], 1)}
    history.append(chosen.history, history.line_of(rows, **run, rounds=rounds, quick=chosen.quick))
    if chosen.markdown:
        write_page(chosen.markdown, rows, head)
        print(f"\nwritten to {chosen.markdown}")


if __name__ == "__main__":
    main()
