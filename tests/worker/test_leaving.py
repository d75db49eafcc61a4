"""Leaving after the last save: all that a script does at its end is done, in order, and no memory is taken apart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, contextlib, os, sys, threading, time
def early():
    print("registered before", end=" ")
atexit.register(early)
from outlast_worker.leaving import Leaving

class Kept:
    def __del__(self):
        os.write(1, b"taken apart ")

@contextlib.contextmanager
def within():
    try:
        yield
    finally:
        print("with", end=" ")

def late():
    print("registered after", end=" ")

def wrong():
    raise ValueError("an error of a handler")

def wait():
    while not ended:
        time.sleep(0.001)
    print("thread", end=" ")

ended, kept = [], Kept()
os.environ["KIND"] == "plain" and globals().update(Leaving=SystemExit)
way = os.environ["WAY"]
if way == "fork" and os.fork() == 0:
    os.write(1, b"child ")
    raise Leaving(7)
if way == "fork":
    print("of", os.waitstatus_to_exitcode(os.wait()[1]), end=" ", flush=True)
file = open("file", "w")
file.write("not closed")
threading.Thread(target=wait).start()
atexit.register(wrong)
atexit.register(late)
atexit.register(lambda: ended or sys.exit("the thread was not waited for"))

def train():
    with within():
        raise Leaving(75)

try:
    try:
        train()
    finally:
        print("finally", end=" ")
        ended.append(True)
except SystemExit as error:
    if way == "again":
        sys.exit(error.code)
    if way == "other":
        sys.exit(3)
    if way == "changed":
        error.code = 4
    if way == "error":
        raise ValueError("the script fails") from error
    if way != "return":
        raise
"""
DONE = "with finally thread registered after registered before "


def _run(folder: Path, kind: str, way: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"KIND": kind, "WAY": way},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (folder / "file").read_text() == "not closed"
    return done.returncode, done.stdout, re.sub("0x[0-9a-f]+", "0x", done.stderr)


def test_all_is_done_as_always_but_for_taking_memory_apart(tmp_path: Path) -> None:
    """Blocks are left, threads waited for, handlers called once in their order, errors of theirs told, buffers
    passed on: as by a plain exit, with the same code. Only what still lives is not destroyed."""
    code, out, err = _run(tmp_path, "plain", "")
    assert (code, out) == (75, DONE + "taken apart ")
    assert err.count("an error of a handler") == 1
    assert _run(tmp_path, "leaving", "") == (code, DONE, err)


@pytest.mark.parametrize(
    ("way", "code"), [("again", 75), ("other", 3), ("changed", 4), ("error", 1), ("return", 0)]
)
def test_a_script_that_ends_otherwise_does_so(tmp_path: Path, way: str, code: int) -> None:
    """It catches the exit and ends by itself, with the same code or another one, with an error, or in order."""
    plain, left = _run(tmp_path, "plain", way), _run(tmp_path, "leaving", way)
    assert left[0] == plain[0] == code
    assert left[1] == (DONE if way == "changed" else plain[1])
    assert left[2].splitlines()[-1] == plain[2].splitlines()[-1]


def test_a_forked_child_leaves_by_itself(tmp_path: Path) -> None:
    """It has its own handlers to call and its own code, and ends nothing of its parent's."""
    code, out, _ = _run(tmp_path, "leaving", "fork")
    assert code == 75
    assert out == f"child registered before of 7 {DONE}"
