"""The history of a run on disk: never behind what is saved."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.listening import TRAIN, Listener, Zygote

from outlast_jobs.metrics import steps
from outlast_worker.metrics import MetricsWriter

_WATCHED = """
import json, os, sys
_fdatasync, synced = os.fdatasync, 0
def fdatasync(fd):
    global synced
    _fdatasync(fd)
    with open(f"/proc/self/fd/{fd}") as file:
        synced = json.loads(file.read().splitlines()[-1]).get("step", 0)
os.fdatasync = fdatasync
def hook(event, args):
    if event == "outlast.rename": print("published", os.path.basename(args[1]), "synced", synced, flush=True)
sys.addaudithook(hook)
"""


@pytest.mark.parametrize("every", ["7", "1000"])
def test_no_step_is_saved_before_its_line_is_on_disk(tmp_path: Path, zygote: Zygote, every: str) -> None:
    """Each generation's steps are synced when it is published, whether the training waits for the save or goes on."""
    listener = Listener(tmp_path / "run", zygote)
    try:
        (listener.folder / "train.py").write_text(_WATCHED + TRAIN)
        code, output = listener.through(OUTLAST_SAVE_EVERY_STEPS=every)
    finally:
        listener.close()
    assert code == 0, output
    found = re.findall(r"^published step-0*(\d+)\..* synced (\d+)$", output, re.M)
    assert [int(step) for step, _ in found] == ([*range(7, 40, 7), 40] if every == "7" else [40])
    assert all(int(synced) >= int(step) for step, synced in found), found


def test_half_a_line_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write that a full disk cut the next line stands for itself, and what is missing is counted."""
    path = tmp_path / "run" / "metrics" / "attempt-0001.jsonl"
    path.parent.mkdir(parents=True)
    writer = MetricsWriter(path, 1, 0, None)
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
        writer.line({"step": 1})
    writer.line({"step": 2})
    writer.line({"step": 3})
    writer.close()
    assert writer.failures == 1
    assert [line["step"] for line in steps(path)] == [2, 3]
