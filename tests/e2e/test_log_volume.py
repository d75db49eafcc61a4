"""A log volume that takes nothing, or nothing more: what runs is told, and what trains goes on."""

from __future__ import annotations

from tests.e2e.conftest import MakeRun
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode


@needs("namespaces")
def test_where_no_log_can_be_made_nothing_starts_and_the_reason_is_told(make_run: MakeRun) -> None:
    """Path and error are said, no worker is started or shown as running, and it ends after the stated tries."""
    restart = {"without_progress": 2, "waiting": "0s", "backoff": "1ms..1ms"}
    run = make_run({"command": ["touch", "started"], "signals": "native", "restart": restart})
    logs = run.directory.logs
    logs.mkdir(parents=True)
    mount = f'mount --bind "{logs}" "{logs}" && mount -o remount,bind,ro "{logs}" && exec "$@"'
    supervisor = run.start(wrapper=("unshare", "-m", "sh", "-c", mount, "sh"))
    assert supervisor.wait() == ExitCode.HELD, run.report()
    why = (
        f"cannot open a file for the worker: Read-only file system: {run.directory.attempt_log(1)}; make room"
    )
    assert why in supervisor.output
    assert "execute" not in supervisor.output, "its command is not to blame"
    assert not (run.folder / "started").exists()
    assert len(run.records(journal.ATTEMPT_ENDED)) == 2
    assert (run.status() or {})["state"] == "finished"
    assert run.cli("stop", str(run.directory.path)).code in (0, ExitCode.HELD), "and it can be held"
    run.nothing_left()


CHATTY = """
import torch
from outlast_worker import Checkpointer

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer(model=model, optimizer=optimizer) as ckpt:
    while ckpt.step_count < 300:
        loss = model(torch.ones(2)).pow(2).sum()
        loss.backward()
        optimizer.step()
        print("step", ckpt.step_count, "x" * 200)
        ckpt.step(loss=loss)
"""


@needs("namespaces")
def test_a_volume_that_fills_up_under_a_training_costs_lines_only(make_run: MakeRun) -> None:
    """A training that prints more than its log's volume holds goes on to its end, in one attempt."""
    run = make_run({"command": ["{python}", "train.py"]}, script=CHATTY)
    logs = run.directory.logs
    logs.mkdir(parents=True)
    mount = f'mount -t tmpfs -o size=16k tmpfs "{logs}" && exec "$@"'
    supervisor = run.start(wrapper=("unshare", "-m", "sh", "-c", mount, "sh"))
    assert supervisor.wait() == ExitCode.DONE, run.report()
    [ended] = run.records(journal.ATTEMPT_ENDED)
    assert (ended.data["outcome"], ended.data["step"]) == ("done", 300)
    run.nothing_left()
