"""Where a drill takes place: a scratch folder below the run directory, and the copy of the job in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Hang, Hooks, Job, Keep, Save, job_to_yaml
from outlast_jobs.rundir import RunDirectory

from .gate import path_with_hook

_OWNER = "owner"
_APART = ("SLURM", "SBATCH", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "INVOCATION_ID", "OUTLAST_")
_BACKOFF = (0.05, 0.5)
_HUNG_GRACE = 10.0


class Scratch:
    """The folder of one drill, removed at its end unless it is to be kept."""

    def __init__(self, job: Job) -> None:
        home = Path(job.run_dir) / "drill"
        home.mkdir(parents=True, exist_ok=True)
        sweep(home)
        self.path = Path(tempfile.mkdtemp(prefix="scratch-", dir=home)).absolute()
        (self.path / _OWNER).write_text(str(ProcessIdentity.current()))

    def remove(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # that of another drill is there, or a kept one
            self.path.parent.rmdir()

    def keep(self) -> Path:
        """Leave it, under a name that no later drill takes for a leftover; says where."""
        kept = self.path.with_name(self.path.name.replace("scratch-", "kept-"))
        self.path.rename(kept)
        return kept


def sweep(home: Path) -> None:
    """Remove what drills left that were killed."""
    for folder in home.glob("scratch-*"):
        with contextlib.suppress(OSError, ValueError):
            owner = ProcessIdentity.parse((folder / _OWNER).read_text())
            if not owner.alive():
                shutil.rmtree(folder, ignore_errors=True)


def copy_of(job: Job, folder: Path, every_steps: int, hang: float | None) -> Path:
    """Write the job that is drilled: the same command, in a run directory of its own, and nothing outside.

    It saves often, keeps two generations, and restarts at once. Hooks and what is a scheduler's are left out.
    With ``hang`` a silence of so many seconds is a hang.
    """
    env = dict(job.env)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = path_with_hook(env["PYTHONPATH"])
    stop = msgspec.structs.replace(job.stop, time_limit=None, on_usr1="save")
    if hang is not None:
        stop = msgspec.structs.replace(stop, grace=min(stop.grace, _HUNG_GRACE))
    made = msgspec.structs.replace(
        job,
        run_dir=str(folder / "run"),
        env=env,
        save=Save(every_steps=every_steps),
        keep=Keep(last=2),
        restart=msgspec.structs.replace(job.restart, backoff=_BACKOFF),
        hang=job.hang if hang is None else Hang(min=hang),
        stop=stop,
        audit="warn",
        hooks=Hooks(),
        slurm=None,
        standby=False,  # its processes can't be told apart by attempt, nor be asked to stop at a point
    )
    file = folder / "job.yaml"
    file.write_text(job_to_yaml(made))
    return file


def environment(base: Mapping[str, str], gate: Path, stop_at: int | None) -> dict[str, str]:
    """What a drilled supervisor is started with: the caller's, without what a scheduler or a run put there."""
    env = {name: value for name, value in base.items() if not name.startswith(_APART)}
    env["PYTHONPATH"] = path_with_hook(base.get("PYTHONPATH"))
    env[Env.DRILL] = str(gate)
    if stop_at is not None:
        env |= {Env.RECORD: "proof", Env.STOP_AT: str(stop_at)}
    return env


def own_environment() -> Mapping[str, str]:
    """The caller's environment."""
    return os.environ


def run_of(folder: Path) -> RunDirectory:
    """The run directory of a scratch run."""
    return RunDirectory(folder / "run")
