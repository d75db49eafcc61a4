"""A run directory on a disk that is dead, read-only, seen twice, or gone."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from tests.e2e.bare import PYTHON, WAITS, bare, needs_mounts, up
from tests.e2e.conftest import MakeRun


def first_of_all(site: Path) -> dict[str, str]:
    """Have every Python load the sitecustomize of a folder."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}


DEAD_DISK = """
import os, sys, time
if sys.argv[0].endswith("outlast") and sys.argv[1:2] == ["run"]:
    from outlast_supervisor import journaler, rules_end, session
    journaler.PATIENCE = rules_end.EXAMINE_PATIENCE = session.STUCK = session.HOOK_WAIT = 1.0
    switch, run = os.environ["DISK_IS_DEAD"], os.environ["DISK"]

    def hanging(call):
        def wrapped(what, *args, **kwargs):
            if os.path.exists(switch):
                path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
                while str(path).startswith(run):
                    time.sleep(3600)
            return call(what, *args, **kwargs)
        return wrapped

    for name in ("open", "write", "fsync", "ftruncate", "listdir", "replace", "mkdir"):
        setattr(os, name, hanging(getattr(os, name)))
"""


def test_a_dead_disk_holds_neither_a_notice_nor_the_loop(make_run: MakeRun, tmp_path: Path) -> None:
    """With every call to the run directory hanging TERM reaches the worker, the exit is 75, nothing spins."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DEAD_DISK)
    switch = tmp_path / "dead"
    env = {**first_of_all(site), "DISK_IS_DEAD": str(switch)}
    run = make_run(bare(["sh", "-c", "touch up; exec sleep 1000"]), env=env)
    supervisor = run.start(env={"DISK": str(run.directory.path)})
    up(run)
    supervisor.worker()
    switch.touch()
    supervisor.send(signal.SIGUSR2)  # a look at the clock, and a status that hangs from now on
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    run.nothing_left()


@needs_mounts
def test_a_run_directory_that_cannot_be_written_is_73(make_run: MakeRun) -> None:
    """On a read-only disk nothing is started, the exit is 73, and no folder is left in /tmp."""
    run = make_run(bare(["true"]))
    run.directory.path.mkdir()
    sockets = run.folder / "sockets"
    sockets.mkdir()
    mount = f'mount --bind "{run.directory.path}" "{run.directory.path}" && '
    mount += f'mount -o remount,bind,ro "{run.directory.path}" && exec "$@"'
    readonly = run.start(
        wrapper=("unshare", "-m", "sh", "-c", mount, "sh"), env={"XDG_RUNTIME_DIR": str(sockets)}
    )
    assert readonly.wait() == 73
    assert "cannot write the run directory" in readonly.output
    assert not list(sockets.iterdir())


@needs_mounts
def test_two_views_of_one_disk_have_one_lock(make_run: MakeRun) -> None:
    """A second start that sees the run under another path, in another mount namespace, exits 69."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS)
    first = run.start()
    up(run)
    other = run.folder / "other"
    other.mkdir()
    mount = f'mount --bind "{run.directory.path}" "{other}" && exec "$@"'
    second = run.start("--run-dir", str(other), wrapper=("unshare", "-m", "sh", "-c", mount, "sh"))
    assert second.wait() == 69
    first.send(signal.SIGTERM)
    assert first.wait() == 75


def test_a_removed_run_directory_ends_the_run_for_good(make_run: MakeRun, tmp_path: Path) -> None:
    """A run whose directory is removed under it is killed and ends with 73: 75 would begin it at zero."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif sys.argv[0].endswith('outlast') and sys.argv[1:2] == ['run']:\n"
        "    from outlast_supervisor import session\n    session.LOCK_EVERY = 0.3\n"
    )
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS, env=first_of_all(site))
    supervisor = run.start()
    up(run)
    while run.directory.path.exists():  # what is just being written there appears and disappears
        shutil.rmtree(run.directory.path, ignore_errors=True)
    assert supervisor.wait() == 73
    assert "removed or moved away" in supervisor.output


@needs_mounts
def test_what_is_missing_of_proc_is_told_or_done_without(make_run: MakeRun) -> None:
    """Without /proc nothing is started, and that is what is said; without the boot's id the run is carried."""
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
    run = make_run(bare(["true"]))
    refused = run.start(wrapper=[*hidden, "/proc"])
    assert refused.wait() == 73
    assert "outlast needs /proc: mount it" in refused.output
    carried = run.start(wrapper=[*hidden, "/proc/sys"])
    assert carried.wait() == 0, run.report()
    assert run.attempts() == [1]
