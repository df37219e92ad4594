"""The questions of .ci/run that need more than a shell.

checks.py wheel FILE            does the wheel hold exactly the six packages, and the name that Spark looks for?
checks.py areas REPORT DIR...   did tests of every area under these folders run and pass? A folder that vanished, or
                                was skipped whole, must not look like success.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

PACKAGES = {"dlq", "eventbus", "outbox", "schema_registry", "serdes", "spark_sinks"}
FOR_SPARK = {"pyspark_eventbus"}
"""Found by Spark by its name, which must be a top-level one; its source lives in spark_sinks."""


def check_wheel(path: str) -> str | None:
    names = ZipFile(path).namelist()
    found = {name.split("/")[0] for name in names}
    metadata = {name for name in found if name.endswith(".dist-info")}
    if found - metadata != PACKAGES | FOR_SPARK or len(metadata) != 1:
        return f"{path} holds {sorted(found)}, and should hold {sorted(PACKAGES | FOR_SPARK)} and one .dist-info"
    missing = [package for package in sorted(PACKAGES) if f"{package}/py.typed" not in names]
    if missing:
        return f"{path} has no py.typed in {missing}"
    print(f"{Path(path).name}: {len(names)} files in {', '.join(sorted(PACKAGES))}")
    return None


def check_areas(report: str, folders: list[str]) -> str | None:
    passed: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if not {child.tag for child in case} & {"skipped", "failure", "error"}:
            passed[case.get("classname", "")] += 1
    empty: list[str] = []
    for area in areas_of(folders):
        dotted = ".".join(area.with_suffix("").parts)
        count = sum(n for name, n in passed.items() if name == dotted or name.startswith(f"{dotted}."))
        print(f"  {count:6,} passed in {area}")
        if not count:
            empty.append(str(area))
    return f"no test passed in {empty}" if empty else None


def areas_of(folders: list[str]) -> list[Path]:
    """The folders and loose test files one level under ``tests``, or the folders themselves when they are such."""
    areas: list[Path] = []
    for folder in map(Path, folders):
        if len(folder.parts) > 1:
            areas.append(folder)
            continue
        areas += sorted({folder / path.relative_to(folder).parts[0] for path in folder.rglob("test_*.py")})
    return areas


def main() -> int:
    problem: str | None
    match sys.argv[1:]:
        case ["wheel", path]:
            problem = check_wheel(path)
        case ["areas", report, *folders] if folders:
            problem = check_areas(report, folders)
        case _:
            problem = __doc__
    if problem:
        print(problem, file=sys.stderr)
    return bool(problem)


if __name__ == "__main__":
    sys.exit(main())
