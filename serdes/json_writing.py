"""Write values as JSON with msgspec, and refuse the numbers that it would replace with null.

msgspec writes NaN and infinity as null, because JSON has neither. A reader of floats refuses null, and a reader of
plain data takes it for None. Checking every value of every record would cost as much as the encoding, so the check is
chosen once per class: none if no field can be a float, a comparison if floats are plain fields, and otherwise a
search for null in the bytes.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import operator
import re
import types
import typing
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from serdes.base import Encode
from serdes.json_engine import hints_of, survey_of
from serdes.pydantic_json import pydantic_encoder_of, without_json_form


def _foreign(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    if survey_of(kind).is_pydantics:
        return msgspec.Raw(pydantic_encoder_of(kind)(value) or b"null")
    name = kind.__name__
    raise TypeError(
        f"{name} has no JSON form; give the bus a serde for it: EventBus(url, serdes={{{name}: MySerde()}})"
    )


to_json = msgspec.json.Encoder(enc_hook=_foreign).encode
"""Any JSON-able value to bytes, not-a-number and infinity as null."""
_to_msgpack = msgspec.msgpack.Encoder(enc_hook=_foreign).encode
_NULL = b"null"
_IS_PERHAPS_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
"""A MessagePack float whose exponent is all ones. Other bytes may look like one."""
_SCALARS = (
    str, int, bytes, bytearray, memoryview, type(None), enum.Enum, decimal.Decimal, uuid.UUID,
    datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


@lru_cache(maxsize=1024)
def encoder_of_class(kind: type[Any]) -> Encode:
    """Return the function that writes values of this runtime type."""
    if survey_of(kind).is_pydantics:
        return pydantic_encoder_of(kind)
    if not issubclass(kind, msgspec.Struct) and not hasattr(kind, "__dataclass_fields__"):
        return encode_json
    holds = {name: _may_hold(hint) for name, hint in hints_of(kind).items()}
    if len(holds) < len(_names_of(kind)) or "more" in holds.values():
        return encode_json
    floats = [name for name, what in holds.items() if what == "float"]
    return _with_plain_floats(floats) if floats else to_json


def _may_hold(hint: Any) -> str:
    """ "float" for a field that is a float or another scalar, "nothing" if no float is possible, else "more"."""
    if typing.get_origin(hint) is typing.Annotated:
        return _may_hold(hint.__origin__)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = {_may_hold(arm) for arm in typing.get_args(hint)}
        return "more" if "more" in arms else "float" if "float" in arms else "nothing"
    if hint is float:
        return "float"
    return "nothing" if isinstance(hint, type) and issubclass(hint, _SCALARS) else "more"


def _with_plain_floats(names: list[str]) -> Encode:
    get: Any = operator.attrgetter(*names)
    infinity = math.inf
    if len(names) == 1:

        def encode_one(value: Any) -> bytes:
            number = get(value)
            if number != number or number == infinity or number == -infinity:
                _check_finite(value, "")
            return to_json(value)

        return encode_one

    def encode_all(value: Any) -> bytes:
        for number in get(value):
            if number != number or number == infinity or number == -infinity:
                _check_finite(value, "")
        return to_json(value)

    return encode_all


def encode_json(value: Any) -> bytes:
    """Any JSON-able value to bytes. Raises ValueError for not-a-number and infinity."""
    data = to_json(value)
    # rfind is the fastest search that Python has for this. A null is mostly a None: whether the value holds a number
    # that is not finite too, its MessagePack shows without a check of each value. There, single bytes are found several
    # times as fast as the pattern, and mostly no float is found, or none like these.
    if data.rfind(_NULL) >= 0:
        packed = _to_msgpack(value)
        if 0xCB in packed and (0x7F in packed or 0xFF in packed) and _IS_PERHAPS_NOT_FINITE(packed):
            _check_finite(value, "")
    return data


def _check_finite(value: Any, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(without_json_form(path, value))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, one in enumerate(cast("list[Any]", value)):
            _check_finite(one, f"{path}[{number}]")
    else:
        fields = cast("Mapping[Any, Any]", value) if isinstance(value, dict) else _fields_of(value)
        for name, one in fields.items():
            _check_finite(one, f"{path}.{name}" if path else str(name))


def _fields_of(value: Any) -> Mapping[Any, Any]:
    return {name: getattr(value, name, None) for name in _names_of(type(value))}


def _names_of(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return [*getattr(kind, "__struct_fields__", ()), *(one.name for one in getattr(kind, "__attrs_attrs__", ()))]
