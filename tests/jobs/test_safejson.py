"""The JSON reader: whatever the bytes, an object or one named error, at once."""

from __future__ import annotations

import pytest

from outlast_jobs.errors import IntegrityError, Malformed
from outlast_jobs.safejson import MAX_DEPTH, parse_object

LIMIT = 1 << 24


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "'x' is empty"),
        (b"\0" * 9, "'x' holds nothing but zeros or blanks"),
        (b"[1]", "'x' is not a JSON object but a list"),
        (b'"a"', "'x' is not a JSON object but a string"),
        (b"null", "'x' is not a JSON object but null"),
        (b'{"a":', "'x' is not JSON: "),
        (b'{"a":1}\0', "'x' is not JSON: "),
        (b'{"a":1} {}', "'x' is not JSON: "),
        (b'{"a":NaN}', "'x' is not JSON: "),
        (b'{"a":1e999}', "'x' is not JSON: "),
        (b'{"a":' + b"9" * 5000 + b"}", "'x' is not JSON: "),
        (b'{"a":"\xff"}', "'x' is not JSON: "),
        (b'{"a":"\\ud800"}', "'x' is not JSON: "),
        (b" " * (LIMIT + 1), f"'x' has {LIMIT + 1} bytes, more than the {LIMIT} that are read"),
        (nested(MAX_DEPTH + 1), f"'x' is nested deeper than {MAX_DEPTH} levels"),
        (b"[" * LIMIT, f"'x' is nested deeper than {MAX_DEPTH} levels"),
        (b'{"a":' * 3_000_000, f"'x' is nested deeper than {MAX_DEPTH} levels"),
        (b'{"' + b'\\"' * (LIMIT // 2 - 2), "'x' is not JSON: "),
        (b"[" * 100 + b'"' + b'\\"' * (LIMIT // 2 - 60), f"'x' is nested deeper than {MAX_DEPTH} levels"),
        (b"[" * 40 + b"{" * 30 + b'"\\', f"'x' is nested deeper than {MAX_DEPTH} levels"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else None,
)
@pytest.mark.timeout(20)
def test_bad_bytes_are_one_named_error(data: bytes, message: str) -> None:
    """Empty, zeroed, torn, huge, deep, or no object: Malformed, which says what is wrong with which file."""
    with pytest.raises(Malformed) as caught:
        parse_object(data, what="'x'", limit=LIMIT)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, IntegrityError)
    assert isinstance(caught.value, ValueError)


def test_brackets_in_strings_are_no_depth() -> None:
    """Only real nesting counts, and as deep as allowed is read."""
    assert parse_object(b'{"a":"' + b"[{" * 500 + b'\\""}', what="x", limit=LIMIT)["a"].endswith('[{"')
    assert list(parse_object(nested(MAX_DEPTH), what="x", limit=LIMIT)) == ["a"]
    assert len(parse_object(b'{"a":[' + b"[1]," * 500 + b"[]]}", what="x", limit=LIMIT)["a"]) == 501
