"""Properties of the journal: what was written is read once and in order, whatever tore or doubled it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs import durable, journal
from outlast_jobs.journal import LINE_LIMIT, JournalWriter, Record, iter_journal, newest_life, read_journal
from outlast_jobs.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path)
    made.journal.mkdir()
    return made


def _life(run: RunDirectory, count: int, host: str = "a") -> JournalWriter:
    writer = JournalWriter.open(run, host)
    writer.write([writer.append("event", n=n) for n in range(count)])
    writer.close()
    return writer


def _seen(records: tuple[Record, ...]) -> list[tuple[int, int]]:
    return [(record.life, record.seq) for record in records]


def test_what_was_written_is_read_in_order(run: RunDirectory) -> None:
    """Records of all hosts come by life and sequence, with their data, and nothing is damaged."""
    for host in ("zeta", "alpha", "mid"):
        _life(run, 3, host)
    found = read_journal(run)
    assert _seen(found.records) == [(life, seq) for life in (1, 2, 3) for seq in (1, 2, 3)]
    assert [record.host for record in found.records][::3] == ["zeta", "alpha", "mid"]
    assert [record.data["n"] for record in found.records] == [0, 1, 2] * 3
    assert found.damage == ()
    assert read_journal(RunDirectory(run.path / "none")).records == ()


def test_a_life_takes_the_next_number_over_all_hosts(run: RunDirectory) -> None:
    """No two lives share a number, also after the ten-thousandth, and no file is opened a second time."""
    assert newest_life(run) == 0
    (run.journal / "0041-elsewhere.jsonl").touch()
    (run.journal / "notes.jsonl").touch()
    assert JournalWriter.open(run, "b").life == 42
    (run.journal / "12345-elsewhere.jsonl").touch()
    writer = JournalWriter.open(run, "../x/y")
    assert writer.life == 12346
    assert writer.path.parent == run.journal
    assert writer.path.exists()


def test_two_hosts_that_begin_at_once_have_two_numbers(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that another host took in the same moment is given back."""
    real, calls = os.open, []

    def racing(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("-b.jsonl") and not calls:
            calls.append(path)
            (run.journal / "0001-a.jsonl").touch()
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", racing)
    assert JournalWriter.open(run, "b").life > 1
    assert sorted(os.listdir(run.journal))[0] == "0001-a.jsonl"
    assert "0001-b.jsonl" not in os.listdir(run.journal)


def test_a_lifes_file_is_never_one_that_exists(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another life's file of the same host, made after the numbers were looked at, is not appended to."""
    first = _life(run, 2)
    before = first.path.read_bytes()
    looks = [0]
    monkeypatch.setattr(journal, "newest_life", lambda run: looks.pop() if looks else newest_life(run))
    second = _life(run, 1)
    assert (second.life, looks) == (2, [])
    assert first.path.read_bytes() == before


def test_a_kill_at_any_byte_loses_at_most_the_last_line(run: RunDirectory) -> None:
    """Cut at every byte, the file reads as the lines that were whole, and no damage is reported."""
    path = _life(run, 3).path
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = read_journal(run)
        assert len(found.records) == sum(end <= cut for end in ends)
        assert found.damage == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{garbage\n", "no record"),
        (b"\0" * 300 + b"\n", "no record"),
        (b"[1]\n", "no record"),
        (b"\xff\xfe\n", "no record"),
        (b'{"schema": "outlast.journal/9"}\n', "no record"),
        (b'{"schema":"outlast.journal/1","seq":"x"}\n', "no record"),
        (b"[" * 200_000 + b"\n", "no record"),
        (b'{"a":' * 100_000 + b"\n", "no record"),
        (b"x" * (3 * LINE_LIMIT) + b"\n", "over"),
    ],
)
def test_damage_is_named_by_file_and_line_and_the_rest_is_read(
    run: RunDirectory, line: bytes, why: str
) -> None:
    """A bad line in the middle costs that line alone, and says where it was; a later life is unharmed."""
    path = _life(run, 4).path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = line
    path.write_bytes(b"".join(lines))
    _life(run, 2)
    found = read_journal(run)
    assert _seen(found.records) == [(1, 1), (1, 3), (1, 4), (2, 1), (2, 2)]
    assert found.damage[0].startswith(f"{path.name}:2: ")
    assert why in found.damage[0]
    assert found.damage[1] == f"{path.name}:3: before it record 2 is missing"
    assert len(found.damage) == 2
    assert max(map(len, found.damage)) < 400


def test_blank_lines_are_nothing(run: RunDirectory) -> None:
    """Empty lines are neither records nor damage."""
    path = _life(run, 2).path
    path.write_bytes(b"\n\n" + path.read_bytes().replace(b"\n", b"\n\n"))
    found = read_journal(run)
    assert len(found.records) == 2
    assert found.damage == ()


def test_a_file_of_garbage_fills_no_memory(run: RunDirectory) -> None:
    """Ten thousand bad lines make some hundred messages and one that says there is more."""
    (run.journal / "0001-a.jsonl").write_bytes(b"{\n" * 10_000)
    damage = read_journal(run).damage
    assert len(damage) < 300
    assert damage[-1] == "more damage is not listed"


def test_a_record_in_another_lifes_file_is_damage(run: RunDirectory) -> None:
    """A copied file does not double what happened."""
    path = _life(run, 2).path
    (run.journal / "0009-a.jsonl").write_bytes(path.read_bytes())
    found = read_journal(run)
    assert _seen(found.records) == [(1, 1), (1, 2)]
    assert [text.split(": ")[1] for text in found.damage] == ["says it is of life 1"] * 2


def test_what_is_no_regular_file_is_named_and_not_opened(run: RunDirectory) -> None:
    """A link, a pipe and a folder with a journal's name are reported, and reading does not hang on them."""
    (run.journal / "0001-a.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(run.journal / "0002-a.jsonl")
    (run.journal / "0003-a.jsonl").mkdir()
    _life(run, 1)
    found = read_journal(run)
    assert len(found.records) == 1
    assert [text.split(":")[0] for text in found.damage] == [f"000{n}-a.jsonl" for n in (1, 2, 3)]


@dataclass
class _Disk:
    """Lets so many bytes through, then fails once; may also fail the fsync."""

    left: int
    fail_sync: bool = False

    def write(self, fd: int, data: memoryview) -> int:
        if self.left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: self.left]
        self.left -= len(part)
        return _WRITE(fd, part)

    def fsync(self, fd: int) -> None:
        if self.fail_sync:
            self.fail_sync = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))


_WRITE = os.write


@pytest.mark.parametrize("append_only", [False, True])
def test_a_failed_write_is_made_good_by_the_next(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, append_only: bool
) -> None:
    """After ENOSPC at any byte, or EIO from fsync, writing the same lines again leaves each record once."""
    for cut in range(0, 500, 7):
        writer = JournalWriter.open(run, "a")
        writer.write([writer.append("first")])
        lines = [writer.append("second", n=1), writer.append("third", n=2)]
        disk = _Disk(cut, fail_sync=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", disk.write)
            patch.setattr(os, "fsync", disk.fsync)
            with pytest.raises(OSError, match=r"No space|Input/output"):
                writer.write(lines)
        with monkeypatch.context() as patch:
            if append_only:
                patch.setattr(os, "ftruncate", _refused)
            writer.write([*lines, writer.append("fourth")])
        writer.write([writer.append("fifth")])
        writer.close()
        damage: list[str] = []
        mine = [record for record in iter_journal(run, damage) if record.life == writer.life]
        assert [record.event for record in mine] == ["first", "second", "third", "fourth", "fifth"]
        if not append_only:
            assert damage == []


def _refused(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_lines_written_twice_count_once(run: RunDirectory) -> None:
    """A write that seemed to have failed and was repeated gives no second record."""
    writer = JournalWriter.open(run, "a")
    lines = [writer.append("event", n=n) for n in range(3)]
    writer.write(lines[:2])
    writer.write(lines)
    found = read_journal(run)
    assert _seen(found.records) == [(1, 1), (1, 2), (1, 3)]
    assert found.damage == ()


def test_what_json_cannot_hold_is_written_as_text(run: RunDirectory) -> None:
    """Infinite and undefined floats, paths, sets, huge integers and broken unicode are kept."""
    writer = JournalWriter.open(run, "a")
    odd = {"nan": float("nan"), "inf": float("-inf"), "path": Path("/x"), "big": 2**80, "name": "a\udcffb"}
    writer.write([writer.append("event", odd | {"from": "slurm", "set": {1}, "f": 0.1, "t": (True, None)})])
    found = read_journal(run)
    assert found.damage == ()
    assert found.records[0].data == {
        "nan": "nan",
        "inf": "-inf",
        "path": "/x",
        "big": str(2**80),
        "name": "a?b",
        "from": "slurm",
        "set": [1],
        "f": 0.1,
        "t": [True, None],
    }


@pytest.mark.parametrize(
    "data",
    [
        {"tail": ["x" * 100_000] * 20},
        {"stats": {f"file-{n}": [1, 2, 3] for n in range(100_000)}},
        {f"key-{n}" * 100: "v" * 200 for n in range(5000)},
    ],
)
def test_a_record_that_is_too_large_is_shortened(run: RunDirectory, data: dict[str, Any]) -> None:
    """Whatever is recorded, the line stays under the limit and can be read."""
    writer = JournalWriter.open(run, "a")
    line = writer.append("event", data)
    assert len(line) <= LINE_LIMIT
    writer.write([line])
    assert read_journal(run).records[0].event == "event"


_WRITER = """
import sys
from pathlib import Path
from outlast_jobs.journal import JournalWriter
from outlast_jobs.rundir import RunDirectory
writer = JournalWriter.open(RunDirectory(Path(sys.argv[1])), "h")
n = 0
while True:
    n += 1
    writer.write([writer.append("event", n=n, pad="x" * (n % 3000))])
    print(n, flush=True)
"""


def test_after_kill_everything_acknowledged_is_there(run: RunDirectory) -> None:
    """A writer killed at random instants leaves every record that it was told is durable, and no damage."""
    rng = random.Random(7)
    for life in range(1, 7):
        child = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(run.path)], stdout=subprocess.PIPE, text=True
        )
        if child.stdout is None:
            raise RuntimeError("no stdout")
        for _ in range(rng.randrange(1, 40)):
            child.stdout.readline()
        child.kill()
        told = [line for line in child.communicate()[0].split("\n") if line]
        found = read_journal(run)
        mine = [record.data["n"] for record in found.records if record.life == life]
        assert mine == list(range(1, len(mine) + 1))
        assert len(mine) >= (int(told[-1]) if told else 1)
        assert found.damage == ()


def test_every_line_stands_by_itself(run: RunDirectory) -> None:
    """A line has schema, sequence, both clocks, boot, life and host, so that it can be read alone."""
    before = time.time()
    path = _life(run, 2, "host").path
    for number, line in zip(itertools.count(1), path.read_bytes().splitlines(), strict=False):
        tree = json.loads(line)
        assert tree["schema"] == "outlast.journal/1"
        assert (tree["seq"], tree["life"], tree["host"]) == (number, 1, "host")
        assert before <= tree["wall"] <= time.time()
        assert tree["mono"] <= time.monotonic()
        assert len(tree["boot"]) == 36


def test_the_name_of_a_new_life_is_on_disk_before_its_first_record(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was synced is lost all the same where a power cut takes the name of its file."""
    synced: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(durable, "fsync_dir", lambda path: synced.append((path, os.listdir(path))))
    writer = JournalWriter.open(run, "a")
    assert synced == [(run.journal, [writer.path.name])]
    writer.close()
