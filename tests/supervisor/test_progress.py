"""Progress: live on a terminal, plain lines elsewhere, and never waiting for whoever reads it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shortage import no_more_threads
from tests.waiting import wait_until

from outlast_supervisor import outlet as outlet_module
from outlast_supervisor import progress
from outlast_supervisor.outlet import Outlet
from outlast_supervisor.progress import EVERY, PLAIN_EVERY, Progress, describe

SNAPSHOT = {
    "name": "bytelm",
    "state": "running",
    "phase": "train",
    "attempt": 3,
    "step": 500,
    "total": 2000,
    "loss": 2.10344,
    "rate": 12.34,
    "eta": 123.4,
    "last_save": {"generation": "step-000000480.a0003", "step": 480, "at": 1000.0, "seconds": 0.2},
    "steps_at_risk": 20,
    "seconds_at_risk": 12.0,
}


class Pipe:
    """A pipe that looks like a stream, read by the test when it likes."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def fileno(self) -> int:
        return self.write_end

    def isatty(self) -> bool:
        return False

    def text(self) -> str:
        parts = []
        while True:
            try:
                data = os.read(self.read_end, 1 << 20)
            except BlockingIOError:
                break
            if not data:
                break
            parts.append(data)
        return b"".join(parts).decode()

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            try:
                os.close(fd)
            except OSError:
                pass


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_one_line_says_step_total_loss_rate_time_left_last_save_and_risk() -> None:
    """Everything that a person at the terminal wants, in one line."""
    assert describe(SNAPSHOT, 1012.0) == (
        "bytelm  step 500/2000  at risk 20 steps, 12 s  loss 2.1034  12.3 steps/s  left 2m 3s  saved 12 s ago"
    )


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"step": None, "state": "waiting"}, "waiting"),
        ({"phase": None, "state": "waiting"}, "bytelm  waiting"),
        ({"phase": "eval"}, "eval"),
        ({"step": 0, "phase": "import", "state": "starting"}, "bytelm  starting  import"),
        ({"rate": 0.2}, "5.0 s/step"),
        ({"loss": "nan"}, "loss nan"),
        ({"unprotected": "disk full"}, "unprotected: disk full"),
        ({"pending": "SIGTERM pending, last boundary 3 s ago"}, "SIGTERM pending"),
        ({"total": None}, "step 500  "),
        ({"steps_at_risk": 1, "seconds_at_risk": None}, "at risk 1 step"),
    ],
)
def test_what_else_matters_is_in_the_line(change: dict[str, Any], part: str) -> None:
    """State before the first step, another phase, slow steps, NaN, and what is wrong."""
    assert part in describe({**SNAPSHOT, **change}, 1012.0)


values = st.none() | st.booleans() | st.integers(0, 10**6) | st.floats(0, 1e9) | st.text(max_size=5)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": values,
            "state": values,
            "phase": values,
            "step": st.none() | st.integers(0, 99),
            "total": st.none() | st.integers(0, 99),
            "loss": values | st.just(float("nan")),
            "rate": st.none() | st.floats(0, 1e6),
            "eta": st.none() | st.floats(0, 1e9),
            "last_save": st.none() | st.dictionaries(st.sampled_from(["at", "step"]), st.integers(0, 99)),
            "steps_at_risk": st.none() | st.integers(0, 99),
        },
    )
)
def test_any_snapshot_is_described_in_one_line(snapshot: dict[str, Any]) -> None:
    """Missing and odd fields never stop the run from being shown."""
    assert describe(snapshot, 50.0)


def test_plain_lines_come_with_news_and_once_a_minute(pipe: Pipe) -> None:
    """That a new attempt trains is told at once, steps only every minute, other states by events."""
    progress = Progress(pipe)
    progress.update({**SNAPSHOT, "state": "clearing", "step": None}, -1.0)
    assert pipe.text() == ""
    progress.update(SNAPSHOT, 0.0)
    progress.update({**SNAPSHOT, "step": 501, "phase": "save"}, 1.0)
    progress.update({**SNAPSHOT, "step": 502}, PLAIN_EVERY - 1)
    assert pipe.text().count("\n") == 1
    progress.update({**SNAPSHOT, "attempt": 4, "state": "waiting"}, PLAIN_EVERY - 1.7)
    assert pipe.text() == ""
    progress.update({**SNAPSHOT, "attempt": 4}, PLAIN_EVERY - 0.5)
    progress.update({**SNAPSHOT, "attempt": 4, "step": 503}, 2 * PLAIN_EVERY)
    progress.event("restarting: killed by SIGKILL\nwith two lines")
    progress.close()
    text = pipe.text()
    assert text.count("\n") == 4
    assert "\x1b" not in text
    assert "\r" not in text


def test_live_lines_replace_each_other_and_events_stay(pipe: Pipe) -> None:
    """On a terminal the line is redrawn at most ten times a second; an event goes above it."""
    progress = Progress(pipe, live=True, color=False)
    for tick in range(100):
        progress.update({**SNAPSHOT, "step": tick}, tick * EVERY / 10)
    text = pipe.text()
    assert 9 <= text.count("\r\x1b[2K") <= 11
    assert "\n" not in text
    progress.event("saved")
    assert re.search(r"\r\x1b\[2Ksaved\n\r\x1b\[2Kbytelm", pipe.text())
    progress.close()
    assert pipe.text().endswith("\n")


def test_what_is_pending_does_not_outlive_the_end(pipe: Pipe) -> None:
    """The line that stays on the terminal is the last state, however shortly before it another was drawn."""
    progress = Progress(pipe, live=True, color=False)
    progress.update({**SNAPSHOT, "pending": "SIGINT pending"}, 0.0)
    assert "SIGINT pending" in pipe.text()
    last = {**SNAPSHOT, "rate": None, "eta": None}
    progress.update(last, EVERY / 2)
    progress.close(last)
    stays = pipe.text()
    assert stays.endswith("\n")
    assert "bytelm" in stays
    assert "pending" not in stays
    assert "left" not in stays


def test_no_color_means_no_color(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves the line live and takes the colours away."""
    monkeypatch.setenv("NO_COLOR", "1")
    progress = Progress(pipe, live=True)
    progress.update(SNAPSHOT, 0.0)
    text = pipe.text()
    assert "bytelm" in text
    assert "\x1b[1m" not in text


def test_a_reader_that_stops_reading_costs_nothing(pipe: Pipe) -> None:
    """A full pipe is never waited for; the newest lines come later, with the number of those lost."""
    progress = Progress(pipe)
    began = time.monotonic()
    for number in range(5000):
        progress.event(f"line {number} " + "x" * 100)
    assert time.monotonic() - began < 30
    seen = pipe.text()
    for _ in range(100):
        progress.event("end")
        seen += pipe.text()
    assert "line 4999 " in seen
    assert "lines were not shown" in seen


def test_a_closed_terminal_is_survived(pipe: Pipe) -> None:
    """Writing to nobody changes nothing for the run."""
    progress = Progress(pipe, live=True)
    os.close(pipe.read_end)
    for tick in range(3):
        progress.update(SNAPSHOT, tick)
        progress.event("something")
    progress.close()


def test_a_real_terminal_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pty the line is live and fits its width."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        Progress(terminal).update(SNAPSHOT, 0.0)
        text = os.read(master, 10_000).decode()
    os.close(master)
    assert text.startswith("\r\x1b[2K\x1b[1mbytelm")


def test_a_narrow_terminal_still_has_what_is_at_risk() -> None:
    """What is at risk outlasts all but the name and the step where the line is too long."""
    much = {**SNAPSHOT, "step": 123456, "total": 2000000, "steps_at_risk": 1200, "pending": "x" * 30}
    for columns, gone in ((120, "saved"), (80, "loss"), (60, "x" * 30)):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        with os.fdopen(slave, "w") as terminal:
            Progress(terminal, color=False).update(much, 0.0)
            text = os.read(master, 10_000).decode().removeprefix("\r\x1b[2K")
        os.close(master)
        assert text.startswith("bytelm  step 123456/2000000  at risk 1200 steps, 12 s")
        assert len(text) < columns
        assert gone not in text


def test_a_terminal_whose_window_hangs_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a terminal with a little room left does not take is not waited for, as at the end of a lost connection."""
    monkeypatch.setattr(outlet_module, "_LAST_WAIT", 0.05)
    master, slave = pty.openpty()  # nobody reads the master

    def talk() -> None:
        shown = Progress(terminal, live=True)
        for number in range(2000):
            shown.event(f"line {number} " + "x" * 100)
            shown.update({**SNAPSHOT, "step": number}, number)
        shown.close()

    with os.fdopen(slave, "w") as terminal:
        talking = threading.Thread(target=talk, daemon=True)
        talking.start()
        talking.join(30)
        held = talking.is_alive()
        os.close(master)
        talking.join(30)
    assert not held


def test_without_a_thread_lines_are_kept(tmp_path: Path) -> None:
    """Where no thread is to be had a file gets its lines later, and the run goes on."""
    with (tmp_path / "out").open("w") as stream:
        shown = progress.Progress(stream)
        with no_more_threads():
            shown.event("first")
        shown.event("second")
        shown.close()
    assert (tmp_path / "out").read_text() == "first\nsecond\n"


def test_the_daemon_never_loads_what_only_people_need() -> None:
    """Progress brings neither rich nor click nor watchdog into the supervisor."""
    code = (
        "import sys, outlast_supervisor.progress;"
        "print([m for m in ('rich', 'click', 'watchdog', 'psutil', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_narrow_terminal_shows_whole_parts(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    """What does not fit is left out from the end, part by part; nothing wraps."""
    monkeypatch.setattr(Progress, "_width", lambda self: 50)
    progress = Progress(pipe, live=True, color=False)
    progress.update(SNAPSHOT, 0.0)
    assert pipe.text() == "\r\x1b[2Kbytelm  step 500/2000  at risk 20 steps, 12 s"


def test_a_file_gets_every_line_in_order(tmp_path: Path) -> None:
    """Output that goes to a file is written by somebody else, and is all there at the end."""
    with (tmp_path / "out").open("w") as stream:
        shown = progress.Progress(stream)
        for number in range(500):
            shown.event(f"line {number}")
        wait_until(lambda: (tmp_path / "out").stat().st_size > 1000, 60, "the first lines")
        shown.close()
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == [f"line {number}" for number in range(500)] or "nobody was reading" in "".join(lines)
    assert lines[-1] == "line 499"


def test_the_last_lines_wait_for_a_slow_file(tmp_path: Path) -> None:
    """What is told while a file is slow is not lost at the end: a disk that wakes up in time gets every line."""
    slow = Pipe()
    filler = b"x" * 4096
    os.set_blocking(slow.write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(slow.write_end, filler)
    os.set_blocking(slow.write_end, True)
    with (tmp_path / "out").open("w") as stream:
        shown = progress.Progress(stream)
        shown._outlet = Outlet(slow.fileno(), 200)
        for number in range(300):
            shown.event(f"line {number}")
        closing = threading.Thread(target=shown.close)
        closing.start()
        text = ""
        while closing.is_alive():
            text += slow.text()
    lines = (text + slow.text()).lstrip("x").splitlines()
    assert lines == [f"line {number}" for number in range(300)]


def test_a_file_on_a_dead_disk_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that never ends takes some lines and no time, also at the end."""
    monkeypatch.setattr(outlet_module, "_LAST_WAIT", 0.05)
    pipe = Pipe()
    outlet = Outlet(pipe.fileno(), 200)
    taken = sum(outlet.write(b"x" * 4000) for _ in range(1000))
    assert taken < 1000
    began = time.monotonic()
    outlet.close()
    assert time.monotonic() - began < 30
    pipe.text()
