"""Following logs: continuous over attempts, woken by the kernel or by looking."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import follow
from outlast_supervisor.follow import Follower
from outlast_supervisor.logview import Position

OUTLAST = str(Path(sys.executable).with_name("outlast"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.logs.mkdir(parents=True)
    return made


def new_text(follower: Follower) -> bytes:
    return b"".join(piece.data for piece in follower.read())


def wait_for(follower: Follower, wanted: bytes, seconds: float = 20.0) -> bytes:
    """What comes until the wanted text is in it, as a person at `logs -f` would see it."""
    deadline, seen = time.monotonic() + seconds, b""
    while wanted not in seen:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{wanted!r} did not come; seen: {seen!r}")
        seen += new_text(follower)
        if wanted not in seen:
            follower.wait(1.0)
    return seen


def append(run: RunDirectory, attempt: int, text: bytes) -> None:
    with run.attempt_log(attempt).open("ab") as file:
        file.write(text)


def test_what_is_new_comes_once_and_in_order(run: RunDirectory) -> None:
    """Each byte once, over all attempts."""
    append(run, 1, b"one\n")
    append(run, 2, b"two\n")
    with Follower(run, network=True) as follower:
        assert new_text(follower) == b"one\ntwo\n"
        assert new_text(follower) == b""
        append(run, 2, b"more\n")
        append(run, 4, b"four\n")
        assert new_text(follower) == b"more\nfour\n"


def test_it_begins_where_it_is_told(run: RunDirectory) -> None:
    """At an offset of an attempt, as `-n` finds it."""
    append(run, 1, b"one\n")
    append(run, 2, b"two\nlast\n")
    with Follower(run, Position(2, 4), network=True) as follower:
        assert new_text(follower) == b"last\n"


@pytest.mark.parametrize("network", [False, True])
def test_it_goes_on_into_new_attempts(
    run: RunDirectory, network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart it never goes silent: told by the kernel, or by looking where that does not tell."""
    monkeypatch.setattr(follow, "POLL", 0.02)
    append(run, 1, b"start\n")
    with Follower(run, network=network) as follower:
        assert wait_for(follower, b"start") == b"start\n"

        def write() -> None:
            for attempt in range(2, 6):
                append(run, attempt, b"attempt %d\n" % attempt)

        writer = threading.Thread(target=write)
        writer.start()
        seen = wait_for(follower, b"attempt 5\n")
        writer.join()
    assert seen == b"attempt 2\nattempt 3\nattempt 4\nattempt 5\n"


def test_the_kernel_wakes_it_long_before_it_would_look(run: RunDirectory) -> None:
    """On a local file system a line is shown at once, not at the next look."""
    append(run, 1, b"start\n")
    with Follower(run, network=False) as follower:
        wait_for(follower, b"start")
        follower.wait(0.2)
        timer = threading.Timer(0.1, append, (run, 1, b"line\n"))
        timer.start()
        began = time.monotonic()
        assert wait_for(follower, b"line") == b"line\n"
        timer.join()
    assert time.monotonic() - began < 10


def test_reading_does_not_wake_itself(run: RunDirectory) -> None:
    """Opening and closing the file to read it must not look like news, or it would spin."""
    append(run, 1, b"start\n")
    with Follower(run, network=False) as follower:
        wait_for(follower, b"start")
        follower.wait(0.3)
        for _ in range(3):
            new_text(follower)
        began = time.monotonic()
        follower.wait(0.3)
        assert time.monotonic() - began >= 0.29


def test_logs_that_do_not_exist_yet_are_waited_for(tmp_path: Path) -> None:
    """A run that is just being made is followed from its first byte."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    with Follower(run, network=False) as follower:
        assert new_text(follower) == b""
        run.logs.mkdir()
        append(run, 1, b"first\n")
        assert wait_for(follower, b"first") == b"first\n"


@pytest.mark.parametrize("named", ["run", "job.yaml"])
def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path, named: str) -> None:
    """`logs -f` of a run that a scheduler has not started yet says so, and shows all of it when it comes."""
    words = "name: j\nrun_dir: run\nsave: {every_seconds: 9}\ncommand: [/bin/echo, hello]\n"
    (tmp_path / "job.yaml").write_text(words)
    follower = subprocess.Popen(
        [OUTLAST, "logs", "-f", str(tmp_path / named)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stderr is not None
        assert "waiting for it to begin" in follower.stderr.readline()
        subprocess.run([OUTLAST, "run", "--quiet", str(tmp_path / "job.yaml")], check=True, timeout=60)
        told, _ = follower.communicate(timeout=60)
    finally:
        follower.kill()
        follower.wait()
    assert told.splitlines()[-1] == "hello"
    assert follower.returncode == 0


def test_a_slip_is_not_waited_for(tmp_path: Path) -> None:
    """`logs -f` of what can't become a run fails at once."""
    for named in ("no-such-run", str(tmp_path / "nowhere" / "run"), str(tmp_path)):
        done = subprocess.run(
            [OUTLAST, "logs", "-f", named], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (64, "")


def test_without_watches_it_looks(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the user's watches are used up, looking takes over and nothing is lost."""
    monkeypatch.setattr(follow, "POLL", 0.02)

    def full(self: Follower, folder: Path) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(Follower, "_schedule", full)
    append(run, 1, b"start\n")
    with Follower(run, network=False) as follower:
        assert follower.polling
        wait_for(follower, b"start")
        append(run, 1, b"more\n")
        assert wait_for(follower, b"more") == b"more\n"


def test_a_log_that_was_cut_short_is_read_again(run: RunDirectory) -> None:
    """Somebody emptied it: what comes then is shown, not skipped."""
    append(run, 1, b"a long line\n")
    with Follower(run, network=True) as follower:
        new_text(follower)
        run.attempt_log(1).write_bytes(b"new\n")
        assert new_text(follower) == b"new\n"
