"""A trainer that is ended in the middle of a restore from the disk has written nothing, and the next one goes on."""

from __future__ import annotations

import hashlib
import signal
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run, kill

from outlast_jobs.contract import ExitCode

TRAIN = """
import fcntl, os, random, signal, threading, time
from pathlib import Path
import numpy, torch
from outlast_jobs import durable
from outlast_worker import Checkpointer, batches, ptread, resident

def cold(fd, size):
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return resident.is_on_disk_alone(fd, size)

def read_into(fd, buffer):
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
        reads.append(fd)
        if len(reads) == 3 and Path("stop-there").exists():
            Path("stop-there").rename("there")
            threading.Event().wait()
    return real(fd, buffer)

reads, real = [], durable.read_into
durable.read_into, ptread.is_on_disk_alone = read_into, cold
for seed in (torch.manual_seed, numpy.random.seed, random.seed):
    seed(1)
model = torch.nn.Linear(4096, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = batches(torch.randn(64, 4096), 8, seed=1)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    Path("reads").write_text(str(len(reads)))
    for batch in ckpt.steps(16):
        loss = model(batch + 0.1 * torch.randn_like(batch)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ckpt.step(loss)
        if ckpt.step_count == 8 and Path("stop-at-8").exists():
            Path("stop-at-8").unlink()
            os.kill(os.getppid(), signal.SIGTERM)
            while not ckpt._session.signals.stops:
                time.sleep(0.001)
"""
JOB = {"command": ["{python}", "train.py"], "save": {"every_steps": 4}, "keep": {"last": 9}}


def outcome(run: Run) -> tuple[list[Any], str | None]:
    """The loss and the random streams of every step, and the digest of the state at the end."""
    final = next(finding.index for finding in run.verified() if finding.index and finding.index.final)
    lines = [(line["step"], line["loss"], line["rng"], line["ids"]) for line in run.history()]
    return lines, final.state_sha256


def written(run: Run) -> dict[str, str]:
    """All that generations and metrics hold, by its digest."""
    folders = run.directory.checkpoints, run.directory.attempt_metrics(1).parent
    files = [path for folder in folders for path in folder.glob("[!.]*/*" if folder == folders[0] else "*")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("whom", ["trainer", "supervisor"])
def test_a_restore_that_is_ended_in_the_middle_is_begun_anew(
    make_run: MakeRun, whom: str, number: signal.Signals
) -> None:
    """Whoever is ended, by whatever, while the bytes come from the disk: nothing is written, nothing is set aside, and
    the next attempt resumes from the same generation to the end of the run that nobody disturbed."""
    undisturbed = make_run(JOB, script=TRAIN)
    assert undisturbed.start().wait() == ExitCode.DONE, undisturbed.report()
    run = make_run(JOB, script=TRAIN)
    (run.folder / "stop-at-8").touch()
    assert run.start().wait() == ExitCode.SAVED, run.report()
    before = written(run)
    (run.folder / "stop-there").touch()
    (run.folder / "reads").unlink()
    start = run.start()
    there = run.folder / "there"
    start.until(lambda: there.exists() or (run.folder / "reads").exists(), "the third read")
    if not there.exists():
        pytest.skip("this file system does not read past the page cache")
    assert written(run) == before
    if whom == "trainer":
        kill(start.worker(), number)
        assert start.wait() == ExitCode.DONE, run.report()
    else:
        start.send(number)
        assert start.wait() == (ExitCode.SAVED if number == signal.SIGTERM else -signal.SIGKILL), run.report()
        run.until(lambda: not run.of_attempts(), "the end of the trainer")
        assert written(run) == before
        start = run.start()
        assert start.wait() == ExitCode.DONE, run.report()
    assert before.items() <= written(run).items()
    assert run.metrics(2) == []
    assert "resumed from step-000000009.a0001 at step 9 (bit-exact expected)" in run.log(3)
    assert int((run.folder / "reads").read_text()) >= 3
    assert outcome(run) == outcome(undisturbed)
    run.nothing_left()
