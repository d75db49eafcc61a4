"""Folders that are no plain ones: without permission, long, oddly named, shared by a group, moved in between."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode

_WITHOUT = "-dac_override,-dac_read_search"
OBEYS = ("setpriv", f"--bounding-set={_WITHOUT}", f"--inh-caps={_WITHOUT}")
"""Runs a command as root that obeys the modes of files as everybody else does."""
SOON = {"without_progress": 2, "waiting": "0s", "backoff": "1ms..1ms"}
GROUP = 54321


def counting(steps: int = 30, seconds: float = 0.005, **sections: object) -> dict[str, object]:
    """A job whose trainer needs no torch, and saves every ten steps."""
    return {"command": ["{python}", "{scripts}/sealing.py", str(steps), "10", str(seconds)], **sections}


@contextlib.contextmanager
def closed(path: Path) -> Iterator[None]:
    """Nobody may write there."""
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(before & 0o555)
    try:
        yield
    finally:
        path.chmod(before)


def named(run: Run, text: str, *words: str) -> None:
    """A message says this, and there is no traceback."""
    for word in words:
        assert word in text, run.report()
    assert "Traceback" not in text, run.report()


@needs("namespaces")
@pytest.mark.parametrize("place", ["..", ".", "journal", "lock"])
def test_where_nothing_can_begin_it_is_73_with_the_cure(make_run: MakeRun, place: str) -> None:
    """Of a place that may not be written the path, the reason and the cure are said, and nothing is started."""
    run = make_run(counting(run_dir="in/run"))
    where = run.folder / "in" / "run"
    where.mkdir(parents=True)
    if place == "..":
        where.rmdir()
        where = where.parent
    else:
        where = where / place
        where.mkdir(exist_ok=True) if place == "journal" else where.touch()
    with closed(where):
        supervisor = run.start(wrapper=OBEYS)
        assert supervisor.wait() == ExitCode.CANNOT_WRITE
    named(run, supervisor.output, str(where.resolve()), "Permission denied", "give access, or choose another")
    assert not list(run.folder.glob("in/run/logs/*"))


@needs("namespaces")
@pytest.mark.parametrize(("place", "opens"), [("logs", "logs/attempt-0002.log"), ("alive", "alive")])
def test_what_an_attempt_cannot_open_is_named_and_not_the_command(
    make_run: MakeRun, place: str, opens: str
) -> None:
    """The file, the reason and the cure are said, not that the worker could not be executed; tries are counted."""
    run = make_run(counting(restart=SOON))
    run.directory.create()
    run.directory.alive.touch()
    with closed(run.directory.path / place):
        supervisor = run.start(wrapper=OBEYS)
        assert supervisor.wait() == ExitCode.HELD
    said = f"cannot open a file for the worker: Permission denied: {run.directory.path / opens}; make room or"
    named(run, supervisor.output, said)
    assert "execute" not in supervisor.output
    again = run.start("--release")
    assert again.wait() == ExitCode.DONE, run.report()


@needs("namespaces")
def test_checkpoints_that_may_not_be_written_are_waited_for(make_run: MakeRun) -> None:
    """A start says what it cannot do and why, and goes on by itself when it can; nothing is begun anew."""
    run = make_run(counting(steps=20))
    assert run.start().wait() == ExitCode.DONE, run.report()
    run.write_job(counting(steps=40))
    with closed(run.directory.checkpoints):
        supervisor = run.start(wrapper=OBEYS)
        said = f'Permission denied: "{run.directory.checkpoints}/.writing-0002"; make room or give access'
        supervisor.until(lambda: said in supervisor.output, "the reason")
        assert run.attempts() == [1]
    assert supervisor.wait() == ExitCode.DONE, run.report()
    named(run, supervisor.output, "resumes from step-000000020.a0001")


@needs("namespaces")
def test_what_a_run_can_do_without_costs_a_warning(make_run: MakeRun) -> None:
    """Requests that cannot be read and a record of the job that cannot be made end no run."""
    run = make_run(counting())
    run.directory.create()
    run.directory.job_yaml.touch(mode=0)
    run.directory.requests.chmod(0)
    supervisor = run.start(wrapper=OBEYS)
    assert supervisor.wait() == ExitCode.DONE, run.report()
    for what in ("record the job as it was resolved", "read what is asked of the run"):
        named(run, supervisor.output, f"cannot {what}: Permission denied (")
    run.directory.requests.chmod(0o755)


LONG = "x" * 255
NAMES = {
    "odd names": "/".join(
        (
            "r" * 200,
            LONG,
            " with  spaces ",
            "Läufe 日本語 ñ",
            "-n 'a\" %s {path} [x] #*?\\ ~\n;&",
        )
    ),
    "far longer than the path of a socket": "/".join(["d" * 200] * 17),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_a_run_lives_in_a_folder_of_any_name(make_run: MakeRun, name: str) -> None:
    """It is cut, resumed by another start, and shown by every command, as anywhere else."""
    run = make_run(counting(steps=100_000, run_dir=name))
    run.directory = type(run.directory)(run.folder / name)
    first = run.start()
    first.until(lambda: run.records("verified"), "a verified generation")
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    [saved] = [f.path.name for f in run.verified()][:1]
    run.write_job(counting(steps=int(saved.split(".")[0][5:]) + 10, run_dir=name))
    second = run.start()
    assert second.wait() == ExitCode.DONE, run.report()
    named(run, second.output, f"resumes from {saved}")
    place = str(run.directory.path)
    assert run.cli("status", "--", place).code == 0
    assert "begins after step" in run.cli("logs", "--", place).out
    assert run.cli("verify", "--", place).code == 0
    run.nothing_left()


def test_a_path_that_is_too_long_is_named(make_run: MakeRun) -> None:
    """Of a name or a path beyond what the kernel takes it says so, and what helps: 73."""
    for name in (LONG + "x", "/".join(["d" * 200] * 21)):
        run = make_run(counting(run_dir=name))
        supervisor = run.start()
        assert supervisor.wait() == ExitCode.CANNOT_WRITE
        named(run, supervisor.output, "File name too long", "choose a shorter path with --run-dir")


def test_a_path_that_is_no_text_is_refused_by_name_and_crashes_no_command(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """A folder whose name is no UTF-8 is refused before anything is made; looking at one brings no traceback."""
    folder = tmp_path / os.fsdecode(b"bad\xffname")
    run = Run(folder, counting())
    supervisor = run.start()
    assert supervisor.wait() == ExitCode.USAGE
    named(run, supervisor.output, "must be valid UTF-8", "rename it")
    assert not run.directory.path.exists()
    good = make_run(counting())
    run.env["PYTHONIOENCODING"] = "utf-8:strict"  # as most locales have it
    assert good.start().wait() == ExitCode.DONE, good.report()
    good.directory.path.rename(run.directory.path)
    for words in (("status",), ("logs",), ("verify",)):
        shown = run.cli(*words, str(run.directory.path))
        named(run, shown.err)
        assert shown.code == 0, shown


def read_only_but(*folders: Path) -> tuple[str, ...]:
    """Runs a command where the usual folders for what passes take nothing; these, which may lie in them, do."""
    shut = [f'mount --bind "{place}" "{place}"; mount -o remount,bind,ro "{place}"' for place in _PASSING]
    free = [f'mount --bind "{place}" "{place}"; mount -o remount,bind,rw "{place}"' for place in folders]
    return ("unshare", "-m", "sh", "-c", "; ".join([*shut, *free, 'exec "$@"']), "sh")


_PASSING = ("/tmp", "/var/tmp", "/dev/shm")


@needs("namespaces")
def test_a_place_for_the_socket_is_found_or_named(make_run: MakeRun) -> None:
    """Where the usual folder is too long or read-only another one is taken; where none is left that is said, 73."""
    run = make_run(counting())
    long = run.folder / LONG[:150]
    long.mkdir()
    places = {"XDG_RUNTIME_DIR": str(long), "TMPDIR": str(long)}
    assert run.start(env=places).wait() == ExitCode.DONE, run.report()

    other = make_run(counting())
    supervisor = other.start(env=places, wrapper=read_only_but(other.folder))
    assert supervisor.wait() == ExitCode.CANNOT_WRITE
    named(other, supervisor.output, "cannot make the socket", "set XDG_RUNTIME_DIR to a folder that can be")
    with tempfile.TemporaryDirectory(prefix="s-") as small:
        wrapper = read_only_but(other.folder, Path(small))
        supervisor = other.start(env={**places, "TMPDIR": small}, wrapper=wrapper)
        assert supervisor.wait() == ExitCode.DONE, other.report()


def test_too_few_open_files_are_named(make_run: MakeRun) -> None:
    """EMFILE is said with its cure where nothing can begin, and where an attempt cannot."""
    run = make_run(counting(restart=SOON))
    for limit in (8, 9, 10, 11):  # at some of them /proc is what it can't look at
        supervisor = run.start(wrapper=("prlimit", f"--nofile={limit}:{limit}"))
        assert supervisor.wait() == ExitCode.CANNOT_WRITE
        named(run, supervisor.output, "Too many open files; raise the limit of open files (ulimit -n)")
    assert run.start().wait() == ExitCode.DONE, run.report()


def test_too_few_threads_are_named(make_run: MakeRun) -> None:
    """A system that gives no thread is said with its cure, and nothing is started."""
    run = make_run(counting(restart=SOON))
    supervisor = run.start(wrapper=("sh", "-c", f'ulimit -s {1 << 36}; exec "$@"', "sh"))
    assert supervisor.wait() == ExitCode.CANNOT_WRITE
    named(run, supervisor.output, "cannot start a thread", "raise the limit (ulimit -u")
    assert run.start().wait() == ExitCode.DONE, run.report()


@needs("namespaces")
def test_a_group_can_read_all_that_is_made(make_run: MakeRun) -> None:
    """With umask 027 in a setgid folder everything is the group's and readable for it, and for nobody else."""
    run = make_run(counting(run_dir="shared/run", hooks={"done": "echo done"}))
    shared = run.folder / "shared"
    shared.mkdir()
    os.chown(shared, -1, GROUP)
    shared.chmod(0o2770)
    run.directory = type(run.directory)(shared / "run")
    supervisor = run.start(wrapper=("sh", "-c", 'umask 027; exec "$@"', "sh"))
    assert supervisor.wait() == ExitCode.DONE, run.report()
    found = [(path, path.lstat()) for path in sorted(shared.rglob("*"))]
    assert len(found) > 20
    for path, what in found:
        assert what.st_gid == GROUP, path
        wanted = 0o050 if stat.S_ISDIR(what.st_mode) else 0o040
        assert what.st_mode & wanted == wanted, (path, oct(what.st_mode))
        assert not what.st_mode & 0o007, (path, oct(what.st_mode))


def test_a_run_that_was_moved_goes_on(make_run: MakeRun) -> None:
    """After a move, by name or to another file system, it is the same run: same id, next attempt, newest generation."""
    run = make_run(counting(steps=100_000))
    first = run.start()
    first.until(lambda: run.records("verified"), "a verified generation")
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    saved, run_id = run.verified()[0].path.name, run.run_id
    moved = run.folder / "elsewhere" / "it lies now"
    moved.parent.mkdir()
    run.directory.path.rename(moved)
    run.directory = type(run.directory)(moved)
    run.write_job(counting(steps=int(saved.split(".")[0][5:]) + 10, run_dir="elsewhere/it lies now"))
    second = run.start()
    assert second.wait() == ExitCode.DONE, run.report()
    assert [r.data["resume"] for r in run.records(journal.ATTEMPT_STARTED)] == [None, saved]
    assert run.run_id == run_id
    assert not (run.folder / "run").exists()
