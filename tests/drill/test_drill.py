"""`outlast drill` on real jobs: one that holds, three that break a promise, and some that can't be judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.e2e.harness import OUTLAST, all_pids, light
from tests.waiting import wait_until

TRAINING = Path(__file__).parent / "scripts" / "training.py"
PATIENCE = 240.0


class Drilled(NamedTuple):
    """How `outlast drill` ended, and what it printed."""

    code: int
    found: dict[str, Any]
    err: str

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["attack"]: row for row in self.found["attacks"]}


def write_job(folder: Path, command: list[str], mode: str = "outlast") -> Path:
    """The job file, beside a run directory that exists."""
    job = {
        "name": "job",
        "command": command,
        "env": {"OMP_NUM_THREADS": "1", **light()},
        "signals": mode,
        "run_dir": "run",
        "hooks": {"done": "touch called"},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def drill(folder: Path, only: str, *arguments: str, command: list[str] | None = None) -> Drilled:
    """Drill the training with these arguments of its own."""
    words = command or ["{python}", str(TRAINING), *arguments]
    file = write_job(folder, words, "native" if command else "outlast")
    done = subprocess.run(
        [OUTLAST, "drill", str(file), "--json", "--minutes", "5", "--only", only],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=clean(),
    )
    return Drilled(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)


def clean() -> dict[str, str]:
    """An environment in which bytecode is kept: the same files are compiled at each start otherwise."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def alive(mark: str) -> list[int]:
    """Processes that were started with this text in their environment."""
    found = []
    for pid in all_pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environ:
            found.append(pid)
    return found


HOLDS = (
    "files/KILL/run",
    "digest/USR1/trainer",
    "index/STOP/group",
    "batch/TERM/supervisor",
    "pruning/KILL/supervisor",
    "disk/full/disk",
    "damage/flip/newest",
)


def test_a_sound_job_holds(tmp_path: Path) -> None:
    """A job that keeps its promises holds under attacks of all kinds; its run, hooks and folder are untouched."""
    drilled = drill(tmp_path, ",".join(HOLDS))
    assert (drilled.code, drilled.found["verdict"]) == (0, "held"), drilled.found or drilled.err
    assert set(HOLDS) < set(drilled.rows)
    assert {row["verdict"] for row in drilled.rows.values()} == {"held"}
    ends = [row for name, row in drilled.rows.items() if name.startswith("end of run")]
    assert ends
    assert all("state as in the uninterrupted run" in row["what"] for row in ends)
    assert drilled.rows["files/KILL/run"]["lost"].endswith(" of 10 allowed")
    assert drilled.rows["digest/USR1/trainer"]["lost"] == "0 of 0 allowed"
    assert not (tmp_path / "called").exists()
    assert list((tmp_path / "run").iterdir()) == []
    assert not alive(str(tmp_path / "run"))


def test_a_save_may_take_longer_than_a_cadence(tmp_path: Path) -> None:
    """A full disk is judged once the saves that it met, and those after it, are over: they run beside the steps."""
    drilled = drill(tmp_path, "disk", "--slow")
    assert (drilled.code, drilled.found["verdict"]) == (0, "held"), drilled.found or drilled.err
    assert {"disk/full/disk", "disk/read-only/disk"} < set(drilled.rows)


def test_a_job_that_does_not_save_when_told_to_stop(tmp_path: Path) -> None:
    """A trainer that a stop signal ends without a save loses work after a notice: that does not hold."""
    drilled = drill(tmp_path, "step/TERM/trainer", "--deaf")
    assert (drilled.code, drilled.found["verdict"]) == (1, "did not hold"), drilled.found or drilled.err
    assert "lost; after a notice, with time to save" in drilled.rows["step/TERM/trainer"]["reason"]
    kept = Path(drilled.found["kept"])
    assert list(kept.glob("run-*/run/logs/attempt-0001.log")), "what shows it is kept, and said where"


def test_a_job_that_loses_its_random_numbers(tmp_path: Path) -> None:
    """A trainer that draws other numbers after a restore is not the uninterrupted run: that does not hold."""
    drilled = drill(tmp_path, "sealed/KILL/trainer", "--reseed")
    assert (drilled.code, drilled.found["verdict"]) == (1, "did not hold"), drilled.found or drilled.err
    row = drilled.rows["sealed/KILL/trainer"]
    assert "not as in the uninterrupted run: step 6: " in row["reason"]
    assert row["lost"] == "0 of 10 allowed"


def test_a_job_whose_processes_survive_it(tmp_path: Path) -> None:
    """A process that outlives its attempt where nobody can know it for the job's own does not hold; it is named."""
    drilled = drill(tmp_path, "step/KILL/supervisor", "--stray")
    assert (drilled.code, drilled.found["verdict"]) == (1, "did not hold"), drilled.found or drilled.err
    reason = drilled.rows["step/KILL/supervisor"]["reason"]
    assert "left of an earlier attempt: " in reason
    assert "sleep 300" in reason
    assert not [pid for pid in all_pids() if sleeper(pid, tmp_path)], "the drill ends even that"


def sleeper(pid: int, folder: Path) -> bool:
    """Whether a process is the stray of a job in this folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return words == b"sleep\x00300\x00" and os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False


def test_a_job_without_the_library_is_undecided(tmp_path: Path) -> None:
    """Of a command whose trainer never attaches, what can be seen is judged, and the rest is undecided and told."""
    command = [sys.executable, "-c", "import time; time.sleep(4)"]
    drilled = drill(tmp_path, "step/KILL/trainer,save/KILL/trainer", command=command)
    assert (drilled.code, drilled.found["verdict"]) == (2, "undecided"), drilled.found or drilled.err
    row = drilled.rows["step/KILL/trainer"]
    assert row["verdict"] == "undecided"
    assert {c["promise"]: c["held"] for c in row["checks"]} == {
        "goes on": True,
        "one trainer": True,
        "nothing left": True,
        "work": None,
    }
    assert drilled.rows["save/KILL/trainer"]["verdict"] == "not tried"


def test_a_job_that_fails_by_itself_is_undecided(tmp_path: Path) -> None:
    """A job whose undisturbed run fails is not attacked: nothing would follow from it."""
    drilled = drill(tmp_path, "step/KILL/trainer", command=["sh", "-c", "exit 64"])
    assert (drilled.code, drilled.found["attacks"]) == (2, []), drilled.err
    assert "the uninterrupted run failed: " in drilled.found["reason"]


def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    """Ctrl-C, here while a worker imports, ends the drill with 130; no process and no scratch folder is left."""
    file = write_job(tmp_path, ["{python}", str(TRAINING)])
    drilled = subprocess.Popen(
        [OUTLAST, "drill", str(file)], stderr=subprocess.PIPE, text=True, start_new_session=True, env=clean()
    )
    mark = f"OUTLAST_RUN={tmp_path}/run/drill"
    wait_until(lambda: alive(mark), PATIENCE, "a worker of the scratch run")
    drilled.send_signal(signal.SIGINT)
    drilled.communicate(timeout=PATIENCE)
    assert drilled.returncode == 130
    assert not alive(str(tmp_path / "run"))
    assert list((tmp_path / "run").iterdir()) == []


def test_the_attacks_are_listed() -> None:
    """`--list` prints the attacks that `--only` leaves, and runs nothing; an unknown name is bad usage."""
    done = subprocess.run(
        [OUTLAST, "drill", "--list", "--only", "rename"], capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in done.stdout.splitlines()[:-1]]
    assert "rename/KILL/trainer" in names
    assert {name.split("/")[0] for name in names} == {"rename"}
    bad = subprocess.run([OUTLAST, "drill", "toy", "--only", "renam"], capture_output=True, text=True)
    assert bad.returncode == 64
    assert 'there is no attack "renam"; did you mean "rename"?' in bad.stderr
