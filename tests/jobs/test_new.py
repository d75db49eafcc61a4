"""``outlast new``: what is written runs as it is, and nothing is ever overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast_jobs.contract import Env
from outlast_jobs.jobfile import JobFileError, Save, load_job, resolve_job
from outlast_jobs.new import write_new


def test_a_new_job_is_a_job_file_and_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files lie in a folder of the job's name, which is also how the job is found."""
    monkeypatch.chdir(tmp_path)
    assert write_new("mine") == [Path("mine/job.yaml"), Path("mine/train.py")]
    job = load_job(resolve_job("mine"))
    assert (job.name, job.signals.mode) == ("mine", "outlast")
    assert job.command[:2] == (sys.executable, "train.py")
    assert job.run_dir == str(tmp_path / "mine/runs/mine")
    assert job.save == Save(every_steps=200, every_seconds=600.0)


def test_the_comments_in_a_new_job_are_right(tmp_path: Path) -> None:
    """What the template offers as comments is valid when the comment sign is taken away."""
    file = write_new("mine", tmp_path)[0]
    text = file.read_text()
    for line in text.splitlines():
        if line.startswith("# ") and line[2:].split(":")[0].isidentifier():
            text = text.replace(line, line[2:])
    file.write_text(text)
    job = load_job(file)
    assert job.start_from is not None
    assert job.hooks.given_up is not None


@pytest.mark.parametrize("name", ["ünï cödé", "a: b", "true", "1", "x#y", "'q'", '"', "a\\b", "{{run_dir}}"])
def test_a_new_job_may_have_any_fitting_name(tmp_path: Path, name: str) -> None:
    """Whatever name is fit for a folder comes back from the job file as it was given."""
    assert load_job(write_new(name, tmp_path)[0]).name == name


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".x", "-x", "x" * 101, " x", "a\nb"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    """A name that would lead elsewhere, or nowhere, writes nothing."""
    with pytest.raises(JobFileError, match="is no name for a job"):
        write_new(name, tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["job.yaml", "train.py"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    """If either file is there already, neither is written."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / there).write_text("precious")
    with pytest.raises(JobFileError, match="is there already; take another name or move it away"):
        write_new("mine", tmp_path)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == [there]
    assert (tmp_path / "mine" / there).read_text() == "precious"


def test_the_new_script_trains_as_it_is(tmp_path: Path) -> None:
    """Without a supervisor the script simply trains to its end, and the loss falls."""
    script = write_new("mine", tmp_path)[1]
    ours = {value for name, value in vars(Env).items() if name.isupper()}
    env = {name: value for name, value in os.environ.items() if name not in ours} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script.name, "--steps", "300"],
        cwd=script.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()]
    assert len(losses) == 3
    assert losses[-1] < losses[0] < 1.4
    assert sorted(file.name for file in script.parent.iterdir()) == ["job.yaml", "train.py"]
