"""What a save costs the training, side by side: every contender on the same model, in turn, in fresh processes.

Of each: the call alone; the stall, which is the call and what the next update waited; the training time lost a save;
until the save is on disk, synced; and the memory that it takes beside the training. Medians over all saves, and their
range. "nothing" is no save: what the estimate of the lost time makes of none. "memcpy, then sha256" is the least that
takes a digest beside the training, in one thread, with nothing written. "compared" are outlast's first saves of an
attempt, which are held against what they were copied from, as one in fifty is later. "blocking" is its save at SIGTERM.
Run it on a quiet machine: python bench/saves.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import family
import goals

LIMITS = ("nothing", "memcpy", "memcpy, then sha256", "raw write", "raw direct write")
PEERS = (
    *("torch.save", "torch.save in a thread", "DCP async", "DCP process"),
    *("DCP async, staged meanwhile", "DCP process, staged meanwhile"),
    *("Lightning async", "DLRover flash checkpoint"),
)
OURS = ("outlast", "outlast, compared", "outlast, blocking")
BLOCKING = OURS[2]
LARGE = 600
"""Megabytes from which on a state is large: each save takes seconds then, and there are fewer of them."""
NOT_LARGE = ("torch.save in a thread", "DCP process, staged meanwhile", "outlast, compared")
SCRIPT = Path(__file__).parent / "saves" / "measure.py"
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}
LONGEST = 300.0
"""Seconds that one process may take."""

Line = dict[str, float]


@dataclass
class Found:
    """What the saves of one contender cost, or why that is not known."""

    lines: list[Line] = field(default_factory=list)
    memory: float | None = None
    size: float = 0.0
    why: str = ""

    def take(self, lines: Sequence[Line], why: str) -> None:
        """Add what a process found."""
        self.lines += [line for line in lines if "call" in line]
        for line in lines:
            if "memory" in line:
                self.memory, self.size = line["memory"], line["bytes"]
        self.why = self.why or why

    def all(self, key: str) -> list[float]:
        """Of each save, in milliseconds."""
        return [line[key] * 1e3 for line in self.lines]

    def middle(self, key: str) -> float:
        """The median, in milliseconds."""
        return statistics.median(self.all(key))


def measure(name: str, megabytes: int, rounds: int, *, memory: bool) -> tuple[list[Line], str]:
    """What each save of a fresh process cost, and why there are none where it could not be run."""
    folder = Path(tempfile.mkdtemp(prefix="saves-"))
    command = [sys.executable, str(SCRIPT), name, str(folder), str(megabytes), str(rounds)]
    command.append("memory" if memory else "times")
    if name in OURS:
        job = folder / "job.yaml"
        job.write_text(
            f"name: saves\nrun_dir: run\nsignals: outlast\ncommand: {json.dumps(command)}\n"
            "save: {every_steps: 1000000}\n"
        )
        command = [str(Path(sys.executable).with_name("outlast")), "run", "--quiet", str(job)]
    try:
        said = _run(command, folder)
        told = folder / "measured"
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        return lines, "" if any("call" in line for line in lines) else (said or "it says nothing")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _clear(folder.name)


def _run(command: list[str], folder: Path) -> str:
    """Run it to its end, or to ours; the last line that it says."""
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            command,
            env=ENV,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"not done after {LONGEST:g} s"
        finally:
            family.end(process)
        logs = sorted(folder.glob("run/logs/*.log"))
        text = logs[-1].read_text() if logs else (folder / "said").read_text()
        return (text.strip().splitlines() or [""])[-1][:150]


def _clear(name: str) -> None:
    """What DLRover leaves behind: its memory and its sockets outlive its processes."""
    for path in Path("/dev/shm").glob(f"{name}_*"):
        path.unlink(missing_ok=True)
    shutil.rmtree(Path("/tmp/ckpt_sock") / name, ignore_errors=True)


def table(megabytes: int, rounds: int, turns: int, names: Sequence[str]) -> dict[str, Found]:
    """Measure all in turn, every second time the other way round, and print a line each."""
    found = {name: Found() for name in names}
    for turn in range(turns):
        for name in names if turn % 2 == 0 else tuple(reversed(names)):
            for _ in range(rounds if name == BLOCKING else 1):  # one save ends its process
                count = 1 if name == BLOCKING else rounds
                found[name].take(*measure(name, megabytes, count, memory=turn == 0))
    print(f"\n{megabytes} MB of model and AdamW state: {rounds * turns} saves each, in {turns} processes")
    print(f"{'milliseconds':<30}{'call':>8}{'stall':>9}{'lost':>23}{'durable':>23}{'memory':>10}")
    for name, one in found.items():
        print(_line(name, one), flush=True)
    return found


def _line(name: str, one: Found) -> str:
    if not one.lines:
        return f"{name:<30} not measured: {one.why}"
    memory = f"{one.memory / 1e6:.0f} MB" if one.memory is not None else ""
    text = f"{name:<30}{one.middle('call'):>8.1f}{one.middle('stall'):>9.1f}"
    for key in ("lost", "durable"):
        values = one.all(key)
        text += f"{statistics.median(values):>8.0f} {f'({min(values):.0f} to {max(values):.0f})':>14}"
    return f"{text}{memory:>10}"


def hold(megabytes: int, found: dict[str, Found]) -> None:
    """Each figure of ours beside its limit and beside the best of the others."""
    small = megabytes < LARGE
    there = {name: one for name, one in found.items() if one.lines}
    print()
    for key, what, of, bound in (
        ("stall", "stall of a save", ["memcpy"], 0.15),
        ("lost", "training time lost a save", ["memcpy"], 1.3 if small else 1.8),
        ("durable", "until durable, with sha256", ["raw write", "raw direct write"], 1.5),
    ):
        for others, most in ((of, bound), (PEERS, 1.0)):
            # the copy is held against its call: what it takes beside that is noise
            column = "call" if others == ["memcpy"] else key
            least = _least(there, 1) if key == "durable" else None
            _hold(f"{megabytes} MB: {what}", "outlast", key, there, others, column, most, least)
    blocking = 0.72 if small else 0.2
    _hold(
        f"{megabytes} MB: blocking save, with sha256",
        BLOCKING,
        "call",
        there,
        ["torch.save"],
        "call",
        blocking,
        _least(there, len(os.sched_getaffinity(0))),
    )
    ours = there.get("outlast")
    if ours is not None and ours.memory is not None:
        goals.ratio(
            f"{megabytes} MB: memory of a save",
            ours.memory / 1e6,
            ours.size / 1e6,
            "the state",
            unit="MB",
            at_most=1.2,
        )


def _least(there: dict[str, Found], cores: int) -> goals.Least | None:
    """What a save can't do without: a copy and a hash beside the training, or a hash by all cores without it."""
    copied = there.get("memcpy, then sha256")
    if copied is None:
        return None
    if cores == 1:
        return goals.Least(copied.middle("durable"), "memcpy, then sha256")
    hashed = copied.middle("durable") - copied.middle("call")
    return goals.Least(hashed / cores, f"sha256 by {cores} cores")


def _hold(
    what: str,
    ours: str,
    key: str,
    there: dict[str, Found],
    others: Sequence[str],
    column: str,
    most: float,
    least: goals.Least | None = None,
) -> None:
    known = [name for name in others if name in there]
    if ours not in there or not known:
        goals.missing(what, f'"{ours}" has no figure' if ours not in there else "nothing to hold it against")
        return
    best = min(known, key=lambda name: there[name].middle(column))
    other = there[best].middle(column)
    goals.ratio(what, there[ours].middle(key), other, best, unit="ms", at_most=most, least=least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one save of little: only to see that it runs")
    parser.add_argument("--megabytes", type=int, nargs="*", default=[300, 1200])
    parser.add_argument("--rounds", type=int, help="saves a process; 5, and 4 of large states")
    parser.add_argument("--turns", type=int, help="processes a contender; 2, and 1 of large states")
    parser.add_argument("--only", help="contenders whose name begins with one of these, by semicolons")
    options = parser.parse_args()
    starts = tuple((options.only or "").split(";"))
    for megabytes in [60] if options.quick else options.megabytes:
        large = megabytes >= LARGE
        rounds, turns = (4, 1) if large else (5, 2)
        rounds, turns = (1, 1) if options.quick else (options.rounds or rounds, options.turns or turns)
        names = [name for name in (*LIMITS, *PEERS, *OURS) if name.startswith(starts)]
        if large and not options.only:
            names = [name for name in names if name not in NOT_LARGE]
        found = table(megabytes, rounds, turns, names)
        if not options.only:
            hold(megabytes, found)


if __name__ == "__main__":
    main()
