"""A disk that is full costs saves: never the training, and never a generation that was good."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, plain, resumed
from tests.e2e.harness import Run, Supervisor
from tests.waiting import whole_lines

from outlast_jobs.contract import ExitCode

KB = 1000
HOOK = {"unprotected": 'echo "$OUTLAST_REASON" >> hooked'}

Mount = Callable[[str], None]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Path]:
    """The checkpoints of a test's first run, on a file system of their own that holds no generation."""
    folder = tmp_path / "1" / "run" / "checkpoints"
    folder.mkdir(parents=True)
    options = ["-o", f"size={600 * KB}"]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(run: Run, folder: Path, options: str) -> None:
    """Change the file system. While a save is under way it becomes neither read-only nor too small."""
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    run.until(lambda: subprocess.run(command, capture_output=True).returncode == 0, "another mount")


def unprotected(run: Run, word: str) -> None:
    """Wait until a save failed for this reason; then the run trains on, and what was good is still there."""
    status = run.until_status(lambda s: word in (s["unprotected"] or ""), f"unprotected by {word}")
    good = [f.path.name for f in run.verified()]
    assert status["state"] == "running"
    assert run.records("unprotected")[-1].data["reason"] == status["unprotected"]
    run.until_step((run.last_step() or 0) + 60)
    assert [f.path.name for f in run.verified()][:1] == good[:1]


def protected(run: Run) -> None:
    """Wait until a save went well again, by itself, and was read back."""
    times = len(run.records("unprotected"))
    run.until(lambda: len(run.records("protected")) == times, "a save that goes well")
    newest = run.records("sealed")[-1].data["generation"]
    run.until(lambda: newest in {r.data["generation"] for r in run.records("verified")}, "its verification")
    run.until_status(lambda s: s["unprotected"] is None, "protected in the status")


def whole(run: Run, first: Supervisor) -> None:
    """One attempt came through it all; told to stop it saves."""
    assert run.attempts() == [1]
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    steps = [line["step"] for line in run.history()]
    assert steps == list(range(1, steps[-1] + 1))
    assert run.verified()[0].index.step == steps[-1]
    run.nothing_left()


def test_a_full_or_read_only_disk_costs_saves_only(checkpoints: Path, make_run: MakeRun) -> None:
    """ENOSPC, too little space, and EROFS: unprotected, trained on, and protected again by itself."""
    run = make_run(
        plain(
            *("--ballast", 1000 * KB),
            steps=100_000,
            seconds=0.01,
            save={"every_steps": 30},
            keep={"last": 1},
            hooks=HOOK,
        )
    )
    first = run.start()
    unprotected(run, "No space left on device")
    assert run.generations() == []
    run.until(lambda: not any((checkpoints / ".writing-0001").iterdir()), "the end of what was half written")
    remount(run, checkpoints, "size=8m")
    protected(run)

    remount(run, checkpoints, f"size={1500 * KB}")  # possible while a single generation is there, not two
    unprotected(run, "not enough space")
    remount(run, checkpoints, "size=8m")
    protected(run)

    remount(run, checkpoints, "ro")
    unprotected(run, "Read-only file system")
    remount(run, checkpoints, "rw")
    protected(run)

    run.until(lambda: len(whole_lines(run.folder / "run" / "hooked")) == 3, "an alarm for each")
    assert first.output.count("training goes on, the save is tried again") == 3
    whole(run, first)


def test_a_file_that_may_not_grow_costs_saves_only(make_run: MakeRun) -> None:
    """EFBIG: the last verified generation is kept; told to stop meanwhile, the run goes on from that one."""
    run = make_run(
        plain(*("--ballast", 8000 * KB), steps=100_000, seconds=0.01, save={"every_steps": 30}, hooks=HOOK)
    )
    first = run.start()
    worker = first.worker()
    first.until(lambda: run.records("verified"), "a verified generation")
    _, hard = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (4000 * KB, hard))
    unprotected(run, "File too large")
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (hard, hard))
    protected(run)

    resource.prlimit(worker, resource.RLIMIT_FSIZE, (4000 * KB, hard))
    unprotected(run, "File too large")
    good = run.verified()[0].path.name
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert ends(run)[0]["code"] == ExitCode.CANNOT_WRITE
    assert "WITHOUT a save" in run.log(1)
    assert "without a save of its own" in first.output

    second = run.start()
    run.until_step(1, attempt=2)
    assert resumed(run) == [None, good]
    second.process.terminate()
    assert second.wait() == ExitCode.SAVED, run.report()
    run.nothing_left()
