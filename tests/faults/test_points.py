"""The machine of the attacks on system calls: it lists what is called, and strikes what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.points import KILL, Missed, Point, environment, points, python, strike
from tests.realparts import needs

pytestmark = needs("strace")

_SCRIPT = """
import os, sys
from tests.faults import marks
folder = sys.argv[1]
marks.begin()
for name in "ab":
    fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"12")
    os.fsync(fd)
    os.close(fd)
    os.write(1, name.encode() + b"\\n")
os.mkdir(f"{folder}/c")
os.write(1, b"c\\n")
marks.end()
os.rmdir(f"{folder}/c")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    return path


def named(found: list[Point]) -> list[str]:
    return [point.name for point in found]


def test_what_is_listed_is_what_is_called_between_the_marks(tmp_path: Path, script: Path) -> None:
    """Each call of the operation is listed once, in order, with the file that it is about, and no call around it."""
    found = points(python(script, tmp_path))
    one = ["openat", "write", "fsync", "close", "write"]
    assert named(found) == [*one, *one, "mkdir", "write"]
    assert [Path(point.path).name for point in found[:4]] == ["a"] * 4
    assert [point.number for point in found] == list(range(1, 13))
    assert [point.ordinal for point in found if point.name == "fsync"] == [1, 2]


def test_a_kill_comes_right_before_the_call(tmp_path: Path, script: Path) -> None:
    """Killed at any call the process has done what came before it, and not that call."""
    whole = tmp_path / "whole"
    whole.mkdir()
    for point in points(python(script, whole)):
        folder = tmp_path / str(point.number)
        folder.mkdir()
        struck = strike(python(script, folder), point, KILL)
        assert struck.code == -9
        assert len(struck.acknowledged) == (point.number > 5) + (point.number > 10)
        there = [name for name, made in (("a", 1), ("b", 6), ("c", 11)) if point.number > made]
        assert sorted(path.name for path in folder.iterdir()) == there, point
        if point.number in (2, 3):
            assert (folder / "a").read_bytes() == (b"" if point.number == 2 else b"12")


def test_an_error_comes_in_place_of_the_call(tmp_path: Path, script: Path) -> None:
    """A call that fails is not carried out, the process sees its errno, once or from there on."""
    found = points(python(script, tmp_path))
    point = next(p for p in found if (p.name, p.ordinal) == ("fsync", 2))
    for lasting in (False, True):
        struck = strike(python(script, tmp_path), point, "EDQUOT", lasting=lasting)
        assert (struck.code, struck.acknowledged) == (1, ["a"])
        assert "Disk quota exceeded" in struck.err
        assert "INJECTED" in struck.hit


def test_an_operation_that_changes_is_told(tmp_path: Path, script: Path) -> None:
    """A call that does not come, or comes outside of the operation, is no point that was held: Missed."""
    found = points(python(script, tmp_path))
    last = found[-1]
    for wrong in (
        Point(1, last.name, 999, 0, 1, "", ""),
        Point(1, "openat", 1, 0, 1, "", ""),
        Point(1, last.name, last.when, 0, last.ordinal + 1, "", ""),
    ):
        with pytest.raises(Missed, match="meant call 1"):
            strike(python(script, tmp_path), wrong)


def test_a_command_that_fails_has_no_points(tmp_path: Path) -> None:
    """What does not run unharmed is not attacked."""
    with pytest.raises(AssertionError, match="ended with"):
        points(python(tmp_path / "missing.py"))
    assert environment({"A": "b"})["A"] == "b"
