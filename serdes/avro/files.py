"""Avro's object container files (``.avro``), read and written by fastavro.

A file has one schema. Messages that were written with that schema are copied to a file without encoding them again,
so that every value keeps its branch of a union.
"""

# fastavro's type hints leave schemas open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from types import SimpleNamespace
from typing import Any, BinaryIO, Final

from serdes.avro.codec.fastavro_engine import fastavro, parsed
from serdes.avro.parse import parse
from serdes.avro.schema import Schema

_BLOCK_BYTES: Final = 1 << 20


class AvroFileError(ValueError):
    """Raised for a file that is damaged, or not an Avro object container file."""


class FileReader:
    """The schema and the values of a file. Values are dicts; of a union of records, a pair of branch name and value."""

    def __init__(self, file: BinaryIO) -> None:
        """The file is closed with the reader. Raises AvroFileError."""
        self.close = file.close
        try:
            self._values = fastavro().reader(file, return_record_name=True, return_record_name_override=True)
            text: str = self._values.metadata["avro.schema"]
            self.schema: Schema = parse(text, validate_defaults=False)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # of a damaged file the library raises anything
            file.close()
            raise AvroFileError(f"not an Avro object container file ({error or type(error).__name__})") from error

    def __iter__(self) -> Iterator[Any]:
        """Yield the values. Raises AvroFileError, which counts the values before the damage."""
        count, values = 0, iter(self._values)
        while True:
            try:
                value = next(values)
            except StopIteration:
                return
            except Exception as error:  # as above
                raise AvroFileError(
                    f"the file is damaged after {count:,} values: {error or type(error).__name__}"
                ) from error
            yield value
            count += 1


class FileWriter:
    """Writes encoded values to a file, compressed with deflate, which every reader of Avro has."""

    def __init__(self, file: BinaryIO, schema: Schema) -> None:
        """Write to ``file``, which `close` closes."""
        self.close = file.close
        self._writer = fastavro().write.Writer(file, parsed(schema), codec="deflate")
        self._block: list[bytes] = []
        self._size = 0

    def write(self, value: bytes) -> None:
        """Add one value, encoded with the file's schema."""
        self._block.append(value)
        self._size += len(value)
        if self._size >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand all values to the operating system."""
        if self._block:
            self._writer.write_block(
                SimpleNamespace(num_records=len(self._block), bytes_=BytesIO(b"".join(self._block)))
            )
            self._block, self._size = [], 0
        self._writer.fo.flush()
