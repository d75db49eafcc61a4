"""Reading logs: one text over all attempts, tails by seeking, freed middles, collapsed bars."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_supervisor.chores import trim_log
from outlast_supervisor.logview import (
    Collapser,
    Position,
    attempt_logs,
    collapse,
    last_lines,
    read_on,
)


def logs_of(folder: Path, *texts: bytes) -> dict[int, Path]:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts, 1):
        (folder / f"attempt-{number:04d}.log").write_bytes(text)
    return attempt_logs(folder)


def text_from(logs: dict[int, Path], at: Position | None) -> bytes:
    if at is None:
        return b""
    return b"".join(
        piece.data
        for number, path in logs.items()
        if number >= at.attempt
        for piece in read_on(path, at if number == at.attempt else Position(number))
    )


def test_logs_are_ordered_by_attempt_and_nothing_else_counts(tmp_path: Path) -> None:
    """By number, not by name: attempt 10000 comes after 9999."""
    for name in (
        "attempt-10000.log",
        "attempt-9999.log",
        "attempt-0001.log",
        "notes.txt",
        "attempt-2.log.old",
    ):
        (tmp_path / name).touch()
    assert list(attempt_logs(tmp_path)) == [1, 9999, 10000]
    assert attempt_logs(tmp_path / "none") == {}


@settings(deadline=None)
@given(
    texts=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"a", b"\n")), min_size=1, max_size=4),
    count=st.integers(0, 12),
)
def test_the_last_lines_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], count: int
) -> None:
    """Over any attempts, `-n` shows what tail would show of all the logs one after the other."""
    logs = logs_of(tmp_path_factory.mktemp("logs"), *texts)
    # A line never runs over from one attempt's file into the next.
    lines = [part for text in texts for part in _lines(text)]
    wanted = b"".join(lines[len(lines) - min(count, len(lines)) :]) if count else b""
    assert text_from(logs, last_lines(logs, count)) == wanted


def _lines(text: bytes) -> list[bytes]:
    parts = text.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def test_a_tail_of_a_long_log_is_a_seek(tmp_path: Path) -> None:
    """Of 200 MB the last lines cost some blocks, since nothing before them is read."""
    path = tmp_path / "attempt-0001.log"
    with path.open("wb") as file:
        for _ in range(200):
            file.write((b"x" * 99 + b"\n") * 10_000)
        file.write(b"the end\n")
    logs = attempt_logs(tmp_path)
    before = bytes_read()
    assert text_from(logs, last_lines(logs, 1)) == b"the end\n"
    assert bytes_read() - before < 1 << 20
    path.unlink()


def bytes_read() -> int:
    """How many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def keeps_holes(path: Path) -> bool:
    with path.open("wb") as file:
        file.truncate(1 << 24)
    return os.stat(path).st_blocks * 512 < 1 << 20


def test_a_freed_middle_is_one_line_and_not_zeros(tmp_path: Path) -> None:
    """Where a log was capped by hole punching, the reader is told how much, and the tail is still found."""
    path = tmp_path / "attempt-0001.log"
    with path.open("wb") as file:
        file.write(b"first\n" + b"x" * 4090)
        file.seek(1 << 30)
        file.write(b"a\nb\nlast\n")
    if not keeps_holes(tmp_path / "sparse"):
        pytest.skip("this file system keeps no holes")
    logs = attempt_logs(tmp_path)
    text = text_from(logs, Position(1))
    assert text.startswith(b"first\n")
    assert b"of this log were freed" in text
    assert text.endswith(b"a\nb\nlast\n")
    assert b"\0" * 9000 not in text
    assert text_from(logs, last_lines(logs, 2)) == b"b\nlast\n"


def test_a_log_that_is_a_link_or_gone_is_not_followed_elsewhere(tmp_path: Path) -> None:
    """A symbolic link in its place is refused; a log that vanished is empty."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "attempt-0001.log").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="symbolic link"):
        list(read_on(tmp_path / "attempt-0001.log", Position(1)))
    assert list(read_on(tmp_path / "attempt-0009.log", Position(9))) == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", b"plain"),
        (b" 10%\r 20%\r100%", b"100%"),
        (b"\r 10%\r 20%", b" 20%"),
        (b"windows line\r", b"windows line"),
        (b"\r\r", b""),
        (b"", b""),
    ],
)
def test_bars_are_collapsed_to_what_is_left_to_see(line: bytes, shown: bytes) -> None:
    """The last thing written over the others."""
    assert collapse(line) == shown


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b" "]), max_size=60), st.integers(1, 7))
def test_how_the_bytes_arrive_does_not_matter(parts: list[bytes], size: int) -> None:
    """Fed in any pieces, the lines are those of the whole text, collapsed."""
    text = b"".join(parts)
    lines = Collapser()
    shown = [line for i in range(0, len(text), size) for line in lines.feed(text[i : i + size])]
    *whole, rest = text.split(b"\n")
    assert shown == [collapse(line) for line in whole]
    assert lines.unfinished == collapse(rest)
    assert lines.flush() == ([collapse(rest)] if collapse(rest) else [])


def test_a_bar_without_end_takes_no_memory() -> None:
    """Hours of carriage returns keep only the last state; a line without any end comes in pieces."""
    lines = Collapser()
    for step in range(20_000):
        lines.feed(b"\rstep %d of 20000" % step)
    assert lines.unfinished == b"step 19999 of 20000"
    assert len(lines._rest) < 100
    assert lines.feed(b"\n" + b"x" * (1 << 21))
    assert len(lines._rest) == 0


def test_a_log_is_capped_in_place(tmp_path: Path) -> None:
    """Over its limit it frees blocks of its middle: same file, length, beginning and end, for its writer as well."""
    path = tmp_path / "logs" / "attempt-0001.log"
    path.parent.mkdir()
    limit, rounds = 1 << 20, 6
    if not keeps_holes(tmp_path / "sparse"):
        pytest.skip("this file system keeps no holes")
    with path.open("ab", buffering=0) as writer:
        writer.write(b"--- the header\n")
        before = path.stat()
        at = Position(1)
        for number in range(rounds):
            writer.write(b"%07d\n" % number * (limit // 8))
            followed = list(read_on(path, at))  # as `logs -f` does, which holds no file open
            at = followed[-1].next
            assert followed[-1].data.endswith(b"%07d\n" % number)
            trim_log(path, limit)
            found = path.stat()
            assert (found.st_ino, found.st_size) == (before.st_ino, 15 + (number + 1) * limit)
            assert found.st_blocks * 512 <= limit + (1 << 16)
        writer.write(b"the end\n")
    text = path.read_bytes()
    assert text.startswith(b"--- the header\n")
    assert text.endswith(b"%07d\n" % (rounds - 1) * (limit // 16) + b"the end\n")
    shown = b"".join(piece.data for piece in read_on(path, at))
    assert shown == b"the end\n", "who follows it loses nothing"


def test_a_log_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    """What takes no more than it may keeps each byte, and a log that is gone or a link is no error."""
    path = tmp_path / "logs" / "attempt-0001.log"
    path.parent.mkdir()
    path.write_bytes(b"line\n" * 10_000)
    trim_log(path, 60_000)
    assert path.read_bytes() == b"line\n" * 10_000
    trim_log(path.with_name("attempt-0002.log"), 1)
    path.with_name("attempt-0003.log").symlink_to(path)
    trim_log(path.with_name("attempt-0003.log"), 1)
    assert path.read_bytes() == b"line\n" * 10_000
