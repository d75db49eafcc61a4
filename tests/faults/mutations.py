"""Damaged and hostile content: mutations of a valid sample, structured nonsense, and nasties made by hand."""

from __future__ import annotations

import json
import os
import random as randoms
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEEP = 100_000
TOKENS = [
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1" * 400,
    b"1" * 5000, b"[" * 200, b"{" * 200, b'{"a":' * 200, b"\n", b"\r\n", b"\t", b"'", b'"', b"\\", b":",
    b",", b"]", b"}",
    b"- ", b"? ", b"!!python/object/apply:os.system ['id']", b"!!binary", b"&a [*a]", b"*a", b"<<: *a", b"--- ",
    b"../", b"/etc/passwd", b"\x1b[2J", b"=", b"null", b"true", b"9223372036854775808", b"18446744073709551616",
    b"\xe2\x80\xae", b"\xf0\x9f\x92\xa9",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1, 1e308, 5e-324,
    0.1, "",
    "x", "x" * 100_000, "\ud800", "\0", "../../etc/passwd", "/etc/passwd", ".", "..", "nan", "é" * 300,
    [], {}, [[]], [{}],
    {"": ""}, [None] * 1000, {str(n): n for n in range(1000)},
    "\x1b[2J", "step-000000001.a0001", [1, "a", None, {}],
]  # fmt: skip


def by_hand(sample: bytes) -> Iterator[bytes]:
    """What a person who means harm would try first."""
    yield from (
        b"",
        b"\0" * 4096,
        b"\n" * 100,
        b" ",
        b"\xef\xbb\xbf" + sample,
        sample.decode("utf-8", "replace").encode("utf-16"),
    )
    yield from (
        b"[" * DEEP,
        b"{" * DEEP,
        b'{"a":' * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * 60 + b"1" + b"}" * 60,
    )
    yield from (b'"' + b"\\" * DEEP, b'"' * DEEP, b"[1," * DEEP, b"1" * DEEP, b"-" * DEEP, b"1e" + b"9" * 400)
    yield from (
        b'{"a":1,"a":2}',
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"NaN",
        b'{"schema":NaN}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
    )
    yield from (
        sample * 3,
        sample[::-1],
        sample + b"\0" * 100,
        sample + sample[: len(sample) // 2],
        sample.upper(),
    )
    yield sample.replace(b'"', b"'")
    yield sample.replace(b"\n", b"\r\n")
    yield b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
    )
    yield b"a: &a\n  b: *a\n"
    yield b"&a a: *a\n? *a\n: *a\n"
    yield b"? " * 5000
    yield b"- " * 5000
    yield b"%YAML 9.9\n---\n" + sample
    yield b"--- a\n--- b\n" * 1000
    yield b"a: " + b"!" * 1000
    for end in range(0, len(sample), max(1, len(sample) // 24)):
        yield sample[:end]


def absurd(sample: bytes) -> Iterator[bytes]:
    """Each number in it in turn, finite and out of all proportion."""
    for found in re.finditer(rb'(?<=[\s:\[,"])-?\d[\d.]*(?=[\s,}\]"])', sample):
        for value in (b"1e300", b"-1e300", b"1" * 400, b"1" * 30, b"111111111111"):
            yield sample[: found.start()] + value + sample[found.end() :]


def damaged(sample: bytes, random: randoms.Random) -> bytes:
    """One to four accidents: bits, bytes, pieces, tokens."""
    data = bytearray(sample)
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(data) + 1)
        match random.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1:
                del data[at : at + random.randrange(1, 40)]
            case 2:
                data[at:at] = random.choice(TOKENS)
            case 3:
                data[at:at] = data[at : at + random.randrange(1, 200)]
            case 4:
                data[at : at + random.randrange(1, 8)] = random.choice(TOKENS)
            case 5:
                data[at:at] = os.urandom(0) + bytes(
                    random.randrange(256) for _ in range(random.randrange(1, 20))
                )
            case _:
                data = data[: max(1, at)]
    return bytes(data)


def twisted(sample: bytes, random: randoms.Random) -> bytes:
    """JSON (lines) with the right shape and one to three values, keys or places wrong."""
    lines = sample.splitlines() or [b"{}"]
    at = random.randrange(len(lines))
    try:
        tree = json.loads(lines[at])
    except ValueError:
        return damaged(sample, random)
    for _ in range(random.randrange(1, 4)):
        tree = _twist(tree, random)
    lines[at] = json.dumps(tree).encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        lines[at] = lines[at].replace(b"0", random.choice((b"NaN", b"1e999", b"-", b"1" * 300)), 1)
    return b"\n".join(lines) + b"\n" * (random.random() < 0.8)


def _twist(value: Any, random: randoms.Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice([*value])
        changed = dict(value)
        match random.randrange(5):
            case 0:
                del changed[key]
            case 1:
                changed[random.choice(["x", "", "schema", "step", "attempt", "\ud800"])] = changed.pop(key)
            case _:
                changed[key] = _twist(value[key], random)
        return changed
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        return [*value[:at], _twist(value[at], random), *value[at + 1 :]]
    return random.choice(VALUES)


def odd_files(secret: Path) -> dict[str, Callable[[Path], None]]:
    """What may lie in a file's place that is no file of ours; ``secret`` lies outside the run."""

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(10 << 30)

    def bound(path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            here = os.open(path.parent, os.O_RDONLY)
            try:  # a name of a socket has at most 107 bytes
                one.bind(f"/proc/self/fd/{here}/{path.name}"[:107])
            finally:
                os.close(here)

    def closed(path: Path) -> None:
        path.write_bytes(b"{}")
        path.chmod(0)

    found: dict[str, Callable[[Path], None]] = {
        "a pipe": lambda path: os.mkfifo(path),
        "a folder": lambda path: path.mkdir(),
        "a link to a secret": lambda path: path.symlink_to(secret),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
        "ten gigabytes": sparse,
        "a socket": bound,
        "a closed file": closed,
    }
    if os.geteuid() == 0:
        found["a device"] = lambda path: os.mknod(path, 0o020666, os.makedev(1, 5))
    return found
