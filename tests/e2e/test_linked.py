"""A run that links what does not change: a flipped bit is found in each generation that has it, and one is whole."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import resumed

from outlast_jobs.contract import ExitCode
from outlast_jobs.look import Verdict

SCRIPT = """
import time
import torch
from outlast_worker import Checkpointer

torch.manual_seed(1)
base = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 20))
net = torch.nn.Sequential(base.requires_grad_(False), torch.nn.Linear(20, 1))
optimizer = torch.optim.AdamW(net[1].parameters(), lr=1e-2)
ckpt = Checkpointer(model=net, optimizer=optimizer)
with ckpt:
    while ckpt.step_count < 400:
        loss = net(torch.randn(8, 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
        ckpt.step(loss=loss)
"""


def _inodes(paths: list[Path]) -> list[set[int]]:
    return [{(path / f"model.shard-{n:03d}.pt").stat().st_ino for n in range(2)} for path in paths]


def test_a_bad_bit_takes_every_other_generation_and_the_one_between_is_used(make_run: MakeRun) -> None:
    """Both that share the file are found bad, the one with its own copy is resumed from, and the run goes on, with
    links again once it has written the shards anew."""
    job = {"command": ["{python}", "train.py"], "save": {"every_steps": 20, "link_unchanged": True}}
    run = make_run({**job, "keep": {"last": 3}}, script=SCRIPT)
    supervisor = run.start()
    run.until_step(150)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    newest, own, other = run.generations()
    first, second, third = _inodes([newest, own, other])
    assert first == third
    assert not first & second
    assert len(run.verified()) == 3
    with (newest / "model.shard-001.pt").open("r+b") as file:
        file.seek(4000)
        byte = file.read(1)[0]
        file.seek(4000)
        file.write(bytes([byte ^ 1]))
    assert run.cli("verify", str(run.directory.path)).code == 1
    verdicts = {found.path.name: found.verdict for found in run.findings()}
    assert verdicts == {
        newest.name: Verdict.CORRUPT,
        own.name: Verdict.VERIFIED,
        other.name: Verdict.CORRUPT,
    }
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert resumed(run) == [None, own.name]
    assert [record.data["generation"] for record in run.records("quarantined")] == [newest.name]
    assert [path.name for path in run.generations()[3:]] == [own.name]  # which was resumed from
    assert len(run.verified()) == 4
    last = _inodes(run.generations())
    assert last[0] == last[2]
    assert not last[0] & last[1]
