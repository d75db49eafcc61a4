"""Two jobs that share a run directory by mistake are told of each other, and neither undoes the other's end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST, Run

from outlast_jobs.contract import ExitCode

SLEEPS = ["sh", "-c", "touch up; [ -e go ] || exec sleep 600"]
CURE = "give each job a name or a run_dir of its own"


def another(run: Run, command: list[str], folder: str = ".") -> Path:
    """A second job file with the first one's name and run directory."""
    path = run.folder / folder / "other.yaml"
    path.parent.mkdir(exist_ok=True)
    text = {"name": "e2e", "command": command, "run_dir": str(run.directory.path)}
    path.write_text(yaml.safe_dump(text))
    return path


def started(run: Run, path: Path, *args: str) -> tuple[int, str]:
    ended = run.cli("run", str(path), *args)
    return ended.code, ended.err


def named(run: Run, told: str) -> bool:
    return f'"{run.job_file}"' in told and CURE in told


def test_a_second_job_that_takes_over_a_run_says_whose_it_is(make_run: MakeRun) -> None:
    """It goes on from another job's checkpoints: both files' names are said, also by a quiet start, and journaled."""
    run = make_run({"command": ["true"], "signals": "native"})
    assert run.start().wait() == ExitCode.DONE, run.report()
    code, told = started(run, another(run, ["echo"]), "--quiet")
    assert (code, named(run, told)) == (ExitCode.DONE, True), told
    assert any(str(run.job_file) in str(record.data["changes"]) for record in run.records("job_changed"))
    code, told = started(run, another(run, ["echo", "more"]), "--quiet")
    assert (code, told) == (ExitCode.DONE, ""), "said once: the run is this job's by now"
    code, told = started(run, run.job_file)
    assert "other.yaml" in told, "and in return"
    assert CURE in told


def test_a_second_job_is_told_whose_run_is_busy_or_done(make_run: MakeRun) -> None:
    """A start that finds the run taken, or complete, names the other job; a quiet one is not silent about it."""
    run = make_run({"command": SLEEPS, "signals": "native"})
    first = run.start()
    run.until(lambda: (run.folder / "up").exists() and run.directory.job_yaml.exists(), "the worker")
    code, told = started(run, another(run, SLEEPS, "apart"), "--quiet")
    assert code == ExitCode.BUSY
    (run.folder / "apart" / "train.sh").touch()
    code, told = started(run, another(run, [*SLEEPS, "train.sh"], "apart"), "--quiet")
    assert (code, named(run, told)) == (ExitCode.BUSY, True), told
    (run.folder / "go").touch()
    first.process.terminate()
    first.wait()
    assert run.start("--quiet").wait() == ExitCode.DONE, run.report()

    keeps = another(run, SLEEPS, "apart")
    keeps.write_text(keeps.read_text() + "keep: {last: 9}\n")
    code, told = started(run, keeps, "--quiet")
    assert (code, named(run, told)) == (ExitCode.DONE, True), told


def test_another_job_lifts_no_hold(make_run: MakeRun) -> None:
    """What a person stopped stays stopped, though another job file differs from the one that was stopped."""
    run = make_run({"command": SLEEPS, "signals": "native"})
    first = run.start()
    run.until(lambda: (run.folder / "up").exists() and run.directory.job_yaml.exists(), "the worker")
    assert run.cli("stop", str(run.directory.path)).code == 0
    assert first.wait() == ExitCode.HELD
    code, told = started(run, another(run, ["true"]), "--quiet")
    assert (code, named(run, told)) == (ExitCode.HELD, True), told
    assert run.attempts() == [1]


def _moved(run: Run) -> Path:
    return run.job_file.rename(run.folder / "moved.yaml")


def _linked(run: Run) -> Path:
    link = run.folder / "link.yaml"
    link.symlink_to(run.job_file)
    return link


def _copied(run: Run) -> Path:
    copy = run.folder / "copy.yaml"
    copy.write_text("# the same\n" + run.job_file.read_text())
    return copy


def _given_away(run: Run) -> Path:
    other = another(run, ["echo"])
    run.write_job({"command": ["true"], "run_dir": "elsewhere"})
    return other


@pytest.mark.parametrize("change", [_moved, _linked, _copied, _given_away])
def test_what_is_no_other_job_is_not_told(make_run: MakeRun, change: Callable[[Run], Path]) -> None:
    """A job file that was moved, linked, copied, or has another run directory by now, is nobody's rival."""
    run = make_run({"command": ["true"], "signals": "native"})
    assert run.start().wait() == ExitCode.DONE, run.report()
    code, told = started(run, change(run), "--quiet")
    assert (code, told) == (ExitCode.DONE, "")


def test_bare_commands_with_one_name_are_told(tmp_path: Path) -> None:
    """A second script of the same name, or other arguments, go on with the first's run, and say so."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"print('{folder}')\n")

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [OUTLAST, "run", "--", sys.executable, *words], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stderr

    assert "warning" not in run("one/train.py")[1]
    code, told = run("one/train.py", "--lr", "0.1")
    assert code == ExitCode.DONE
    assert all(words in told for words in ("the command was", "one/train.py", "--fresh begins anew")), told
    code, told = run("two/train.py", "--lr", "0.1")
    assert (code, f'"{tmp_path}/one/train.py"' in told, CURE in told) == (ExitCode.DONE, True, True), told
    (tmp_path / "three").mkdir()
    shutil.copy(tmp_path / "two" / "train.py", tmp_path / "three")
    code, told = run("three/train.py", "--lr", "0.1")
    assert (code, "the command was" in told, CURE in told) == (ExitCode.DONE, True, False), (
        "a copy is the same job"
    )


def test_tasks_of_an_array_that_share_a_run_are_told(make_run: MakeRun) -> None:
    """A start that finds the run done or taken says how to give each task its own; one that has a run is not told."""
    run = make_run({"command": ["true"], "signals": "native"})
    first = run.start(env={"SLURM_ARRAY_TASK_ID": "71"})
    assert first.wait() == ExitCode.DONE, run.report()
    assert "array" not in first.output, "its job file or its --run-dir may have been chosen by the task"
    told = f'give each its own: --run-dir "{run.directory.path}-72"'
    second = run.start(env={"SLURM_ARRAY_TASK_ID": "72"})
    assert second.wait() == ExitCode.DONE
    assert "already complete" in second.output
    assert told in second.output
    own = run.start("--run-dir", f"{run.directory.path}-72", env={"SLURM_ARRAY_TASK_ID": "72"})
    assert own.wait() == ExitCode.DONE
    assert "array" not in own.output


def test_tasks_of_a_step_that_share_a_run_are_told(make_run: MakeRun) -> None:
    """`srun -n 4 outlast run`: those that don't get the run say that once is enough."""
    run = make_run({"command": SLEEPS, "signals": "native"})
    env = {"SLURM_STEP_NUM_TASKS": "4"}
    first = run.start(env=env)
    run.until(lambda: (run.folder / "up").exists(), "the worker")
    second = run.start(env=env)
    assert second.wait() == ExitCode.BUSY
    assert "srun starts this 4 times" in second.output
    assert "srun" not in first.output
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED
