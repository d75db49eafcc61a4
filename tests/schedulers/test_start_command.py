"""The command by which schedulers start a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast_jobs.jobfile import job_from_command, load_job
from outlast_supervisor.schedulers.start import start_command


def test_it_needs_neither_path_nor_folder(tmp_path: Path) -> None:
    """The command starts the job with an empty environment from another folder."""
    done = tmp_path / "done"
    (tmp_path / "j.yaml").write_text(f"name: j\ncommand: [/bin/sh, -c, 'echo $0 > {done}']\n")
    job = load_job(tmp_path / "j.yaml")
    words = start_command(job, run_dir=str(tmp_path / "r"), quiet=True, extra=("a b",))
    ended = subprocess.run(words, env={}, cwd="/", capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert done.read_text() == "a b\n"
    assert all(os.path.isabs(word) for word in (words[0], words[5], words[7]))


def test_nothing_is_imported_from_where_it_starts(tmp_path: Path) -> None:
    """A module that lies in the folder where a scheduler starts the command is not taken for one of its own."""
    for name in ("click", "msgspec", "queue", "outlast_jobs"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "j.yaml").write_text("name: j\ncommand: [/bin/true]\n")
    words = start_command(load_job(tmp_path / "j.yaml"), quiet=True)
    ended = subprocess.run(words, env={}, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_job_without_a_file_is_refused(tmp_path: Path) -> None:
    """A job given as a command alone cannot be started again by a scheduler, and the message says what helps."""
    job = job_from_command((sys.executable, "-V"), None, tmp_path)
    with pytest.raises(ValueError, match="outlast new"):
        start_command(job)
