"""The checksum, and that it comes without the wheel's costly package."""

from __future__ import annotations

import subprocess
import sys

import crc32c as wheel
import pytest

from eventbus.records.crc import crc32c


@pytest.mark.parametrize(
    ("data", "checksum"),
    [  # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data: bytes, checksum: int) -> None:
    assert crc32c(data) == wheel.crc32c(data) == checksum
    assert crc32c(memoryview(data)[3:], crc32c(data[:3])) == checksum, "in parts"


@pytest.mark.system
@pytest.mark.parametrize("first", ["", "import crc32c; "])
def test_the_package_is_not_loaded(first: str) -> None:
    """It takes 30 ms, but loading it before or after does no harm."""
    code = f"""{first}import sys, runpy
from importlib.util import find_spec
found = runpy.run_path(find_spec("eventbus").submodule_search_locations[0] + "/records/crc.py")
assert ("email" in sys.modules) == bool({first!r}), "the package was loaded"
import crc32c
assert crc32c.crc32c(b"123456789") == found["crc32c"](b"123456789") == 0xE3069283
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
