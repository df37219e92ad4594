"""Restore values that a claim check has put into its store. A value that cannot be restored is refused.

A task has no bus, so this reads the directory of `eventbus.middleware.Directory` itself.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from eventbus.errors import SerializationError

if TYPE_CHECKING:
    from eventbus.records.columnar import RecordArrays
    from eventbus.types import TopicPartition

CLAIM_CHECK: Final = "claim-check"
"""The header that marks such a record: `eventbus.client.consuming.restoring.CLAIM_CHECK`, which tasks do not import."""
_NAME = re.compile(rb"[0-9a-f]{64}")
_NAME_BYTES = 64


class Claims(NamedTuple):
    """The directory of a claim check; none: its values are refused."""

    directory: str = ""

    def restored(self, values: pa.Array, arrays: RecordArrays, where: TopicPartition) -> pa.Array:
        """Return the values with those in the store in their place. Raises SerializationError."""
        found: dict[int, bytes] = {}
        # Few values are as long as a name, so few headers are read.
        for row in np.flatnonzero((arrays.value_length == _NAME_BYTES) & (arrays.headers_start >= 0)).tolist():
            if any(name == CLAIM_CHECK for name, _ in arrays.headers(row)):
                found[row] = self._value(values[row].as_py(), f"{where} offset {arrays.offsets[row]}")
        if not found:
            return values
        rows: list[Any] = values.to_pylist()
        for row, value in found.items():
            rows[row] = value
        return pa.array(rows, pa.binary())

    def _value(self, name: bytes, where: str) -> bytes:
        if not self.directory:
            raise SerializationError(
                f"The value of {where} is in the store of a claim check, and the record holds its name only. Read "
                "the topic by spark.read.format('eventbus') with the option claims=DIRECTORY, or with "
                "includeHeaders=true, which gives names as they are. A landing does neither."
            )
        path = Path(self.directory, name.decode("ascii", "replace"))
        try:
            data = path.read_bytes() if _NAME.fullmatch(name) else None
        except FileNotFoundError:
            data = None
        if data is None or hashlib.sha256(data).hexdigest().encode() != name:
            what = "is not in" if data is None else "is damaged in"
            raise SerializationError(
                f"The value of {where} {what} the claim check's directory {self.directory}. Its name there is "
                f"{path.name}. Bring it back from a copy."
            )
        return data
