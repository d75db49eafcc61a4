"""`outlast doctor` and the Python that the job's command runs: asked as the job would run it, and what it lacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.patients import SOUND, doctor, job
from tests.realparts import needs

from outlast_supervisor.doctor import interpreter


@pytest.mark.parametrize(
    ("said", "level", "word"),
    [
        ({**SOUND, "torch": "2.5.1+cu121"}, "failure", "older than 2.6"),
        (
            {k: v for k, v in {**SOUND, "torch failed": "no"}.items() if k != "torch"},
            "failure",
            "does not import",
        ),
        ({**SOUND, "outlast_worker failed": "ImportError: no"}, "failure", "install outlast"),
        ({**SOUND, "outlast_jobs": "0.0.1"}, "warning", "0.0.1"),
        ("#!/bin/sh\necho lib missing >&2; exit 3\n", "failure", "lib missing"),
        ("#!/no/such/shell\n", "failure", "does not say"),
    ],
)
def test_an_interpreter_that_lacks_something(tmp_path: Path, said: Any, level: str, word: str) -> None:
    """The job's own Python is asked, not ours: what it lacks is told with the command that mends it."""
    found = doctor(job(tmp_path, said))
    assert found.code == (level == "failure")
    assert any(line.startswith(level) and word in line for line in found.of("python")), found.lines


def test_a_real_interpreter_is_asked_as_the_job_runs_it(tmp_path: Path) -> None:
    """With the job's environment and its own options: an old torch on its path is found, and -I hides it."""
    old = tmp_path / "old" / "torch"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("__version__ = '2.4.1'\n")
    env = {"PYTHONPATH": str(old.parent)}
    found = doctor(job(tmp_path, command=["{python}", "train.py"], env=env))
    assert any("has torch 2.4.1" in line for line in found.failures()), found.lines
    found = doctor(job(tmp_path, command=["{python}", "-I", "-S", "train.py"], env=env))
    assert any("No module named 'torch'" in line for line in found.failures()), found.lines


@needs("namespaces")
def test_a_container_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    """Without a folder for temporary files torch makes no optimizer: a failure, unless the job names one."""
    places = ["/tmp", "/var/tmp", str(tmp_path)]
    mounts = "".join(f"mount --bind {place} {place}; mount -o remount,bind,ro {place}; " for place in places)
    wrapper = ["unshare", "--mount", "sh", "-ec", f'{mounts}exec "$@"', "sh"]
    (tmp_path / "sound").mkdir()
    for place, env, lacks in ((tmp_path, {}, True), (tmp_path / "sound", {"TMPDIR": "/dev/shm"}, False)):
        found = doctor(job(place, command=["{python}", "train.py"], env=env), wrapper=wrapper)
        assert any("no room for temporary files" in line for line in found.of("python")) == lacks, found.lines


def test_an_interpreter_that_hangs_is_given_up(tmp_path: Path) -> None:
    """With all that it started, and it is undecided, not a failure."""
    from outlast_jobs.jobfile import load_job

    asked = load_job(job(tmp_path, "#!/bin/sh\nsleep 1000 & echo $! > pid; wait\n"))
    looked = interpreter.look(asked, os.environ, patience=1.0)
    assert looked is not None
    assert looked.late
    assert [line.level for line in interpreter.verdict(looked, asked)] == ["undecided"]
    pid = int((tmp_path / "pid").read_text())
    assert not os.path.exists(f"/proc/{pid}/exe") or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_a_command_that_cannot_run(tmp_path: Path) -> None:
    """A missing program, as under cron's PATH, and a missing script."""
    for command in (["no-such-program"], ["{python}", "no.py"]):
        found = doctor(job(tmp_path, command=command))
        assert found.code == 1
        assert found.of("command")[0].startswith("failure: ")
