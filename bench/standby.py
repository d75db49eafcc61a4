"""Measure from a worker's death to the next first step, with a standby and by a fresh exec, in turn; decides nothing.

    python bench/standby.py [--rounds 5]

The script is a small torch training: what it costs is what importing costs. The backoff (10 ms) is in every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goals

OUTLAST = str(Path(sys.executable).with_name("outlast"))
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}
PATIENCE = 300.0

TRAIN = """
import time
import torch
from outlast_worker import Checkpointer

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
ckpt = Checkpointer(model=model, optimizer=optimizer)
with ckpt:
    first = True
    while True:
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        ckpt.step(loss=0.0)
        if first:
            first = False
            with open("stepped", "a") as file:
                print(repr(time.time()), file=file, flush=True)
        time.sleep(0.05)  # a step's length; what is measured ends with the first
"""

JOB = """
name: bench
command: ["{python}", train.py]
signals: outlast
save: {every_steps: 10}
restart: {backoff: 10ms..10ms}
run_dir: run
standby: STANDBY
"""


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Wait for it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)  # the times that are compared are written by the training itself
    raise SystemExit(f"waited {PATIENCE:.0f} s in vain for {what}")


class Case:
    """One run, with a standby or without."""

    def __init__(self, folder: Path, standby: bool) -> None:
        self.folder = folder
        self.standby = standby
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        (folder / "job.yaml").write_text(JOB.replace("STANDBY", str(standby).lower()))
        self.process = subprocess.Popen([OUTLAST, "run", "--quiet", "job.yaml"], cwd=folder, env=ENV)
        self.values: list[float] = []
        self.memory = 0

    def status(self) -> dict[str, Any]:
        """The newest snapshot."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "run" / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def steps(self) -> list[float]:
        """When each attempt did its first step."""
        path = self.folder / "stepped"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ready(self) -> bool:
        """Whether a worker can be killed: it trains, has sealed, and has a standby where it is to have one."""
        status = self.status()
        waiting = (status.get("standby") or {}).get("state") == "ready"
        running = status.get("state") == "running" and (status.get("last_save") or {}).get("at")
        return bool(running and (waiting or not self.standby))

    def round(self) -> None:
        """Kill the worker and measure until the next one has done a step."""
        before = len(until("a first step", self.steps))
        until("a worker that can be killed", self.ready)
        if view := self.status().get("standby"):
            self.memory = int(view.get("uss", 0))
        worker, at = int(self.status()["worker"]), time.time()
        os.kill(worker, signal.SIGKILL)
        self.values.append(until("the next first step", lambda: self.steps()[before:])[0] - at)

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


def main() -> None:
    """Both in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round: only to see that it runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        cases = [Case(Path(name) / str(standby), standby) for standby in (True, False)]
        try:
            for _ in range(1 if options.quick else options.rounds):
                for case in cases:
                    case.round()
        finally:
            for case in cases:
                case.end()
    middle = []
    for case, what in zip(cases, ("with a standby", "by a fresh exec"), strict=True):
        middle.append(statistics.median(case.values))
        spread = f"{min(case.values):.2f} to {max(case.values):.2f}"
        print(f"death to the next first step, {what:<20}{middle[-1]:>8.2f} s {spread:>18}")
    print(f"memory that only the standby has{'':<18}{cases[0].memory / 1e6:>8.0f} MB\n")
    goals.ratio(
        "death to the next first step, with a standby", *middle, "a fresh exec", unit="s", at_most=0.25
    )


if __name__ == "__main__":
    main()
