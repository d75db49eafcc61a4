"""`outlast export` where it cannot be: nothing stands at its place that is not whole, and the reason is said."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.damage import flip, rewrite_index, runs_code
from tests.e2e.exporting import beside, export, generation, struck

from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName
from outlast_jobs.jobfile import job_from_resolved, job_to_yaml
from outlast_jobs.look import Verdict, look
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.export import place

Mount = Callable[[str], Path]


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a small file system with these options."""
    made: list[Path] = []

    def do(options: str) -> Path:
        folder = tmp_path / f"tmpfs-{len(made)}"
        folder.mkdir()
        told = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "export", str(folder)], capture_output=True, text=True
        )
        if told.returncode:
            pytest.skip(f"cannot mount here: {told.stderr.strip()}")
        made.append(folder)
        return folder

    yield do
    for folder in made:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_killed_at_any_act_it_leaves_nothing_or_all(copied: Path, tmp_path: Path) -> None:
    """Before the last rename there is nothing at DEST, after it the whole; the next export removes what was left."""
    dest = tmp_path / "export"
    tell = "sys.addaudithook(lambda name, _: name.startswith('outlast.') and print(name, file=sys.stderr))"
    done = struck("outlast.write", 1, tell, copied, tmp_path / "counted")
    counts = Counter(done.err.split())
    acts = [(event, n) for event, count in counts.items() for n in range(1, count + 1)]
    assert (counts["outlast.write"], counts["outlast.sync"]) >= (7, 3), "all files, all folders"
    last = ("outlast.sync", counts["outlast.sync"])
    for event, number in [*(act for act in acts if act != last), last]:
        done = struck(event, number, "os.kill(os.getpid(), signal.SIGKILL)", copied, dest)
        assert (done.code, done.out) == (-9, ""), f"{event} {number}: {done.err}"
        whole = (event, number) == last
        left = [name for name in beside(dest) if name.startswith(".tmp-export-")]
        assert (dest.exists(), len(left)) == (whole, not whole), f"{event} {number}: {beside(dest)}"
    (made,) = dest.glob("step-*")
    assert look(made, None, full=True).verdict is Verdict.VERIFIED
    assert {"README.txt", "load.py", "job.yaml"} < set(os.listdir(dest))


def test_another_export_under_way_is_left_alone(copied: Path, tmp_path: Path) -> None:
    """What a living one writes beside is locked; what a killed one left is removed, and named."""
    living, left = (tmp_path / f".tmp-export-{digit * 12}" for digit in "ab")
    living.mkdir()
    left.mkdir()
    with place.beside(tmp_path / "other", print) as other:
        assert other.is_dir()
    assert not other.exists()
    fd = os.open(living, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = export(copied, tmp_path / "export")
    os.close(fd)
    assert done.code == 0
    assert (living.is_dir(), left.exists()) == (True, False)
    assert f'removed "{left.name}"' in done.err
    assert f'"{living}" is left alone' in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [("size=16k", " free; make room"), ("size=4m,nr_inodes=4", "No space left"), ("ro", "Read-only")],
)
def test_a_place_that_cannot_be_written(copied: Path, tmpfs: Mount, options: str, said: str) -> None:
    """Full, out of inodes, or read-only: 73 with the cure, and nothing is left there."""
    folder = tmpfs(options)
    done = export(copied, folder / "export")
    assert (done.code, done.out) == (73, "")
    assert said in done.err
    assert "name another place" in done.err
    assert os.listdir(folder) == []


def test_a_dest_that_is_something_else(copied: Path, tmp_path: Path, tmpfs: Mount) -> None:
    """Taken, linked, inside the run, a mount point, where one stands: 64, the reason, and it stays as it is."""
    full, here, mounted = tmp_path / "full", tmp_path / "here", tmpfs("size=1m")
    full.mkdir()
    here.mkdir()
    (full / "file").touch()
    (tmp_path / "link").symlink_to(here)
    (tmp_path / "inside").symlink_to(copied / "logs")
    refused = {
        full: "is not empty",
        full / "file": "is no folder",
        full / "file" / "export": "is no folder",
        tmp_path / "link": "is a symbolic link",
        copied / "export": "lies in the run directory",
        tmp_path / "inside" / "export": "lies in the run directory",
        mounted: "is a mount point",
        here: "is the current folder",
    }
    for dest, reason in refused.items():
        done = export(copied, dest, cwd=here)
        assert (done.code, done.out, reason in done.err) == (64, "", True), f"{dest}: {done.err}"
    assert os.listdir(full) == ["file"]
    assert not [folder for folder in (here, mounted, copied / "logs") if "export" in os.listdir(folder)]


def test_an_empty_dest_is_taken_and_missing_parents_are_made(copied: Path, tmp_path: Path) -> None:
    """As for any other tool that makes a folder."""
    (tmp_path / "export").mkdir()
    assert export(copied, tmp_path / "export").code == 0
    assert export(copied, tmp_path / "a" / "b").code == 0
    assert sorted(os.listdir(tmp_path / "a" / "b")) == sorted(os.listdir(tmp_path / "export"))


def test_no_usable_generation_is_65(copied: Path, tmp_path: Path) -> None:
    """Each is named with what is wrong; nothing of an export is left."""
    flip("meta.pt")(generation(copied))
    (generation(copied, 1) / "meta.pt").unlink()
    rewrite_index(generation(copied, 2), healthy=False)
    done = export(copied, tmp_path / "a" / "export")
    assert (done.code, done.out) == (65, "")
    for number, why in enumerate(
        ("corrupt: 'meta.pt' has ", "incomplete: 'meta.pt' is missing", "not healthy")
    ):
        assert f"{generation(copied, number).name}: {why}" in done.err.splitlines()[-1]
    named = export(copied, tmp_path / "a" / "export", "--generation", generation(copied, 1).name)
    assert (named.code, "is incomplete" in named.err) == (65, True)
    assert export(copied, tmp_path / "export", "--generation", "step-12").code == 64
    assert not list(tmp_path.rglob("*export*"))


def test_no_run_or_nothing_saved_yet(tmp_path: Path) -> None:
    """What is no run is 64; a run without a generation 65, with what to do, also for scripts that save themselves."""
    assert export(tmp_path / "nothing", tmp_path / "export").code == 64
    run = RunDirectory(tmp_path / "run")
    run.create()
    done = export(run.path, tmp_path / "export")
    assert (done.code, "no generation in " in done.err, "outlast save" in done.err) == (65, True, True)
    (run.path / "ckpt.pt").write_bytes(b"x")
    (run.path / "ckpt.pt.sha256").write_text(f"{'0' * 64}  ckpt.pt\n")
    done = export(run.path, tmp_path / "export")
    assert (done.code, "saves single files by itself (ckpt.pt)" in done.err) == (65, True)
    shutil.rmtree(run.checkpoints)
    done = export(run.path, tmp_path / "export")
    assert (done.code, "is missing; is its disk mounted here?" in done.err) == (65, True)
    assert os.listdir(tmp_path) == ["run"]


def test_what_does_not_load_is_not_exported(copied: Path, tmp_path: Path) -> None:
    """Files that fit their index and no state, or another one than the index says: 65, and no code of theirs runs."""
    rewrite_index(generation(copied), state_sha256="0" * 64)
    other = export(copied, tmp_path / "export")
    assert (other.code, f"its index says {'0' * 64}" in other.err) == (65, True)
    runs_code(tmp_path / "mark")(generation(copied))
    hostile = export(copied, tmp_path / "export")
    assert (hostile.code, "the copy does not load as it should" in hostile.err) == (65, True)
    assert not (tmp_path / "mark").exists()
    assert beside(tmp_path / "export") == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "load_state, before = lambda: {**before(), 'extra': {'offset': 1.5}}, load_state",
            "different states: extra/offset: the values of float differ",
        ),
        ("import outlast_jobs", "No module named 'outlast_jobs': an export has to load without it"),
    ],
)
def test_a_load_py_that_does_not_do_is_not_exported(
    copied: Path, tmp_path: Path, change: str, reason: str
) -> None:
    """One that comes to another state than the library, or needs outlast, is found out before anybody has it."""
    script = f"glob.glob({str(tmp_path)!r} + '/.tmp-export-*/load.py')[0]"
    act = f"import glob; open({script}, 'a').write({chr(10) + change!r})"
    done = struck("outlast.write", 6, act, copied, tmp_path / "export")  # load.py has been written
    assert (done.code, reason in done.err) == (65, True), done.err
    assert beside(tmp_path / "export") == []


def test_a_run_directory_names_no_program(copied: Path, tmp_path: Path) -> None:
    """The Python in a run directory's own record of its job is not executed; that of a job file that was named is."""
    mark, python = tmp_path / "mark", tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    record = copied / "job.yaml"
    kept = job_from_resolved(record.read_text())
    evil = msgspec.structs.replace(kept, command=(str(python), "train.py"), run_dir=str(copied))
    record.write_text(job_to_yaml(evil))
    assert export(copied, tmp_path / "export").code == 0
    assert not mark.exists()
    job = tmp_path / "job.yaml"
    job.write_text(f"name: copied\nrun_dir: copied\ncommand: ['{python}', train.py]\n")
    assert export(job, tmp_path / "named").code == 0
    assert mark.exists()


def test_a_python_without_torch_is_said_and_outlast_s_own_is_taken(copied: Path, tmp_path: Path) -> None:
    """The job's lacks it: it is loaded by ours, which is said; one that was asked for and lacks it is 2."""
    job = tmp_path / "job.yaml"
    job.write_text(
        json.dumps({"name": "c", "run_dir": "copied", "command": [sys.executable, "-S", "train.py"]})
    )
    done = export(job, tmp_path / "export")
    assert done.code == 0
    assert f'the job\'s Python "{sys.executable}" lacks torch (' in done.err
    assert "; loaded by the Python of outlast " in done.err
    for python, problem in (("/bin/false", "did not say"), (tmp_path / "none", "cannot be started")):
        refused = export(copied, tmp_path / "refused", "--python", python)
        assert (refused.code, problem in refused.err) == (2, True), refused.err
        assert "nothing was exported" in refused.err
    assert beside(tmp_path / "refused") == ["export"]


def test_a_foreign_generation_is_passed_over(copied: Path, tmp_path: Path) -> None:
    """One of another run that lies in the folder is not what this run has trained."""
    newer = generation(copied).with_name(str(GenerationName(15, 2)))
    claim(copied / "checkpoints", 2)
    shutil.copytree(generation(copied), newer)
    rewrite_index(newer, run_id="f" * 32, step=15, attempt=2)
    done = export(copied, tmp_path / "export")
    assert (done.code, "step 14" in done.out) == (0, True)
    assert f"passed over {newer.name}: foreign: it belongs to run " in done.err
