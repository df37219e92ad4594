"""Compare values in a test with stored records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from eventbus.errors import SerializationError
from eventbus.types import ConsumerRecord
from serdes import Serde, serde_for
from serdes.base import Decode, bind_decoder, bind_encoder, for_keys
from serdes.choose import encoder_for, serde_of_values

_MOST_SHOWN = 20
_MOST_CHARACTERS = 300


class Values:
    """Decodes keys and values with the serdes of a bus."""

    def __init__(self, serdes: Mapping[type, Serde]) -> None:
        self._serdes = serdes

    def encode_key(self, topic: str, key: Any) -> bytes | None:
        if key is None:
            return None
        kind = cast("type[Any]", type(key))
        return bind_encoder(for_keys(serde_of_values(kind, self._serdes)), topic, kind)(key)

    def decoder(self, topic: str, kind: Any, *, is_key: bool = False) -> Callable[[ConsumerRecord, bytes | None], Any]:
        """Return a function of a record and its bytes that decodes them as ``kind``."""
        decode = bind_decoder(serde_for(kind, self._serdes), topic)

        def read(record: ConsumerRecord, data: bytes | None) -> Any:
            if data is None:
                return None
            try:
                return decode(data)
            except Exception as error:  # a serde of the user may raise anything
                what = "key" if is_key else "value"
                raise SerializationError(
                    f"the {what} of {_place(record)} is no {_name(kind)}: {error}; it is {_text(data)}. Name the type "
                    f"to read it as: log.{what}s({topic!r}, str)"
                ) from error

        return read

    def difference(
        self, topic: str, expected: Sequence[Any], records: Sequence[ConsumerRecord], is_ordered: bool
    ) -> str:
        """Return the differences between the records' values and ``expected``, in lines; empty if there are none."""
        wishes = [_Wish(value, topic, self._serdes) for value in expected]
        in_place = len(wishes) == len(records) and all(map(_Wish.is_met_by, wishes, records))
        if in_place:
            return ""
        left = list(records)
        missing: list[_Wish] = []
        for wish in wishes:
            found = next((n for n, record in enumerate(left) if wish.is_met_by(record)), None)
            if found is None:
                missing.append(wish)
            else:
                del left[found]
        if missing or left:
            lines = _listed("expected, and not there", [_shortened(repr(wish.value)) for wish in missing])
            lines += _listed("there, and not expected", [wishes[0].show(record) for record in left])
            return "\n".join([*lines, f"  as expected: {len(wishes) - len(missing)}"])
        if not is_ordered:
            return ""
        lines = _listed("the same values in another order, expected", [_shortened(repr(wish.value)) for wish in wishes])
        return "\n".join([*lines, *_listed("there", [wishes[0].show(record) for record in records])])


class _Wish:
    """A value that a test expects."""

    __slots__ = ("_decoders", "_encoded", "value")

    def __init__(self, value: Any, topic: str, serdes: Mapping[type, Serde]) -> None:
        self.value = value
        self._encoded: bytes | None = None
        self._decoders: list[Decode] = []
        if value is None:
            return
        kind = cast("type[Any]", type(value))
        kinds: list[Any] = [kind]
        try:
            self._encoded = encoder_for(kind, topic, serdes)(value)
        except Exception:  # a serde may raise anything for a value to compare with, such as unittest.mock.ANY inside it
            kinds.append(Any)
        for one in kinds:
            with suppress(TypeError):  # not a type that JSON can be decoded to
                self._decoders.append(bind_decoder(serde_for(one, serdes), topic))

    def is_met_by(self, record: ConsumerRecord) -> bool:
        data: bytes | None = record.value
        if data is None or self.value is None:
            return data is None and self.value is None
        if data == self._encoded:
            return True
        for decode in self._decoders:
            with suppress(Exception):  # it cannot be decoded as this type, or not be compared
                if bool(decode(data) == self.value):
                    return True
        return False

    def show(self, record: ConsumerRecord) -> str:
        """Format the record in the form of the expected value, if possible."""
        data: bytes | None = record.value
        if data is not None and self._decoders:
            with suppress(Exception):  # it has another type
                return f"{_place(record)}: {_shortened(repr(self._decoders[0](data)))}"
        return show(record)


def show(record: ConsumerRecord) -> str:
    """Format as ``orders-0 offset 3, key 'o-1': {"amount":5}``."""
    return f"{_place(record)}: {_text(record.value)}"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    more = [f"    and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return [f"  {title}:", *(f"    {line}" for line in lines[:_MOST_SHOWN]), *more]


def _place(record: ConsumerRecord) -> str:
    key = "" if record.key is None else f", key {_text(record.key)}"
    return f"{record.topic}-{record.partition} offset {record.offset}{key}"


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _shortened(repr(data))
    return _shortened(text if text.isprintable() else repr(data))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"


def _name(kind: Any) -> str:
    return "JSON" if kind is Any else getattr(kind, "__name__", str(kind))
