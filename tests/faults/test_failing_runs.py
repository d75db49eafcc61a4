"""Whole runs on a disk that fails now and then: supervisor and worker under strace, which fails what was drawn."""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import plain
from tests.e2e.harness import Run, Supervisor, children
from tests.faults.scale import chance, scaled, told
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.journal import read_journal

pytestmark = needs("strace")
CALLS = {
    "write": "write",
    "sync": "fsync,fdatasync",
    "open": "openat",
    "mkdir": "mkdir,mkdirat",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat,rmdir",
    "truncate": "ftruncate",
}
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EINTR")
WHEN = ("1", "2", "3..5", "4+", "2+3", "9+7")
"""Which calls of a name in each thread: the first, the second, some in a row, all from the fourth, every so many."""
STEPS = 40
_PATIENCE = 120.0
_WAITED = 45.0


@dataclass(frozen=True)
class Failing:
    """What fails on the disk."""

    call: str
    error: str
    when: str

    def wrapper(self, run: Run) -> tuple[str, ...]:
        """The strace that fails calls on what lies in the run directory."""
        place = run.directory
        folders = [place.path, place.journal, place.checkpoints, place.logs, place.metrics, place.requests]
        files = [place.status_json, place.job_yaml, place.run_json]
        writing = [place.checkpoints / f".writing-{attempt:04d}" for attempt in (1, 2, 3)]
        within = [w / f"step-{step:09d}.a0001" for w in writing[:1] for step in range(10, STEPS + 1, 10)]
        paths = [*folders, *files, *writing, *within, *self._journals(run)]
        # a new name is not known before, so calls that nothing but a run makes are failed wherever they are
        only = (
            [word for path in paths for word in ("-P", str(path))] if self.call in ("write", "open") else []
        )
        what = [
            "-e",
            f"trace={CALLS[self.call]}",
            "-e",
            f"inject={CALLS[self.call]}:error={self.error}:when={self.when}",
        ]
        return ("strace", "-f", "-qq", "--seccomp-bpf", "-o", str(run.folder / "trace"), *only, *what, "--")

    def _journals(self, run: Run) -> list[Path]:
        from outlast_jobs.identity import hostname

        return [run.directory.journal / f"{life:04d}-{hostname()}.jsonl" for life in (1, 2)]


def every() -> list[Failing]:
    """All combinations but calls that are interrupted for ever: the interpreter does them again until they are done."""
    found = [Failing(call, error, when) for call in CALLS for error in ERRORS for when in WHEN]
    return [f for f in found if not (f.error == "EINTR" and f.when.endswith("+"))]


def held(run: Run) -> None:
    """All with a final name is whole, each start resumed from no less than was acknowledged, the journal is whole."""
    assert all(f.verdict == "verified" for f in run.findings()), run.report()
    found = read_journal(run.directory)
    assert not found.damage, found.damage
    sealed = 0
    for record in found.records:
        if record.event == journal.SEALED:
            sealed = max(sealed, record.data["step"])
        elif record.event == journal.ATTEMPT_STARTED:
            assert record.data["step"] >= sealed, f"begun again at {record.data['step']}\n{run.report()}"


def litter(run: Run) -> set[str]:
    """What is no generation, and not the newest claim, which is empty."""
    found = set(run.directory.checkpoints.iterdir()) - {*run.generations()}
    newest = max(found, key=lambda path: path.name)
    return {p.name for p in found if p != newest or not p.name.startswith(".writing-") or any(p.iterdir())}


def end_of(supervisor: Supervisor) -> int:
    """Its exit code; one that waits for the disk, and says so, is told to stop."""
    try:
        return supervisor.wait(_WAITED)
    except TimeoutError:
        assert "looking again in" in supervisor.output, supervisor.run.report()
        for pid in children(supervisor.pid):  # of strace
            os.kill(pid, signal.SIGTERM)
        return supervisor.wait()


DRAWN = scaled(chance("failing runs").sample(every(), 4), every())


@pytest.mark.parametrize("failing", DRAWN, ids=lambda f: f"{f.call}-{f.error}-{f.when}")
def test_a_run_on_a_failing_disk_is_carried_on(make_run: MakeRun, failing: Failing) -> None:
    """It ends as documented, with a cause and without a traceback; on a sound disk the next start completes it."""
    restart = {"without_progress": 4, "waiting": "0s", "backoff": "10ms..50ms"}
    command = ["{python}", "{scripts}/sealing.py", str(STEPS), "10", "0.002"]
    run = make_run({"command": command, "restart": restart})
    run.directory.create()  # or what fails first would be that, which is tried apart
    first = run.start(wrapper=failing.wrapper(run))
    code = end_of(first)
    assert "Traceback" not in first.output, run.report()
    assert code in (ExitCode.DONE, ExitCode.HELD, ExitCode.CANNOT_WRITE, ExitCode.SAVED), run.report()
    died = "cannot write the run directory" in first.output
    assert not (died and run.attempts()), f"the supervisor died under its worker\n{run.report()}"
    if code != ExitCode.DONE:
        assert re.search(r"cannot|could not|unprotected", first.output), run.report()
    held(run)
    if code != ExitCode.DONE:
        second = run.start("--release")
        assert second.wait() == ExitCode.DONE, run.report()
        held(run)
    newest = run.verified()[0].index
    assert newest is not None
    assert (newest.step, newest.final) == (STEPS, True), run.report()
    if litter(run):  # what cannot be deleted while the disk fails goes with the next start, as all else
        assert run.start().wait() == ExitCode.DONE, run.report()
    assert not litter(run), run.report()
    run.nothing_left()
    hit = (run.folder / "trace").read_text(errors="replace").count("(INJECTED)")
    told(
        f"failing runs of {len(every())}: {failing.call} {failing.error} {failing.when}, {hit} calls failed",
        1,
    )


def failing_saves(run: Run, errors: tuple[str, ...]) -> list[str]:
    """A strace that fails one call in each of four saves of the worker, and nothing else."""
    writing = run.directory.checkpoints / ".writing-0001"
    folders = [writing / f"step-{step:09d}.a0001" for step in (60, 120, 180, 240)]
    paths = [word for path in [*folders[:3], folders[3] / "meta.pt"] for word in ("-P", str(path))]
    calls = [f"inject={call}:error={error}:when=1" for call, error in zip(SAVING, errors, strict=True)]
    injected = [word for call in calls for word in ("-e", call)]
    trace = ["-o", str(run.folder / "trace"), "-e", f"trace={','.join(SAVING)}"]
    return ["strace", "-f", "-qq", "--seccomp-bpf", *trace, *paths, *injected, "--"]


SAVING = ("mkdir", "fsync", "renameat2", "write")
DONE_AGAIN = ("fsync", "write")
"""Calls that are done again where a signal interrupts them; of the others EINTR is an error as any."""


def rotated(first: int) -> tuple[str, ...]:
    return tuple(ERRORS[(first + number) % len(ERRORS)] for number in range(len(SAVING)))


@pytest.mark.parametrize(
    "first", scaled([chance("failing saves").randrange(len(ERRORS))], list(range(len(ERRORS))))
)
def test_a_training_goes_on_unprotected_and_recovers_at_the_next_cadence(
    make_run: MakeRun, first: int
) -> None:
    """A call that fails in a save costs that save: it is told, nothing half-made stays, the next one goes well."""
    errors = rotated(first)
    run = make_run(plain())
    job = plain(steps=300, save={"every_steps": 30}, keep={"last": 20})
    run.write_job({**job, "command": [*failing_saves(run, errors), *job["command"]]})
    supervisor = run.start()
    assert supervisor.wait(_PATIENCE) == ExitCode.DONE, run.report()
    trace = (run.folder / "trace").read_text(errors="replace")
    # each thread has calls of its own counted, and a save that finds no memory yet is made by the training's
    failed = re.findall(r"(\w+)(?: resumed>|\().* = -1 (E\w+) .*\(INJECTED\)", trace)
    assert {(call, error) for call, error in failed} <= set(zip(SAVING, errors, strict=True)), trace
    assert len(failed) >= len(SAVING), trace
    fail = [error for call, error in failed if not (error == "EINTR" and call in DONE_AGAIN)]
    told_of = [record.data["reason"] for record in run.records(journal.UNPROTECTED)]
    assert told_of == [os.strerror(getattr(errno, error)) for error in fail], run.report()
    assert len(run.records(journal.PROTECTED)) == len(fail)
    # where an fsync is only done again, that save comes to a rename, and it is that one which fails
    lost = {int(step) for step in re.findall(r'cannot save "step-0*(\d+)\.', run.log())}
    assert len(lost) == len(fail), run.report()
    assert lost <= {60, 120, 180, 240}, run.report()
    saved = {f.index.step for f in run.verified() if f.index is not None}
    assert saved == set(range(30, 301, 30)) - lost, run.report()
    assert (run.attempts(), [line["step"] for line in run.history()]) == ([1], list(range(1, 301)))
    assert not any((run.directory.checkpoints / ".writing-0001").iterdir())
    run.nothing_left()
    told("calls failed in the saves of a training", len(failed))
