import msgspec
import pytest

from serdes.nesting import MAX_NESTING, is_too_deep, shallow


@pytest.mark.parametrize("around", ["[{}]", '{{"x":{}}}'])
def test_json_may_be_nested_up_to_the_limit_on_every_interpreter(around: str) -> None:
    text = "1"
    for _ in range(MAX_NESTING):
        text = around.format(text)
    assert msgspec.json.decode(shallow(text.encode()))
    with pytest.raises(msgspec.DecodeError, match="nested deeper than 256"):
        shallow(around.format(text).encode())


@pytest.mark.parametrize(
    "text", [b'"' + b"[{" * 500 + b'"', b'"\\"' + b"[" * 500 + b'"', b"[" + b"[]," * 500 + b"1]", b'"' + b"[" * 500]
)
def test_brackets_in_strings_and_next_to_each_other_are_not_nested(text: bytes) -> None:
    assert not is_too_deep(text)
