"""The folder for the sockets of a trainer and its loader processes: one a trainer, none left of killed ones."""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.util
import os
import shutil
import tempfile
from pathlib import Path

from outlast_jobs.contract import Env

_ROOM = 107 - len("/pymp-12345678-1234567-12345678/listener-12345678")
"""Characters that the path of the temporary folder may have: a socket's whole path has 107 at most (unix(7))."""


def make_temp_dir() -> None:
    """Make multiprocessing's folder for sockets, before any process is started that would make one of its own.

    It is inherited, and removed by the trainer; a killed loader could not remove one of its own, and a killed trainer
    leaves it to the run's next attempt, which knows it by its name.
    """
    config = getattr(multiprocessing.process.current_process(), "_config", {})
    run, attempt = os.environ.get(Env.RUN_ID, "")[:8], os.environ.get(Env.ATTEMPT, "")
    parent = Path(tempfile.gettempdir())
    if run and attempt and "tempdir" not in config and len(str(parent)) <= _ROOM and len(attempt) <= 7:
        _sweep(parent, f"pymp-{run}-", f"pymp-{run}-{attempt}-")
        folder = tempfile.mkdtemp(prefix=f"pymp-{run}-{attempt}-")
        multiprocessing.util.Finalize(None, _remove, args=(folder, os.getpid()), exitpriority=-100)
        config["tempdir"] = folder
    multiprocessing.util.get_temp_dir()


def _sweep(parent: Path, ours: str, present: str) -> None:
    """Remove what earlier attempts left: no process of theirs lives when the next one starts."""
    for path in parent.glob(f"{ours}*"):
        if not path.name.startswith(present) and path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
