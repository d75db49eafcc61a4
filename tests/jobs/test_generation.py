"""The generation format: one name, one order, and an index that reads back or fails by name."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest

from outlast_jobs.errors import Corrupt, IntegrityError, UnknownSchema, UnsafeName
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    FileEntry,
    GenerationName,
    Index,
    decode_index,
    encode_index,
    safe_member,
)

RUN = "0123456789abcdef0123456789abcdef"


def index(step: int, attempt: int, **fields: object) -> Index:
    return msgspec.structs.replace(Index(run_id=RUN, attempt=attempt, step=step, healthy=True), **fields)


def nested(depth: int) -> dict[str, object]:
    tree: dict[str, object] = {}
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def test_names_read_back_as_they_are_written() -> None:
    """Each name is one text and each text one name, also past the padding."""
    for step, attempt, final in itertools.product((0, 1, 500, 10**9, 10**17), (1, 7, 9999, 10000), (0, 1)):
        name = GenerationName(step, attempt, bool(final))
        assert GenerationName.parse(str(name)) == name
    assert str(GenerationName(500, 7)) == "step-000000500.a0007"
    assert str(GenerationName(500, 7, final=True)) == "step-000000500.a0007.final"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step-500.a7",
        "step-0000000500.a0007",
        "step-000000500.a00007",
        "step-000000500.a0000",
        "step-000000500.a0007.corrupt-1",
        "step-000000500.a0007.final.final",
        "step-000000500.a0007\n",
        " step-000000500.a0007",
        "step-00000050٣.a0007",
        "step--00000500.a0007",
        ".writing-0007",
        "checkpoint-500",
        "step-" + "9" * 400 + ".a0007",
    ],
)
def test_other_names_are_no_generations(text: str) -> None:
    """What is only nearly a generation's name is none."""
    assert GenerationName.parse(text) is None


def test_order_is_attempt_then_step() -> None:
    """A newer attempt's lower step comes after an older attempt's higher one; final after its own step."""
    order = ["step-000005000.a0001", "step-000000300.a0002", "step-000000300.a0002.final"]
    order += ["step-000000301.a0002", "step-000000001.a10000"]
    names = [GenerationName.parse(text) for text in order]
    for shuffled in itertools.permutations(names):
        assert [str(name) for name in sorted(name for name in shuffled if name)] == order
    for (n, one), (m, other) in itertools.product(enumerate(names), repeat=2):
        assert one is not None
        assert other is not None
        found = (one < other, one <= other, one == other, one >= other, one > other)
        assert found == (n < m, n <= m, n == m, n >= m, n > m)


ENTRY = {"bytes": 3, "sha256": "a" * 64}
GOOD = {
    "schema": "outlast.generation/1",
    "run_id": RUN,
    "attempt": 7,
    "step": 500,
    "healthy": True,
    "files": {"meta.pt": ENTRY},
}

# As the first version wrote it. It loads for ever.
FIRST_SCHEMA = b"""{
 "attempt": 7,
 "batch_in_epoch": 12,
 "code": {"script_sha256": "00ff"},
 "config": {},
 "data": {"sha256": "aa"},
 "epoch": 3,
 "extra": {"wandb": "abc"},
 "files": {
  "meta.pt": {"bytes": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
 },
 "final": true,
 "fingerprint": {"python": "3.11.2", "threads": 1},
 "healthy": true,
 "reason": "every 500 steps",
 "run_id": "0123456789abcdef0123456789abcdef",
 "save_seconds": 0.25,
 "saved_at": 1700000000.5,
 "schema": "outlast.generation/1",
 "state_sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
 "step": 500,
 "world_size": 1
}
"""


def test_the_first_schema_loads() -> None:
    """An index as the first version wrote it reads with every field in place, and is written the same."""
    found = decode_index(FIRST_SCHEMA)
    assert (found.step, found.attempt, found.epoch, found.batch_in_epoch) == (500, 7, 3, 12)
    assert found.files["meta.pt"].bytes == 3
    assert (found.final, found.healthy, found.extra) == (True, True, {"wandb": "abc"})
    assert json.loads(encode_index(found)) == json.loads(FIRST_SCHEMA)


def test_fields_of_later_versions_are_passed_over() -> None:
    """A field that this version doesn't know is no error within the schema."""
    assert decode_index(json.dumps(GOOD | {"later": 1}).encode()).step == 500


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"schema": "outlast.generation/9"}, UnknownSchema, "this version reads outlast.generation/1"),
        ({"schema": None}, UnknownSchema, "has schema 'None'"),
        ({"schema": ["x"]}, UnknownSchema, "this version reads"),
        ({"step": -1}, Corrupt, r"step"),
        ({"step": 1.5}, Corrupt, r"step"),
        ({"step": True}, Corrupt, r"step"),
        ({"attempt": 0}, Corrupt, r"attempt"),
        ({"healthy": 1}, Corrupt, r"healthy"),
        ({"run_id": None}, Corrupt, r"run_id"),
        ({"files": {}}, Corrupt, "names no files"),
        ({"files": []}, Corrupt, "files"),
        ({"files": {"meta.pt": {"bytes": -1, "sha256": "a" * 64}}}, Corrupt, "bytes"),
        ({"files": {"meta.pt": {"bytes": 1, "sha256": "A" * 64}}}, Corrupt, "sha256"),
        ({"files": {"meta.pt": {"bytes": 1, "sha256": "a" * 64 + "\n"}}}, Corrupt, "sha256"),
        ({"files": {"../other/shard.pt": ENTRY}}, UnsafeName, r"'\.\./other/shard\.pt': it leads out"),
        ({"files": {"/etc/passwd": ENTRY}}, UnsafeName, "'/etc/passwd'"),
        ({"files": {"..": ENTRY}}, UnsafeName, "begins with a dot"),
        ({"files": {".": ENTRY}}, UnsafeName, "begins with a dot"),
        ({"files": {"": ENTRY}}, UnsafeName, "is empty"),
        ({"files": {"a\0b": ENTRY}}, UnsafeName, "can't be shown"),
        ({"files": {"a\x1b[2J": ENTRY}}, UnsafeName, "can't be shown"),
        ({"files": {"x" * 256: ENTRY}}, UnsafeName, "longer than 255"),
        ({"files": {"ü" * 128: ENTRY}}, UnsafeName, "longer than 255"),
        ({"files": {INDEX: ENTRY}}, UnsafeName, "index's own"),
        ({"files": {INDEX_DIGEST: ENTRY}}, UnsafeName, "index's own"),
        ({"extra": nested(80)}, Corrupt, "nested deeper"),
    ],
)
def test_a_wrong_index_is_a_named_error(change: dict[str, object], error: type, message: str) -> None:
    """Every way in which an index can be wrong is an exception of its own kind, under ValueError."""
    with pytest.raises(error, match=message) as caught:
        decode_index(json.dumps(GOOD | change).encode())
    assert isinstance(caught.value, IntegrityError)
    assert isinstance(caught.value, ValueError)


def test_an_index_that_could_not_be_read_is_not_written() -> None:
    """What decode would refuse, encode refuses: not-a-number, no files, too deep, foreign types."""
    files = {"meta.pt": FileEntry(bytes=1, sha256="a" * 64)}
    wrong: tuple[dict[str, object], ...] = (
        {"saved_at": float("nan")},
        {"files": {}},
        {"extra": nested(80)},
        {"world_size": 0},
    )
    for fields in wrong:
        with pytest.raises(ValueError):
            encode_index(index(1, 1, **({"files": files} | fields)))
    with pytest.raises(TypeError):
        encode_index(index(1, 1, files=files, extra={"a": object()}))


def test_members_are_plain_names() -> None:
    """The names that the library writes are all safe."""
    for name in ("meta.pt", "model.shard-000.pt", "meta.rank-003.pt", "über.pt"):
        assert safe_member(name) == name
