"""Goodput under fire: one training, one schedule of kills, four that carry it; how far does each get?

Each carrier runs the same training under the same SIGKILLs of the trainer, with three cadences. A short stretch
finds each one's best cadence, a long one is counted: the step that the training's state has reached in the end, by
the seconds of the whole stretch. Steps trained again after a kill count once. Gaps between kills are Weibull with
shape 0.65, the shape of real preemptions. Run it on a quiet machine: python bench/under_fire.py [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import family
import goals

SHAPE = 0.65
SCRIPTS = Path(__file__).parent / "fire"
BIN = Path(sys.executable).parent
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}
CADENCES = (20, 60, 200)
"""Steps between saves that each carrier is tried with."""


@dataclass(frozen=True)
class Carrier:
    """Something that starts a training again: its name, and the command for a folder, a width and a cadence."""

    name: str
    command: Callable[[Path, int, int], list[str]]


@dataclass(frozen=True)
class Stretch:
    """What one stretch of time brought."""

    steps: int
    seconds: float
    kills: int

    @property
    def rate(self) -> float:
        """Useful steps per second."""
        return self.steps / self.seconds


def schedule(mean: float, seconds: float, seed: int) -> list[float]:
    """Seconds at which the trainer is killed: Weibull gaps of that mean."""
    drawn, scale, at, kills = random.Random(seed), mean / math.gamma(1 + 1 / SHAPE), 0.0, []
    while (at := at + drawn.weibullvariate(scale, SHAPE)) < seconds:
        kills.append(at)
    return kills


def carriers(standby: bool) -> list[Carrier]:
    """Those that are compared. A missing one is left out by the caller."""
    return [
        Carrier("outlast", lambda folder, width, every: _outlast(folder, width, every, standby=False)),
        *(
            [Carrier("outlast, standby", lambda f, width, every: _outlast(f, width, every, standby=True))]
            if standby
            else []
        ),
        Carrier("shell loop, torch.save", lambda f, width, every: _loop(_plain(f, width, every))),
        Carrier("torchrun, torch.save", lambda f, width, every: [
            *(str(BIN / "torchrun"), "--nproc-per-node=1", "--max-restarts=1000", "--monitor-interval=0.1"),
            *_plain(f, width, every)[1:],
        ]),
        Carrier("Lightning, ModelCheckpoint", lambda f, width, every: _loop(
            [sys.executable, str(SCRIPTS / "train_lightning.py"), str(f), str(width), str(every)]
        )),
    ]  # fmt: skip


def _outlast(folder: Path, width: int, every: int, standby: bool) -> list[str]:
    job = folder / "job.yaml"
    command = [sys.executable, str(SCRIPTS / "train_outlast.py"), str(folder), str(width)]
    job.write_text(
        f"name: fire\ncommand: {command!r}\nrun_dir: run\nsignals: outlast\n"
        f"save: {{every_steps: {every}}}\nkeep: {{last: 2}}\nrestart: {{backoff: 1ms..60s}}\n"
        + ("standby: true\npreload: [torch]\n" if standby else "")
    )
    return [str(BIN / "outlast"), "run", "--quiet", str(job)]


def _plain(folder: Path, width: int, every: int) -> list[str]:
    return [sys.executable, str(SCRIPTS / "train_plain.py"), str(folder), str(width), str(every)]


def _loop(command: list[str]) -> list[str]:
    return ["bash", "-c", 'until "$@"; do :; done', "loop", *command]


def stretch(carrier: Carrier, width: int, every: int, kills: list[float], seconds: float) -> Stretch:
    """Carry the training for so long under these kills, and see how far its state came."""
    folder = Path(tempfile.mkdtemp(prefix="fire-"))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            carrier.command(folder, width, every),
            env=ENV,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            hits, began = 0, time.monotonic()
            for at in [*kills, seconds]:
                time.sleep(max(0.0, began + at - time.monotonic()))  # the schedule is the experiment
                if at < seconds:
                    hits += _kill(folder)
            steps = _step(folder)
        finally:
            family.end(process)
    if steps == 0:
        sys.stderr.write((folder / "output").read_text(errors="replace")[-2000:])
    shutil.rmtree(folder, ignore_errors=True)
    return Stretch(steps, seconds, hits)


def _kill(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return False  # between two trainers
    return True


def _step(folder: Path) -> int:
    try:
        return int((folder / "step").read_text())
    except (OSError, ValueError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short stretches: only to see that it runs")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the stretch that counts")
    parser.add_argument("--mean", type=float, default=20.0, help="mean seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=2048, help="3·width² parameters; 12 bytes of state each")
    parser.add_argument("--standby", action="store_true", help="also with a warm standby")
    parser.add_argument("--only", default="", help="carriers whose name begins with one of these, by commas")
    options = parser.parse_args()
    seconds = 30.0 if options.quick else options.minutes * 60
    first = 15.0 if options.quick else max(60.0, seconds / 5)
    chosen = [
        c for c in carriers(options.standby) if any(c.name.startswith(o) for o in options.only.split(","))
    ]
    print(
        f"state {36 * options.width**2 / 1e6:.0f} MB, kills every {options.mean:g} s in the mean, seed {options.seed}"
    )
    print(f"{'carrier':<30}{'best cadence':>14}{'kills':>7}{'useful steps/s':>16}   others tried")
    rates: dict[str, float] = {}
    for carrier in chosen:
        short = schedule(options.mean, first, options.seed + 1)
        tried = {every: stretch(carrier, options.width, every, short, first) for every in CADENCES}
        best = max(tried, key=lambda every: tried[every].rate)
        whole = stretch(carrier, options.width, best, schedule(options.mean, seconds, options.seed), seconds)
        rates[carrier.name] = whole.rate
        others = ", ".join(f"{every}: {tried[every].rate:.2f}" for every in tried)
        print(f"{carrier.name:<30}{best:>8} steps{whole.kills:>7}{whole.rate:>16.2f}   {others}", flush=True)
    hold(rates)


def hold(rates: dict[str, float]) -> None:
    """Ours beside the best of the others."""
    peers = {name: rate for name, rate in rates.items() if not name.startswith("outlast") and rate}
    if not peers:
        return
    best = max(peers, key=lambda name: peers[name])
    print()
    for name, rate in rates.items():
        if name.startswith("outlast"):
            goals.ratio(f"goodput: {name}", rate, peers[best], best, unit="steps/s", at_least=1.0)


if __name__ == "__main__":
    main()
