"""`outlast doctor` in a plain shell: each fault of machine, place and run really provoked."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.patients import WORKER, doctor, give_past, job
from tests.e2e.conftest import MakeRun, make_run
from tests.e2e.harness import OUTLAST, Run
from tests.realparts import needs

__all__ = ["make_run"]
Mount = Callable[[str, str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a small file system: ``mount(type, options)``."""
    made: list[Path] = []

    def do(kind: str, options: str) -> Path:
        folder = tmp_path / f"mounted-{len(made)}"
        folder.mkdir()
        told = subprocess.run(
            ["mount", "-t", kind, "-o", options, kind, str(folder)], capture_output=True, text=True
        )
        if told.returncode:
            pytest.skip(f"cannot mount {kind} here: {told.stderr.strip()}")
        made.append(folder)
        return folder

    yield do
    for folder in made:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def everything(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all files below a folder."""
    found = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return [(str(path), stat.st_size, stat.st_mtime_ns if path.is_file() else 0) for path, stat in found]


def test_a_sound_job_has_no_failure_and_is_left_as_it_was(tmp_path: Path) -> None:
    """Exit 0, a line for each check, nothing on stderr; no run directory is made and no file is left."""
    file = job(tmp_path)
    before = everything(tmp_path)
    found = doctor(file)
    assert (found.code, found.err, found.failures()) == (0, "", [])
    checks = {line["check"] for line in found.lines}
    assert checks >= {
        "run",
        "warning",
        "requeue",
        "grace",
        "write",
        "lock",
        "space",
        "clock",
        "python",
        "kill",
    }
    assert everything(tmp_path) == before
    assert found.of("python") == [f'ok: "{tmp_path}/python3": Python 3.12.1, torch 2.7.0 [None]']


def test_the_forms_of_the_answer(tmp_path: Path) -> None:
    """Text has a line and its cure; --quiet leaves out what is well; a wrong job file is 64."""
    file = job(tmp_path)

    def said(*words: str) -> list[str]:
        done = subprocess.run([OUTLAST, "doctor", *words], capture_output=True, text=True, check=False)
        return [*done.stdout.splitlines(), f"{done.returncode}"]

    whole, quiet = said(str(file)), said(str(file), "--quiet")
    assert any(line.startswith("ok ") for line in whole)
    assert not any(line.startswith("ok ") for line in quiet)
    assert any(line.lstrip().startswith("→ ") for line in quiet)
    assert (whole[-1], quiet[-1], said(str(tmp_path / "no.yaml"))[-1]) == ("0", "0", "64")


# -- the place -----------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written(tmp_path: Path, mount: Mount) -> None:
    """Read-only, without a byte, without an inode, below a file: a failure that names folder, reason and cure."""
    full = mount("tmpfs", "size=16k")
    (full / "fill").write_bytes(bytes(1 << 14))
    places = {
        mount("tmpfs", "ro"): "Read-only",
        full: "No space",
        mount("tmpfs", "nr_inodes=1"): "No space",
        tmp_path / "train.py" / "run": "Not a directory",
    }
    for place, reason in places.items():
        found = doctor(job(tmp_path, run_dir=str(place)))
        assert found.code == 1
        [line] = found.of("write")
        assert line.startswith("failure: "), line
        assert reason in line
        assert "--run-dir" in line


FAULTS = {
    "fsync:error=EIO:when=1": ("write", "failure", "cannot sync a file"),
    "fsync:error=EIO:when=2": ("write", "failure", "cannot sync the folder"),
    "rename:error=EPERM": ("write", "failure", "cannot rename"),
    "unlink:error=EROFS:when=1": ("write", "failure", "cannot remove"),
    "flock:error=ENOLCK": ("lock", "warning", "refused"),
    "flock:retval=0": ("lock", "warning", "granted to everybody"),
    "fallocate:error=EDQUOT": ("space", "failure", "quota"),
}


@needs("strace")
def test_a_file_system_that_lacks_something(make_run: MakeRun) -> None:
    """A call that fails is told as what it means for the run, and nothing is left behind."""
    run = done_run(make_run)
    for fault, (check, level, said) in FAULTS.items():
        traced = ["-e", f"trace={fault.partition(':')[0]}", "-e", f"inject={fault}"]
        found = doctor(run.job_file, wrapper=["strace", "-f", "-o", "/dev/null", *traced])
        assert any(line.startswith(level) and said in line for line in found.of(check)), (fault, found.lines)
        assert found.code == (level == "failure")
        assert not [name for name in os.listdir(run.directory.path) if "doctor" in name]


def test_locks_that_may_not_reach_other_hosts(tmp_path: Path, mount: Mount) -> None:
    """On a file system that is not known to keep its locks in this kernel the second line is told."""
    folder = mount("devtmpfs", "") / f"outlast-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        found = doctor(job(tmp_path, run_dir=str(folder)))
    finally:
        folder.rmdir()
    [line] = found.of("lock")
    assert line.startswith("warning: devtmpfs")
    assert "lease" in line


def done_run(make_run: MakeRun, **more: Any) -> Run:
    """A run with a past, done."""
    command = ["env", "{python}", str(WORKER), "6", "0.01"]
    run = make_run({"command": command, "save": {"every_steps": 3}, **more})
    assert run.start().wait() == 0, run.report()
    return run


def test_no_room_for_the_next_generation(make_run: MakeRun, mount: Mount) -> None:
    """What a generation takes is known from the run itself; too few bytes or inodes for one is a failure."""
    place = mount("tmpfs", "size=1m,nr_inodes=100") / "run"
    run = done_run(make_run, run_dir=str(place))
    assert doctor(run.job_file).failures() == []
    for number in range(60):
        (place.parent / f"{number}").touch()
    assert any("inodes" in line for line in doctor(run.job_file).of("space"))
    with open(place.parent / "fill", "wb", buffering=0) as file:
        size = os.statvfs(place)
        file.write(bytes(size.f_bavail * size.f_frsize - 4096 * 2))
    found = doctor(run.job_file, wrapper=["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"])
    assert found.code == 1
    assert any("ulimit -f" in line for line in found.of("space")), found.lines


# -- the machine ---------------------------------------------------------------------------------------------


@needs("faketime")
def test_clocks_that_are_wrong(tmp_path: Path) -> None:
    """A year in the past, and a clock that differs from the file system's."""
    file = job(tmp_path)
    fake = {**os.environ, "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"}
    assert any(
        "clock says 1999" in x
        for x in doctor(file, env={**fake, "FAKETIME": "1999-06-01 00:00:00"}).failures()
    )
    ahead = doctor(file, env={**fake, "FAKETIME": "+300s", "NO_FAKE_STAT": "1"})
    assert any("from this host's" in line for line in ahead.failures()), ahead.lines


def test_few_open_files(tmp_path: Path) -> None:
    """A limit that loader processes will hit is told with how to raise it."""
    found = doctor(job(tmp_path), wrapper=["sh", "-c", 'ulimit -n 100; exec "$@"', "sh"])
    assert found.code == 1
    assert "ulimit -n" in found.of("limits")[0]


# -- the run -------------------------------------------------------------------------------------------------


def test_the_state_of_the_run(make_run: MakeRun) -> None:
    """Running: who has it, and what a kill would cost now, undisturbed; then held, and released; then done."""
    command = ["env", "{python}", str(WORKER), "100000", "0.01"]
    run = make_run({"command": command, "save": {"every_steps": 10**6}})
    supervisor = run.start()
    run.until_status(lambda s: (s["step"] or 0) >= 5, "some steps")
    before = sorted(os.listdir(run.directory.path))
    found = doctor(run.job_file)
    assert "supervises it already" in found.of("run")[0]
    assert "a kill now would cost" in found.of("kill")[0]
    assert sorted(os.listdir(run.directory.path)) == before
    assert supervisor.running()
    assert run.cli("stop", str(run.directory.path)).code == 0
    assert supervisor.wait() == 70
    found = doctor(run.job_file)
    assert found.code == 1
    assert any("held by" in line for line in found.failures())
    run.write_job({"command": [*command[:3], "7", "0.01"], "save": {"every_steps": 3}})
    assert doctor(run.job_file).failures() == []
    assert run.start().wait() == 0, run.report()
    found = doctor(run.job_file)
    assert "it is complete" in found.of("run")[0]
    for path in run.generations():
        (path / "index.json.sha256").unlink()
    run.write_job({"command": command, "save": {"every_steps": 3}})
    assert any("none can be used" in line for line in doctor(run.job_file).failures())
    assert run.start().wait() == 65, run.report()
    assert any("found bad and set aside" in line for line in doctor(run.job_file).failures())
    verified = run.cli("verify", str(run.directory.path))
    assert (verified.code, ".corrupt-1" in verified.err) == (1, True), verified


def test_a_script_that_saves_by_itself(tmp_path: Path) -> None:
    """Where it would go on, that damaged checkpoints alone keep it from starting, and no promise of a save."""
    adopt = {"pattern": "out/step-*", "complete": "done.json", "resume": "--from {path}"}
    file = job(tmp_path, signals="native", adopt=adopt)
    found = doctor(file)
    assert "nothing whole matches 'out/step-*' yet" in found.of("run")[0]
    assert "the script's own newest whole checkpoint" in found.of("kill")[0]
    assert not any("SIGTERM saves" in line for line in found.of("warning"))
    assert "what a step and a save of its script take is not known here" in found.of("grace")[0]
    assert "is up to it" in found.of("space")[0]
    assert not any("after the first save" in line for line in found.lines)
    for step, text in ((5, "{}"), (12, "{")):
        (tmp_path / f"out/step-{step}").mkdir(parents=True)
        (tmp_path / f"out/step-{step}/done.json").write_text(text)
    assert "it goes on from step-5" in doctor(file).of("run")[0]
    (tmp_path / "out/step-5/done.json").write_text("")
    found = doctor(file)
    assert any("none can be used: step-12: 'done.json' is no JSON" in line for line in found.failures())


def test_a_grace_that_is_too_short(tmp_path: Path) -> None:
    """It is held against the steps and saves that the run has shown; enough is enough."""
    give_past(tmp_path / "run", step=60.0, save=5.0)
    for grace, level in (("64s", "failure"), ("100s", "warning"), ("131s", "ok")):
        [line] = doctor(job(tmp_path, stop={"grace": grace})).of("grace")
        assert line.startswith(level), line
        assert "a step takes 60 s and a save 5 s" in line


def test_saves_that_come_too_seldom_or_too_often(tmp_path: Path) -> None:
    """A cadence is held against what saves cost."""
    give_past(tmp_path / "run", step=1.0, save=20.0)
    found = doctor(job(tmp_path, save={"every_seconds": "30s"}))
    assert any(line.startswith("warning: each save costs the training 20 s") for line in found.of("kill")), (
        found.lines
    )


def test_saves_beside_the_training_cost_what_the_training_lost(tmp_path: Path) -> None:
    """However long one takes: what it holds up is held against the cadence."""
    give_past(tmp_path / "run", step=1.0, save=20.0, cost=0.1)
    found = doctor(job(tmp_path, save={"every_seconds": "30s"}))
    assert not any("each save costs" in line for line in found.of("kill")), found.lines


# -- who started it ------------------------------------------------------------------------------------------


def test_in_a_shell(tmp_path: Path) -> None:
    """A terminal that may be closed, nohup, and a log that each start empties."""
    file = job(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        with open(tmp_path / "out", "w") as out:
            os.dup2(out.fileno(), 1)
        os.execv(OUTLAST, [OUTLAST, "doctor", str(file)])
    os.waitpid(pid, 0)
    os.close(terminal)
    said = (tmp_path / "out").read_text()
    if not any(name in said for name in ("tmux", "screen")):
        assert "warning   warning     a terminal" in said
    assert "is a file that each start empties" in said
    hup = doctor(file, wrapper=["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"])
    assert "SIGHUP is ignored" in hup.of("warning")[0]
    assert "SIGINT is ignored" in hup.of("warning")[1]
    with open(tmp_path / "log", "a") as log:
        subprocess.run([OUTLAST, "doctor", str(file)], stdout=log, check=True)
    assert "is a file that is appended to" in (tmp_path / "log").read_text()


def test_on_a_narrow_terminal(tmp_path: Path) -> None:
    """Lines are wrapped between words, below one another; NO_COLOR takes the colours away."""
    file = job(tmp_path)
    for colours in (True, False):
        pid, terminal = pty.fork()
        if pid == 0:
            termios.tcsetwinsize(1, (40, 60))
            env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
            os.execve(OUTLAST, [OUTLAST, "doctor", str(file)], env | ({} if colours else {"NO_COLOR": "1"}))
        said = b""
        with contextlib.suppress(OSError):  # its end
            while data := os.read(terminal, 4096):
                said += data
        os.waitpid(pid, 0)
        os.close(terminal)
        assert (b"\x1b" in said) is colours
        lines = [re.sub("\x1b.*?m", "", line) for line in said.decode().splitlines()]
        assert not [line for line in lines if len(line) > 60 and " " in line[24:]]
        assert any(line.startswith(" " * 22) and "→" not in line for line in lines), lines


@needs("namespaces")
def test_in_a_container(tmp_path: Path) -> None:
    """As the first process, and somewhere in a pod: TERM comes, and the time that it leaves cannot be seen."""
    file = job(tmp_path)
    wrapper = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc"]
    first = doctor(file, wrapper=wrapper)
    assert first.code == 0, first.lines
    assert any("a container: how long it waits" in line for line in first.of("warning"))
    assert not any("not near it" in line for line in first.of("warning"))
    env = {**os.environ, "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    deep = doctor(file, wrapper=[*wrapper, "sh", "-c", 'sh -c "$0 $*; true"; true'], env=env)
    assert any("terminationGracePeriodSeconds: 35" in line for line in deep.of("warning"))
    assert any("not near it" in line for line in deep.of("warning"))


def test_python_itself_is_imported_lightly() -> None:
    """`outlast --help` loads nothing of the doctor."""
    code = "import sys, outlast_supervisor.commands; print([m for m in sys.modules if '.doctor' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
