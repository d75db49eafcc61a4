"""The supervisors as processes: what marks them, what they are told, how their ends are taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor.daemon import supervisors
from outlast_supervisor.daemon.herd import Herd
from outlast_supervisor.daemon.model import Entry, Reload, Stop, Supervisor
from outlast_supervisor.daemon.supervisors import Mark


class Heard(list[tuple[str, str]]):
    """What was told: events with their files."""

    def __call__(self, event: str, file: str, text: str, **more: object) -> None:
        self.append((event, file))


def a_child(*words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a supervisor; it has no handler for SIGHUP."""
    made = a_child("sleep", "1000")
    yield made
    made.kill()
    made.communicate()


def of(child: subprocess.Popen[bytes], folder: Path) -> Supervisor:
    process = ProcessIdentity.of(child.pid)
    assert process is not None
    return Supervisor(str(folder / "runs" / "a"), "a.yaml", process, (), "v1", "d1", 0.0, False)


def test_an_end_counts_for_what_was_told_by_then(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """Told to stop after its end was seen and before that was understood, it is over nonetheless."""
    herd, heard = Herd(tmp_path, (), Heard(), lambda found: None), Heard()
    herd._tell = heard
    supervisor = of(child, tmp_path)
    herd.living[supervisor.run_dir] = supervisor
    assert herd.carry(Stop(supervisor, "drained")) is None
    herd.ended(supervisor.process, 75)
    assert herd.living == {}
    assert herd.past == {}, "it was told to stop, so nothing is held against it"
    herd.ended(supervisor.process, 75)
    assert heard == [("stopping", "a.yaml"), ("ended", "a.yaml")]


def test_one_that_cannot_hear_yet_is_told_later(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """SIGHUP would end a process that is still loading, so it waits until there is a handler."""
    herd = Herd(tmp_path, (), Heard(), lambda found: None)
    supervisor = of(child, tmp_path)
    herd.living[supervisor.run_dir] = supervisor
    entry = Entry("a.yaml", ("outlast",), supervisor.run_dir, "v2", "d2", 0.0)
    again = herd.carry(Reload(supervisor, entry, "changed"))
    assert again is not None
    assert herd.living[supervisor.run_dir].version == "v1", "so that it is tried again"
    assert child.poll() is None
    listening = a_child(
        sys.executable,
        "-c",
        "import os, signal; signal.signal(1, lambda *_: os._exit(0)); print(1, flush=True); signal.pause()",
    )
    try:
        assert listening.stdout is not None
        listening.stdout.readline()
        heard = replace(supervisor, process=of(listening, tmp_path).process)
        assert herd.carry(Reload(heard, entry, "changed")) is None
        assert herd.living[supervisor.run_dir].version == "v2"
        wait_until(lambda: listening.poll() is not None, 30, "the signal's arrival")
    finally:
        listening.kill()
        listening.communicate()


def test_the_environment_of_a_supervisor(tmp_path: Path) -> None:
    """It has its mark and its slots, sees its own GPUs alone, and does not speak to the daemon's systemd."""
    base = {
        "PATH": "/bin",
        "NOTIFY_SOCKET": "/s",
        "WATCHDOG_USEC": "1",
        "CUDA_VISIBLE_DEVICES": "9",
        "OUTLAST_SLOTS": "x",
    }
    mark = Mark(str(tmp_path), "a.yaml", "/r", ("gpu:1", "gpu:GPU-5-a:b", "licence:x"))
    env = supervisors.environment(base, mark, gpus=True)
    assert env.keys() == {"PATH", "OUTLAST_DAEMON", "OUTLAST_SLOTS", "CUDA_VISIBLE_DEVICES"}
    assert env["CUDA_VISIBLE_DEVICES"] == "1,GPU-5-a:b"
    assert env["OUTLAST_SLOTS"] == "gpu:1,gpu:GPU-5-a:b,licence:x"
    none = supervisors.environment(base, Mark(str(tmp_path), "a.yaml", "/r"), gpus=False)
    assert none["CUDA_VISIBLE_DEVICES"] == "9", "a daemon without GPUs takes none away"
    assert "OUTLAST_SLOTS" not in none


def test_only_supervisors_of_the_folder_are_found(tmp_path: Path) -> None:
    """Another folder's, what merely inherited the mark, and a younger one of the same run are not taken for ours."""
    (tmp_path / "outlast_supervisor.cli").write_text("echo; exec 3<&1; while :; do sleep 1000; done")
    words = ["sh", "-m", "outlast_supervisor.cli", "run"]  # what `find` goes by: a shell does as well
    ours, theirs = Mark(str(tmp_path), "a.yaml", "/r", ("x",)), Mark(str(tmp_path / "b"), "b.yaml", "/s")
    hook = Mark(str(tmp_path), "c.yaml", "/t")
    made: list[subprocess.Popen[bytes]] = []
    for command, mark in (
        (words, ours),
        (words, ours),
        (words, theirs),
        (["sh", "-c", "echo; read x"], hook),
    ):
        env = supervisors.environment(os.environ, mark, gpus=False)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made.append(subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **pipes))
        made[-1].stdout.readline()
    try:
        found = supervisors.find(tmp_path)
        assert {identity.pid: mark for identity, mark in found.items()} == {made[0].pid: ours}
    finally:
        for process in made:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
