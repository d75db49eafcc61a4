"""A whole run directory that takes nothing more: no room, no inodes, no quota, read-only, no permission."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import plain
from tests.e2e.harness import Run
from tests.faults.scale import chance, scaled, told
from tests.faults.test_odd_folders import OBEYS
from tests.realparts import needs
from tests.waiting import wait_until

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode

pytestmark = needs("namespaces", "loopback disks")
KB = 1000
WHOLE = "whole"
FOREVER = {"steps": 100_000, "seconds": 0.01, "save": {"every_steps": 30}}

Mount = Callable[..., None]


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Where the run directory of a test's first run will be."""
    folder = tmp_path / "1" / "run"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def mount(run_folder: Path) -> Iterator[Mount]:
    """Mounts a file system on the run directory; taken away at the end, whatever happens."""
    yield lambda *options: call("mount", *options, str(run_folder))
    for folder in (run_folder, run_folder.parent / WHOLE):
        while os.path.ismount(folder):
            call("umount", "--lazy", str(folder))


@dataclass(frozen=True)
class Disk:
    """How a disk is made, made to fail, and mended."""

    make: Callable[[Path, Mount], None]
    fail: Callable[[Path], None]
    mend: Callable[[Path], None]
    word: str


def _remounted(folder: Path, options: str) -> None:
    """Tried again: while something is being made the number in use moves."""
    for _ in range(100):
        if not subprocess.run(["mount", "-o", f"remount,{options}", folder], capture_output=True).returncode:
            return
    raise AssertionError(f"cannot remount with {options}")


def _no_inodes(folder: Path) -> None:
    for _ in range(100):
        found = os.statvfs(folder)
        limit = f"remount,nr_inodes={found.f_files - found.f_ffree}"
        if not subprocess.run(["mount", "-o", limit, str(folder)], capture_output=True).returncode:
            return
    raise AssertionError("cannot take the inodes")


def _no_room(folder: Path) -> None:
    found = os.statvfs(folder)
    with (folder / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (found.f_bfree - 1) * found.f_frsize)


def _btrfs(folder: Path, mount: Mount) -> None:
    image = folder.parent / "image"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    call("mkfs.btrfs", "-q", "-f", str(image))
    whole = folder.parent / WHOLE
    whole.mkdir()
    call("mount", "-o", "loop", str(image), str(whole))
    call("btrfs", "quota", "enable", str(whole))
    call("btrfs", "subvolume", "create", str(whole / "sub"))
    mount("--bind", str(whole / "sub"))


def _limit(folder: Path, size: str) -> None:
    """Of the first subvolume; asked for in the one above it, whose own quota is not used up."""
    call("btrfs", "qgroup", "limit", size, "0/256", str(folder.parent / WHOLE))


def _shut(folder: Path) -> None:
    for path in (folder, folder / "checkpoints"):
        path.chmod(0o555)


def _open(folder: Path) -> None:
    for path in (folder, folder / "checkpoints"):
        path.chmod(0o755)


DISKS = {
    "no room": Disk(
        lambda folder, mount: mount("-t", "tmpfs", "-o", "size=8m", "tmpfs"),
        _no_room,
        lambda folder: (folder / "filler").unlink(),
        "not enough space",
    ),
    "no inodes": Disk(
        lambda folder, mount: mount("-t", "tmpfs", "-o", "nr_inodes=500", "tmpfs"),
        _no_inodes,
        lambda folder: _remounted(folder, "nr_inodes=500"),
        "inodes",
    ),
    "a quota": Disk(
        _btrfs,
        lambda folder: _limit(folder, "100K"),
        lambda folder: _limit(folder, "none"),
        "Disk quota exceeded",
    ),
    "no permission": Disk(lambda folder, mount: None, _shut, _open, "Permission denied"),
}


@pytest.mark.parametrize("kind", scaled(sorted(chance("whole disk").sample(sorted(DISKS), 2)), list(DISKS)))
def test_it_costs_saves_and_is_over_by_itself(
    mount: Mount, run_folder: Path, make_run: MakeRun, kind: str
) -> None:
    """Unprotected, with the reason; it trains on, what was good stays; with room again it saves, all by itself."""
    disk = DISKS[kind]
    disk.make(run_folder, mount)
    run = make_run(plain("--ballast", 100 * KB, **FOREVER))
    first = run.start(wrapper=OBEYS)
    first.until(lambda: run.records(journal.VERIFIED), "a verified generation")
    good = run.verified()[0].path
    disk.fail(run_folder)
    first.until(lambda: re.search(f"unprotected: .*{disk.word}", first.output), "a save that fails")
    assert good.name in [f.path.name for f in run.verified()]
    disk.mend(run_folder)
    first.until(lambda: "protected again: " in first.output, "a save that goes well")
    first.until(lambda: run.records(journal.PROTECTED), "what was said, in the journal as well")
    first.until(lambda: (run.status() or {}).get("unprotected") is None, "the status")
    assert run.attempts() == [1]
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert run.verified()[0].path.name > good.name
    in_order(run)
    told(f"disks that take nothing more: {kind}", 1)


def in_order(run: Run) -> None:
    """No traceback, nothing half-written, no process is left."""
    output = "".join(supervisor.output for supervisor in run.supervisors)
    assert "Traceback" not in output + run.log(), run.report()
    left = {p.name for p in run.directory.checkpoints.iterdir()} - {p.name for p in run.generations()}
    assert left == {f".writing-{run.attempts()[-1]:04d}"}
    assert not any((run.directory.checkpoints / left.pop()).iterdir())
    assert not list(run.directory.path.glob(".tmp-*"))
    run.nothing_left()


def test_a_disk_of_one_megabyte_is_enough_for_what_fits(
    mount: Mount, run_folder: Path, make_run: MakeRun
) -> None:
    """A run whose directory is a tmpfs of 1 MB, and that needs most of it, is done without a failed save."""
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    run = make_run(plain("--ballast", 150 * KB, steps=150, save={"every_steps": 25}, keep={"last": 1}))
    supervisor = run.start()
    assert supervisor.wait() == ExitCode.DONE, run.report()
    assert [line["step"] for line in run.history()] == list(range(1, 151))
    in_order(run)


def test_a_disk_that_turns_read_only_for_good_costs_no_run(
    mount: Mount, run_folder: Path, make_run: MakeRun
) -> None:
    """It trains on where the kernel made its disk read-only, says why it cannot save, and goes on after a repair."""
    image = run_folder.parent / "image"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    call("mkfs.ext4", "-q", "-F", str(image))
    mount("-o", "loop,errors=remount-ro", str(image))
    run = make_run(plain(**FOREVER))
    first = run.start()
    first.until(lambda: run.records(journal.VERIFIED), "a verified generation")
    device = subprocess.check_output(["findmnt", "-no", "SOURCE", str(run_folder)], text=True).strip()
    Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")
    first.until(lambda: "unprotected: Read-only file system" in first.output, "a save that fails")
    kept = {f.path.name for f in run.verified()}
    assert kept
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert "without a save of its own" in first.output

    assert run.start().wait() == ExitCode.CANNOT_WRITE, "a start on such a disk says so, too"
    assert "Read-only file system; make room or give access" in run.supervisors[-1].output
    call("umount", str(run_folder))
    # a mount namespace that somebody made beside us keeps it mounted, and as it is, until that is gone
    wait_until(
        lambda: not Path("/sys/fs/ext4", Path(device).name).exists(), 120, "the end of the file system"
    )
    subprocess.run(["e2fsck", "-p", "-f", str(image)], capture_output=True, check=False)
    mount("-o", "loop", str(image))
    assert {f.path.name for f in run.verified()} == kept
    third = run.start()
    third.until(lambda: run.records(journal.ATTEMPT_STARTED)[1:], "the next attempt")
    assert run.records(journal.ATTEMPT_STARTED)[-1].data["resume"] == max(kept)
    third.process.terminate()
    assert third.wait() == ExitCode.SAVED, run.report()
    in_order(run)
